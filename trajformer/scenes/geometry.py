"""SE(2): wrap, rotate, to and from a frame, relative pose; numpy arrays and torch tensors alike.

A pose is (x, y, heading) in its last dimension: metres and radians, counter-clockwise from +x.
All functions broadcast over leading dimensions and keep the type and dtype of their input; `distances` is for tensors alone.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:  # readers work in processes that need not wait for torch
    import torch

Array = TypeVar("Array", np.ndarray, "torch.Tensor")


def _module(value: np.ndarray | torch.Tensor) -> ModuleType:
    return np if isinstance(value, (np.ndarray, np.generic, float)) else sys.modules["torch"]


def wrap(angle: Array) -> Array:
    """Angles in radians [...] brought to (-pi, pi]; differentiable, slope 1."""
    return math.pi - (math.pi - angle) % (2 * math.pi)


def rotate(xy: Array, angle: Array) -> Array:
    """Vectors [..., 2] turned counter-clockwise by angle [...] (radians, broadcast over vectors)."""
    module = _module(xy)
    cos, sin = module.cos(angle), module.sin(angle)
    x, y = xy[..., 0], xy[..., 1]
    return module.stack([x * cos - y * sin, x * sin + y * cos], -1)


def to_frame(xy: Array, pose: Array) -> Array:
    """Points [..., 2] expressed in the frame at pose [..., 3] (both given in one outer frame)."""
    return rotate(xy - pose[..., :2], -pose[..., 2])


def from_frame(xy: Array, pose: Array) -> Array:
    """Points [..., 2] given in the frame at pose [..., 3], expressed in the outer frame."""
    return rotate(xy, pose[..., 2]) + pose[..., :2]


def relative_pose(pose: Array, reference: Array) -> Array:
    """Pose [..., 3] expressed in the frame of reference [..., 3]; heading wrapped to (-pi, pi]."""
    module = _module(pose)
    xy = to_frame(pose[..., :2], reference)
    heading = wrap(pose[..., 2] - reference[..., 2])
    return module.concatenate([xy, heading[..., None]], -1)


def distances(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Between points [..., N, 2] and [..., M, 2]: [..., N, M]. A product of matrices, as in `cdist`, may be metres off."""
    return _module(first).cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
