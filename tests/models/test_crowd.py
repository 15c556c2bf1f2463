"""The crowd forecaster: features of tracks, influence of neighbors, and mode 0."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.scenes import hide, make_scene, transform_scene

from trajformer.core.blocks import BlockConfig
from trajformer.data.batch import Observation, collate
from trajformer.data.sample import BatchConfig, Frame
from trajformer.errors import TrajformerError
from trajformer.losses.set_loss import SetLossConfig
from trajformer.models.crowd import CrowdConfig, CrowdForecaster, agent_tracks
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.geometry import rotate

BLOCK = BlockConfig(width=16, heads=2, feedforward=32, dropout=0.0)
CONFIG = CrowdConfig(num_future=12, modes=5, block=BLOCK)


def walkers(*tracks: np.ndarray) -> Observation:
    """One scene of agents with these observed positions [10, 2]; NaN if unseen."""
    scene = make_scene(len(tracks), num_scored=len(tracks), with_map=False)
    position = scene.position.copy()
    position[:, :10] = np.stack(tracks)
    valid = np.isfinite(position[..., 0])
    position = np.where(valid[..., None], position, 0).astype(np.float32)
    return collate([replace(scene, position=position, valid=valid)]).observation


def line(start: tuple[float, float], step: tuple[float, float]) -> np.ndarray:
    return np.asarray(start) + np.arange(10)[:, None] * np.asarray(step)


def forecast(model: CrowdForecaster, batch: Observation, agent: str = "1000") -> torch.Tensor:
    """Modes [K, F, 2] of an agent in the batch frame."""
    index = batch.agent_id[0].index(agent)
    return model(batch).in_batch_frame()[0, index]


@pytest.fixture
def model() -> CrowdForecaster:
    torch.manual_seed(0)
    return CrowdForecaster(CONFIG).eval()


def test_a_zero_offset_is_constant_velocity(model: CrowdForecaster) -> None:
    with torch.no_grad():
        model.trajectory[-1].weight.zero_()
        model.trajectory[-1].bias.zero_()
    batch = walkers(line((1, 2), (0.3, 0.4)), line((0, 9), (0, 0)))
    walking, standing = model(batch).in_batch_frame()[0]
    start = batch.pose[0, :, :2]
    ahead = torch.arange(1, 13)[:, None] * torch.tensor([0.3, 0.4])
    assert torch.allclose(walking, start[0] + ahead, atol=1e-4)
    assert torch.allclose(standing, start[1].expand(12, 2), atol=1e-4)


def test_only_neighbors_within_the_radius_have_an_influence(model: CrowdForecaster) -> None:
    first = line((0, 0), (0.3, 0))
    near = line((0, 2), (0.3, 0))
    far = line((0, 40), (0.3, 0))
    approaching = line((0, 2 + 9 * 0.3), (0.3, -0.3))  # to the last position of `near`
    lost = near.copy()
    lost[1:] = np.nan  # it was seen .9 s ago

    alone = forecast(model, walkers(first))
    assert torch.allclose(forecast(model, walkers(first, far)), alone, atol=1e-5)
    with_lost = walkers(first, lost)
    long_lost = replace(with_lost, age=2 * with_lost.age)
    assert torch.allclose(forecast(model, long_lost), alone, atol=1e-5)
    parallel = forecast(model, walkers(first, near))
    assert not torch.allclose(parallel, alone, atol=1e-4)
    towards = forecast(model, walkers(first, approaching))
    assert not torch.allclose(parallel, towards, atol=1e-4)


def test_mode_0_is_the_most_probable(model: CrowdForecaster) -> None:
    batch = walkers(line((0, 0), (0.3, 0)), line((0, 9), (0, 0.2)))
    probability = model(batch).probability()
    assert (probability.argmax(-1) == 0).all()
    assert torch.allclose(probability.sum(-1), torch.ones(()))
    assert (probability[..., 0] < 1.01 * probability[..., 1:].amax(-1)).all()


def test_agents_at_rest_stay_in_mode_0(model: CrowdForecaster) -> None:
    limit = CONFIG.step_m / 5
    rest = np.tile([3.0, 4.0], (10, 1))
    rest[4:, 0] += 0.9 * limit  # one small step does not matter
    slow = np.tile([0.0, 9.0], (10, 1))
    slow[4:, 0] += 1.1 * limit
    batch = walkers(rest, slow)
    resting = batch.agent_id[0].index("1000")
    moving = batch.agent_id[0].index("AV")

    gap = model(batch).in_batch_frame()[0] - batch.pose[0, :, None, None, :2]
    moved = gap.norm(dim=-1).amax(-1)  # [S, K] in metres
    assert moved[resting, 0] == 0 and (moved[resting, 1:] > 1e-3).all()
    assert (moved[moving] > 1e-3).all()

    trained = model.train()(batch).in_batch_frame()[0, resting, 0, -1]
    assert (trained - batch.pose[0, resting, :2]).norm() > 1e-3


def test_agents_with_gaps_are_at_rest_only_if_they_stand() -> None:
    once = np.full((10, 2), np.nan)
    once[-1] = (3, 4)
    gaps = line((0, 9), (0.3, 0))
    gaps[::2] = np.nan
    assert not agent_tracks(walkers(once, gaps), CONFIG.step_m).rest.any()

    # The last step is zero: the agent moved before the gap.
    stop = line((0, 9), (0.3, 0))
    stop[8:] = stop[8]
    stop[5:8] = np.nan
    assert not agent_tracks(walkers(stop, gaps), CONFIG.step_m).rest.any()
    stop[:5] = np.nan
    assert agent_tracks(walkers(stop, gaps), CONFIG.step_m).rest.sum() == 1


def test_a_gap_before_the_last_step_hardly_changes_constant_speed() -> None:
    neighbor = line((0, 9), (0.3, 0))
    whole = line((0, 0), (0.3, 0))
    gap = whole.copy()
    gap[6:9] = np.nan
    expected = agent_tracks(walkers(whole, neighbor), CONFIG.step_m)
    actual = agent_tracks(walkers(gap, neighbor), CONFIG.step_m)
    known = actual.known
    assert known[..., -1].all() and not known[0, :, 6:9].all()
    torch.testing.assert_close(actual.step[known], expected.step[known])
    torch.testing.assert_close(actual.unit, expected.unit)


def test_an_agent_without_displacement_turns_with_the_scene(model: CrowdForecaster) -> None:
    seen_once = hide(make_scene(3, with_map=False), 1, slice(0, 9))
    config = BatchConfig(frame=Frame.SCENE)
    batch = collate([seen_once], config).observation
    turned = collate([transform_scene(seen_once, 2.1)], config).observation
    expected = rotate(model(batch).in_batch_frame(), torch.tensor(2.1))
    torch.testing.assert_close(model(turned).in_batch_frame(), expected, atol=1e-3, rtol=1e-4)


def test_the_loss_trains_the_first_mode(model: CrowdForecaster) -> None:
    assert model.choose_loss(None).single > 0
    with pytest.raises(TrajformerError, match=r"loss\.set\.single: 0"):
        TrainConfig(model=CONFIG, loss=SetLossConfig()).check()
