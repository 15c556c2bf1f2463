"""Benchmarks with one test split: metrics of a model, and the published table with its rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.collection import Means
from trajformer.evaluation.metrics.displacement import Metrics

# label of a model, a cell for each column ("-" if not given), source
Row = tuple[str, str, str]


@dataclass(frozen=True)
class Benchmark:
    """The rules of a benchmark and its published rows.

    Attributes:
        title: of the table.
        split: that is scored.
        num_targets: of the split.
        columns: names of metrics.
        metrics: gives their values for a batch.
        published: rows of published models.
        reference: label of the published row from which differences are printed.
        notes: differences from the published settings.
    """

    title: str
    split: str
    num_targets: int
    columns: tuple[str, ...]
    metrics: Callable[[Forecast, SceneBatch], Metrics]
    published: tuple[Row, ...]
    reference: str
    notes: tuple[str, ...]


def score(benchmark: Benchmark, results: Iterable[tuple[SceneBatch, Forecast]]) -> dict[str, float]:
    """The number of targets and the mean of each metric over targets.

    Raises TrajformerError: the number of targets differs from the published number, or a metric is
    NaN or infinite.
    """
    means = Means(benchmark.metrics, "num_targets", benchmark.columns)
    for batch, forecast in results:
        means.to(batch.truth.valid.device).update(forecast, batch)
    metrics = means.compute()
    count = metrics.get("num_targets", 0)
    if count != benchmark.num_targets:
        counts = f"{count} targets, expected {benchmark.num_targets}"
        reason = "another version of the files or a model that leaves out targets"
        problem = f"{counts}: {reason}; the metrics are not comparable"
        raise TrajformerError(f"split '{benchmark.split}': {problem}")
    check_finite(metrics)
    return metrics


def check_finite(metrics: Mapping[str, float], where: str = "") -> None:
    """Raise TrajformerError if a metric is NaN or infinite."""
    for name, value in metrics.items():
        if not np.isfinite(value):
            raise TrajformerError(f"{where}{name} of the model is not a number")


def as_text(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Rows (label, cells separated by spaces, source) under the names of columns."""
    import pandas as pd

    cells = [row[1].split() for row in rows]
    labels = [row[0] for row in rows]
    header, *lines = pd.DataFrame(cells, labels, list(columns)).to_string().splitlines()
    text = [header.rstrip()]
    for line, (_, _, source) in zip(lines, rows, strict=True):
        text.append(f"{line}  {source}".rstrip())
    return "\n".join(text)


def published_table(benchmark: Benchmark, models: Mapping[str, Mapping[str, float]]) -> str:
    """The published rows, the rows of models by label, and their differences from the reference."""
    columns = benchmark.columns
    reference = _reference_cells(benchmark)
    rows = []
    differences = []
    for label, metrics in models.items():
        values = [metrics[name] for name in columns]
        cells = [f"{value:.3f}" for value in values]
        rows.append((label, " ".join(cells), ""))
        cells = [_difference(value, cell) for value, cell in zip(values, reference, strict=True)]
        differences.append((label, " ".join(cells), ""))
    parts = [
        benchmark.title,
        "",
        as_text(columns, [*benchmark.published, *rows]),
        "",
        f"difference from {benchmark.reference}",
        as_text(columns, differences),
        "",
        *benchmark.notes,
    ]
    return "\n".join(parts)


def _reference_cells(benchmark: Benchmark) -> list[str]:
    for label, cells, _ in benchmark.published:
        if label == benchmark.reference:
            return cells.split()
    raise ValueError(f"{benchmark.reference}: no published row")


def _difference(value: float, cell: str) -> str:
    if cell == "-":
        return "-"
    return f"{value - float(cell):+.3f}"
