"""One-to-one matching of K predictions and G targets with the smallest total cost, for all set losses."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

AXES = ("problem", "prediction", "target")


class Match(NamedTuple):
    """M matched pairs: problem, prediction and target index, each int64 [M], on the device of the cost."""

    problem: Tensor
    prediction: Tensor
    target: Tensor


@torch.no_grad()
def match(cost: Tensor, target_mask: Tensor, axes: Sequence[str] = AXES) -> Match:
    """Match predictions and targets of independent problems, for example of L decoder layers and B images.

    From costs [..., K, G] of assigning target g to prediction k, and a mask of real targets, bool, broadcastable to [..., G], to
    one pair for each real target (for the K cheapest if there are more than K). Problems are numbered over all axes except the
    last two. The costs of all problems are copied to the host at once, the only copy of a training step that a GPU waits for.
    Raises ValueError: a cost of a real target is NaN or infinite; the message gives its index with the names `axes`.
    """
    shape = cost.shape
    problems = math.prod(shape[:-2])
    real = target_mask.expand(*shape[:-2], shape[-1]).reshape(problems, shape[-1])
    cost = cost.reshape(problems, *shape[-2:])
    # The mask is copied as one more prediction, since a second copy would make a GPU wait a second time.
    table = torch.cat([cost.transpose(1, 2).float(), real[..., None].float()], -1).cpu().numpy()
    return Match(*torch.from_numpy(_assign(table, shape, axes)).to(cost.device, non_blocking=True))


@torch.no_grad()
def match_layers(
    cost: Tensor, target_mask: Tensor, axes: Sequence[str] = ("layer", *AXES)
) -> list[Match]:
    """Match the predictions of L layers and the targets of N problems: costs [L, N, K, G] and bool [N, G] to L matches.

    With a single target (G = 1) the best prediction is an argmin on the device, and the host does not wait for it. Then there is
    one pair for each problem, also if its target is not real; the caller must ignore these pairs. Costs that are not finite are
    an error as in `match`, but on a device other than the CPU with G = 1 their prediction is matched, so that the loss is not
    finite either.
    """
    layers, problems, predictions, targets = cost.shape
    if targets != 1 or not predictions:
        problem, *others = match(cost, target_mask, axes)
        parts = (
            part.tensor_split(layers) for part in (problem % problems, *others)
        )  # each layer has the same number of pairs
        return [Match(*layer) for layer in zip(*parts, strict=True)]
    if cost.device.type == "cpu":
        _check_finite((~cost.isfinite() & target_mask[:, None]).nonzero(), axes)
    problem = torch.arange(problems, device=cost.device)
    best = torch.where(cost.isfinite(), cost, -torch.inf)[..., 0].argmin(-1)  # [L, N]
    return [Match(problem, prediction, torch.zeros_like(problem)) for prediction in best]


def _assign(table: np.ndarray, shape: Sequence[int], axes: Sequence[str]) -> np.ndarray:
    """Pairs int64 [3, M] from a table [N, G, K + 1] of costs and, in the last column, the target mask."""
    cost, real = table[:, :, :-1], table[:, :, -1] > 0
    if not np.isfinite(cost).all():
        bad = (~np.isfinite(cost) & real[:, :, None]).transpose(0, 2, 1).reshape(shape)
        _check_finite(torch.from_numpy(np.argwhere(bad)), axes)
    pairs = [np.zeros((3, 0), np.int64)]
    for problem, mask in enumerate(real):
        targets = np.flatnonzero(mask)
        rows, predictions = linear_sum_assignment(cost[problem, targets])
        pairs.append(np.stack([np.full(len(rows), problem), predictions, targets[rows]]))
    return np.concatenate(pairs, 1)


def _check_finite(bad: Tensor, axes: Sequence[str]) -> None:
    """Raise an error for the first index in int64 [n, axes], if there is one."""
    if len(bad):
        index = ", ".join(
            f"{name} {number}" for name, number in zip(axes, bad[0].tolist(), strict=True)
        )
        raise ValueError(f"matching cost is not finite: {index}")
