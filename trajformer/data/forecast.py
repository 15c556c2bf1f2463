"""Forecast: the output of a model, in training and evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trajformer.data.batch import Observation, TensorRecord
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.scenes.geometry import from_frame


@dataclass(frozen=True, eq=False)
class Gaussian(TensorRecord):
    """Normal distributions of latents with independent coordinates: mean and logarithm of the variance, each [..., Z]."""

    mean: Tensor
    log_variance: Tensor

    def at(self, noise: Tensor) -> Tensor:
        """Samples for standard normal noise, broadcastable to [..., Z]; differentiable."""
        return self.mean + (0.5 * self.log_variance).exp() * noise

    def divergence(self, other: Gaussian) -> Tensor:
        """Kullback-Leibler divergence [...] KL(self || other), summed over the Z coordinates."""
        gap = (self.mean - other.mean).square() / other.log_variance.exp()
        ratio = self.log_variance - other.log_variance
        return 0.5 * (gap + ratio.exp() - 1.0 - ratio).sum(-1)


@dataclass(frozen=True, eq=False)
class Forecast:
    """K futures for each of the S targets of B scenes.

    `position` is in `frame`: the frame of the batch, or (Frame.AGENT) the frame at each target's `pose` in the batch frame.
    `logit` is marginal [B, S, K], or joint [B, K] if mode k of all agents is one joint future. Samples are modes too.
    """

    position: Tensor  # [B, S, K, F, 2], metres
    logit: Tensor  # [B, S, K] or [B, K]
    frame: Frame
    pose: Tensor | None = None  # [B, S, 3], for Frame.AGENT
    scale: Tensor | None = None  # [B, S, K, F, 2], metres, spread of each coordinate in `frame`
    auxiliary: tuple[Forecast, ...] = ()  # forecasts of earlier decoder layers, first to last
    latent: Gaussian | None = (
        None  # [B, S, K, Z] or [B, S, 1, Z], the distribution of the latents that modes are decoded from
    )
    prior: Gaussian | None = (
        None  # [B, S, 1, Z], of the latents given the past, if `latent` is another one
    )

    @property
    def num_modes(self) -> int:
        """K."""
        return self.position.shape[2]

    @property
    def is_joint(self) -> bool:
        """True if a mode has one probability for all agents of a scene."""
        return self.logit.ndim == 2

    def joint_futures(self) -> Forecast:
        """The forecast with joint futures of the whole scene as modes (TrajformerError: agents are predicted independently)."""
        if not self.is_joint:
            raise TrajformerError(
                "the model predicts every agent on its own and gives no joint futures"
            )
        return self

    def probability(self) -> Tensor:
        """[B, S, K], summing to 1 over modes; a joint forecast repeats its probabilities for every agent."""
        probability = self.logit.float().softmax(-1)
        return (
            probability[:, None].expand(self.position.shape[:3]) if self.is_joint else probability
        )

    def check(self, observation: Observation) -> Forecast:
        """The forecast, if its shapes and frame fit the observation (TrajformerError: they would give wrong figures)."""
        lead = tuple(observation.target_mask.shape)
        modes = self.position.shape[2] if self.position.ndim == 5 else 0
        expected: dict[str, list[tuple[int, ...]]] = {
            "position": [(*lead, modes, observation.num_future, 2)],
            "logit": [(*lead, modes), (lead[0], modes)],
        }
        if self.frame is Frame.AGENT:
            expected["pose"] = [(*lead, 3)]
        for name, shapes in expected.items():
            value = getattr(self, name)
            if value is None or not modes or tuple(value.shape) not in shapes:
                found = None if value is None else tuple(value.shape)
                letters = {
                    "position": "[B, S, K, F, 2]",
                    "logit": "[B, S, K] or [B, K]",
                    "pose": "[B, S, 3]",
                }[name]
                raise TrajformerError(
                    f"forecast: {name} has shape {found}, expected {letters} with B, S = {lead}"
                )
        if self.frame not in (Frame.AGENT, observation.frame):
            raise TrajformerError(
                f"forecast: frame is {self.frame!r}, expected {observation.frame} of the batch, or {Frame.AGENT}"
            )
        return self

    def find_not_finite(self, observation: Observation) -> str:
        """The first target with NaN or infinity in its positions or probabilities, or an empty text."""
        finite = self.position.isfinite().flatten(2).all(-1) & self.probability().isfinite().all(-1)
        for b, s in (observation.target_mask & ~finite).nonzero()[:1].tolist():
            return f"scene {observation.scene_id[b]}: track {observation.agent_id[b][s]}"
        return ""

    def in_batch_frame(self) -> Tensor:
        """Positions [B, S, K, F, 2] in the frame of the batch."""
        if self.frame is not Frame.AGENT:
            return self.position
        assert self.pose is not None
        return from_frame(self.position, self.pose[:, :, None, None])

    def select(self, index: Tensor) -> Forecast:
        """Modes `index` of each agent ([B, S, k]) or, for a joint forecast, of each scene ([B, k]), in that order."""
        wide = (index[:, None] if self.is_joint else index)[..., None, None]
        scale = None if self.scale is None else self.scale.take_along_dim(wide, 2)
        position, logit = self.position.take_along_dim(wide, 2), self.logit.gather(-1, index)
        return replace(
            self, position=position, logit=logit, scale=scale, auxiliary=(), latent=None, prior=None
        )

    def in_city_frame(self, observation: Observation) -> np.ndarray:
        """Positions float64 [B, S, K, F, 2] in the city frame."""
        position = self.in_batch_frame().detach().to("cpu", torch.float64)
        return from_frame(position, observation.frame_pose.cpu()[:, None, None, None]).numpy()
