"""Recall and precision of a set of trajectories of a scene."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

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


class SceneSetMetrics(Metric):
    """Recall and precision over all scenes seen: `compute()` gives {"num_futures", "num_claims", "recall", "precision"}.

    Args:
        threshold: smallest probability of a claim.
    """

    full_state_update = False
    total: Tensor

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold
        self.add_state("total", torch.zeros(3, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: SceneTrajectories, target: Tensor, valid: Tensor) -> None:
        """Add a batch; arguments as for `set_hits`."""
        self.total += torch.stack([count.sum() for count in set_hits(predicted, target, valid, self.threshold)])

    def compute(self) -> dict[str, float]:
        """Shares of all futures and of all claims; NaN if there were none."""
        hits, futures, claims = self.total.double()
        shares = {"recall": float(hits / futures), "precision": float(hits / claims)}
        return {"num_futures": int(futures), "num_claims": int(claims)} | shares
