"""Errors between predicted and recorded positions, and scores from them, for all losses."""

import torch
from torch import Tensor
from torch.nn import functional as F


def last_valid(valid: Tensor) -> Tensor:
    """Index of the last True along the last axis, 0 without any."""
    step = torch.arange(valid.shape[-1], device=valid.device)
    return torch.where(valid, step, 0).amax(-1)


def huber(gap: Tensor, valid: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Smooth L1 of gaps [..., F, 2] in metres, with valid steps, bool [..., F].

    `beta` is the gap in metres at which it changes from quadratic to linear. Returns the mean over
    valid steps and the value in the last valid step, each [...].
    """
    error = F.smooth_l1_loss(gap, torch.zeros_like(gap), reduction="none", beta=beta)
    error = error.sum(-1) * valid  # [..., F]
    mean = error.sum(-1) / valid.sum(-1).clamp(min=1)
    last = last_valid(valid)[..., None]
    return mean, error.take_along_dim(last, -1).squeeze(-1)


def pairwise_errors(position: Tensor, target: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """ADE and FDE [N, K, G] in metres between modes [N, K, F, 2] and targets [N, G, F, 2].

    Errors are over the valid steps of a target, bool [N, G, F]; the final error is taken at its
    last valid step. Both are zero for a target without a valid step.
    """
    distance = (position[:, :, None] - target[:, None]).norm(dim=-1)
    distance = distance * valid[:, None]  # [N, K, G, F]
    ade = distance.sum(-1) / valid.sum(-1).clamp(min=1)[:, None]
    last = last_valid(valid)[:, None, :, None]
    return ade, distance.take_along_dim(last, -1).squeeze(-1)


def confidence_divergence(logit: Tensor, fde: Tensor, temperature_m: float) -> Tensor:
    """KL divergence [...] from softmax(-FDE / temperature) to the scores (mmTransformer, eq. 6).

    Logits and FDE are [..., K].
    """
    reference = (-fde / temperature_m).softmax(-1)
    return F.kl_div(logit.log_softmax(-1), reference, reduction="none").sum(-1)
