"""Recordings in one scene of a table whose times overlap: a clock set back, a counter restarted."""

import numpy as np

MIXED = -1  # number of recordings that cannot be told apart
_BACK = 0.5  # of a period: a smaller step back in time is jitter
_MAX_PARTS = 20  # of a table in order of time; more times back mean another order of rows
_MAX_UNORDERED = 0.01  # of the rows may be earlier than the row before


def recordings(
    scene: np.ndarray, track: np.ndarray, time: np.ndarray, position: np.ndarray, min_steps: int
) -> np.ndarray:
    """Number of the recording of each row within its scene, int64 [n], from 0.

    If a clock is set back or a counter of steps restarts, the times of a track are repeated with
    other positions. In a table in order of time, the rows from there on are another recording, if
    each has at least `min_steps` steps. In another order the recordings are MIXED.

    Args:
        scene: scene of each row in the order of the file, int64 [n].
        track: its track, int64 [n].
        time: float64 [n] in periods, NaN if unknown.
        position: float64 [n, 2].
        min_steps: steps of a usable recording.
    """
    number = np.zeros(len(time), np.int64)
    by_track = np.lexsort((track, scene))  # keeps the order of the rows of a track
    is_same = (np.diff(track[by_track]) == 0) & (np.diff(scene[by_track]) == 0)
    goes_back = is_same & (np.diff(time[by_track]) < -_BACK)
    count = int(goes_back.sum())
    if count == 0 or count > max(_MAX_PARTS, _MAX_UNORDERED * len(time)):
        return number
    for code in np.unique(scene[by_track[1:][goes_back]]).tolist():
        rows = np.flatnonzero((scene == code) & np.isfinite(time))
        moment = _moments(track[rows], time[rows])
        keys = np.stack([track[rows], moment], -1)
        number[rows] = _number(keys, time[rows], position[rows], min_steps)
    return number


def _moments(track: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Times [n] as whole numbers int64 [n] that are equal if they are closer than half a step."""
    order = np.lexsort((time, track))
    gap = np.diff(time[order])[np.diff(track[order]) == 0]
    gap = gap[gap > 1e-3]
    interval = 1.0
    if len(gap):
        interval = min(1.0, float(np.median(gap)))
    return np.rint(time / interval).astype(np.int64)


def _number(
    keys: np.ndarray, time: np.ndarray, position: np.ndarray, min_steps: int
) -> np.ndarray | int:
    """Number of the recording of the n rows of a scene, from track and moment `keys` [n, 2]."""
    num_repeated = _count_repeated(keys, position)
    if num_repeated == 0:
        return 0
    starts = np.flatnonzero(np.diff(time) < -_BACK) + 1
    if len(starts) > _MAX_PARTS:
        return MIXED if num_repeated >= min_steps else 0

    number = np.zeros(len(time), np.int64)
    ends = np.append(starts[1:], len(time))
    current = 0  # first row of the present recording
    num_others = 0  # parts that repeat nothing: rows are in another order
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = slice(current, end)
        is_long = min(np.ptp(time[current:start]), np.ptp(time[start:end])) >= min_steps - 1
        num_within = _count_repeated(keys[current:start], position[current:start])
        num_after = _count_repeated(keys[rows], position[rows])
        if is_long and num_after > num_within:
            number[start:] += 1
            current = start
        else:
            num_others += 1
    if number[-1] > 0 and num_others > 0:
        return MIXED
    return number


def _count_repeated(keys: np.ndarray, position: np.ndarray) -> int:
    """Rows with the keys [n, 2] of another row and another position [n, 2]."""
    order = np.lexsort(keys.T)
    is_same = (np.diff(keys[order], axis=0) == 0).all(1)
    moved = (np.diff(position[order], axis=0) != 0).any(1)
    return int((is_same & moved).sum())
