"""Tables of a scoring: means with intervals, by group, by horizon, and paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from trajformer.errors import TrajformerError
from trajformer.evaluation.bootstrap import Estimate, SceneSums
from trajformer.evaluation.columns import SCENE, TRACK, horizon_name
from trajformer.evaluation.metrics.boxes import ASSUMED_SIZE_M
from trajformer.evaluation.scoring import RECORDED, Scoring
from trajformer.evaluation.tables import Cell, Table
from trajformer.scenes.scene import METRES, AgentKind

if TYPE_CHECKING:
    import pandas as pd

GroupKey = Literal["type", "manoeuvre", "speed", "city", "role"]
GROUP_KEYS: tuple[GroupKey, ...] = get_args(GroupKey)
IN_METRES = ("manoeuvre", "speed")  # groups with limits in metres
SPEED_LIMITS_M_S = (0.5, 2.0, 5.0, 10.0, 15.0)
FORECAST = "forecast"  # column with the name of a model or file
UNKNOWN = "unknown"
SIZE_ASSUMED = "size_assumed"  # column: 1 for agents without a recorded size
DIAGRAM = ("top_probability", "top_is_nearest")  # columns of the reliability diagram
SMALLER_IS_BETTER = "negative differences: smaller errors; better, worse: shares of scenes"
_DETAIL_COLUMNS = ("agents", "known", "predicted", "recorded")
_DETAIL_TITLE = (
    "most probable mode and recording: means over agents with a value (known: their share)"
)
ROUNDING = 1e-6  # smaller differences are rounding errors


class Sample(NamedTuple):
    """Means with intervals of some agents."""

    estimates: list[Estimate]
    agents: int
    scenes: int


def estimate(table: pd.DataFrame, names: Sequence[str]) -> Sample:
    """Means of columns of a table of agents or scenes, with their intervals."""
    values = table[list(names)].to_numpy(np.float64)
    sums = SceneSums.of(values, table[SCENE].to_numpy(str))
    return Sample(sums.estimates(), len(table), sums.num_scenes)


def overall(scorings: Sequence[Scoring], names: Sequence[str] = ()) -> Table:
    """Means over all agents, by default of all metrics."""
    names = names or common_metrics(scorings)
    rows: list[tuple[Cell, ...]] = []
    for one in scorings:
        sample = estimate(one.per_agent, names)
        rows.append((one.label, sample.agents, sample.scenes, *sample.estimates))
    columns = (FORECAST, "agents", "scenes", *names)
    return Table("overall", "means over agents", columns, tuple(rows))


def worlds(scorings: Sequence[Scoring]) -> Table | None:
    """Means over scenes of the errors of joint forecasts, None without any."""
    rows: list[tuple[Cell, ...]] = []
    names: list[str] = []
    for one in scorings:
        if one.per_scene.empty:
            continue
        names = [name for name in one.per_scene.columns if name != SCENE]
        sample = estimate(one.per_scene, names)
        rows.append((one.label, sample.scenes, *sample.estimates))
    if not rows:
        return None
    columns = (FORECAST, "scenes", *names)
    return Table("worlds", "joint forecasts, means over scenes", columns, tuple(rows))


def by_group(scorings: Sequence[Scoring], key: GroupKey, names: Sequence[str] = ()) -> Table:
    """Means of the agents of each group, by default of the headline metrics.

    Raises TrajformerError: the groups need metres, and scenes have another unit.
    """
    names = names or scorings[0].headline()
    labels = [_labels(one, key) for one in scorings]
    rows: list[tuple[Cell, ...]] = []
    for group in _groups(labels, key):
        for one, of_agents in zip(scorings, labels, strict=True):
            selected = one.per_agent[of_agents == group]
            if len(selected):
                sample = estimate(selected, names)
                counts = (sample.agents, sample.scenes)
                rows.append((group, one.label, *counts, *sample.estimates))
    columns = (key, FORECAST, "agents", "scenes", *names)
    return Table(f"by {key}", f"by {_meaning(key)}", columns, tuple(rows))


def by_horizon(scorings: Sequence[Scoring], names: Sequence[str] = ()) -> Table:
    """Means at each shorter horizon of the rules, then at the end, by default of the headline."""
    names = names or scorings[0].headline()
    rows: list[tuple[Cell, ...]] = []
    for one in scorings:
        end_s = (one.scenes.num_future or 0) * (one.scenes.period_s or 0.0)
        for horizon_s in one.rules.horizons_s:
            columns = [horizon_name(name, horizon_s) for name in names]
            recorded = one.per_agent[one.per_agent[columns[0]].notna()]
            sample = estimate(recorded, columns)
            counts = (sample.agents, sample.scenes)
            rows.append((f"{horizon_s:g}", one.label, *counts, *sample.estimates))
        if one.scenes.num_future not in one.rules.steps(one.scenes):
            sample = estimate(one.per_agent, names)
            counts = (sample.agents, sample.scenes)
            rows.append((f"{end_s:g}", one.label, *counts, *sample.estimates))
    title = "by horizon in seconds; the best mode is chosen at each horizon"
    return Table(
        "by horizon", title, ("horizon", FORECAST, "agents", "scenes", *names), tuple(rows)
    )


def details(scorings: Sequence[Scoring]) -> Table:
    """Means of the further columns, next to the means of the recording.

    "known" is the share of agents with a value: the coverage of the map, for example.
    """
    names = detail_names(scorings[0])
    of_files = [_details_of(one.per_agent, names) for one in scorings]
    rows: list[tuple[Cell, ...]] = []
    for name in names:
        for one, of_file in zip(scorings, of_files, strict=True):
            rows.append((name, one.label, *of_file[name]))
    columns = ("metric", FORECAST, *_DETAIL_COLUMNS)
    title = "; ".join([_DETAIL_TITLE, *assumed_sizes(scorings[0])])
    return Table("details", title, columns, tuple(rows))


def assumed_sizes(scoring: Scoring) -> list[str]:
    """A text with the sizes that agents without a recorded size get; none without such agents."""
    if SIZE_ASSUMED not in scoring.per_agent:
        return []
    has_no_size = scoring.per_agent[SIZE_ASSUMED] > 0
    sizes = []
    for kind in sorted(set(scoring.per_agent["type"][has_no_size])):
        length, width = ASSUMED_SIZE_M[AgentKind[kind.upper()]]
        sizes.append(f"{kind} {length:g} x {width:g} m")
    if not sizes:
        return []
    return [f"size_assumed: {', '.join(sizes)}"]


def details_by_group(scorings: Sequence[Scoring], key: GroupKey) -> Table:
    """The table `details` for the agents of each group, without columns that no agent has.

    Raises TrajformerError: the groups need metres, and scenes have another unit.
    """
    names = []
    for name in detail_names(scorings[0]):
        if any(one.per_agent[name].notna().any() for one in scorings):
            names.append(name)
    labels = [_labels(one, key) for one in scorings]
    rows: list[tuple[Cell, ...]] = []
    for group in _groups(labels, key):
        of_files: dict[str, dict[str, tuple[Cell, ...]]] = {}
        for one, of_agents in zip(scorings, labels, strict=True):
            selected = one.per_agent[of_agents == group]
            if len(selected):
                of_files[one.label] = _details_of(selected, names)
        for name in names:
            for label, of_file in of_files.items():
                rows.append((group, name, label, *of_file[name]))
    title = f"{_DETAIL_TITLE}; by {_meaning(key)}"
    columns = (key, "metric", FORECAST, *_DETAIL_COLUMNS)
    return Table(f"details by {key}", title, columns, tuple(rows))


def detail_names(scoring: Scoring) -> list[str]:
    """The further columns of the most probable mode, without the recording and the diagram."""
    names = []
    for name in scoring.detail_columns:
        if not name.startswith(RECORDED) and name not in DIAGRAM:
            names.append(name)
    return names


def _details_of(per_agent: pd.DataFrame, names: Sequence[str]) -> dict[str, tuple[Cell, ...]]:
    """By column: agents with a value, their share, and means of mode and recording."""
    both = []
    for name in names:
        both += [one for one in (name, RECORDED + name) if one in per_agent]
    # one bootstrap for all columns
    means: dict[str, Cell] = dict(zip(both, estimate(per_agent, both).estimates, strict=True))
    known = per_agent[list(names)].notna()
    rows: dict[str, tuple[Cell, ...]] = {}
    for name in names:
        counts = (int(known[name].sum()), float(known[name].mean()))
        rows[name] = (*counts, means[name], means.get(RECORDED + name, ""))
    return rows


def paired(
    first: Scoring, baseline: Scoring, key: GroupKey | None = None, names: Sequence[str] = ()
) -> Table:
    """Differences of two scorings on their common agents, by default of the headline metrics.

    Each row has the means, the difference (first minus baseline) with its interval, and the shares
    of scenes with a smaller and with a larger mean error. With `key`, the groups of agents have
    separate rows.

    Raises TrajformerError: there is no common agent.
    """
    pair = _Pair.of(first, baseline)
    rows: list[tuple[Cell, ...]] = []
    chosen = names or [name for name in first.headline() if name in pair.metrics]
    if key is None:
        rows += paired_rows(pair.first, pair.baseline, chosen)
    else:
        labels = _labels(first, key)[pair.rows]
        for group in _groups([labels], key):
            of_group = labels == group
            parts = paired_rows(pair.first[of_group], pair.baseline[of_group], chosen)
            rows += [(group, *row) for row in parts]
    if key is None and not names:
        rows += _world_differences(first, baseline)
    columns: tuple[str, ...] = PairedRow._fields
    name = f"{first.label} against {baseline.label}"
    title = f"{name}: {len(pair.first)} common agents"
    others = (len(first.per_agent), len(baseline.per_agent))
    if others != (len(pair.first), len(pair.first)):
        title += f" of {others[0]} and {others[1]}"
    title += f"; {SMALLER_IS_BETTER}"
    if key is not None:
        columns = (key, *columns)
        name += f" by {key}"
        title += f"; by {_meaning(key)}"
    return Table(name, title, columns, tuple(rows))


def paired_details(first: Scoring, baseline: Scoring, key: GroupKey | None = None) -> Table:
    """The table `paired` of the further columns that both scorings have.

    Of some of them larger values are better, so the shares of scenes are named by their sign.
    """
    table = paired(first, baseline, key, common_details(first, baseline))
    columns = list(table.columns)
    columns[columns.index("better")] = "smaller"
    columns[columns.index("worse")] = "larger"
    title = table.title.replace(SMALLER_IS_BETTER, "shares of scenes with smaller and larger means")
    return replace(table, name=f"details: {table.name}", title=title, columns=tuple(columns))


class _Pair(NamedTuple):
    """The common agents of two scorings."""

    first: pd.DataFrame
    baseline: pd.DataFrame
    rows: np.ndarray  # indices in the first table
    metrics: list[str]

    @classmethod
    def of(cls, first: Scoring, baseline: Scoring) -> _Pair:
        """The common agents, in the order of the first scoring."""
        keys = [SCENE, TRACK]
        numbered = first.per_agent[keys].assign(row=np.arange(len(first.per_agent)))
        other = baseline.per_agent[keys].assign(other=np.arange(len(baseline.per_agent)))
        common = numbered.merge(other, on=keys)
        if common.empty:
            names = f"{first.label} and {baseline.label}"
            raise TrajformerError(f"{names}: no common agent; use the same split and --agents")
        rows = common["row"].to_numpy()
        return cls(
            first.per_agent.iloc[rows].reset_index(drop=True),
            baseline.per_agent.iloc[common["other"].to_numpy()].reset_index(drop=True),
            rows,
            common_metrics([first, baseline]),
        )


class PairedRow(NamedTuple):
    """A metric of two scorings of the same agents.

    Attributes:
        metric: its name.
        agents, scenes: their numbers.
        this, baseline: the means.
        difference: of the means, with its interval.
        better, worse: shares of scenes with a smaller and with a larger mean error.
    """

    metric: str
    agents: int
    scenes: int
    this: float
    baseline: float
    difference: Estimate
    better: float
    worse: float


def paired_rows(
    first: pd.DataFrame, baseline: pd.DataFrame, names: Sequence[str]
) -> list[PairedRow]:
    """A row for each metric of two tables with the same agents or scenes in the same order."""
    first_values = first[list(names)].to_numpy(np.float64)
    baseline_values = baseline[list(names)].to_numpy(np.float64)
    gap = first_values - baseline_values
    gap[np.abs(gap) < ROUNDING] = 0.0
    sums = SceneSums.of(gap, first[SCENE].to_numpy(str))
    is_known = ~np.isnan(gap)
    rows = []
    for column, difference in enumerate(sums.estimates()):
        known = is_known[:, column]
        total = sums.total[sums.count[:, column] > 0, column]
        row = PairedRow(
            metric=names[column],
            agents=int(known.sum()),
            scenes=len(total),
            this=_mean(first_values[known, column]),
            baseline=_mean(baseline_values[known, column]),
            difference=difference,
            better=_mean(total < 0),
            worse=_mean(total > 0),
        )
        rows.append(row)
    return rows


def _world_differences(first: Scoring, baseline: Scoring) -> list[PairedRow]:
    """Rows for the errors of joint forecasts on common scenes, if both have any."""
    if first.per_scene.empty or baseline.per_scene.empty:
        return []
    ours = first.per_scene.set_index(SCENE)
    reference = baseline.per_scene.set_index(SCENE)
    common = ours.index.intersection(reference.index)
    names = ours.columns.intersection(reference.columns).tolist()
    ours = ours.loc[common].reset_index()
    reference = reference.loc[common].reset_index()
    return paired_rows(ours, reference, names)


def common_details(first: Scoring, baseline: Scoring) -> list[str]:
    """The further columns of forecasts that both scorings have."""
    of_baseline = detail_names(baseline)
    names = [name for name in detail_names(first) if name in of_baseline]
    # a property of the recordings
    return [name for name in names if name != SIZE_ASSUMED]


def common_metrics(scorings: Sequence[Scoring]) -> list[str]:
    """The metrics that all scorings have, in the order of the first one."""
    names = []
    for name in scorings[0].metric_columns:
        if all(name in one.metric_columns for one in scorings):
            names.append(name)
    return names


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def _labels(scoring: Scoring, key: GroupKey) -> np.ndarray:
    """The group of each agent."""
    if key in IN_METRES and scoring.scenes.unit not in (None, METRES):
        reason = f"its limits are in metres, lengths are in {scoring.scenes.unit}"
        raise TrajformerError(f"--by {key}: {reason}")
    column = scoring.per_agent[key]
    if key == "speed":
        index = np.digitize(column.to_numpy(np.float64), SPEED_LIMITS_M_S)
        return np.array(speed_names())[index]
    labels = column.to_numpy(str)
    return np.where(labels == "", UNKNOWN, labels)


def speed_names() -> list[str]:
    """The classes of speed in m/s, in rising order."""
    limits = [0.0, *SPEED_LIMITS_M_S]
    names = []
    for low, high in pairwise(limits):
        names.append(f"{low:g} to {high:g}")
    return [*names, f"{limits[-1]:g} and more"]


def _groups(labels: Sequence[np.ndarray], key: GroupKey) -> Iterator[str]:
    """The groups that occur, in order."""
    present = set[str]()
    for of_agents in labels:
        present.update(of_agents.tolist())
    if key == "speed":
        yield from [name for name in speed_names() if name in present]
    else:
        yield from sorted(present)


def _meaning(key: GroupKey) -> str:
    if key == "speed":
        return "speed in the last observed step (m/s)"
    return key
