"""Estimates of velocity and heading: braking, standing, starting, reversing, gaps and rates."""

import numpy as np
import pytest

from trajformer.scenes.kinematics import Motion, estimate_history, estimate_motion, estimate_rows

RATES_HZ = (1.0, 2.5, 10.0, 25.0, 50.0)
NOISE_M = 0.03


def estimate(position: np.ndarray, period_s: float = 0.1, history: int | None = None) -> Motion:
    """Estimates [T, ...] for one agent at positions [T, 2], all observed by default."""
    valid = np.ones((1, len(position)), bool)
    motion = estimate_motion(position[None], valid, history or len(position), period_s)
    return Motion(*(values[0] for values in motion))


def along_x(speed: np.ndarray, period_s: float = 0.1, noise: float = 0.0) -> np.ndarray:
    """Positions [T, 2] of an agent with speeds [T] along +x."""
    x = np.cumsum(speed) * period_s
    position = np.stack([x, np.zeros_like(x)], -1)
    return position + np.random.default_rng(0).normal(0, noise, position.shape)


def braking(deceleration: float, stand_s: float, period_s: float) -> np.ndarray:
    """Positions [T, 2] of a vehicle that brakes from 14 m/s and stands."""
    stop_s = 14.0 / deceleration
    count = round((3.0 + stop_s + stand_s) / period_s)
    time = stop_s + stand_s - period_s * np.arange(count)[::-1]
    braked = np.clip(time, 0, stop_s)
    x = np.where(time < 0, 14 * time, 14 * braked - deceleration * braked**2 / 2)
    return np.stack([x, np.zeros_like(x)], -1)


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("deceleration", [1.5, 3.0, 6.0])
def test_a_vehicle_that_braked_to_a_stop_stands(rate_hz: float, deceleration: float) -> None:
    period_s = 1 / rate_hz
    for stand_s in (0.5, 1.0, 2.0, 4.0):
        if stand_s < period_s:
            continue
        motion = estimate(braking(deceleration, stand_s, period_s), period_s)
        assert np.abs(motion.velocity[-1]).max() < 0.3
        assert np.abs(motion.heading[-1]) < 0.01


@pytest.mark.parametrize("noise", [0.02, 0.05, 0.1, 0.2])
def test_noise_does_not_turn_a_vehicle_that_stands(noise: float) -> None:
    speed = np.concatenate([np.full(40, 8.0), 8 - 0.3 * np.arange(26), np.zeros(400)])
    motion = estimate(along_x(np.maximum(speed, 0), noise=noise))
    standing = slice(-380, None)
    speeds = np.linalg.norm(motion.velocity[standing], axis=-1)
    assert np.degrees(np.abs(motion.heading[standing])).max() < 10
    assert np.percentile(speeds, 95) < 0.2


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_a_vehicle_that_never_moved_has_no_velocity(rate_hz: float) -> None:
    position = along_x(np.zeros(round(8 * rate_hz)), noise=0.03)
    motion = estimate(position, 1 / rate_hz)
    assert np.median(np.linalg.norm(motion.velocity, axis=-1)) < 0.05
    assert motion.length.max() < 0.5  # the heading is noise


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_a_vehicle_that_starts_moves(rate_hz: float) -> None:
    period_s = 1 / rate_hz
    time = np.arange(-4.0, 3.0 + 1e-9, period_s)
    x = np.maximum(time, 0.0) ** 2  # 2 m/s^2
    motion = estimate(np.stack([x, np.zeros_like(x)], -1), period_s)
    late = time >= 1.49
    assert np.abs(motion.velocity[late, 0] - 2 * time[late]).max() < 0.5
    assert not np.abs(motion.velocity[time <= 0]).max()


@pytest.mark.parametrize("rate_hz", RATES_HZ)
def test_steady_motion_is_exact_at_every_rate(rate_hz: float) -> None:
    time = np.arange(0.0, 6.0, 1 / rate_hz)
    motion = estimate(np.stack([6 * time, -8 * time], -1), 1 / rate_hz)
    assert np.allclose(motion.velocity, (6.0, -8.0), atol=0.05)
    assert np.allclose(motion.heading, np.arctan2(-8, 6), atol=1e-3)


def test_a_vehicle_that_reverses_faces_its_direction_of_travel() -> None:
    speed = np.concatenate([np.full(40, 5.0), np.zeros(40), np.full(60, -2.5), np.zeros(40)])
    motion = estimate(along_x(speed))
    assert np.allclose(motion.velocity[130], (-2.5, 0.0), atol=0.01)
    assert np.allclose(motion.heading[[30, 70]], 0.0, atol=1e-6)
    assert np.allclose(np.abs(motion.heading[[130, 179]]), np.pi, atol=1e-6)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_lost_frames_change_little(share: float) -> None:
    moving = along_x(np.full(120, 8.0), noise=0.02)
    standing = along_x(np.concatenate([np.full(60, 8.0), np.zeros(60)]), noise=0.02)
    position = np.stack([moving, standing])
    valid = np.random.default_rng(1).random((2, 120)) > share
    valid[:, [0, 119]] = True
    motion = estimate_motion(position, valid, 120, 0.1)
    assert np.linalg.norm(motion.velocity[:, 119] - [(8.0, 0.0), (0.0, 0.0)], axis=-1).max() < 0.5
    assert np.abs(motion.heading[:, 119]).max() < np.radians(5)
    assert not motion.velocity[~valid].any()


def test_an_agent_that_reappears_standing_keeps_its_heading() -> None:
    position = along_x(np.concatenate([np.full(30, 8.0), np.zeros(170)]), noise=0.05)
    valid = np.ones((1, 200), bool)
    valid[0, 60:150] = False
    motion = estimate_motion(position[None], valid, 200, 0.1)
    assert np.abs(motion.heading[0, valid[0]]).max() < np.radians(10)
    assert np.linalg.norm(motion.velocity[0, 160:], axis=-1).max() < 0.2


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("seed", range(5))
def test_estimates_depend_on_earlier_steps_only(rate_hz: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_agents, num_steps, history = 6, 60, 25
    speed = np.maximum(0.0, rng.normal(0, 6, (num_agents, 1, 2)) * rng.random((num_agents, 60, 1)))
    position = speed.cumsum(1) / rate_hz + rng.normal(0, 0.1, (num_agents, num_steps, 2))
    valid = rng.random((num_agents, num_steps)) > 0.2
    motion = estimate_motion(position, valid, history, 1 / rate_hz)
    other = position.copy()
    other[:, history:] = rng.normal(0, 100, other[:, history:].shape)
    changed = estimate_motion(other, valid, history, 1 / rate_hz)
    for values, expected in zip(changed, motion, strict=True):
        assert np.array_equal(values[:, :history], expected[:, :history])
    assert not np.array_equal(changed.velocity[:, history:], motion.velocity[:, history:])

    # Rows of tracks have no look-ahead at all: the result of a shorter recording is the same.
    agent, step = np.nonzero(valid)
    rows = estimate_rows(agent, step, position[agent, step], 1 / rate_hz)
    is_early = step < history
    early = (agent[is_early], step[is_early], position[agent, step][is_early])
    for values, expected in zip(estimate_rows(*early, 1 / rate_hz), rows, strict=True):
        assert np.allclose(values, expected[is_early], rtol=0, atol=1e-12)


def test_the_first_steps_look_ahead_within_the_history() -> None:
    position = along_x(np.full(20, 3.0))
    motion = estimate(position, history=10)
    assert np.allclose(motion.velocity[0], (3.0, 0.0), atol=0.05)
    alone = estimate_motion(position[None, :10], np.eye(1, 10, dtype=bool), 10, 0.1)
    assert not alone.velocity.any()


@pytest.mark.parametrize("period_s", [1e-4, 1e-2, 5.0, 60.0])
def test_extreme_periods_give_finite_estimates(period_s: float) -> None:
    speed = 10 * min(1.0, 1 / period_s)
    position = along_x(np.full(300, speed), period_s)
    motion = estimate(position, period_s)
    assert np.allclose(motion.velocity[-1], (speed, 0.0), atol=0.01 * speed)
    assert np.isfinite(motion.heading).all()


def test_no_agents() -> None:
    motion = estimate_motion(np.zeros((0, 5, 2)), np.zeros((0, 5), bool), 3, 0.1)
    assert motion.velocity.shape == (0, 5, 2)
    motion = estimate_motion(np.zeros((2, 5, 2)), np.zeros((2, 5), bool), 3, 0.1)
    assert not motion.heading.any()


def test_needed_entries_of_first_steps_equal_those_of_the_whole_history() -> None:
    rng = np.random.default_rng(0)
    position = rng.normal(0, 1, (12, 20, 2)).cumsum(1)
    valid = rng.random((12, 20)) < 0.8
    valid[0] = False
    is_first = np.arange(20) == valid.argmax(1)[:, None]
    whole = estimate_history(position, valid, 0.1)
    first = estimate_history(position, valid, 0.1, is_first)
    for expected, values in zip(whole, first, strict=True):
        # The length is rounded with the number of rows before the track.
        assert values[is_first & valid] == pytest.approx(expected[is_first & valid], abs=1e-12)
    both = estimate_history(position, valid, 0.1, np.ones_like(valid))
    for expected, values in zip(whole, both, strict=True):
        assert np.array_equal(values, expected)
