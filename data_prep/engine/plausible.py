"""A check of the units of a scene, for all readers: values may be valid numbers and yet in millimetres or degrees."""

import numpy as np

from trajformer.errors import SceneError
from trajformer.scenes.scene import METRES, Scene

# Argoverse 1 has single positions that are far off: up to 1.7 % of the steps of a sequence are faster than 100 m/s, 1 % than 117.
MAX_SPEED_M_S = 150.0
MAX_SHARE = 0.01  # of the steps that may be faster
_REMEDY = "check the units of positions and times (--max-speed-m-s sets the limit, 0 switches this check off)"
MIN_EXTENT_M = 0.05  # of the positions of several agents; in ETH/UCY it is at least 0.4 m


def check_plausible(scene: Scene, max_speed_m_s: float) -> None:
    """Check the 99th percentile of the speed, and the extent of a scene with several agents; a limit of 0 means no check.

    A wrong unit affects all steps, so a few steps are looked at first: all steps would take a tenth of the preparation. Raises
    SceneError: the values indicate another unit than metres and seconds.
    """
    if scene.unit != METRES or not max_speed_m_s:
        return
    position, valid, length = scene.position, scene.valid, max_speed_m_s * scene.period_s
    stride = max(1, scene.num_steps // 8)
    start, end = slice(0, scene.num_steps - 1, stride), slice(1, scene.num_steps, stride)
    place, velocity = (
        value.view(np.complex64)[..., 0] for value in (position, scene.velocity)
    )  # x + iy is faster to compare
    far = np.abs(place[:, end] - place[:, start]) > length / 2
    if (far & valid[:, end] & valid[:, start]).any():
        _check_speed(
            "position",
            position[:, 1:] - position[:, :-1],
            valid[:, 1:] & valid[:, :-1],
            length,
            max_speed_m_s,
        )
    if np.abs(velocity[:, start]).max() > max_speed_m_s / 2:
        _check_speed("velocity", scene.velocity, valid, max_speed_m_s, max_speed_m_s)
    now = scene.num_history - 1
    seen = valid[:, now].nonzero()[0]
    if (
        not len(seen)
        or np.abs(position[seen[0], now] - position[seen[-1], now]).max() < MIN_EXTENT_M
    ):
        everywhere = position[valid]
        extent = float((everywhere.max(0) - everywhere.min(0)).max())
        if len(valid) > 1 and 0 < extent < MIN_EXTENT_M:
            raise SceneError(
                f"position: {len(valid)} agents within {extent:.2g} m, degrees instead of metres? {_REMEDY}"
            )


def _check_speed(
    field: str, vector: np.ndarray, valid: np.ndarray, limit: float, max_speed_m_s: float
) -> None:
    """SceneError if the 99th percentile of the length of vectors [A, T, 2], where valid [A, T], is above a limit."""
    largest = float(np.quantile(np.hypot(*vector[valid].astype(np.float64).T), 1 - MAX_SHARE))
    if largest > limit:
        speed = largest / limit * max_speed_m_s
        raise SceneError(
            f"{field}: the 99th percentile of the speed is {speed:.4g} m/s, expected {max_speed_m_s:g}; {_REMEDY}"
        )
