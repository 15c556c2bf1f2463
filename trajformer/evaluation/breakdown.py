"""Tables of a scoring: means with intervals, by group, by horizon, and paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from trajformer.errors import TrajformerError
from trajformer.evaluation.bootstrap import Estimate, SceneSums
from trajformer.evaluation.columns import SCENE, TRACK, horizon_name
from trajformer.evaluation.metrics.calibration import expected_calibration_error, reliability
from trajformer.evaluation.scoring import RECORDED, Scoring
from trajformer.evaluation.tables import Cell, Table
from trajformer.scenes.scene import METRES

if TYPE_CHECKING:
    import pandas as pd

GroupKey = Literal["type", "manoeuvre", "speed", "city", "role"]
GROUP_KEYS: tuple[GroupKey, ...] = get_args(GroupKey)
IN_METRES = ("manoeuvre", "speed")  # groups with limits in metres
SPEED_LIMITS_M_S = (0.5, 2.0, 5.0, 10.0, 15.0)
FORECAST = "forecast"  # column with the name of a model or file
UNKNOWN = "unknown"
DIAGRAM = ("top_probability", "top_is_nearest")  # columns of the reliability diagram
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
    rows: list[tuple[Cell, ...]] = []
    for name in scorings[0].detail_columns:
        if name.startswith(RECORDED) or name in DIAGRAM:
            continue
        for one in scorings:
            known = one.per_agent[name].notna()
            [predicted] = estimate(one.per_agent, [name]).estimates
            recorded: Cell = ""
            if RECORDED + name in one.detail_columns:
                [recorded] = estimate(one.per_agent, [RECORDED + name]).estimates
            counts = (int(known.sum()), float(known.mean()))
            rows.append((name, one.label, *counts, predicted, recorded))
    title = "most probable mode and recording: means over agents with a value (known: their share)"
    columns = ("metric", FORECAST, "agents", "known", "predicted", "recorded")
    return Table("details", title, columns, tuple(rows))


def reliability_diagram(scorings: Sequence[Scoring]) -> Table:
    """Bins of the probability of the most probable mode, and how often this mode is the nearest.

    The last row of each forecast is the expected calibration error, in the last column.
    """
    rows: list[tuple[Cell, ...]] = []
    for one in scorings:
        probability, is_nearest = (one.per_agent[name].to_numpy(float) for name in DIAGRAM)
        nearest = np.where(is_nearest == 1.0, 0, 1)  # of a single mode
        diagram = reliability(probability[:, None], nearest)
        for index, agents in enumerate(diagram.agents.tolist()):
            if agents:
                limits = f"{diagram.limit[index]:.1f} to {diagram.limit[index + 1]:.1f}"
                mean = float(diagram.probability[index])
                share = float(diagram.share_right[index])
                rows.append((limits, one.label, agents, mean, share, abs(mean - share)))
        error = expected_calibration_error(diagram)
        rows.append(("all", one.label, len(probability), *_means(probability, is_nearest), error))
    title = "calibration: most probable mode, share in which it is the nearest; all: expected error"
    columns = ("probability", FORECAST, "agents", "mean", "nearest", "gap")
    return Table("calibration", title, columns, tuple(rows))


def _means(*values: np.ndarray) -> list[float]:
    return [_mean(one) for one in values]


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
    title += "; negative differences and better: smaller errors; shares are those of scenes"
    if key is not None:
        columns = (key, *columns)
        name += f" by {key}"
        title += f"; by {_meaning(key)}"
    return Table(name, title, columns, tuple(rows))


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
