"""Rows of INTERACTION csv files, recordings or cases, and the tracks in a part of a file."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from data_prep.reader import Input
from data_prep.readers import columns
from data_prep.readers.raw_file import cached_by_file
from trajformer.errors import SceneError
from trajformer.scenes.scene import MAX_ORIGIN_M, MAX_SPEED_M_S, AgentKind

PERIOD_S = 0.1
PERIOD_MS = 100
RECORDING = "vehicle_tracks_"  # start of the name of a recording
PEDESTRIANS = "pedestrian_tracks_"  # of the pedestrians and cyclists of a recording
MAX_BYTES = 1 << 30  # about ten times the largest file, as the next one
MAX_ROWS = 20_000_000
MAX_BOX_M = 100.0  # length or width of a vehicle
_FRAME_BITS = 30
_FRAMES_PER_CASE = 1 << _FRAME_BITS  # frames of all cases on one axis, see `TrackFile.time`
_KINDS = {
    "car": AgentKind.VEHICLE,
    "truck": AgentKind.VEHICLE,
    "bus": AgentKind.BUS,
    "motorcycle": AgentKind.MOTORCYCLIST,
    "bicycle": AgentKind.CYCLIST,
    "pedestrian": AgentKind.PEDESTRIAN,
    "pedestrian/bicycle": AgentKind.PEDESTRIAN,
}
# No heading and no size are recorded. The class of unknown types may have none either.
_WITHOUT_BOX = (AgentKind.PEDESTRIAN, AgentKind.CYCLIST, AgentKind.UNKNOWN)
_COUNTS = {"frame_id": 1e9, "timestamp_ms": 1e12}  # largest absolute values
_MOTION = {"x": MAX_ORIGIN_M, "y": MAX_ORIGIN_M, "vx": MAX_SPEED_M_S, "vy": MAX_SPEED_M_S}
_BOX = {"psi_rad": 7.0, "length": MAX_BOX_M, "width": MAX_BOX_M}
_TEXT = ("track_id", "agent_type")


class WindowTracks(NamedTuple):
    """A agents over the T steps of a case or of a window of a recording; invalid entries are 0."""

    agent_id: list[str]
    kind: np.ndarray  # uint8 [A], AgentKind
    is_vehicle: np.ndarray  # bool [A]: has a recorded heading and size
    size: np.ndarray  # float64 [A, 2], length and width in metres, NaN if not recorded
    valid: np.ndarray  # bool [A, T]
    position: np.ndarray  # float64 [A, T, 2], metres in the frame of the location
    velocity: np.ndarray  # float64 [A, T, 2], metres per second
    heading: np.ndarray  # float64 [A, T], radians, NaN if not recorded


@dataclass(frozen=True, eq=False)
class TrackFile:
    """The R rows of a file by case and frame; in a recording, all cases are 0."""

    has_cases: bool
    agent_id: list[str]
    time: np.ndarray  # int64 [R], ascending: case * 2^30 + frame
    agent: np.ndarray  # int64 [R], index into `agent_id`
    kind: np.ndarray  # uint8 [R]
    motion: np.ndarray  # float64 [R, 4]: x, y, vx, vy
    box: np.ndarray  # float64 [R, 3]: heading, length, width; NaN for pedestrians and cyclists

    def parts(self, num_history: int, num_future: int, stride: int) -> list[int]:
        """Numbers of the cases, or first frames of the windows of a recording.

        Windows are `stride` apart and have a vehicle in the last observed and in the last step.
        """
        if self.has_cases:
            return np.unique(self.time >> _FRAME_BITS).tolist()
        is_vehicle = ~np.isin(self.kind, _WITHOUT_BOX)
        time = self.time[is_vehicle]
        num_agents = len(self.agent_id)
        key = time * num_agents + self.agent[is_vehicle]  # one number for each agent and frame
        in_last_step = np.isin(key + num_future * num_agents, key)
        last_observed = np.unique(time[in_last_step])
        begin = self.time[0]
        first = last_observed - (num_history - 1)
        first = first[first >= begin]
        return first[(first - begin) % stride == 0].tolist()

    def window(self, item: Input, num_steps: int) -> WindowTracks:
        """The tracks of a case, or of the window that begins with a frame.

        SceneError if a case has another length.
        """
        if self.has_cases:
            start = int(item.part) << _FRAME_BITS
            rows = columns.rows_between(self.time, start, start + _FRAMES_PER_CASE)
            first = _first_of_case(self.time[rows], num_steps, item)
        else:
            first = int(item.part)
            rows = columns.rows_between(self.time, first, first + num_steps)
        present, first_row, agent = np.unique(
            self.agent[rows], return_index=True, return_inverse=True
        )
        agent_id = [self.agent_id[index] for index in present.tolist()]
        step = self.time[rows] - first
        shared = _shared_ids(agent, step, num_steps, self.kind[rows])
        if len(shared):
            agent_id, agent, first_row = _split_by_kind(agent_id, agent, self.kind[rows], shared)
        cell, valid = columns.cells(agent_id, agent, step, num_steps, f"{item}: track_id")
        motion = self.motion[rows]
        box = self.box[rows]
        kind = self.kind[rows][first_row]
        return WindowTracks(
            agent_id=agent_id,
            kind=kind,
            is_vehicle=~np.isin(kind, _WITHOUT_BOX),
            size=box[first_row, 1:],
            valid=valid,
            position=columns.fill(valid, cell, motion[:, :2]),
            velocity=columns.fill(valid, cell, motion[:, 2:]),
            heading=columns.fill(valid, cell, box[:, 0]),
        )


def _shared_ids(
    agent: np.ndarray, step: np.ndarray, num_steps: int, kind: np.ndarray
) -> np.ndarray:
    """The agents (index) with rows of two kinds in one step: two agents with one id.

    Vehicles and pedestrians are numbered separately. All arrays are [n].
    """
    key = agent * num_steps + step
    order = np.lexsort((kind, key))
    is_shared = (np.diff(key[order]) == 0) & (np.diff(kind[order].astype(int)) != 0)
    return np.unique(agent[order][1:][is_shared])


def _split_by_kind(
    agent_id: list[str], agent: np.ndarray, kind: np.ndarray, shared: np.ndarray
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Ids, agent [n] and first row of each agent, with an agent for each kind of a shared id.

    Their ids end in the kind, such as 7-vehicle and 7-pedestrian.
    """
    is_shared = np.isin(agent, shared)
    key = agent * (len(AgentKind) + 1)
    key[is_shared] += 1 + kind[is_shared]
    keys, first_row, new_agent = np.unique(key, return_index=True, return_inverse=True)
    names = []
    for number in keys.tolist():
        old_agent, kind_number = divmod(number, len(AgentKind) + 1)
        name = agent_id[old_agent]
        if kind_number:
            name += f"-{AgentKind(kind_number - 1).name.lower()}"
        names.append(name)
    return names, new_agent, first_row


def _first_of_case(time: np.ndarray, num_steps: int, item: Input) -> int:
    """First time of the rows of a case; SceneError unless it has `num_steps` consecutive frames."""
    frames = np.unique(time)
    if len(frames) != num_steps or frames[-1] - frames[0] != num_steps - 1:
        expected = f"expected {num_steps} consecutive ones; get the complete case"
        raise SceneError(f"{item}: frame_id: {len(frames)} steps, {expected}")
    return int(frames[0])


def read_tracks(path: Path) -> TrackFile:
    """Rows of a file, cached until it changes; a SceneError names file and column.

    A recording `vehicle_tracks_<n>.csv` includes its `pedestrian_tracks_<n>.csv`.
    """
    if path.name.startswith(RECORDING):
        pedestrians = path.with_name(path.name.replace(RECORDING, PEDESTRIANS, 1))
        if os.path.lexists(pedestrians):  # also a link to a missing file
            return _parse(path, pedestrians)
    return _parse(path, None)


@cached_by_file(2)  # all parts of a file are read in sequence
def _parse(path: Path, pedestrians: Path | None) -> TrackFile:
    has_cases = not path.name.startswith(RECORDING)
    counts = dict(_COUNTS)
    if has_cases:
        counts = {"case_id": 1e9} | counts
    names = (*counts, *_MOTION)
    table = columns.read_csv(path, names, _TEXT, MAX_BYTES, optional=_BOX)
    if pedestrians is not None:
        walkers = columns.read_csv(pedestrians, names, _TEXT, MAX_BYTES)
        table = pa.concat_tables([table, walkers], promote_options="default").unify_dictionaries()
    columns.check_count(len(table), MAX_ROWS, "rows", path)

    number = columns.numbers_within(table, counts | _MOTION, path)
    whole = {}
    for name, limit in counts.items():
        whole[name] = columns.whole_numbers(number[name], int(limit), f"{path}: {name}")
    time = whole["frame_id"]
    if has_cases:
        time = time + (whole["case_id"] << _FRAME_BITS)
    _check_clock(whole["timestamp_ms"], whole["frame_id"], time, path)

    agent_id, agent = columns.stripped_groups(table["track_id"])
    types, _, row_type = columns.groups(table["agent_type"])
    kinds = columns.translate_types(types, _KINDS, "agent_type", path)
    kind = np.array(kinds, np.uint8)[row_type]
    has_box = ~np.isin(kind, _WITHOUT_BOX)
    box = np.stack([columns.array(table[name].fill_null(np.nan)) for name in _BOX], -1)
    for column, (name, limit) in enumerate(_BOX.items()):
        wrong = has_box & ~(np.abs(box[:, column]) <= limit)  # also NaN
        if wrong.any():
            row = wrong.argmax()
            vehicle = agent_id[agent[row]][:40]
            raise SceneError(
                f"{path}: {name}: {box[row, column]:g} of vehicle {vehicle!r}, "
                f"expected a number up to {limit:g}"
            )
    box[~has_box] = np.nan

    order = np.argsort(time, kind="stable")
    motion = np.stack([number[name] for name in _MOTION], -1)
    return TrackFile(
        has_cases=has_cases,
        agent_id=agent_id,
        time=time[order],
        agent=agent[order],
        kind=kind[order],
        motion=motion[order],
        box=box[order],
    )


def _check_clock(timestamp: np.ndarray, frame: np.ndarray, time: np.ndarray, path: Path) -> None:
    """SceneError unless frames are 100 ms apart, and most frames are recorded."""
    offset = timestamp - PERIOD_MS * frame
    remedy = f"expected {PERIOD_MS} (10 Hz); resample the file"
    if np.ptp(offset) > PERIOD_MS // 2:
        period = np.ptp(timestamp) / max(np.ptp(frame), 1)
        raise SceneError(f"{path}: timestamp_ms: {period:g} ms from frame to frame, {remedy}")
    gaps = np.diff(np.unique(time))
    if len(gaps):
        typical_ms = PERIOD_MS * np.median(gaps)
        if typical_ms != PERIOD_MS:
            raise SceneError(f"{path}: frame_id: most steps are {typical_ms:g} ms long, {remedy}")
