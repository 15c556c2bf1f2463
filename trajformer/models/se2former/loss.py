"""Loss of SE2Former: the best mode, the median path, calibrated scores, and joint futures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trajformer.data.batch import SceneBatch
from trajformer.losses.displacement import huber, last_valid
from trajformer.losses.terms import LossConfig, Terms, total
from trajformer.models.se2former.paths import PathProposals
from trajformer.models.se2former.single_forecast import final_modes
from trajformer.models.se2former.worlds import mixture_nll
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.scene import AgentRole

_EPSILON_M2 = 1e-6  # keeps the gradient of a distance of zero finite
_MIN_WEIGHT = 1e-6  # of all targets together; avoids a division by zero


@dataclass(frozen=True)
class SE2FormerLossConfig(LossConfig, positive=("temperature_m", "huber_m")):
    """Winner takes all: the proposal with the smallest ADE + FDE, and its correction, are trained.

    The median path is trained on all targets. Futures may be incomplete: errors are means over
    their valid steps, and the end is the last valid step.

    Attributes:
        moving: weight of a target that moves at least `moved_m` in its future, relative to scored
            targets.
        standing: weight of all other targets.
        moved_m: distance between moving and standing, in metres.
        endpoint: weight of the last position, relative to the mean over all positions.
        median: weight of the median path's error, relative to the winner's.
        score: weight of the cross-entropy.
        worlds: weight of the likelihood of the worlds, which trains the choice of joint futures
            only.
        temperature_m: the scores are trained towards softmax(-FDE / temperature).
        huber_m: error in metres at which the Huber loss becomes linear.
    """

    moving: float = 0.5
    standing: float = 0.1
    moved_m: float = 3.0
    endpoint: float = 1.0
    median: float = 0.3
    score: float = 1.0
    worlds: float = 1.0
    temperature_m: float = 1.0
    huber_m: float = 1.0

    def terms(self, model: Any, batch: SceneBatch) -> Terms:
        """Weighted means over targets, and "loss" with its gradient.

        The means are "proposal", "path", "score", "calibration" and, for marginal modes, "worlds".
        """
        proposals: PathProposals = model.propose(batch.observation)
        truth = _truth_in_target_frames(batch)
        weight = self._weights(batch, truth.position)

        # Joint modes have one error for all targets of the scene that count.
        counted = weight > 0 if proposals.is_joint else None
        proposed = _distances(proposals.proposed, truth)  # [B, S, K + 1, F]
        refined = _distances(proposals.refined, truth)

        # The winner of each set of modes has the smallest error before its correction.
        error = _mean_error(proposed, truth) + _end_error(proposed, truth)
        mode_error = _over_scene(error[..., :-1], counted)  # [B, S or 1, K]
        winners = [mode_error[..., :size].argmin(-1) for size in model.config.winner_sets]

        # Scores learn which modes end near the truth after their correction.
        end_error = _over_scene(_end_error(refined, truth)[..., :-1], counted).detach()
        target = (-end_error / self.temperature_m).softmax(-1)  # [B, S or 1, K]
        logit = _logit_of_targets(proposals.logit)
        terms = {
            "proposal": self._path_error(proposed, winners, truth),
            "path": self._path_error(refined, winners, truth),
            "score": -(target * logit.log_softmax(-1)).sum(-1),
            "calibration": _calibration(model, proposals, truth, counted),
        }
        divisor = total(weight, _MIN_WEIGHT)
        means = {name: (value * weight).sum() / divisor for name, value in terms.items()}

        loss = means["proposal"] + means["path"] + self.score * means["score"]
        if not proposals.is_joint:
            worlds = model.world_probabilities(proposals, batch.observation.target_mask)
            means["worlds"] = mixture_nll(worlds, target, weight)
            loss = loss + self.worlds * means["worlds"]
        loss = loss + means["calibration"]
        return {name: value.detach() for name, value in means.items()} | {"loss": loss}

    def _weights(self, batch: SceneBatch, position: Tensor) -> Tensor:
        """[B, S], zero without a known future; `position` [B, S, F, 2] is in target frames."""
        valid = batch.truth.valid
        targets = batch.observation.num_targets
        last = last_valid(valid)[..., None, None]
        end = position.take_along_dim(last, 2)[:, :, 0]
        moves = end.norm(dim=-1) >= self.moved_m
        weight = torch.where(moves, self.moving, self.standing)
        scored = batch.observation.agent_role[:, :targets] >= int(AgentRole.SCORED)
        known = valid.any(-1) & batch.observation.target_mask
        return torch.where(scored, 1.0, weight) * known

    def _path_error(self, distance: Tensor, winners: list[Tensor], truth: _Truth) -> Tensor:
        """Huber error [B, S] of the winner of each set of modes, and of the median path.

        Args:
            distance: [B, S, K + 1, F], of the median last.
            winners: index of a winner each, [B, S], or [B, 1] for joint modes.
            truth: the recorded futures.
        """
        error = torch.zeros_like(distance[:, :, 0, 0])
        for winner in winners:
            gap = distance.take_along_dim(winner[..., None, None], 2)[:, :, 0]
            error = error + self._huber(gap, truth.valid)
        return error + self.median * self._huber(distance[:, :, -1], truth.valid)

    def _huber(self, distance: Tensor, valid: Tensor) -> Tensor:
        """Huber error [B, S] of distances [B, S, F]: mean, plus the weighted error of the end."""
        mean, end = huber(distance[..., None], valid, self.huber_m)
        return mean + self.endpoint * end


@dataclass(frozen=True, eq=False)
class _Truth:
    """Recorded futures of targets, each in the frame of the target."""

    position: Tensor  # [B, S, F, 2], metres
    valid: Tensor  # bool [B, S, F]
    last: Tensor  # int64 [B, S, 1, 1], last valid step


def _truth_in_target_frames(batch: SceneBatch) -> _Truth:
    pose = batch.observation.pose[:, : batch.observation.num_targets]
    position = to_frame(batch.truth.position, pose[:, :, None])
    valid = batch.truth.valid
    return _Truth(position, valid, last_valid(valid)[:, :, None, None])


def _distances(path: Tensor, truth: _Truth) -> Tensor:
    """Distances [B, S, K, F] in metres from paths [B, S, K, F, 2]; zero at steps without truth."""
    gap = path - truth.position[:, :, None]
    distance = (gap.square().sum(-1) + _EPSILON_M2).sqrt()
    return distance * truth.valid[:, :, None]


def _mean_error(distance: Tensor, truth: _Truth) -> Tensor:
    """Means [B, S, K] of distances [B, S, K, F] over the valid steps."""
    return distance.sum(-1) / truth.valid.sum(-1, keepdim=True).clamp(min=1)


def _end_error(distance: Tensor, truth: _Truth) -> Tensor:
    """Distances [B, S, K] in the last valid step, from [B, S, K, F]."""
    return distance.take_along_dim(truth.last, -1)[..., 0]


def _over_scene(error: Tensor, counted: Tensor | None) -> Tensor:
    """Errors [B, S, K], or their means [B, 1, K] over the targets that count, bool [B, S]."""
    if counted is None:
        return error
    weight = counted / counted.sum(1, keepdim=True).clamp(min=1)
    return (error * weight[..., None]).sum(1, keepdim=True)


def _logit_of_targets(logit: Tensor) -> Tensor:
    """Logits [B, S, K] of the targets; logits [B, K] of joint modes become [B, 1, K]."""
    return logit[:, None] if logit.ndim == 2 else logit


def _calibration(
    model: Any, proposals: PathProposals, truth: _Truth, counted: Tensor | None
) -> Tensor:
    """Cross-entropy [B, S or 1] of the final probabilities with the mode that ends nearest.

    Only the temperature learns from it.
    """
    fixed = replace(proposals, refined=proposals.refined.detach(), logit=proposals.logit.detach())
    position, logit = final_modes(fixed, model.temperature.exp(), model.config.nested)
    distance = (position - truth.position[:, :, None]).norm(dim=-1)
    nearest = _over_scene(_end_error(distance, truth), counted).argmin(-1, keepdim=True)
    log_probability = _logit_of_targets(logit).log_softmax(-1)
    return -log_probability.take_along_dim(nearest, -1)[..., 0]
