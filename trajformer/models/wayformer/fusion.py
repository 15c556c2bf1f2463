"""Wayformer's scene encoders (Nayakanti et al. 2022): three independent choices.

- Fusion: blocks before the modalities are joined, after it, or half and half (`SceneEncoder`).
- Attention: the axis that each block of an encoder attends along (`SceneEncoderConfig.axes`).
- Latent queries: the first block along an axis shortens it (`AxisEncoder`).

Readings of the paper:
- Factorised blocks along an axis of length one would have no effect, so they attend along the other axis: a target's history has
  temporal blocks only, the road spatial blocks only. If the number of blocks is odd, there is one more spatial block.
- In a factorised encoder of all modalities, the road (without time) is tiled over the steps at which an agent was seen. Its
  outputs are means over the copies, unless latents replace them.
- The share of latents refers to the largest input, because the paper's inputs have fixed sizes. It applies to every encoder:
  hierarchical fusion shortens the tokens twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from trajformer.core.axes import apply_along_axis
from trajformer.core.blocks import BlockConfig, EncoderBlock, LatentBlock
from trajformer.errors import ConfigError, check_numbers

TIME, SPACE = 1, 2  # axes of a grid


class Grid(NamedTuple):
    """Tokens of N targets at T steps and S slots (agents, polylines or latents).

    Attributes:
        token: [N, T, S, D].
        real: bool [N, T, S].
    """

    token: Tensor
    real: Tensor


@dataclass(frozen=True)
class LatentConfig:
    """Number of latent queries of an encoder.

    Attributes:
        ratio: R, number of latents per token, or per step and per slot for factorised attention.
        counts: absolute numbers instead: (tokens,) for multi-axis attention, (steps, slots) for factorised attention.
    """

    ratio: float = 0.5
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_numbers(self, positive=("ratio", "counts"), shares=("ratio",))

    def count(self, axis: int, length: int) -> int:
        """Number of latents that replace `length` tokens along an axis."""
        if self.counts:
            return self.counts[0] if axis == TIME else self.counts[-1]
        return max(round(self.ratio * length), 1)


@dataclass(frozen=True)
class SceneEncoderConfig:
    """A variant of the encoder.

    Attributes:
        fusion: early (one encoder for all modalities), late (one per modality), or hierarchical (half of the blocks each).
        attention: over all steps and slots at once, or factorised: half of the blocks temporal, then half spatial
            (sequential), or alternating (interleaved).
        latents: latent queries, none by default.
        layers: N, number of blocks between the tokens and the decoder.
        block: shape of the blocks.
    """

    fusion: Literal["early", "late", "hierarchical"] = "early"
    attention: Literal["multi_axis", "sequential", "interleaved"] = "multi_axis"
    latents: LatentConfig | None = None
    layers: int = 4
    block: BlockConfig = field(default_factory=lambda: BlockConfig(128, 4, 512))

    def __post_init__(self) -> None:
        check_numbers(self)
        factorised = self.attention != "multi_axis"
        if factorised and 1 in self.depths():
            raise ConfigError("layers", f"{self.layers}, expected at least two in each encoder for factorised attention")
        counts = self.latents.counts if self.latents else ()
        if counts and len(counts) != 1 + factorised:
            raise ConfigError("latents.counts", f"{len(counts)} numbers, expected {1 + factorised} for {self.attention}")

    def depths(self) -> tuple[int, int]:
        """Numbers of blocks: of the encoder of each modality, of the joint encoder after them."""
        before = {"early": 0, "late": self.layers, "hierarchical": self.layers // 2}[self.fusion]
        return before, self.layers - before

    def axes(self, layers: int) -> list[int]:
        """The axis that each of `layers` blocks attends along."""
        half, odd = divmod(layers, 2)
        if self.attention == "multi_axis":
            return [SPACE] * layers
        if self.attention == "sequential":
            return [TIME] * half + [SPACE] * (half + odd)
        return [TIME, SPACE] * half + [SPACE] * odd


class AxisEncoder(nn.Module):
    """Blocks that attend along the axes of a grid.

    Args:
        config: variant of the encoder.
        layers: number of blocks; without blocks, the output is the input.
        size: T and S of the largest grid.

    Attributes:
        axes: the axis of each block.
        size: T and S of the largest output.
    """

    def __init__(self, config: SceneEncoderConfig, layers: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.axes: list[int] = []
        self.blocks = nn.ModuleList()
        sizes = {TIME: size[0], SPACE: size[1]}
        for axis in config.axes(layers):
            if sizes[axis] == 1:
                axis = TIME + SPACE - axis  # the other one
            if config.latents is not None and axis not in self.axes:
                sizes[axis] = config.latents.count(axis, sizes[axis])
                self.blocks.append(LatentBlock(config.block, sizes[axis]))
            else:
                self.blocks.append(EncoderBlock(config.block))
            self.axes.append(axis)
        self.size = (sizes[TIME], sizes[SPACE])
        norm = layers > 0 and config.block.norm_first
        self.norm = nn.LayerNorm(config.block.width, eps=config.block.norm_eps) if norm else nn.Identity()

    def forward(self, grid: Grid) -> Grid:
        """A grid of the same size, or shorter along axes with latents. A latent is real if any token of its axis is."""
        token, real = grid
        for axis, block in zip(self.axes, self.blocks, strict=True):
            token = apply_along_axis(axis, block, token, real)
            if isinstance(block, LatentBlock):
                real = real.any(axis, keepdim=True).expand(token.shape[:-1])
        return Grid(self.norm(token), real)


class SceneEncoder(nn.Module):
    """Encodes several modalities to one memory for a decoder.

    Args:
        config: variant of the encoder.
        sizes: T and S of the largest grid of each modality; modalities without time (T = 1) come last.
    """

    def __init__(self, config: SceneEncoderConfig, sizes: list[tuple[int, int]]) -> None:
        super().__init__()
        self.config = config
        self.join = _flatten if config.attention == "multi_axis" else _tile
        before, after = config.depths()
        own = [AxisEncoder(config, before, self._joined_size([size])) for size in sizes]
        self.own = nn.ModuleList(own)
        self.joint = AxisEncoder(config, after, self._joined_size([encoder.size for encoder in own])) if after else None

    def _joined_size(self, sizes: list[tuple[int, int]]) -> tuple[int, int]:
        """T and S of joined grids."""
        if self.config.attention == "multi_axis":
            return 1, sum(steps * slots for steps, slots in sizes)
        return max(steps for steps, _ in sizes), sum(slots for _, slots in sizes)

    def forward(self, grids: list[Grid]) -> tuple[Tensor, Tensor]:
        """Grids of the modalities to tokens [N, L, D] and bool [N, L]."""
        grids = [encoder(self.join([grid])) for encoder, grid in zip(self.own, grids, strict=True)]
        if self.joint is not None:
            joined = self.joint(self.join(grids))
            grids = [joined] if self.config.latents else _average_copies(joined, grids)
        memory = _flatten(grids)
        return memory.token[:, 0], memory.real[:, 0]


def _flatten(grids: list[Grid]) -> Grid:
    """All tokens of all grids as the slots of a single step."""
    token = torch.cat([grid.token.flatten(1, 2) for grid in grids], 1)
    return Grid(token[:, None], torch.cat([grid.real.flatten(1, 2) for grid in grids], 1)[:, None])


def _tile(grids: list[Grid]) -> Grid:
    """Concatenate grids along slots; a grid without time is copied to all steps at which another grid has a real token."""
    steps = max(grid.token.shape[1] for grid in grids)
    seen = torch.cat([grid.real for grid in grids if grid.real.shape[1] == steps], 2).any(2, keepdim=True)  # [N, T, 1]
    token = torch.cat([grid.token.expand(-1, steps, -1, -1) for grid in grids], 2)
    return Grid(token, torch.cat([grid.real & seen for grid in grids], 2))


def _average_copies(joined: Grid, grids: list[Grid]) -> list[Grid]:
    """Split the encoded output of `_tile(grids)` again; each token that was tiled becomes the mean of its copies."""
    steps = joined.token.shape[1]
    slots = sum(grid.token.shape[2] for grid in grids if grid.token.shape[1] == steps)
    token, real = joined.token[:, :, slots:], joined.real[:, :, slots:, None]
    mean = (token * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
    return [Grid(joined.token[:, :, :slots], joined.real[:, :, :slots]), Grid(mean, real[..., 0].any(1, keepdim=True))]
