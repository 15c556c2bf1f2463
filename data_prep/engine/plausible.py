"""A check of the units of a scene, for all readers.

Values may be valid numbers and yet in millimetres or degrees.
"""

import numpy as np

from trajformer.errors import SceneError
from trajformer.scenes.scene import METRES, Scene

# Argoverse 1 has single positions that are far off: up to 1.7 % of the steps of a sequence are
# faster than 100 m/s, 1 % than 117.
MAX_SPEED_M_S = 150.0
MAX_FAST_FRACTION = 0.01  # of the steps that may be faster
MIN_EXTENT_M = 0.05  # of the positions of several agents; in ETH/UCY it is at least 0.4 m
_REMEDY = (
    "check the units of positions and times "
    "(--max-speed-m-s sets the limit, 0 switches this check off)"
)


def check_plausible(scene: Scene, max_speed_m_s: float) -> None:
    """Check the 99th percentile of the speed, and the extent of a scene with several agents.

    A limit of 0 means no check. A wrong unit affects all steps, so a few steps are looked at first:
    all steps would take a tenth of the preparation. Raises SceneError: the values indicate another
    unit than metres and seconds.
    """
    if scene.unit != METRES or not max_speed_m_s:
        return
    valid = scene.valid
    # About eight steps are compared with the next ones. Complex numbers x + iy are faster.
    stride = max(1, scene.num_steps // 8)
    start = slice(0, scene.num_steps - 1, stride)
    end = slice(1, scene.num_steps, stride)
    position = scene.position.view(np.complex64)[..., 0]
    velocity = scene.velocity.view(np.complex64)[..., 0]

    max_step_m = max_speed_m_s * scene.period_s
    is_far = np.abs(position[:, end] - position[:, start]) > max_step_m / 2
    if (is_far & valid[:, end] & valid[:, start]).any():
        moves = scene.position[:, 1:] - scene.position[:, :-1]
        both_valid = valid[:, 1:] & valid[:, :-1]
        _check_speed("position", moves, both_valid, max_step_m, max_speed_m_s)
    if np.abs(velocity[:, start]).max() > max_speed_m_s / 2:
        _check_speed("velocity", scene.velocity, valid, max_speed_m_s, max_speed_m_s)
    _check_extent(scene)


def _check_speed(
    field: str, vector: np.ndarray, valid: np.ndarray, limit: float, max_speed_m_s: float
) -> None:
    """Check the 99th percentile of the length of vectors [A, T, 2], where valid [A, T].

    `limit` is the length of a vector at the speed limit. Raises SceneError.
    """
    x, y = vector[valid].astype(np.float64).T
    percentile = float(np.quantile(np.hypot(x, y), 1 - MAX_FAST_FRACTION))
    if percentile > limit:
        speed = percentile / limit * max_speed_m_s
        problem = f"the 99th percentile of the speed is {speed:.4g} m/s"
        raise SceneError(f"{field}: {problem}, expected {max_speed_m_s:g}; {_REMEDY}")


def _check_extent(scene: Scene) -> None:
    """Raise SceneError: the positions of several agents are so close that they may be degrees."""
    if len(scene.valid) < 2:
        return
    # All positions are needed only if the first and last agent are close at the current step.
    current = scene.num_history - 1
    seen = scene.valid[:, current].nonzero()[0]
    if len(seen):
        gap = scene.position[seen[0], current] - scene.position[seen[-1], current]
        if np.abs(gap).max() >= MIN_EXTENT_M:
            return
    positions = scene.position[scene.valid]
    extent = float((positions.max(0) - positions.min(0)).max())
    if 0 < extent < MIN_EXTENT_M:
        problem = f"{len(scene.valid)} agents within {extent:.2g} m, degrees instead of metres?"
        raise SceneError(f"position: {problem} {_REMEDY}")
