"""Joint futures from the modes of single agents: which modes go together.

The modes that all targets of a scene take are drawn from a mixture of W worlds. World w has a probability, and in it every
target takes its mode k with a probability p_ws(k), independently of the other targets. The mixture is trained by its likelihood;
the modes themselves are not changed. A joint future of the scene is a world in which every target takes its most probable mode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig
from trajformer.core.pose import Frames, PoseAttentionConfig, PoseBlock
from trajformer.data.forecast import Forecast


@dataclass(frozen=True, eq=False)
class WorldForecast(Forecast):
    """A marginal forecast with a mixture of worlds."""

    pick: Tensor | None = None  # [B, W, S, K], logarithm of the probability of each mode in each world
    world: Tensor | None = None  # [B, W], logits of the worlds

    def joint(self) -> Forecast:
        """The forecast of W joint futures: mode k of all targets is world k."""
        assert self.pick is not None and self.world is not None
        chosen = self.select(self.pick.argmax(-1).transpose(1, 2))
        return replace(chosen, logit=self.world)


class Worlds(nn.Module):
    """Probabilities of worlds, and of modes in each world.

    Args:
        block: shape of the block in which the targets of a world attend to each other.
        attention: sizes of a head.
        count: W.
    """

    def __init__(self, block: BlockConfig, attention: PoseAttentionConfig, count: int) -> None:
        super().__init__()
        width = block.width
        self.start = nn.Parameter(torch.randn(count, 1, width) * 0.5)
        self.layers = nn.ModuleList(PoseBlock(block, attention) for _ in range(2))
        self.norm, self.mode_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, 1)

    def forward(self, modes: Tensor, logit: Tensor, frames: Frames, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Fields `pick` [B, W, S, K] and `world` [B, W] of a `WorldForecast`.

        Args:
            modes: [B, S, K, D], features of the modes.
            logit: [B, S, K], their marginal logits.
            frames: of the targets, [B, S].
            mask: bool [B, S], which targets exist.
        """
        probability = logit.softmax(-1)[..., None]
        x = (modes * probability).sum(2)[:, None] + self.start  # [B, W, S, D]
        frames = Frames(*(part[:, None] for part in frames))
        for layer in self.layers:
            x = layer(x, frames, layer.memory(x, frames), mask[:, None, None])
        x = self.norm(x)
        score = torch.einsum("bwsd,bskd->bwsk", self.query(x), self.key(self.mode_norm(modes))) * x.shape[-1] ** -0.5
        real = mask[:, None, :, None].float()
        pooled = (x * real).sum(2) / real.sum(2).clamp(min=1)
        return (score.float() + logit[:, None]).log_softmax(-1), self.output(pooled)[..., 0].float()


def world_loss(pick: Tensor, world: Tensor, aim: Tensor, weight: Tensor) -> Tensor:
    """Negative log likelihood of the mixture, per target.

    Args:
        pick: [B, W, S, K].
        world: [B, W].
        aim: [B, S, K], the probability that the recorded future is mode k.
        weight: [B, S], zero for targets that do not count.

    Returns:
        Mean over all targets that count.
    """
    counts = (weight > 0).float()
    agreement = ((pick * aim[:, None]).sum(-1) * counts[:, None]).sum(-1)  # [B, W]
    return -(world.log_softmax(-1) + agreement).logsumexp(-1).sum() / counts.sum().clamp(min=1)
