"""Paths of SE2Former: smooth components, their fit, and agents at rest."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.models import SE2FORMER
from support.scenes import varied_scenes
from support.training import training_store

from trajformer.data.batch import Observation, SceneBatch, collate
from trajformer.data.loading import SceneDataset
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.models.se2former.features import Motion
from trajformer.models.se2former.paths import (
    BasePath,
    base_path,
    path_ends,
    residual_basis,
    sum_components,
    turn,
    turn_back,
)
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.scene import AgentRole
from trajformer.scenes.store import SceneStore
from trajformer.testing.models import build_random


@pytest.fixture(scope="module")
def batch() -> SceneBatch:
    return collate(varied_scenes(), BatchConfig(targets="all"))


def base_of(observation: Observation) -> BasePath:
    return base_path(observation, Motion.of(observation))


@torch.no_grad()
def test_paths_are_sums_of_smooth_components(batch: SceneBatch) -> None:
    """For any output of the network, a path is in the space of its components."""
    model = build_random(SE2FORMER).eval()
    time = torch.linspace(0, 1, 12)
    model.basis.copy_(torch.stack([time, time**2, time**3, time**4]).expand(2, -1, -1))
    o = batch.observation
    residual = (model(o).position - base_of(o).position)[o.target_mask]
    # After the refinement, x mixes components of both axes, which are the same here.
    space = torch.linalg.qr(model.basis[0].T).Q  # [F, C]
    residual = residual.transpose(-1, -2)
    outside = (residual @ space @ space.T) - residual
    assert outside.abs().max() < 1e-3 * residual.abs().max()


@torch.no_grad()
def test_the_most_probable_mode_of_an_agent_at_rest_is_rest(batch: SceneBatch) -> None:
    model = build_random(SE2FORMER).eval()
    o = batch.observation
    noise = torch.randn(o.position.shape, generator=torch.Generator().manual_seed(0))
    position = o.position[:, :, -1:] + 0.05 * noise
    still = replace(o, position=position, valid=o.valid | o.agent_mask[..., None])
    forecast = model(still)
    best = forecast.logit.argmax(-1)[..., None, None, None]
    top = forecast.position.take_along_dim(best, 2)[o.target_mask]
    assert top.diff(dim=-2).abs().max() < 1e-4 and top.abs().max() < 0.2


@pytest.mark.parametrize("seen", [2, 4, 7, 10])
def test_an_agent_that_was_seen_shortly_is_not_at_rest(batch: SceneBatch, seen: int) -> None:
    o = batch.observation
    step = torch.arange(o.num_history)
    position = 5.0 * o.period_s * step[:, None] + torch.zeros_like(o.position)
    valid = (step >= o.num_history - seen).expand_as(o.valid)
    moving = replace(o, position=position, valid=valid)
    assert (base_of(moving).motion_scale == 1).all()


def test_an_agent_that_was_seen_once_is_at_rest(batch: SceneBatch) -> None:
    o = batch.observation
    present = o.valid[:, : o.num_targets, -1] & o.target_mask
    last = torch.arange(o.num_history) == o.num_history - 1
    base = base_of(replace(o, valid=o.valid & last))
    assert present.any()
    assert not base.motion_scale[present].any() and not base.position[present].any()


def test_prepare_stores_mean_and_components_of_moving_targets(tmp_path: Path) -> None:
    training_store(tmp_path, 8, 1)
    data = SceneDataset(SceneStore(tmp_path, "train"), BatchConfig(targets="all"))
    mean, basis = residual_basis(data, 4)
    model = build_random(SE2FORMER)
    model.prepare(data, 0)
    assert torch.equal(model.mean, mean) and torch.equal(model.basis, basis)

    batch = data[list(range(8))]
    observation, truth = batch.observation, batch.truth
    targets = observation.num_targets
    path = to_frame(truth.position, observation.pose[:, :targets, None])
    moves = truth.valid.all(-1) & (path[..., -1, :].norm(dim=-1) > 3.0)
    focal = moves & (observation.agent_role[:, :targets] == int(AgentRole.FOCAL))
    residual = path - base_of(observation).position[:, :, 0]
    residual = torch.cat([residual[moves], residual[focal]]) - mean

    # All components reproduce the residuals, and each has the deviation of its coefficient.
    _, full = residual_basis(data, 12)
    for axis, components in zip(residual.unbind(-1), full, strict=True):
        size = components.norm(dim=1, keepdim=True)
        unit = components / size
        torch.testing.assert_close(axis @ unit.T @ unit, axis, atol=1e-3, rtol=0)
        deviation = (axis @ unit[0]).square().mean().sqrt()
        torch.testing.assert_close(deviation, size[0, 0], atol=1e-3, rtol=1e-3)


def test_few_moving_targets_are_an_error(tmp_path: Path) -> None:
    training_store(tmp_path, 1, 1)
    few = SceneDataset(SceneStore(tmp_path, "train"), BatchConfig(targets="focal"))
    with pytest.raises(TrajformerError, match="too few for 4 components"):
        residual_basis(few, 4)


def test_components_are_summed_in_single_precision() -> None:
    coefficient, basis = torch.randn(1, 3, 2, 8), torch.randn(2, 4, 12)
    with torch.autocast("cpu", torch.bfloat16):
        half = sum_components(coefficient, basis)
    assert torch.equal(half, sum_components(coefficient, basis))


def test_a_path_faces_along_its_tail_or_ahead_if_it_ends_at_rest() -> None:
    time = torch.arange(1.0, 11.0)
    moving = torch.stack([3 * time, 4 * time], -1)
    resting = 0.01 * moving
    end, direction = path_ends(torch.stack([moving, resting]))
    torch.testing.assert_close(end, torch.tensor([[30.0, 40.0], [0.3, 0.4]]))
    torch.testing.assert_close(direction, torch.tensor([[0.6, 0.8], [1.0, 0.0]]))


def test_turning_back_is_the_inverse() -> None:
    direction = torch.tensor([0.6, 0.8])
    torch.testing.assert_close(turn(torch.tensor([1.0, 0.0]), direction), direction)
    vector = torch.tensor([2.0, -1.0])
    torch.testing.assert_close(turn_back(turn(vector, direction), direction), vector)
