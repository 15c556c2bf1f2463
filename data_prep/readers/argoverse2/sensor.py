"""Argoverse 2 sensor logs, `RAW/<split>/<log>/` with annotations, poses and a map, cut into forecasting scenes.

A scene is a window of a log. Sweeps are 96 to 103 ms apart, but the positions of a track are as evenly spaced as with
steps of 0.1 s. Tracks are smooth, so the velocity is the difference to the previous step: constant-velocity predictions
have an error of 3.4 m after 3 s for moving vehicles (pedestrians 0.68 m), against 3.8 m (0.74 m) with the mean of five
steps; a parabola through ten steps is as accurate as the difference.

Roles depend on the observed steps only, except for the focal agent `farthest`. Therefore a model may use them as inputs,
and they exist when the future is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from data_prep.reader import Input
from data_prep.readers.argoverse2.log import ANNOTATIONS, POSES, SensorLog, count_steps, load_log
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

PERIOD_S = 0.1
ROOT_SPLIT = "logs"  # the split of logs directly in the raw folder
EGO = 0  # the ego vehicle's index in a log
_ROAD_USERS = (AgentKind.VEHICLE, AgentKind.BUS, AgentKind.PEDESTRIAN, AgentKind.CYCLIST, AgentKind.MOTORCYCLIST)


@dataclass(frozen=True)
class Argoverse2Sensor:
    """Reader of Argoverse 2 sensor logs of about 15.6 s each.

    Attributes:
        history_s: length of the observed part of a scene, seconds.
        future_s: length of the part to predict, seconds.
        stride_s: seconds between the starts of scenes.
        focal: `nearest` = the scored agent nearest to the ego vehicle at the last observed step; `moving` = the scored agent
            with the longest observed travel (it often leaves the range of the sensors before the scene ends); `farthest` =
            the scored agent with the longest travel in the complete scene, which uses the future like published data sets;
            `ego` = the ego vehicle; `none` = no agent.
        min_observed_s: a road user at the last observed step is scored if it was observed for at least this time and ...
        min_travel_m: ... if its distance from its first position reached this value; labels of parked cars move by 1 m.
        map_radius_m: polylines within this distance of a scored agent or the ego vehicle at the last observed step are kept.
    """

    history_s: float = 5.0
    future_s: float = 6.0
    stride_s: float = 1.0
    focal: Literal["nearest", "moving", "farthest", "ego", "none"] = "nearest"
    min_observed_s: float = 2.0
    min_travel_m: float = 2.0
    map_radius_m: float = 100.0
    name: ClassVar[str] = "argoverse2_sensor"
    layout: ClassVar[str] = (
        "RAW/<split>/<log>/annotations.feather with city_SE3_egovehicle.feather and map/log_map_archive_*.json"
    )
    published: ClassVar[dict[str, int]] = {}  # depends on the options

    def __post_init__(self) -> None:
        """Check that the times are whole steps; TrajformerError names the option."""
        for name, minimum in (("history_s", 2), ("future_s", 1), ("stride_s", 1)):
            value = getattr(self, name)
            if not (value > minimum * PERIOD_S - 1e-6 and abs(value - PERIOD_S * round(value / PERIOD_S)) < 1e-6):
                raise TrajformerError(
                    f"{name}: {value:g} s, expected a multiple of {PERIOD_S} s, at least {minimum * PERIOD_S:g} s"
                )
        if not 0.0 <= self.min_observed_s <= self.history_s:
            raise TrajformerError(f"min_observed_s: {self.min_observed_s:g} s, expected 0 to history_s ({self.history_s:g} s)")

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders with at least one annotated log (test logs have no annotations), and `logs` for logs directly in raw."""
        folders = {path.parent.parent for name in ANNOTATIONS for path in [*raw.glob(f"*/*/{name}"), *raw.glob(f"*/{name}")]}
        return sorted({ROOT_SPLIT if folder == raw else folder.name for folder in folders})

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Windows of all logs of the split, by first step; a log without a window is one input without a part."""
        length, stride = self._steps(self.history_s + self.future_s), self._steps(self.stride_s)
        inputs: list[Input] = []
        for path in _annotations(raw, split):
            try:
                starts = range(0, count_steps(path) - length + 1, stride)
            except SceneError:
                starts = range(0)
            inputs += [Input(path, f"{start:03d}") for start in starts] or [Input(path)]
        return inputs

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window of a log.

        Raises:
            SceneError: names the file and the column, or the map file and the entry, that cannot be used; the log is
                shorter than a window; or there is no agent to score.
        """
        log, start = load_log(item.path), int(item.part or 0)
        history, future = self._steps(self.history_s), self._steps(self.future_s)
        if start + history + future > log.num_steps:
            length = f"{log.num_steps} steps of {PERIOD_S} s, a scene has {history + future}"
            raise SceneError(f"{item}: timestamp_ns: {length} (history_s and future_s)")
        log = log.window(start, history, future)
        role = self._roles(log, history, item)
        last = log.position[:, history - 1]
        origin = last[role.argmax() if role.max() == AgentRole.FOCAL else EGO].copy()
        near = role > AgentRole.CONTEXT
        near[EGO] = True
        return Scene(
            scene_id=f"{item.path.parent.name}-{start:03d}",
            source=self.name,
            split=split,
            city=log.city,
            period_s=PERIOD_S,
            num_history=history,
            num_future=future,
            origin=origin,
            agent_id=log.agent_id,
            agent_kind=log.kind,
            agent_role=role,
            position=np.where(log.valid[..., None], log.position - origin, 0.0).astype(np.float32),
            heading=log.heading.astype(np.float32),
            velocity=_velocity(log.position, log.valid, history).astype(np.float32),
            valid=log.valid,
            **log.lanes.near(last[near], self.map_radius_m).scene_fields(origin),
        )

    def _roles(self, log: SensorLog, history: int, item: Input) -> np.ndarray:
        """AgentRole [A] of a window; in every returned window the ego vehicle is valid at the last observed step."""
        observed = log.valid[:, :history]
        travel = _travel(log.position[:, :history], observed)
        scored = np.isin(log.kind, _ROAD_USERS) & observed[:, -1] & (travel >= self.min_travel_m)
        scored &= observed.sum(1) >= self._steps(self.min_observed_s)
        scored[:1] = False  # the ego vehicle knows its own plan
        role = np.where(scored, AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8)
        at = "at the last observed step"
        if self.focal == "ego":
            if not observed[:1, -1].any():
                raise SceneError(f"{item}: timestamp_ns: no sweep, so no ego vehicle, {at}")
            role[EGO] = AgentRole.FOCAL
            return role
        if not scored.any():
            raise SceneError(f"{item}: track_uuid: no moving agent {at} (min_observed_s, min_travel_m)")
        if self.focal != "none":
            distance = np.hypot(*(log.position[:, history - 1] - log.position[EGO, history - 1]).T)
            total_travel = _travel(log.position, log.valid)
            rank = {"nearest": -distance, "moving": travel, "farthest": total_travel}[self.focal]
            role[np.where(scored, rank, -np.inf).argmax()] = AgentRole.FOCAL
        return role

    @staticmethod
    def _steps(seconds: float) -> int:
        return round(seconds / PERIOD_S)


def _annotations(raw: Path, split: str) -> list[Path]:
    """The annotations file of each log of a split; a folder with poses is a log, also if its annotations are missing."""
    folders = [raw / split, raw] if split == ROOT_SPLIT else [raw / split]
    logs = {file.parent for folder in folders for name in (*ANNOTATIONS, POSES) for file in folder.glob(f"*/{name}")}
    paths = [[log / name for name in ANNOTATIONS] for log in sorted(logs)]
    return [next((path for path in names if path.is_file()), names[0]) for names in paths]


def _travel(position: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Largest distance [A] in metres of an agent's positions [A, T, 2] from its first one."""
    first = position[np.arange(len(valid)), valid.argmax(1)]
    return (np.linalg.norm(position - first[:, None], axis=-1) * valid).max(1, initial=0.0)


def _velocity(position: np.ndarray, valid: np.ndarray, history: int) -> np.ndarray:
    """Velocity [A, T, 2] in m/s: the difference to the previous valid step; zero where not valid.

    The first step of a track takes the velocity of the second one if that is observed.
    """
    steps = np.arange(valid.shape[1])
    latest = np.maximum.accumulate(np.where(valid, steps, -1), 1)
    previous = np.concatenate([np.full((len(valid), 1), -1), latest[:, :-1]], 1)
    agent, step = np.nonzero(valid & (previous >= 0))
    velocity, earlier = np.zeros(position.shape), previous[agent, step]
    velocity[agent, step] = (position[agent, step] - position[agent, earlier]) / ((step - earlier) * PERIOD_S)[:, None]
    first = valid.argmax(1)
    second = (valid & (previous == first[:, None])).argmax(1)
    known = np.flatnonzero((second > first) & (second < history))
    velocity[known, first[known]] = velocity[known, second[known]]
    return velocity
