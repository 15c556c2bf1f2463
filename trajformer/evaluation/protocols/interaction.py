"""The INTERACTION multi-agent protocol: six joint forecasts of all cars of a case, 10 observed and 30 future steps of 0.1 s.

The metrics follow the INTERPRET challenge (README of `interaction-dataset/INTERPRET_challenge_multi-agent`), with the
longitudinal threshold of FJMP (Rowe et al. 2023), because the formula of the README has a misprint. A figure is first computed
for each case; results are means over cases. Two sets of cars are in use, and published figures differ in this choice:

- HPNet (Tang et al. 2024): cars with all 40 steps.
- FJMP: cars present in the last observed and in the last step. Errors count at recorded steps.

Validation cases name no ego vehicle. So none is left out, and the ego collision rate is the mean over all cars, each taken as the
ego vehicle. World k of a marginal forecast consists of the k-th most probable mode of each car.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import track_forecasts
from trajformer.evaluation.forecast_file import check_forecast
from trajformer.evaluation.protocols.benchmark import as_text
from trajformer.models.forecaster import Predictor
from trajformer.scenes.files import atomically
from trajformer.scenes.geometry import rotate
from trajformer.scenes.scene import AgentRole, Scene

K, NUM_HISTORY, NUM_FUTURE, PERIOD_MS = 6, 10, 30, 100
TARGET_SETS = {"HPNet": "cars with all 40 steps", "FJMP": "cars at steps 9 and 39"}
FIGURES = (
    *("minJointADE", "minJointFDE", "minJointMR", "consistent_minJointMR"),
    *("cross_collision_rate", "best_world_collision_rate", "ego_collision_rate"),
    *("minADE", "minFDE", "MR", "ADE_1", "FDE_1"),
)
LATERAL_M, SLOW_M_S, FAST_M_S = 1.0, 1.4, 11.0
TURNING_M = 0.2  # a car that moves less within two steps keeps its heading
_CIRCLES = (
    np.array([[-2, -2, 2, 2, 2], [-2, 0, 2, 2, 2], [-2, -1, 0, 1, 2]]) / 2
)  # of cars below 4 m, below 8 m, and longer
CaseMetrics = dict[str, dict[str, float]]  # by target set and by name
LocationMetrics = Mapping[str, Mapping[str, float]]  # by location or "mean", and by name
_PUBLISHED = {
    "HPNet": [("HPNet", ".174/.558", "Tang et al. 2024")],
    "FJMP": [("FJMP", ".194/.630", "Rowe et al. 2023")],
}


@dataclass(frozen=True, eq=False)
class CaseSet:
    """The cases of a location."""

    split: str  # name of the location
    root: Path  # folder of the data set, for error messages
    cases: Sequence[Scene]  # with sizes

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: int) -> Scene:
        return self.cases[index]


class Paths(NamedTuple):
    """K paths of S cars, for collisions; NaN at unknown steps."""

    position: np.ndarray  # float64 [S, K, F, 2], metres
    heading: np.ndarray  # float64 [S, K, F], radians
    size: np.ndarray  # float64 [S, 2], length and width in metres


class Outcome(NamedTuple):
    """The forecast of S cars of a case, the most probable world first."""

    scene: Scene
    row: np.ndarray  # int64 [S], index of each car in the scene
    paths: Paths  # in the frame of the scene


def target_rows(scene: Scene, target_set: str) -> np.ndarray:
    """Rows int64 [S] of the cars of one of the `TARGET_SETS`."""
    valid = scene.valid.all(1) if target_set == "HPNet" else scene.valid[:, -1]
    return np.flatnonzero((scene.agent_role >= AgentRole.SCORED) & valid)


def outcomes(
    predictor: Predictor, cases: CaseSet, *, batch_size: int = 32, progress: bool = True
) -> Iterator[Outcome]:
    """Forecast all cases of a location in order (TrajformerError: another number of steps, or a car is left out)."""
    tracks = track_forecasts(predictor, cases, batch_size=batch_size, progress=progress)
    by_scene = {name: list(group) for name, group in groupby(tracks, lambda track: track.scene_id)}
    for scene in cases.cases:
        position = {
            track.track_id: check_forecast(track).position[:K] for track in by_scene[scene.scene_id]
        }
        row = target_rows(scene, "FJMP")  # includes the other set
        if missing := [
            scene.agent_id[index] for index in row if scene.agent_id[index] not in position
        ]:
            raise TrajformerError(
                f"{cases.root}: scene {scene.scene_id}: the model does not predict track {missing[0]!r}"
            )
        worlds = [position[scene.agent_id[index]] - scene.origin for index in row]
        modes = np.stack(worlds) if worlds else np.zeros((0, 1, NUM_FUTURE, 2))
        if modes.shape[2] != NUM_FUTURE:
            raise TrajformerError(
                f"{cases.root}: the model predicts {modes.shape[2]} steps, the protocol has {NUM_FUTURE}"
            )
        now = NUM_HISTORY - 1
        heading = path_headings(
            modes, scene.position[row, None, now], scene.heading[row, None, now]
        )
        yield Outcome(scene, row, Paths(modes, heading, scene.agent_size[row].astype(np.float64)))


def path_headings(path: np.ndarray, position: np.ndarray, heading: np.ndarray) -> np.ndarray:
    """Heading [..., F] along paths [..., F, 2] that begin at `position` [..., 2] with `heading` [...].

    It is the direction from the step before to the step after. Where this is shorter than 0.2 m, the earlier heading is kept.
    """
    before = np.broadcast_to(position[..., None, :], (*path.shape[:-2], 1, 2))
    points = np.concatenate([before, path, path[..., -1:, :]], -2)
    chord = points[..., 2:, :] - points[..., :-2, :]
    angle = np.arctan2(chord[..., 1], chord[..., 0])
    first = np.broadcast_to(heading[..., None], (*angle.shape[:-1], 1))
    moves = np.hypot(chord[..., 0], chord[..., 1]) >= TURNING_M
    latest = np.maximum.accumulate(np.where(moves, np.arange(1, angle.shape[-1] + 1), 0), -1)
    return np.take_along_axis(np.concatenate([first, angle], -1), latest, -1)


def missed(error: np.ndarray, heading: np.ndarray, speed: np.ndarray) -> np.ndarray:
    """Whether forecasts miss, bool [S, K]: an end point off by over 1 m sideways, or over 1 to 2 m lengthways.

    `error` is float64 [S, K, 2] in metres, `heading` [S] in radians and `speed` [S] in m/s are recorded, in the last step.
    """
    along = np.abs(rotate(error, -heading[:, None]))
    limit = 1.0 + np.clip((speed - SLOW_M_S) / (FAST_M_S - SLOW_M_S), 0.0, 1.0)
    return (along[..., 0] > limit[:, None]) | (along[..., 1] > LATERAL_M)


def collided(first: Paths, second: Paths, pairs: np.ndarray) -> np.ndarray:
    """Collisions bool [P, K] of car pairs[0, p] of `first` with car pairs[1, p] of `second`, int64 [2, P].

    A car is a row of circles. Two cars collide if the centres of two circles are closer than (w1 + w2) / sqrt(3.8).
    """
    a, b = pairs
    limit = (first.size[a, 1] + second.size[b, 1]) / np.sqrt(3.8)
    reach = (
        np.maximum(first.size[:, 0] - first.size[:, 1], 0)[a]
        + np.maximum(second.size[:, 0] - second.size[:, 1], 0)[b]
    )
    gap = first.position[a] - second.position[b]  # [P, K, F, 2]
    near = (
        np.hypot(gap[..., 0], gap[..., 1]) < (limit + reach / 2)[:, None, None]
    )  # other pairs cannot touch
    pair, mode, step = near.nonzero()
    circles = [
        _circles(paths, index[pair], np.minimum(mode, paths.position.shape[1] - 1), step)
        for paths, index in ((first, a), (second, b))
    ]
    apart = circles[0][:, :, None] - circles[1][:, None]  # [n, 5, 5, 2]
    touch = (np.hypot(apart[..., 0], apart[..., 1]) < limit[pair, None, None]).any((1, 2))
    result = np.zeros(near.shape[:2], bool)
    result[pair[touch], mode[touch]] = True
    return result


def _circles(paths: Paths, car: np.ndarray, mode: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Centres [n, 5, 2] of the circles of cars at steps; shorter cars have fewer circles, which are repeated."""
    length, width = paths.size[car].T
    offset = _CIRCLES[np.digitize(length, (4.0, 8.0))] * ((length - width) / 2)[:, None]
    heading = paths.heading[car, mode, step]
    direction = np.stack([np.cos(heading), np.sin(heading)], -1)
    return paths.position[car, mode, step][:, None] + offset[..., None] * direction[:, None]


def case_metrics(outcome: Outcome) -> CaseMetrics:
    """The `FIGURES` of a case by target set, and the number of its cars; sets without a car are left out."""
    scene, row, modes = outcome.scene, outcome.row, outcome.paths.position
    valid, future = scene.valid[row, NUM_HISTORY:], np.s_[:, NUM_HISTORY:]
    truth = scene.position[row][future].astype(np.float64)
    gap = modes - truth[:, None]
    error = np.hypot(gap[..., 0], gap[..., 1]) * valid[:, None]  # [S, K, F]
    miss = missed(
        gap[:, :, -1],
        scene.heading[row, -1].astype(np.float64),
        np.hypot(*scene.velocity[row, -1].T),
    )
    recorded = np.where(valid[..., None], truth, np.nan)[:, None]
    true_paths = Paths(
        recorded, scene.heading[row][future][:, None].astype(np.float64), outcome.paths.size
    )
    pairs = np.argwhere(~np.eye(len(row), dtype=bool)).T.reshape(2, -1)
    crossing, blocked = np.zeros((2, len(row), len(row), modes.shape[1]), bool)  # [S, S, K]
    ordered = pairs[:, pairs[0] < pairs[1]]
    crossing[*ordered] = collided(outcome.paths, outcome.paths, ordered)
    blocked[*pairs] = collided(true_paths, outcome.paths, pairs)  # [ego, other, mode]
    metrics = {}
    for name in TARGET_SETS:
        keep = np.flatnonzero(np.isin(row, target_rows(scene, name)))
        if len(keep):
            both = np.ix_(keep, keep)
            collides, blocks = np.any(crossing[both], (0, 1)), np.any(blocked[both], 1)
            metrics[name] = _metrics(error[keep], valid[keep], miss[keep], collides, blocks)
    return metrics


def _metrics(
    error: np.ndarray, valid: np.ndarray, miss: np.ndarray, collides: np.ndarray, blocks: np.ndarray
) -> dict[str, float]:
    """Figures of S cars: errors [S, K, F], valid [S, F], misses [S, K], collisions [K], and collisions with each ego [S, K]."""
    ade, fde = error.sum(-1) / valid.sum(-1)[:, None], error[..., -1]  # [S, K]
    world_fde, world_miss = fde.mean(0), miss.mean(0)
    values = (
        *(error.sum((0, 2)).min() / valid.sum(), world_fde.min(), world_miss.min()),
        np.where(collides, 1.0, world_miss).min(),
        *(collides.mean(), collides[world_fde.argmin()], blocks.all(1).mean()),
        *(
            ade.min(1).mean(),
            fde.min(1).mean(),
            miss.all(1).mean(),
            ade[:, 0].mean(),
            fde[:, 0].mean(),
        ),
    )
    return dict(zip(FIGURES, map(float, values), strict=True)) | {"num_cars": len(error)}


def summarize(cases: Mapping[str, Sequence[CaseMetrics]]) -> dict[str, dict[str, dict[str, float]]]:
    """Figures by target set, and by location or "mean" (over the cases of all locations), from the cases of each location.

    Each entry has the numbers of its cases and cars; the `FIGURES` are missing if there is no case.
    """
    every = {**cases, "mean": [case for part in cases.values() for case in part]}
    return {
        name: {
            place: _mean([case[name] for case in part if name in case])
            for place, part in every.items()
        }
        for name in TARGET_SETS
    }


def _mean(cases: Sequence[Mapping[str, float]]) -> dict[str, float]:
    counts = {"num_cases": len(cases), "num_cars": sum(int(case["num_cars"]) for case in cases)}
    return counts | {
        name: float(np.mean([case[name] for case in cases])) for name in FIGURES if cases
    }


def write_challenge_file(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write `<location>_sub.csv` of the INTERPRET challenge with all cars that have 40 steps, and check it."""
    parts: list[dict[str, np.ndarray]] = []
    frame = np.arange(NUM_HISTORY + 1, NUM_HISTORY + NUM_FUTURE + 1)
    for scene, row, paths in outcomes:
        number = float(scene.scene_id.rsplit("-", 1)[1])
        for car in np.flatnonzero(np.isin(row, target_rows(scene, "HPNet"))):
            columns = {
                "case_id": np.full(NUM_FUTURE, number),
                "track_id": np.full(NUM_FUTURE, scene.agent_id[row[car]]),
            }
            columns |= {"frame_id": frame, "timestamp_ms": frame * PERIOD_MS}
            columns |= {
                "track_to_predict": np.ones(NUM_FUTURE),
                "interesting_agent": np.zeros(NUM_FUTURE),
            }
            for mode, (xy, psi) in enumerate(
                zip(paths.position[car] + scene.origin, paths.heading[car], strict=True), 1
            ):
                columns |= {
                    f"x{mode}": xy[:, 0].round(4),
                    f"y{mode}": xy[:, 1].round(4),
                    f"psi_rad{mode}": psi.round(4),
                }
            parts.append(columns)
    if not parts:
        raise TrajformerError(f"{path}: no car with all {NUM_HISTORY + NUM_FUTURE} steps to write")
    with atomically(path) as temporary:
        table = pa.table(
            {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        )
        pa_csv.write_csv(table, temporary, pa_csv.WriteOptions(quoting_style="none"))
        check_challenge_file(temporary)


def check_challenge_file(path: Path) -> int:
    """Check a file of the challenge; returns the number of forecast tracks.

    Raises TrajformerError with file and column: a column is missing or has another type, a value is not finite, or a track does
    not have one row for each of the frames 11 to 40.
    """

    def require(holds: bool | np.bool_, column: str, expected: str) -> None:
        if not holds:
            raise TrajformerError(f"{path}: {column}: expected {expected}")

    try:
        table = pa_csv.read_csv(
            path, convert_options=pa_csv.ConvertOptions(column_types={"track_id": pa.string()})
        )
    except (pa.ArrowException, OSError) as error:
        raise TrajformerError(f"{path}: not a readable csv file: {error}") from error
    names = ["case_id", "frame_id", "timestamp_ms", "track_to_predict", "interesting_agent"]
    modes = [
        int(match[1])
        for name in table.column_names
        if (match := re.fullmatch(f"(?:x|y|psi_rad)([1-{K}])", name))
    ]
    names += [
        f"{name}{mode}"
        for mode in range(1, max(modes, default=1) + 1)
        for name in ("x", "y", "psi_rad")
    ]
    for name in (*names, "track_id"):
        require(table.column_names.count(name) == 1, name, "one column of this name")
    number = {}
    for name in names:
        kind = table[name].type
        require(
            pa.types.is_integer(kind) or pa.types.is_floating(kind), name, f"numbers, not {kind}"
        )
        number[name] = table[name].to_numpy().astype(np.float64)
        require(np.isfinite(number[name]).all(), name, "finite numbers without empty cells")
    for name in ("track_to_predict", "interesting_agent"):
        require(np.isin(number[name], (0, 1)).all(), name, "0 or 1")
    require(
        (number["timestamp_ms"] == PERIOD_MS * number["frame_id"]).all(),
        "timestamp_ms",
        f"{PERIOD_MS} * frame_id",
    )
    track = np.asarray(table["track_id"].combine_chunks().dictionary_encode().indices)
    tracks, owner = np.unique(np.stack([number["case_id"], track]), axis=1, return_inverse=True)
    order = np.lexsort((number["frame_id"], owner))
    complete = len(order) == tracks.shape[1] * NUM_FUTURE
    frames = (
        number["frame_id"][order].reshape(-1, NUM_FUTURE) if complete else np.zeros((1, NUM_FUTURE))
    )
    expected = np.arange(NUM_HISTORY + 1, NUM_HISTORY + NUM_FUTURE + 1)
    require(
        len(order) > 0 and (frames == expected).all(),
        "frame_id",
        "one row for each of the frames 11 to 40 of each track",
    )
    return int(tracks.shape[1])


def table(models: Mapping[str, Mapping[str, LocationMetrics]]) -> str:
    """The published rows and the rows of models (figures by label, target set and location or "mean"), and all figures."""
    locations = list(next(iter(models.values()))["HPNet"])
    columns = list(map(_short, locations))
    parts = [
        "INTERACTION, multi-agent cases: 10 steps observed, 30 to predict (0.1 s each), means over cases, metres and shares"
    ]
    for target_set, rule in TARGET_SETS.items():
        names = ("minJointADE", "minJointFDE")
        rows = [
            (n, "- " * len(columns[1:]) + cell, f"{source}, 12 locations")
            for n, cell, source in _PUBLISHED[target_set]
        ]
        tables = []
        for label, by_set in models.items():
            means = by_set[target_set].values()
            rows.append(
                (
                    label,
                    " ".join(
                        "/".join(f"{m[n]:.3f}" if n in m else "-" for n in names) for m in means
                    ),
                    "",
                )
            )
            metrics = []
            for name in ("num_cases", "num_cars", *FIGURES):
                digits = 0 if name.startswith("num_") else 4
                metrics.append(
                    (
                        name,
                        " ".join(f"{m[name]:.{digits}f}" if name in m else "-" for m in means),
                        "",
                    )
                )
            tables.append(f"{label}, target set of {target_set}\n{as_text(columns, metrics)}")
        title = f"target set of {target_set} ({rule}), best of {K} worlds, minima taken separately: minJointADE/minJointFDE"
        parts += [f"{title}\n{as_text(columns, rows)}", *tables]
    parts.append(
        "Differences: published means are over the cases of all 12 locations, and published models were trained on these,\n"
        f"on their training cases. The other rows are over the cases of {len(columns) - 1} of the locations."
    )
    return "\n\n".join(parts)


def _short(location: str) -> str:
    """Short name of a location: "Inter_GL" for DR_USA_Intersection_GL."""
    *_, kind, name = ["", *location.split("_")]
    return f"{kind[:5]}_{name}" if kind else name
