"""Recall and precision of a set of trajectories of a scene."""

from __future__ import annotations

import torch
from torch import Tensor

from trajformer.data.distances import pairwise_distances
from trajformer.evaluation.metrics.displacement import MISS_THRESHOLD_M
from trajformer.losses.matching import match
from trajformer.models.scene_set import SceneTrajectories


def set_hits(predicted: SceneTrajectories, target: Tensor, valid: Tensor, threshold: float = 0.5) -> tuple[Tensor, ...]:
    """Hits, futures and claims of each scene.

    A claim is the most probable mode of a query with a probability of at least `threshold`. A future with a known last step
    is hit by a claim that ends within 2 m of it. Each claim hits at most one future, and the number of hits is as large as
    possible.

    Args:
        predicted: Q queries of B scenes.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F].
        threshold: smallest probability of a claim.

    Returns:
        Three int64 [B]. Recall is the sum of hits divided by the sum of futures, precision by the sum of claims. A claim about an
        agent that leaves before the last step counts as wrong.
    """
    claim, known = predicted.logit.sigmoid() >= threshold, valid[..., -1]
    gap = pairwise_distances(predicted.most_probable()[:, :, -1], target[:, :, -1])
    missed = ~((gap <= MISS_THRESHOLD_M) & claim[..., None])  # [B, Q, S]; NaN is never a hit
    pairs = match(missed.float(), known)
    hit = ~missed[pairs.problem, pairs.prediction, pairs.target]
    hits = torch.zeros(len(known), dtype=torch.int64, device=known.device).index_add(0, pairs.problem, hit.long())
    return hits, known.sum(-1), claim.sum(-1)
