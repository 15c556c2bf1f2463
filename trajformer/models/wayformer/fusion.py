"""Wayformer's scene encoders: three choices that compose, each said in one place (Nayakanti et al. 2022).

- Fusion is where the depth stands: before the modalities are joined, behind it, or half and half (`SceneEncoder`).
- Attention is the axes that the blocks of an encoder attend along, one after the other (`SceneEncoderConfig.axes`).
- Latent queries shorten an axis in the first block along it (`AxisEncoder`).

Readings taken. Factorised blocks along an axis with one index would do nothing: there the blocks attend along the other
axis, so a target's history has temporal blocks alone and the road spatial ones. An odd block is spatial. To be joined in a
factorised encoder the road, which has no time, is tiled over the steps at which some agent was seen; what comes out is the
mean of its copies, unless latents took their place. The share of latents is of the longest input, as the paper's inputs
have one length, and holds for every encoder: with hierarchical fusion the tokens are shortened twice.
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
    """How many latent queries an encoder has.

    Attributes:
        ratio: R, their share of an encoder's tokens, or of its steps and its slots where attention is factorised.
        counts: given instead: (tokens,) for multi-axis attention, (steps, slots) for factorised.
    """

    ratio: float = 0.5
    counts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_numbers(self, positive=("ratio", "counts"), shares=("ratio",))

    def count(self, axis: int, length: int) -> int:
        """Latents in place of `length` tokens along an axis."""
        if self.counts:
            return self.counts[0] if axis == TIME else self.counts[-1]
        return max(round(self.ratio * length), 1)


@dataclass(frozen=True)
class SceneEncoderConfig:
    """A member of the family.

    Attributes:
        fusion: early (one encoder of all modalities), late (one of each), or hierarchical (half the depth each).
        attention: over all steps and slots at once, or factorised: half the blocks temporal and then half of them spatial
            (sequential), or alternating (interleaved).
        latents: latent queries, none by default.
        layers: N, blocks between a modality's tokens and the decoder.
        block: their shape.
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
        """Blocks in the encoder of each modality, and in the encoder of all modalities after them."""
        before = {"early": 0, "late": self.layers, "hierarchical": self.layers // 2}[self.fusion]
        return before, self.layers - before

    def axes(self, layers: int) -> list[int]:
        """The axis that each of so many blocks attends along."""
        half, odd = divmod(layers, 2)
        if self.attention == "multi_axis":
            return [SPACE] * layers
        if self.attention == "sequential":
            return [TIME] * half + [SPACE] * (half + odd)
        return [TIME, SPACE] * half + [SPACE] * odd


class AxisEncoder(nn.Module):
    """Blocks along the axes of a grid.

    Args:
        layers: how many blocks; none leave the grid as it is.
        size: T and S of the largest grid.

    Attributes:
        axes: the axis of each block.
        size: T and S of what comes out.
    """

    def __init__(self, config: SceneEncoderConfig, layers: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.axes: list[int] = []
        self.blocks = nn.ModuleList()
        sizes = {TIME: size[0], SPACE: size[1]}
        for axis in config.axes(layers):
            axis = axis if sizes[axis] > 1 else TIME + SPACE - axis
            if config.latents is not None and axis not in self.axes:
                sizes[axis] = config.latents.count(axis, sizes[axis])
                self.blocks.append(LatentBlock(config.block, sizes[axis]))
            else:
                self.blocks.append(EncoderBlock(config.block))
            self.axes.append(axis)
        self.size = (sizes[TIME], sizes[SPACE])
        norm = layers and config.block.norm_first
        self.norm = nn.LayerNorm(config.block.width, eps=config.block.norm_eps) if norm else nn.Identity()

    def forward(self, grid: Grid) -> Grid:
        """A grid to a grid of the same size, or with latents on the axes that were shortened; all of these are real."""
        token, real = grid
        for axis, block in zip(self.axes, self.blocks, strict=True):
            token = apply_along_axis(axis, block, token, real)
            if isinstance(block, LatentBlock):
                real = real.any(axis, keepdim=True).expand(token.shape[:-1])
        return Grid(self.norm(token), real)


class SceneEncoder(nn.Module):
    """Several modalities to one memory for a decoder.

    Args:
        sizes: T and S of the largest grid of each modality; those without time (T = 1) come last.

    Raises:
        TrajformerError: latents are counted for another kind of attention or are none, or an encoder is too shallow for it.
    """

    def __init__(self, config: SceneEncoderConfig, sizes: list[tuple[int, int]]) -> None:
        super().__init__()
        self.config, factorised = config, config.attention != "multi_axis"
        self.join = _tiled if factorised else _in_a_row
        before, behind = config.depths()
        own = [AxisEncoder(config, before, self._size([size])) for size in sizes]
        self.own = nn.ModuleList(own)
        self.joint = AxisEncoder(config, behind, self._size([one.size for one in own])) if behind else None

    def _size(self, sizes: list[tuple[int, int]]) -> tuple[int, int]:
        """T and S of joined grids."""
        if self.config.attention == "multi_axis":
            return 1, sum(steps * slots for steps, slots in sizes)
        return max(steps for steps, _ in sizes), sum(slots for _, slots in sizes)

    def forward(self, grids: list[Grid]) -> tuple[Tensor, Tensor]:
        """Grids of the modalities to tokens [N, L, D] and bool [N, L]."""
        grids = [encoder(self.join([grid])) for encoder, grid in zip(self.own, grids, strict=True)]
        if self.joint is not None:
            joined = self.joint(self.join(grids))
            grids = [joined] if self.config.latents else _merge_copies(joined, grids)
        memory = _in_a_row(grids)
        return memory.token[:, 0], memory.real[:, 0]


def _in_a_row(grids: list[Grid]) -> Grid:
    """All tokens side by side, as the slots of one step."""
    token = torch.cat([grid.token.flatten(1, 2) for grid in grids], 1)
    return Grid(token[:, None], torch.cat([grid.real.flatten(1, 2) for grid in grids], 1)[:, None])


def _tiled(grids: list[Grid]) -> Grid:
    """All slots side by side; those of a grid without time stand at every step at which a token of another one is real."""
    steps = max(grid.token.shape[1] for grid in grids)
    seen = torch.cat([grid.real for grid in grids if grid.real.shape[1] == steps], 2).any(2, keepdim=True)
    token = torch.cat([grid.token.expand(-1, steps, -1, -1) for grid in grids], 2)
    return Grid(token, torch.cat([grid.real & seen for grid in grids], 2))


def _merge_copies(joined: Grid, grids: list[Grid]) -> list[Grid]:
    """What `_tiled` made of these grids and an encoder of that, with the mean of its copies for each token that was tiled."""
    steps = joined.token.shape[1]
    slots = sum(grid.token.shape[2] for grid in grids if grid.token.shape[1] == steps)
    token, real = joined.token[:, :, slots:], joined.real[:, :, slots:, None]
    mean = (token * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
    return [Grid(joined.token[:, :, :slots], joined.real[:, :, :slots]), Grid(mean, real[..., 0].any(1, keepdim=True))]
