"""Benchmarks with one test split: figures of a model, and the published table with the rows of models."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.collection import Means
from trajformer.evaluation.metrics.displacement import Figures

Row = tuple[str, str, str]  # name of a model, a cell for each column ("-" if not given), source


@dataclass(frozen=True)
class Benchmark:
    """The rules of a benchmark and its published rows."""

    title: str
    split: str
    num_targets: int  # of the split
    columns: tuple[str, ...]  # names of figures
    figures: Callable[[Forecast, SceneBatch], Figures]
    published: tuple[Row, ...]
    reference: str  # the published row from which differences are printed
    notes: tuple[str, ...]  # differences from the published settings


def score(benchmark: Benchmark, results: Iterable[tuple[SceneBatch, Forecast]]) -> dict[str, float]:
    """The number of targets and the mean of each figure over targets.

    Raises:
        TrajformerError: the number of targets differs from that of the published figures, or a figure is NaN or infinite.
    """
    means = Means(benchmark.figures, "num_targets", benchmark.columns)
    for batch, forecast in results:
        means.to(batch.truth.valid.device).update(forecast, batch)
    figures = means.compute()
    count = figures.get("num_targets", 0)
    if count != benchmark.num_targets:
        reason = "another version of the files or a model that leaves out targets; the figures are not comparable"
        raise TrajformerError(f"split '{benchmark.split}': {count} targets, expected {benchmark.num_targets}: {reason}")
    if bad := [name for name, value in figures.items() if not np.isfinite(value)]:
        raise TrajformerError(f"{bad[0]} of the model is not a number")
    return figures


def table(benchmark: Benchmark, models: Mapping[str, Mapping[str, float]]) -> str:
    """The published rows, the rows of models by label, and their differences from the reference row, as text."""
    width = max(len(name) for name in [*models, *(name for name, _, _ in benchmark.published)])
    widths = [max(len(name), 7) + 2 for name in benchmark.columns]

    def line(label: str, cells: Iterable[str], source: str = "") -> str:
        return f"{label:<{width}}" + "".join(f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True)) + source

    lines = [benchmark.title, "", line("", benchmark.columns)]
    lines += [line(name, cells.split(), f"  {source}") for name, cells, source in benchmark.published]
    lines += [line(label, [f"{row[name]:.3f}" for name in benchmark.columns]) for label, row in models.items()]
    (reference,) = (cells.split() for name, cells, _ in benchmark.published if name == benchmark.reference)
    lines += ["", f"difference from {benchmark.reference}"]
    for label, row in models.items():
        pairs = zip(benchmark.columns, reference, strict=True)
        lines.append(line(label, ["-" if cell == "-" else f"{row[name] - float(cell):+.3f}" for name, cell in pairs]))
    return "\n".join([*lines, "", *benchmark.notes])
