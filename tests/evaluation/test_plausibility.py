"""Plausibility: the smoother against least squares, closed forms of circles and braking, lanes, and figures over batches."""

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
    lane_gap,
    smooth,
)
from trajformer.scenes.scene import PolylineKind

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
TIME = torch.arange(30, dtype=torch.float64) * 0.1


def make_batch(
    position: Tensor, valid: Tensor | None = None, lanes: Tensor | None = None, kind: int = 0
) -> Any:
    known = torch.ones(position.shape[:-1], dtype=torch.bool) if valid is None else valid
    lanes = torch.zeros(len(position), 0, 2, 2) if lanes is None else lanes
    mask = torch.ones(lanes.shape[:2], dtype=torch.bool)
    observation = SimpleNamespace(
        period_s=0.1, polyline=lanes, polyline_mask=mask, polyline_kind=kind * mask
    )
    return SimpleNamespace(truth=Truth(position, known), observation=observation)


def test_the_smoother_minimises_its_sum() -> None:
    noisy = draw(30, 2).double()
    weight = (2 * math.sin(math.pi * 0.05)) ** -6
    rows = np.concatenate([np.eye(30), math.sqrt(weight) * np.diff(np.eye(30), 3, axis=0)])
    expected = np.linalg.lstsq(
        rows, np.concatenate([noisy.numpy(), np.zeros((27, 2))]), rcond=None
    )[0]
    np.testing.assert_allclose(smooth(noisy, 0.1).numpy(), expected, atol=1e-9)


def test_a_circle_and_a_stop() -> None:
    circle = 20 * torch.stack([torch.cos(TIME / 2), torch.sin(TIME / 2)], -1)  # 10 m/s
    acceleration, yaw_rate = accelerations(circle, 0.1)
    torch.testing.assert_close(
        acceleration, torch.full((28,), 5.0, dtype=torch.float64), atol=0.01, rtol=0
    )
    torch.testing.assert_close(
        yaw_rate, torch.full((28,), 0.5, dtype=torch.float64), atol=0.001, rtol=0
    )
    acceleration, yaw_rate = accelerations(torch.zeros(30, 2), 0.1)
    assert acceleration.eq(0).all() and yaw_rate.isnan().all()


def test_the_distance_to_lanes_is_that_of_segments() -> None:
    lanes = torch.tensor(
        [[[[0.0, 0.0], [10.0, 0.0], [10.0, 10.0]], [[0.0, 5.0], [0.0, 6.0], [0.0, 7.0]]]]
    )
    mask = torch.tensor([[True, False]])
    points = torch.tensor([[[4.0, 3.0], [13.0, 4.0], [-3.0, -4.0]]])
    torch.testing.assert_close(lane_gap(points, lanes, mask), torch.tensor([[3.0, 3.0, 5.0]]))
    assert lane_gap(points, lanes, torch.zeros(1, 2, dtype=torch.bool)).isinf().all()


def test_figures_of_the_most_probable_modes() -> None:
    """Two batches as one; incomplete futures and scenes without lanes do not count."""
    straight = torch.stack([10 * TIME, 0 * TIME], -1).float()
    braking = torch.stack([10 * TIME - 2 * TIME**2, 4 + 0 * TIME], -1).float()
    truth = straight.expand(1, 3, 30, 2)
    position = torch.stack([braking, straight])[None, None].expand(1, 3, 2, 30, 2)
    forecast = Forecast(position, torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]]), Frame.SCENE)
    valid = torch.ones(1, 3, 30, dtype=torch.bool)
    valid[0, 2, 7] = False
    lane = torch.tensor([[[[0.0, 0.0], [50.0, 0.0]]]])
    metric = Plausibility()
    metric.update(forecast, make_batch(truth, valid, lane))
    metric.update(forecast, make_batch(truth, valid))
    for kind in (PolylineKind.ROAD_LINE, PolylineKind.CROSSWALK):  # are no lanes
        metric.update(forecast, make_batch(truth, valid, lane + 100.0, int(kind)))
    metrics = metric.compute()
    assert list(metrics) == NAMES
    assert metrics["p99_acceleration"] == pytest.approx(4.0, abs=1e-3)
    assert metrics["recorded_p99_acceleration"] == pytest.approx(0.0, abs=1e-3)
    assert metrics["p99_yaw_rate"] == pytest.approx(0.0, abs=1e-3)
    assert (metrics["off_lane"], metrics["recorded_off_lane"]) == (0.5, 0.0)
