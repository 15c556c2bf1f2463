"""Vision Transformer (Dosovitskiy et al. 2021).

The patches of an image are the tokens of a transformer encoder.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.core.blocks import BlockConfig, Encoder
from trajformer.core.multihead import recorded_weights
from trajformer.core.positions import LearnedPosition


@dataclass(frozen=True)
class ViTConfig(
    Config, positive=("image_size", "patch_size", "channels"), limits={"classes": (1, 1_000_000)}
):
    """Sizes of a Vision Transformer; the defaults are ViT-B/16 (table 1).

    Attributes:
        image_size: height and width of the images, pixels. `ViT` also accepts other sizes.
        patch_size: height and width of a patch, pixels.
        channels: color channels of an image.
        classes: number of classes.
        layers: number of encoder layers.
        block: sizes of each layer; pre-norm with GELU in the paper.
        pooling: classify a learned class token (the paper) or the mean over the patches (appendix
            D.3).
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    classes: int = 1000
    layers: int = 12
    block: BlockConfig = BlockConfig(
        768, 12, 3072, norm_first=True, activation="gelu", norm_eps=1e-6
    )
    pooling: Literal["token", "mean"] = "token"


class ViT(nn.Module):
    """Maps images to class scores (eqs. 1 to 4).

    Positions are learned for images of `image_size` and interpolated for images of another size.
    Raises ValueError: `image_size` is no multiple of `patch_size`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        if config.image_size % config.patch_size:
            raise ValueError(
                f"image_size {config.image_size} is no multiple of patch_size {config.patch_size}"
            )
        self.config = config
        width = config.block.width
        # A convolution with stride is one linear map for every patch.
        self.patches = nn.Conv2d(config.channels, width, config.patch_size, config.patch_size)
        positions = (config.image_size // config.patch_size) ** 2
        self.token: nn.Parameter | None = None
        if config.pooling == "token":
            self.token = nn.Parameter(torch.randn(1, width) * 0.02)
            positions += 1
        self.position = LearnedPosition((positions,), width)
        self.dropout = nn.Dropout(config.block.dropout)
        self.encoder = Encoder(config.block, config.layers)
        self.head = nn.Linear(width, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores of images.

        Args:
            images: normalized, float [B, C, H, W].

        Returns:
            Logits [B, classes].

        Raises:
            ValueError: as `grid`.
        """
        grid = self.grid(images)
        x = self.patches(images).flatten(2).mT  # [B, L, D], row by row
        extra = 0
        if self.token is not None:
            token = self.token.expand(len(x), 1, -1)
            x = torch.cat([token, x], 1)
            extra = 1
        position = interpolate_positions(self.position(), grid, extra)
        x = self.encoder(self.dropout(x + position))
        pooled = x.mean(-2) if self.token is None else x[:, 0]
        return self.head(pooled)

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Rows and columns of patches in images [..., C, H, W].

        Raises ValueError: C is wrong, or patches do not fill H or W.
        """
        channels, height, width = images.shape[-3:]
        size = self.config.patch_size
        if channels != self.config.channels:
            raise ValueError(f"images have {channels} channels, expected {self.config.channels}")
        if not height or not width or height % size or width % size:
            raise ValueError(
                f"images of {height} x {width} pixels cannot be divided into patches "
                f"of {size} x {size}"
            )
        return height // size, width // size


def interpolate_positions(position: Tensor, grid: tuple[int, int], extra: int) -> Tensor:
    """Interpolate positions [extra + N, D] of a square grid of N patches to another grid.

    Section 3.2. The first `extra` positions belong to tokens that are no patches and are kept. The
    interpolation is bicubic without antialiasing in float32, as in Hugging Face's ViT. timm uses
    antialiasing, so its scores at other sizes differ slightly.
    """
    kept = position[:extra]
    patches = position[extra:]
    side = round(len(patches) ** 0.5)
    if grid == (side, side):
        return position
    image = patches.float().mT.unflatten(-1, (side, side))[None]  # [1, D, side, side]
    resized = F.interpolate(image, size=grid, mode="bicubic", align_corners=False)[0]
    return torch.cat([kept, resized.flatten(1).mT.to(position.dtype)])


def attention_rollout(weights: Sequence[Tensor]) -> Tensor:
    """Attention rollout (Abnar and Zuidema 2020, section 3).

    Each layer mixes tokens half by its attention weights, averaged over heads, and half by the
    residual connection.

    Args:
        weights: [..., heads, L, L] of each layer.

    Returns:
        [..., L, L]: row i holds the fraction of each input token in output token i and sums to 1.
    """
    first = weights[0]
    identity = torch.eye(first.shape[-1], dtype=first.dtype, device=first.device)
    rollout = identity
    for weight in weights:
        mixed = 0.5 * weight.mean(-3) + 0.5 * identity
        mixed = mixed / mixed.sum(-1, keepdim=True)
        rollout = mixed @ rollout
    return rollout


@torch.no_grad()
def classify_with_rollout(model: ViT, images: Tensor) -> tuple[Tensor, Tensor]:
    """Class scores of images [B, C, H, W], and the patches that they are based on.

    Returns the scores [B, classes] and the fraction [B, rows, columns] of each patch in the
    classified feature, by attention rollout.
    """
    with recorded_weights(model.encoder) as record:
        scores = model(images)
    rollout = attention_rollout([weights[0] for weights in record.values()])
    fraction = rollout.mean(-2) if model.token is None else rollout[:, 0, 1:]
    return scores, fraction.unflatten(-1, model.grid(images))
