"""Single forecast of SE2Former: manoeuvres, agents at rest, and the mode that moves."""

import math
from dataclasses import replace

import pytest
import torch
from support.models import SE2FORMER
from support.scenes import varied_scenes
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import BatchConfig
from trajformer.models.se2former.single_forecast import (
    agreement,
    make_most_probable,
    nearest_mode,
    single_path,
)
from trajformer.testing.models import build_random


@pytest.fixture(scope="module")
def batch() -> SceneBatch:
    return collate(varied_scenes(), BatchConfig(targets="all"))


def single_of(modes: Tensor, median: Tensor, logit: Tensor, motion_scale: float = 1.0) -> Tensor:
    """The single path [F, 2] of one agent with modes [K, F, 2], a median [F, 2] and logits [K]."""
    scale = torch.full((1, 1, 1, 1, 1), motion_scale)
    single = single_path(modes[None, None], median[None, None, None], logit[None, None], scale)
    return single[0, 0, 0]


@torch.no_grad()
def test_the_nearest_mode_moves_to_the_single_forecast_and_gets_the_highest_score(
    batch: SceneBatch,
) -> None:
    """The single forecast is the middle of median and mean, and the median for agents at rest.

    The nearest mode of an agent at rest moves all the way, that of others two thirds.
    """
    model = build_random(SE2FORMER).eval()
    model.temperature.fill_(0.5)
    proposals = model.propose(batch.observation)
    forecast = model(batch.observation)
    scale = proposals.motion_scale.flatten(1)
    assert (scale == 0).any() and (scale == 1).any()
    for b, s in batch.observation.target_mask.nonzero().tolist():
        modes = proposals.modes[b, s].clone()
        median = proposals.median[b, s, 0]
        logit = proposals.logit[b, s] / math.exp(0.5)
        mean = torch.einsum("k,kfc->fc", logit.softmax(0), modes)
        single = median + scale[b, s] * (mean - median) / 2
        nearest = int((modes[:, -1] - single[-1]).norm(dim=-1).argmin())
        modes[nearest] += (1 - scale[b, s] / 3) * (single - modes[nearest])
        torch.testing.assert_close(forecast.position[b, s], modes, atol=1e-5, rtol=0)
        highest = forecast.logit[b, s].max()
        assert forecast.logit[b, s, nearest] == highest
        assert highest == pytest.approx(float(logit.max()), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(
    ("motion_scale", "probability", "weight"),
    [(1.0, 0.9, 0.5), (0.0, 0.7, 0.0), (0.0, 0.9, 1.0)],
    ids=["moving", "resting", "starting"],
)
def test_an_agent_at_rest_starts_if_most_of_its_modes_do(
    motion_scale: float, probability: float, weight: float
) -> None:
    """The first mode is near, the second one is far away and has the given probability."""
    end = torch.tensor([[1.0, 0.0], [8.0, 0.0]])
    modes = end[:, None].expand(2, 3, 2)  # [K, F, 2]
    logit = torch.tensor([1 - probability, probability]).log()
    single = single_of(modes, torch.zeros(3, 2), logit, motion_scale)
    mean = 1 - probability + 8 * probability
    torch.testing.assert_close(single, torch.tensor([[weight * mean, 0.0]]).expand(3, 2))


@pytest.mark.parametrize(
    ("straight", "median_y", "expected_y"),
    [(0.4, -1.0, -12.5), (0.4, -9.0, -12.5), (0.7, -1.0, -0.5), (0.7, -9.0, 0.0)],
)
@pytest.mark.parametrize("steps", [10, 60])
def test_the_single_forecast_is_an_average_of_one_manoeuvre(
    straight: float, median_y: float, expected_y: float, steps: int
) -> None:
    """One mode goes straight and two turn right; the median is near the first, or between them."""
    time = torch.linspace(1 / steps, 1, steps)
    modes = [torch.stack([30 * time, 0 * time], -1)]
    for side in (10, 15):
        x = 30 * time.clamp(max=0.5)
        y = -side * (2 * time - 1).clamp(min=0)
        modes.append(torch.stack([x, y], -1))
    median = time[:, None] * torch.tensor([28.0, median_y])
    turning = (1 - straight) / 2
    logit = torch.tensor([straight, turning, turning]).log()
    single = single_of(torch.stack(modes), median, logit)
    assert single[-1, 1] == pytest.approx(expected_y)


def test_paths_agree_if_the_end_of_one_is_near_the_other() -> None:
    """Compared with distances from 5,001 points on each path."""
    path = 3 * torch.randn(1, 4, 5, 6, 2, generator=torch.Generator().manual_seed(0)).cumsum(3)
    from_target = torch.cat([torch.zeros_like(path[..., :1, :]), path], 3)
    lines = from_target.flatten(0, 2).transpose(1, 2)
    dense = nn.functional.interpolate(lines, 5001, mode="linear", align_corners=True)
    dense = dense.transpose(1, 2).unflatten(0, (4, 5))
    gap = (path[0, :, :, None, None, -1] - dense[:, None]).norm(dim=-1).amin(-1)
    gap = torch.minimum(gap, gap.transpose(1, 2))
    clear = (gap - 2.0).abs() > 0.01
    assert clear.float().mean() > 0.9 and 0.3 < (gap < 2).float().mean() < 0.7
    assert torch.equal(agreement(path)[0][clear], (gap < 2)[clear])


@pytest.mark.parametrize("score", [[0.125, 0.125, -1.0], [0.125, 0.125, 0.125], [2.0, 2.0, -1.0]])
def test_the_moved_mode_is_the_most_probable_one_if_modes_tie(score: list[float]) -> None:
    """Also for small scores, whose next larger number has the same softmax."""
    modes = torch.zeros(1, 1, 3, 12, 2)
    modes[0, 0, :, -1, 0] = torch.tensor([10.0, 20.0, 30.0])
    chosen = nearest_mode(modes, modes[:, :, 2:], 0)
    probability = make_most_probable(torch.tensor([[score]]), chosen).softmax(-1)
    assert probability.argsort(dim=-1, descending=True, stable=True)[0, 0, 0] == 2


@torch.no_grad()
def test_nested_modes_are_the_most_probable_ones(batch: SceneBatch) -> None:
    plain = build_random(SE2FORMER).eval()(batch.observation)
    nested = build_random(replace(SE2FORMER, nested=2)).eval()(batch.observation)
    torch.testing.assert_close(plain.logit.sort(-1).values, nested.logit.sort(-1).values)
    real = batch.observation.target_mask
    assert (nested.logit.topk(2).indices[real] < 2).all()


@torch.no_grad()
def test_one_of_the_nested_modes_moves(batch: SceneBatch) -> None:
    model = build_random(replace(SE2FORMER, nested=2)).eval()
    modes = model.propose(batch.observation).modes
    gap = (modes - model(batch.observation).position).abs().amax((-1, -2))
    moved = gap[batch.observation.target_mask] > 1e-6
    assert (moved.sum(-1) <= 1).all() and not moved[:, 2:].any() and moved.any()
