"""Plausibility of driving: accelerations, yaw rates, jerks and lanes of forecasts and recordings.

Recorded positions are noisy: second differences reach hundreds of m/s2. So the most probable mode
and the recorded path pass through the same smoother (Whittaker 1923): the path s that minimizes the
sum of |s - x|^2 plus a weight times the sum of squared third differences. It halves motions with a
period of `CUT_OFF_S` and removes faster ones, jitter of forecasts included. A constant acceleration
stays unchanged.

Example, for paths [N, F, 2] as numpy arrays, steps of 0.1 s:

    p99(dynamics(paths, 0.1).jerk)
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.evaluation.metrics.map_compliance import MOVING_M_S, OFF_LANE_M
from trajformer.scenes.scene import PolylineKind

CUT_OFF_S = 2.0
QUANTILE = 0.99
_MAX_VALUES = 1 << 20  # of the distances from points to segments in memory
_RECORDED = "recorded_"  # prefix of the metrics of the recordings
NAMES = [
    "p99_acceleration",
    "recorded_p99_acceleration",
    "p99_yaw_rate",
    "recorded_p99_yaw_rate",
    "p99_jerk",
    "recorded_p99_jerk",
    "off_lane",
    "recorded_off_lane",
]


def smooth(path: Tensor, period_s: float) -> Tensor:
    """Smoothed positions of paths [..., F, 2], F >= 4, with `period_s` seconds between steps."""
    steps = path.shape[-2]
    identity = torch.eye(steps, dtype=torch.float64, device=path.device)
    third_difference = identity.diff(n=3, dim=0)
    # this weight halves motions with the period `CUT_OFF_S`
    cycles_per_step = min(period_s / CUT_OFF_S, 0.5)
    weight = (2 * math.sin(math.pi * cycles_per_step)) ** -6
    system = identity + weight * third_difference.T @ third_difference
    return torch.linalg.inv(system) @ path.double()


def accelerations(path: Tensor, period_s: float) -> tuple[Tensor, Tensor]:
    """Accelerations [..., F - 2] in m/s2 and yaw rates [..., F - 2] in rad/s of smooth paths.

    The paths are [..., F, 2]. Both results are absolute values; the yaw rate is NaN for agents
    slower than `MOVING_M_S`.
    """
    velocity = (path[..., 2:, :] - path[..., :-2, :]) / (2 * period_s)
    acceleration = path.diff(n=2, dim=-2) / period_s**2
    across = velocity[..., 0] * acceleration[..., 1] - velocity[..., 1] * acceleration[..., 0]
    speed = velocity.norm(dim=-1)
    yaw_rate = across.abs() / speed.square().clamp(min=1e-9)
    yaw_rate = torch.where(speed >= MOVING_M_S, yaw_rate, torch.nan)
    return acceleration.norm(dim=-1), yaw_rate


def jerks(path: Tensor, period_s: float) -> Tensor:
    """Jerks [..., F - 3] in m/s3 of smooth paths [..., F, 2]: changes of acceleration."""
    return (path.diff(n=3, dim=-2) / period_s**3).norm(dim=-1)


class Dynamics(NamedTuple):
    """Absolute values of smoothed paths [...] with F steps, float64; NaN where undefined."""

    acceleration: np.ndarray  # [..., F - 2], m/s2
    yaw_rate: np.ndarray  # [..., F - 2], rad/s; NaN below 1 m/s
    jerk: np.ndarray  # [..., F - 3], m/s3


def dynamics(path: np.ndarray, period_s: float) -> Dynamics:
    """Accelerations, yaw rates and jerks of paths [..., F, 2] in metres, after smoothing.

    A path with an unknown step (NaN) has NaN only. Paths of fewer than 4 steps have no values at
    all: the last axis of the results is empty.
    """
    positions = torch.from_numpy(np.asarray(path, np.float64))
    if path.shape[-2] < 4:
        nothing = np.zeros((*path.shape[:-2], 0))
        return Dynamics(nothing, nothing, nothing)
    smoothed = smooth(positions, period_s)
    acceleration, yaw_rate = accelerations(smoothed, period_s)
    jerk = jerks(smoothed, period_s)
    return Dynamics(acceleration.numpy(), yaw_rate.numpy(), jerk.numpy())


def p99(value: np.ndarray) -> float:
    """The 99th percentile of all values that are not NaN; NaN if there are none.

    It is the value that 99 % of the values are below, without interpolation.
    """
    known = value[~np.isnan(value)]
    if not len(known):
        return math.nan
    rank = min(int(QUANTILE * len(known)), len(known) - 1)
    return float(np.partition(known, rank)[rank])


def lane_gap(point: Tensor, polyline: Tensor, mask: Tensor) -> Tensor:
    """Distance [B, S] in metres from points [B, S, 2] to the nearest of M polylines [B, M, P, 2].

    It is infinite without any polyline.
    """
    # x and y are separate: sums over an axis of two take three times as long
    x, y = polyline[:, None].unbind(-1)  # [B, 1, M, P]
    step_x = x.diff(dim=-1)
    step_y = y.diff(dim=-1)
    squared_length = (step_x * step_x + step_y * step_y).clamp(min=1e-9)
    point_x, point_y = point[..., None, None].unbind(2)  # [B, S, 1, 1]
    # some scenes at a time: a batch may not fit into memory
    values_of_scene = max(point.shape[1] * step_x[0].numel(), 1)
    scenes_at_a_time = max(_MAX_VALUES // values_of_scene, 1)
    gaps = []
    for start in range(0, len(point), scenes_at_a_time):
        part = slice(start, start + scenes_at_a_time)
        to_x = point_x[part] - x[part, ..., :-1]  # [B, S, M, P - 1]
        to_y = point_y[part] - y[part, ..., :-1]
        along = to_x * step_x[part] + to_y * step_y[part]
        along = (along / squared_length[part]).clamp(0, 1)
        gap_x = to_x - along * step_x[part]
        gap_y = to_y - along * step_y[part]
        squared_gap = gap_x * gap_x + gap_y * gap_y
        is_missing = ~mask[part, None, :, None]
        squared_gap = squared_gap.masked_fill(is_missing, torch.inf).flatten(2)
        no_lane = squared_gap.new_full((*squared_gap.shape[:2], 1), torch.inf)
        gaps.append(torch.cat([squared_gap, no_lane], -1).amin(-1).sqrt())
    return torch.cat(gaps)


class Plausibility(Metric):
    """99th percentiles over the steps of all agents, and the fraction of path ends off all lanes.

    Agents with a complete future count, for "off_lane" only in scenes with lanes. `compute()` gives
    the metrics of `NAMES` that have a value.
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, forecast: Forecast, batch: SceneBatch) -> None:
        """Add the agents of a batch."""
        truth = batch.truth
        counts = truth.valid.all(-1)
        if truth.valid.shape[-1] < 4 or not counts.any():
            return
        best = forecast.probability().argmax(-1)[..., None, None, None]
        predicted = forecast.in_batch_frame().take_along_dim(best, 2)[:, :, 0]
        self._add("", predicted, counts, batch)
        self._add(_RECORDED, truth.position, counts, batch)

    def _add(self, prefix: str, path: Tensor, counts: Tensor, batch: SceneBatch) -> None:
        """Add paths [B, S, F, 2] of the agents that count, bool [B, S]."""
        observation = batch.observation
        lanes = observation.polyline_kind < int(PolylineKind.CROSSWALK)
        lanes = lanes & observation.polyline_mask
        has_lanes = counts & lanes.any(-1, keepdim=True)
        gap = lane_gap(path[..., -1, :], observation.polyline, lanes)
        off_lane = ~(gap <= OFF_LANE_M)  # also for NaN
        period_s = observation.period_s
        smoothed = smooth(path, period_s)[counts]
        acceleration, yaw_rate = accelerations(smoothed, period_s)
        self._append(f"{prefix}p99_acceleration", acceleration)
        self._append(f"{prefix}p99_yaw_rate", yaw_rate)
        self._append(f"{prefix}p99_jerk", jerks(smoothed, period_s))
        self._append(f"{prefix}off_lane", off_lane[has_lanes])

    def _append(self, name: str, value: Tensor) -> None:
        value = value.flatten().float()
        getattr(self, name).append(value[~value.isnan()])

    def compute(self) -> dict[str, float]:
        """The metrics by name."""
        metrics = {}
        for name in NAMES:
            state = getattr(self, name)
            if not len(state):
                continue
            # torchmetrics joins the list in a distributed run
            values = torch.cat(state) if isinstance(state, list) else state
            if not len(values):
                continue
            if name.endswith("off_lane"):
                metrics[name] = float(values.mean())
            else:
                rank = min(int(QUANTILE * len(values)), len(values) - 1) + 1
                metrics[name] = float(values.kthvalue(rank).values)
        return metrics
