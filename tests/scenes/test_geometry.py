"""SE(2) geometry in closed form, with numpy and with torch; polylines are cut into equal pieces."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trajformer.scenes.geometry import (
    GRID_M,
    from_frame,
    on_grid,
    relative_pose,
    relative_position,
    rotate,
    scene_origin,
    to_frame,
    wrap,
)
from trajformer.scenes.polylines import cut_polylines

angles = st.floats(-50.0, 50.0)
metres = st.floats(-1000.0, 1000.0)
poses = st.tuples(metres, metres, angles)
LIBRARIES = [lambda x: np.asarray(x, np.float64), lambda x: torch.tensor(x, dtype=torch.float64)]


def close(value: Any, expected: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(value), np.asarray(expected), atol=tolerance, rtol=0)


@given(st.integers(0, 2**31), st.sampled_from([0.0, 3e3, 1e7]))
@settings(max_examples=30)
def test_distances_do_not_depend_on_the_origin(seed: int, far: float) -> None:
    rng = np.random.default_rng(seed)
    position = far + rng.uniform(-400, 400, (50, 2))
    first = relative_position(position, scene_origin(position[0]))
    second = relative_position(position, scene_origin(position[1]))
    assert first.dtype == np.float32
    assert np.array_equal(first - first[:1], second - second[:1])
    close(first + scene_origin(position[0]), position, GRID_M / 2 + 1e-8)
    assert np.array_equal(on_grid(torch.tensor(position)).numpy(), on_grid(position))


@pytest.mark.parametrize("angle", [math.pi, -math.pi])
def test_wrap_maps_both_borders_to_plus_pi_in_single_precision(angle: float) -> None:
    assert wrap(np.array([angle], np.float32))[0] == np.float32(math.pi)
    assert wrap(torch.tensor([angle]))[0] == torch.tensor(math.pi)


@given(angles)
def test_wrap_keeps_the_direction_and_stays_in_range(angle: float) -> None:
    wrapped = float(wrap(np.array(angle)))
    assert -math.pi <= wrapped <= math.pi
    close(math.cos(wrapped), math.cos(angle), 1e-9)
    close(math.sin(wrapped), math.sin(angle), 1e-9)
    if abs(wrapped) < 3.14:
        close(wrap(np.array(wrapped + 2 * math.pi)), wrapped, 1e-9)
    assert float(wrap(torch.tensor(angle, dtype=torch.float64))) == wrapped


def test_wrap_has_slope_one() -> None:
    angle = torch.tensor([-7.0, -3.0, 0.0, 3.0, 7.0], requires_grad=True)
    wrap(angle).sum().backward()
    assert torch.equal(angle.grad, torch.ones(5))


@pytest.mark.parametrize("array", LIBRARIES, ids=["numpy", "torch"])
def test_frames_by_hand(array: Any) -> None:
    pose = array([10.0, 5.0, math.pi / 2])  # looking along +y
    close(to_frame(array([10.0, 8.0]), pose), [3.0, 0.0])
    close(to_frame(array([9.0, 5.0]), pose), [0.0, 1.0])
    close(from_frame(array([3.0, 1.0]), pose), [9.0, 8.0])
    other = array([10.0, 8.0, -3.0])
    close(relative_pose(other, pose), [3.0, 0.0, 1.5 * math.pi - 3.0])
    close(relative_pose(pose, pose), [0.0, 0.0, 0.0])
    first = array([0.0, 0.0, 3.0])
    second = array([0.0, 0.0, -3.0])
    close(relative_pose(first, second)[2], 6.0 - 2 * math.pi)


@given(metres, metres, poses)
def test_to_frame_and_from_frame_are_inverse(
    x: float, y: float, pose: tuple[float, float, float]
) -> None:
    for build in LIBRARIES:
        point, frame = build([x, y]), build(pose)
        close(from_frame(to_frame(point, frame), frame), point, 1e-9)
        close(to_frame(from_frame(point, frame), frame), point, 1e-9)


@given(poses, poses)
def test_relative_poses_compose(
    first: tuple[float, float, float], second: tuple[float, float, float]
) -> None:
    a, b = np.array(first), np.array(second)
    forward = relative_pose(a, b)
    close(from_frame(forward[:2], b), a[:2], 1e-9)
    close(math.cos(forward[2] + b[2] - a[2]), 1.0, 1e-12)
    back = relative_pose(b, a)
    close(to_frame(np.zeros(2), forward), back[:2], 1e-9)
    close(math.cos(forward[2] + back[2]), 1.0, 1e-12)


def test_shapes_broadcast_and_both_libraries_agree() -> None:
    rng = np.random.default_rng(0)
    point, pose = rng.normal(size=(4, 3, 7, 2)), rng.normal(size=(4, 3, 1, 3))
    for function in (to_frame, from_frame):
        expected = function(point, pose)
        assert expected.shape == (4, 3, 7, 2)
        close(function(torch.from_numpy(point), torch.from_numpy(pose)), expected)
        for i, j, k in np.ndindex(4, 3, 7):
            close(function(point[i, j, k], pose[i, j, 0]), expected[i, j, k])
    many, one = rng.normal(size=(5, 1, 3)), rng.normal(size=(1, 6, 3))
    grid = relative_pose(many, one)
    assert grid.shape == (5, 6, 3)
    close(relative_pose(torch.from_numpy(many), torch.from_numpy(one)), grid)
    close(grid[2, 3], relative_pose(many[2, 0], one[0, 3]))
    for pose in (np.ones((2, 3), np.float32), torch.ones(2, 3)):
        for value in (
            wrap(pose),
            rotate(pose[:, :2], pose[:, 2]),
            to_frame(pose[:, :2], pose),
            relative_pose(pose, pose),
        ):
            assert type(value) is type(pose) and value.dtype == pose.dtype


def pieces(*lines: Any, points: int = 5, length: float = 20.0) -> tuple[np.ndarray, np.ndarray]:
    offset = np.cumsum([0, *map(len, lines)]).astype(np.int32)
    return cut_polylines(
        np.concatenate([np.asarray(line, np.float32) for line in lines]), offset, points, length
    )


def test_points_are_equidistant_in_arc_length_on_a_closed_ring() -> None:
    out, _ = pieces([(0, 0), (4, 0), (4, 4), (0, 4), (0, 0)], points=9)
    close(out[0, :, 0], [0, 2, 4, 4, 4, 2, 0, 0, 0], 1e-6)
    close(out[0, :, 1], [0, 0, 0, 2, 4, 4, 4, 2, 0], 1e-6)


def test_the_number_of_pieces_does_not_depend_on_rounding() -> None:
    """40 m in many segments give two pieces of 20 m at any position and angle.

    This also holds after any other polyline.
    """
    rng = np.random.default_rng(0)
    angle = rng.uniform(-np.pi, np.pi, 200)
    start = rng.uniform(-300, 300, (200, 1, 2))
    direction = np.stack([np.cos(angle), np.sin(angle)], -1)
    along = np.linspace(0, 40, 12)[:, None] * direction[:, None]
    _, owner = pieces(*(start + along))
    assert np.bincount(owner).tolist() == [2] * 200


def test_repeated_and_coinciding_points() -> None:
    straight = [(x, 0) for x in (0, 0, 4, 4, 4, 8, 8)]
    single_point = [(2, 3), (2, 3)]
    up = [(2, 3), (2, 3), (2, 5)]
    out, owner = pieces(straight, single_point, up)
    assert owner.tolist() == [0, 1, 2]
    close(out[0, :, 0], np.linspace(0, 8, 5), 1e-6)
    close(out[0, :, 1], 0, 1e-6)
    assert (out[1] == (2, 3)).all()
    close(out[2, :, 1], np.linspace(3, 5, 5), 1e-6)


def test_no_polyline() -> None:
    out, owner = cut_polylines(np.zeros((0, 2), np.float32), np.zeros(1, np.int32), 10, 20.0)
    assert out.shape == (0, 10, 2) and out.dtype == np.float32
    assert owner.shape == (0,) and owner.dtype == np.int64


coordinates = st.floats(-40, 40)
walks = st.lists(st.tuples(coordinates, coordinates), min_size=2, max_size=12)


@settings(max_examples=60)
@given(st.lists(walks, min_size=1, max_size=5), st.integers(2, 12), st.floats(3.0, 50.0))
def test_pieces_cover_every_line_evenly(
    lines: list[list[tuple[float, float]]], points: int, length: float
) -> None:
    out, owner = pieces(*lines, points=points, length=length)
    assert np.isfinite(out).all()
    assert (np.diff(owner) >= 0).all()
    assert set(owner) == set(range(len(lines)))
    for number, line in enumerate(lines):
        steps = np.diff(np.asarray(line, np.float32).astype(np.float64), axis=0)
        parts = out[owner == number]
        total = float(np.hypot(*steps.T).sum())
        expected = max(math.ceil(total / length), 1)
        tolerance = int(total % length < 1e-3)
        assert abs(len(parts) - expected) <= tolerance
        close(parts[0, 0], line[0], 1e-3)
        close(parts[-1, -1], line[-1], 1e-3)
        close(parts[1:, 0], parts[:-1, -1], 1e-3)
        part_length = total / len(parts)
        assert part_length <= length * (1 + 1e-4)
        gap = np.linalg.norm(np.diff(parts, axis=1), axis=-1)
        assert gap.max() <= part_length / (points - 1) + 1e-3
