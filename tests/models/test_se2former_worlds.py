"""Joint futures of SE2Former: worlds chosen among marginal modes, and joint modes."""

import math
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from support.models import BLOCK, SE2FORMER
from support.scenes import varied_scenes
from torch import Tensor

from trajformer.core.pose import Frames, PoseAttentionConfig
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import BatchConfig
from trajformer.models.se2former.worlds import (
    WorldBlock,
    WorldForecast,
    WorldMixture,
    mixture_nll,
)
from trajformer.testing.models import build_random


@pytest.fixture(scope="module")
def batch() -> SceneBatch:
    return collate(varied_scenes(), BatchConfig(targets="all"))


@pytest.fixture(scope="module")
def forecast(batch: SceneBatch) -> WorldForecast:
    with torch.no_grad():
        return build_random(SE2FORMER).eval()(batch.observation)


def best_order(gain: Tensor) -> list[int]:
    """The mode of each world, every mode at most once, with the largest sum of `gain` [W, K]."""
    worlds, modes = gain.shape
    orders = [list(order) for order in permutations(range(modes), worlds)]
    sums = [float(gain[range(worlds), order].sum()) for order in orders]
    return orders[sums.index(max(sums))]


@torch.no_grad()
def test_a_joint_forecast_takes_each_mode_in_the_world_that_fits_best(
    forecast: WorldForecast, batch: SceneBatch
) -> None:
    joint = forecast.joint_futures()
    assert joint.is_joint and joint.position.shape[2] == SE2FORMER.worlds and not forecast.is_joint
    worlds = forecast.worlds()
    for b, s in batch.observation.target_mask.nonzero().tolist():
        gain = worlds.mode[b, :, s] * worlds.world[b].softmax(-1)[:, None]
        expected = forecast.position[b, s, best_order(gain)]
        assert torch.equal(joint.position[b, s], expected)


@torch.no_grad()
def test_more_worlds_than_modes_repeat_modes(batch: SceneBatch) -> None:
    model = build_random(replace(SE2FORMER, worlds=8)).eval()
    forecast = model(batch.observation)
    joint = forecast.joint_futures()
    assert joint.position.shape[2] == 8
    gap = joint.position[:, :, :, None] - forecast.position[:, :, None]  # [B, S, W, K, F, 2]
    assert not gap.abs().amax((-1, -2)).amin(-1).any()


@torch.no_grad()
def test_worlds_choose_among_selected_modes(forecast: WorldForecast, batch: SceneBatch) -> None:
    order = torch.arange(SE2FORMER.modes).flip(0).expand(*batch.observation.target_mask.shape, -1)
    reversed_joint = forecast.select(order).joint_futures()
    torch.testing.assert_close(reversed_joint.position, forecast.joint_futures().position)

    few = forecast.select(order[..., :2])
    assert isinstance(few, WorldForecast)
    probability = few.worlds().mode.exp()
    torch.testing.assert_close(probability.sum(-1), torch.ones(probability.shape[:-1]))
    ends = few.joint_futures().position[..., -1, :]  # [B, S, W, 2]
    gaps = (ends[:, :, :, None] - few.position[:, :, None, :, -1]).norm(dim=-1).amin(-1)
    assert not gaps[batch.observation.target_mask].any()


def test_worlds_learn_which_modes_go_together() -> None:
    """Two agents with two equally likely modes each, which always agree: one world for each mode.

    In scene 0, both agents take mode 0, in scene 1 mode 1.
    """
    torch.manual_seed(0)
    mixture = WorldMixture(BLOCK, PoseAttentionConfig(), 2)
    feature = torch.randn(1, 2, 2, 32).expand(2, -1, -1, -1)
    logit = torch.zeros(2, 2, 2)
    frames = Frames.of(torch.randn(1, 2, 3).expand(2, -1, -1))
    mask = torch.ones(2, 2, dtype=torch.bool)
    target = torch.eye(2)[:, None].expand(2, 2, 2)
    optimizer = torch.optim.Adam(mixture.parameters(), 0.01)
    for _ in range(200):
        optimizer.zero_grad()
        loss = mixture_nll(mixture(feature, logit, frames, mask), target, torch.ones(2, 2))
        loss.backward()
        optimizer.step()

    one_bit_for_both_agents = math.log(2) / 2  # instead of one bit for each
    assert float(loss.detach()) == pytest.approx(one_bit_for_both_agents, abs=0.02)
    worlds = mixture(feature, logit, frames, mask)
    assert sorted(worlds.mode[0].argmax(-1).tolist()) == [[0, 0], [1, 1]]
    torch.testing.assert_close(worlds.world[0].softmax(-1), torch.full((2,), 0.5), atol=0.1, rtol=0)


@torch.no_grad()
def test_modes_of_a_world_see_each_other_and_no_other_world() -> None:
    """Mode 1 of the last target changes; this target exists in the first scene only."""
    torch.manual_seed(0)
    block = WorldBlock(BLOCK, PoseAttentionConfig()).eval()
    feature = torch.randn(2, 3, 4, BLOCK.width)
    frames = Frames.of(torch.randn(2, 12, 3))
    mask = torch.tensor([[True, True, True], [True, True, False]])
    other = feature.clone()
    other[:, 2, 1] = torch.randn(BLOCK.width)
    gap = block(feature, frames, mask) - block(other, frames, mask)
    changed = gap.abs().amax(-1) > 1e-6  # [B, S, K]
    assert changed[0].nonzero().tolist() == [[0, 1], [1, 1], [2, 1]]
    assert changed[1].nonzero().tolist() == [[2, 1]]
