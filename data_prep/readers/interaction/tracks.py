"""Rows of INTERACTION csv files, recordings or cases, and the tracks in a part of a file."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from data_prep.reader import Input
from data_prep.readers import columns
from data_prep.readers.row_check import MAX_UNUSABLE, RowCheck
from trajformer.errors import SceneError
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import MAX_ORIGIN_M, MAX_SPEED_M_S, AgentKind

PERIOD_S = 0.1
PERIOD_MS = 100
RECORDING = "vehicle_tracks_"  # start of the name of a recording
PEDESTRIANS = "pedestrian_tracks_"  # of the pedestrians and cyclists of a recording
MAX_BYTES = 1 << 30  # about ten times the largest file, as the next one
MAX_ROWS = 20_000_000
MAX_BOX_M = 100.0  # length or width of a vehicle
MAX_DRIFT = 0.01  # of the period of the timestamps; velocities are recorded
_MAX_SHIFT_MS = PERIOD_MS // 2  # between frames; more is a pause
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
    breaks: np.ndarray  # int64 [n], ascending: times before which the clock paused
    problems: dict[int, str]  # of cases that cannot be used, by number

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
        first = first[(first - begin) % stride == 0]
        # No window reaches over a pause of the clock.
        last = first + num_history + num_future - 1
        stretch = np.searchsorted(self.breaks, first, "right")
        return first[stretch == np.searchsorted(self.breaks, last, "right")].tolist()

    def window(self, item: Input, num_steps: int) -> WindowTracks:
        """The tracks of a case, or of the window that begins with a frame.

        SceneError if a case has another length.
        """
        if self.has_cases:
            problem = self.problems.get(int(item.part))
            if problem:
                raise SceneError(f"{item}: {problem}")
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
    """The agents (index) with rows of two kinds in one step, or with and without a box.

    They are two agents with one id: vehicles and pedestrians are numbered separately. All arrays
    are [n].
    """
    key = agent * num_steps + step
    order = np.lexsort((kind, key))
    is_shared = (np.diff(key[order]) == 0) & (np.diff(kind[order].astype(int)) != 0)
    in_one_step = agent[order][1:][is_shared]
    has_box = ~np.isin(kind, _WITHOUT_BOX)
    return np.union1d(in_one_step, np.intersect1d(agent[has_box], agent[~has_box]))


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
    """First time of the rows of a case.

    SceneError unless it has `num_steps` frames, of which a few in between may have no row.
    """
    frames = np.unique(time)
    is_complete = frames[-1] - frames[0] == num_steps - 1
    if not is_complete or len(frames) < (1 - MAX_UNUSABLE) * num_steps:
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
    table, num_lost = columns.read_csv(path, names, _TEXT, MAX_BYTES, optional=_BOX)
    if pedestrians is not None:
        walkers, num_walkers_lost = columns.read_csv(pedestrians, names, _TEXT, MAX_BYTES)
        num_lost += num_walkers_lost
        table = pa.concat_tables([table, walkers], promote_options="default").unify_dictionaries()
    columns.check_count(len(table), MAX_ROWS, "rows", path)

    check = RowCheck(path, len(table))
    check.lose(num_lost, "another number of cells than the header")
    text = columns.usable_text(table, _TEXT, check)
    number = columns.usable_numbers(table, counts | _MOTION, check)
    whole = {}
    for name, limit in counts.items():
        whole[name] = columns.usable_whole_numbers(number[name], int(limit), name, check)
    time = whole["frame_id"]
    part = np.zeros(len(table), np.int64)
    if has_cases:
        part = whole["case_id"]
        time = time + (part << _FRAME_BITS)
    breaks = _check_clock(whole["timestamp_ms"], whole["frame_id"], time, check, path)

    agent_id, agent = columns.stripped_groups(text["track_id"])
    _, track = np.unique(part * len(agent_id) + agent, return_inverse=True)  # ids are of a case
    kind = _kinds(text["agent_type"], track, check, path)
    box = np.stack([columns.with_nan(table[name]) for name in _BOX], -1)
    has_box = ~np.isin(kind, _WITHOUT_BOX)
    for column, (name, limit) in enumerate(_BOX.items()):
        columns.drop_numbers(np.where(has_box, box[:, column], 0.0), name, limit, check)
    box[~has_box] = np.nan
    motion = np.stack([number[name] for name in _MOTION], -1)
    check.drop_repeated(
        np.stack([time, agent, kind.astype(np.int64)]),
        np.concatenate([motion, np.nan_to_num(box)], 1),
        "track_id: twice in a frame",
        lambda row: (
            f"track_id: {agent_id[agent[row]][:40]!r} is twice in frame {whole['frame_id'][row]}"
        ),
    )

    problems: dict[int, str] = {}
    if has_cases:
        usable, problems = check.finish_parts(part)
        problems = _paused_cases(breaks) | problems
    else:
        usable = check.finish()
    rows = np.flatnonzero(usable)
    order = rows[np.argsort(time[rows], kind="stable")]
    return TrackFile(
        has_cases=has_cases,
        agent_id=agent_id,
        time=time[order],
        agent=agent[order],
        kind=kind[order],
        motion=motion[order],
        box=box[order],
        breaks=breaks,
        problems=problems,
    )


def _kinds(types: pa.ChunkedArray, track: np.ndarray, check: RowCheck, path: Path) -> np.ndarray:
    """AgentKind uint8 [R] of the rows; rows with another type than most of their track are dropped.

    `track` is int64 [R]. If a track has many rows of two types, two agents share its id.
    """
    words, _, row_type = columns.groups(types)
    word_kinds = np.array(columns.translate_types(words, _KINDS, "agent_type", path), np.uint8)
    kind = word_kinds[row_type]
    key = track * len(AgentKind) + kind
    count = np.bincount(key, minlength=(int(track.max()) + 1) * len(AgentKind))
    total = count.reshape(-1, len(AgentKind)).sum(1)
    is_rare = count[key] <= MAX_UNUSABLE * total[track]
    check.drop(
        is_rare,
        "agent_type: another type than most rows of the track",
        lambda row: f"agent_type: {words[row_type[row]][:40]!r}, most rows of the track differ",
    )
    return kind


def _paused_cases(breaks: np.ndarray) -> dict[int, str]:
    """The problems of the cases in which the clock paused."""
    problem = "timestamp_ms: the clock pauses within the case; get the complete case"
    return dict.fromkeys((breaks >> _FRAME_BITS).tolist(), problem)


def _check_clock(
    timestamp: np.ndarray, frame: np.ndarray, time: np.ndarray, check: RowCheck, path: Path
) -> np.ndarray:
    """Drop rows with a wrong timestamp, and return the times before which the clock paused.

    All arrays are int64 [R]. SceneError unless frames are 100 ms apart, and most are recorded.
    """
    rows = np.flatnonzero(check.is_usable)
    if not len(rows):
        check.finish()
        return np.zeros(0, np.int64)
    offset = timestamp - PERIOD_MS * frame  # constant for a clock without pauses
    times, number = np.unique(time[rows], return_inverse=True)
    remedy = f"expected {PERIOD_MS} (10 Hz); resample the file"
    gaps = np.diff(times)
    if len(gaps):
        typical_ms = PERIOD_MS * np.median(gaps)
        if typical_ms != PERIOD_MS:
            raise SceneError(f"{path}: frame_id: most steps are {typical_ms:g} ms long, {remedy}")

    # The offset of a frame is the middle one of its rows.
    order = np.lexsort((offset[rows], number))
    count = np.bincount(number)
    middle = np.cumsum(count) - count + (count - 1) // 2
    frame_offset = offset[rows][order][middle]
    is_joined = np.diff(times >> _FRAME_BITS) == 0  # to the next frame
    if is_joined.any():
        period = PERIOD_MS + float(np.median((np.diff(frame_offset) / gaps)[is_joined]))
        if abs(period - PERIOD_MS) > MAX_DRIFT * PERIOD_MS:
            raise SceneError(f"{path}: timestamp_ms: {period:g} ms from frame to frame, {remedy}")
    is_isolated = _is_isolated(frame_offset, is_joined)
    row_offset = frame_offset[number]
    is_wrong = np.zeros(len(time), bool)
    is_wrong[rows] = (np.abs(offset[rows] - row_offset) > _MAX_SHIFT_MS) | is_isolated[number]
    check.drop(
        is_wrong,
        "timestamp_ms: differs from the other rows of the frame and from other frames",
        lambda row: f"timestamp_ms: {timestamp[row]} in frame {frame[row]}, {remedy}",
    )

    known = np.flatnonzero(~is_isolated)
    leap = np.abs(np.diff(frame_offset[known])) > _MAX_SHIFT_MS
    leap &= np.diff(times[known] >> _FRAME_BITS) == 0
    return times[known][1:][leap]


def _is_isolated(offset: np.ndarray, is_joined: np.ndarray) -> np.ndarray:
    """Whether the offset of a frame differs from its neighbors, which agree; bool [n].

    `offset` is int64 [n] in ms, `is_joined` bool [n - 1]. A first or last frame is compared with
    the two frames next to it.
    """
    is_isolated = np.zeros(len(offset), bool)
    if len(offset) < 3:
        return is_isolated
    differs = (np.abs(np.diff(offset)) > _MAX_SHIFT_MS) & is_joined
    agrees = ~differs & is_joined
    skips = np.abs(offset[2:] - offset[:-2]) <= _MAX_SHIFT_MS
    is_isolated[1:-1] = differs[:-1] & differs[1:] & skips
    begins = np.append(True, ~is_joined[:-1])[:-1]  # a part, at each frame but the last two
    is_isolated[:-2] |= begins & differs[:-1] & agrees[1:]
    ends = np.append(~is_joined[1:], True)[1:]  # at each frame but the first two
    is_isolated[2:] |= ends & differs[1:] & agrees[:-1]
    return is_isolated
