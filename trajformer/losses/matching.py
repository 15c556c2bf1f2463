"""One matcher for every set loss: K predictions to G targets, one to one, at the smallest total cost.

Costs are computed per scene or image, never across the batch, and those of all decoder layers reach the host in one copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

AXES = ("problem", "prediction", "target")


class Match(NamedTuple):
    """M matched pairs: problem, prediction and target index, each int64 [M], on the cost's device."""

    problem: Tensor
    prediction: Tensor
    target: Tensor


@torch.no_grad()
def match(cost: Tensor, target_mask: Tensor, axes: Sequence[str] = AXES) -> Match:
    """Match the predictions and targets of independent problems, for example those of L decoder layers and B images.

    With a single target the best assignment is an argmin and is computed as such, on the device.

    Args:
        cost: [..., K, G], cost of giving target g to prediction k.
        target_mask: bool, broadcastable to [..., G]; True = a real target.
        axes: names of the axes of `cost`, for complaints.

    Returns:
        One pair for every real target (for the cheapest K of them where there are more than K). Problems are counted through
        all axes but the last two.

    Raises:
        ValueError: a cost of a real target is NaN or infinite; names its place.
    """
    shape = cost.shape
    problems = math.prod(shape[:-2])
    real = target_mask.expand(*shape[:-2], shape[-1]).reshape(problems, shape[-1])
    cost = cost.reshape(problems, *shape[-2:])
    if shape[-1] == 1:
        _check_finite((~cost.isfinite() & real[:, None]).reshape(shape).nonzero(), axes)
        problem = real[:, 0].nonzero()[:, 0]
        prediction = cost[..., 0].argmin(1)[problem]
        return Match(problem, prediction, torch.zeros_like(problem))
    # The mask travels as one more prediction: a second copy would make a GPU wait a second time.
    table = torch.cat([cost.transpose(1, 2).float(), real[..., None].float()], -1).cpu().numpy()
    return Match(*torch.from_numpy(_assign(table, shape, axes)).to(cost.device))


def _assign(table: np.ndarray, shape: Sequence[int], axes: Sequence[str]) -> np.ndarray:
    """Pairs int64 [3, M]; the last column of each problem of the table [N, G, K + 1] says which targets are real."""
    cost, real = table[:, :, :-1], table[:, :, -1] > 0
    if not np.isfinite(cost).all():
        bad = (~np.isfinite(cost) & real[:, :, None]).transpose(0, 2, 1).reshape(shape)
        _check_finite(torch.from_numpy(np.argwhere(bad)), axes)
    targets = [np.flatnonzero(row) for row in real]
    found = [linear_sum_assignment(one[rows]) for one, rows in zip(cost, targets, strict=True)]
    pairs = [
        np.stack([np.full(len(columns), n), columns, which[rows]])
        for n, ((rows, columns), which) in enumerate(zip(found, targets, strict=True))
    ]
    return np.concatenate(pairs, 1) if pairs else np.zeros((3, 0), np.int64)


def _check_finite(bad: Tensor, axes: Sequence[str]) -> None:
    """Complain of the first place of int64 [n, axes]."""
    if len(bad):
        place = ", ".join(f"{name} {index}" for name, index in zip(axes, bad[0].tolist(), strict=True))
        raise ValueError(f"matching cost is not finite: {place}")
