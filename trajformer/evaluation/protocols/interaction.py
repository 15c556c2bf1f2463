"""The INTERACTION multi-agent protocol: six joint forecasts of all cars of a case.

10 steps are observed and 30 predicted, 0.1 s each. The metrics follow the INTERPRET challenge
(README of `interaction-dataset/INTERPRET_challenge_multi-agent`), with the longitudinal threshold
of FJMP (Rowe et al. 2023), because the formula of the README has a misprint. A metric is first
computed for each case; results are means over cases. Two sets of cars are in use, and published
results differ in this choice:

- HPNet (Tang et al. 2024): cars with all 40 steps.
- FJMP: cars present in the last observed and in the last step. Errors count at recorded steps.

Validation cases do not name the ego vehicle. Therefore all cars are scored, and the ego collision
rate is the mean over all cars, with each car in turn as the ego vehicle. World k of a marginal
forecast consists of the k-th most probable mode of each car.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import track_forecasts
from trajformer.evaluation.forecast_file import check_forecast
from trajformer.evaluation.metrics.boxes import path_headings
from trajformer.models.forecaster import Predictor
from trajformer.scenes.geometry import rotate
from trajformer.scenes.scene import AgentRole, Scene

K = 6
NUM_HISTORY = 10
NUM_FUTURE = 30
PERIOD_MS = 100
TARGET_SETS = {"HPNet": "cars with all 40 steps", "FJMP": "cars at steps 9 and 39"}
METRICS = (
    "minJointADE",
    "minJointFDE",
    "minJointMR",
    "consistent_minJointMR",
    "cross_collision_rate",
    "best_world_collision_rate",
    "ego_collision_rate",
    "minADE",
    "minFDE",
    "MR",
    "ADE_1",
    "FDE_1",
)
# an end point misses beyond this distance sideways, or beyond a distance lengthways that grows from
# 1 m for slow cars to 2 m for fast cars
LATERAL_M = 1.0
SLOW_M_S = 1.4
FAST_M_S = 11.0
# Positions of the circles of a car, relative to (length - width) / 2: of cars below 4 m, below 8 m,
# and longer. Shorter cars have fewer circles, which are repeated.
_CIRCLES = np.array([[-1, -1, 1, 1, 1], [-1, 0, 1, 1, 1], [-1, -0.5, 0, 0.5, 1]])
CaseMetrics = dict[str, dict[str, float]]  # by target set and by name
LocationMetrics = Mapping[str, Mapping[str, float]]  # by location or "mean", and by name


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
    """Forecast all cases of a location in order.

    Raises TrajformerError: the model predicts another number of steps, or leaves out a car.
    """
    position: dict[str, dict[str, np.ndarray]] = defaultdict(dict)  # [K, F, 2], by scene and track
    for track in track_forecasts(predictor, cases, batch_size=batch_size, progress=progress):
        position[track.scene_id][track.track_id] = check_forecast(track).position[:K]
    now = NUM_HISTORY - 1
    for scene in cases.cases:
        row = target_rows(scene, "FJMP")  # includes the cars of the other set
        of_cars = []
        for index in row:
            track_id = scene.agent_id[index]
            if track_id not in position[scene.scene_id]:
                problem = f"the model does not predict track {track_id!r}"
                raise TrajformerError(f"{cases.root}: scene {scene.scene_id}: {problem}")
            of_cars.append(position[scene.scene_id][track_id] - scene.origin)
        modes = np.stack(of_cars) if of_cars else np.zeros((0, 1, NUM_FUTURE, 2))
        if modes.shape[2] != NUM_FUTURE:
            problem = f"predicts {modes.shape[2]} steps, the protocol has {NUM_FUTURE}"
            raise TrajformerError(f"{cases.root}: the model {problem}")
        start = scene.position[row, None, now]
        heading = path_headings(modes, start, scene.heading[row, None, now])
        size = scene.agent_size[row].astype(np.float64)
        yield Outcome(scene, row, Paths(modes, heading, size))


def missed(error: np.ndarray, heading: np.ndarray, speed: np.ndarray) -> np.ndarray:
    """Misses bool [S, K]: the end point is over 1 m off sideways, or over 1 to 2 m lengthways.

    `error` is float64 [S, K, 2] in metres: predicted minus recorded end points. `heading` [S] in
    radians and `speed` [S] in m/s are recorded in the last step.
    """
    in_car_frame = np.abs(rotate(error, -heading[:, None]))
    lengthways = in_car_frame[..., 0]
    sideways = in_car_frame[..., 1]
    limit = 1.0 + np.clip((speed - SLOW_M_S) / (FAST_M_S - SLOW_M_S), 0.0, 1.0)
    return (lengthways > limit[:, None]) | (sideways > LATERAL_M)


def cars_touch(first: Paths, second: Paths, pairs: np.ndarray) -> np.ndarray:
    """Collisions bool [P, K] of car pairs[0, p] of `first` with car pairs[1, p] of `second`.

    `pairs` is int64 [2, P]. A car is a row of circles. Two cars collide if the centers of two
    circles are closer than (w1 + w2) / sqrt(3.8).
    """
    a, b = pairs
    limit = (first.size[a, 1] + second.size[b, 1]) / np.sqrt(3.8)
    # pairs whose centers are too far apart for any two circles are skipped
    reach = limit + (_half_row(first)[a] + _half_row(second)[b])
    gap = first.position[a] - second.position[b]  # [P, K, F, 2]
    near = np.hypot(gap[..., 0], gap[..., 1]) < reach[:, None, None]
    pair, mode, step = near.nonzero()
    first_circles = _circles(first, a[pair], mode, step)
    second_circles = _circles(second, b[pair], mode, step)
    apart = first_circles[:, :, None] - second_circles[:, None]  # [n, 5, 5, 2]
    touch = np.hypot(apart[..., 0], apart[..., 1]) < limit[pair, None, None]
    touch = touch.any((1, 2))
    result = np.zeros(near.shape[:2], bool)
    result[pair[touch], mode[touch]] = True
    return result


def _half_row(paths: Paths) -> np.ndarray:
    """Distance [S] from the center of a car to its outer circles."""
    length, width = paths.size.T
    return np.maximum(length - width, 0) / 2


def _circles(paths: Paths, car: np.ndarray, mode: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Centers [n, 5, 2] of the circles of cars at steps; a recorded path has one mode only."""
    mode = np.minimum(mode, paths.position.shape[1] - 1)
    length, width = paths.size[car].T
    layout = _CIRCLES[np.digitize(length, (4.0, 8.0))]
    offset = layout * ((length - width) / 2)[:, None]  # [n, 5]
    heading = paths.heading[car, mode, step]
    direction = np.stack([np.cos(heading), np.sin(heading)], -1)
    center = paths.position[car, mode, step]
    return center[:, None] + offset[..., None] * direction[:, None]


def case_metrics(outcome: Outcome) -> CaseMetrics:
    """The `METRICS` and the number of cars of a case, by target set.

    A target set without cars has no entry.
    """
    scene = outcome.scene
    row = outcome.row
    modes = outcome.paths.position
    valid = scene.valid[row, NUM_HISTORY:]
    truth = scene.position[row, NUM_HISTORY:].astype(np.float64)
    gap = modes - truth[:, None]
    error = np.hypot(gap[..., 0], gap[..., 1]) * valid[:, None]  # [S, K, F]
    last_heading = scene.heading[row, -1].astype(np.float64)
    last_velocity = scene.velocity[row, -1]
    last_speed = np.hypot(last_velocity[:, 0], last_velocity[:, 1])
    miss = missed(gap[:, :, -1], last_heading, last_speed)
    between_forecasts, with_ego = _collisions(outcome, truth, valid)
    metrics = {}
    for name in TARGET_SETS:
        members = np.flatnonzero(np.isin(row, target_rows(scene, name)))
        if len(members):
            both = np.ix_(members, members)  # pairs of cars in this set
            metrics[name] = _metrics(
                error[members],
                valid[members],
                miss[members],
                np.any(between_forecasts[both], (0, 1)),
                np.any(with_ego[both], 1),
            )
    return metrics


def _collisions(
    outcome: Outcome, truth: np.ndarray, valid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Collisions of two forecasts, and of a recorded path with a forecast, both bool [S, S, K].

    The first has each pair of cars once. The first axis of the second is the car with the recorded
    path, the ego vehicle. `truth` [S, F, 2] is the recorded future, `valid` bool [S, F].
    """
    cars = len(outcome.row)
    modes = outcome.paths.position.shape[1]
    pairs = np.argwhere(~np.eye(cars, dtype=bool)).T.reshape(2, -1)  # all ordered pairs

    unordered = pairs[:, pairs[0] < pairs[1]]
    between_forecasts = np.zeros((cars, cars, modes), bool)
    touch = cars_touch(outcome.paths, outcome.paths, unordered)
    between_forecasts[unordered[0], unordered[1]] = touch

    heading = outcome.scene.heading[outcome.row, NUM_HISTORY:].astype(np.float64)
    recorded = np.where(valid[..., None], truth, np.nan)
    true_paths = Paths(recorded[:, None], heading[:, None], outcome.paths.size)
    with_ego = np.zeros((cars, cars, modes), bool)
    with_ego[pairs[0], pairs[1]] = cars_touch(true_paths, outcome.paths, pairs)
    return between_forecasts, with_ego


def _metrics(
    error: np.ndarray,
    valid: np.ndarray,
    miss: np.ndarray,
    collides: np.ndarray,
    ego_collides: np.ndarray,
) -> dict[str, float]:
    """Metrics of S cars.

    Args:
        error: [S, K, F], zero at unknown steps.
        valid: bool [S, F].
        miss: bool [S, K].
        collides: bool [K], worlds with a collision.
        ego_collides: bool [S, K], worlds with a collision of each car as the ego vehicle.
    """
    ade = error.sum(-1) / valid.sum(-1)[:, None]  # [S, K]
    fde = error[..., -1]
    world_ade = error.sum((0, 2)) / valid.sum()  # [K]
    world_fde = fde.mean(0)
    world_miss = miss.mean(0)
    consistent_miss = np.where(collides, 1.0, world_miss)  # worlds with a collision are misses
    values = {
        "minJointADE": world_ade.min(),
        "minJointFDE": world_fde.min(),
        "minJointMR": world_miss.min(),
        "consistent_minJointMR": consistent_miss.min(),
        "cross_collision_rate": collides.mean(),
        "best_world_collision_rate": collides[world_fde.argmin()],
        "ego_collision_rate": ego_collides.all(1).mean(),
        "minADE": ade.min(1).mean(),
        "minFDE": fde.min(1).mean(),
        "MR": miss.all(1).mean(),
        "ADE_1": ade[:, 0].mean(),
        "FDE_1": fde[:, 0].mean(),
    }
    metrics = {name: float(value) for name, value in values.items()}
    return metrics | {"num_cars": len(error)}


def summarize(cases: Mapping[str, Sequence[CaseMetrics]]) -> dict[str, dict[str, dict[str, float]]]:
    """Metrics by target set, and by location or "mean", from the cases of each location.

    "mean" is over the cases of all locations. Each entry has the numbers of its cases and cars; the
    `METRICS` are missing if there is no case.
    """
    all_cases = [case for part in cases.values() for case in part]
    parts = {**cases, "mean": all_cases}
    summary: dict[str, dict[str, dict[str, float]]] = {}
    for name in TARGET_SETS:
        summary[name] = {}
        for location, part in parts.items():
            of_set = [case[name] for case in part if name in case]
            summary[name][location] = _mean(of_set)
    return summary


def _mean(cases: Sequence[Mapping[str, float]]) -> dict[str, float]:
    num_cars = sum(int(case["num_cars"]) for case in cases)
    metrics: dict[str, float] = {"num_cases": len(cases), "num_cars": num_cars}
    if cases:
        for name in METRICS:
            metrics[name] = float(np.mean([case[name] for case in cases]))
    return metrics
