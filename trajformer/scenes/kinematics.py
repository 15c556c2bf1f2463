"""Causal estimates of velocity and heading for tracks with recorded positions only.

`difference_velocity` is for smooth tracks, `estimate_motion` and `estimate_rows` are for noisy
ones.

**Velocity.** Several models of the last two seconds are fitted, with larger weights for recent
positions. An agent in motion follows a parabola. A standing agent has kept its position for
some time, from 0 s to the whole window; before, it was in motion, too. The velocity is the mean of
all models, weighted by their probabilities, in which the unknown noise is integrated out. With a
parabola alone, agents that have braked to a stop go backwards, and parked ones walk.
`tools/research/check_estimates.py` measures the errors.

**Heading.** At some speed, the tangent of the fit is the best heading. An agent in slow motion has
the direction of its last 2.5 m. A standing agent keeps its heading for any time. A
vehicle that reverses faces its direction of travel: rules that recognize reversing were wrong more
often than right on recorded tracks with noise.
"""

from typing import NamedTuple

import numpy as np

WINDOW_S = 2.0  # at least 3 steps
# The first steps of a track use the fit of a later step: the fifth at 10 Hz, at least the second.
LOOK_AHEAD_S = 0.5
MEMORY_S = 1.0  # weight exp(-age / MEMORY_S), at least the period
ACCELERATION_PENALTY = 0.005  # s^4, against squared residuals in m^2
SMALL_PENALTY = 1e-9  # makes fits of few positions solvable (velocity 0)
# Seconds for which an agent is at rest, one model each. One that has just stopped was braking: its
# speed had no jump.
STAND_S = (0.0, 0.2, 0.4, 0.7, 1.0, 1.4, WINDOW_S)
JUST_STOPPED_S = 0.4
MAX_STAND_SPEED_M_S = 4.0  # agents with a faster parabola do not stand
MOTION_SCORE = 1.0  # log of the prior probability of motion, relative to one model of standing
NOISE_M = 0.02  # the noise of positions is at least that large
INDEPENDENT_S = 0.1  # positions at shorter intervals have dependent noise
TANGENT_SPEED_M_S = 2.0  # at this speed and above, the heading is the tangent of the fit
DISPLACEMENT_M = 2.5
SEARCH_S = 10.0  # a displacement that takes longer has no direction; at least 3 steps
STAND_SPEED_M_S = 0.3  # below, an agent keeps its heading
# Limits of memory and time, which matter above 50 Hz.
MAX_STEPS = 100  # of a window
MAX_SEARCH = 1_000  # rows
CHUNK = 20_000  # rows fitted at a time
# An outlier is farther from the middle of its neighbors than noise and accelerations explain.
OUTLIER_M = 0.5
OUTLIER_M_S2 = 10.0
OUTLIER_RATIO = 3.0  # to the distance of the neighbors


class Motion(NamedTuple):
    """Estimates for n rows or [A, T] entries of tracks.

    Attributes:
        velocity: m/s, float64 [..., 2].
        heading: radians, float64.
        length: travel in metres so far, at most DISPLACEMENT_M, float64. Headings of shorter
            travel are less reliable; below 0.5 m they are noise.
    """

    velocity: np.ndarray
    heading: np.ndarray
    length: np.ndarray


class _Rows(NamedTuple):
    """n rows of tracks, sorted by track and step.

    Attributes:
        step: int64 [n].
        position: float64 [n, 2].
        begin: index of the first row of the track, int64 [n].
        end: index of the last row that the estimate may use, int64 [n], mostly the row itself.
    """

    step: np.ndarray
    position: np.ndarray
    begin: np.ndarray
    end: np.ndarray


def estimate_motion(
    position: np.ndarray, valid: np.ndarray, num_history: int, period_s: float
) -> Motion:
    """Velocity and heading at every valid step, estimated from this step and earlier ones.

    The first steps of a track look ahead, at most half a second and never from the history into
    the future: entries below `num_history` do not depend on later steps.

    `position` is float64 [A, T, 2] in metres, `valid` bool [A, T], `num_history` H, `period_s` the
    seconds between steps. Estimates are zero where invalid.
    """
    num_steps = valid.shape[1]
    agent, step = np.divmod(np.flatnonzero(valid), num_steps)
    first = valid.argmax(1)[agent]
    limit = np.where(first < num_history, num_history, num_steps) - 1

    # Rows before the end of the look-ahead share its last row.
    is_early = step <= np.minimum(first + look_ahead_steps(period_s) - 1, limit)
    begin = _first_rows(agent)
    num_early = np.bincount(agent[is_early], minlength=len(valid))
    end = np.maximum(np.arange(len(step)), begin + num_early[agent] - 1)
    rows = _Rows(step, position[agent, step], begin, end)

    result = []
    for values in _estimate(rows, period_s):
        full = np.zeros((*valid.shape, *values.shape[1:]))
        full[agent, step] = values
        result.append(full)
    return Motion(*result)


def look_ahead_steps(period_s: float) -> int:
    """Number of steps at the start of a track that share their last one."""
    return min(max(round(LOOK_AHEAD_S / period_s), 2), MAX_STEPS)


def estimate_rows(
    track: np.ndarray, step: np.ndarray, position: np.ndarray, period_s: float
) -> Motion:
    """Velocity and heading at every row, estimated from this row and earlier ones of its track.

    `track` is int64 [n], `step` int64 [n], `position` float64 [n, 2] in metres. The rows are sorted
    by track and step, and a track has one row a step.
    """
    rows = _Rows(step, position, _first_rows(track), np.arange(len(step)))
    return _estimate(rows, period_s)


def estimate_without_outliers(
    track: np.ndarray, step: np.ndarray, position: np.ndarray, period_s: float
) -> Motion:
    """`estimate_rows`, but single outliers only change the estimate of their own row.

    Otherwise one wrong position would turn a parked agent for the rest of the recording. A
    row is known to be an outlier at the next row, so that estimates still depend on earlier rows
    only.
    """
    motion = estimate_rows(track, step, position, period_s)
    is_good = ~_is_outlier(track, step, position, period_s)
    if is_good.all():
        return motion
    good = estimate_rows(track[is_good], step[is_good], position[is_good], period_s)
    for values, replacement in zip(motion, good, strict=True):
        values[is_good] = replacement
    return motion


def _is_outlier(
    track: np.ndarray, step: np.ndarray, position: np.ndarray, period_s: float
) -> np.ndarray:
    """Whether a position is far from both the previous and the next one, which are near; bool [n].

    Only neighboring steps of a track are compared.
    """
    is_outlier = np.zeros(len(track), bool)
    if len(track) < 3:
        return is_outlier
    before, middle, after = position[:-2], position[1:-1], position[2:]
    deviation = np.linalg.norm(middle - (before + after) / 2, axis=-1)
    change = np.linalg.norm(after - before, axis=-1)
    is_far = deviation > OUTLIER_M + OUTLIER_M_S2 * period_s**2
    is_far &= deviation > OUTLIER_RATIO * change
    is_far &= (track[2:] == track[:-2]) & (step[2:] - step[:-2] == 2)
    is_outlier[1:-1] = is_far
    return is_outlier


def estimate_history(
    position: np.ndarray, valid: np.ndarray, period_s: float, needed: np.ndarray | None = None
) -> Motion:
    """Velocity and heading at every valid step of an observed history [A, H].

    As `estimate_motion`, but single outliers only change the estimate of their own step. If not all
    entries are needed, bool [A, H], the others may have any value, and first steps of tracks take
    less time. Other arguments as in `estimate_motion`.
    """
    num_steps = valid.shape[1]
    num_shared = look_ahead_steps(period_s)
    since_first = np.arange(num_steps) - valid.argmax(1)[:, None]
    if needed is not None and not (needed & valid & (since_first >= num_shared - 1)).any():
        # The first steps depend on the look-ahead only.
        return estimate_motion(position, valid & (since_first < num_shared), num_steps, period_s)

    looked_ahead = estimate_motion(position, valid, num_steps, period_s)
    agent, step = np.divmod(np.flatnonzero(valid), num_steps)
    rows = estimate_without_outliers(agent, step, position[agent, step], period_s)
    later = since_first[agent, step] >= num_shared - 1
    result = []
    for full, values in zip(looked_ahead, rows, strict=True):
        full[agent[later], step[later]] = values[later]
        result.append(full)
    return Motion(*result)


def difference_velocity(
    position: np.ndarray, valid: np.ndarray, num_history: int, period_s: float
) -> np.ndarray:
    """Velocity [A, T, 2] in m/s: the difference to the previous valid step, zero where invalid.

    The first step of a track has the velocity of its second one (`copy_to_first_step`). Arguments
    as in `estimate_motion`.
    """
    rows = np.arange(len(valid))[:, None]
    steps = np.arange(valid.shape[1])
    latest = np.maximum.accumulate(np.where(valid, steps, -1), 1)
    previous = np.concatenate([np.full_like(rows, -1), latest[:, :-1]], 1)
    seconds = (steps - previous) * period_s
    difference = (position - position[rows, previous]) / seconds[..., None]
    has_previous = valid & (previous >= 0)
    velocity = np.where(has_previous[..., None], difference, 0.0)
    copy_to_first_step(velocity, valid, num_history)
    return velocity


def copy_to_first_step(value: np.ndarray, valid: np.ndarray, num_history: int) -> None:
    """Copy the value [A, T, ...] of each track's second valid step to its first one, in place.

    Tracks whose second step is not observed are not changed.
    """
    rows = np.arange(len(valid))
    first = valid.argmax(1)
    is_later = valid[:, :num_history] & (np.arange(num_history) > first[:, None])
    second = is_later.argmax(1)  # 0 if it is not observed
    value[rows, first] = value[rows, np.maximum(first, second)]


def _first_rows(track: np.ndarray) -> np.ndarray:
    """Index int64 [n] of the first row of each row's track, for sorted tracks [n]."""
    is_first = np.ones(len(track), bool)
    is_first[1:] = track[1:] != track[:-1]
    index = np.arange(len(track))
    return np.maximum.accumulate(np.where(is_first, index, 0))


def _estimate(rows: _Rows, period_s: float) -> Motion:
    """Estimates for n rows."""
    velocity = _velocity(rows, period_s)
    heading, length = _heading(rows, velocity, period_s)
    return Motion(velocity, heading, length)


# ---- velocity ------------------------------------------------------------------------------------


def _velocity(rows: _Rows, period_s: float) -> np.ndarray:
    """Velocity [n, 2]."""
    num_rows = len(rows.step)
    width = min(max(round(WINDOW_S / period_s), 3), MAX_STEPS)  # W
    tracks, slot = _spread(rows, width)
    velocity = np.zeros((num_rows, 2))
    num_used = np.zeros(num_rows)
    back = np.arange(width)[:, None]
    for start in range(0, num_rows, CHUNK):
        chunk = slice(start, start + CHUNK)
        end = rows.end[chunk]
        window = tracks.take(slot[end] - back, 1)  # [3, W, N]
        window[1:] -= rows.position[end].T[:, None] * window[0]
        ahead = (rows.step[end] - rows.step[chunk]) * period_s
        velocity[chunk] = _fit_velocity(window, ahead, period_s)
        num_used[chunk] = window[0].sum(0)

    # An agent that reappears after a gap as long as the window has one step in it. Its velocity is
    # the mean since its last valid step.
    alone = np.flatnonzero((num_used == 1) & (rows.begin < np.arange(num_rows)))
    seconds = (rows.step[alone] - rows.step[alone - 1]) * period_s
    distance = rows.position[alone] - rows.position[alone - 1]
    velocity[alone] = distance / seconds[:, None]
    return velocity


def _spread(rows: _Rows, width: int) -> tuple[np.ndarray, np.ndarray]:
    """All tracks one after another, with empty slots before each and in its gaps.

    Returns validity (1 or 0), x and y, float64 [3, L]; and the slot of each row, int64 [n]. The
    slots of two rows have the distance of their steps, at most `width`.
    """
    distance = np.full(len(rows.step), width)
    is_later = rows.begin[1:] < np.arange(1, len(rows.step))
    steps = np.minimum(np.diff(rows.step), width)
    distance[1:] = np.where(is_later, steps, width)
    slot = distance.cumsum() - 1
    num_slots = slot[-1] + 1 if len(slot) else 0
    tracks = np.zeros((3, num_slots))
    tracks[0, slot] = 1.0
    tracks[1:, slot] = rows.position.T
    return tracks, slot


def _fit_velocity(window: np.ndarray, ahead: np.ndarray, period_s: float) -> np.ndarray:
    """Velocity [N, 2] from windows [3, W, N] of validity, x and y, backwards, relative to the last.

    The velocity is that `ahead` [N] seconds before the last position.
    """
    age = np.arange(window.shape[1]) * period_s
    weight = np.exp(-age / max(MEMORY_S, period_s))
    penalty = np.array([[SMALL_PENALTY], [ACCELERATION_PENALTY]])
    motion, residual = _fit(window, -age[None], weight, penalty)
    velocity = (motion[:, 0, 0] - motion[:, 1, 0] * ahead).T

    # Slow agents may stand.
    speed = np.hypot(velocity[:, 0], velocity[:, 1])
    slow = np.flatnonzero(speed < MAX_STAND_SPEED_M_S)
    if not len(slow):
        return velocity
    window = window.take(slow, 2)
    stand = np.unique(np.rint(np.array(STAND_S) / period_s)) * period_s  # [S]
    before = np.maximum(age - stand[:, None], 0.0)  # seconds before the stop, [S, W]
    penalty = np.full((2, len(stand)), SMALL_PENALTY)
    penalty[0, stand < JUST_STOPPED_S] = 1e12  # no jump of the speed
    stop, stop_residual = _fit(window, before, weight, penalty)
    residual = np.concatenate([residual[:, slow], stop_residual])
    count = _moments(weight[None], window[0])[0]
    score = _score(residual, count, stand, period_s)
    # A single position says nothing about a stop with a jump.
    num_after_stop = _moments((before == 0).astype(float), window[0])
    is_unknown = (num_after_stop < 2) & (stand >= JUST_STOPPED_S)[:, None]
    score[1:][is_unknown] = -np.inf
    probability = np.exp(score - score.max(0))
    probability /= probability.sum(0)
    velocity[slow] *= probability[0][:, None]

    # Within the look-ahead, an agent may be in motion before it stops.
    early = np.flatnonzero(ahead[slow] > 0)
    until_stop = ahead[slow[early]] - stand[:, None]
    speed_before = -stop[:, 0][..., early] - stop[:, 1][..., early] * until_stop
    share = probability[1:, early] * (until_stop > 0)
    velocity[slow[early]] += (speed_before * share).sum(1).T
    return velocity


def _score(
    residual: np.ndarray, count: np.ndarray, stand: np.ndarray, period_s: float
) -> np.ndarray:
    """Log probability [1 + S, N] of motion and of standing for `stand` [S] seconds, unnormalized.

    `residual` [1 + S, N] are the sums of squared residuals of `count` [N] positions (a sum of
    weights). The noise is unknown: its standard deviation is integrated out, which gives a power
    of the residual. Each parameter of a model costs the logarithm of the count, as in the Bayesian
    information criterion for two coordinates.
    """
    num_parameters = np.full(1 + len(stand), 3)
    num_parameters[1:][stand < JUST_STOPPED_S] = 2
    num_parameters[-1] = 1  # it has never moved
    independent = count * min(1.0, period_s / INDEPENDENT_S)
    variance = residual / (2 * count) + NOISE_M**2
    score = -independent * np.log(variance)
    score -= num_parameters[:, None] * np.log(np.maximum(count, 2.0))
    score[0] += MOTION_SCORE
    return score


def _fit(
    window: np.ndarray, time: np.ndarray, weight: np.ndarray, penalty: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted least squares with the functions 1, t and t^2 / 2, for S functions t.

    `window` is [3, W, N] as in `_fit_velocity`, `time` [S, W] and `weight` [W] are of its steps,
    and `penalty` [2, S] multiplies the squared coefficients of t and t^2 / 2.

    Returns:
        the coefficients of t and t^2 / 2, [2 (x, y), 2, S, N], and the sums of the squared
        residuals and penalties [S, N].
    """
    num_fits = len(time)
    half = time**2 / 2
    functions = np.concatenate([time, half])
    products = np.concatenate([time, half, time * half, half * half])
    sums = _moments(products * weight, window[0])
    first, second, third, fourth = sums.reshape(4, num_fits, -1)
    total = _moments(weight[None], window[0])[0]
    squares = _moments(weight[None], window[1] ** 2 + window[2] ** 2)[0]

    # Normal equations of the centered functions, symmetric 2 x 2, solved by Cramer's rule.
    mean = np.stack([first, second]) / total
    a = 2 * second - first * mean[0] + penalty[0][:, None]
    b = third - first * mean[1]
    c = fourth - second * mean[1] + penalty[1][:, None]
    determinant = a * c - b * b
    kernel = np.concatenate([np.ones((1, len(weight))), functions]) * weight
    residual = np.tile(squares, (num_fits, 1))
    coefficients = []
    for values in window[1:]:
        sums = _moments(kernel, values)
        p, q = sums[1:].reshape(2, num_fits, -1) - mean * sums[0]
        linear = (p * c - q * b) / determinant
        quadratic = (q * a - p * b) / determinant
        residual -= sums[0] ** 2 / total + linear * p + quadratic * q
        coefficients.append([linear, quadratic])
    return np.array(coefficients), np.maximum(residual, 0.0)


def _moments(kernel: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sums [R, N] over the window of values [W, N], weighted by R kernels [R, W].

    A sum has the same bits for any number of columns, because einsum adds contiguous columns in the
    order of the window. A single column is an exception.
    """
    if values.shape[1] == 1:
        return _moments(kernel, values.repeat(2, 1))[:, :1]
    return np.einsum("rw,wn->rn", kernel, np.ascontiguousarray(values))


# ---- heading -------------------------------------------------------------------------------------


def _heading(rows: _Rows, velocity: np.ndarray, period_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Heading [n], and travel [n] so far as in `Motion.length`."""
    index = np.arange(len(rows.step))
    speed = np.hypot(velocity[:, 0], velocity[:, 1])
    is_moving = speed >= STAND_SPEED_M_S
    is_known = speed >= TANGENT_SPEED_M_S

    direction = velocity.copy()
    row, earlier = _displacements(rows, np.flatnonzero(is_moving & ~is_known), period_s)
    direction[row] = rows.position[row] - rows.position[earlier]
    is_known[row] = True

    # Other rows keep the latest direction, or have that of the displacement from the first row.
    latest = np.maximum.accumulate(np.where(is_known, index, -1))[rows.end]
    latest = np.where(is_known, index, latest)
    travel = rows.position[rows.end] - rows.position[rows.begin]
    has_one = latest >= rows.begin
    direction = np.where(has_one[:, None], direction[latest], travel)

    # Positions of agents that stand are noise. The maximum starts again with each track.
    distance = np.minimum(np.hypot(travel[:, 0], travel[:, 1]), DISPLACEMENT_M)
    distance *= is_moving[rows.end]
    track_offset = 2 * DISPLACEMENT_M * rows.begin
    length = np.maximum.accumulate(distance + track_offset) - track_offset
    return np.arctan2(direction[:, 1], direction[:, 0]), length


def _displacements(
    rows: _Rows, candidates: np.ndarray, period_s: float
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of a candidate row and the latest earlier row of its track at DISPLACEMENT_M or more.

    Candidates without such a row in the last SEARCH_S seconds are left out.
    """
    found = [np.zeros((2, 0), np.int64)]
    back = np.arange(1, 17)
    search_s = max(SEARCH_S, 3 * period_s)
    while len(candidates) and back[0] <= MAX_SEARCH:
        earlier = candidates[:, None] - back
        first = rows.begin[candidates][:, None]
        is_usable = earlier >= first
        earlier = np.maximum(earlier, first)
        seconds = (rows.step[candidates][:, None] - rows.step[earlier]) * period_s
        is_usable &= seconds <= search_s
        offset = rows.position[candidates][:, None] - rows.position[earlier]
        squared = (offset**2).sum(-1)
        is_far = is_usable & (squared >= DISPLACEMENT_M**2)
        has_one = is_far.any(1)
        nearest = earlier[np.arange(len(candidates)), is_far.argmax(1)]
        found.append(np.stack([candidates, nearest])[:, has_one])
        candidates = candidates[~has_one & is_usable[:, -1]]
        back = back + len(back)
    row, earlier = np.concatenate(found, 1)
    return row, earlier
