"""Means of the metrics over agents and scenes, accumulated over batches and processes by torchmetrics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from trajformer.data.forecast import Forecast
from trajformer.evaluation.metrics.displacement import NAMES, SEPARATE_NAMES, displacement, separate_minima
from trajformer.evaluation.metrics.joint import (
    JOINT_NAMES,
    MULTI_WORLD_NAMES,
    PEDESTRIAN_COLLISION_M,
    collided,
    joint_minima,
    multi_world,
)


class DisplacementMetrics(Metric):
    """minADE, minFDE, MR and brier_minFDE per agent at several k: `compute()` gives {"minADE_6": ..., "num_agents": n}."""

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, ks: Sequence[int] = (1, 6)) -> None:
        super().__init__()
        self.ks = tuple(ks)
        self.add_state("total", torch.zeros(len(self.ks), len(NAMES), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, forecast: Forecast, target: Tensor, valid: Tensor) -> None:
        """Add a batch; arguments as for `displacement`."""
        for row, k in enumerate(self.ks):
            values, counts = displacement(forecast, target, valid, k)
            self.total[row] += torch.stack([values[name][counts].double().sum() for name in NAMES])
        self.count += counts.sum()

    def compute(self) -> dict[str, float]:
        """Means over all agents seen; NaN when there were none."""
        mean = (self.total / self.count).tolist()
        table = {f"{name}_{k}": mean[row][i] for row, k in enumerate(self.ks) for i, name in enumerate(NAMES)}
        return {"num_agents": int(self.count)} | table


class MultiWorldMetrics(Metric):
    """Argoverse 2's multi-world metrics, means over scenes: `compute()` gives {"avgMinFDE_6": ..., "num_scenes": n}."""

    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, k: int = 6) -> None:
        super().__init__()
        self.k = k
        self.add_state("total", torch.zeros(len(MULTI_WORLD_NAMES), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, forecast: Forecast, target: Tensor, valid: Tensor) -> None:
        """Add a batch; arguments as for `multi_world`."""
        values, counts = multi_world(forecast, target, valid, self.k)
        self.total += torch.stack([values[name][counts].double().sum() for name in MULTI_WORLD_NAMES])
        self.count += counts.sum()

    def compute(self) -> dict[str, float]:
        """Means over all scenes with an actor; NaN when there were none."""
        mean = (self.total / self.count).tolist()
        named = zip(MULTI_WORLD_NAMES, mean, strict=True)
        return {"num_scenes": int(self.count)} | {f"{name}_{self.k}": value for name, value in named}


class CrowdMetrics(Metric):
    """What papers on pedestrians report, means over agents.

    `compute()` gives num_windows and num_trajectories; ADE_k and FDE_k, their minima taken separately, at k = 1 (the most
    probable mode) and at K, with FDE_at_best_ADE_K; JADE_K, JFDE_K and JFDE_at_best_JADE_K, every agent having the value
    of its scene; and collision_rate_K, the share of agents, over agents and worlds, who come closer than 0.2 m to another
    one in a world. Keys name K even where a model has fewer modes.
    """

    full_state_update = False
    total: Tensor
    windows: Tensor
    agents: Tensor

    def __init__(self, k: int = 20) -> None:
        super().__init__()
        self.k = k
        self.names = [f"{name}_{n}" for n in (1, k) for name in SEPARATE_NAMES] + [f"{name}_{k}" for name in JOINT_NAMES]
        self.names.append(f"collision_rate_{k}")
        self.add_state("total", torch.zeros(len(self.names), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("windows", "agents"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, forecast: Forecast, target: Tensor, valid: Tensor) -> None:
        """Add a batch; arguments as for `separate_minima`. The forecast has at most K modes."""
        actor = valid[..., -1]
        sums = []
        for k in (1, self.k):
            values, counts = separate_minima(forecast, target, valid, k)
            sums += [values[name][counts].double().sum() for name in SEPARATE_NAMES]
        values, _ = joint_minima(forecast, target, valid, self.k)
        sums += [(values[name].double() * actor.sum(-1)).sum() for name in JOINT_NAMES]
        hit = collided(forecast.in_batch_frame(), actor, PEDESTRIAN_COLLISION_M, between_steps=True)
        self.total += torch.stack([*sums, hit.double().mean(-1).sum()])
        self.windows += actor.any(-1).sum()
        self.agents += actor.sum()

    def compute(self) -> dict[str, float]:
        """Means over all agents seen; NaN when there were none."""
        table = dict(zip(self.names, (self.total / self.agents).tolist(), strict=True))
        del table["FDE_at_best_ADE_1"]  # there is one mode
        return {"num_windows": int(self.windows), "num_trajectories": int(self.agents)} | table
