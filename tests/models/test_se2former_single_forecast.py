"""Single forecast of SE2Former: the most probable mode, agents at rest, and nested modes."""

import math
from dataclasses import replace

import pytest
import torch
from support.models import SE2FORMER
from support.scenes import varied_scenes
from torch import Tensor

from trajformer.core.pose import Frames
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import BatchConfig
from trajformer.models.se2former.paths import PathProposals
from trajformer.models.se2former.single_forecast import final_modes, make_most_probable
from trajformer.testing.models import build_random

STEPS = 3


@pytest.fixture(scope="module")
def batch() -> SceneBatch:
    return collate(varied_scenes(), BatchConfig(targets="all"))


def forecast_of(
    end_x: list[float], probability: list[float], motion_scale: float = 1.0, nested: int = 0
) -> tuple[Tensor, Tensor]:
    """Ends x [K] and probabilities [K] of the final modes of one agent, straight along x.

    Its median path is rest.
    """
    ends = torch.tensor([*end_x, 0.0])
    path = torch.zeros(1, 1, len(ends), STEPS, 2)
    path[..., 0] = ends[:, None] * torch.linspace(1 / STEPS, 1, STEPS)
    proposals = PathProposals(
        proposed=path,
        refined=path,
        logit=torch.tensor(probability).log()[None, None],
        motion_scale=torch.full((1, 1, 1, 1, 1), motion_scale),
        feature=torch.zeros(1, 1, len(end_x), 4),
        frames=Frames.of(torch.zeros(1, 1, 3)),
    )
    position, logit = final_modes(proposals, torch.tensor(1.0), nested)
    return position[0, 0, :, -1, 0], logit[0, 0].softmax(-1)


@torch.no_grad()
def test_the_mode_with_the_smallest_expected_error_gets_the_highest_score(
    batch: SceneBatch,
) -> None:
    """Compared with loops over targets and modes. Only rest changes a path."""
    model = build_random(SE2FORMER).eval()
    model.temperature.fill_(0.5)
    proposals = model.propose(batch.observation)
    forecast = model(batch.observation)
    scale = proposals.motion_scale.flatten(1)
    assert (scale == 0).any() and (scale == 1).any()
    for b, s in batch.observation.target_mask.nonzero().tolist():
        modes = proposals.modes[b, s].clone()
        logit = proposals.logit[b, s] / math.exp(0.5)
        probability = logit.softmax(0)

        def expected_error(end: Tensor, ends: Tensor, probability: Tensor) -> float:
            gaps = (ends - end).norm(dim=-1)
            return float((gaps * probability).sum())

        ends = modes[:, -1].clone()
        errors = [expected_error(end, ends, probability) for end in ends]
        best = errors.index(min(errors))
        rest = proposals.median[b, s, 0]
        if scale[b, s] < 0.5 and expected_error(rest[-1], ends, probability) <= min(errors) + 5:
            best = int((ends - rest[-1]).norm(dim=-1).argmin())
            modes[best] = rest
        torch.testing.assert_close(forecast.position[b, s], modes, atol=1e-6, rtol=0)
        highest = forecast.logit[b, s].max()
        assert forecast.logit[b, s, best] == highest
        assert highest == pytest.approx(float(logit.max()), rel=1e-5, abs=1e-5)


def test_modes_of_one_manoeuvre_outweigh_a_single_one_of_another() -> None:
    """The single mode has the highest probability of the network."""
    end, probability = forecast_of([40.0, 10.0, 11.0, 12.0], [0.4, 0.2, 0.35, 0.05])
    torch.testing.assert_close(end, torch.tensor([40.0, 10.0, 11.0, 12.0]))
    expected = torch.tensor([0.35, 0.2, 0.4, 0.05])
    torch.testing.assert_close(probability, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("motion_scale", "far", "stays"),
    [(0.0, 8.0, True), (0.4, 8.0, True), (0.6, 8.0, False), (0.0, 10.0, False)],
    ids=["resting", "nearly resting", "moving", "starting"],
)
def test_an_agent_at_rest_stays_unless_a_mode_is_much_better(
    motion_scale: float, far: float, stays: bool
) -> None:
    """The expected error of rest is .25 + .75 far, that of the far mode .25 (far - 1)."""
    end, probability = forecast_of([1.0, far], [0.25, 0.75], motion_scale)
    near = 0.0 if stays else 1.0
    torch.testing.assert_close(end, torch.tensor([near, far]))
    assert int(probability.argmax()) == (0 if stays else 1)


@pytest.mark.parametrize("score", [[0.125, 0.125, -1.0], [0.125, 0.125, 0.125], [2.0, 2.0, -1.0]])
def test_the_chosen_mode_is_the_most_probable_one_if_modes_tie(score: list[float]) -> None:
    """Also for small scores, whose next larger number has the same softmax."""
    chosen = torch.tensor([[[2]]])
    probability = make_most_probable(torch.tensor([[score]]), chosen).softmax(-1)
    assert probability.argsort(dim=-1, descending=True, stable=True)[0, 0, 0] == 2


@torch.no_grad()
def test_nested_modes_are_the_most_probable_ones(batch: SceneBatch) -> None:
    plain = build_random(SE2FORMER).eval()(batch.observation)
    nested = build_random(replace(SE2FORMER, nested=2)).eval()(batch.observation)
    torch.testing.assert_close(plain.logit.sort(-1).values, nested.logit.sort(-1).values)
    real = batch.observation.target_mask
    assert (nested.logit.topk(2).indices[real] < 2).all()


@pytest.mark.parametrize("motion_scale", [0.0, 1.0])
def test_a_nested_mode_is_chosen(motion_scale: float) -> None:
    """The last mode is better, and at rest."""
    end, probability = forecast_of([3.0, 1.0, 0.1], [0.1, 0.1, 0.8], motion_scale, nested=2)
    assert int(probability.argmax()) == 1 and probability[:2].min() >= probability[2]
    assert end[2] == pytest.approx(0.1)
