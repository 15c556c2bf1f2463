"""The output of the scene set: Q trajectories for each scene."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class SceneTrajectories:
    """The trajectories of Q queries for each of B scenes.

    `position` is in the frame of the batch and starts with the current position. The sigmoid of `logit` is the probability that a
    query represents an agent; the softmax of `mode_logit` is the probability of each mode, given that it does.
    """

    position: Tensor  # [B, Q, K, 1 + F, 2], metres
    logit: Tensor  # [B, Q], -inf for padding, which is never matched
    mode_logit: Tensor  # [B, Q, K]
    auxiliary: tuple[SceneTrajectories, ...] = ()  # of earlier decoder layers, first to last

    def most_probable(self) -> Tensor:
        """The most probable mode of each query [B, Q, 1 + F, 2]."""
        return one_mode(self.position, self.mode_logit.argmax(-1))


def one_mode(position: Tensor, mode: Tensor) -> Tensor:
    """Select modes int64 [...] of trajectories [..., K, T, 2]: [..., T, 2]."""
    index = mode[..., None, None, None].expand(*mode.shape, 1, *position.shape[-2:])
    return position.gather(-3, index).squeeze(-3)
