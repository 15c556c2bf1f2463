"""Tables and the plot of a comparison.

A row is {"name", "seeds": {seed: {"scores", "manoeuvres", "run"}}, "mean", "deviation", "cost", "failed": [...]}. `mean` and
`deviation` have the figures over seeds by name; nested names are "run.minutes" and "manoeuvres.turn.minFDE6".
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre
from trajformer.plotting.forecasts import Label, place_labels
from trajformer.plotting.style import CONTEXT_EDGE, INK, SCORED_DARK, SMALL_PT
from trajformer.scenes.files import atomically, write_atomically

MISSING = "-"
ACCURACY = [f"{name}{k}" for k in (6, 1) for name in ("minADE", "minFDE", "MR", "brier_minFDE")]
COSTS = {
    "parameters": "parameters", "latency_1_ms": "ms, batch 1", "latency_32_ms": "ms, batch 32", "forward_mb": "MB, batch 32",
    "step_mb": "MB, training",
}  # fmt: skip
RUNS = {"run.epochs": "epochs", "run.futures": "futures", "run.minutes": "minutes"}
END = "<!-- end -->"


def flat(nested: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of nested dicts by their dotted names."""
    values: dict[str, float] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            values |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            values[prefix + name] = value
    return values


def summarize(seeds: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation over seeds of each figure that all seeds have; no deviation for a single seed."""
    rows = [flat({"manoeuvres": seed["manoeuvres"], "run": seed["run"]} | seed["scores"]) for seed in seeds.values()]
    names = [name for name in rows[0] if all(name in row for row in rows)] if rows else []
    values = {name: [row[name] for row in rows] for name in names}
    deviation = {name: statistics.stdev(value) for name, value in values.items()} if len(rows) > 1 else {}
    return {"mean": {name: statistics.mean(value) for name, value in values.items()}, "deviation": deviation}


@dataclass(frozen=True)
class Table:
    """Rows of strings; the first column has the names."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def plain(self) -> str:
        """Aligned columns."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(width) for c, width in zip(row[1:], widths[1:], strict=True))])
            for row in (self.header, *self.rows)
        ]
        return "\n".join([f"{self.title}:", *map(str.rstrip, lines)])

    def markdown(self) -> str:
        """A Markdown table."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        return "\n".join([f"{self.title}:", "", *("| " + " | ".join(row) + " |" for row in (self.header, rule, *self.rows))])


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """Accuracy, multi-world metrics of joint forecasts, accuracy by manoeuvre, and cost, without empty columns."""
    scores = [name for row in rows for name in row["mean"]]
    joint = list(dict.fromkeys(name for name in scores if name.startswith(("avg", "actor"))))
    labels = [kind.label for kind in Manoeuvre if any(row["mean"].get(f"manoeuvres.{kind.label}.count") for row in rows)]
    by_manoeuvre = {f"manoeuvres.{label}.{name}": f"{name} {label}" for label in labels for name in ("minFDE6", "MR6")}
    example = next((row["mean"] for row in rows if "num_agents" in row["mean"]), {})
    counts = ", ".join(f"{label} {example[f'manoeuvres.{label}.count']:.0f}" for label in labels)
    parts = [
        ("Accuracy in metres, MR as a share", {name: name.replace("_", "-") for name in ACCURACY}),
        ("Scenes as worlds", {name: name for name in joint}),
        (f"By manoeuvre of the focal agent ({counts} agents)", by_manoeuvre),
        ("Cost", COSTS | RUNS),
    ]
    made = []
    for title, columns in parts:
        used = {name: label for name, label in columns.items() if any(cell(row, name) != MISSING for row in rows)}
        if used:
            made.append(
                Table(title, ["model", *used.values()], [[row["name"], *(cell(row, name) for name in used)] for row in rows])
            )
    return made


def cell(row: dict[str, Any], name: str) -> str:
    """A figure of a row: the mean and, in brackets, the standard deviation over seeds; or a cost."""
    value = row["mean"].get(name, row["cost"].get(name))
    if value is None:
        return MISSING
    if name in ("parameters", "run.epochs", "run.futures"):
        return f"{value:,.0f}"
    if name.endswith("_mb"):
        digits = 0
    elif name in RUNS or value >= 10:
        digits = 1
    else:
        digits = 2 if name in COSTS else 3
    deviation = row["deviation"].get(name)
    return _number(value, digits) + (f" ({_number(deviation, digits)})" if deviation is not None else "")


def _number(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def failures(rows: list[dict[str, Any]]) -> list[str]:
    """One line per failure."""
    return [f"{row['name']}: {reason}" for row in rows for reason in row["failed"]]


def replace_between(file: Path, name: str, text: str | None) -> None:
    """Replace the text between `<!-- table: NAME -->` and the next `<!-- end -->` of a Markdown file; None only checks.

    Raises:
        TrajformerError: the file or the markers do not exist.
    """
    start = f"<!-- table: {name} -->"
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrajformerError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    before, _, rest = content.partition(start)
    _, end, after = rest.partition(END)
    if not end:
        raise TrajformerError(f"{file}: has no '{start}' followed by '{END}'")
    if text is not None:
        write_atomically(file, f"{before}{start}\n{text}\n{END}{after}")


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """minFDE6 over latency at batch 1; models without parameters are named in the title only."""
    known = [row for row in rows if "minFDE6" in row["mean"] and "latency_1_ms" in row["cost"]]
    points = [row for row in known if row["cost"]["parameters"]]
    figure = Figure(figsize=(7.2, 4.4), layout="constrained", dpi=150)
    axes = figure.subplots()
    for row in points:
        x, y = row["cost"]["latency_1_ms"], row["mean"]["minFDE6"]
        axes.errorbar(x, y, yerr=row["deviation"].get("minFDE6"), fmt="o", color=SCORED_DARK, capsize=3, lw=1)
    axes.set(xscale="log", xlabel="latency of a scene on one CPU thread, ms", ylabel="minFDE6, m")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="x", which="both", labelsize=SMALL_PT)
    axes.grid(alpha=0.3, which="both")
    axes.margins(0.15)
    figure.draw_without_rendering()  # labels need the final size of the axes
    labels, bars = [], []
    for row in points:
        x, y, deviation = row["cost"]["latency_1_ms"], row["mean"]["minFDE6"], row["deviation"].get("minFDE6", 0.0)
        bars += [(x, y + share * deviation) for share in (-1, -0.5, 0, 0.5, 1)]
        labels.append(Label(f"  {row['name']}  ", np.array([x, y]), np.array([x, 0.0])))
    place_labels(axes, labels, np.array(bars), np.array(bars), INK)
    others = [f"{r['name']}: {r['mean']['minFDE6']:.2f} m, {r['cost']['latency_1_ms']:.1f} ms" for r in known if r not in points]
    if others:
        axes.set_title("not shown: " + "; ".join(others), fontsize=SMALL_PT, color=CONTEXT_EDGE, loc="left")
    with atomically(file) as temporary:
        figure.savefig(temporary, format=file.suffix.lstrip(".") or "png")
