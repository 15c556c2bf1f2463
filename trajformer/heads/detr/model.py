"""DETR: learned queries attend to image features and predict a set of objects.

Carion et al. 2020. The set loss is in `loss.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from trajformer.config import Config
from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.core.positions import LearnedPosition, sinusoid_image
from trajformer.heads.detr.backbone import BackboneConfig, build_backbone

MAX_GRID = 50  # rows and columns of the learned position encoding


@dataclass(frozen=True)
class DetrConfig(Config, positive=("classes", "queries", "layers")):
    """Sizes of the detector; except for the backbone, the defaults are the ones of the paper.

    Attributes:
        classes: C, number of object classes.
        queries: Q, maximum number of objects per image.
        block: sizes of encoder and decoder layers.
        layers: number of layers in the encoder and in the decoder.
        position: encoding of feature positions: sines and cosines, or learned rows and columns (at
            most 50 each).
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
    """Predictions of Q queries for B images.

    Boxes are centers as fractions of the height and width of the image without padding.
    """

    logit: Tensor  # [B, Q, C + 1], the classes and, last, "no object"
    box: Tensor  # [B, Q, 4]
    auxiliary: tuple[Detections, ...] = ()  # of the earlier decoder layers, first to last


class Detr(nn.Module):
    """Backbone, encoder, parallel decoder of all queries, and two heads on every decoder layer.

    Positions are added to queries and keys in every layer, never to values. The learned queries are
    the positions of the decoder; its inputs are zero. If the backbone excludes padding, the
    predictions for an image do not depend on padding or on the other images of the batch, except
    for rounding. Raises ValueError: the sizes do not fit together.
    """

    def __init__(self, config: DetrConfig) -> None:
        super().__init__()
        width = config.block.width
        if width % 4:
            raise ValueError(f"block.width: {width} is no multiple of four")
        self.config = config
        self.backbone = build_backbone(config.backbone)
        self.project = nn.Conv2d(self.backbone.channels, width, 1)
        self.position: LearnedPosition | None = None
        if config.position == "learned":
            # Columns are the first axis, as in the published encoding.
            self.position = LearnedPosition((MAX_GRID, MAX_GRID), width)
        encoder_layers, decoder_layers = config.layers
        self.encoder = Encoder(config.block, encoder_layers)
        self.decoder = Decoder(config.block, decoder_layers, final_norm=True)
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
        """Predict objects in images.

        Args:
            pixels: normalized images, float [B, 3, H, W].
            mask: bool [B, H, W], True = image, False = padding at the right or bottom; None without
                padding.
        """
        feature, feature_mask = self.backbone(pixels, mask)  # [B, C, h, w], bool [B, h, w]
        tokens = self.project(feature).flatten(2).transpose(1, 2)  # [B, L, D]
        position = self._positions(feature, feature_mask).to(tokens.dtype)
        key_mask = None if feature_mask is None else feature_mask.flatten(1)[:, None]  # [B, 1, L]
        memory = self.encoder(tokens, key_mask, position)

        query = self.queries.weight.expand(len(pixels), -1, -1)  # [B, Q, D]
        decoded = self.decoder(
            torch.zeros_like(query),
            memory,
            memory_mask=key_mask,
            position=query,
            memory_position=position,
        )
        layers = [Detections(self.classify(x), self.locate(x).sigmoid()) for x in decoded]
        return replace(layers[-1], auxiliary=tuple(layers[:-1]))

    def _positions(self, feature: Tensor, mask: Tensor | None) -> Tensor:
        """Encoded positions of features [B, C, h, w]: [B, L, D], or [1, L, D] for all images."""
        height, width = feature.shape[-2:]
        if self.position is not None:
            grid = self.position(width, height).transpose(0, 1)[None]
        else:
            if mask is None:
                mask = torch.ones(1, height, width, dtype=torch.bool, device=feature.device)
            grid = sinusoid_image(mask, self.config.block.width)
        return grid.flatten(1, 2)
