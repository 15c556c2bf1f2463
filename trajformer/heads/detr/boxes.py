"""Boxes in images: two ways to write them, and how much two of them have in common.

`centres` are (centre x, centre y, width, height), `corners` (left, top, right, bottom); x to the right, y downwards. Both may
be in pixels or in shares of an image's width and height.
"""

from __future__ import annotations

import torch
from torch import Tensor

_EPSILON = 1e-12  # of an area; that of a pixel of a large picture is 1e-8 of it


def to_corners(box: Tensor) -> Tensor:
    """Centres [..., 4] as corners [..., 4]."""
    half = box[..., 2:] / 2
    return torch.cat([box[..., :2] - half, box[..., :2] + half], -1)


def to_centres(box: Tensor) -> Tensor:
    """Corners [..., 4] as centres [..., 4]."""
    return torch.cat([(box[..., :2] + box[..., 2:]) / 2, box[..., 2:] - box[..., :2]], -1)


def overlap(a: Tensor, b: Tensor, *, generalised: bool = False) -> Tensor:
    """Intersection over union of boxes, both given as corners [..., 4], broadcast against each other.

    Args:
        generalised: subtract the share of the smallest box around both that neither covers, so that boxes which do not
            touch can be told apart, too (Rezatofighi et al. 2019, GIoU): in (-1, 1] instead of [0, 1].

    Returns:
        [...]; 0 for two empty boxes. No size may be negative.
    """
    (left, top, right, bottom), (left_b, top_b, right_b, bottom_b) = a.unbind(-1), b.unbind(-1)
    area, area_b = (right - left) * (bottom - top), (right_b - left_b) * (bottom_b - top_b)
    # In place where autograd allows it: all pairs of a batch are half a megabyte a tensor, and fresh memory is dear.
    common = torch.minimum(right, right_b).sub_(torch.maximum(left, left_b)).clamp_(min=0)
    common = common.mul_(torch.minimum(bottom, bottom_b).sub_(torch.maximum(top, top_b)).clamp_(min=0))
    union = (area + (area_b + _EPSILON)).sub_(common)
    share = common / union
    if not generalised:
        return share
    around = torch.maximum(right, right_b).sub_(torch.minimum(left, left_b))
    around = around.mul_(torch.maximum(bottom, bottom_b).sub_(torch.minimum(top, top_b))).clamp_(min=_EPSILON)
    return share.sub_(1 - union / around)


def suppress(box: Tensor, score: Tensor, label: Tensor, threshold: float) -> Tensor:
    """Greedy suppression of repeated boxes: the best one stays, what overlaps it more than `threshold` and has its label goes.

    Args:
        box: corners [N, 4].
        score: [N].
        label: int64 [N]; boxes of different labels do not compete.

    Returns:
        int64 [M], the boxes that stay, best first.
    """
    order = score.argsort(descending=True, stable=True)
    ranked, kind = box[order], label[order]
    rivals = (overlap(ranked[:, None], ranked[None]) > threshold) & (kind[:, None] == kind)
    stays = torch.ones(len(order), dtype=torch.bool)
    for best, row in enumerate(rivals.cpu()):
        if stays[best]:
            stays[best + 1 :] &= ~row[best + 1 :]
    return order[stays.to(order.device)]
