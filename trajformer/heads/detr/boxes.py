"""Boxes in images: conversion between two formats, intersection over union, and non-maximum suppression.

`centers` are (center x, center y, width, height), `corners` are (left, top, right, bottom); x to the right, y down. Both are in
pixels or in shares of the width and height of an image.
"""

from __future__ import annotations

import torch
from torch import Tensor

_EPSILON = 1e-12  # added to areas; a pixel of a large image has an area of 1e-8 of it


def to_corners(box: Tensor) -> Tensor:
    """Convert centers [..., 4] to corners [..., 4]."""
    half = box[..., 2:] / 2
    return torch.cat([box[..., :2] - half, box[..., :2] + half], -1)


def to_centers(box: Tensor) -> Tensor:
    """Convert corners [..., 4] to centers [..., 4]."""
    return torch.cat([(box[..., :2] + box[..., 2:]) / 2, box[..., 2:] - box[..., :2]], -1)


def iou(a: Tensor, b: Tensor, *, generalized: bool = False) -> Tensor:
    """Intersection over union of boxes as corners [..., 4], which are broadcast against each other.

    Args:
        a: first boxes; no width or height is negative.
        b: second boxes.
        generalized: subtract the share of the smallest enclosing box that neither box covers, so that boxes that do not touch
            differ, too (GIoU, Rezatofighi et al. 2019); the range is (-1, 1] instead of [0, 1].

    Returns:
        [...]; 0 for two empty boxes.
    """
    (left, top, right, bottom), (left_b, top_b, right_b, bottom_b) = a.unbind(-1), b.unbind(-1)
    area, area_b = (right - left) * (bottom - top), (right_b - left_b) * (bottom_b - top_b)
    # In place where autograd allows it: a tensor over all pairs of a batch has half a megabyte, and allocation is slow.
    intersection = torch.minimum(right, right_b).sub_(torch.maximum(left, left_b)).clamp_(min=0)
    intersection = intersection.mul_(torch.minimum(bottom, bottom_b).sub_(torch.maximum(top, top_b)).clamp_(min=0))
    union = (area + (area_b + _EPSILON)).sub_(intersection)
    ratio = intersection / union
    if not generalized:
        return ratio
    enclosing = torch.maximum(right, right_b).sub_(torch.minimum(left, left_b))
    enclosing = enclosing.mul_(torch.maximum(bottom, bottom_b).sub_(torch.minimum(top, top_b))).clamp_(min=_EPSILON)
    return ratio.sub_(1 - union / enclosing)


def suppress(box: Tensor, score: Tensor, label: Tensor, threshold: float) -> Tensor:
    """Greedy non-maximum suppression within each class: indices int64 [M] of the kept boxes, best first.

    A box of corners [N, 4], scores [N] and labels int64 [N] is removed if its IoU with a better box of its class exceeds
    `threshold`.
    """
    order = score.argsort(descending=True, stable=True)
    ranked, ranked_label = box[order], label[order]
    rivals = (iou(ranked[:, None], ranked[None]) > threshold) & (ranked_label[:, None] == ranked_label)
    kept = torch.ones(len(order), dtype=torch.bool)
    for index, row in enumerate(rivals.cpu()):
        if kept[index]:
            kept[index + 1 :] &= ~row[index + 1 :]
    return order[kept.to(order.device)]
