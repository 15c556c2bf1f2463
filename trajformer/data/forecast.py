"""Forecast: the output of a model, in training and evaluation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from trajformer.data.batch import Observation, TensorRecord
from trajformer.data.indexing import take_along
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.scenes.geometry import from_frame


@dataclass(frozen=True, eq=False)
class Gaussian(TensorRecord):
    """Normal distributions of latents with independent coordinates."""

    mean: Tensor  # [..., Z]
    log_variance: Tensor  # [..., Z], natural logarithm

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

    `position` is in `frame`: the frame of the batch, or (Frame.AGENT) the frame at each target's
    `pose` in the batch frame. `logit` is marginal [B, S, K], or joint [B, K] if mode k of all
    agents is one joint future. Samples are modes too.
    """

    position: Tensor  # [B, S, K, F, 2], metres
    logit: Tensor  # [B, S, K] or [B, K]
    frame: Frame
    pose: Tensor | None = None  # [B, S, 3], for Frame.AGENT
    scale: Tensor | None = None  # [B, S, K, F, 2], metres, spread of each coordinate in `frame`
    auxiliary: tuple[Forecast, ...] = ()  # forecasts of earlier decoder layers, first to last
    # [B, S, K, Z] or [B, S, 1, Z], the distribution of the latents that modes are decoded from
    latent: Gaussian | None = None
    # [B, S, 1, Z], of the latents given the past, if `latent` is another one
    prior: Gaussian | None = None

    @property
    def num_modes(self) -> int:
        """K."""
        return self.position.shape[2]

    @property
    def is_joint(self) -> bool:
        """True if a mode has one probability for all agents of a scene."""
        return self.logit.ndim == 2

    def joint_futures(self) -> Forecast:
        """The forecast with joint futures of the whole scene as modes.

        Raises TrajformerError: agents are predicted independently.
        """
        if not self.is_joint:
            raise TrajformerError(
                "the model predicts every agent on its own and gives no joint futures"
            )
        return self

    def probability(self) -> Tensor:
        """[B, S, K], summing to 1 over modes.

        A joint forecast repeats its probabilities for every agent.
        """
        probability = self.logit.float().softmax(-1)
        if self.is_joint:
            return probability[:, None].expand(self.position.shape[:3])
        return probability

    def check(self, observation: Observation) -> Forecast:
        """The forecast, if its shapes and frame fit the observation.

        Raises TrajformerError: a shape or the frame would give wrong metrics.
        """
        num_scenes, num_targets = observation.target_mask.shape
        lead = (num_scenes, num_targets)
        num_modes = self.position.shape[2] if self.position.ndim == 5 else 0
        expected: dict[str, list[tuple[int, ...]]] = {
            "position": [(*lead, num_modes, observation.num_future, 2)],
            "logit": [(*lead, num_modes), (num_scenes, num_modes)],
        }
        if self.frame is Frame.AGENT:
            expected["pose"] = [(*lead, 3)]
        for name, shapes in expected.items():
            value = getattr(self, name)
            shape = None if value is None else tuple(value.shape)
            if num_modes == 0 or shape not in shapes:
                letters = f"expected {_SHAPES[name]} with B, S = {lead}"
                raise TrajformerError(f"forecast: {name} has shape {shape}, {letters}")
        if self.frame not in (Frame.AGENT, observation.frame):
            frames = f"expected {observation.frame} of the batch, or {Frame.AGENT}"
            raise TrajformerError(f"forecast: frame is {self.frame!r}, {frames}")
        return self

    def find_not_finite(self, observation: Observation) -> str:
        """The first target with NaN or infinity in positions or probabilities, or an empty text."""
        sums = self.position.detach().double().sum() + self.logit.detach().double().sum()
        if bool(sums.isfinite()):
            return ""  # NaN and infinity would remain in the sums
        is_finite = self.position.isfinite().flatten(2).all(-1)
        is_finite &= self.probability().isfinite().all(-1)
        invalid = (observation.target_mask & ~is_finite).nonzero()
        if len(invalid) == 0:
            return ""
        b, s = invalid[0].tolist()
        return f"scene {observation.scene_id[b]}: track {observation.agent_id[b][s]}"

    def in_batch_frame(self) -> Tensor:
        """Positions [B, S, K, F, 2] in the frame of the batch."""
        if self.frame is not Frame.AGENT:
            return self.position
        assert self.pose is not None
        return from_frame(self.position, self.pose[:, :, None, None])

    def in_city_frame(self, observation: Observation) -> np.ndarray:
        """Positions float64 [B, S, K, F, 2] in the city frame."""
        position = self.in_batch_frame().detach().to("cpu", torch.float64)
        frame_pose = observation.frame_pose.cpu()[:, None, None, None]
        if observation.frame is Frame.SCENE:  # with the axes of the city
            return (position + frame_pose[..., :2]).numpy()
        return from_frame(position, frame_pose).numpy()

    def first_steps(self, steps: int) -> Forecast:
        """The forecast of the first `steps` steps, without auxiliary forecasts and latents."""
        scale = self.scale
        if scale is not None:
            scale = scale[..., :steps, :]
        position = self.position[..., :steps, :]
        return replace(self, position=position, scale=scale, auxiliary=(), latent=None, prior=None)

    def select(self, index: Tensor) -> Forecast:
        """Modes in the order of `index`, without auxiliary forecasts and latents.

        `index` is [B, S, k], or [B, k] for a joint forecast.
        """
        mode = index[:, None] if self.is_joint else index
        mode = mode[..., None, None]  # [B, S or 1, k, 1, 1]
        scale = self.scale
        if scale is not None:
            scale = take_along(scale, mode, 2)
        return replace(
            self,
            position=take_along(self.position, mode, 2),
            logit=self.logit.gather(-1, index),
            scale=scale,
            auxiliary=(),
            latent=None,
            prior=None,
        )


_SHAPES = {"position": "[B, S, K, F, 2]", "logit": "[B, S, K] or [B, K]", "pose": "[B, S, 3]"}
