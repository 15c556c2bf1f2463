"""Checks whether recorded velocities and headings fit the displacements of the agents."""

from typing import NamedTuple

import numpy as np

from trajformer.errors import SceneError
from trajformer.scenes.scene import AgentKind, Scene
from trajformer.scenes.spec import warn

SPAN_S = 1.0  # duration of the displacements that are compared
MAX_SPAN_S = 4.0  # in a longer span an agent may turn
MOVED_M = 2.0  # minimum displacement of an agent in its history
MOVED_OTHER_SPANS_M = 0.5  # in all spans but the longest: a single jump is an error of the tracker
MAX_ERROR_DEGREES = 40.0  # between an agent's velocity or heading and its motion
REVERSE_DEGREES = 140.0  # an agent with a larger error of its heading drives backwards
MAX_REVERSE_M_S = 4.0  # for a longer time
REVERSED_FRACTION = 0.3  # of the agents; fewer may drive backwards faster
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
SAME_DEGREES = 0.1  # between headings that are one number

_HEADING_REMEDY = "expected radians counter-clockwise from +x; correct or remove the column"


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
    those of the motion. Headings may be opposite to it, because vehicles reverse slowly, but not
    for most agents, and may not differ by the same angle for all agents. A single agent of several
    may be an error of the tracker, which causes a warning. `where` is the beginning of the message,
    for example the input. Estimates of a reader are not to be checked. Raises SceneError: the
    values indicate another unit or frame; options in the message are those of tables.
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
    if count == total or count > 1:
        raise SceneError(_message(is_wrong, problem, where))
    warn(_message(is_wrong, problem, ""))  # the engine names the input


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
    # One or two pedestrians may step sideways.
    is_few = len(size) < MIN_COMMON
    if is_few and motion.is_pedestrian.all():
        return

    # One cause for all agents, also below the limit of a single agent.
    min_offset = MIN_OFFSET_OF_FEW if is_few else MIN_OFFSET_DEGREES
    is_off = size > min_offset
    if 2 * is_off.sum() >= len(size) and _are_degrees(direction, motion.displacement):
        problem = (
            f"heading: more than {min_offset:.0f} degrees from the direction of motion for "
            f"{{share}}: in degrees (--angle-unit deg)? {_HEADING_REMEDY}"
        )
        raise SceneError(_message(is_off, problem, where))
    offset, is_common = _common_offset(error)
    is_shared = len(size) > 1 and is_common.mean() >= COMMON_FRACTION
    if is_shared and min_offset < abs(offset) < REVERSE_DEGREES:
        is_from_north = abs(offset + 90.0) < COMMON_DEGREES
        cause = "from north (--heading-from north)?" if is_from_north else "another zero?"
        problem = (
            f"heading: {offset:+.0f} degrees from the direction of motion for {{share}}: {cause} "
            f"{_HEADING_REMEDY}"
        )
        raise SceneError(_message(is_common, problem, where))

    _check_other_frame(motion, direction, size > MIN_OFFSET_DEGREES, where)

    # A minority of vehicles may reverse slowly, and a tracker exchanges the ends of a few cars.
    speed = motion.path / (motion.is_used.sum(1) * motion.span_s)
    is_reversed = size > REVERSE_DEGREES
    may_reverse = is_reversed & (speed < MAX_REVERSE_M_S)
    if not is_few and 2 * is_reversed.sum() > len(size):
        may_reverse[:] = False
    is_exchanged = is_reversed & ~may_reverse & ~motion.is_pedestrian
    if is_exchanged.any() and is_exchanged.sum() < REVERSED_FRACTION * len(size):
        speed_text = f"{speed[is_exchanged].max():.2g} m/s"
        problem = f"heading: {{share}} drive backwards, at up to {speed_text}"
        warn(_message(is_exchanged, problem, ""))
        may_reverse |= is_exchanged
    is_wrong = (size > MAX_ERROR_DEGREES) & ~may_reverse
    if is_wrong.sum() < MIN_COMMON:
        is_wrong &= ~motion.is_pedestrian
    if is_wrong.any():
        median = float(np.median(size[is_wrong]))
        problem = (
            f"heading: more than {MAX_ERROR_DEGREES:.0f} degrees from the direction of motion for "
            f"{{share}} (median {median:.0f}); {_HEADING_REMEDY}"
        )
        _report(is_wrong, problem, where)


def _check_other_frame(
    motion: _Motion, direction: np.ndarray, is_off: np.ndarray, where: object
) -> None:
    """Raise SceneError: all headings are the same, or they increase clockwise.

    `direction` [M, S] are unit vectors of the headings; `is_off` [M] is True for agents whose
    heading differs from their motion.
    """
    mean = direction.sum(1)
    turned = np.degrees(np.angle(mean * mean[0].conj()))
    if len(mean) >= MIN_COMMON and is_off.any() and (np.abs(turned) < SAME_DEGREES).all():
        number = round(float(np.angle(mean[0])), 3)
        problem = f"heading: {number:g} for {{share}}, which move in several directions; "
        remedy = "remove the column, or leave the cells empty"
        raise SceneError(_message(np.ones_like(is_off), problem + remedy, where))

    # A clockwise heading plus the direction of motion is the same angle for all agents.
    mirrored = np.exp(-1j * np.angle(mean))[:, None]
    zero, is_common = _common_offset(-_errors(mirrored, motion.displacement))
    if is_off.sum() >= MIN_COMMON and is_common.mean() >= COMMON_FRACTION:
        option = "--clockwise true"
        if abs(zero - 90.0) < COMMON_DEGREES:
            option = f"--heading-from north {option}"
        problem = f"heading: clockwise for {{share}} ({option})? {_HEADING_REMEDY}"
        raise SceneError(_message(is_common, problem, where))


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
