"""Cross-entropy of tokens with label smoothing."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def token_loss(logits: Tensor, target: Tensor, smoothing: float = 0.1) -> Tensor:
    """Mean cross-entropy; the wrong C - 1 tokens share the smoothed mass (Szegedy et al. 2016, as the seeds' code has it).

    PyTorch's own smoothing spreads the mass over all C tokens, the right one included: eps here is eps * C / (C - 1) there.

    Args:
        logits: [N, C] of real tokens only.
        target: int64 [N].
        smoothing: eps.

    Returns:
        A scalar; zero, with zero gradients, for no tokens at all.
    """
    classes = logits.shape[-1]
    if not len(target):
        return logits.sum() * 0.0
    return F.cross_entropy(logits.float(), target, label_smoothing=smoothing * classes / (classes - 1))
