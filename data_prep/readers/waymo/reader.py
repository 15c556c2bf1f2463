"""Waymo Open Motion: `Scenario` records in TFRecord files, without TensorFlow or `protobuf`.

A scene has 1.1 s of history and 8 s to predict at 10 Hz; records of the testing splits have no
future. Records of 20 s are cut into windows with `window_s`. Recorded velocities are differences
to the step before, so the observed ones do not contain the future. Fields that a scene has no
place for, such as speed limits, are in `read_record` (`data_prep/readers/waymo/record.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from data_prep.reader import Input
from data_prep.readers.columns import Agents
from data_prep.readers.present import main_agent, size_at_present, with_lights
from data_prep.readers.row_check import MAX_UNUSABLE
from data_prep.readers.waymo.map import vector_map
from data_prep.readers.waymo.record import Record, count_steps, read_record, read_record_once
from data_prep.readers.waymo.tfrecord import list_records
from trajformer.config import Config
from trajformer.errors import ConfigError, SceneError, one_line
from trajformer.scenes.geometry import wrap
from trajformer.scenes.plausibility import check_recorded
from trajformer.scenes.scene import (
    MAX_ORIGIN_M,
    MAX_SIZE_M,
    MAX_SPEED_M_S,
    AgentKind,
    AgentRole,
    LightState,
    Scene,
)

ROOT_SPLIT = "scenarios"  # the split of files directly in the raw folder
PATTERN = "*.tfrecord*"
PERIOD_S = 0.1
NUM_FUTURE = 80
CLOCK_TOLERANCE = 0.2  # of a step between timestamps, relative to the period
EGO_ID = "AV"
MAX_ID_LENGTH = 100
_KINDS = np.array(  # by type of a track
    [
        AgentKind.UNKNOWN,
        AgentKind.VEHICLE,
        AgentKind.PEDESTRIAN,
        AgentKind.CYCLIST,
        AgentKind.UNKNOWN,
    ],
    np.uint8,
)
# The largest values of usable states.
_LIMITS = {
    "position": MAX_ORIGIN_M,
    "size": MAX_SIZE_M,
    "heading": 1e3,  # radians
    "velocity": MAX_SPEED_M_S,
}
_ROAD_USERS = (AgentKind.VEHICLE, AgentKind.PEDESTRIAN, AgentKind.CYCLIST)
_LIGHTS = np.array(  # by state: unknown, three arrows, three discs, flashing red, flashing yellow
    [
        LightState.UNKNOWN,
        LightState.RED,
        LightState.YELLOW,
        LightState.GREEN,
        LightState.RED,
        LightState.YELLOW,
        LightState.GREEN,
        LightState.UNKNOWN,
        LightState.YELLOW,
    ],
    np.uint8,
)


@dataclass(frozen=True)
class Waymo(Config, limits={"map_radius_m": (0, np.inf)}):
    """Reader of Waymo Open Motion.

    Attributes:
        window_s: seconds between the starts of scenes of a record, for records of 20 s; 0 = one
            scene at the present step of the record.
        scored: `listed` = the tracks to predict of the record; `interest` = the two objects of
            interest; `all` = vehicles, cyclists and pedestrians except the ego car. Only agents
            that are seen in the last observed step are scored. Records that list none become
            scenes without scored agents.
        map_radius_m: polylines within this distance of a scored agent or the ego car in the last
            observed step are kept.
    """

    window_s: float = 0.0
    scored: Literal["listed", "interest", "all"] = "listed"
    map_radius_m: float = 150.0
    name: ClassVar[str] = "waymo"
    layout: ClassVar[str] = "RAW/[<split>/]*.tfrecord* with Scenario records"
    # Records of version 1.2 and 1.3.
    published: ClassVar[dict[str, int]] = {
        "training": 486_995,
        "validation": 44_097,
        "testing": 44_920,
    }
    num_history: ClassVar[int] = 11

    def __post_init__(self) -> None:
        """Check that the window is a whole number of steps."""
        super().__post_init__()
        steps = self.window_s / PERIOD_S
        if abs(steps - round(steps)) > 1e-6:
            problem = f"{self.window_s:g} s, expected a multiple of {PERIOD_S:g} s"
            raise ConfigError("window_s", problem)

    def splits(self, raw: Path) -> list[str]:
        """`scenarios` for files directly in raw, else the sub-folders with files."""
        if any(raw.glob(PATTERN)):
            return [ROOT_SPLIT]
        return sorted({path.parent.name for path in raw.glob(f"*/{PATTERN}")})

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """The records of each file, in the order of the file names; only lengths are read.

        The unreadable rest of a file is one input with its problem.
        """
        is_root = split == ROOT_SPLIT and any(raw.glob(PATTERN))
        folder = raw if is_root else raw / split
        inputs: list[Input] = []
        for path in sorted(folder.glob(PATTERN)):
            try:
                for offset in list_records(path):
                    inputs += [Input(path, part) for part in self._parts(path, offset)]
            except SceneError as error:
                inputs.append(Input(path, problem=str(error)))
        return inputs

    def _parts(self, path: Path, offset: int) -> Iterator[str]:
        """Names of the windows of a record: its offset in bytes, and the first step."""
        if not self.window_s:
            yield str(offset)
            return
        try:
            num_steps = count_steps(path, offset)
        except SceneError:
            num_steps = 0  # `read` raises the error
        size = self.num_history + NUM_FUTURE
        starts = range(0, num_steps - size + 1, round(self.window_s / PERIOD_S)) or range(1)
        for start in starts:
            yield f"{offset}+{start:03d}"

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window; raises SceneError also if the record is shorter or has another clock."""
        if not item.part:
            raise SceneError(f"{item.path}: the list of records was unreadable before")
        offset, _, start = item.part.partition("+")
        path = item.path
        read = read_record_once if start else read_record
        record = read(path, int(offset))
        try:
            first_step = int(start) if start else record.current + 1 - self.num_history
            window = _window(record, first_step, self.num_history)
            scene_id = record.scenario_id
            if not (scene_id.isprintable() and 0 < len(scene_id) <= MAX_ID_LENGTH):
                raise SceneError(f"scenario_id: {scene_id[:40]!r}, expected a name")
            if start:
                scene_id = f"{scene_id}-{start}"
            return self._scene(window, scene_id, split, path)
        except SceneError as error:
            reason = str(error)
            if not reason.startswith((f"{path}", "scene ")):
                reason = f"{path}: record at byte {offset}: {reason}"
            raise SceneError(one_line(reason)) from error

    def _scene(self, window: "_Window", scene_id: str, split: str, path: Path) -> Scene:
        """The scene of a window of H + F or H steps."""
        last = self.num_history - 1
        is_present = window.valid[:, last]
        role = self._roles(window, is_present)
        position = window.position[..., :2]
        center = position[main_agent(role, window.is_ego, is_present), last]
        is_important = is_present & (window.is_ego | (role > AgentRole.CONTEXT))
        lanes = vector_map(window.record)
        lanes = lanes.near(position[is_important, last], self.map_radius_m, path)

        agent_id = [str(number) for number in window.track_id]
        for ego in np.flatnonzero(window.is_ego & (role == AgentRole.CONTEXT)):
            agent_id[ego] = EGO_ID  # a scored one keeps its number, which submissions need
        agents = Agents(
            agent_id=agent_id,
            kind=window.kind,
            role=role,
            position=position,
            heading=wrap(window.heading),
            velocity=window.velocity,
            valid=window.valid,
        )
        name = (scene_id, self.name, split, "")
        clock = (PERIOD_S, self.num_history, NUM_FUTURE)
        scene = agents.scene(name, clock, center, lanes)
        check_recorded(scene, heading=True, velocity=True, where=path)
        size = size_at_present(window.size[..., :2], window.valid, self.num_history)
        light_lane, light_state = _lights(window)
        return with_lights(replace(scene, agent_size=size), lanes, light_lane, light_state)

    def _roles(self, window: "_Window", is_present: np.ndarray) -> np.ndarray:
        """AgentRole uint8 [A]; `is_present` is bool [A], True in the last observed step."""
        record = window.record
        if self.scored == "all":
            chosen = np.isin(window.kind, _ROAD_USERS) & ~window.is_ego
        elif self.scored == "interest":
            chosen = np.isin(window.track_id, record.interest)
        else:
            is_listed = np.zeros(len(record.track_id), bool)
            is_listed[[track for track, _ in record.predict]] = True
            chosen = is_listed[window.track]
        chosen &= is_present
        role = AgentRole.FOCAL if np.count_nonzero(chosen) == 1 else AgentRole.SCORED
        return np.where(chosen, role, AgentRole.CONTEXT).astype(np.uint8)


class _Window(NamedTuple):
    """Some steps of a record, with the A agents that are observed; T steps."""

    record: Record
    steps: slice
    track: np.ndarray  # int64 [A], index in the record
    track_id: list[int]
    kind: np.ndarray  # uint8 [A], AgentKind
    is_ego: np.ndarray  # bool [A]
    position: np.ndarray  # float64 [A, T, 3], metres
    size: np.ndarray  # float32 [A, T, 3], metres
    heading: np.ndarray  # float32 [A, T], radians
    velocity: np.ndarray  # float32 [A, T, 2], m/s
    valid: np.ndarray  # bool [A, T]


def _window(record: Record, start: int, num_history: int) -> _Window:
    """H + F steps of a record from a step on, or H steps at its end (SceneError: it is shorter)."""
    num_steps = len(record.time)
    end = start + num_history + NUM_FUTURE
    if num_steps - start == num_history:  # a testing split
        end = num_steps
    if start < 0 or end > num_steps:
        remedy = ""
        if num_steps > num_history + NUM_FUTURE:  # a record of 20 s; its present may be 0
            remedy = ": cut long records into windows with --window-s"
        raise SceneError(
            f"timestamps_seconds: {num_steps} steps, a scene has {num_history} up to the present "
            f"(current_time_index {record.current}) and {NUM_FUTURE} after it{remedy}"
        )
    steps = slice(start, end)
    _check_clock(record.time[steps])
    if not -1 <= record.ego < len(record.track_id):
        raise SceneError(f"sdc_track_index: {record.ego}, there are {len(record.track_id)} tracks")
    for index, _ in record.predict:
        if not 0 <= index < len(record.track_id):
            problem = f"track_index {index}, there are {len(record.track_id)} tracks"
            raise SceneError(f"tracks_to_predict: {problem}")

    # No model and no metric uses an agent that is first seen in the future.
    valid = _usable(record, steps)
    track = np.flatnonzero(valid[:, :num_history].any(1))
    if not len(track):
        raise SceneError(f"tracks: states: no agent is seen in the {num_history} observed steps")
    valid = valid[track]
    values = [getattr(record, name)[track, steps] for name in _LIMITS]
    unusable = record.valid[track, steps] & ~valid  # states that are not valid are zero
    if unusable.any():
        for value in values:
            value[unusable] = 0
    position, size, heading, velocity = values
    track_type = np.minimum(record.track_type[track], len(_KINDS) - 1)
    return _Window(
        record=record,
        steps=steps,
        track=track,
        track_id=[record.track_id[index] for index in track.tolist()],
        kind=_KINDS[track_type],
        is_ego=track == record.ego,
        position=position,
        size=size,
        heading=heading,
        velocity=velocity,
        valid=valid,
    )


def _check_clock(time: np.ndarray) -> None:
    """SceneError unless the timestamps are 0.1 s apart."""
    step = np.diff(time)
    error = np.abs(step - PERIOD_S).max()
    drift = (time[-1] - time[0]) / (len(time) - 1) / PERIOD_S - 1.0
    if not (error <= CLOCK_TOLERANCE * PERIOD_S and abs(drift) < 0.01):
        between = f"{step.min():g} to {step.max():g} s between steps"
        raise SceneError(f"timestamps_seconds: {between}, expected {PERIOD_S:g} s")


def _usable(record: Record, steps: slice) -> np.ndarray:
    """The valid states with usable numbers, bool [A, T] (SceneError: many are unusable)."""
    valid = record.valid[:, steps]
    for name, limit in _LIMITS.items():
        values = getattr(record, name)[:, steps]
        if np.abs(values).max(initial=0.0) <= limit:  # not for NaN
            continue
        is_wrong = ~(np.abs(values) <= limit)
        is_wrong = is_wrong.reshape(*valid.shape, -1).any(-1) & valid
        count = np.count_nonzero(is_wrong)
        if count > MAX_UNUSABLE * np.count_nonzero(valid):
            raise SceneError(f"tracks: states: {name}: {count} are NaN or over {limit:g}")
        valid = valid & ~is_wrong
    return valid


def _lights(window: _Window) -> tuple[list[int], np.ndarray]:
    """Id of the lane of each of N traffic lights, and LightState uint8 [N, T]."""
    record = window.record
    num_steps = window.valid.shape[1]
    step = record.light_step - window.steps.start
    is_inside = (step >= 0) & (step < num_steps)
    lane, light = np.unique(record.light_lane[is_inside], return_inverse=True)
    state = np.zeros((len(lane), num_steps), np.uint8)
    known = np.where(record.light_state < len(_LIGHTS), record.light_state, 0)
    state[light, step[is_inside]] = _LIGHTS[known[is_inside]]
    return lane.tolist(), state
