"""How much of a scene a set of trajectories finds, and how much of what it claims is there."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from trajformer.evaluation.metrics.displacement import MISS_THRESHOLD_M
from trajformer.losses.matching import match
from trajformer.models.scene_set.trajectories import SceneTrajectories


def set_hits(
    found: SceneTrajectories, target: Tensor, valid: Tensor, *, least: float = 0.5, threshold_m: float = MISS_THRESHOLD_M
) -> tuple[Tensor, Tensor, Tensor]:
    """Hits, futures and claims of each scene.

    A claim is a query with a probability of at least `least`, and its most probable mode. A future, of an agent whose last step
    is known, is hit by a claim that ends within `threshold_m` of it; each claim hits one future at most, and as many are hit as
    can be.

    Args:
        found: of Q queries and B scenes.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F].

    Returns:
        Three int64 [B]. Recall is the sum of hits by that of futures, precision by that of claims; a claim about an agent that
        leaves before the last step is counted as wrong.
    """
    claim, known = found.logit.sigmoid() >= least, valid[..., -1]
    gap = torch.cdist(found.most_probable()[:, :, -1], target[:, :, -1], compute_mode="donot_use_mm_for_euclid_dist")
    missed = ~((gap <= threshold_m) & claim[..., None])  # [B, Q, S]; what is not a number hits nothing
    pairs = match(missed.float(), known)
    hit = ~missed[pairs.problem, pairs.prediction, pairs.target]
    hits = torch.zeros(len(known), dtype=torch.int64, device=known.device).index_add(0, pairs.problem, hit.long())
    return hits, known.sum(-1), claim.sum(-1)


class SceneSetMetrics(Metric):
    """Recall and precision over all scenes seen: `compute()` gives {"num_futures", "num_claims", "recall", "precision"}.

    Args:
        least: probability of a claim.
    """

    full_state_update = False
    total: Tensor

    def __init__(self, least: float = 0.5) -> None:
        super().__init__()
        self.least = least
        self.add_state("total", torch.zeros(3, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, found: SceneTrajectories, target: Tensor, valid: Tensor) -> None:
        """Add a batch; arguments as for `set_hits`."""
        self.total += torch.stack([count.sum() for count in set_hits(found, target, valid, least=self.least)])

    def compute(self) -> dict[str, float]:
        """Shares of all futures and of all claims; NaN where there were none."""
        hits, futures, claims = self.total.tolist()
        shares = {name: hits / count if count else float("nan") for name, count in (("recall", futures), ("precision", claims))}
        return {"num_futures": futures, "num_claims": claims} | shares
