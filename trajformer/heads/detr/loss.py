"""DETR's set loss (Carion et al. 2020, section 3.1): one-to-one matching of queries and boxes of an image.

The cost of matching box g to query q is 1 * (-p_q(class of g)) + 5 * L1 + 2 * (-GIoU). Every query is classified, unmatched
ones as "no object". Matched queries are also regressed with L1 and GIoU. Each decoder layer is matched separately.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from trajformer.errors import check_numbers
from trajformer.heads.detr.boxes import iou, to_corners
from trajformer.heads.detr.data import BoxTargets
from trajformer.heads.detr.model import Detections
from trajformer.losses.matching import Match, match


@dataclass(frozen=True)
class BoxLossConfig:
    """Weights of the matching cost and of the loss terms, as in the paper.

    Attributes:
        cost_class: weight of the class probability in the matching cost.
        cost_l1: weight of the L1 distance in the matching cost.
        cost_giou: weight of the GIoU in the matching cost.
        no_object: weight of unmatched queries in the cross-entropy.
        l1: weight of the L1 distance between matched boxes, in shares of the width and height of the image.
        giou: weight of 1 - GIoU of matched boxes.
    """

    cost_class: float = 1.0
    cost_l1: float = 5.0
    cost_giou: float = 2.0
    no_object: float = 0.1
    l1: float = 5.0
    giou: float = 2.0

    def __post_init__(self) -> None:
        check_numbers(self)


@torch.no_grad()
def box_cost(logit: Tensor, box: Tensor, targets: BoxTargets, config: BoxLossConfig) -> Tensor:
    """Matching cost [..., B, Q, G] of logits [..., B, Q, C + 1] and boxes [..., B, Q, 4] (centers, shares of the image)."""
    lead = logit.shape[:-2]
    probability = logit.float().softmax(-1).transpose(-1, -2)  # [..., B, C + 1, Q]
    column = targets.label[..., None].expand(*lead, -1, logit.shape[-2])
    box = box.float()
    # With contiguous queries for each coordinate, this is twice as fast as with contiguous coordinates.
    query, target = (to_corners(x).movedim(-1, 0).contiguous().movedim(0, -1) for x in (box, targets.box))
    cost = torch.cdist(targets.box.expand(*lead, -1, -1), box, p=1.0).mul_(config.cost_l1)
    cost = cost.sub_(iou(query.unsqueeze(-3), target.unsqueeze(-2), generalized=True), alpha=config.cost_giou)
    return cost.sub_(probability.gather(-2, column), alpha=config.cost_class).transpose(-1, -2)


def box_loss(detections: Detections, targets: BoxTargets, config: BoxLossConfig) -> dict[str, Tensor]:
    """The loss over all decoder layers.

    Returns:
        For the last layer "classification", a weighted mean over queries, and "l1" and "giou", means over the boxes (per
        process, at least 1); "auxiliary", the weighted sum of the terms of the earlier layers; and "loss", the weighted sum of
        all terms. Only "loss" has a gradient.

    Raises:
        ValueError: a matching cost is not finite; names layer, image and query.
    """
    layers = (*detections.auxiliary, detections)
    logit, box = torch.stack([one.logit for one in layers]).float(), torch.stack([one.box for one in layers]).float()
    pairs = match(box_cost(logit, box, targets, config), targets.mask, ("layer", "image", "query", "box"))
    terms = _terms(logit, box, targets, pairs, config)  # each [layers]
    total = terms["classification"] + config.l1 * terms["l1"] + config.giou * terms["giou"]
    values = {name: value[-1].detach() for name, value in terms.items()}
    return values | {"auxiliary": total[:-1].sum().detach(), "loss": total.sum()}


def _terms(logit: Tensor, box: Tensor, targets: BoxTargets, pairs: Match, config: BoxLossConfig) -> dict[str, Tensor]:
    images, no_object = len(targets.label), logit.shape[-1] - 1
    layer, image = pairs.problem // images, pairs.problem % images
    expected = torch.full(logit.shape[:-1], no_object, device=logit.device)
    expected[layer, image, pairs.prediction] = targets.label[image, pairs.target]
    weight = torch.where(expected == no_object, config.no_object, 1.0)
    entropy = F.cross_entropy(logit.flatten(0, -2), expected.flatten(), reduction="none").view_as(weight)
    predicted, true = box[layer, image, pairs.prediction], targets.box[image, pairs.target]
    count = targets.mask.sum().float()
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(count)
        count = count / distributed.get_world_size()
    count = count.clamp(min=1.0)

    def by_layer(values: Tensor) -> Tensor:
        return values.new_zeros(len(logit)).index_add(0, layer, values) / count

    return {
        "classification": (weight * entropy).sum((1, 2)) / weight.sum((1, 2)),
        "l1": by_layer((predicted - true).abs().sum(-1)),
        "giou": by_layer(1 - iou(to_corners(predicted), to_corners(true), generalized=True)),
    }
