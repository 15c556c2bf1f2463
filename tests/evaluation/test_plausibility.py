"""Plausibility: the smoother against least squares, closed forms, lanes, metrics over batches."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.tensors import draw
from torch import Tensor

from trajformer.data.batch import Truth
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.evaluation.metrics.plausibility import (
    NAMES,
    Plausibility,
    accelerations,
    dynamics,
    jerks,
    lane_gap,
    p99,
    smooth,
)
from trajformer.scenes.scene import PolylineKind, Scene

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
TIME = torch.arange(30, dtype=torch.float64) * 0.1


NO_LANES = torch.zeros(1, 0, 2, 2)


def make_batch(position: Tensor, valid: Tensor, lanes: Tensor = NO_LANES, kind: int = 0) -> Any:
    """The part of a batch that the metrics use: a scene with polylines of one kind."""
    mask = torch.ones(lanes.shape[:2], dtype=torch.bool)
    observation = SimpleNamespace(
        period_s=0.1, polyline=lanes, polyline_mask=mask, polyline_kind=kind * mask
    )
    return SimpleNamespace(truth=Truth(position, valid), observation=observation)


def test_the_smoother_minimizes_its_sum() -> None:
    """The sum of |s - x|^2 and weighted squared third differences, as a least-squares problem."""
    noisy = draw(30, 2).double()
    weight = (2 * math.sin(math.pi * 0.05)) ** -6
    third_difference = np.diff(np.eye(30), 3, axis=0)
    matrix = np.concatenate([np.eye(30), math.sqrt(weight) * third_difference])
    right_side = np.concatenate([noisy.numpy(), np.zeros((27, 2))])
    expected = np.linalg.lstsq(matrix, right_side, rcond=None)[0]
    np.testing.assert_allclose(smooth(noisy, 0.1).numpy(), expected, atol=1e-9)


def test_a_circle_has_constant_acceleration_and_yaw_rate() -> None:
    circle = 20 * torch.stack([torch.cos(TIME / 2), torch.sin(TIME / 2)], -1)  # 10 m/s
    acceleration, yaw_rate = accelerations(circle, 0.1)
    np.testing.assert_allclose(acceleration, np.full(28, 5.0), atol=0.01)
    np.testing.assert_allclose(yaw_rate, np.full(28, 0.5), atol=0.001)


def test_jerks_of_a_cubic_path_and_of_a_circle() -> None:
    """Constant jerk; on a circle with speed v and yaw rate w, the jerk is v w^2."""
    cubic = torch.stack([0.5 * TIME**3, 2 * TIME**3 - TIME], -1)
    np.testing.assert_allclose(jerks(cubic, 0.1), np.full(27, math.hypot(3, 12)), rtol=1e-9)
    circle = 20 * torch.stack([torch.cos(TIME / 2), torch.sin(TIME / 2)], -1)
    np.testing.assert_allclose(jerks(circle, 0.1), np.full(27, 2.5), atol=0.01)


def test_dynamics_are_those_of_the_smoothed_path() -> None:
    path = draw(3, 30, 2).double()
    values = dynamics(path.numpy(), 0.1)
    acceleration, yaw_rate = accelerations(smooth(path, 0.1), 0.1)
    np.testing.assert_array_equal(values.acceleration, acceleration)
    np.testing.assert_array_equal(values.yaw_rate, yaw_rate)
    np.testing.assert_array_equal(values.jerk, jerks(smooth(path, 0.1), 0.1))

    with_gap = path.numpy().copy()
    with_gap[1, 7] = np.nan
    gap_values = dynamics(with_gap, 0.1)
    assert np.isnan(gap_values.jerk[1]).all()
    np.testing.assert_allclose(gap_values.jerk[[0, 2]], values.jerk[[0, 2]])
    assert dynamics(path.numpy()[:, :3], 0.1).jerk.shape == (3, 0)


def test_real_recordings_equal_sparse_least_squares(argoverse2_scenes: list[Scene]) -> None:
    """Another solver and numpy's gradient; recorded driving is smooth."""
    for scene in argoverse2_scenes:
        rows = scene.valid.all(1)
        path = scene.position[rows, scene.num_history :].astype(np.float64)
        steps = path.shape[1]
        weight = (2 * math.sin(math.pi * scene.period_s / 2)) ** -6
        third_difference = np.diff(np.eye(steps), 3, axis=0)
        system = np.eye(steps) + weight * third_difference.T @ third_difference
        smoothed = np.linalg.solve(system, path)
        jerk = np.linalg.norm(np.diff(smoothed, 3, axis=1), axis=-1) / scene.period_s**3
        values = dynamics(path, scene.period_s)
        np.testing.assert_allclose(values.jerk, jerk, rtol=1e-5, atol=1e-6)
        assert p99(values.acceleration) < 10
        assert p99(values.jerk) < 20


def test_the_percentile_is_a_value_and_ignores_nan() -> None:
    assert p99(np.array([[np.nan, 3.0], [1.0, 2.0]])) == 3.0
    assert p99(np.arange(1000.0)) == 990.0
    assert math.isnan(p99(np.array([np.nan])))


def test_a_standing_agent_has_no_yaw_rate() -> None:
    acceleration, yaw_rate = accelerations(torch.zeros(30, 2), 0.1)
    assert acceleration.eq(0).all()
    assert yaw_rate.isnan().all()


def test_the_distance_to_lanes_is_that_of_segments() -> None:
    lane = [[0.0, 0.0], [10.0, 0.0], [10.0, 10.0]]
    padding = [[0.0, 5.0], [0.0, 6.0], [0.0, 7.0]]
    lanes = torch.tensor([[lane, padding]])
    mask = torch.tensor([[True, False]])
    points = torch.tensor([[[4.0, 3.0], [13.0, 4.0], [-3.0, -4.0]]])
    torch.testing.assert_close(lane_gap(points, lanes, mask), torch.tensor([[3.0, 3.0, 5.0]]))
    assert lane_gap(points, lanes, torch.zeros_like(mask)).isinf().all()


def test_metrics_of_the_most_probable_modes_over_several_batches() -> None:
    """Incomplete futures, and for lanes scenes without lanes, do not count."""
    straight = torch.stack([10 * TIME, 0 * TIME], -1).float()
    braking = torch.stack([10 * TIME - 2 * TIME**2, 4 + 0 * TIME], -1).float()  # 4 m off the lane
    truth = straight.expand(1, 3, 30, 2)
    position = torch.stack([braking, straight])[None, None].expand(1, 3, 2, 30, 2)
    logit = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
    forecast = Forecast(position, logit, Frame.SCENE)
    valid = torch.ones(1, 3, 30, dtype=torch.bool)
    valid[0, 2, 7] = False
    lane = torch.tensor([[[[0.0, 0.0], [50.0, 0.0]]]])
    far_away = lane + 100.0

    metric = Plausibility()
    metric.update(forecast, make_batch(truth, valid, lane))
    metric.update(forecast, make_batch(truth, valid))
    for no_lane in (PolylineKind.ROAD_LINE, PolylineKind.CROSSWALK):
        metric.update(forecast, make_batch(truth, valid, far_away, int(no_lane)))
    metrics = metric.compute()
    assert list(metrics) == NAMES
    assert metrics["p99_acceleration"] == pytest.approx(4.0, abs=1e-3)
    assert metrics["recorded_p99_acceleration"] == pytest.approx(0.0, abs=1e-3)
    assert metrics["p99_yaw_rate"] == pytest.approx(0.0, abs=1e-3)
    assert metrics["p99_jerk"] == pytest.approx(0.0, abs=1e-2)
    assert metrics["off_lane"] == 0.5
    assert metrics["recorded_off_lane"] == 0.0
