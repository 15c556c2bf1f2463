"""Checks whether the values of a scene fit each other, for all readers.

Values may be valid numbers and yet in another unit or frame. Each check compares a quantity with
one that follows from others: speeds with a limit, positions with longitudes and latitudes, recorded
velocities and headings with the displacements of each agent, and lanes with the positions of
agents. An error has one line for its cause, with the share of agents and the remedy. What may be
right is a warning, and the scene stays.

On the real recordings of all readers (`docs/data.md`) no check raises an error.
"""

from typing import NamedTuple

import numpy as np

from trajformer.errors import SceneError
from trajformer.scenes.scene import METRES, AgentKind, Scene
from trajformer.scenes.spec import warn

# ---- units of positions: limits ------------------------------------------------------------------

# Argoverse 1 has single positions that are far off: up to 1.7 % of the steps of a sequence are
# faster than 100 m/s, 1 % than 117.
MAX_SPEED_M_S = 150.0
MAX_FAST_FRACTION = 0.01  # of the steps that may be faster
MAX_WALKING_M_S = 12.0  # median of the pedestrians that move
MIN_EXTENT_M = 0.05  # of the positions of several agents; in ETH/UCY it is at least 0.4 m
# Noise moves agents in metres farther in a step than any vehicle in degrees or kilometres.
SLOW_PER_S = 0.1
MAX_DEGREES_PER_S = 1e-3  # 110 m/s
MIN_DEGREES = 1e-6  # of a movement, 0.1 m; less is rounding
MAX_DEGREES_EXTENT = 2.0  # of a place, about 200 km
STRAIGHT = 0.95  # minimum ratio of net displacement and path of an agent that drives

# ---- recorded velocities and headings: limits ----------------------------------------------------

SPAN_S = 1.0  # duration of the displacements that are compared
MAX_SPAN_S = 4.0  # in a longer span an agent may turn
MOVED_M = 2.0  # minimum displacement of an agent in its history
MOVED_OTHER_SPANS_M = 0.5  # in all spans but the longest: a single jump is an error of the tracker
MAX_ERROR_DEGREES = 40.0  # between an agent's velocity or heading and its motion
REVERSE_DEGREES = 140.0  # an agent with a larger error of its heading drives backwards
MAX_REVERSE_M_S = 4.0  # for a longer time
MAX_RATIO = 2.5  # of speeds; feet and metres differ by 3.3, km/h and m/s by 3.6
AGREE = 0.3  # of the path; a smaller difference of velocities is no error
MAX_COMMON_RATIO = 1.5  # common to at least three agents; knots and m/s differ by 1.9
COMMON_RATIO = 0.1  # deviation from the common ratio
ZERO_RATIO = 0.02  # of speeds; less is a velocity of zero
WRONG_FRACTION = 0.25  # of the moving agents
MIN_OFFSET_DEGREES = 10.0  # an error of the heading that is common to at least three agents
MIN_OFFSET_OF_FEW = 20.0  # to one or two agents
DEGREES_MATCH = 2.0  # between a heading in degrees and the motion
COMMON_DEGREES = 8.0  # deviation from the common error
COMMON_FRACTION = 0.9  # of the agents
MIN_COMMON = 3  # agents

_LIMIT_OPTION = "--max-speed-m-s sets the limit, 0 switches this check off"
_REMEDY = f"check the units of positions and times ({_LIMIT_OPTION})"


# ---- units of positions --------------------------------------------------------------------------


def check_units(scene: Scene, max_speed_m_s: float) -> None:
    """Check that positions and velocities are probably in metres and seconds.

    The checks are the 99th percentile of the speed, the speed of pedestrians, and whether the
    positions may be degrees; positions that may be kilometres cause a warning. A limit of 0 means
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


# ---- recorded velocities and headings ------------------------------------------------------------


class _Motion(NamedTuple):
    """The motion of M agents in S spans of about a second; x + iy are complex numbers.

    Displacements and velocities are zero in spans in which an agent is not seen.
    """

    displacement: np.ndarray  # complex [M, S], metres
    velocity: np.ndarray  # complex [M, S], metres per second, in the middle of the span
    heading: np.ndarray  # [M, S], radians, in the middle of the span
    is_pedestrian: np.ndarray  # bool [M]
    path: np.ndarray  # [M], metres, sum of the lengths of the displacements
    is_used: np.ndarray  # bool [M, S], True where an agent is seen
    span_s: float  # duration of a span


def check_recorded(
    scene: Scene, *, heading: bool = False, velocity: bool = False, where: object = ""
) -> None:
    """Compare recorded headings and velocities with the displacements of each agent.

    Only the history is used: whether a scene is used must not depend on its future. Velocities are
    those of the motion. Headings may be opposite to it, because vehicles reverse, but not for most
    agents, and may not differ by the same angle for all agents. A single agent of several may be an
    error of the tracker, which causes a warning. `where` is the beginning of the message, for
    example the input. Estimates of a reader are not to be checked. Raises SceneError: the values
    indicate another unit or frame.
    """
    motion = _motion(scene)
    if motion is None:
        return
    if velocity:
        _check_velocity(motion, where)
    if heading:
        _check_heading(motion, where)


def _motion(scene: Scene) -> _Motion | None:
    """The motion of the agents that move in the history, None if there is no such agent."""
    num_history = scene.num_history
    half = min(max(1, round(SPAN_S / 2 / scene.period_s)), (num_history - 1) // 2)
    stride = max(2 * half, 1)
    if stride * scene.period_s > MAX_SPAN_S:
        return None
    # Spans end at the last observed step. The middle of a single step is its end.
    first = (num_history - 1) % stride
    knots = slice(first, num_history, stride)
    middles = slice(first + max(half, 1), num_history, stride)
    position = scene.position.view(np.complex64)[:, knots, 0]
    valid = scene.valid[:, knots]
    is_used = valid[:, 1:] & valid[:, :-1] & scene.valid[:, middles]
    displacement = (position[:, 1:] - position[:, :-1]) * is_used

    is_moving = np.abs(displacement.sum(1)) > MOVED_M
    length = np.abs(displacement)
    path = length.sum(1)
    if length.shape[1] > 1:
        is_moving &= path - length.max(1) > MOVED_OTHER_SPANS_M
    moving = is_moving.nonzero()[0]
    if not len(moving):
        return None
    is_used = is_used[moving]
    return _Motion(
        displacement=displacement[moving],
        velocity=scene.velocity.view(np.complex64)[:, middles, 0][moving] * is_used,
        heading=scene.heading[:, middles][moving],
        is_pedestrian=scene.agent_kind[moving] == AgentKind.PEDESTRIAN,
        path=path[moving],
        is_used=is_used,
        span_s=stride * scene.period_s,
    )


def _errors(vector: np.ndarray, displacement: np.ndarray) -> np.ndarray:
    """Angle [M] in degrees from the displacements [M, S] of each agent to its vectors."""
    return np.degrees(np.angle((vector * displacement.conj()).sum(1)))


def _report(is_wrong: np.ndarray, problem: str, where: object) -> None:
    """Raise SceneError if all agents, or two and at least a quarter, are wrong [M].

    A single agent that is at least a quarter causes a warning. The text `problem` has "{share}"
    in place of the share of the agents.
    """
    count = int(is_wrong.sum())
    total = len(is_wrong)
    if not count or count < WRONG_FRACTION * total:
        return
    message = _message(is_wrong, problem, where)
    if count == total or count > 1:
        raise SceneError(message)
    warn(message)


def _message(is_wrong: np.ndarray, problem: str, where: object) -> str:
    """A problem with the share of the agents [M] that are wrong."""
    share = f"{is_wrong.sum()} of {len(is_wrong)} moving agents"
    message = problem.replace("{share}", share)
    return f"{where}: {message}" if where else message


def _check_velocity(motion: _Motion, where: object) -> None:
    """Compare the velocities of moving agents with their displacements; raises SceneError."""
    travelled = motion.velocity * motion.span_s
    difference = np.abs((travelled - motion.displacement).sum(1))
    if (difference < AGREE * motion.path).all():
        return
    ratio = np.abs(travelled).sum(1) / motion.path
    is_zero = ratio < ZERO_RATIO
    _report(
        is_zero, "vx, vy: zero for {share}; remove the columns, or leave the cells empty", where
    )

    error = _errors(motion.velocity, motion.displacement)
    is_other_direction = (np.abs(error) > MAX_ERROR_DEGREES) & ~is_zero
    # The velocities of all agents in their own frames point along +x.
    along_x = np.abs(np.degrees(np.angle(motion.velocity.sum(1))))
    is_body_frame = bool((along_x < COMMON_DEGREES).all())
    cause = "are vx and vy exchanged, or in another frame than x and y?"
    if is_body_frame:
        cause = "in the frame of each agent? rotate them by its heading"
    elif (np.abs(error[is_other_direction]) > REVERSE_DEGREES).all():
        cause = "reversed?"
    direction_problem = (
        f"vx, vy: more than {MAX_ERROR_DEGREES:.0f} degrees from the direction of motion for "
        f"{{share}}: {cause}; correct or remove the columns"
    )
    if is_body_frame and is_other_direction.any():  # all agents agree, also if few are wrong
        raise SceneError(_message(is_other_direction, direction_problem, where))
    _report(is_other_direction, direction_problem, where)

    is_other_speed = ((ratio < 1 / MAX_RATIO) | (ratio > MAX_RATIO)) & ~is_zero
    # One factor for all agents, for example knots or miles per hour.
    common = float(np.median(ratio))
    is_common = np.abs(ratio / common - 1) < COMMON_RATIO
    is_shared = len(ratio) >= MIN_COMMON and is_common.mean() >= COMMON_FRACTION
    if is_shared and not 1 / MAX_COMMON_RATIO < common < MAX_COMMON_RATIO:
        is_other_speed |= is_common
    if is_other_speed.any():
        median = float(np.median(ratio[is_other_speed]))
        _report(
            is_other_speed,
            f"vx, vy: speeds are {median:.3g} times the displacements per second (median) for "
            "{share}; check the units of x, y, vx, vy and time, or remove vx and vy",
            where,
        )


def _check_heading(motion: _Motion, where: object) -> None:
    """Compare the headings of moving agents with their displacements; raises SceneError."""
    direction = np.exp(1j * motion.heading) * motion.is_used
    error = _errors(direction, motion.displacement)
    size = np.abs(error)
    if size.max() < MIN_OFFSET_DEGREES:
        return
    remedy = "expected radians counter-clockwise from +x; correct or remove the column"

    # One or two pedestrians may step sideways.
    is_few = len(size) < MIN_COMMON
    if is_few and motion.is_pedestrian.all():
        return

    # One cause for all agents, also below the limit of a single agent.
    min_offset = MIN_OFFSET_OF_FEW if is_few else MIN_OFFSET_DEGREES
    is_off = size > min_offset
    if 2 * is_off.sum() >= len(size) and _are_degrees(direction, motion.displacement):
        problem = f"heading: more than {min_offset:.0f} degrees from the direction of motion for "
        raise SceneError(_message(is_off, f"{problem}{{share}}: in degrees? {remedy}", where))
    offset, is_common = _common_offset(error)
    is_shared = len(size) > 1 and is_common.mean() >= COMMON_FRACTION
    if is_shared and min_offset < abs(offset) < REVERSE_DEGREES:
        problem = f"heading: {offset:+.0f} degrees from the direction of motion for "
        cause = "degrees, or another zero?"
        raise SceneError(_message(is_common, f"{problem}{{share}}: {cause} {remedy}", where))

    # A minority of vehicles may reverse, and one or two do so slowly.
    is_reversed = size > REVERSE_DEGREES
    is_wrong = (size > MAX_ERROR_DEGREES) & ~is_reversed
    speed = motion.path / (motion.is_used.sum(1) * motion.span_s)
    too_many = 2 * is_reversed.sum() > len(size)
    if is_few:
        too_many = is_reversed.all() and bool((speed > MAX_REVERSE_M_S).all())
    if too_many:
        is_wrong |= is_reversed
    if is_wrong.sum() < MIN_COMMON:
        is_wrong &= ~motion.is_pedestrian
    if is_wrong.any():
        median = float(np.median(size[is_wrong]))
        problem = (
            f"heading: more than {MAX_ERROR_DEGREES:.0f} degrees from the direction of motion for "
            f"{{share}} (median {median:.0f}); {remedy}"
        )
        _report(is_wrong, problem, where)


def _common_offset(error: np.ndarray) -> tuple[float, np.ndarray]:
    """The mean of errors [M] in degrees, and bool [M], True for errors close to it."""
    mean = np.exp(1j * np.radians(error)).mean()
    offset = float(np.degrees(np.angle(mean)))
    return offset, np.abs((error - offset + 180) % 360 - 180) < COMMON_DEGREES


def _are_degrees(direction: np.ndarray, displacement: np.ndarray) -> bool:
    """Whether headings are small numbers of degrees that were read as radians.

    `direction` [M, S] are unit vectors of the headings. A number up to 2 pi was wrapped.
    """
    heading = np.angle(direction.sum(1))
    motion_degrees = np.degrees(np.angle(displacement.sum(1)))
    candidates = heading + np.array([[-2.0], [0.0], [2.0]]) * np.pi
    difference = np.abs(candidates - motion_degrees).min(0)
    return bool((difference < DEGREES_MATCH).mean() >= COMMON_FRACTION)
