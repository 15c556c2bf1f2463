"""Manoeuvres of simple paths: every manoeuvre, its limits, noise, gaps, frames and clocks."""

import math

import pytest
import torch
from support.tensors import draw
from torch import Tensor

from trajformer.evaluation.metrics.manoeuvre import Manoeuvre, manoeuvres
from trajformer.scenes.geometry import from_frame

PERIOD_S = 0.1
STEPS = 30
TIME = PERIOD_S * torch.arange(1, STEPS + 1)
STRAIGHT, TURN, STOP, LANE_CHANGE = Manoeuvre


def driven(speed: Tensor, heading: Tensor) -> Tensor:
    """Positions [F, 2] from the origin at speeds (m/s) and headings (radians) of each step."""
    direction = torch.stack([heading.cos(), heading.sin()], -1)
    return (speed[:, None] * PERIOD_S * direction).cumsum(0)


def arc(degrees: float, speed: float = 8.0) -> Tensor:
    """A curve of constant curvature with a total turn of `degrees`."""
    heading = math.radians(degrees) * TIME / TIME[-1]
    return driven(torch.full((STEPS,), speed), heading)


def shifted(aside: float, speed: float = 12.0) -> Tensor:
    """A lane change: to the side along half a cosine between 0.3 s and 2.7 s."""
    progress = ((TIME - 0.3) / 2.4).clamp(0, 1)
    y = aside * (1 - torch.cos(math.pi * progress)) / 2
    return torch.stack([speed * TIME, y], -1)


def braking(speed: float, after: float) -> Tensor:
    """Straight on with constant deceleration to zero speed after a time in seconds."""
    return driven((speed * (1 - TIME / after)).clamp(min=0), torch.zeros(STEPS))


def manoeuvre_of(
    track: Tensor, valid: Tensor | None = None, heading: float = 0.0, period_s: float = PERIOD_S
) -> Manoeuvre:
    """The manoeuvre of a track that begins at the origin."""
    if valid is None:
        valid = torch.ones(len(track), dtype=torch.bool)
    pose = torch.tensor([[[0.0, 0.0, heading]]])
    kind, known = manoeuvres(track[None, None], valid[None, None], pose, period_s)
    assert known.item()
    return Manoeuvre(int(kind))


@pytest.mark.parametrize(
    ("track", "expected"),
    [
        (arc(0), STRAIGHT),
        (arc(0, speed=0.9), STRAIGHT),
        (arc(25), STRAIGHT),
        (braking(10.0, 4.0), STRAIGHT),
        (shifted(1.2), STRAIGHT),
        (shifted(7.0), STRAIGHT),
        # ends 5 m aside of the first direction, on the other side of the last direction
        (arc(-14, speed=14.0), STRAIGHT),
        (arc(60), TURN),
        (arc(-60), TURN),
        (arc(40), TURN),
        (arc(179), TURN),
        (arc(120, speed=1.5), TURN),
        (torch.zeros(STEPS, 2), STOP),
        (arc(0, speed=0.5), STOP),
        (braking(10.0, 2.5), STOP),
        (shifted(3.5), LANE_CHANGE),
        (shifted(-3.5), LANE_CHANGE),
    ],
)
def test_manoeuvres_of_simple_paths(track: Tensor, expected: Manoeuvre) -> None:
    assert manoeuvre_of(track) is expected


@pytest.mark.parametrize(
    ("speed", "degrees", "expected"),
    [
        (14.0, 5, STRAIGHT),
        (14.0, -12, STRAIGHT),
        (8.0, 180, STRAIGHT),
        (8.0, -100, STRAIGHT),
        (8.0, 80, TURN),
    ],
)
def test_small_heading_errors_reversing_and_noisy_headings(
    speed: float, degrees: float, expected: Manoeuvre
) -> None:
    """At 14 m/s, 5 degrees are 3.7 m aside, which is not a lane change."""
    track = arc(0, speed=speed)
    assert manoeuvre_of(track, heading=math.radians(degrees)) is expected


@pytest.mark.parametrize(
    ("track", "expected"),
    [(torch.zeros(STEPS, 2), STOP), (arc(0, 2.0), STRAIGHT), (arc(90, 3.0), TURN)],
)
def test_manoeuvres_are_robust_to_position_noise(track: Tensor, expected: Manoeuvre) -> None:
    """Sums of steps would be 4 m for a standing agent, and steps have arbitrary directions."""
    for seed in range(50):
        noise = draw(*track.shape, seed=seed, scale=0.1)
        assert manoeuvre_of(track + noise) is expected, seed


@pytest.mark.parametrize(
    ("track", "expected"),
    [
        (arc(0), STRAIGHT),
        (shifted(3.5), LANE_CHANGE),
        (braking(10.0, 2.0), STOP),
        (arc(60), TURN),
    ],
)
def test_invalid_steps_are_ignored(track: Tensor, expected: Manoeuvre) -> None:
    valid = torch.arange(STEPS) % 5 == 4
    for invalid_value in (0.0, 1e4, torch.nan):
        with_gaps = torch.where(valid[:, None], track, invalid_value)
        assert manoeuvre_of(with_gaps, valid) is expected


def test_agents_without_a_known_end_do_not_count() -> None:
    target = arc(60).expand(1, 3, STEPS, 2)
    valid = torch.ones(1, 3, STEPS, dtype=torch.bool)
    valid[0, 1, -1] = False
    valid[0, 2] = False
    kind, known = manoeuvres(target, valid, torch.zeros(1, 3, 3), PERIOD_S)
    assert known.tolist() == [[True, False, False]]
    assert kind.tolist() == [[TURN, STRAIGHT, STRAIGHT]]
    assert kind.dtype == torch.int64


def test_batching_and_frames_do_not_matter() -> None:
    tracks = [arc(0), arc(70), torch.zeros(STEPS, 2), shifted(3.0), arc(-25), braking(9.0, 2.0)]
    expected = [STRAIGHT, TURN, STOP, LANE_CHANGE, STRAIGHT, STOP]
    position = 200 * draw(6, 2)
    heading = draw(6, 1, seed=1)
    pose = torch.cat([position, heading], -1)
    target = from_frame(torch.stack(tracks), pose[:, None]).view(2, 3, STEPS, 2)
    valid = torch.ones(2, 3, STEPS, dtype=torch.bool)
    kind, known = manoeuvres(target, valid, pose.view(2, 3, 3), PERIOD_S)
    assert known.all()
    assert kind.flatten().tolist() == expected


def test_time_is_in_seconds() -> None:
    slow = torch.stack([0.3 * torch.arange(1.0, 13.0), torch.zeros(12)], -1)
    assert manoeuvre_of(slow, period_s=0.5) is STRAIGHT  # 0.6 m/s
    assert manoeuvre_of(slow, period_s=1.0) is STOP  # 0.3 m/s
    assert (
        manoeuvre_of(torch.tensor([[4.0, 0.0]]), period_s=0.1) is STRAIGHT
    )  # a horizon below a second
