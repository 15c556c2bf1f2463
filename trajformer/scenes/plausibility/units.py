"""Checks whether positions, velocities and sizes are in metres and seconds."""

import numpy as np

from trajformer.errors import SceneError
from trajformer.scenes.scene import METRES, AgentKind, Scene
from trajformer.scenes.spec import warn

# Argoverse 1 has single positions that are far off: up to 1.7 % of the steps of a sequence are
# faster than 100 m/s, 1 % than 117.
MAX_SPEED_M_S = 150.0
MAX_FAST_FRACTION = 0.01  # of the steps that may be faster
MAX_WALKING_M_S = 12.0  # median of the pedestrians that move
MIN_EXTENT_M = 0.05  # of the positions of several agents; in ETH/UCY it is at least 0.4 m
# Noise moves agents in metres farther in a step than any vehicle in degrees or kilometres.
SLOW_PER_S = 0.1
MAX_DEGREES_PER_S = 1e-3  # 110 m/s
SPAN_S = 1.0  # duration of the displacements that are looked at
MIN_DEGREES = 1e-6  # of a movement, 0.1 m; less is rounding
MAX_DEGREES_EXTENT = 2.0  # of a place, about 200 km
STRAIGHT = 0.95  # minimum ratio of net displacement and path of an agent that drives
MAX_LENGTH_M = {AgentKind.VEHICLE: 60.0, AgentKind.PEDESTRIAN: 10.0}  # median; a tram has 40 m
MIN_LENGTH_M = {AgentKind.VEHICLE: 0.5, AgentKind.PEDESTRIAN: 0.05}
WIDE = 1.5  # ratio of width and length of a vehicle
MIN_WIDE = 3  # vehicles

_LIMIT_OPTION = "--max-speed-m-s sets the limit, 0 switches this check off"
_REMEDY = f"check the units of positions and times ({_LIMIT_OPTION})"


def check_units(scene: Scene, max_speed_m_s: float) -> None:
    """Check that positions and velocities are probably in metres and seconds.

    The checks are the 99th percentile of the speed, the speed of pedestrians, whether the positions
    may be degrees, and sizes; positions that may be kilometres cause a warning. A limit of 0 means
    no check. A wrong unit affects all steps, so a few steps are looked at first: all steps would
    take a tenth of the preparation. Raises SceneError: the values indicate another unit.
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
    step_m = np.abs(position[:, end] - position[:, start])
    step_m *= valid[:, end] & valid[:, start]
    longest_m = step_m.max()
    if longest_m > max_step_m / 2:
        moves = scene.position[:, 1:] - scene.position[:, :-1]
        both_valid = valid[:, 1:] & valid[:, :-1]
        _check_speed("position", moves, both_valid, max_step_m, max_speed_m_s)
    if np.abs(velocity[:, start]).max() > max_speed_m_s / 2:
        _check_speed("velocity", scene.velocity, valid, max_speed_m_s, max_speed_m_s)
    if longest_m > MAX_WALKING_M_S * scene.period_s:
        _check_walking(scene, step_m)
    if longest_m < SLOW_PER_S * scene.period_s:
        _check_slow_scene(scene)
    _check_extent(scene)
    _check_sizes(scene)


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


def _check_walking(scene: Scene, step_m: np.ndarray) -> None:
    """Raise SceneError: pedestrians that move are mostly too fast; `step_m` [A, n] are steps."""
    walking_m = step_m[scene.agent_kind == AgentKind.PEDESTRIAN]
    walking_m = walking_m[walking_m > 0]
    if not len(walking_m):
        return
    speed = float(np.median(walking_m)) / scene.period_s
    if speed > MAX_WALKING_M_S:
        problem = f"pedestrians move at {speed:.4g} m/s (median)"
        raise SceneError(f"position: {problem}, expected at most {MAX_WALKING_M_S:g}; {_REMEDY}")


def _check_slow_scene(scene: Scene) -> None:
    """Check the positions of a scene in which no agent seems to move.

    Longitudes and latitudes raise a SceneError. Positions that may be kilometres cause a warning.
    """
    stride = max(1, min(round(SPAN_S / scene.period_s), scene.num_steps - 1))
    knots = slice((scene.num_steps - 1) % stride, None, stride)
    position = scene.position.view(np.complex64)[..., 0][:, knots]
    valid = scene.valid[:, knots]
    moves = np.diff(position, axis=1) * (valid[:, 1:] & valid[:, :-1])
    net = np.abs(moves.sum(1))
    path = np.abs(moves).sum(1)
    fastest = float(np.abs(moves).max(initial=0.0)) / (stride * scene.period_s)
    if fastest >= SLOW_PER_S:
        return

    absolute = scene.position[scene.valid] + scene.origin
    extent = float((absolute.max(0) - absolute.min(0)).max())
    x, y = absolute[0].tolist()
    is_straight = (path > 0) & (net > STRAIGHT * path) & (net > MIN_DEGREES)
    is_small = fastest < MAX_DEGREES_PER_S and net.max() > MIN_DEGREES
    if is_small and (np.abs(absolute) <= 180.0).all():
        problem = (
            f"position: none of {scene.num_agents} agents is faster than {MAX_DEGREES_PER_S} m/s, "
            f"at ({x:.6g}, {y:.6g}): degrees instead of metres? project longitudes and latitudes, "
            f"for example to UTM ({_LIMIT_OPTION})"
        )
        # In a larger area, agents that stand in metres may creep.
        if extent < MAX_DEGREES_EXTENT or 2 * is_straight.sum() >= len(is_straight):
            raise SceneError(problem)
        warn(problem)
    # Pedestrians often stand. Other agents that all drive straight ahead are not standing.
    elif is_straight.all() and not (scene.agent_kind == AgentKind.PEDESTRIAN).any():
        problem = f"{len(net)} of {len(net)} agents move, but none faster than {fastest:.2g} m/s"
        warn(f"position: {problem}: kilometres instead of metres?")


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


def _check_sizes(scene: Scene) -> None:
    """Raise SceneError: lengths and widths are in another unit, or exchanged."""
    length_m, width_m = scene.agent_size.T
    is_known = (length_m > 0) & (width_m > 0)
    if not is_known.any():
        return
    for kind, max_length_m in MAX_LENGTH_M.items():
        known_m = length_m[is_known & (scene.agent_kind == kind)]
        if not len(known_m):
            continue
        median_m = float(np.median(known_m))
        if not MIN_LENGTH_M[kind] <= median_m <= max_length_m:
            agents = f"the median length of {len(known_m)} agents of the kind {kind.name.lower()}"
            raise SceneError(f"length, width: {agents} is {median_m:.4g} m; check their unit")

    vehicles = is_known & (scene.agent_kind == AgentKind.VEHICLE)
    is_wide = width_m[vehicles] > WIDE * length_m[vehicles]
    if is_wide.all() and len(is_wide) >= MIN_WIDE:
        problem = f"{len(is_wide)} of {len(is_wide)} vehicles are wider than long"
        raise SceneError(f"length, width: {problem}; exchange the columns")
