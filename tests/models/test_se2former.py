"""SE2Former: kept encodings, scenes of any size, its config, and its loss."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.models import BLOCK, SE2FORMER
from support.scenes import varied_scenes
from torch import Tensor

from trajformer.data.batch import SceneBatch, Truth, collate, transform
from trajformer.data.sample import BatchConfig
from trajformer.errors import ConfigError
from trajformer.models.se2former.loss import SE2FormerLossConfig
from trajformer.models.se2former.model import SE2Former
from trajformer.models.se2former.paths import PathProposals
from trajformer.scenes.geometry import from_frame, to_frame
from trajformer.scenes.scene import AgentRole
from trajformer.testing.models import build_random
from trajformer.testing.scenes import example_scenes


@pytest.fixture(scope="module")
def batch() -> SceneBatch:
    return collate(varied_scenes(), BatchConfig(targets="all"))


@pytest.fixture(scope="module")
def model() -> SE2Former:
    return build_random(SE2FORMER).eval()


@torch.no_grad()
def test_a_kept_map_gives_the_forecast_of_a_fresh_one(model: SE2Former, batch: SceneBatch) -> None:
    observation = batch.observation
    fresh = model(observation)
    lanes = model.encode_map(observation)
    for _ in range(2):
        agents = model.encode_agents(observation, lanes)
        kept = model.forecast(observation, lanes, agents)
        torch.testing.assert_close(kept.position, fresh.position, atol=1e-6, rtol=0)
        torch.testing.assert_close(kept.logit, fresh.logit, atol=1e-6, rtol=0)


@torch.no_grad()
def test_a_kept_map_is_valid_in_another_frame(model: SE2Former, batch: SceneBatch) -> None:
    """The origin moves by 50 m and turns, in a city frame with large coordinates."""
    o = replace(batch.observation, frame_pose=batch.observation.frame_pose + 4e6)
    lanes = model.encode_map(o)
    move = torch.tensor([40.0, -30.0, 2.0]).expand(batch.num_scenes, 3)
    place = from_frame(move[:, :2].double(), o.frame_pose)
    heading = o.frame_pose[:, 2:] + move[:, 2:]
    moved = transform(SceneBatch(o, batch.truth), move).observation
    moved = replace(moved, frame_pose=torch.cat([place, heading], -1))

    fresh = model(moved)
    kept = model.forecast(moved, lanes, model.encode_agents(moved, lanes))
    mask = moved.target_mask
    torch.testing.assert_close(kept.position[mask], fresh.position[mask], atol=1e-4, rtol=0)
    torch.testing.assert_close(kept.logit[mask], fresh.logit[mask], atol=1e-4, rtol=0)


@torch.no_grad()
def test_the_map_encoding_does_not_depend_on_agents(model: SE2Former, batch: SceneBatch) -> None:
    o = batch.observation
    other = replace(o, pose=o.pose + 1.0, position=o.position + 1.0, velocity=o.velocity * 2)
    before, after = model.encode_map(o), model.encode_map(other)
    for old, new in zip(before.agent_memories, after.agent_memories, strict=True):
        assert torch.equal(old.key, new.key) and torch.equal(old.value, new.value)
    assert torch.equal(before.decoder_memory.key, after.decoder_memory.key)
    assert torch.equal(before.decoder_memory.value, after.decoder_memory.value)


@torch.no_grad()
@pytest.mark.parametrize("joint", [False, True])
def test_training_does_not_change_a_forecast(batch: SceneBatch, joint: bool) -> None:
    model = build_random(replace(SE2FORMER, joint=joint))
    forecast = model.eval()(batch.observation)
    in_training = model.train()(batch.observation)
    assert torch.equal(in_training.position, forecast.position)
    assert torch.equal(in_training.logit, forecast.logit)


@torch.no_grad()
def test_a_thousand_agents(model: SE2Former) -> None:
    config = BatchConfig(targets="all")
    crowd = collate(example_scenes((1000,)), config)
    forecast = model(crowd.observation)
    assert crowd.observation.num_targets > 900
    assert forecast.position.shape[:2] == (1, crowd.observation.num_targets)
    assert forecast.position.isfinite().all() and forecast.logit.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("points", [2, 5, 8, 20])
def test_lanes_of_any_number_of_points(model: SE2Former, points: int) -> None:
    config = BatchConfig(polyline_points=points)
    assert model(collate(varied_scenes(), config).observation).position.isfinite().all()


def test_options_without_effect_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"components: 13, expected at most num_future, 12"):
        replace(SE2FORMER, components=13)
    message = r"block.attention_dropout: pose attention does not have it; leave it at 0.0"
    with pytest.raises(ConfigError, match=message):
        replace(SE2FORMER, block=replace(BLOCK, attention_dropout=0.1))


class LossInLoops:
    """The loss of the paths and scores in loops over scenes, targets and modes.

    Nested modes have a separate winner; joint modes have one winner for the scene.
    """

    def __init__(self, proposals: PathProposals, batch: SceneBatch, nested: int) -> None:
        self.proposals, self.batch, self.nested = proposals, batch, nested
        known = batch.observation.target_mask & batch.truth.valid.any(-1)
        self.targets = [tuple(index) for index in known.nonzero().tolist()]
        self.path: dict[Any, Tensor] = {}  # [F', 2] of the valid steps
        self.distances: dict[Any, list[Tensor]] = {}  # proposed and refined, each [K + 1, F']
        pose = batch.observation.pose
        for b, s in self.targets:
            valid = batch.truth.valid[b, s]
            path = to_frame(batch.truth.position[b, s], pose[b, s])[valid]
            stages = (proposals.proposed[b, s], proposals.refined[b, s])
            self.path[b, s] = path
            self.distances[b, s] = [(stage[:, valid] - path).norm(dim=-1) for stage in stages]

    def together(self, b: int, s: int) -> list[list[Tensor]]:
        """Distances of the target, or of all targets of its scene if modes are joint."""
        if not self.proposals.is_joint:
            return [self.distances[b, s]]
        return [rows for (scene, _), rows in self.distances.items() if scene == b]

    def weighted_modes(self, b: int, s: int) -> Iterator[tuple[int, float]]:
        """Winners, and the median with its weight of .2."""
        errors = []
        for proposed, _ in self.together(b, s):
            modes = proposed[:6]
            errors.append(modes.mean(-1) + modes[:, -1])
        error = torch.stack(errors).mean(0)
        yield int(error.argmin()), 1.0
        if self.nested:
            yield int(error[: self.nested].argmin()), 1.0
        yield 6, 0.2

    def score(self, b: int, s: int) -> Tensor:
        """Cross-entropy of the scores."""
        ends = [refined[:6, -1] for _, refined in self.together(b, s)]
        logit = self.proposals.logit[b]
        if not self.proposals.is_joint:
            logit = logit[s]
        target = (-torch.stack(ends).mean(0)).softmax(0)
        return -(target * logit.log_softmax(0)).sum()

    def value(self, b: int, s: int) -> float:
        """Huber errors of both stages with a weight .7 of the end, and .3 of the score."""
        value = 0.3 * self.score(b, s)
        for rows in self.distances[b, s]:
            for mode, weight in self.weighted_modes(b, s):
                row = rows[mode]
                huber = torch.where(row < 1, row**2 / 2, row - 0.5)
                value = value + weight * (huber.mean() + 0.7 * huber[-1])
        return float(value)

    def weight(self, b: int, s: int) -> float:
        """1 for scored targets, .5 for others that move 3 m, .1 for the rest."""
        if self.batch.observation.agent_role[b, s] >= int(AgentRole.SCORED):
            return 1.0
        return 0.5 if self.path[b, s][-1].norm() >= 3.0 else 0.1

    def mean(self) -> float:
        weights = [self.weight(b, s) for b, s in self.targets]
        values = [self.value(b, s) for b, s in self.targets]
        weighted = [weight * value for weight, value in zip(weights, values, strict=True)]
        return sum(weighted) / sum(weights)


@pytest.mark.parametrize(
    "change",
    [{}, {"nested": 2}, {"joint": True}, {"median_query": False}],
    ids=["marginal", "nested", "joint", "median without query"],
)
def test_the_loss_is_that_of_the_best_proposal_and_the_median(
    batch: SceneBatch, change: dict[str, Any]
) -> None:
    config = SE2FormerLossConfig(
        moving=0.5, standing=0.1, endpoint=0.7, median=0.2, score=0.3, worlds=0.0
    )
    valid = batch.truth.valid.clone()
    valid[0, 1, 5:] = False  # an incomplete future
    valid[1, 0] = False  # an unknown future
    partial = replace(batch, truth=Truth(batch.truth.position * valid[..., None], valid))
    model = build_random(replace(SE2FORMER, **change)).train().requires_grad_(False)

    terms = config.build()(model, partial)
    proposals = model.propose(partial.observation)
    expected = LossInLoops(proposals, partial, change.get("nested", 0)).mean()
    actual = terms["proposal"] + terms["path"] + 0.3 * terms["score"]
    assert float(actual) == pytest.approx(expected, rel=1e-4)


def test_a_median_without_a_query_comes_from_the_token_of_its_target(batch: SceneBatch) -> None:
    model = build_random(replace(SE2FORMER, median_query=False))
    assert len(model.modes) == model.config.modes
    before = model.propose(batch.observation)
    torch.nn.init.zeros_(model.modes)
    after = model.propose(batch.observation)
    assert not torch.equal(before.modes, after.modes)
    assert torch.equal(before.median, after.median)


def test_only_the_temperature_learns_from_the_calibration(batch: SceneBatch) -> None:
    """The loss without all other terms, whose weights are zero or whose errors have no gradient."""
    model = build_random(SE2FORMER).train()
    config = SE2FormerLossConfig(score=0.0, worlds=0.0)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in ("temperature", "score.output.weight"))
    config.build()(model, batch)["loss"].backward()
    assert model.temperature.grad is not None and model.temperature.grad != 0
    assert not model.score.output.weight.grad.any()
