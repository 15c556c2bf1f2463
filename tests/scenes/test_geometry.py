"""SE(2) geometry in closed form, with numpy and with torch."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trajformer.scenes.geometry import from_frame, relative_pose, rotate, to_frame, wrap

angles = st.floats(-50.0, 50.0)
metres = st.floats(-1000.0, 1000.0)
poses = st.tuples(metres, metres, angles)
LIBRARIES = [lambda x: np.asarray(x, np.float64), lambda x: torch.tensor(x, dtype=torch.float64)]


def close(value: Any, expected: Any, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(value), np.asarray(expected), atol=tolerance, rtol=0)


@pytest.mark.parametrize("angle", [math.pi, -math.pi])
def test_wrap_maps_both_borders_to_plus_pi_in_single_precision(angle: float) -> None:
    assert wrap(np.array([angle], np.float32))[0] == np.float32(math.pi)
    assert wrap(torch.tensor([angle]))[0] == torch.tensor(math.pi)


@given(angles)
def test_wrap_keeps_the_direction_and_stays_in_range(angle: float) -> None:
    wrapped = float(wrap(np.array(angle)))
    assert -math.pi <= wrapped <= math.pi
    close([math.cos(wrapped), math.sin(wrapped)], [math.cos(angle), math.sin(angle)], 1e-9)
    close(wrap(np.array(wrapped + 2 * math.pi)) - wrapped if abs(wrapped) < 3.14 else 0.0, 0.0, 1e-9)
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
    close(relative_pose(array([0.0, 0.0, 3.0]), array([0.0, 0.0, -3.0]))[2], 6.0 - 2 * math.pi)


@given(metres, metres, poses)
def test_to_frame_and_from_frame_are_inverse(x: float, y: float, pose: tuple[float, float, float]) -> None:
    for build in LIBRARIES:
        point, frame = build([x, y]), build(pose)
        close(from_frame(to_frame(point, frame), frame), point, 1e-9)
        close(to_frame(from_frame(point, frame), frame), point, 1e-9)


@given(poses, poses)
def test_relative_poses_compose(first: tuple[float, float, float], second: tuple[float, float, float]) -> None:
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
        for value in (wrap(pose), rotate(pose[:, :2], pose[:, 2]), to_frame(pose[:, :2], pose), relative_pose(pose, pose)):
            assert type(value) is type(pose) and value.dtype == pose.dtype
