"""DETR's set loss (Carion et al. 2020, section 3.1).

Queries and labeled boxes of an image are matched one to one. The loss is computed for the matched
pairs of each decoder layer.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.heads.detr.boxes import iou, to_corners
from trajformer.heads.detr.data import BoxTargets
from trajformer.heads.detr.model import Detections
from trajformer.losses.matching import match


@dataclass(frozen=True)
class BoxLossConfig(Config):
    """Weights of the matching cost and of the loss terms, as in the paper.

    Attributes:
        cost_class: weight of the class probability in the matching cost.
        cost_l1: weight of the L1 distance in the matching cost.
        cost_giou: weight of the GIoU in the matching cost.
        no_object: weight of unmatched queries in the cross-entropy.
        l1: weight of the L1 distance between matched boxes, in fractions of the width and height of
            the image.
        giou: weight of 1 - GIoU of matched boxes.
    """

    cost_class: float = 1.0
    cost_l1: float = 5.0
    cost_giou: float = 2.0
    no_object: float = 0.1
    l1: float = 5.0
    giou: float = 2.0


class MatchedQueries(NamedTuple):
    """M matched queries and labeled boxes, as indices int64 [M]."""

    layer: Tensor
    image: Tensor
    query: Tensor
    target: Tensor


@torch.no_grad()
def box_cost(logit: Tensor, box: Tensor, targets: BoxTargets, config: BoxLossConfig) -> Tensor:
    """Matching cost of every query and every labeled box of an image.

    With the default weights it is 1 * (-p_q(class of g)) + 5 * L1 + 2 * (-GIoU) for labeled box g
    and query q.

    Args:
        logit: [..., B, Q, C + 1].
        box: centers as fractions of the image, [..., B, Q, 4].
        targets: G labeled boxes per image.
        config: the weights.

    Returns:
        float32 [..., B, Q, G].
    """
    *layers, _, queries, _ = logit.shape
    box = box.float()
    target_box = targets.box.expand(*layers, -1, -1, -1)
    cost = torch.cdist(target_box, box, p=1.0).mul_(config.cost_l1)  # [..., B, G, Q]

    query_corner = _contiguous_corners(box)[..., None, :, :]
    target_corner = _contiguous_corners(targets.box)[..., None, :]
    giou = iou(query_corner, target_corner, generalized=True)
    cost = cost.sub_(giou, alpha=config.cost_giou)

    probability = logit.float().softmax(-1).transpose(-1, -2)  # [..., B, C + 1, Q]
    label = targets.label[..., None].expand(*layers, -1, -1, queries)
    cost = cost.sub_(probability.gather(-2, label), alpha=config.cost_class)
    return cost.transpose(-1, -2)


def _contiguous_corners(box: Tensor) -> Tensor:
    """Corners [..., N, 4] of centers, contiguous along N for each coordinate.

    Operations on all pairs are twice as fast as with contiguous coordinates.
    """
    return to_corners(box).movedim(-1, 0).contiguous().movedim(0, -1)


@torch.no_grad()
def match_queries(
    logit: Tensor, box: Tensor, targets: BoxTargets, config: BoxLossConfig
) -> MatchedQueries:
    """Match queries and labeled boxes one to one, separately for each layer and image.

    Args:
        logit: [layers, B, Q, C + 1].
        box: centers as fractions of the image, [layers, B, Q, 4].
        targets: labeled boxes.
        config: weights of the cost.

    Raises:
        ValueError: a cost is not finite; the message names layer, image and query.
    """
    cost = box_cost(logit, box, targets, config)
    pairs = match(cost, targets.mask, ("layer", "image", "query", "box"))
    images = len(targets.label)
    layer = pairs.problem // images
    image = pairs.problem % images
    return MatchedQueries(layer, image, pairs.prediction, pairs.target)


def box_loss(
    detections: Detections, targets: BoxTargets, config: BoxLossConfig
) -> dict[str, Tensor]:
    """Set loss over all decoder layers.

    Every query is classified, unmatched ones as "no object". Matched queries are also regressed
    with L1 and GIoU.

    Returns:
        For the last layer "classification", a weighted mean over queries, and "l1" and "giou",
        means over the boxes (per process, at least 1); "auxiliary", the weighted sum of the terms
        of the earlier layers; and "loss", the weighted sum of all terms. Only "loss" has a
        gradient.

    Raises:
        ValueError: as `match_queries`.
    """
    layers = (*detections.auxiliary, detections)
    logit = torch.stack([one.logit for one in layers]).float()  # [layers, B, Q, C + 1]
    box = torch.stack([one.box for one in layers]).float()  # [layers, B, Q, 4]
    matched = match_queries(logit, box, targets, config)

    terms = {
        "classification": _classification_terms(logit, targets, matched, config.no_object),
        **_box_terms(box, targets, matched),
    }  # each [layers]
    total = terms["classification"] + config.l1 * terms["l1"] + config.giou * terms["giou"]
    values = {name: value[-1].detach() for name, value in terms.items()}
    values["auxiliary"] = total[:-1].sum().detach()
    values["loss"] = total.sum()
    return values


def _classification_terms(
    logit: Tensor, targets: BoxTargets, matched: MatchedQueries, no_object_weight: float
) -> Tensor:
    """Weighted mean of the cross-entropy over the queries of each layer, [layers]."""
    no_object = logit.shape[-1] - 1
    expected = torch.full(logit.shape[:-1], no_object, device=logit.device)
    label = targets.label[matched.image, matched.target]
    expected[matched.layer, matched.image, matched.query] = label
    weight = torch.where(expected == no_object, no_object_weight, 1.0)  # [layers, B, Q]
    entropy = F.cross_entropy(logit.flatten(0, -2), expected.flatten(), reduction="none")
    weighted = weight * entropy.view_as(weight)
    return weighted.sum((1, 2)) / weight.sum((1, 2)).clamp(min=1e-9)


def _box_terms(box: Tensor, targets: BoxTargets, matched: MatchedQueries) -> dict[str, Tensor]:
    """Mean L1 distance and 1 - GIoU over the boxes, [layers] each."""
    predicted = box[matched.layer, matched.image, matched.query]  # [M, 4]
    true = targets.box[matched.image, matched.target]
    l1 = (predicted - true).abs().sum(-1)
    giou = iou(to_corners(predicted), to_corners(true), generalized=True)
    count = _boxes_per_process(targets)

    def mean_by_layer(values: Tensor) -> Tensor:
        layers = values.new_zeros(len(box))
        return layers.index_add(0, matched.layer, values) / count

    return {"l1": mean_by_layer(l1), "giou": mean_by_layer(1 - giou)}


def _boxes_per_process(targets: BoxTargets) -> Tensor:
    """Mean number of boxes over all processes, at least 1."""
    count = targets.mask.sum().float()
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(count)
        count = count / distributed.get_world_size()
    return count.clamp(min=1.0)
