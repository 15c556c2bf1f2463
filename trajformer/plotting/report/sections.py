"""The sections of the report: each is a heading, a sentence about the numbers, and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trajformer.evaluation import breakdown, reliability
from trajformer.evaluation.bootstrap import Estimate
from trajformer.evaluation.breakdown import FORECAST, GroupKey
from trajformer.evaluation.columns import SCENE
from trajformer.evaluation.scoring import Scoring
from trajformer.evaluation.tables import Cell, Table
from trajformer.plotting.report.charts import (
    Difference,
    Series,
    difference_chart,
    horizon_chart,
    reliability_chart,
)
from trajformer.plotting.report.markup import Markup, element, join, named
from trajformer.plotting.report.tables import by_metric, html_table

INTERVALS = "Intervals are 95 % bootstrap intervals: scenes are drawn with all their agents."
_OF_CALIBRATION = ("brier_score", "near_", "most_probable_near_")
_AT = "@"  # in names of columns of shorter horizons


@dataclass(frozen=True, eq=False)
class Record:
    """What the report is about.

    Attributes:
        scorings: one per file, with different labels. Differences are from the first.
        keys: groups of the breakdowns.
        facts: name and text of each fact about the scored scenes.
    """

    scorings: Sequence[Scoring]
    keys: Sequence[GroupKey]
    facts: Mapping[str, str]

    @property
    def names(self) -> dict[str, int]:
        """The number of each file by its label."""
        return {one.label: number for number, one in enumerate(self.scorings)}

    @property
    def unit(self) -> str:
        """Unit of lengths."""
        return self.scorings[0].scenes.unit or "m"


def section(name: str, title: str, *content: object) -> Markup:
    """A part of the page that the list of contents links to."""
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *content, id=name, aria_labelledby=f"{name}-title")


def folded(title: str, *content: object) -> Markup:
    """Content that a click or a print opens."""
    return element("details", element("summary", title), *content)


def scored(record: Record) -> Markup:
    """Facts, files, and agents that could not be scored."""
    facts = []
    for name, text in record.facts.items():
        facts.append(element("dt", name))
        facts.append(element("dd", text))
    parts = [element("dl", *facts)]
    for number, one in enumerate(record.scorings):
        parts.append(element("h3", named(number, one.label)))
        scenes = one.per_agent[SCENE].nunique()
        counts = f"{len(one.per_agent):,} agents of {scenes:,} scenes are scored; "
        counts += f"{one.complete_futures:,} of them are recorded at every step."
        parts.append(element("p", counts))
        if not one.findings:
            text = "No agent is missing, surplus or forecast twice, and no forecast was changed."
            parts.append(element("p", text))
        for finding in one.findings:
            examples = [element("li", text) for text in finding.examples]
            title = f"{finding.count:,} {finding.text}"
            if finding.count > len(examples):
                title += f" (the first {len(examples)})"
            parts.append(folded(title, element("ul", *examples)))
    return section("scored", "What was scored", *parts)


def metrics(record: Record) -> Markup:
    """Means over agents and, of joint forecasts, over scenes."""
    names = [name for name in breakdown.common_metrics(record.scorings) if _AT not in name]
    overall = breakdown.overall(record.scorings, names)
    best_of = record.scorings[0].best_of
    text = (
        f"minADE{best_of} and minFDE{best_of} are the mean and final distance of the best of the "
        f"{best_of} most probable modes: the one with the smallest final distance. MR is the share "
        "of agents with a minFDE above 2. brier_minFDE adds (1 - p)², with the probability p of "
        f"the best mode. Lengths are in {record.unit}. {INTERVALS}"
    )
    parts = [element("p", text), by_metric(overall, "means over agents", record.names)]
    worlds = breakdown.worlds(record.scorings)
    if worlds is not None:
        parts.append(by_metric(worlds, worlds.title, record.names))
    return section("metrics", "Metrics", *parts)


def comparison(record: Record) -> Markup | None:
    """Paired differences of each further file from the first, None without any."""
    baseline, *others = record.scorings
    if not others:
        return None
    parts = [element("p", "Differences on common agents. Negative differences are better.")]
    for number, one in enumerate(others, 1):
        table = breakdown.paired(one, baseline)
        title = join([named(number, one.label), " against ", named(0, baseline.label)])
        parts.append(element("h3", title))
        parts.append(element("p", _verdict(table, f"minFDE{baseline.best_of}", record.unit)))
        rows = [breakdown.PairedRow(*row) for row in table.rows]  # type: ignore[arg-type]
        shown = [_difference(row) for row in rows if row.baseline > 0]
        if shown:
            chart = difference_chart("relative difference of the means", number, shown)
            parts.append(element("div", chart, class_="charts"))
        parts.append(html_table(table, record.names))
        for key in record.keys:
            grouped = breakdown.paired(one, baseline, key)
            parts.append(folded(f"Differences by {key}", html_table(grouped, record.names)))
        if breakdown.common_details(one, baseline):
            details = breakdown.paired_details(one, baseline)
            parts.append(folded("Differences of details", html_table(details, record.names)))
    return section("comparison", "Comparison", *parts)


def _difference(row: breakdown.PairedRow) -> Difference:
    percent = [100 * value / row.baseline for value in row.difference]
    return Difference(row.metric, Estimate(*percent))


def _verdict(table: Table, metric: str, unit: str) -> str:
    """A sentence about the main error."""
    rows = [breakdown.PairedRow(*row) for row in table.rows]  # type: ignore[arg-type]
    row = next((one for one in rows if one.metric == metric), rows[0])
    mean, low, high = row.difference
    text = f"{row.metric}: {mean:+.3f} {unit}"
    if np.isnan(low):
        return f"{text}; one scene has no interval."
    contains = "does not contain" if low * high > 0 else "contains"
    shares = f"smaller in {row.better:.0%} of the scenes, larger in {row.worse:.0%}"
    return f"{text}, interval {low:+.3f} to {high:+.3f}, which {contains} 0; {shares}."


def horizons(record: Record) -> Markup:
    """Errors at shorter horizons: charts and table."""
    table = breakdown.by_horizon(record.scorings)
    best_of = record.scorings[0].best_of
    charts = []
    for metric in (f"minFDE{best_of}", "minFDE1"):
        series = []
        for label, number in record.names.items():
            rows = _rows(table, label)
            times = np.array([float(str(one["horizon"])) for one in rows])
            estimates = [_estimate(one[metric]) for one in rows]
            series.append(Series(number, times, estimates, np.zeros(0)))
        charts.append(horizon_chart(metric, record.unit, series))
    text = "The best mode is chosen at each horizon. Bands are 95 % intervals."
    legend = element("p", *_legend(record), class_="legend")
    numbers = folded("Numbers", html_table(table, record.names))
    area = element("div", *charts, class_="charts")
    return section("horizons", "Error by horizon", element("p", text), legend, area, numbers)


def breakdowns(record: Record) -> Markup:
    """Means by group of agents; keys with a single group are only named."""
    parts = []
    for key in record.keys:
        table = breakdown.by_group(record.scorings, key)
        groups = {str(row[0]) for row in table.rows}
        if len(groups) == 1:
            parts.append(element("p", f"All agents are in one group by {key}: {groups.pop()}."))
            continue
        parts.append(element("h3", f"By {key}"))
        parts.append(html_table(table, record.names))
        if breakdown.detail_names(record.scorings[0]):
            details = breakdown.details_by_group(record.scorings, key)
            parts.append(folded(f"Details by {key}", html_table(details, record.names)))
    return section("breakdowns", "Groups of agents", *parts)


def calibration(record: Record) -> Markup | None:
    """Reliability diagrams, the expected calibration error and Brier scores; None without them."""
    if not reliability.has_diagram(record.scorings[0]):
        return None
    table = reliability.reliability_diagram(record.scorings)
    charts, errors = [], []
    for label, number in record.names.items():
        rows = _rows(table, label)
        total = rows.pop()
        x = np.array([_number(row["mean"]) for row in rows])
        agents = np.array([_number(row["agents"]) for row in rows])
        shares = [_estimate(row["nearest"]) for row in rows]
        series = Series(number, x, shares, agents / agents.sum())
        charts.append(
            element(
                "div",
                named(number, label),
                reliability_chart("share in which it is the nearest", series),
            )
        )
        errors.append((label, _estimate(total["gap"])))
    terms = {name: [row[3] for row in rows] for name, rows in _details(record, True).items()}
    columns = (FORECAST, "ECE", *terms)
    rows_of_files = []
    for number, (label, error) in enumerate(errors):
        rows_of_files.append((label, error, *[cells[number] for cells in terms.values()]))
    summary = Table("calibration summary", "", columns, tuple(rows_of_files))
    text = (
        "The most probable mode should be the nearest one as often as its probability says: "
        "points on the dashed line. Bars are the shares of agents. ECE is the expected calibration "
        "error, the mean distance from this line; noise enlarges it in small samples, and its "
        "interval is a basic bootstrap interval. near_2m is the share of agents with a mode that "
        "ends within 2 m of the recording, most_probable_near_2m the share of the most probable "
        "mode. brier_score is 0 for a perfect forecast and 1 - 1/K for K equal probabilities."
    )
    return section(
        "calibration",
        "Calibration",
        element("p", text),
        element("div", *charts, class_="charts"),
        by_metric(summary, "means over agents", record.names),
        folded("Numbers of the diagram", html_table(table, record.names)),
    )


def details(record: Record) -> Markup | None:
    """Map compliance, plausibility and overlaps next to the recording; None without them."""
    rows = []
    unknown = []
    for metric, of_files in _details(record, False).items():
        if any(_number(row[2]) > 0 for row in of_files):
            rows += of_files
        else:
            unknown.append(metric)
    if not rows:
        return None
    columns = ("metric", FORECAST, "known", "predicted", "recorded")
    title = "means over agents with a value (known: their share)"
    title = "; ".join([title, *breakdown.assumed_sizes(record.scorings[0])])
    table = Table("details", title, columns, tuple(rows))
    text = (
        "Paths of the most probable mode, and of the recording. off_road: more than 0.3 m outside "
        "of the drivable areas; wrong_way: mostly against the lanes; lane_distance: to the nearest "
        "centerline; max_...: largest acceleration (m/s²), yaw rate (rad/s) and jerk (m/s³) after "
        "smoothing; overlap: with the box of a different scored agent; size_assumed: agents "
        "without a recorded size, which get the mean size of their type."
    )
    parts = [element("p", text), html_table(table, record.names)]
    if unknown:
        names = ", ".join(unknown)
        parts.append(element("p", f"Not known for any agent, such as without areas: {names}."))
    return section("details", "Map, motion and overlaps", *parts)


def _details(record: Record, of_calibration: bool) -> dict[str, list[tuple[Cell, ...]]]:
    """Rows (metric, forecast, known, predicted, recorded) by metric of one of the two kinds."""
    rows: dict[str, list[tuple[Cell, ...]]] = {}
    if not breakdown.detail_names(record.scorings[0]):
        return rows
    for metric, label, _, known, predicted, recorded in breakdown.details(record.scorings).rows:
        if str(metric).startswith(_OF_CALIBRATION) == of_calibration:
            row = (metric, label, known, predicted, recorded)
            rows.setdefault(str(metric), []).append(row)
    return rows


def _rows(table: Table, label: str) -> list[dict[str, Cell]]:
    """The rows of a forecast file, cells by column."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return [row for row in rows if row[FORECAST] == label]


def _legend(record: Record) -> Iterator[Markup]:
    for label, number in record.names.items():
        yield named(number, label)


def _estimate(cell: Cell) -> Estimate:
    assert isinstance(cell, Estimate)
    return cell


def _number(cell: Cell) -> float:
    assert isinstance(cell, int | float)
    return float(cell)
