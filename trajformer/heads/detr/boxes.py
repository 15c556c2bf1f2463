"""Geometry of boxes.

`centers` are (center x, center y, width, height), `corners` are (left, top, right, bottom); x to
the right, y down. Both are in pixels or in fractions of the width and height of an image.
"""

import torch
from torch import Tensor

_EPSILON = 1e-12  # added to areas; a pixel of a large image has an area of 1e-8 of it


def to_corners(box: Tensor) -> Tensor:
    """Convert centers [..., 4] to corners [..., 4]."""
    center = box[..., :2]
    half = box[..., 2:] / 2
    return torch.cat([center - half, center + half], -1)


def to_centers(box: Tensor) -> Tensor:
    """Convert corners [..., 4] to centers [..., 4]."""
    first = box[..., :2]
    last = box[..., 2:]
    return torch.cat([(first + last) / 2, last - first], -1)


def box_area(box: Tensor) -> Tensor:
    """Areas [...] of boxes as corners [..., 4]."""
    left, top, right, bottom = box.unbind(-1)
    return (right - left) * (bottom - top)


def iou(a: Tensor, b: Tensor, *, generalized: bool = False) -> Tensor:
    """Intersection over union [...] of boxes as corners [..., 4], broadcast against each other.

    It is 0 for two empty boxes. `generalized` subtracts the fraction of the smallest enclosing box
    that neither box covers, so that boxes that do not touch differ, too (GIoU, Rezatofighi et al.
    2019); the range is (-1, 1] instead of [0, 1].
    """
    left_a, top_a, right_a, bottom_a = a.unbind(-1)
    left_b, top_b, right_b, bottom_b = b.unbind(-1)

    # Operations are in place where autograd allows it: a tensor over all pairs of a batch has half
    # a megabyte, and allocation is slow.
    width = torch.minimum(right_a, right_b).sub_(torch.maximum(left_a, left_b)).clamp_(min=0)
    height = torch.minimum(bottom_a, bottom_b).sub_(torch.maximum(top_a, top_b)).clamp_(min=0)
    intersection = width.mul_(height)
    union = (box_area(a) + (box_area(b) + _EPSILON)).sub_(intersection)
    ratio = intersection / union
    if not generalized:
        return ratio

    width = torch.maximum(right_a, right_b).sub_(torch.minimum(left_a, left_b))
    height = torch.maximum(bottom_a, bottom_b).sub_(torch.minimum(top_a, top_b))
    enclosing = width.mul_(height).clamp_(min=_EPSILON)
    return ratio.sub_(1 - union / enclosing)


def suppress(box: Tensor, score: Tensor, label: Tensor, threshold: float) -> Tensor:
    """Greedy non-maximum suppression within each class.

    A box (corners [N, 4], scores [N], labels int64 [N]) is removed if its IoU with a better box of
    the same class is over `threshold`. Returns the indices int64 [M] of the kept boxes, best first.
    """
    order = score.argsort(descending=True, stable=True)
    ranked_box = box[order]
    ranked_label = label[order]
    overlap = iou(ranked_box[:, None], ranked_box[None]) > threshold
    same_class = ranked_label[:, None] == ranked_label
    rivals = (overlap & same_class).cpu()

    kept = torch.ones(len(order), dtype=torch.bool)
    for rank, row in enumerate(rivals):
        if kept[rank]:
            kept[rank + 1 :] &= ~row[rank + 1 :]
    return order[kept.to(order.device)]
