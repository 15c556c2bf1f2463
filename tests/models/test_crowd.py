"""The forecaster for crowds: what it sees of agents, of whom it takes notice, and how its recipe trains."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.scenes import make_scene

from trajformer.core.blocks import BlockConfig
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.models.crowd import CrowdConfig, CrowdForecaster, own_frames

CONFIG = CrowdConfig(num_future=12, modes=5, block=BlockConfig(width=16, heads=2, feedforward=32, dropout=0.0))


def walkers(*tracks: np.ndarray) -> SceneBatch:
    """A batch of one scene of agents with these observed positions [10, 2]; NaN where unseen."""
    scene = make_scene(len(tracks), num_scored=len(tracks), with_map=False)
    position = scene.position.copy()
    position[:, :10] = np.stack(tracks)
    valid = np.isfinite(position[..., 0])
    return collate([replace(scene, position=np.where(valid[..., None], position, 0).astype(np.float32), valid=valid)])


def line(start: tuple[float, float], step: tuple[float, float]) -> np.ndarray:
    return np.asarray(start) + np.arange(10)[:, None] * np.asarray(step)


def forecast(model: CrowdForecaster, batch: SceneBatch, agent: str = "1000") -> torch.Tensor:
    """Modes [K, F, 2] of an agent in the batch frame."""
    return model(batch).in_batch_frame()[0, batch.agent_id[0].index(agent)]


@pytest.fixture
def model() -> CrowdForecaster:
    torch.manual_seed(0)
    return CrowdForecaster(CONFIG).eval()


def test_an_agent_is_seen_from_its_last_position_along_its_way() -> None:
    late = line((5, 5), (0, -0.5))
    late[:4] = np.nan
    batch = walkers(line((1, 2), (0.3, 0.4)), late, line((0, 9), (0, 0)))
    own = own_frames(batch, 0.1)
    assert torch.allclose(own.pose[0, :, :2], batch.pose[0, :, :2])
    assert own.pose[0, :, 2].tolist() == pytest.approx([math.atan2(4, 3), -math.pi / 2, 0.0], abs=1e-5)
    assert own.unit[0].tolist() == pytest.approx([math.hypot(0.5, 0.1), math.hypot(0.5, 0.1), 0.1], abs=1e-5)
    assert torch.allclose(own.xy[0, 0, :, 0], 0.5 * torch.arange(-9.0, 1), atol=1e-5)
    assert torch.allclose(own.step[0, 1, 5:], torch.tensor([0.5, 0.0]).expand(5, 2), atol=1e-5)
    assert own.known[0].sum(-1).tolist() == [9, 5, 9] and (own.step[0, 1, :5] == 0).all() and (own.xy[0, 1, :4] == 0).all()


def test_untrained_modes_spread_around_constant_velocity(model: CrowdForecaster) -> None:
    with torch.no_grad():
        model.trajectory[-1].weight.zero_()
        model.trajectory[-1].bias.zero_()
    batch = walkers(line((1, 2), (0.3, 0.4)), line((0, 9), (0, 0)))
    modes = model(batch).in_batch_frame()[0]
    ahead = torch.arange(1, 13)[:, None]
    assert torch.allclose(modes[0], batch.pose[0, 0, :2] + ahead * torch.tensor([0.3, 0.4]), atol=1e-4)
    assert torch.allclose(modes[1], batch.pose[0, 1, :2].expand(12, 2), atol=1e-4)


def test_neighbours_within_reach_are_noticed_and_no_others(model: CrowdForecaster) -> None:
    first = line((0, 0), (0.3, 0))
    near, far = line((0, 2), (0.3, 0)), line((0, 40), (0.3, 0))
    alone = forecast(model, walkers(first))
    assert torch.allclose(forecast(model, walkers(first, far)), alone, atol=1e-5)
    beside = forecast(model, walkers(first, near))
    assert not torch.allclose(beside, alone, atol=1e-4)
    towards = forecast(model, walkers(first, line((0, 2 + 9 * 0.3), (0.3, -0.3))))  # there, too, but coming nearer
    assert not torch.allclose(beside, towards, atol=1e-4)
    gone = near.copy()
    gone[-1] = np.nan
    assert torch.allclose(forecast(model, walkers(first, gone)), alone, atol=1e-5)


def test_the_first_mode_is_the_most_probable(model: CrowdForecaster) -> None:
    batch = walkers(line((0, 0), (0.3, 0)), line((0, 9), (0, 0.2)))
    probability = model(batch).probability()
    assert (probability.argmax(-1) == 0).all() and torch.allclose(probability.sum(-1), torch.ones(()))
    assert (probability[..., 0] < 1.01 * probability[..., 1:].amax(-1)).all()


def test_the_first_mode_is_drawn_to_constant_velocity_in_evaluation(model: CrowdForecaster) -> None:
    batch = walkers(line((0, 0), (0.3, 0)))
    raw, drawn = model.train()(batch).position, model.eval()(batch).position
    straight = raw.new_tensor([0.3, 0.0]) * torch.arange(1, 13)[:, None]
    assert not torch.allclose(raw[0, 0, 0], straight, atol=1e-3)
    assert torch.allclose(drawn[0, 0, 0] - straight, 0.7 * (raw[0, 0, 0] - straight), atol=1e-4)
    assert torch.equal(drawn[0, 0, 1:], raw[0, 0, 1:])


def test_without_a_first_mode_the_middle_one_is_the_most_probable() -> None:
    torch.manual_seed(0)
    model = CrowdForecaster(replace(CONFIG, first=False)).eval()
    result = model(walkers(line((0, 0), (0.3, 0))))
    end = result.position[0, 0, :, -1]
    raw = model.train()(walkers(line((0, 0), (0.3, 0)))).logit[0, 0].softmax(-1)
    expected = (torch.cdist(end, end) * raw).sum(-1)
    assert int(result.logit[0, 0].argmax()) == int(expected.argmin())


@pytest.mark.parametrize("field", ["modes", "time_layers"])
def test_a_size_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(TrajformerError, match=f"crowd: .*{field} 0"):
        CrowdForecaster(replace(CONFIG, **{field: 0}))


def test_more_trust_than_all_is_refused() -> None:
    with pytest.raises(TrajformerError, match=r"crowd: trust 1\.5"):
        CrowdForecaster(replace(CONFIG, trust=1.5))


def test_scenes_of_other_lengths_are_refused(model: CrowdForecaster) -> None:
    with pytest.raises(TrajformerError, match="12 future steps, the model predicts 3"):
        CrowdForecaster(replace(CONFIG, num_future=3))(collate([make_scene()], BatchConfig()))
    with pytest.raises(TrajformerError, match="10 observed steps, the model max_history 4"):
        CrowdForecaster(replace(CONFIG, max_history=4))(collate([make_scene()]))
