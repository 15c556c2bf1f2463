"""Manoeuvres of tracks made by hand: every manoeuvre, its limits, noise, gaps, other frames and other clocks."""

import math

import pytest
import torch
from torch import Tensor

from trajformer.evaluation.metrics.manoeuvre import Manoeuvre, manoeuvres
from trajformer.scenes.geometry import from_frame

PERIOD_S, STEPS = 0.1, 30
TIME = PERIOD_S * torch.arange(1, STEPS + 1)
STRAIGHT, TURN, STOP, LANE_CHANGE = Manoeuvre


def driven(speed: Tensor, heading: Tensor) -> Tensor:
    """Positions [F, 2] from the origin at speeds (m/s) and headings (radians) of each step."""
    way = speed * PERIOD_S
    return torch.stack([(way * heading.cos()).cumsum(0), (way * heading.sin()).cumsum(0)], -1)


def arc(degrees: float, speed: float = 8.0) -> Tensor:
    """A curve of constant curvature with a total turn of `degrees`."""
    return driven(torch.full((STEPS,), speed), math.radians(degrees) * TIME / TIME[-1])


def shifted(aside: float, speed: float = 12.0) -> Tensor:
    """A lane change: to the side along half a cosine between 0.3 s and 2.7 s."""
    share = ((TIME - 0.3) / 2.4).clamp(0, 1)
    return torch.stack([speed * TIME, aside * (1 - torch.cos(math.pi * share)) / 2], -1)


def braking(speed: float, after: float) -> Tensor:
    """Straight on with a speed that falls evenly to nothing at a time."""
    return driven((speed * (1 - TIME / after)).clamp(min=0), torch.zeros(STEPS))


def done(
    track: Tensor, valid: Tensor | None = None, heading: float = 0.0, period_s: float = PERIOD_S
) -> Manoeuvre:
    """The manoeuvre of a track that begins at the origin."""
    real = torch.ones(len(track), dtype=torch.bool) if valid is None else valid
    kind, known = manoeuvres(
        track[None, None], real[None, None], torch.tensor([[[0.0, 0.0, heading]]]), period_s
    )
    assert known.item()
    return Manoeuvre(int(kind))


PATHS = {
    STRAIGHT: [arc(0), arc(0, speed=0.9), arc(25), braking(10.0, 4.0), shifted(1.2), shifted(7.0)],
    TURN: [arc(60), arc(-60), arc(40), arc(179), arc(120, speed=1.5)],
    STOP: [torch.zeros(STEPS, 2), arc(0, speed=0.5), braking(10.0, 2.5)],
    LANE_CHANGE: [shifted(3.5), shifted(-3.5)],
}
PATHS[STRAIGHT].append(arc(-14, speed=14.0))  # ends 5 m aside, of one direction and the other


@pytest.mark.parametrize(
    ("track", "expected"), [(track, kind) for kind, tracks in PATHS.items() for track in tracks]
)
def test_manoeuvres_of_simple_paths(track: Tensor, expected: Manoeuvre) -> None:
    assert done(track) is expected


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
    assert done(arc(0, speed=speed), heading=math.radians(degrees)) is expected


@pytest.mark.parametrize(
    ("track", "expected"),
    [(torch.zeros(STEPS, 2), STOP), (arc(0, 2.0), STRAIGHT), (arc(90, 3.0), TURN)],
)
def test_manoeuvres_are_robust_to_position_noise(track: Tensor, expected: Manoeuvre) -> None:
    for seed in range(
        50
    ):  # sums of steps would be 4 m for a standing agent, with arbitrary directions of steps
        noise = 0.1 * torch.randn(track.shape, generator=torch.Generator().manual_seed(seed))
        assert done(track + noise) is expected, seed


def test_invalid_steps_are_ignored() -> None:
    for track, expected in (
        (arc(0), STRAIGHT),
        (shifted(3.5), LANE_CHANGE),
        (braking(10.0, 2.0), STOP),
        (arc(60), TURN),
    ):
        valid = torch.arange(STEPS) % 5 == 4
        for junk in (0.0, 1e4, torch.nan):
            assert done(torch.where(valid[:, None], track, junk), valid) is expected


def test_agents_without_a_known_end_do_not_count() -> None:
    target, valid = (
        torch.stack([arc(60), arc(60), arc(60)])[None],
        torch.ones(1, 3, STEPS, dtype=torch.bool),
    )
    valid[0, 1, -1] = False
    valid[0, 2] = False
    kind, known = manoeuvres(target, valid, torch.zeros(1, 3, 3), PERIOD_S)
    assert known.tolist() == [[True, False, False]] and kind.tolist() == [
        [TURN, STRAIGHT, STRAIGHT]
    ]
    assert kind.dtype == torch.int64


def test_batching_and_frames_do_not_matter() -> None:
    tracks = [arc(0), arc(70), torch.zeros(STEPS, 2), shifted(3.0), arc(-25), braking(9.0, 2.0)]
    expected = [STRAIGHT, TURN, STOP, LANE_CHANGE, STRAIGHT, STOP]
    generator = torch.Generator().manual_seed(3)
    pose = torch.rand(6, 3, generator=generator) * torch.tensor(
        [500.0, -300.0, 6.0]
    ) - torch.tensor([0.0, 0.0, 3.0])
    target = from_frame(torch.stack(tracks), pose[:, None])
    kind, known = manoeuvres(
        target.view(2, 3, STEPS, 2),
        torch.ones(2, 3, STEPS, dtype=torch.bool),
        pose.view(2, 3, 3),
        PERIOD_S,
    )
    assert known.all() and kind.flatten().tolist() == expected


def test_time_is_in_seconds() -> None:
    slow = torch.stack([0.3 * torch.arange(1.0, 13.0), torch.zeros(12)], -1)
    assert done(slow, period_s=0.5) is STRAIGHT  # 0.6 m/s
    assert done(slow, period_s=1.0) is STOP  # 0.3 m/s
    assert done(torch.tensor([[4.0, 0.0]]), period_s=0.1) is STRAIGHT  # a horizon below a second
