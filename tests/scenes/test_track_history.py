"""Live tracks on the steps of a clock: rates, jitter, gaps, late updates, leaps of the clock."""

from typing import Any

import numpy as np
import pytest

from trajformer.errors import SceneError, TrajformerWarning
from trajformer.scenes.track_columns import check_unique, read_columns
from trajformer.scenes.track_history import TrackHistory, TrackSteps

H = 20
PERIOD_S = 0.1
SPEED = np.array([8.0, -3.0])
BEGIN = np.array([1e7 + 0.125, -1e7 + 0.375])  # as far as UTM coordinates


def line(time: Any) -> np.ndarray:
    """Positions [..., 2] of a track with constant velocity."""
    return BEGIN + np.asarray(time, np.float64)[..., None] * SPEED


def add(history: TrackHistory, time: float, *names: Any, position: Any = None) -> None:
    x, y = line(time) if position is None else position
    count = len(names)
    columns = {"object_id": list(names), "x": [x] * count, "y": [y] * count}
    history.add(time, check_unique(read_columns(columns)))


def filled(times: Any, positions: Any = None) -> TrackSteps:
    history = TrackHistory(PERIOD_S, H)
    for index, time in enumerate(times):
        position = None if positions is None else positions[index]
        add(history, float(time), "car", position=position)
    return history.steps()


def grid(now: float) -> np.ndarray:
    return now - PERIOD_S * np.arange(H - 1, -1, -1)


def test_updates_near_the_steps_are_steps() -> None:
    jitter = np.where(np.arange(40) % 3 == 1, 0.004, -0.003)
    times = 1e9 + PERIOD_S * np.arange(40) + jitter
    even = line(PERIOD_S * np.arange(40))
    steps = filled(times, even)
    assert steps.valid.all()
    assert np.array_equal(steps.position[0], even[-H:])


@pytest.mark.parametrize("rate", [2.0, 5.0, 12.5, 20.0, 25.0])
def test_other_rates_are_interpolated(rate: float) -> None:
    times = np.arange(0, 4, 1 / rate)
    steps = filled(times)
    assert steps.valid.all()
    assert steps.position[0] == pytest.approx(line(grid(times[-1])), abs=1e-8)


def test_jitter_of_30_percent_is_interpolated() -> None:
    rng = np.random.default_rng(0)
    times = np.cumsum(PERIOD_S * rng.uniform(0.7, 1.3, 60))
    steps = filled(times)
    assert steps.valid.all()
    assert steps.position[0] == pytest.approx(line(grid(times[-1])), abs=1e-8)


def test_a_missing_update_is_a_gap_at_the_rate_of_the_clock() -> None:
    times = np.delete(PERIOD_S * np.arange(30), [22, 25])
    steps = filled(times)
    missing = np.flatnonzero(~steps.valid[0])
    assert missing.tolist() == [22 - 10, 25 - 10]
    assert not steps.position[0, missing].any()


def test_gaps_of_over_a_second_stay() -> None:
    times = np.concatenate([np.arange(0, 2, 0.13), np.arange(3.3, 4, 0.13)])
    steps = filled(times)
    time = grid(times[-1])
    in_gap = (time > 1.95 + 1e-6) & (time < 3.3 - 1e-6)
    assert in_gap.any()
    assert np.array_equal(steps.valid[0], ~in_gap)


def test_a_track_that_is_not_in_the_last_update_is_not_extrapolated() -> None:
    history = TrackHistory(PERIOD_S, H)
    for step in range(25):
        names = ("car", "lost") if step < 20 else ("car",)
        add(history, PERIOD_S * step, *names)
    steps = history.steps()
    lost = steps.ids.index("lost")
    assert steps.valid[lost].nonzero()[0].max() == H - 1 - 5


def test_late_and_repeated_timestamps_take_their_place() -> None:
    order = [0, 1, 3, 2, 4, 5, 7, 6, 8, 8, *range(9, 30)]
    steps = filled(PERIOD_S * np.array(order))
    expected = filled(PERIOD_S * np.arange(30))
    assert np.array_equal(steps.position, expected.position)
    assert np.array_equal(steps.valid, expected.valid)


def test_two_updates_of_one_moment_are_joined() -> None:
    history = TrackHistory(PERIOD_S, H)
    for step in range(5):
        add(history, PERIOD_S * step, "left")
        add(history, PERIOD_S * step, ("right", 7))
    steps = history.steps()
    assert set(steps.ids) == {"left", ("right", 7)}
    assert steps.valid[:, -5:].all()


@pytest.mark.parametrize("back_s", [0.4, 5.0, 1e6])
def test_a_clock_that_is_set_back_begins_again(back_s: float) -> None:
    history = TrackHistory(PERIOD_S, H)
    for step in range(30):
        add(history, PERIOD_S * step, "old")
    begin = PERIOD_S * 30 - back_s
    with pytest.warns(TrajformerWarning, match="set back"):
        for step in range(5):
            add(history, begin + PERIOD_S * step, "new")
    steps = history.steps()
    assert steps.ids == ("new",)
    assert steps.now_s == pytest.approx(begin + 0.4)


def test_a_leap_forward_forgets_what_is_too_old() -> None:
    history = TrackHistory(PERIOD_S, H)
    for time in (0.0, 0.1, 0.2, 1e5, 1e5 + 0.1):
        add(history, time, "car")
    assert history.steps().valid.sum() == 2


def test_a_track_that_returns_has_its_earlier_steps() -> None:
    history = TrackHistory(PERIOD_S, H)
    for step in range(20):
        names = ("car", "bus") if not 5 <= step < 12 else ("car",)
        add(history, PERIOD_S * step, *names)
    steps = history.steps()
    bus = steps.valid[steps.ids.index("bus")]
    assert bus.nonzero()[0].tolist() == [*range(5), *range(12, 20)]


def test_memory_is_bounded_while_tracks_come_and_go() -> None:
    history = TrackHistory(PERIOD_S, H)
    sizes = []
    for step in range(4_000):
        add(history, PERIOD_S * step, *range(step, step + 20))
        sizes.append(history.num_bytes)
        assert history.num_tracks < 20 + 40
    assert sizes[-1] == sizes[100]


@pytest.mark.parametrize(
    ("tracks", "message"),
    [
        ({"object_id": [1, 1], "x": [0, 0], "y": [0, 0]}, "twice"),
        ({"object_id": [1], "x": [np.nan], "y": [0]}, "x: empty or NaN"),
        ({"object_id": [1], "x": [np.inf], "y": [0]}, "x: infinite"),
        ({"object_id": [1], "x": [0]}, "y: missing"),
        ({"object_id": [1, 2], "x": [0], "y": [0]}, "shape"),
        ({"object_id": [[1]], "x": [0], "y": [0]}, "unhashable"),
        ({"object_id": [1], "x": [0], "y": [0], "headng": [0]}, "headng: unknown"),
        ({"object_id": [1], "x": [0], "y": [0], "vx": [0]}, "one of vx and vy"),
        ({"object_id": [1], "x": [0], "y": [0], "kind": ["cat"]}, "classification: 'cat'"),
    ],
)
def test_wrong_values_are_one_error(tracks: dict[str, Any], message: str) -> None:
    with pytest.raises(SceneError, match=message):
        check_unique(read_columns(tracks))


def test_too_many_updates_and_wrong_timestamps() -> None:
    history = TrackHistory(PERIOD_S, H)
    with pytest.raises(SceneError, match="none yet"):
        history.steps()
    with pytest.raises(SceneError, match="timestamp_s"):
        add(history, np.nan, "car", position=(0.0, 0.0))
    with pytest.raises(SceneError, match="one update with all tracks"):
        for step in range(3_000):
            add(history, 5e-4 * step, "car")
