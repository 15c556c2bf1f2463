"""Tables and the plot of a comparison.

A row is {"name", "seeds": {seed: {"scores", "manoeuvres", "run"}}, "mean", "deviation", "cost",
"failed": [...]}. `mean` and `deviation` have the metrics over seeds by name; nested names are
"run.minutes" and "manoeuvres.turn.minFDE6".
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre
from trajformer.plotting.files import SOFTWARE
from trajformer.plotting.labels import Label, place_labels
from trajformer.plotting.style import CONTEXT_EDGE, INK, SCORED_DARK, SMALL_PT
from trajformer.scenes.files import atomically, write_atomically

MISSING, END = "-", "<!-- end -->"
ACCURACY = (
    "minADE6",
    "minFDE6",
    "MR6",
    "brier_minFDE6",
    "minADE1",
    "minFDE1",
    "MR1",
    "brier_minFDE1",
)
COSTS = {  # columns by name
    "parameters": "parameters",
    "latency_1_ms": "ms, batch 1",
    "latency_32_ms": "ms, batch 32",
    "forward_mb": "MB, batch 32",
    "step_mb": "MB, training",
    "run.steps": "steps",
    "run.epochs": "epochs",
    "run.minutes": "minutes",
}
DIGITS = {
    "parameters": 0,
    "run.steps": 0,
    "run.epochs": 0,
    "forward_mb": 0,
    "step_mb": 0,
    "run.minutes": 1,
}
LENGTHS = ("run.steps", "run.epochs")  # equal for all seeds


def summarize(seeds: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation over seeds of each metric that all seeds have.

    A single seed has no deviation.
    """
    records = []
    for seed in seeds.values():
        records.append(seed["scores"] | {"manoeuvres": seed["manoeuvres"], "run": seed["run"]})
    metrics = pd.json_normalize(records).dropna(axis=1)
    deviation = metrics.std().to_dict() if len(metrics) > 1 else {}
    return {"mean": metrics.mean().to_dict(), "deviation": deviation}


def tables(rows: list[dict[str, Any]]) -> dict[str, pd.DataFrame]:
    """Texts of accuracy, joint metrics of scenes, accuracy by manoeuvre, and cost, by title.

    Empty columns and tables are left out.
    """
    joint = {}
    for row in rows:
        for name in row["mean"]:
            if name.startswith(("avg", "actor")):
                joint[name] = name
    manoeuvre_title, by_manoeuvre = _manoeuvre_columns(rows)
    columns_of = {
        "Accuracy in metres, MR as a share": {name: name.replace("_", "-") for name in ACCURACY},
        "Scenes as worlds": joint,
        manoeuvre_title: by_manoeuvre,
        "Cost": COSTS,
    }
    made = {}
    for title, columns in columns_of.items():
        cells = pd.DataFrame(index=[row["name"] for row in rows])
        for name, label in columns.items():
            texts = [cell(row, name) for row in rows]
            if any(text != MISSING for text in texts):
                cells[label] = texts
        if len(cells.columns):
            made[title] = cells
    return made


def _manoeuvre_columns(rows: list[dict[str, Any]]) -> tuple[str, dict[str, str]]:
    """Title and columns (label by name) of the manoeuvres that occur."""
    columns = {}
    counts = []
    for kind in Manoeuvre:
        name = f"manoeuvres.{kind.label}"
        present = [row["mean"][f"{name}.count"] for row in rows if f"{name}.count" in row["mean"]]
        if not any(present):
            continue
        counts.append(f"{kind.label} {present[0]:.0f}")
        for metric in ("minFDE6", "MR6"):
            columns[f"{name}.{metric}"] = f"{metric} {kind.label}"
    return f"By manoeuvre of the focal agent ({', '.join(counts)} agents)", columns


def cell(row: dict[str, Any], name: str) -> str:
    """The mean of a metric and, in brackets, its standard deviation over seeds; or a cost."""
    value = row["mean"].get(name, row["cost"].get(name))
    if value is None:
        return MISSING
    digits = _digits(name, value)
    text = _number(value, digits)
    deviation = row["deviation"].get(name)
    if deviation is None or name in LENGTHS:
        return text
    return f"{text} ({_number(deviation, digits)})"


def _digits(name: str, value: float) -> int:
    """Number of decimals: three for metrics, two for costs, one for values of 10 and more."""
    if name in DIGITS:
        return DIGITS[name]
    if value >= 10:
        return 1
    return 2 if name in COSTS else 3


def _number(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def plain(table: pd.DataFrame) -> str:
    """A table of texts or numbers for the terminal."""
    return str(table.to_string(float_format="{:.3f}".format, na_rep=MISSING))


def markdown(title: str, table: pd.DataFrame) -> str:
    """A Markdown table."""
    labels = [" ".join(label) if isinstance(label, tuple) else label for label in table.columns]
    lines = [["model", *labels], ["---", *["---:"] * len(labels)]]
    for name, values in table.iterrows():
        texts = [f"{value:.3f}" if isinstance(value, float) else value for value in values]
        lines.append([str(name), *texts])
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"{title}:\n\n{text}"


def replace_between(file: Path, name: str, text: str | None) -> None:
    """Replace the text between `<!-- table: NAME -->` and the next `<!-- end -->` of a file.

    If `text` is None, both comments are only checked.
    """
    start = f"<!-- table: {name} -->"
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrajformerError(f"{file}: cannot be read: {error}") from error
    before, _, rest = content.partition(start)
    _, end, after = rest.partition(END)
    if not end:
        raise TrajformerError(f"{file}: has no '{start}' followed by '{END}'")
    if text is not None:
        write_atomically(file, f"{before}{start}\n{text}\n{END}{after}")


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """minFDE6 over latency at batch 1; the title names models without parameters."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained", dpi=150)
    axes = figure.subplots()
    labels = []
    bars = []  # points of the vertical bars, which labels must not cover
    not_shown = []
    for row in rows:
        latency_ms = row["cost"].get("latency_1_ms")
        error = row["mean"].get("minFDE6")
        if latency_ms is None or error is None:
            continue
        if not row["cost"]["parameters"]:
            not_shown.append(f"{row['name']}: {error:.2f} m, {latency_ms:.1f} ms")
            continue
        deviation = row["deviation"].get("minFDE6", 0.0)
        height = deviation or None
        axes.errorbar(latency_ms, error, yerr=height, fmt="o", color=SCORED_DARK, capsize=3, lw=1)
        anchor = np.array([latency_ms, error])
        labels.append(Label(f"  {row['name']}  ", anchor, np.array([latency_ms, 0.0])))
        for offset in (-1, -0.5, 0, 0.5, 1):
            bars.append((latency_ms, error + offset * deviation))

    axes.set(xscale="log", xlabel="latency of a scene on one CPU thread, ms", ylabel="minFDE6, m")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="x", which="both", labelsize=SMALL_PT)
    axes.grid(alpha=0.3, which="both")
    axes.margins(0.15)
    figure.draw_without_rendering()  # labels need the final size of the axes
    place_labels(axes, labels, np.array(bars), np.array(bars), INK)
    if not_shown:
        title = "not shown: " + "; ".join(not_shown)
        axes.set_title(title, fontsize=SMALL_PT, color=CONTEXT_EDGE, loc="left")
    with atomically(file) as temporary:
        suffix = file.suffix.lstrip(".") or "png"
        metadata = {"Software": SOFTWARE} if suffix == "png" else None
        figure.savefig(temporary, format=suffix, metadata=metadata)
