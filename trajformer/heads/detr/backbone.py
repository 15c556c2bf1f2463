"""Convolutional backbones of detectors: they map an image to a coarse grid of features.

Padding is excluded: features of padding are set to zero before every convolution, like zero padding at the border of an image,
and are left out of the statistics of norms. So the features of an image do not depend on the other images of the batch.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.config import Config


@dataclass(frozen=True)
class CnnConfig(Config, positive=("widths", "blocks", "groups")):
    """A small residual network for training from scratch, with group normalization, which works with any batch size.

    Attributes:
        widths: channels of each stage; every stage halves the resolution, so the stride is 2 ** stages.
        blocks: residual blocks per stage.
        groups: number of channel groups of each norm.
        coordinates: append two channels with the row and the column of each feature (Liu et al. 2018), because a shallow network
            cannot derive them from the borders of the image.
    """

    widths: tuple[int, ...] = (32, 64, 128, 256)
    blocks: int = 1
    groups: int = 8
    coordinates: bool = True


@dataclass(frozen=True)
class ResNetConfig(Config, positive=("blocks", "width")):
    """A ResNet of bottleneck blocks with frozen batch norm, for published weights (He et al. 2016).

    Attributes:
        blocks: bottleneck blocks of each of the four stages; (3, 4, 6, 3) is ResNet-50, (3, 4, 23, 3) is ResNet-101.
        width: channels of the stem; the last stage has 32 times this number.
        stride: stride of the features; 16 replaces the stride of the last stage by dilation (DETR-DC5).
        frozen: the stem and this number of stages are not trained.
        padding: "out" excludes padding; "in" treats padding as pixels, as the published code does.
    """

    blocks: tuple[int, int, int, int] = (3, 4, 6, 3)
    width: int = 64
    stride: Literal[16, 32] = 32
    frozen: int = 1
    padding: Literal["out", "in"] = "out"


@dataclass(frozen=True)
class BackboneConfig(Config):
    """The backbone: a ResNet if `resnet` is given, else the small network."""

    cnn: CnnConfig = CnnConfig()
    resnet: ResNetConfig | None = None


def _coarser(mask: Tensor | None) -> Tensor | None:
    """The mask at the outputs of a convolution with stride 2."""
    return None if mask is None else mask[:, ::2, ::2]


def _clear(x: Tensor, mask: Tensor | None) -> Tensor:
    """Set x [B, C, h, w] to zero where the mask bool [B, h, w] is False."""
    return x if mask is None else x.masked_fill(~mask[:, None], 0.0)


def _coordinates(x: Tensor, mask: Tensor | None) -> Tensor:
    """Row and column [B, 2, h, w] of features x, from -1.7 to 1.7 over the image: the variance of a normalized channel."""
    real = torch.ones_like(x[:, 0], dtype=torch.bool) if mask is None else mask
    index = torch.stack([real.cumsum(axis, dtype=x.dtype) for axis in (1, 2)], 1)
    share = (index - 0.5) / index.amax((2, 3), keepdim=True).clamp(min=1.0)
    return _clear((2.0 * share - 1.0) * 3.0**0.5, mask)


class MaskedGroupNorm(nn.GroupNorm):
    """Group normalization (Wu and He 2018) with the mean and variance of unmasked pixels."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalize [B, C, h, w] with mask bool [B, h, w]; where the mask is False, the output is finite but has no meaning."""
        if mask is None:
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            group = x.float().unflatten(1, (self.num_groups, -1))  # [B, groups, C / groups, h, w]
            real = mask[:, None, None]
            count = (real.sum((-1, -2, -3), keepdim=True) * group.shape[2]).clamp(min=1)
            mean = group.masked_fill(~real, 0.0).sum((-1, -2, -3), keepdim=True) / count
            centered = (group - mean).masked_fill(~real, 0.0)
            scale = (centered.square().sum((-1, -2, -3), keepdim=True) / count + self.eps).rsqrt()
            out = (centered * scale).flatten(1, 2)
            return out * self.weight.float()[:, None, None] + self.bias.float()[:, None, None]


class _Residual(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, all followed by norms."""

    def __init__(self, before: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.stride = stride
        self.first = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = (
            nn.Conv2d(before, width, 1, stride, bias=False)
            if (before, stride) != (width, 1)
            else None
        )
        self.norms = nn.ModuleList(
            MaskedGroupNorm(groups, width) for _ in range(2 if self.shortcut is None else 3)
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, C, H, W] and the output are zero in the padding; `mask` [B, h, w] belongs to the output."""
        inner = _clear(F.relu(self.norms[0](self.first(x), mask)), mask)
        shortcut = x if self.shortcut is None else self.norms[2](self.shortcut(x), mask)
        return _clear(F.relu(shortcut + self.norms[1](self.second(inner), mask)), mask)


class Cnn(nn.Module):
    """A small residual network with group normalization."""

    def __init__(self, config: CnnConfig) -> None:
        super().__init__()
        self.channels, self.stride = (
            config.widths[-1] + 2 * config.coordinates,
            2 ** len(config.widths),
        )
        self.coordinates = config.coordinates
        self.stem = nn.Conv2d(3, config.widths[0], 3, stride=2, padding=1, bias=False)
        self.norm = MaskedGroupNorm(config.groups, config.widths[0])
        self.blocks = nn.ModuleList()
        for before, width in pairwise(config.widths):
            self.blocks.append(_Residual(before, width, 2, config.groups))
            self.blocks.extend(
                _Residual(width, width, 1, config.groups) for _ in range(config.blocks - 1)
            )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pixels: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Features [B, C, h, w] of pixels [B, 3, H, W] with h = ceil(H / stride), and their mask bool [B, h, w].

        The given mask is bool [B, H, W], True = image, False = padding; None without padding.
        """
        x, mask = self.stem(_clear(pixels, mask)), _coarser(mask)
        x = _clear(F.relu(self.norm(x, mask)), mask)
        for block in self.blocks:
            mask = _coarser(mask) if block.stride == 2 else mask
            x = block(x, mask)
        return (torch.cat([x, _coordinates(x, mask)], 1) if self.coordinates else x), mask


class FrozenBatchNorm(nn.Module):
    """Batch normalization with fixed statistics and affine map; [B, C, h, w] -> [B, C, h, w]."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name, value in (("weight", 1.0), ("bias", 0.0), ("mean", 0.0), ("variance", 1.0)):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift each channel."""
        scale = self.weight * (self.variance + self.eps).rsqrt()
        return x * scale[:, None, None].to(x.dtype) + (self.bias - self.mean * scale)[
            :, None, None
        ].to(x.dtype)


class _Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions and a shortcut; the middle convolution has the stride (ResNet "1.5")."""

    def __init__(self, before: int, width: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.stride = stride
        middle = nn.Conv2d(width, width, 3, stride, padding=dilation, dilation=dilation, bias=False)
        ends = nn.Conv2d(before, width, 1, bias=False), nn.Conv2d(width, 4 * width, 1, bias=False)
        self.convolutions = nn.ModuleList((ends[0], middle, ends[1]))
        self.norms = nn.ModuleList(
            FrozenBatchNorm(channels) for channels in (width, width, 4 * width)
        )
        shortcut = nn.Sequential(
            nn.Conv2d(before, 4 * width, 1, stride, bias=False), FrozenBatchNorm(4 * width)
        )
        self.shortcut = shortcut if before != 4 * width or stride > 1 else nn.Identity()

    def forward(self, x: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
        """x is zero outside of the mask `before`, the output outside of the mask `after`; None treats padding as pixels."""
        narrow = _clear(F.relu(self.norms[0](self.convolutions[0](x))), before)
        middle = F.relu(
            self.norms[1](self.convolutions[1](narrow))
        )  # not masked: a 1 x 1 convolution reads no neighbors
        wide = self.norms[2](self.convolutions[2](middle))
        return _clear(F.relu(self.shortcut(x) + wide), after)


class ResNet(nn.Module):
    """A ResNet with frozen batch norm."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.channels, self.stride, self.padding = 32 * config.width, config.stride, config.padding
        self.stem = nn.Conv2d(3, config.width, 7, stride=2, padding=3, bias=False)
        self.norm = FrozenBatchNorm(config.width)
        self.stages = nn.ModuleList()
        before = config.width
        for stage, count in enumerate(config.blocks):
            width, dilated = config.width * 2**stage, stage == 3 and config.stride == 16
            first = _Bottleneck(before, width, 2 if stage and not dilated else 1, 1)
            before = 4 * width
            rest = (_Bottleneck(before, width, 1, 2 if dilated else 1) for _ in range(count - 1))
            self.stages.append(nn.ModuleList((first, *rest)))
        for part in (self.stem, *self.stages[: config.frozen]):
            part.requires_grad_(False)

    def forward(self, pixels: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """As `Cnn.forward`."""
        image_mask = mask
        if self.padding == "in":
            mask = None
        x, mask = F.relu(self.norm(self.stem(_clear(pixels, mask)))), _coarser(mask)
        # All values are at least zero, so zeros in the padding equal the minus infinity that pooling adds at the border.
        x, mask = F.max_pool2d(_clear(x, mask), 3, stride=2, padding=1), _coarser(mask)
        x = _clear(x, mask)
        for block in (module for module in self.modules() if isinstance(module, _Bottleneck)):
            after = _coarser(mask) if block.stride == 2 else mask
            x, mask = block(x, mask, after), after
        if self.padding == "in" and image_mask is not None:
            return x, F.interpolate(image_mask[:, None].float(), size=x.shape[-2:])[:, 0] > 0
        return x, mask
