"""Convolutional backbones of detectors: they map an image to a coarse grid of features.

Padding is excluded: features of padding are set to zero before every convolution, like zero padding
at the border of an image, and are left out of the statistics of norms. So the features of an image
do not depend on the other images of the batch.
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
    """A small residual network for training from scratch.

    It has group normalization, which works with any batch size.

    Attributes:
        widths: channels of each stage; every stage halves the resolution, so the stride is
            2 ** stages.
        blocks: residual blocks per stage.
        groups: number of channel groups of each norm.
        coordinates: append two channels with the row and the column of each feature (Liu et al.
            2018), because a shallow network cannot derive them from the borders of the image.
    """

    widths: tuple[int, ...] = (32, 64, 128, 256)
    blocks: int = 1
    groups: int = 8
    coordinates: bool = True


@dataclass(frozen=True)
class ResNetConfig(Config, positive=("blocks", "width")):
    """A ResNet of bottleneck blocks with frozen batch norm, for published weights (He et al. 2016).

    Attributes:
        blocks: bottleneck blocks of each of the four stages; (3, 4, 6, 3) is ResNet-50,
            (3, 4, 23, 3) is ResNet-101.
        width: channels of the stem; the last stage has 32 times this number.
        stride: stride of the features; 16 replaces the stride of the last stage by dilation
            (DETR-DC5).
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
    """Row and column [B, 2, h, w] of features x [B, C, h, w].

    They range from -1.7 to 1.7 over the image, so they have the variance of a normalized channel.
    """
    real = torch.ones_like(x[:, 0], dtype=torch.bool) if mask is None else mask
    row = real.cumsum(1, dtype=x.dtype)
    column = real.cumsum(2, dtype=x.dtype)
    number = torch.stack([row, column], 1)  # from 1
    count = number.amax((2, 3), keepdim=True).clamp(min=1.0)
    position = (number - 0.5) / count  # in 0..1
    return _clear((2.0 * position - 1.0) * 3.0**0.5, mask)


class MaskedGroupNorm(nn.GroupNorm):
    """Group normalization (Wu and He 2018) with the mean and variance of unmasked pixels."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Normalize [B, C, h, w] with mask bool [B, h, w].

        Where the mask is False, the output is finite but has no meaning.
        """
        if mask is None:
            return super().forward(x)
        axes = (-1, -2, -3)
        with torch.autocast(x.device.type, enabled=False):
            group = x.float().unflatten(1, (self.num_groups, -1))  # [B, groups, C / groups, h, w]
            real = mask[:, None, None]
            count = (real.sum(axes, keepdim=True) * group.shape[2]).clamp(min=1)
            mean = group.masked_fill(~real, 0.0).sum(axes, keepdim=True) / count
            centered = (group - mean).masked_fill(~real, 0.0)
            variance = centered.square().sum(axes, keepdim=True) / count
            out = (centered * (variance + self.eps).rsqrt()).flatten(1, 2)
            weight = self.weight.float()[:, None, None]
            bias = self.bias.float()[:, None, None]
            return out * weight + bias


class _Residual(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, all followed by norms."""

    def __init__(self, before: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.stride = stride
        self.first = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        norms = [MaskedGroupNorm(groups, width), MaskedGroupNorm(groups, width)]
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or before != width:
            self.shortcut = nn.Conv2d(before, width, 1, stride, bias=False)
            norms.append(MaskedGroupNorm(groups, width))
        self.norms = nn.ModuleList(norms)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, C, H, W] and the output are zero in the padding.

        `mask` bool [B, h, w] belongs to the output.
        """
        inner = _clear(F.relu(self.norms[0](self.first(x), mask)), mask)
        outer = self.norms[1](self.second(inner), mask)
        if self.shortcut is not None:
            x = self.norms[2](self.shortcut(x), mask)
        return _clear(F.relu(x + outer), mask)


class Cnn(nn.Module):
    """A small residual network with group normalization."""

    def __init__(self, config: CnnConfig) -> None:
        super().__init__()
        self.stride = 2 ** len(config.widths)
        self.channels = config.widths[-1]
        self.coordinates = config.coordinates
        if config.coordinates:
            self.channels += 2
        self.stem = nn.Conv2d(3, config.widths[0], 3, stride=2, padding=1, bias=False)
        self.norm = MaskedGroupNorm(config.groups, config.widths[0])
        self.blocks = nn.ModuleList()
        for before, width in pairwise(config.widths):
            self.blocks.append(_Residual(before, width, 2, config.groups))
            for _ in range(config.blocks - 1):
                self.blocks.append(_Residual(width, width, 1, config.groups))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pixels: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Features of an image and their mask.

        Args:
            pixels: [B, 3, H, W].
            mask: bool [B, H, W], True = image, False = padding; None without padding.

        Returns:
            Features [B, C, h, w] with h = ceil(H / stride), and their mask bool [B, h, w].
        """
        x = self.stem(_clear(pixels, mask))
        mask = _coarser(mask)
        x = _clear(F.relu(self.norm(x, mask)), mask)
        for block in self.blocks:
            if block.stride == 2:
                mask = _coarser(mask)
            x = block(x, mask)
        if self.coordinates:
            x = torch.cat([x, _coordinates(x, mask)], 1)
        return x, mask


class FrozenBatchNorm(nn.Module):
    """Batch normalization with fixed statistics and affine map; [B, C, h, w] -> [B, C, h, w]."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("bias", torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift each channel."""
        scale = self.weight * (self.variance + self.eps).rsqrt()
        shift = self.bias - self.mean * scale
        return x * scale[:, None, None].to(x.dtype) + shift[:, None, None].to(x.dtype)


class _Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions and a shortcut.

    The middle convolution has the stride (ResNet "1.5").
    """

    def __init__(self, before: int, width: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.stride = stride
        after = 4 * width
        middle = nn.Conv2d(width, width, 3, stride, padding=dilation, dilation=dilation, bias=False)
        narrow = nn.Conv2d(before, width, 1, bias=False)
        wide = nn.Conv2d(width, after, 1, bias=False)
        self.convolutions = nn.ModuleList([narrow, middle, wide])
        self.norms = nn.ModuleList(
            [FrozenBatchNorm(width), FrozenBatchNorm(width), FrozenBatchNorm(after)]
        )
        projection = nn.Conv2d(before, after, 1, stride, bias=False)
        if before != after or stride > 1:
            self.shortcut: nn.Module = nn.Sequential(projection, FrozenBatchNorm(after))
        else:
            self.shortcut = nn.Identity()

    def forward(self, x: Tensor, before: Tensor | None, after: Tensor | None) -> Tensor:
        """x is zero outside of the mask `before`, the output outside of the mask `after`.

        None treats padding as pixels.
        """
        narrow = _clear(F.relu(self.norms[0](self.convolutions[0](x))), before)
        # Not masked: the last 1 x 1 convolution reads no neighbors.
        middle = F.relu(self.norms[1](self.convolutions[1](narrow)))
        wide = self.norms[2](self.convolutions[2](middle))
        return _clear(F.relu(self.shortcut(x) + wide), after)


class ResNet(nn.Module):
    """A ResNet with frozen batch norm."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.channels = 32 * config.width
        self.stride = config.stride
        self.padding = config.padding
        self.stem = nn.Conv2d(3, config.width, 7, stride=2, padding=3, bias=False)
        self.norm = FrozenBatchNorm(config.width)
        self.stages = nn.ModuleList()
        before = config.width
        for stage, count in enumerate(config.blocks):
            width = config.width * 2**stage
            dilated = stage == 3 and config.stride == 16
            halves = stage > 0 and not dilated
            blocks = [_Bottleneck(before, width, stride=2 if halves else 1, dilation=1)]
            before = 4 * width
            for _ in range(count - 1):
                dilation = 2 if dilated else 1
                blocks.append(_Bottleneck(before, width, stride=1, dilation=dilation))
            self.stages.append(nn.ModuleList(blocks))
        for part in (self.stem, *self.stages[: config.frozen]):
            part.requires_grad_(False)

    def forward(self, pixels: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """As `Cnn.forward`."""
        image_mask = mask
        if self.padding == "in":
            mask = None
        x = F.relu(self.norm(self.stem(_clear(pixels, mask))))
        mask = _coarser(mask)
        # All values are at least zero, so zeros in the padding equal the minus infinity that
        # pooling adds at the border.
        x = F.max_pool2d(_clear(x, mask), 3, stride=2, padding=1)
        mask = _coarser(mask)
        x = _clear(x, mask)
        blocks = [module for module in self.stages.modules() if isinstance(module, _Bottleneck)]
        for block in blocks:
            after = _coarser(mask) if block.stride == 2 else mask
            x = block(x, mask, after)
            mask = after
        if self.padding == "in" and image_mask is not None:
            resized = F.interpolate(image_mask[:, None].float(), size=x.shape[-2:])
            mask = resized[:, 0] > 0
        return x, mask


def build_backbone(config: BackboneConfig) -> Cnn | ResNet:
    """The untrained network of a config."""
    if config.resnet is not None:
        return ResNet(config.resnet)
    return Cnn(config.cnn)
