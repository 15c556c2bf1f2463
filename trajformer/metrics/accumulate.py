"""Means over agents of the displacement metrics, accumulated over batches and processes by torchmetrics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from trajformer.forecast import Forecast
from trajformer.metrics.displacement import NAMES, displacement


class DisplacementMetrics(Metric):
    """minADE, minFDE, MR and brier_minFDE per agent at several k: `compute()` gives {"minADE_6": ..., "num_agents": n}."""

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, ks: Sequence[int] = (1, 6)) -> None:
        super().__init__()
        self.ks = tuple(ks)
        self.add_state("total", torch.zeros(len(self.ks), len(NAMES), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, forecast: Forecast, target: Tensor, valid: Tensor) -> None:
        """Add a batch; arguments as for `displacement`."""
        for row, k in enumerate(self.ks):
            values, counts = displacement(forecast, target, valid, k)
            self.total[row] += torch.stack([values[name][counts].double().sum() for name in NAMES])
        self.count += counts.sum()

    def compute(self) -> dict[str, float]:
        """Means over all agents seen; NaN when there were none."""
        mean = (self.total / self.count).tolist()
        table = {f"{name}_{k}": mean[row][i] for row, k in enumerate(self.ks) for i, name in enumerate(NAMES)}
        return {"num_agents": int(self.count)} | table
