"""DETR's set loss (Carion et al. 2020, section 3.1): queries against the boxes of an image, matched one to one.

Cost of giving box g to query q: 1 * (-p_q(class of g)) + 5 * L1 + 2 * (-GIoU). Every query is classified, those without a box
as no object; matched ones are regressed with L1 and GIoU. Earlier decoder layers get the same terms with matches of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from trajformer.heads.detr.boxes import overlap, to_corners
from trajformer.heads.detr.data.batch import BoxTargets
from trajformer.heads.detr.model import Detections
from trajformer.losses.matching import Match, match


@dataclass(frozen=True)
class BoxLossConfig:
    """Weights of the matching cost and of the terms, as in the paper.

    Attributes:
        cost_class, cost_l1, cost_giou: the matching cost.
        no_object: weight of queries without a box in the cross-entropy.
        l1: L1 between matched boxes, in shares of the image's width and height.
        giou: 1 - GIoU of matched boxes.
    """

    cost_class: float = 1.0
    cost_l1: float = 5.0
    cost_giou: float = 2.0
    no_object: float = 0.1
    l1: float = 5.0
    giou: float = 2.0


@torch.no_grad()
def box_cost(logit: Tensor, box: Tensor, targets: BoxTargets, config: BoxLossConfig) -> Tensor:
    """Matching cost [..., B, Q, G] of logits [..., B, Q, C + 1] and boxes [..., B, Q, 4] (centres, shares of the image)."""
    lead = logit.shape[:-2]
    probability = logit.float().softmax(-1).transpose(-1, -2)  # [..., B, C + 1, Q]
    column = targets.label[..., None].expand(*lead, -1, logit.shape[-2])
    box = box.float()
    # The many queries lie innermost, each coordinate by itself: twice as fast as coordinates innermost.
    query, target = (to_corners(x).movedim(-1, 0).contiguous().movedim(0, -1) for x in (box, targets.box))
    cost = torch.cdist(targets.box.expand(*lead, -1, -1), box, p=1.0).mul_(config.cost_l1)
    cost = cost.sub_(overlap(query.unsqueeze(-3), target.unsqueeze(-2), generalised=True), alpha=config.cost_giou)
    return cost.sub_(probability.gather(-2, column), alpha=config.cost_class).transpose(-1, -2)


def box_loss(detections: Detections, targets: BoxTargets, config: BoxLossConfig) -> dict[str, Tensor]:
    """The loss of all decoder layers.

    Args:
        detections: of the last layer, the earlier ones in `auxiliary`.
        targets: the boxes of each image.

    Returns:
        Means of the last layer, "classification" over queries (weighted as the terms are), "l1" and "giou" over boxes (of all
        processes, at least 1), "auxiliary", the weighted sum of the earlier layers' terms, and the sum of all, "loss" (the
        only one with a gradient to use).

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
    wanted = torch.full(logit.shape[:-1], no_object, device=logit.device)
    wanted[layer, image, pairs.prediction] = targets.label[image, pairs.target]
    weight = torch.where(wanted == no_object, config.no_object, 1.0)
    entropy = F.cross_entropy(logit.flatten(0, -2), wanted.flatten(), reduction="none").view_as(weight)
    found, true = box[layer, image, pairs.prediction], targets.box[image, pairs.target]
    count = mean_count(targets.mask.sum())

    def by_layer(values: Tensor) -> Tensor:
        return values.new_zeros(len(logit)).index_add(0, layer, values) / count

    return {
        "classification": (weight * entropy).sum((1, 2)) / weight.sum((1, 2)),
        "l1": by_layer((found - true).abs().sum(-1)),
        "giou": by_layer(1 - overlap(to_corners(found), to_corners(true), generalised=True)),
    }


def mean_count(count: Tensor) -> Tensor:
    """The mean of a count over all processes, at least 1."""
    count = count.float()
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(count)
        count = count / distributed.get_world_size()
    return count.clamp(min=1.0)
