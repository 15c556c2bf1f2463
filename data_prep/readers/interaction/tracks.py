"""Rows of INTERACTION csv files, recordings or cases, and the tracks in a part of a file."""

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

PERIOD_S, PERIOD_MS = 0.1, 100
RECORDING = "vehicle_tracks_"  # start of the name of a recording
MAX_BYTES, MAX_ROWS = 1 << 30, 20_000_000  # about ten times the largest file
MAX_BOX_M = 100.0  # length or width of a vehicle
_FRAME_BITS = 30
_KINDS = {
    "car": AgentKind.VEHICLE,
    "truck": AgentKind.VEHICLE,
    "bus": AgentKind.BUS,
    "motorcycle": AgentKind.MOTORCYCLIST,
    "bicycle": AgentKind.CYCLIST,
    "pedestrian": AgentKind.PEDESTRIAN,
    "pedestrian/bicycle": AgentKind.PEDESTRIAN,
}
_WITHOUT_BOX = (AgentKind.PEDESTRIAN, AgentKind.CYCLIST)  # no heading and no size are recorded
_COUNTS = {"frame_id": 1e9, "timestamp_ms": 1e12}  # largest absolute values
_MOTION = {"x": MAX_ORIGIN_M, "y": MAX_ORIGIN_M, "vx": MAX_SPEED_M_S, "vy": MAX_SPEED_M_S}
_BOX = {"psi_rad": 7.0, "length": MAX_BOX_M, "width": MAX_BOX_M}
_TEXT = ("track_id", "agent_type")


class Tracks(NamedTuple):
    """A agents over T steps; invalid entries are zero."""

    agent_id: list[str]
    kind: np.ndarray  # uint8 [A], AgentKind
    is_vehicle: np.ndarray  # bool [A]: has a recorded heading and size
    size: np.ndarray  # float64 [A, 2], length and width in metres, NaN if not recorded
    valid: np.ndarray  # bool [A, T]
    position: np.ndarray  # float64 [A, T, 2], metres in the frame of the location
    velocity: np.ndarray  # float64 [A, T, 2], metres per second
    heading: np.ndarray  # float64 [A, T], radians, NaN if not recorded


@dataclass(frozen=True, eq=False)
class Rows:
    """The R rows of a file by case and frame; in a recording, all cases are 0."""

    has_cases: bool
    agent_id: list[str]
    time: np.ndarray  # int64 [R], ascending: case * 2^30 + frame
    agent: np.ndarray  # int64 [R], index into `agent_id`
    kind: np.ndarray  # uint8 [R]
    motion: np.ndarray  # float64 [R, 4]: x, y, vx, vy
    box: np.ndarray  # float64 [R, 3]: heading, length, width; NaN for pedestrians and cyclists

    def parts(self, num_history: int, num_future: int, stride: int) -> list[int]:
        """Numbers of the cases; or first frames of windows, `stride` apart, with a vehicle in the last observed and last step."""
        if self.has_cases:
            return np.unique(self.time >> _FRAME_BITS).tolist()
        vehicle = ~np.isin(self.kind, _WITHOUT_BOX)
        count = len(self.agent_id)
        key = self.time[vehicle] * count + self.agent[vehicle]
        start = np.unique(self.time[vehicle][np.isin(key + num_future * count, key)]) - (
            num_history - 1
        )
        start = start[start >= self.time[0]]
        return start[(start - self.time[0]) % stride == 0].tolist()

    def tracks(self, item: Input, num_steps: int) -> Tracks:
        """The tracks of a case, or of the window that begins with a frame; SceneError if a case has another length."""
        first = int(item.part) << _FRAME_BITS if self.has_cases else int(item.part)
        begin, end = np.searchsorted(
            self.time, (first, first + ((1 << _FRAME_BITS) if self.has_cases else num_steps))
        )
        if self.has_cases:
            frames = np.unique(self.time[begin:end])
            if len(frames) != num_steps or frames[-1] - frames[0] != num_steps - 1:
                problem = f"{len(frames)} steps, expected {num_steps} consecutive ones; get the complete case"
                raise SceneError(f"{item}: frame_id: {problem}")
            first = frames[0]
        index, row, agent = np.unique(self.agent[begin:end], return_index=True, return_inverse=True)
        agent_id = [self.agent_id[i] for i in index.tolist()]
        cell, valid = columns.cells(
            agent_id, agent, self.time[begin:end] - first, num_steps, f"{item}: track_id"
        )
        motion, box, kind = self.motion[begin:end], self.box[begin:end], self.kind[begin:end][row]
        position, velocity = (
            columns.fill(valid, cell, motion[:, axes]) for axes in (slice(2), slice(2, 4))
        )
        heading = columns.fill(valid, cell, box[:, 0])
        return Tracks(
            agent_id,
            kind,
            ~np.isin(kind, _WITHOUT_BOX),
            box[row, 1:],
            valid,
            position,
            velocity,
            heading,
        )


def read_rows(path: Path) -> Rows:
    """Rows of a file, cached until it changes; a recording with its `pedestrian_tracks_<n>.csv` (SceneError: file and column)."""
    pedestrians = path.with_name(path.name.replace("vehicle", "pedestrian", 1))
    is_recording = path.name.startswith(RECORDING)
    return _parse(path, pedestrians if is_recording and pedestrians.exists() else None)


@cached_by_file(2)  # all parts of a file are read in sequence
def _parse(path: Path, pedestrians: Path | None) -> Rows:
    has_cases = not path.name.startswith(RECORDING)
    counts = ({"case_id": 1e9} if has_cases else {}) | _COUNTS
    table = columns.read_csv(path, (*counts, *_MOTION), _TEXT, MAX_BYTES, optional=_BOX)
    if pedestrians is not None:
        walkers = columns.read_csv(pedestrians, (*counts, *_MOTION), _TEXT, MAX_BYTES)
        table = pa.concat_tables([table, walkers], promote_options="default").unify_dictionaries()
    columns.check_count(len(table), MAX_ROWS, "rows", path)
    number = columns.numbers_within(table, counts | _MOTION, path)
    whole = {n: columns.whole_numbers(number[n], int(counts[n]), f"{path}: {n}") for n in counts}
    time = whole["frame_id"] + (whole["case_id"] << _FRAME_BITS if has_cases else 0)
    _check_clock(whole["timestamp_ms"], whole["frame_id"], time, path)
    agent_id, _, agent = columns.groups(table["track_id"])
    types, _, of_type = columns.groups(table["agent_type"])
    kind = np.array(columns.translate(types, _KINDS, "agent_type", path), np.uint8)[of_type]
    has_box = ~np.isin(kind, _WITHOUT_BOX)
    box = np.stack([columns.array(table[name].fill_null(np.nan)) for name in _BOX], -1)
    for column, (name, limit) in enumerate(_BOX.items()):
        if (wrong := has_box & ~(np.abs(box[:, column]) <= limit)).any():
            value, owner = box[wrong, column][0], agent_id[agent[wrong][0]]
            raise SceneError(
                f"{path}: {name}: {value:g} of vehicle {owner[:40]!r}, expected a number up to {limit:g}"
            )
    box[~has_box] = np.nan
    order = np.argsort(time, kind="stable")
    motion = np.stack([number[name] for name in _MOTION], -1)
    return Rows(
        has_cases, agent_id, time[order], agent[order], kind[order], motion[order], box[order]
    )


def _check_clock(timestamp: np.ndarray, frame: np.ndarray, time: np.ndarray, path: Path) -> None:
    """SceneError unless frames are 100 ms apart, and most frames are recorded."""
    offset = timestamp - PERIOD_MS * frame
    remedy = f"expected {PERIOD_MS} (10 Hz); resample the file"
    if np.ptp(offset) > PERIOD_MS // 2:
        period = np.ptp(timestamp) / max(np.ptp(frame), 1)
        raise SceneError(f"{path}: timestamp_ms: {period:g} ms from frame to frame, {remedy}")
    gaps = np.diff(np.unique(time))
    if len(gaps) and (typical := np.median(gaps)) != 1:
        raise SceneError(
            f"{path}: frame_id: most steps are {PERIOD_MS * typical:g} ms long, {remedy}"
        )
