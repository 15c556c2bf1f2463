"""Means of the metrics over agents and scenes, accumulated over batches and processes by torchmetrics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from trajformer.data.batch import SceneBatch, Truth
from trajformer.data.forecast import Forecast
from trajformer.evaluation.metrics.displacement import MANY_MODES, NAMES, SEPARATE_NAMES, displacement, separate_minima
from trajformer.evaluation.metrics.joint import (
    JOINT_NAMES,
    MULTI_WORLD_NAMES,
    PEDESTRIAN_COLLISION_M,
    collided,
    joint_minima,
    multi_world,
)

_ALL = 1_000_000  # more modes than any model has


class DisplacementMetrics(Metric):
    """minADE, minFDE, MR and brier_minFDE of the k most probable modes, means over agents (see `displacement`).

    `compute()` gives {"num_agents": n, "minADE1": ..., "minADE6": ...}, with k = 20 only if the model has 20 modes, and
    "minFDE" over all modes.
    """

    full_state_update = False
    total: Tensor
    count: Tensor
    modes: Tensor

    def __init__(self, ks: Sequence[int] = (1, 6, MANY_MODES)) -> None:
        super().__init__()
        self.ks = (*ks, _ALL)
        self.add_state("total", torch.zeros(len(self.ks), len(NAMES), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("modes", torch.zeros((), dtype=torch.int64), dist_reduce_fx="max")

    def update(self, forecast: Forecast, batch: SceneBatch) -> None:
        """Add a batch."""
        truth = batch.truth
        for row, k in enumerate(self.ks):
            values, scored = displacement(forecast, truth.position, truth.valid, k)
            self.total[row] += torch.stack([values[name][scored].double().sum() for name in NAMES])
        self.count += scored.sum()
        self.modes = self.modes.clamp(min=forecast.num_modes)

    def compute(self) -> dict[str, float]:
        """Means over all agents seen; NaN if there were none."""
        mean = (self.total / self.count).tolist()
        figures = {
            f"{name}{k}": mean[row][i]
            for row, k in enumerate(self.ks[:-1])
            for i, name in enumerate(NAMES)
            if k < MANY_MODES or k <= int(self.modes)
        }
        return {"num_agents": int(self.count)} | figures | {"minFDE": mean[-1][NAMES.index("minFDE")]}


class MultiWorldMetrics(Metric):
    """Argoverse 2's multi-world metrics of joint forecasts, means over scenes (see `multi_world`).

    `compute()` gives {"num_scenes": n, "avgMinFDE6": ..., ...}, or nothing if no forecast was joint.
    """

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, k: int = 6) -> None:
        super().__init__()
        self.k = k
        self.add_state("total", torch.zeros(len(MULTI_WORLD_NAMES), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, forecast: Forecast, batch: SceneBatch) -> None:
        """Add a batch."""
        if forecast.is_joint:
            values, scored = multi_world(forecast, batch.truth.position, batch.truth.valid, self.k)
            self.total += torch.stack([values[name][scored].double().sum() for name in MULTI_WORLD_NAMES])
            self.count += scored.sum()

    def compute(self) -> dict[str, float]:
        """Means over all scenes with an actor."""
        if not self.count:
            return {}
        mean = (self.total / self.count).tolist()
        named = zip(MULTI_WORLD_NAMES, mean, strict=True)
        return {"num_scenes": int(self.count)} | {f"{name}{self.k}": value for name, value in named}


class CrowdMetrics(Metric):
    """The metrics of papers on pedestrians, means over agents.

    `compute()` gives num_windows and num_trajectories; ADE_k and FDE_k with separate minima, at k = 1 (the most
    probable mode) and at K, with FDE_at_best_ADE_K; JADE_K, JFDE_K and JFDE_at_best_JADE_K, where every agent has the value
    of its scene; and collision_rate_K, the share of agents, over agents and worlds, that come closer than 0.2 m to another
    agent in a world. Keys name K even if a model has fewer modes.
    """

    full_state_update = False
    total: Tensor
    windows: Tensor
    agents: Tensor

    def __init__(self, k: int = MANY_MODES) -> None:
        super().__init__()
        self.k = k
        self.names = [f"{name}_{n}" for n in (1, k) for name in SEPARATE_NAMES] + [f"{name}_{k}" for name in JOINT_NAMES]
        self.names.append(f"collision_rate_{k}")
        self.add_state("total", torch.zeros(len(self.names), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("windows", "agents"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, forecast: Forecast, truth: Truth) -> None:
        """Add a batch. The forecast has at most K modes."""
        actor = truth.valid[..., -1]
        sums = []
        for k in (1, self.k):
            values, scored = separate_minima(forecast, truth.position, truth.valid, k)
            sums += [values[name][scored].double().sum() for name in SEPARATE_NAMES]
        values, _ = joint_minima(forecast, truth.position, truth.valid, self.k)
        sums += [(values[name].double() * actor.sum(-1)).sum() for name in JOINT_NAMES]
        hit = collided(forecast.in_batch_frame(), actor, PEDESTRIAN_COLLISION_M, between_steps=True)
        self.total += torch.stack([*sums, hit.double().mean(-1).sum()])
        self.windows += actor.any(-1).sum()
        self.agents += actor.sum()

    def compute(self) -> dict[str, float]:
        """Means over all agents seen; NaN if there were none."""
        table = dict(zip(self.names, (self.total / self.agents).tolist(), strict=True))
        del table["FDE_at_best_ADE_1"]  # there is one mode
        return {"num_windows": int(self.windows), "num_trajectories": int(self.agents)} | table
