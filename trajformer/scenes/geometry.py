"""SE(2) geometry for numpy arrays and torch tensors: angles, rotations, frames, relative poses.

A pose is (x, y, heading) in its last dimension: metres and radians, counter-clockwise from +x.
All functions broadcast over leading dimensions and, except for those of origins, keep the type and
dtype of their input.
"""

import math
import sys
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

# Observed positions and maps of scenes are multiples of this (0.06 mm), and their origins are whole
# metres: float32 holds positions and differences exactly up to 1 km, so the input of a model does
# not depend on the origin.
GRID_M = 2.0**-14

# np.ndarray or torch.Tensor; the type does not name torch, so that readers need not import it.
Array = TypeVar("Array", bound=Any)


def _library(value: Array) -> ModuleType:
    """The package that defines the type of `value`: numpy or torch.

    Both have `cos`, `sin`, `stack` and `concatenate`.
    """
    return sys.modules[type(value).__module__.partition(".")[0]]


def on_grid(xy: Array) -> Array:
    """Coordinates in metres, rounded to multiples of `GRID_M`."""
    library = _library(xy)
    return library.round(xy * (1 / GRID_M)) * GRID_M


def scene_origin(center: np.ndarray) -> np.ndarray:
    """The origin of a scene around a center, float64 [2] in the frame of a city: whole metres."""
    return np.round(np.asarray(center, np.float64))


def relative_position(position: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Positions float64 [..., 2] as float32 relative to an origin of whole metres, on the grid.

    Two scenes with different origins have the same distances between their positions, bit by bit.
    """
    # `on_grid` in place: readers spend less time here.
    rounded = np.asarray(position, np.float64, order="C") * (1 / GRID_M)
    np.rint(rounded, out=rounded)
    rounded *= GRID_M
    return minus(rounded, origin).astype(np.float32)


def minus(position: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Positions float64 [..., 2] minus an origin [2]."""
    # x and y as one complex number: numpy is slow along an axis of two.
    pairs = np.asarray(position, np.float64, order="C").view(np.complex128)
    difference: np.ndarray = (pairs - complex(origin[0], origin[1])).view(np.float64)
    return difference


def wrap(angle: Array) -> Array:
    """Angles in radians [...] wrapped to (-pi, pi]; differentiable with slope 1."""
    reversed_angle: Any = math.pi - angle
    return math.pi - reversed_angle % (2 * math.pi)


def rotate(xy: Array, angle: Array) -> Array:
    """Vectors [..., 2] rotated counter-clockwise by angle [...].

    Angles are radians and broadcast over vectors.
    """
    library = _library(xy)
    cos = library.cos(angle)
    sin = library.sin(angle)
    x = xy[..., 0]
    y = xy[..., 1]
    return library.stack([x * cos - y * sin, x * sin + y * cos], -1)


def to_frame(xy: Array, pose: Array) -> Array:
    """Points [..., 2] expressed in the frame at pose [..., 3].

    Both arguments are given in one outer frame.
    """
    return rotate(xy - pose[..., :2], -pose[..., 2])


def from_frame(xy: Array, pose: Array) -> Array:
    """Points [..., 2] given in the frame at pose [..., 3], expressed in the outer frame."""
    return rotate(xy, pose[..., 2]) + pose[..., :2]


def relative_pose(pose: Array, reference: Array) -> Array:
    """Pose [..., 3] expressed in the frame of reference [..., 3]; heading wrapped to (-pi, pi]."""
    xy = to_frame(pose[..., :2], reference)
    heading = wrap(pose[..., 2] - reference[..., 2])
    library = _library(pose)
    return library.concatenate([xy, heading[..., None]], -1)
