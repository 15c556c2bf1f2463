"""The Waymo motion and interaction prediction challenges: scenes and forecasts to metrics.

11 steps are observed and 80 predicted at 10 Hz. 16 points at 2 Hz of six modes are scored, at 3, 5
and 8 s, for the tracks to predict. The metrics are in `trajformer/evaluation/metrics/waymo.py`.
Mode k of both agents is one joint future in the interaction challenge.

A scene has one size for each agent, the one at the present, where the records have a size for each
step: overlap rates may differ slightly from the rates of the evaluation server.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast, check_forecast
from trajformer.evaluation.metrics.boxes import agent_sizes
from trajformer.evaluation.metrics.waymo import (
    METRICS,
    UNKNOWN_SHAPE,
    Boxes,
    Group,
    Rules,
    path_shape,
    score,
)
from trajformer.evaluation.protocols.benchmark import as_text
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

NUM_HISTORY = 11
NUM_FUTURE = 80
STRIDE = 5  # steps between two points
SECONDS = (3, 5, 8)  # of the measured points
KINDS = {1: "other", 2: "vehicle", 3: "pedestrian", 4: "cyclist"}  # a pair has the larger number
MEAN = "mean of types"
_CLASSES = {
    AgentKind.VEHICLE: 2,
    AgentKind.BUS: 2,
    AgentKind.PEDESTRIAN: 3,
    AgentKind.CYCLIST: 4,
    AgentKind.MOTORCYCLIST: 4,
}
# Soft mAP, mAP, minADE, minFDE and miss rate, means over types and times.
PUBLISHED = (
    ("MTR-A (ensemble)", "- .4492 - - -", "test"),
    ("EDA", ".4510 .4401 - - -", "test"),
    ("FlowS", ".4804 .4703 - - -", "split not stated"),
)

Table = dict[str, dict[str, dict[str, float]]]  # by type, by seconds, by metric


class ScenePrediction(NamedTuple):
    """The forecasts of the scored agents of a scene."""

    scene: Scene
    row: np.ndarray  # int64 [S], index of each agent in the scene
    position: list[np.ndarray]  # S of [K, 16, 2], metres relative to `scene.origin`
    confidence: list[np.ndarray]  # S of [K], falling


def scene_predictions(
    scenes: Iterable[Scene], tracks_of: Callable[[str], Sequence[TrackForecast]]
) -> Iterator[ScenePrediction]:
    """The forecasts of each scene with scored agents; `tracks_of` has the forecasts of a scene id.

    Raises TrajformerError: a scene has another clock, or a forecast is missing or too short.
    """
    for scene in scenes:
        where = f"scene {scene.scene_id}"
        if (scene.num_history, scene.num_future) != (NUM_HISTORY, NUM_FUTURE):
            steps = f"{scene.num_history} + {scene.num_future} steps"
            raise TrajformerError(f"{where}: {steps}, Waymo has {NUM_HISTORY} + {NUM_FUTURE}")
        rows = np.flatnonzero(scene.agent_role >= AgentRole.SCORED)
        if not len(rows):  # a record without tracks to predict
            continue
        tracks = {track.track_id: track for track in tracks_of(scene.scene_id)}
        positions = []
        confidences = []
        for row in rows:
            track_id = scene.agent_id[row]
            if track_id not in tracks:
                raise TrajformerError(f"{where}: track {track_id!r} has no forecast")
            track = check_forecast(tracks[track_id])
            if track.position.shape[1] != NUM_FUTURE:
                steps = f"{track.position.shape[1]} steps, expected {NUM_FUTURE}"
                raise TrajformerError(f"{where}: the forecast of track {track_id!r} has {steps}")
            points = track.position[:, STRIDE - 1 :: STRIDE]
            positions.append(points - scene.origin)
            confidences.append(track.probability)
        yield ScenePrediction(scene, rows, positions, confidences)


def groups(prediction: ScenePrediction, joint: bool) -> Iterator[Group]:
    """One group for each agent, or one for the pair (none if the scene has no pair)."""
    scene = prediction.scene
    now = NUM_HISTORY - 1
    is_present = np.flatnonzero(scene.valid[:, now])
    index_of = {row: index for index, row in enumerate(is_present.tolist())}
    future = slice(now + STRIDE, None, STRIDE)
    boxes = Boxes(
        position=scene.position[is_present, future].astype(np.float64),
        heading=scene.heading[is_present, future].astype(np.float64),
        size=agent_sizes(scene, is_present)[0],
        valid=scene.valid[is_present, future],
    )
    rows = [row for row in prediction.row.tolist() if row in index_of]
    numbers = {row: number for number, row in enumerate(prediction.row.tolist())}
    members = [[row] for row in rows]
    if joint:
        members = [rows] if len(rows) == 2 else []
    for member in members:
        kept = [prediction.position[numbers[row]] for row in member]
        num_modes = min(len(each) for each in kept)
        yield Group(
            confidence=prediction.confidence[numbers[member[0]]][:num_modes],
            position=np.stack([each[:num_modes] for each in kept], 1),
            member=np.array([index_of[row] for row in member]),
            boxes=boxes,
            speed=np.hypot(*scene.velocity[member, now].T.astype(np.float64)),
            kind=max(_CLASSES.get(AgentKind(scene.agent_kind[row]), 1) for row in member),
            shape=max(_shape(scene, row) for row in member),
        )


def _shape(scene: Scene, row: int) -> int:
    """The `Shape` of the future of an agent, from the present to its last recorded step."""
    now = NUM_HISTORY - 1
    later = np.flatnonzero(scene.valid[row, now + 1 :])
    if not len(later) or not scene.valid[row, now]:
        return UNKNOWN_SHAPE
    last = now + 1 + int(later[-1])
    speed = np.hypot(*scene.velocity[row, [now, last]].T.astype(np.float64))
    heading = scene.heading[row, [now, last]].astype(np.float64)
    return int(
        path_shape(
            scene.position[row, now],
            scene.position[row, last],
            (heading[0], heading[1]),
            (speed[0], speed[1]),
        )
    )


def evaluate(predictions: Iterable[ScenePrediction], joint: bool = False) -> Table:
    """The metrics by type and time, and the means over types and over times.

    Raises TrajformerError: no scene has scored agents with a future.
    """

    def all_groups() -> Iterator[Group]:
        for prediction in predictions:
            if prediction.scene.num_steps > NUM_HISTORY:
                yield from groups(prediction, joint)

    by_kind = score(all_groups(), Rules())
    if not by_kind:
        needed = "pair of scored agents" if joint else "scored agent"
        raise TrajformerError(f"no scene has a {needed} and a recorded future")
    table: Table = {}
    for kind, rows in by_kind.items():
        named = {f"{second} s": row for second, row in zip(SECONDS, rows, strict=True)}
        table[KINDS[kind]] = named | {"mean": _mean(list(named.values()))}
    # The leaderboard's figures are means over vehicles, pedestrians and cyclists.
    typed = [rows for name, rows in table.items() if name != "other"]
    if typed:
        table[MEAN] = {time: _mean([rows[time] for rows in typed]) for time in typed[0]}
        for row in table[MEAN].values():
            row["num_groups"] = sum(int(rows["mean"]["num_groups"]) for rows in typed)
    return table


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    mean = {name: float(np.mean([row[name] for row in rows])) for name in METRICS}
    return mean | {"num_groups": rows[0]["num_groups"]}


def published_table(tables: Mapping[str, Table], joint: bool) -> str:
    """The metrics of models by their labels, and published results."""
    rows = []
    for label, table in tables.items():
        for kind, times in table.items():
            for time, row in times.items():
                values = [f"{row[name]:.3f}" for name in METRICS]
                rows.append((f"{label}, {kind}, {time}", " ".join(values), ""))
    count = sum(
        int(times["mean"]["num_groups"])
        for kind, times in next(iter(tables.values())).items()
        if kind != MEAN
    )
    noun = "pairs" if joint else "agents"
    title = "Waymo interaction prediction" if joint else "Waymo motion prediction"
    parts = [f"{title}: {count} {noun}, six modes, 3, 5 and 8 s", "", as_text(METRICS, rows)]
    if not joint:
        columns = ("soft_mAP", "mAP", "minADE", "minFDE", "miss_rate")
        parts += ["", "published, means over types and times", as_text(columns, PUBLISHED)]
    return "\n".join(parts)
