"""Cross-entropy of tokens with label smoothing."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def token_loss(logits: Tensor, target: Tensor, smoothing: float = 0.1) -> Tensor:
    """Mean cross-entropy; the smoothed probability is shared by the C - 1 wrong tokens (Szegedy et al. 2016).

    PyTorch shares it among all C tokens, so its smoothing is `smoothing * C / (C - 1)`.

    Args:
        logits: [N, C], without padding.
        target: int64 [N].
        smoothing: probability taken from the target token.

    Returns:
        A scalar; zero with zero gradients if N is 0.
    """
    classes = logits.shape[-1]
    if not len(target):
        return logits.sum() * 0.0
    return F.cross_entropy(logits.float(), target, label_smoothing=smoothing * classes / (classes - 1))
