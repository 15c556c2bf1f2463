"""The metrics of forecasts on a store, the same ones in validation during training and in `trajformer evaluate`.

To add a metric, write a function (forecast, batch) -> `Figures` and add one line with its names to `METRICS`. Figures that are
not means need a `torchmetrics.Metric` with `update(forecast, batch)` and a `compute()` that returns figures by name. Other
packages add metrics with an entry point of the group `trajformer.metrics`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection

from trajformer.config import load_plugins
from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.displacement import KS, NAMES, Metrics, displacement
from trajformer.evaluation.metrics.joint import multi_world_of_joint
from trajformer.evaluation.metrics.plausibility import Plausibility


class Means(Metric):
    """Means of the figures named `names`, in this order, over all entries that count, over batches and processes.

    `figures` gives the values of a batch by name. `compute()` gives {count: number of entries, name: mean ...}, NaN if no entry
    counts. A figure that was in no batch is left out, and the result is empty if all were.
    """

    full_state_update = False
    total: Tensor
    count: Tensor
    given: Tensor

    def __init__(
        self, metrics: Callable[[Forecast, SceneBatch], Metrics], count: str, names: Sequence[str]
    ) -> None:
        super().__init__()
        self.metrics, self.count_name, self.names = metrics, count, names
        self.add_state("total", torch.zeros(len(names), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("given", torch.zeros(len(names), dtype=torch.int64), dist_reduce_fx="max")

    def update(self, forecast: Forecast, batch: SceneBatch) -> None:
        """Add a batch."""
        values, counts = self.metrics(forecast, batch)
        for index, name in enumerate(self.names):
            if name in values:
                self.total[index] += values[name][counts].double().sum()
                self.given[index] = 1
        self.count += counts.sum()

    def compute(self) -> dict[str, float]:
        """The number of entries and the means."""
        if not self.given.any():
            return {}
        given = zip(
            self.names, (self.total / self.count).tolist(), self.given.tolist(), strict=True
        )
        return {self.count_name: int(self.count)} | {
            name: mean for name, mean, known in given if known
        }


_WORLD_NAMES = [
    f"{name}6" for name in ("avgMinFDE", "avgMinADE", "actorMR", "actorCR", "avgBrierMinFDE")
]
METRICS: dict[str, Callable[[], Metric]] = {
    "displacement": partial(
        Means, displacement, "num_agents", [*(f"{name}{k}" for k in KS for name in NAMES), "minFDE"]
    ),
    "multi_world": partial(Means, multi_world_of_joint, "num_scenes", _WORLD_NAMES),
    "plausibility": Plausibility,
}
METRICS |= load_plugins("trajformer.metrics")


class AllMetrics(MetricCollection):
    """All metrics as one; torchmetrics would rename all figures if two metrics had one of the same name."""

    def compute(self) -> dict[str, Any]:
        """The figures of all metrics; of counts with the same name the first (TrajformerError: other figures have one name)."""
        metrics: dict[str, Any] = {}
        for metric, part in self.items(keep_base=True):
            for name, value in part.compute().items():
                if name in metrics and not name.startswith("num_"):
                    raise TrajformerError(
                        f"metric {metric}: another metric has a figure of the name {name}"
                    )
                metrics.setdefault(name, value)
        return metrics


def forecast_metrics() -> AllMetrics:
    """All metrics as one: `update(forecast, batch)`, and `compute()` gives {"num_agents": n, "minADE6": ..., ...}."""
    return AllMetrics({name: make() for name, make in METRICS.items()}, compute_groups=False)
