"""One matcher for every set loss: K predictions to G targets, one to one, at the smallest total cost.

Costs are computed per scene (or image), never across the batch, and reach the host in a single copy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


class Match(NamedTuple):
    """M matched pairs: problem, prediction and target index, each int64 [M], on the cost's device."""

    problem: Tensor
    prediction: Tensor
    target: Tensor


@torch.no_grad()
def match(cost: Tensor, target_mask: Tensor) -> Match:
    """Match the predictions and targets of N independent problems.

    With a single target the best assignment is an argmin and is computed as such, on the device.

    Args:
        cost: [N, K, G], cost of giving target g to prediction k.
        target_mask: bool [N, G], True = a real target.

    Returns:
        One pair for every real target (for the cheapest K of them where there are more than K).

    Raises:
        ValueError: a cost of a real target is NaN or infinite; names problem and prediction.
    """
    bad = ~cost.isfinite() & target_mask[:, None]
    if cost.numel() and bad.any():
        problem, prediction, target = bad.nonzero()[0].tolist()
        raise ValueError(f"matching cost is not finite: problem {problem}, prediction {prediction}, target {target}")
    if cost.shape[2] == 1:
        problem = target_mask[:, 0].nonzero()[:, 0]
        prediction = cost[..., 0].argmin(1)[problem]
        return Match(problem, prediction, torch.zeros_like(problem))
    triples = [
        np.stack([np.full(len(rows), n), rows, np.flatnonzero(real)[columns]])
        for n, (table, real) in enumerate(zip(cost.float().cpu().numpy(), target_mask.cpu().numpy(), strict=True))
        for rows, columns in [linear_sum_assignment(table[:, real])]
    ]
    pairs = np.concatenate(triples, 1) if triples else np.zeros((3, 0), np.int64)
    return Match(*torch.from_numpy(pairs.astype(np.int64)).to(cost.device))
