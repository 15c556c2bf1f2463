"""Estimates of velocity and heading from all rows of a file, for the windows cut from it."""

from typing import NamedTuple

import numpy as np

from data_prep.readers.table.windows import Scenes
from trajformer.scenes.kinematics import Motion, estimate_without_outliers

MAX_COORDINATE_M = 1e8


class RowEstimates(NamedTuple):
    """Estimates for n rows of a table, each from this row and earlier ones of its recording.

    Attributes:
        motion: velocity [n, 2], heading [n] and length [n].
        first_step: the first step of the track in the recording, int64 [n].
    """

    motion: Motion
    first_step: np.ndarray

    def take(self, rows: np.ndarray) -> "RowEstimates":
        """Some rows."""
        motion = Motion(*(values[rows] for values in self.motion))
        return RowEstimates(motion, self.first_step[rows])


def estimate_scenes(scenes: Scenes, period_s: float) -> RowEstimates:
    """Estimates for all rows of a file.

    The first of two rows for a step is used. Estimates are zero for a row without a usable
    position, which makes an error of its own windows only.
    """
    track = scenes.columns.code["track_id"]
    position = np.stack([scenes.columns.number["x"], scenes.columns.number["y"]], -1)
    is_usable = (np.abs(position) <= MAX_COORDINATE_M).all(1)  # NaN is not
    rows = np.flatnonzero(is_usable)
    rows = rows[np.lexsort((scenes.step[rows], track[rows], scenes.recording[rows]))]

    keys = np.stack([scenes.recording, track, scenes.step])[:, rows]
    is_other_track = np.ones(len(rows), bool)
    is_other_track[1:] = (np.diff(keys[:2]) != 0).any(0)
    is_first_of_step = is_other_track.copy()
    is_first_of_step[1:] |= np.diff(keys[2]) != 0
    rows = rows[is_first_of_step]
    is_other_track = is_other_track[is_first_of_step]

    track_number = is_other_track.cumsum()
    tracks = (track_number, scenes.step[rows], position[rows])
    motion = estimate_without_outliers(*tracks, period_s)
    first_steps = scenes.step[rows[is_other_track]]
    values = (*motion, first_steps[track_number - 1])
    full = []
    for value in values:
        of_rows = np.zeros((len(track), *value.shape[1:]), value.dtype)
        of_rows[rows] = value
        full.append(of_rows)
    return RowEstimates(Motion(*full[:3]), full[3])
