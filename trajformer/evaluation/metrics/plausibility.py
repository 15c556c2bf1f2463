"""Plausibility of driving: accelerations, yaw rates and lanes of the most probable modes and of the recordings.

Recorded positions are noisy: second differences reach hundreds of m/s2. So the mode and the recorded path pass through the
same smoother (Whittaker 1923): the path s that minimises the sum of |s - x|^2 plus a weight times the sum of squared third
differences. It halves motions with a period of `CUT_OFF_S` and removes faster ones, jitter of forecasts included. A constant
acceleration stays unchanged.
"""

import math

import torch
from torch import Tensor
from torchmetrics import Metric

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.scenes.scene import PolylineKind

CUT_OFF_S = 2.0
MOVING_M_S = 1.0  # slower agents have no direction that could turn
OFF_LANE_M = 3.0  # between half of a lane and a whole one
SHARE = 0.99
_PATHS, _FIGURES = ("", "recorded_"), ("p99_acceleration", "p99_yaw_rate", "off_lane")
NAMES = [path + figure for figure in _FIGURES for path in _PATHS]


def smooth(path: Tensor, period_s: float) -> Tensor:
    """Smoothed positions of paths [..., F, 2], F >= 4, with `period_s` seconds between steps."""
    steps = path.shape[-2]
    third = torch.eye(steps, dtype=torch.float64, device=path.device).diff(n=3, dim=0)
    weight = (2 * math.sin(math.pi * min(period_s / CUT_OFF_S, 0.5))) ** -6
    system = torch.eye(steps, dtype=torch.float64, device=path.device) + weight * third.T @ third
    return torch.linalg.inv(system) @ path.double()


def accelerations(path: Tensor, period_s: float) -> tuple[Tensor, Tensor]:
    """Accelerations [..., F - 2] in m/s2 and yaw rates [..., F - 2] in rad/s of smooth paths [..., F, 2].

    Both are absolute values; the yaw rate is NaN for agents slower than `MOVING_M_S`.
    """
    velocity = (path[..., 2:, :] - path[..., :-2, :]) / (2 * period_s)
    acceleration = path.diff(n=2, dim=-2) / period_s**2
    across = velocity[..., 0] * acceleration[..., 1] - velocity[..., 1] * acceleration[..., 0]
    speed = velocity.norm(dim=-1)
    return acceleration.norm(dim=-1), torch.where(
        speed >= MOVING_M_S, across.abs() / speed.square().clamp(min=1e-9), torch.nan
    )


def lane_gap(point: Tensor, polyline: Tensor, mask: Tensor) -> Tensor:
    """Distance [B, S] in metres from points [B, S, 2] to the nearest of M polylines [B, M, P, 2]; infinite without any."""
    gaps = []
    for points, lines in zip(
        point, (lines[real] for lines, real in zip(polyline, mask, strict=True)), strict=True
    ):
        start, way = lines[:, :-1], lines.diff(dim=1)
        to_point = (
            points[:, None, None] - start
        )  # [S, M, P - 1, 2], of one scene: a batch may not fit into memory
        along = ((to_point * way).sum(-1) / way.square().sum(-1).clamp(min=1e-9)).clamp(0, 1)
        gap = (to_point - along[..., None] * way).norm(dim=-1).flatten(1)
        gaps.append(torch.cat([gap, gap.new_full((len(points), 1), torch.inf)], 1).amin(1))
    return torch.stack(gaps)


class Plausibility(Metric):
    """99th percentiles over the steps of all agents with a complete future, and the share of path ends that are off all lanes.

    Agents in scenes without lanes do not count for "off_lane". `compute()` gives the figures of `NAMES` that have a value.
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.add_state(name, [], dist_reduce_fx="cat")

    def update(self, forecast: Forecast, batch: SceneBatch) -> None:
        """Add the agents of a batch."""
        truth, o = batch.truth, batch.observation
        counts = truth.valid.all(-1)
        if truth.valid.shape[-1] < 4 or not counts.any():
            return
        best = forecast.probability().argmax(-1)[..., None, None, None]
        top = forecast.in_batch_frame().take_along_dim(best, 2)[:, :, 0]
        lanes = o.polyline_mask & (o.polyline_kind < int(PolylineKind.CROSSWALK))
        has_lanes = counts & lanes.any(-1, keepdim=True)
        for prefix, path in zip(_PATHS, (top, truth.position), strict=True):
            far = ~(lane_gap(path[..., -1, :], o.polyline, lanes) <= OFF_LANE_M)  # also for NaN
            found = (*accelerations(smooth(path, o.period_s)[counts], o.period_s), far[has_lanes])
            for figure, value in zip(_FIGURES, found, strict=True):
                value = value.flatten().float()
                getattr(self, prefix + figure).append(value[~value.isnan()])

    def compute(self) -> dict[str, float]:
        """The figures by name."""
        metrics = {}
        for name in NAMES:
            state = getattr(self, name)
            values = torch.cat(state) if isinstance(state, list) and state else state
            if len(values):
                rank = min(int(SHARE * len(values)), len(values) - 1) + 1
                metrics[name] = float(
                    values.mean() if name.endswith("off_lane") else values.kthvalue(rank).values
                )
        return metrics
