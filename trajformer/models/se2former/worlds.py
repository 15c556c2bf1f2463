"""Joint futures of SE2Former: worlds chosen among marginal modes, and modes that are worlds.

A marginal model has a mixture of W worlds, from which the modes of all targets of a scene are
drawn. A world has a probability, and in world w target s takes its mode k with the probability
p_ws(k), independently of the other targets. The mixture is trained by its likelihood and does not
change the modes.

With `SE2FormerConfig.joint`, mode k of all targets is one world (`WorldBlock`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, masked_mean
from trajformer.core.pose import Frames, PoseAttentionConfig, PoseBlock, PoseKeys
from trajformer.data.forecast import Forecast
from trajformer.losses.matching import match
from trajformer.losses.terms import total


class WorldProbabilities(NamedTuple):
    """Probabilities of worlds, and of modes in each world."""

    mode: Tensor  # [B, W, S, K], logarithms of the probabilities p_ws(k)
    world: Tensor  # [B, W], logits of the worlds


class WorldMixture(nn.Module):
    """Predicts a mixture of joint futures from the modes of single targets.

    Args:
        block: shape of the block in which the targets of a world attend to each other.
        attention: sizes of a head.
        count: W.
    """

    def __init__(self, block: BlockConfig, attention: PoseAttentionConfig, count: int) -> None:
        super().__init__()
        width = block.width
        self.start = nn.Parameter(torch.randn(count, 1, width) * 0.5)
        self.keys = PoseKeys(width, block.heads, attention)
        self.layer = PoseBlock(block, attention)
        self.norm = nn.LayerNorm(width)
        self.mode_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, 1)

    def forward(
        self, feature: Tensor, logit: Tensor, frames: Frames, mask: Tensor
    ) -> WorldProbabilities:
        """The probabilities of worlds and of modes in each world.

        Args:
            feature: [B, S, K, D] of the modes.
            logit: [B, S, K], marginal logits of the modes.
            frames: of the targets, [B, S].
            mask: bool [B, S], which targets exist.
        """
        # A target is represented by the mean of its modes in each world.
        probability = logit.softmax(-1)[..., None]
        mean = (feature * probability).sum(2)
        x = mean[:, None] + self.start  # [B, W, S, D]
        frames = frames.map(lambda part: part[:, None])
        x = self.layer(x, frames, self.keys(x, frames), mask[:, None, None])
        x = self.norm(x)

        # In each world, scores of the modes are added to their marginal logits.
        query = self.query(x)
        key = self.key(self.mode_norm(feature))
        score = torch.einsum("bwsd,bskd->bwsk", query, key) * x.shape[-1] ** -0.5
        mode = (score.float() + logit[:, None]).log_softmax(-1)

        pooled = masked_mean(x, mask[:, None, :, None], 2)  # [B, W, D]
        world = self.output(pooled)[..., 0].float()
        return WorldProbabilities(mode, world)


def mixture_nll(worlds: WorldProbabilities, target: Tensor, weight: Tensor) -> Tensor:
    """Negative log likelihood of the mixture, a mean over all targets that count.

    Args:
        worlds: the mixture.
        target: [B, S, K], the probability that the recorded future is mode k.
        weight: [B, S], zero for targets that do not count.
    """
    counts = (weight > 0).float()
    agreement = (worlds.mode * target[:, None]).sum(-1)  # [B, W, S]
    agreement = (agreement * counts[:, None]).sum(-1)
    likelihood = (worlds.world.log_softmax(-1) + agreement).logsumexp(-1)
    return -likelihood.sum() / total(counts)


@dataclass(frozen=True, eq=False)
class WorldForecast(Forecast):
    """A marginal forecast with a mixture of worlds, which is computed when it is needed."""

    worlds: Callable[[], WorldProbabilities] = field(kw_only=True)

    def select(self, index: Tensor) -> Forecast:
        """As of any forecast; each world chooses among the selected modes."""
        chosen = super().select(index)
        assert isinstance(chosen, WorldForecast)
        return replace(chosen, worlds=partial(_select_modes, self.worlds, index))

    @torch.no_grad()
    def joint_futures(self) -> Forecast:
        """W joint futures: mode k of all targets is world k.

        Every target takes its modes in the worlds such that their expected likelihood is largest,
        each mode in at most one of K worlds. More than K worlds keep their most probable mode.
        """
        worlds = self.worlds()
        index = worlds.mode.argmax(-1).transpose(1, 2).contiguous()  # [B, S, W]
        gain = worlds.mode * worlds.world.softmax(-1)[..., None, None]
        every_world = torch.ones_like(worlds.world[0], dtype=torch.bool)
        pairs = match(-gain.permute(0, 2, 3, 1), every_world)  # modes and worlds of each target
        index.flatten(0, 1)[pairs.problem, pairs.target] = pairs.prediction
        chosen = self.select(index)
        return Forecast(chosen.position, worlds.world, self.frame, self.pose)


def _select_modes(worlds: Callable[[], WorldProbabilities], index: Tensor) -> WorldProbabilities:
    """The mixture of worlds for the modes `index` [B, S, k]."""
    mode, world = worlds()
    selected = mode.take_along_dim(index[:, None], -1)
    return WorldProbabilities(selected.log_softmax(-1), world)


class WorldBlock(nn.Module):
    """Mode k of a target attends to mode k of all targets, so that they are one world."""

    def __init__(self, block: BlockConfig, attention: PoseAttentionConfig) -> None:
        super().__init__()
        self.keys = PoseKeys(block.width, block.heads, attention)
        self.layer = PoseBlock(block, attention)

    def forward(self, feature: Tensor, frames: Frames, mask: Tensor) -> Tensor:
        """Features [B, S, K, D] of modes to the same shape.

        `frames` [B, S * K] are the frames of the modes, and `mask`, bool [B, S], says which
        targets exist.
        """
        sizes = feature.shape[1:3]
        frames = frames.map(lambda part: part.unflatten(1, sizes).transpose(1, 2))
        x = feature.transpose(1, 2)  # [B, K, S, D]
        x = self.layer(x, frames, self.keys(x, frames), mask[:, None, None])
        return x.transpose(1, 2)
