"""Benchmarks with one test split: figures of a model, and the published table with the rows of models."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.collection import Means
from trajformer.evaluation.metrics.displacement import Metrics

Row = tuple[str, str, str]  # label of a model, a cell for each column ("-" if not given), source


@dataclass(frozen=True)
class Benchmark:
    """The rules of a benchmark and its published rows."""

    title: str
    split: str
    num_targets: int  # of the split
    columns: tuple[str, ...]  # names of figures
    metrics: Callable[[Forecast, SceneBatch], Metrics]
    published: tuple[Row, ...]
    reference: str  # the published row from which differences are printed
    notes: tuple[str, ...]  # differences from the published settings


def score(benchmark: Benchmark, results: Iterable[tuple[SceneBatch, Forecast]]) -> dict[str, float]:
    """The number of targets and the mean of each figure over targets.

    Raises TrajformerError: the number of targets differs from the published number, or a figure is NaN or infinite.
    """
    means = Means(benchmark.metrics, "num_targets", benchmark.columns)
    for batch, forecast in results:
        means.to(batch.truth.valid.device).update(forecast, batch)
    metrics = means.compute()
    count = metrics.get("num_targets", 0)
    if count != benchmark.num_targets:
        reason = "another version of the files or a model that leaves out targets; the figures are not comparable"
        raise TrajformerError(
            f"split '{benchmark.split}': {count} targets, expected {benchmark.num_targets}: {reason}"
        )
    if bad := [name for name, value in metrics.items() if not np.isfinite(value)]:
        raise TrajformerError(f"{bad[0]} of the model is not a number")
    return metrics


def as_text(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Rows (label, cells separated by spaces, source) under the names of columns."""
    import pandas as pd

    table = pd.DataFrame(
        [cells.split() for _, cells, _ in rows], [label for label, _, _ in rows], list(columns)
    ).to_string()
    sources = ["", *(f"  {source}" for _, _, source in rows)]
    return "\n".join(
        (line + source).rstrip() for line, source in zip(table.splitlines(), sources, strict=True)
    )


def table(benchmark: Benchmark, models: Mapping[str, Mapping[str, float]]) -> str:
    """The published rows, the rows of models by label, and their differences from the reference row, as text."""
    columns = benchmark.columns
    rows = [
        (label, " ".join(f"{row[name]:.3f}" for name in columns), "")
        for label, row in models.items()
    ]
    (reference,) = (
        cells.split() for name, cells, _ in benchmark.published if name == benchmark.reference
    )
    gaps = []
    for label, row in models.items():
        pairs = zip(columns, reference, strict=True)
        gaps.append(
            (
                label,
                " ".join(
                    "-" if cell == "-" else f"{row[name] - float(cell):+.3f}"
                    for name, cell in pairs
                ),
                "",
            )
        )
    lines = [benchmark.title, "", as_text(columns, [*benchmark.published, *rows])]
    return "\n".join(
        [
            *lines,
            "",
            f"difference from {benchmark.reference}",
            as_text(columns, gaps),
            "",
            *benchmark.notes,
        ]
    )
