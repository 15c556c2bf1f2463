"""Argoverse 2 sensor logs, `RAW/<split>/<log>/` of annotations, poses and a map, cut into forecasting scenes.

A scene is a window of a log. Sweeps are 96 to 103 ms apart, but tracks advance as evenly as if it were always 0.1 s,
and smoothly, so that the velocity is the difference to the step before: constant velocity from it ends 3.4 m off after
3 s for moving vehicles (pedestrians 0.68 m), from five steps 3.8 m (0.74 m); a parabola through ten steps does as well.

Who is scored and who is focal is decided from the observed part alone (but for the focal agent `farthest`): a model may
see it, and where the future is not known nothing else could be done.
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
LOOSE = "logs"  # the split of logs that lie directly in the raw folder
EGO = 0  # the ego vehicle's index in a log
_ROAD_USERS = (AgentKind.VEHICLE, AgentKind.BUS, AgentKind.PEDESTRIAN, AgentKind.CYCLIST, AgentKind.MOTORCYCLIST)


@dataclass(frozen=True)
class Argoverse2Sensor:
    """Reader of Argoverse 2 sensor logs, about 15.6 s each.

    Attributes:
        history_s: observed part of a scene, seconds.
        future_s: the part to be predicted, seconds.
        stride_s: seconds from one scene's beginning to the next one's.
        focal: `nearest` = the scored agent nearest to the ego vehicle at the last observed step; `moving` = the one that
            travelled farthest while observed (it often leaves the sensors' range before the scene ends); `farthest` = the
            one that travels farthest in the whole scene, chosen as published data sets do, with knowledge of the future;
            `ego` = the ego vehicle; `none` = nobody.
        min_observed_s: a road user seen at the last observed step is scored if it was observed for at least so long and ...
        min_travel_m: ... if it got so far from where it was first seen; annotations of parked cars wander by 1 m.
        map_radius_m: polylines that come this close to a scored agent or the ego vehicle at the last observed step are kept.
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
        "RAW/<split>/<log>/annotations.feather with city_SE3_egovehicle.feather and map/log_map_archive_*.json beside it"
    )
    published: ClassVar[dict[str, int]] = {}  # depends on the options

    def __post_init__(self) -> None:
        """Check that the times are whole steps.

        Raises:
            TrajformerError: names the option.
        """
        for name, least in (("history_s", 2), ("future_s", 1), ("stride_s", 1)):
            value = getattr(self, name)
            if not (value > least * PERIOD_S - 1e-6 and abs(value - PERIOD_S * round(value / PERIOD_S)) < 1e-6):
                raise TrajformerError(
                    f"{name}: {value:g} s, expected a multiple of {PERIOD_S} s, at least {least * PERIOD_S:g} s"
                )
        if not 0.0 <= self.min_observed_s <= self.history_s:
            raise TrajformerError(f"min_observed_s: {self.min_observed_s:g} s, expected 0 to history_s ({self.history_s:g} s)")

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders with at least one annotated log (test logs are not), and `logs` where raw itself has some."""
        folders = {path.parent.parent for name in ANNOTATIONS for path in [*raw.glob(f"*/*/{name}"), *raw.glob(f"*/{name}")]}
        return sorted({LOOSE if folder == raw else folder.name for folder in folders})

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Windows of all logs of the split by their first step; a log that has none is one input without a part."""
        length, stride = self._steps(self.history_s + self.future_s), self._steps(self.stride_s)
        found: list[Input] = []
        for path in _annotations(raw, split):
            try:
                starts = range(0, count_steps(path) - length + 1, stride)
            except SceneError:
                starts = range(0)
            found += [Input(path, f"{start:03d}") for start in starts] or [Input(path)]
        return found

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """One window of a log.

        Raises:
            SceneError: names the file and the column, or the map file and its entry, that cannot be used; the log is
                shorter than a window; or nobody is there to be scored.
        """
        log, start = load_log(item.path), int(item.part or 0)
        history, future = self._steps(self.history_s), self._steps(self.future_s)
        if start + history + future > log.num_steps:
            length = f"{log.num_steps} steps of {PERIOD_S} s, a scene has {history + future}"
            raise SceneError(f"{item}: timestamp_ns: {length} (history_s and future_s)")
        log = log.window(start, history, future)
        role = self._roles(log, history, item)
        now = log.position[:, history - 1]
        origin = now[role.argmax() if role.max() == AgentRole.FOCAL else EGO].copy()
        around = role > AgentRole.CONTEXT
        around[EGO] = True
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
            **log.lanes.near(now[around], self.map_radius_m).scene_fields(origin),
        )

    def _roles(self, log: SensorLog, history: int, item: Input) -> np.ndarray:
        """AgentRole [A] of a window; whatever comes back, the ego vehicle is seen at the last observed step."""
        observed = log.valid[:, :history]
        travel = _travel(log.position[:, :history], observed)
        scored = np.isin(log.kind, _ROAD_USERS) & observed[:, -1] & (travel >= self.min_travel_m)
        scored &= observed.sum(1) >= self._steps(self.min_observed_s)
        scored[:1] = False  # the ego vehicle, whose future is its own plan
        role = np.where(scored, AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8)
        at = "at the last observed step"
        if self.focal == "ego":
            if not observed[:1, -1].any():
                raise SceneError(f"{item}: timestamp_ns: no sweep, so no ego vehicle, {at}")
            role[EGO] = AgentRole.FOCAL
            return role
        if not scored.any():
            raise SceneError(f"{item}: track_uuid: nobody who moves is seen {at} (min_observed_s, min_travel_m)")
        if self.focal != "none":
            distance = np.hypot(*(log.position[:, history - 1] - log.position[EGO, history - 1]).T)
            whole = _travel(log.position, log.valid)
            merit = {"nearest": -distance, "moving": travel, "farthest": whole}[self.focal]
            role[np.where(scored, merit, -np.inf).argmax()] = AgentRole.FOCAL
        return role

    @staticmethod
    def _steps(seconds: float) -> int:
        return round(seconds / PERIOD_S)


def _annotations(raw: Path, split: str) -> list[Path]:
    """The annotations file that each log of a split has or, where poses tell that it is one, should have."""
    folders = [raw / split, raw] if split == LOOSE else [raw / split]
    logs = {file.parent for folder in folders for sign in (*ANNOTATIONS, POSES) for file in folder.glob(f"*/{sign}")}
    paths = [[log / name for name in ANNOTATIONS] for log in sorted(logs)]
    return [next((path for path in names if path.is_file()), names[0]) for names in paths]


def _travel(position: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Greatest distance [A] in metres between an agent's first position and another of [A, T, 2]."""
    first = position[np.arange(len(valid)), valid.argmax(1)]
    return (np.linalg.norm(position - first[:, None], axis=-1) * valid).max(1, initial=0.0)


def _velocity(position: np.ndarray, valid: np.ndarray, history: int) -> np.ndarray:
    """Difference to the step [A, T, 2] at which the agent was last seen, in m/s; zero where not valid.

    The first step of a track takes the second's, where that is observed, too.
    """
    steps = np.arange(valid.shape[1])
    latest = np.maximum.accumulate(np.where(valid, steps, -1), 1)
    before = np.concatenate([np.full((len(valid), 1), -1), latest[:, :-1]], 1)
    agent, step = np.nonzero(valid & (before >= 0))
    velocity, earlier = np.zeros(position.shape), before[agent, step]
    velocity[agent, step] = (position[agent, step] - position[agent, earlier]) / ((step - earlier) * PERIOD_S)[:, None]
    first = valid.argmax(1)
    second = (valid & (before == first[:, None])).argmax(1)
    known = np.flatnonzero((second > first) & (second < history))
    velocity[known, first[known]] = velocity[known, second[known]]
    return velocity
