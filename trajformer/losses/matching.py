"""One-to-one matching of K predictions and G targets with the smallest total cost."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

AXES = ("problem", "prediction", "target")


class Match(NamedTuple):
    """M matched pairs, int64 [M] each, on the device of the cost."""

    problem: Tensor
    prediction: Tensor
    target: Tensor


@torch.no_grad()
def match(cost: Tensor, target_mask: Tensor, axes: Sequence[str] = AXES) -> Match:
    """Match predictions and targets of independent problems, such as decoder layers or images.

    Costs [..., K, G] are of assigning target g to prediction k; the mask of real targets is bool,
    broadcastable to [..., G]. Returns one pair for each real target (for the K cheapest if there
    are more than K). Problems are numbered over all axes except the last two. The costs of all
    problems are copied to the host at once, the only copy of a training step that a GPU waits for.
    Raises ValueError: a cost of a real target is NaN or infinite; the message gives its index with
    the names `axes`.
    """
    *problem_axes, predictions, targets = cost.shape
    problems = math.prod(problem_axes)
    real = target_mask.expand(*problem_axes, targets).reshape(problems, targets)
    by_target = cost.reshape(problems, predictions, targets).transpose(1, 2)  # [N, G, K]
    # The mask is copied as one more prediction, since a second copy would make a GPU wait again.
    packed = torch.cat([by_target.float(), real[..., None].float()], -1).cpu().numpy()
    pairs = torch.from_numpy(_assign(packed, cost.shape, axes))
    return Match(*pairs.to(cost.device, non_blocking=True))


@torch.no_grad()
def match_layers(
    cost: Tensor, target_mask: Tensor, axes: Sequence[str] = ("layer", *AXES)
) -> list[Match]:
    """Match the predictions of L layers and the targets of N problems.

    Costs [L, N, K, G] and real targets, bool [N, G], to L matches. With a single target (G = 1) the
    best prediction is an argmin on the device, and the host does not wait for it. Then there is one
    pair for each problem, also if its target is not real; the caller must ignore these pairs. Costs
    that are not finite are an error as in `match`, but on a device other than the CPU with G = 1
    their prediction is matched, so that the loss is not finite either.
    """
    layers, problems, predictions, targets = cost.shape
    if targets == 1 and predictions:
        if cost.device.type == "cpu":
            bad = ~cost.isfinite() & target_mask[:, None]
            _check_finite(bad.nonzero(), axes)
        problem = torch.arange(problems, device=cost.device)
        comparable = torch.where(cost.isfinite(), cost, -torch.inf)
        best = comparable[..., 0].argmin(-1)  # [L, N]
        return [Match(problem, prediction, torch.zeros_like(problem)) for prediction in best]

    pairs = match(cost, target_mask, axes)
    # Problems of all layers are numbered in one sequence, and each layer has the same number of
    # pairs.
    by_layer = zip(
        (pairs.problem % problems).tensor_split(layers),
        pairs.prediction.tensor_split(layers),
        pairs.target.tensor_split(layers),
        strict=True,
    )
    return [Match(*layer) for layer in by_layer]


def _assign(packed: np.ndarray, shape: Sequence[int], axes: Sequence[str]) -> np.ndarray:
    """Pairs int64 [3, M] from costs and, in the last column, the target mask: [N, G, K + 1].

    `shape` [..., K, G] and its `axes` are for the error message.
    """
    cost = packed[:, :, :-1]
    real = packed[:, :, -1] > 0
    if not np.isfinite(cost).all():
        bad = ~np.isfinite(cost) & real[:, :, None]
        bad = bad.transpose(0, 2, 1).reshape(shape)
        _check_finite(torch.from_numpy(np.argwhere(bad)), axes)

    # Importing it takes half a second, which forecasts do not need.
    from scipy.optimize import linear_sum_assignment

    pairs = [np.zeros((3, 0), np.int64)]
    for problem, mask in enumerate(real):
        targets = np.flatnonzero(mask)
        rows, predictions = linear_sum_assignment(cost[problem, targets])
        problems = np.full(len(rows), problem)
        pairs.append(np.stack([problems, predictions, targets[rows]]))
    return np.concatenate(pairs, 1)


def _check_finite(bad: Tensor, axes: Sequence[str]) -> None:
    """Raise an error for the first index in int64 [n, axes], if there is one."""
    if not len(bad):
        return
    first = zip(axes, bad[0].tolist(), strict=True)
    index = ", ".join(f"{name} {number}" for name, number in first)
    raise ValueError(f"matching cost is not finite: {index}")
