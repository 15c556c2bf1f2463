"""Smooth components of paths: principal components of what constant velocity leaves over."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trajformer.data.loading import SceneDataset
from trajformer.models.horizon import constant_velocity_path
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.scene import AgentRole

MOVED_M = 3.0  # agents that move less in their future are left out: most of what they leave over is noise
_OUTLIER_M = 40.0  # errors of tracking
_CHUNK = 256


def residual_basis(scenes: SceneDataset, components: int) -> tuple[Tensor, Tensor]:
    """Mean [F, 2] and components [2, C, F] of the residuals of all targets with a complete future that move.

    Residuals are in metres in the frame of the target. Focal agents count twice. Each axis has its own components, scaled by
    their standard deviation.
    """
    parts: list[Tensor] = []
    for start in range(0, len(scenes), _CHUNK):
        batch = scenes[list(range(start, min(start + _CHUNK, len(scenes))))]
        observation, truth = batch.observation, batch.truth
        pose = observation.pose[:, : observation.num_targets]
        path = to_frame(truth.position, pose[:, :, None])
        complete = truth.valid.all(-1) & (path[..., -1, :].norm(dim=-1) > MOVED_M)
        residual = path - constant_velocity_path(observation)[:, :, 0]
        focal = observation.agent_role[:, : observation.num_targets] == int(AgentRole.FOCAL)
        parts += [residual[complete], residual[complete & focal]]
    residual = torch.cat(parts)
    residual = residual[residual.abs().amax((1, 2)) < _OUTLIER_M]
    mean = residual.mean(0)
    basis = []
    for axis in (residual - mean).unbind(-1):
        _, size, component = torch.linalg.svd(axis, full_matrices=False)
        basis.append(component[:components] * (size[:components] / math.sqrt(len(axis)))[:, None])
    return mean, torch.stack(basis)
