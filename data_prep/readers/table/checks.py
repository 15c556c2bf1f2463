"""A check of the clock of a table; `data_prep.plausibility` checks its motion and its lanes."""

import numpy as np

from data_prep.readers.table.clock import MAX_OFF_GRID
from data_prep.readers.table.clock_problems import UNITS
from trajformer.errors import SceneError


def check_clock(step: np.ndarray, timestamp: np.ndarray, period_s: float) -> None:
    """SceneError if timestamps next to steps have another period than `period_s`, in every unit."""
    known = np.flatnonzero(np.isfinite(timestamp))
    if not len(known):
        return
    first = known[0]
    last = known[-1]
    num_steps = step[last] - step[first]
    if num_steps <= 0:
        return
    apart = (timestamp[last] - timestamp[first]) / num_steps
    if apart <= 0:
        return
    for unit in UNITS.values():
        if abs(apart / (unit * period_s) - 1) < MAX_OFF_GRID:
            return
    raise SceneError(
        f"timestamp: {apart:.4g} apart from step to step, expected {period_s:g} s; "
        "--period-s and --step-interval set the clock, or remove the column"
    )
