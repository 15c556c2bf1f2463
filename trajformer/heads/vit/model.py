"""Vision Transformer (Dosovitskiy et al. 2021): a picture is cut into patches, and patches are tokens of a plain encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.blocks import BlockConfig, Encoder
from trajformer.core.positions import LearnedPosition
from trajformer.core.record import recorded_weights


def _base() -> BlockConfig:
    return BlockConfig(width=768, heads=12, feedforward=3072, norm_first=True, activation="gelu", norm_eps=1e-6)


@dataclass(frozen=True)
class ViTConfig:
    """Sizes of a Vision Transformer; the defaults are those of ViT-B/16 (table 1).

    Attributes:
        image_size: height and width of the pictures it is made for, pixels; others are possible, see `ViT`.
        patch_size: height and width of a patch, pixels.
        channels: colours of a picture.
        classes: how many classes there are to tell apart.
        layers: blocks of the encoder.
        block: shape of each; pre-norm with GELU in the paper.
        pooling: what is classified: a class token of its own (the paper) or the mean over the patches (its appendix D.3).
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    classes: int = 1000
    layers: int = 12
    block: BlockConfig = field(default_factory=_base)
    pooling: Literal["token", "mean"] = "token"


class ViT(nn.Module):
    """Pictures -> class scores (eqs. 1 to 4). Positions are learned for the patches of a picture of `image_size` and
    interpolated for those of another one.

    Raises:
        ValueError: the patches do not tile a picture of `image_size`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        if config.patch_size < 1 or config.image_size < config.patch_size or config.image_size % config.patch_size:
            raise ValueError(f"image_size {config.image_size} is no multiple of patch_size {config.patch_size}")
        self.config = config
        width, side = config.block.width, config.image_size // config.patch_size
        self.patches = nn.Conv2d(config.channels, width, config.patch_size, config.patch_size)
        self.token = nn.Parameter(torch.randn(1, width) * 0.02) if config.pooling == "token" else None
        self.position = LearnedPosition((side**2 + (self.token is not None),), width)
        self.dropout = nn.Dropout(config.block.dropout)
        self.encoder = Encoder(config.block, config.layers)
        self.head = nn.Linear(width, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Normalised pictures float [B, C, H, W] -> scores [B, classes], before any softmax.

        Raises:
            ValueError: H or W is no multiple of the patch size, or there are not C colours.
        """
        x = self.encoder(self.dropout(self.embed(images)))
        return self.head(x.mean(-2) if self.token is None else x[:, 0])

    def embed(self, images: Tensor) -> Tensor:
        """Tokens [B, L, D]: the class token, if there is one, then the patches row by row; positions are added."""
        rows, columns = self.grid(images)
        x = self.patches(images).flatten(2).mT  # a convolution that steps by its own width: one linear map of each patch
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), 1, -1), x], 1)
        extra = int(self.token is not None)
        return x + interpolate_positions(self.position(), (rows, columns), extra)

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Rows and columns of the patches of pictures [..., C, H, W].

        Raises:
            ValueError: the patches do not tile them, or there are not C colours.
        """
        channels, height, width = images.shape[-3:]
        size = self.config.patch_size
        if channels != self.config.channels:
            raise ValueError(f"pictures have {channels} channels, expected {self.config.channels}")
        if not height or not width or height % size or width % size:
            raise ValueError(f"pictures of {height} x {width} pixels are not tiled by patches of {size} x {size}")
        return height // size, width // size


def interpolate_positions(position: Tensor, grid: tuple[int, int], extra: int) -> Tensor:
    """Positions [extra + N, D] of a square grid of N patches as [extra + rows * columns, D] of another (section 3.2).

    The first `extra` of them belong to no patch and stay. Bicubic without antialiasing, as in Hugging Face's ViT and in
    float32, as in timm, which resamples with antialiasing: there other sizes than the trained one differ slightly.
    """
    own, patches = position[:extra], position[extra:]
    side = round(len(patches) ** 0.5)
    if grid == (side, side):
        return position
    image = patches.float().mT.unflatten(-1, (side, side))[None]
    image = F.interpolate(image, size=grid, mode="bicubic", align_corners=False)[0]
    return torch.cat([own, image.flatten(1).mT.to(position.dtype)])


def attention_rollout(weights: Sequence[Tensor]) -> Tensor:
    """How much of each input token is in each output token, through all layers (Abnar and Zuidema 2020, section 3).

    A token passes a layer by attention, heads averaged, and by the residual connection, half and half.

    Args:
        weights: [..., heads, L, L] of every layer, first to last.

    Returns:
        [..., L, L]; row i sums to 1 over the input tokens of output i.
    """
    rollout = torch.eye(weights[0].shape[-1], dtype=weights[0].dtype, device=weights[0].device)
    for weight in weights:
        mixed = 0.5 * weight.mean(-3) + 0.5 * torch.eye(weight.shape[-1], dtype=weight.dtype, device=weight.device)
        rollout = mixed / mixed.sum(-1, keepdim=True) @ rollout
    return rollout


@torch.no_grad()
def classify_with_rollout(model: ViT, images: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [B, classes] of pictures [B, C, H, W], and the share [B, rows, columns] each patch has in what is classified."""
    with recorded_weights(model.encoder) as record:
        scores = model(images)
    rollout = attention_rollout([weights[0] for weights in record.values()])
    seen = rollout.mean(-2) if model.token is None else rollout[:, 0, 1:]
    return scores, seen.unflatten(-1, model.grid(images))


def resized(state: dict[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    """A ViT's weights for a `config` of another picture size: the same, their positions interpolated."""
    name, extra = "position.tables.0", int(config.pooling == "token")
    side = config.image_size // config.patch_size
    return state | {name: interpolate_positions(state[name], (side, side), extra)}
