"""Tables and the picture of a comparison (`compare_models.py`), from its rows.

A row is {"name", "seeds": {seed: {"scores", "manoeuvres", "run"}}, "mean", "deviation", "cost", "failed": [...]}; `mean` and
`deviation` have the figures of the seeds by name, nested ones as "run.minutes" and "manoeuvres.turn.minFDE_6".
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre
from trajformer.scenes.files import atomically, write_atomically

MISSING = "-"
ACCURACY = [f"{name}_{k}" for k in (6, 1) for name in ("minADE", "minFDE", "MR", "brier_minFDE")]
COSTS = {
    "parameters": "parameters", "latency_1_ms": "ms, batch 1", "latency_32_ms": "ms, batch 32", "forward_mb": "MB, batch 32",
    "step_mb": "MB, training",
}  # fmt: skip
RUNS = {"run.epochs": "epochs", "run.futures": "futures", "run.minutes": "minutes"}
END = "<!-- end -->"


def flat(nested: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers of nested dicts by their dotted names."""
    found: dict[str, float] = {}
    for name, value in nested.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[prefix + name] = value
    return found


def sum_up(seeds: dict[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Mean and standard deviation over seeds (none of a single one) of every figure that all of them have."""
    parts = [{name: seed[name] for name in ("manoeuvres", "run")} | seed["scores"] for seed in seeds.values()]
    rows = [flat(part) for part in parts]
    names = [name for name in rows[0] if all(name in row for row in rows)] if rows else []
    values = {name: [row[name] for row in rows] for name in names}
    spread = {name: statistics.stdev(value) for name, value in values.items()} if len(rows) > 1 else {}
    return {"mean": {name: statistics.mean(value) for name, value in values.items()}, "deviation": spread}


@dataclass(frozen=True)
class Table:
    """Strings in rows, the first column being names."""

    title: str
    header: list[str]
    rows: list[list[str]]

    def plain(self) -> str:
        """Columns side by side."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(width) for c, width in zip(row[1:], widths[1:], strict=True))])
            for row in (self.header, *self.rows)
        ]
        return "\n".join([f"{self.title}:", *map(str.rstrip, lines)])

    def markdown(self) -> str:
        """The same as a Markdown table."""
        rule = ["---", *["---:"] * (len(self.header) - 1)]
        return "\n".join([f"{self.title}:", "", *("| " + " | ".join(row) + " |" for row in (self.header, rule, *self.rows))])


def tables(rows: list[dict[str, Any]]) -> list[Table]:
    """Accuracy, worlds where some forecast is joint, accuracy by manoeuvre, and cost, without what no row has a figure for."""
    scores = [name for row in rows for name in row["mean"]]
    joint = list(dict.fromkeys(name for name in scores if name.startswith(("avg", "actor"))))
    kinds = [kind.label for kind in Manoeuvre if any(row["mean"].get(f"manoeuvres.{kind.label}.count") for row in rows)]
    of_kinds = {f"manoeuvres.{kind}.{name}": f"{_short(name)} {kind}" for kind in kinds for name in ("minFDE_6", "MR_6")}
    some = next((row["mean"] for row in rows if "num_agents" in row["mean"]), {})
    said = ", ".join(f"{kind} {some[f'manoeuvres.{kind}.count']:.0f}" for kind in kinds)
    parts = [
        ("Accuracy in metres, MR as a share", {name: _short(name) for name in ACCURACY}),
        ("Scenes as worlds", {name: _short(name) for name in joint}),
        (f"By what the focal agent does ({said} agents)", of_kinds),
        ("Cost", COSTS | RUNS),
    ]
    made = []
    for title, names in parts:
        names = {name: label for name, label in names.items() if any(cell(row, name) != MISSING for row in rows)}
        own = [[row["name"], *(cell(row, name) for name in names)] for row in rows]
        made += [Table(title, ["model", *names.values()], own)] if names else []
    return made


def cell(row: dict[str, Any], name: str) -> str:
    """A figure of a row: the mean, and in brackets the standard deviation over seeds; or one of its costs."""
    value = row["mean"].get(name, row["cost"].get(name))
    if value is None:
        return MISSING
    if name in ("parameters", "run.epochs", "run.futures"):
        return f"{value:,.0f}"
    digits = 0 if name.endswith("_mb") else 1 if name in RUNS or value >= 10 else 2 if name in COSTS else 3
    spread = row["deviation"].get(name)
    return _number(value, digits) + (f" ({_number(spread, digits)})" if spread is not None else "")


def _number(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text[1:] if text.startswith("0.") else text


def _short(name: str) -> str:
    return name.replace("brier_", "brier-").replace("_", "")


def failures(rows: list[dict[str, Any]]) -> list[str]:
    """A line for everything that failed."""
    return [f"{row['name']}: {reason}" for row in rows for reason in row["failed"]]


def replace_between(file: Path, name: str, text: str) -> None:
    """Put text between `<!-- table: NAME -->` and the next `<!-- end -->` of a Markdown file.

    Raises:
        TrajformerError: there is no such file, or it has no such place.
    """
    begin = f"<!-- table: {name} -->"
    before, found, rest = _read(file).partition(begin)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise TrajformerError(f"{file}: has no '{begin}' with '{END}' behind it")
    write_atomically(file, f"{before}{begin}\n{text}\n{END}{after}")


def check_place(file: Path, name: str) -> None:
    """Complain before the work begins; raises what `replace_between` does."""
    text = _read(file)
    if END not in text.partition(f"<!-- table: {name} -->")[2]:
        raise TrajformerError(f"{file}: has no '<!-- table: {name} -->' with '{END}' behind it")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TrajformerError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """minFDE6 over latency at batch 1; models without parameters are off the picture and said so."""
    from matplotlib.figure import Figure

    from trajformer.plotting.style import CONTEXT_EDGE, INK, SCORED_DARK, SMALL_PT

    known = [row for row in rows if "minFDE_6" in row["mean"] and "latency_1_ms" in row["cost"]]
    points = [row for row in known if row["cost"]["parameters"]]
    figure = Figure(figsize=(7.2, 4.4), layout="constrained", dpi=150)
    axes = figure.subplots()
    for row in points:
        place = row["cost"]["latency_1_ms"], row["mean"]["minFDE_6"]
        axes.errorbar(*place, yerr=row["deviation"].get("minFDE_6"), fmt="o", color=SCORED_DARK, capsize=3, lw=1)
    axes.set(xscale="log", xlabel="latency of a scene on one CPU thread, ms", ylabel="minFDE6, m")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.tick_params(axis="x", which="both", labelsize=SMALL_PT)
    axes.grid(alpha=0.3, which="both")
    axes.margins(0.15)
    _label(figure, axes, points, {"color": INK, "fontsize": SMALL_PT})
    others = [f"{r['name']}: {r['mean']['minFDE_6']:.2f} m, {r['cost']['latency_1_ms']:.1f} ms" for r in known if r not in points]
    if others:
        axes.set_title("not shown: " + "; ".join(others), fontsize=SMALL_PT, color=CONTEXT_EDGE, loc="left")
    with atomically(file) as temporary:
        figure.savefig(temporary, format=file.suffix.lstrip(".") or "png")


def _label(figure: Any, axes: Any, rows: list[dict[str, Any]], style: dict[str, Any]) -> None:
    """Names beside points, each where it covers no other name, point or bar, as far as there is such a place."""
    figure.canvas.draw()

    def place(row: dict[str, Any], deviations: float = 0.0) -> Any:
        error = row["mean"]["minFDE_6"] + deviations * row["deviation"].get("minFDE_6", 0.0)
        return axes.transData.transform((row["cost"]["latency_1_ms"], error))

    at = [place(row, share) for row in rows for share in (-1, -0.5, 0, 0.5, 1)]
    taken: list[Any] = []
    for row, (x, y) in zip(rows, map(place, rows), strict=True):
        best: tuple[float, Any, Any] | None = None
        for side, rise in ((1, 0), (-1, 0), (1, 11), (-1, 11), (1, -11), (-1, -11), (1, 22), (1, -22), (-1, 22), (-1, -22)):
            text = axes.annotate(row["name"], axes.transData.inverted().transform((x, y)), (8 * side, rise), va="center",
                                 textcoords="offset points", ha="left" if side > 0 else "right", **style)  # fmt: skip
            box = text.get_window_extent().expanded(1.02, 1.05)
            inside = axes.bbox.x0 < box.x0 and box.x1 < axes.bbox.x1
            faults = sum(box.overlaps(other) for other in taken) + sum(box.contains(*p) for p in at) + 2 * (not inside)
            text.remove()
            if best is None or faults < best[0]:
                best = (faults, text, box)
        assert best is not None
        axes.add_artist(best[1])
        taken.append(best[2])
