"""Loss of SE2Former: Huber loss of the best proposal and of its correction, cross-entropy of the scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch
from trajformer.errors import check_numbers
from trajformer.losses.set_loss import last_valid
from trajformer.losses.terms import Terms
from trajformer.models.se2former.worlds import world_loss
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.scene import AgentRole

_EPSILON_M2 = 1e-6  # keeps the gradient of a distance of zero finite


@dataclass(frozen=True)
class SE2FormerLossConfig:
    """Weights of targets and terms.

    Attributes:
        moving: weight of a target that moves at least `moved_m` in its future, relative to scored targets.
        standing: weight of all other targets.
        moved_m: distance between moving and standing, in metres.
        endpoint: weight of the last position, relative to the mean over all positions.
        score: weight of the cross-entropy.
        worlds: weight of the likelihood of the worlds, which trains the choice of joint futures only.
        temperature_m: the scores are trained towards softmax(-FDE / temperature).
        huber_m: error in metres at which the Huber loss becomes linear.
    """

    moving: float = 0.5
    standing: float = 0.1
    moved_m: float = 3.0
    endpoint: float = 1.0
    score: float = 1.0
    worlds: float = 1.0
    temperature_m: float = 1.0
    huber_m: float = 1.0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("temperature_m", "huber_m"))

    def build(self) -> SE2FormerLoss:
        """The loss with these weights."""
        return SE2FormerLoss(self)


class SE2FormerLoss(nn.Module):
    """Winner takes all: the proposal with the smallest ADE + FDE, and its correction, are trained towards the recorded path.

    Futures may be incomplete: errors are means over their valid steps, and the end is the last valid step.
    """

    def __init__(self, config: SE2FormerLossConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, model: nn.Module, batch: SceneBatch) -> Terms:
        """Weighted means over targets: "proposal", "path", "score", "worlds", and the sum "loss" with its gradient."""
        forecast, truth, config = model(batch.observation), batch.truth, self.config
        (proposal,) = forecast.auxiliary
        path = to_frame(truth.position, forecast.pose[:, :, None])[:, :, None]  # [B, S, 1, F, 2]
        valid, end = truth.valid[:, :, None], last_valid(truth.valid)[:, :, None, None]
        steps = truth.valid.sum(-1).clamp(min=1)
        errors = []
        for position in (proposal.position, forecast.position):
            distance = ((position - path).square().sum(-1) + _EPSILON_M2).sqrt() * valid  # [B, S, K, F]
            errors.append((distance, distance.gather(3, end.expand(-1, -1, distance.shape[2], 1))[..., 0]))
        (distance, final), (_, refined) = errors
        winner = (distance.sum(-1) / steps[..., None] + final).argmin(-1, keepdim=True).detach()
        weight = self._weights(batch, path[:, :, 0])
        terms = {}
        for name, (distance, final) in zip(("proposal", "path"), errors, strict=True):
            mean = self._huber(distance.gather(2, winner[..., None].expand(*winner.shape, distance.shape[3]))[:, :, 0])
            terms[name] = mean.sum(-1) / steps + config.endpoint * self._huber(final.gather(2, winner)[..., 0])
        aim = (-refined.detach() / config.temperature_m).softmax(-1)
        terms["score"] = -(aim * forecast.logit.log_softmax(-1)).sum(-1)
        means = {name: (value * weight).sum() / weight.sum().clamp(min=1e-6) for name, value in terms.items()}
        means["worlds"] = world_loss(forecast.pick, forecast.world, aim, weight)
        loss = means["proposal"] + means["path"] + config.score * means["score"] + config.worlds * means["worlds"]
        return {name: value.detach() for name, value in means.items()} | {"loss": loss}

    def _huber(self, distance: Tensor) -> Tensor:
        limit = self.config.huber_m
        return torch.where(distance < limit, distance.square() / (2 * limit), distance - limit / 2)

    def _weights(self, batch: SceneBatch, path: Tensor) -> Tensor:
        """[B, S], zero for targets without a known future; `path` [B, S, F, 2] is in the frame of the target."""
        valid, targets = batch.truth.valid, batch.observation.num_targets
        end = path.gather(2, last_valid(valid)[..., None, None].expand(*valid.shape[:2], 1, 2))[:, :, 0]
        weight = torch.where(end.norm(dim=-1) >= self.config.moved_m, self.config.moving, self.config.standing)
        scored = batch.observation.agent_role[:, :targets] >= int(AgentRole.SCORED)
        return torch.where(scored, 1.0, weight) * (valid.any(-1) & batch.observation.target_mask)
