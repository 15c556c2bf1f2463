"""Tables and the plot of a comparison.

A row is {"name", "seeds": {seed: {"scores", "manoeuvres", "run"}}, "mean", "deviation", "cost", "failed": [...]}. `mean` and
`deviation` have the figures over seeds by name; nested names are "run.minutes" and "manoeuvres.turn.minFDE6".
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre
from trajformer.plotting.labels import Label, place_labels
from trajformer.plotting.style import CONTEXT_EDGE, INK, SCORED_DARK, SMALL_PT
from trajformer.scenes.files import atomically, write_atomically

MISSING, END = "-", "<!-- end -->"
ACCURACY = [f"{name}{k}" for k in (6, 1) for name in ("minADE", "minFDE", "MR", "brier_minFDE")]
COSTS = {
    "parameters": "parameters", "latency_1_ms": "ms, batch 1", "latency_32_ms": "ms, batch 32", "forward_mb": "MB, batch 32",
    "step_mb": "MB, training", "run.epochs": "epochs", "run.futures": "futures", "run.minutes": "minutes",
}  # fmt: skip
DIGITS = {
    "parameters": 0,
    "run.epochs": 0,
    "run.futures": 0,
    "forward_mb": 0,
    "step_mb": 0,
    "run.minutes": 1,
}


def summarize(seeds: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation over seeds of each figure that all seeds have; no deviation for a single seed."""
    records = [
        seed["scores"] | {"manoeuvres": seed["manoeuvres"], "run": seed["run"]}
        for seed in seeds.values()
    ]
    metrics = pd.json_normalize(records).dropna(axis=1)
    return {
        "mean": metrics.mean().to_dict(),
        "deviation": metrics.std().to_dict() if len(metrics) > 1 else {},
    }


def tables(rows: list[dict[str, Any]]) -> dict[str, pd.DataFrame]:
    """Texts of accuracy, multi-world metrics of joint forecasts, accuracy by manoeuvre, and cost, without empty columns."""
    joint = {
        name: name for row in rows for name in row["mean"] if name.startswith(("avg", "actor"))
    }
    labels = [
        kind.label
        for kind in Manoeuvre
        if any(row["mean"].get(f"manoeuvres.{kind.label}.count") for row in rows)
    ]
    by_manoeuvre = {
        f"manoeuvres.{label}.{name}": f"{name} {label}"
        for label in labels
        for name in ("minFDE6", "MR6")
    }
    example = next((row["mean"] for row in rows if "num_agents" in row["mean"]), {})
    counts = ", ".join(f"{label} {example[f'manoeuvres.{label}.count']:.0f}" for label in labels)
    parts = {
        "Accuracy in metres, MR as a share": {name: name.replace("_", "-") for name in ACCURACY},
        "Scenes as worlds": joint,
        f"By manoeuvre of the focal agent ({counts} agents)": by_manoeuvre,
        "Cost": COSTS,
    }
    made = {}
    for title, columns in parts.items():
        cells = pd.DataFrame(
            {label: [cell(row, name) for row in rows] for name, label in columns.items()}
        )
        cells = cells.loc[:, (cells != MISSING).any()]
        if len(cells.columns):
            made[title] = cells.set_axis([row["name"] for row in rows])
    return made


def cell(row: dict[str, Any], name: str) -> str:
    """A figure of a row: the mean and, in brackets, the standard deviation over seeds; or a cost."""
    value = row["mean"].get(name, row["cost"].get(name))
    if value is None:
        return MISSING
    digits = DIGITS.get(name, 1 if value >= 10 else 2 if name in COSTS else 3)
    deviation = row["deviation"].get(name)
    if deviation is None or name in ("run.epochs", "run.futures"):
        return _number(value, digits)
    return f"{_number(value, digits)} ({_number(deviation, digits)})"


def _number(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def markdown(title: str, table: pd.DataFrame) -> str:
    """A Markdown table."""
    lines = [
        ["model", *table.columns],
        ["---", *["---:"] * len(table.columns)],
        *table.reset_index().to_numpy().tolist(),
    ]
    return "\n".join([f"{title}:", "", *("| " + " | ".join(line) + " |" for line in lines)])


def replace_between(file: Path, name: str, text: str | None) -> None:
    """Replace the text between `<!-- table: NAME -->` and the next `<!-- end -->` of a Markdown file; None only checks them."""
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
    """minFDE6 over latency at batch 1; models without parameters are named in the title only."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained", dpi=150)
    axes = figure.subplots()
    points, others = [], []
    for row in rows:
        x, y, deviation = (
            row["cost"].get("latency_1_ms"),
            row["mean"].get("minFDE6"),
            row["deviation"].get("minFDE6", 0.0),
        )
        if x is None or y is None:
            continue
        if row["cost"]["parameters"]:
            points.append((row["name"], x, y, deviation))
            axes.errorbar(x, y, yerr=deviation or None, fmt="o", color=SCORED_DARK, capsize=3, lw=1)
        else:
            others.append(f"{row['name']}: {y:.2f} m, {x:.1f} ms")
    axes.set(xscale="log", xlabel="latency of a scene on one CPU thread, ms", ylabel="minFDE6, m")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="x", which="both", labelsize=SMALL_PT)
    axes.grid(alpha=0.3, which="both")
    axes.margins(0.15)
    figure.draw_without_rendering()  # labels need the final size of the axes
    bars = np.array(
        [
            (x, y + share * deviation)
            for _, x, y, deviation in points
            for share in (-1, -0.5, 0, 0.5, 1)
        ]
    )
    labels = [
        Label(f"  {name}  ", np.array([x, y]), np.array([x, 0.0])) for name, x, y, _ in points
    ]
    place_labels(axes, labels, bars, bars, INK)
    if others:
        axes.set_title(
            "not shown: " + "; ".join(others), fontsize=SMALL_PT, color=CONTEXT_EDGE, loc="left"
        )
    with atomically(file) as temporary:
        figure.savefig(temporary, format=file.suffix.lstrip(".") or "png")
