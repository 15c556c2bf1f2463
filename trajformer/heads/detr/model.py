"""DETR: learned queries attend to image features and predict a set of objects; set loss (Carion et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.core.multihead import recorded_weights
from trajformer.core.positions import LearnedPosition, sinusoid_image
from trajformer.data.batch import TensorRecord
from trajformer.heads.detr.backbone import BackboneConfig, Cnn, ResNet
from trajformer.heads.detr.data import BoxTargets, iou, suppress, to_corners
from trajformer.losses.matching import Match, match

MAX_GRID = 50  # rows and columns of the learned position encoding


@dataclass(frozen=True)
class DetrConfig(Config, positive=("classes", "queries", "layers")):
    """Sizes of the detector; except for the backbone, the defaults are the ones of the paper.

    Attributes:
        classes: C, number of object classes.
        queries: Q, maximum number of objects per image.
        block: sizes of encoder and decoder layers.
        layers: number of layers in the encoder and in the decoder.
        position: encoding of feature positions: sines and cosines, or learned rows and columns (at most 50 each).
        backbone: the convolutional network that computes the features.
    """

    classes: int = 91
    queries: int = 100
    block: BlockConfig = BlockConfig(
        width=256, heads=8, feedforward=2048, dropout=0.1, norm_first=False
    )
    layers: tuple[int, int] = (6, 6)
    position: Literal["sine", "learned"] = "sine"
    backbone: BackboneConfig = BackboneConfig()


@dataclass(frozen=True, eq=False)
class Detections:
    """Predictions of Q queries for B images."""

    logit: Tensor  # [B, Q, C + 1], the classes and, last, "no object"
    box: Tensor  # [B, Q, 4], centers as shares of the height and width of the image without padding
    auxiliary: tuple[
        Detections, ...
    ] = ()  # predictions of the earlier decoder layers, first to last


class Detr(nn.Module):
    """Backbone, encoder, parallel decoder of all queries, and two heads on every decoder layer.

    Positions are added to queries and keys in every layer, never to values. The learned queries are the positions of the decoder;
    its inputs are zero. If the backbone excludes padding, the predictions for an image do not depend on padding or on the other
    images of the batch, except for rounding. Raises ValueError: the sizes do not fit together.
    """

    def __init__(self, config: DetrConfig) -> None:
        super().__init__()
        width = config.block.width
        if width % 4:
            raise ValueError(f"block.width: {width} is no multiple of four")
        self.config = config
        resnet = config.backbone.resnet
        self.backbone = Cnn(config.backbone.cnn) if resnet is None else ResNet(resnet)
        self.project = nn.Conv2d(self.backbone.channels, width, 1)
        # Columns are the first axis, as in the published encoding.
        self.position = (
            LearnedPosition((MAX_GRID, MAX_GRID), width) if config.position == "learned" else None
        )
        self.encoder = Encoder(config.block, config.layers[0])
        self.decoder = Decoder(config.block, config.layers[1], final_norm=True)
        self.queries = nn.Embedding(config.queries, width)
        self.classify = nn.Linear(width, config.classes + 1)
        self.locate = nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 4),
        )

    def forward(self, pixels: Tensor, mask: Tensor | None = None) -> Detections:
        """Predict objects in normalized images float [B, 3, H, W].

        The mask is bool [B, H, W], True = image, False = padding at the right or bottom; None without padding.
        """
        feature, real = self.backbone(pixels, mask)
        tokens = self.project(feature).flatten(2).transpose(1, 2)  # [B, L, D]
        height, width = feature.shape[-2:]
        if self.position is not None:  # [1, h, w, D]
            position = self.position(width, height).transpose(0, 1)[None]
        else:  # [B, h, w, D]
            grid = (
                torch.ones(1, height, width, dtype=torch.bool, device=feature.device)
                if real is None
                else real
            )
            position = sinusoid_image(grid, self.config.block.width)
        position = position.flatten(1, 2).to(tokens.dtype)
        keys = None if real is None else real.flatten(1)[:, None]  # [B, 1, L]
        memory = self.encoder(tokens, keys, position)
        query = self.queries.weight.expand(len(pixels), -1, -1)
        decoded = self.decoder(
            torch.zeros_like(query),
            memory,
            memory_mask=keys,
            position=query,
            memory_position=position,
        )
        layers = [Detections(self.classify(x), self.locate(x).sigmoid()) for x in decoded]
        return replace(layers[-1], auxiliary=tuple(layers[:-1]))


@dataclass(frozen=True)
class BoxLossConfig(Config):
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


@torch.no_grad()
def box_cost(logit: Tensor, box: Tensor, targets: BoxTargets, config: BoxLossConfig) -> Tensor:
    """Matching cost [..., B, Q, G] of logits [..., B, Q, C + 1] and boxes [..., B, Q, 4] (centers, shares of the image).

    With the default weights it is 1 * (-p_q(class of g)) + 5 * L1 + 2 * (-GIoU) for box g and query q.
    """
    lead = logit.shape[:-2]
    probability = logit.float().softmax(-1).transpose(-1, -2)  # [..., B, C + 1, Q]
    column = targets.label[..., None].expand(*lead, -1, logit.shape[-2])
    box = box.float()
    # With contiguous queries for each coordinate, this is twice as fast as with contiguous coordinates.
    query, target = (
        to_corners(x).movedim(-1, 0).contiguous().movedim(0, -1) for x in (box, targets.box)
    )
    cost = torch.cdist(targets.box.expand(*lead, -1, -1), box, p=1.0).mul_(config.cost_l1)
    cost = cost.sub_(
        iou(query.unsqueeze(-3), target.unsqueeze(-2), generalized=True), alpha=config.cost_giou
    )
    return cost.sub_(probability.gather(-2, column), alpha=config.cost_class).transpose(-1, -2)


def box_loss(
    detections: Detections, targets: BoxTargets, config: BoxLossConfig
) -> dict[str, Tensor]:
    """DETR's set loss (section 3.1) over all decoder layers, with one-to-one matching of queries and boxes of an image.

    Every query is classified, unmatched ones as "no object". Matched queries are also regressed with L1 and GIoU. Each decoder
    layer is matched separately. Returns for the last layer "classification", a weighted mean over queries, and "l1" and "giou",
    means over the boxes (per process, at least 1); "auxiliary", the weighted sum of the terms of the earlier layers; and "loss",
    the weighted sum of all terms. Only "loss" has a gradient. Raises ValueError with layer, image and query: a matching cost is
    not finite.
    """
    layers = (*detections.auxiliary, detections)
    logit, box = (
        torch.stack([one.logit for one in layers]).float(),
        torch.stack([one.box for one in layers]).float(),
    )
    pairs = match(
        box_cost(logit, box, targets, config), targets.mask, ("layer", "image", "query", "box")
    )
    terms = _terms(logit, box, targets, pairs, config)  # each [layers]
    total = terms["classification"] + config.l1 * terms["l1"] + config.giou * terms["giou"]
    values = {name: value[-1].detach() for name, value in terms.items()}
    return values | {"auxiliary": total[:-1].sum().detach(), "loss": total.sum()}


def _terms(
    logit: Tensor, box: Tensor, targets: BoxTargets, pairs: Match, config: BoxLossConfig
) -> dict[str, Tensor]:
    images, no_object = len(targets.label), logit.shape[-1] - 1
    layer, image = pairs.problem // images, pairs.problem % images
    expected = torch.full(logit.shape[:-1], no_object, device=logit.device)
    expected[layer, image, pairs.prediction] = targets.label[image, pairs.target]
    weight = torch.where(expected == no_object, config.no_object, 1.0)
    entropy = F.cross_entropy(logit.flatten(0, -2), expected.flatten(), reduction="none").view_as(
        weight
    )
    predicted, true = box[layer, image, pairs.prediction], targets.box[image, pairs.target]
    count = targets.mask.sum().float()
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(count)
        count = count / distributed.get_world_size()
    count = count.clamp(min=1.0)

    def by_layer(values: Tensor) -> Tensor:
        return values.new_zeros(len(logit)).index_add(0, layer, values) / count

    return {
        "classification": (weight * entropy).sum((1, 2)) / weight.sum((1, 2)).clamp(min=1e-9),
        "l1": by_layer((predicted - true).abs().sum(-1)),
        "giou": by_layer(1 - iou(to_corners(predicted), to_corners(true), generalized=True)),
    }


@dataclass(frozen=True, eq=False)
class Objects(TensorRecord):
    """Objects in one image, in order of decreasing score."""

    box: Tensor  # corners [N, 4], pixels
    score: Tensor  # [N] in 0..1
    label: Tensor  # int64 [N]
    query: Tensor  # int64 [N], the query that predicted the object

    def rows(self) -> list[tuple[list[float], float, int]]:
        """Corners, score and class of each object."""
        return list(zip(self.box.tolist(), self.score.tolist(), self.label.tolist(), strict=True))

    def first(self, count: int) -> Objects:
        """The `count` objects with the highest scores."""
        return self.map(lambda values: values[:count])


def postprocess(
    detections: Detections, size: Tensor, *, score: float = 0.0, nms: float | None = None
) -> list[Objects]:
    """Objects with their most probable class and a higher score than `score`.

    Boxes are in pixels of the images of `size` int [B, 2], height and width. By default the last layer is used without
    suppression; `nms` joins the predictions of all decoder layers by non-maximum suppression with this IoU threshold.
    """
    layers = (detections,) if nms is None else (detections, *detections.auxiliary)
    best, label = torch.cat([one.logit for one in layers], 1).float().softmax(-1)[..., :-1].max(-1)
    scale = size.flip(-1).repeat(1, 2)[:, None].to(best)  # [B, 1, 4]: width, height, width, height
    box = to_corners(torch.cat([one.box for one in layers], 1).float()) * scale
    results = []
    for index in range(len(size)):
        order = best[index].argsort(descending=True, stable=True)
        if nms is not None:
            order = suppress(box[index], best[index], label[index], nms)
        order = order[best[index, order] > score]
        results.append(
            Objects(
                box[index, order],
                best[index, order],
                label[index, order],
                order % detections.logit.shape[1],
            )
        )
    return results


@torch.no_grad()
def attention_maps(
    model: Detr, pixels: Tensor, size: Tensor, objects: Objects
) -> tuple[Tensor, Tensor]:
    """Attention maps of n objects in one image, pixels float [1, 3, H, W] without padding, of height and width `size` int [1, 2].

    Returns two maps over the feature grid, float [n, h, w] on the CPU, averaged over heads: attention of the query of each object
    in the last decoder layer, and attention of the feature at the center of each box in the last encoder layer.
    """
    with recorded_weights(model) as record:
        rows, columns = model.backbone(pixels)[0].shape[-2:]
        model(pixels)
    weights = {name: values[0][0].mean(0).float().cpu() for name, values in record.items()}
    objects = objects.to("cpu")
    decoder = weights[f"decoder.layers.{len(model.decoder.layers) - 1}.cross_attention.sublayer"][
        objects.query
    ]
    grid = torch.tensor([rows, columns])
    center = (objects.box[:, :2] + objects.box[:, 2:]).flip(-1) / 2 / size.cpu()
    cell = (center * grid).long().clamp(min=torch.zeros_like(grid), max=grid - 1)
    last = weights[f"encoder.layers.{len(model.encoder.layers) - 1}.attention.sublayer"]
    encoder = last[cell[:, 0] * columns + cell[:, 1]]
    return decoder.unflatten(-1, (rows, columns)), encoder.unflatten(-1, (rows, columns))
