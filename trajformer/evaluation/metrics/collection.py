"""The metrics of forecasts on a store, the same in validation and in `trajformer evaluate`.

To add a metric, write a function (forecast, batch) -> `Metrics` and add one line with its names to
`METRICS`. Metrics that are not means need a `torchmetrics.Metric` with `update(forecast, batch)`
and a `compute()` that returns values by name. Other packages add metrics with an entry point of the
group `trajformer.metrics`.
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
    """Means of metrics over all entries that count, over batches and processes.

    Args:
        metrics: gives the values of a batch by name.
        count: name of the number of entries.
        names: of the metrics, in this order.
    """

    full_state_update = False
    total: Tensor  # float64, sum of each metric
    count: Tensor  # int64, number of entries
    given: Tensor  # int64, 1 for metrics that were in a batch

    def __init__(
        self, metrics: Callable[[Forecast, SceneBatch], Metrics], count: str, names: Sequence[str]
    ) -> None:
        super().__init__()
        self.metrics = metrics
        self.count_name = count
        self.names = names
        size = len(names)
        self.add_state("total", torch.zeros(size, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("given", torch.zeros(size, dtype=torch.int64), dist_reduce_fx="max")

    def update(self, forecast: Forecast, batch: SceneBatch) -> None:
        """Add a batch."""
        values, counts = self.metrics(forecast, batch)
        for index, name in enumerate(self.names):
            if name in values:
                self.total[index] += values[name][counts].double().sum()
                self.given[index] = 1
        self.count += counts.sum()

    def compute(self) -> dict[str, float]:
        """{count: number of entries, name: mean ...}, NaN if no entry counts.

        It has only the metrics that were in a batch, and is empty without any.
        """
        if not self.given.any():
            return {}
        means = (self.total / self.count).tolist()
        given = self.given.tolist()
        metrics: dict[str, float] = {self.count_name: int(self.count)}
        for index, name in enumerate(self.names):
            if given[index]:
                metrics[name] = means[index]
        return metrics


_AGENT_NAMES = [f"{name}{k}" for k in KS for name in NAMES]
_WORLD_NAMES = ["avgMinFDE6", "avgMinADE6", "actorMR6", "actorCR6", "avgBrierMinFDE6"]
METRICS: dict[str, Callable[[], Metric]] = {
    "displacement": partial(Means, displacement, "num_agents", [*_AGENT_NAMES, "minFDE"]),
    "multi_world": partial(Means, multi_world_of_joint, "num_scenes", _WORLD_NAMES),
    "plausibility": Plausibility,
}
METRICS |= load_plugins("trajformer.metrics")


class AllMetrics(MetricCollection):
    """All metrics as one.

    torchmetrics would add prefixes to all names if two metrics had a name in common, for example
    the number of agents.
    """

    def compute(self) -> dict[str, Any]:
        """The values of all metrics by name.

        Counts ("num_...") may have the same name in several metrics; the first one is taken.
        Raises TrajformerError: two metrics have any other name in common.
        """
        metrics: dict[str, Any] = {}
        for metric, part in self.items(keep_base=True):
            for name, value in part.compute().items():
                if name in metrics and not name.startswith("num_"):
                    reason = f"another metric has a value named {name}"
                    raise TrajformerError(f"metric {metric}: {reason}")
                metrics.setdefault(name, value)
        return metrics


def forecast_metrics() -> AllMetrics:
    """All metrics as one: `update(forecast, batch)`; `compute()` gives {"minADE6": ..., ...}."""
    metrics: dict[str, Any] = {name: make() for name, make in METRICS.items()}
    return AllMetrics(metrics, compute_groups=False)
