"""DETR: objects as a set, found by queries that attend to a picture's features (Carion et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.core.positions import LearnedPosition, sinusoid_image
from trajformer.core.record import recorded_weights
from trajformer.heads.detr.backbone import BackboneConfig, build_backbone
from trajformer.heads.detr.boxes import suppress, to_corners

LEARNED = 50  # rows and columns of the learned position encoding


@dataclass(frozen=True)
class DetrConfig:
    """Sizes of the detector; those of the paper by default, but for the backbone.

    Attributes:
        classes: C, of objects.
        queries: Q, the most objects that can be found in a picture.
        block: of encoder and decoder.
        layers: of encoder and decoder.
        position: of features: sine and cosine of row and column, or learned rows and columns (at most 50 of each).
        backbone: what makes features of pixels.
    """

    classes: int = 91
    queries: int = 100
    block: BlockConfig = field(
        default_factory=lambda: BlockConfig(width=256, heads=8, feedforward=2048, dropout=0.1, norm_first=False)
    )
    layers: tuple[int, int] = (6, 6)
    position: Literal["sine", "learned"] = "sine"
    backbone: BackboneConfig = field(default_factory=BackboneConfig)


@dataclass(frozen=True, eq=False)
class Detections:
    """What Q queries say of B pictures.

    Attributes:
        logit: [B, Q, C + 1], of the classes and, last, of no object.
        box: [B, Q, 4], centre x, centre y, width and height in shares of the picture's own size, padding left out.
        auxiliary: the same from the earlier decoder layers, first to last.
    """

    logit: Tensor
    box: Tensor
    auxiliary: tuple[Detections, ...] = ()


class Detr(nn.Module):
    """Backbone, encoder over its features, decoder of all queries in parallel, and two heads on every decoder layer.

    Positions are added to queries and keys in every layer and never to values; learned queries are the decoder's positions,
    its inputs are zero. With a backbone that keeps padding out, what is said of a picture does not depend on the others in
    the batch, nor on padding: the figures differ by rounding alone.

    Raises:
        ValueError: sizes that do not go together, or no decoder layer.
    """

    def __init__(self, config: DetrConfig) -> None:
        super().__init__()
        width = config.block.width
        if config.layers[1] < 1 or config.classes < 1 or config.queries < 1:
            raise ValueError(f"classes {config.classes}, queries {config.queries}, decoder layers {config.layers[1]}: at least 1")
        if width % 4:
            raise ValueError(f"block.width: {width} is no multiple of four")
        self.config = config
        self.backbone = build_backbone(config.backbone)
        self.project = nn.Conv2d(self.backbone.channels, width, 1)
        # Columns come first in the published encoding, so columns are its first axis here.
        self.position = LearnedPosition((LEARNED, LEARNED), width) if config.position == "learned" else None
        self.encoder = Encoder(config.block, config.layers[0])
        self.decoder = Decoder(config.block, config.layers[1], final_norm=True)
        self.queries = nn.Embedding(config.queries, width)
        self.classify = nn.Linear(width, config.classes + 1)
        self.locate = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )  # fmt: skip

    def forward(self, pixels: Tensor, mask: Tensor | None = None) -> Detections:
        """Find objects.

        Args:
            pixels: float [B, 3, H, W], normalised.
            mask: bool [B, H, W], True = of the picture, False = padding at the right or below; None where there is none.
        """
        feature, real = self.backbone(pixels, mask)
        tokens = self.project(feature).flatten(2).transpose(1, 2)  # [B, L, D]
        position = self._place(feature, real).flatten(1, 2).to(tokens.dtype)
        keys = None if real is None else real.flatten(1)[:, None]  # [B, 1, L]
        memory = self.encoder(tokens, keys, position)
        query = self.queries.weight.expand(len(pixels), -1, -1)
        decoded = self.decoder(
            torch.zeros_like(query), memory, memory_mask=keys, position=query, memory_position=position
        )  # fmt: skip
        layers = [Detections(self.classify(x), self.locate(x).sigmoid()) for x in decoded]
        return replace(layers[-1], auxiliary=tuple(layers[:-1]))

    def _place(self, feature: Tensor, real: Tensor | None) -> Tensor:
        """Position encoding [B or 1, h, w, D] of features [B, C, h, w]."""
        height, width = feature.shape[-2:]
        if self.position is not None:
            return self.position(width, height).transpose(0, 1)[None]
        if real is None:
            real = torch.ones(1, height, width, dtype=torch.bool, device=feature.device)
        return sinusoid_image(real, self.config.block.width)


@dataclass(frozen=True, eq=False)
class Found:
    """Objects in one picture, the surest first: corners [N, 4] in its pixels, score [N] in 0..1, class int64 [N].

    `query` int64 [N] tells which query found each.
    """

    box: Tensor
    score: Tensor
    label: Tensor
    query: Tensor

    def rows(self) -> list[tuple[list[float], float, int]]:
        """Corners, score and class of each object."""
        return list(zip(self.box.tolist(), self.score.tolist(), self.label.tolist(), strict=True))

    def first(self, count: int) -> Found:
        """The surest `count` objects."""
        return Found(self.box[:count], self.score[:count], self.label[:count], self.query[:count])

    def cpu(self) -> Found:
        """The same on the CPU."""
        return Found(self.box.cpu(), self.score.cpu(), self.label.cpu(), self.query.cpu())


def find(detections: Detections, size: Tensor, *, score: float = 0.0, merge: float | None = None) -> list[Found]:
    """The objects that are surer than `score`, in pixels.

    Every query names its most probable class other than no object.

    Args:
        detections: of B pictures.
        size: int [B, 2], height and width of each picture, in whose pixels boxes are wanted.
        merge: take the queries of all decoder layers, and of boxes of one class that overlap by more than this share (of
            intersection over union) only the surest. By default the last layer is taken as it is.
    """
    layers = (detections,) if merge is None else (detections, *detections.auxiliary)
    sure, label = torch.cat([one.logit for one in layers], 1).float().softmax(-1)[..., :-1].max(-1)
    scale = size.flip(-1).repeat(1, 2)[:, None].to(sure)  # width, height, width, height
    box = to_corners(torch.cat([one.box for one in layers], 1).float()) * scale
    found = []
    for index in range(len(size)):
        if merge is None:
            order = sure[index].argsort(descending=True, stable=True)
        else:
            order = suppress(box[index], sure[index], label[index], merge)
        order = order[sure[index, order] > score]
        queries = order % detections.logit.shape[1]
        found.append(Found(box[index, order], sure[index, order], label[index, order], queries))
    return found


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """What n objects were found by, over the grid of features, float [n, h, w] on the CPU, means of all heads.

    Attributes:
        decoder: what an object's query attended to in the last layer.
        encoder: what the features at the middle of its box attended to in the encoder's last layer; zero without one.
    """

    decoder: Tensor
    encoder: Tensor


@torch.no_grad()
def attention_maps(model: Detr, pixels: Tensor, size: Tensor, found: Found) -> AttentionMaps:
    """Attention behind objects found in one picture.

    Args:
        pixels: float [1, 3, H, W], normalised, without padding.
        size: int [1, 2], height and width of the picture in whose pixels the objects are.
        found: the objects.
    """
    with recorded_weights(model) as weights:
        rows, columns = model.backbone(pixels)[0].shape[-2:]
        model(pixels)
    grid, query = torch.tensor([rows, columns]), found.query.cpu()
    cross = weights[f"decoder.layers.{len(model.decoder.layers) - 1}.cross_attention.sublayer"][0]
    decoder = cross[0].mean(0).float().cpu()[query]  # [heads, Q, L] -> [n, L]
    encoder = torch.zeros_like(decoder)
    if len(model.encoder.layers):
        own = weights[f"encoder.layers.{len(model.encoder.layers) - 1}.attention.sublayer"][0][0].mean(0).float().cpu()
        middle = (found.box[:, :2] + found.box[:, 2:]).cpu().flip(-1) / 2 / size.cpu()
        place = (middle * grid).long().clamp(min=torch.zeros_like(grid), max=grid - 1)
        encoder = own[place[:, 0] * columns + place[:, 1]]
    return AttentionMaps(*(values.unflatten(-1, (rows, columns)) for values in (decoder, encoder)))
