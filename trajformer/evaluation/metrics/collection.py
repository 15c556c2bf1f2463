"""The metrics of forecasts on a store, the same ones in validation during training and in `trajformer evaluate`.

To add a metric, write a `torchmetrics.Metric` with `update(forecast, batch)` and a `compute()` that returns figures by name,
and add one entry to `METRICS`. Other packages add metrics with an entry point of the group `trajformer.metrics`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from torchmetrics import Metric, MetricCollection

from trajformer.evaluation.metrics.averages import DisplacementMetrics, MultiWorldMetrics

METRICS: dict[str, Callable[[], Metric]] = {
    "displacement": DisplacementMetrics,
    "multi_world": MultiWorldMetrics,
}
METRICS |= {plugin.name: plugin.load() for plugin in entry_points(group="trajformer.metrics")}


def forecast_metrics() -> MetricCollection:
    """All metrics as one: `update(forecast, batch)`, and `compute()` gives {"num_agents": n, "minADE6": ..., ...}."""
    return MetricCollection({name: make() for name, make in METRICS.items()}, compute_groups=False)
