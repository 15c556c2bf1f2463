"""Optimisers, their parameter groups and learning-rate schedules."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trajformer.recipes.recipe import OptimConfig
from trajformer.training.muon import Muon


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Groups of parameters: weights with two or more axes have weight decay.

    Learned positions and queries are among them; biases, norms and `nn.Embedding` have no weight
    decay. With a `muon_rate`, the matrices of linear layers form a group for Muon, except those
    that the model names in its attribute `muon_exclude` (endings of names).
    """
    embeddings = _weights_of(model, nn.Embedding)
    linear_layers = _weights_of(model, nn.Linear) - embeddings
    muon_exclude: tuple[str, ...] = getattr(model, "muon_exclude", ())
    with_muon: list[nn.Parameter] = []
    with_decay: list[nn.Parameter] = []
    without_decay: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim >= 2 and not name.endswith("bias")
        if config.muon_rate and parameter in linear_layers and not name.endswith(muon_exclude):
            with_muon.append(parameter)
        elif is_matrix and parameter not in embeddings:
            with_decay.append(parameter)
        else:
            without_decay.append(parameter)

    groups: list[dict[str, Any]] = [
        {"params": with_decay, "weight_decay": config.weight_decay},
        {"params": without_decay, "weight_decay": 0.0},
    ]
    if config.muon_rate:
        relative_rate = config.muon_rate / config.learning_rate
        muon_group = {"params": with_muon, "weight_decay": config.weight_decay, "muon": True}
        groups.append({**muon_group, "lr": relative_rate})
    return groups


def _weights_of(model: nn.Module, kind: type[nn.Embedding] | type[nn.Linear]) -> set[Tensor]:
    """The weights of all modules of a class; tensors are compared by identity."""
    return {module.weight for module in model.modules() if isinstance(module, kind)}


@dataclass(frozen=True)
class Length:
    """Length of a training in optimiser steps: a first part, and restarts of equal length."""

    first_steps: int
    restarts: int = 0
    restart_steps: int = 0  # of each restart

    @property
    def total(self) -> int:
        """Steps of all parts."""
        return self.first_steps + self.restarts * self.restart_steps

    def position(self, step: int) -> tuple[int, int, int]:
        """The part of a step (0 is the first part), the step in this part, and steps of the part.

        A step after the end of the training belongs to the last part.
        """
        if self.restarts == 0 or step < self.first_steps:
            return 0, step, self.first_steps
        step_of_restarts = step - self.first_steps
        restart = min(step_of_restarts // self.restart_steps, self.restarts - 1)
        return restart + 1, step_of_restarts - restart * self.restart_steps, self.restart_steps

    def finished_part(self, step: int) -> int | None:
        """The part that ends with this number of steps, or None if no part ends."""
        if step <= 0 or step > self.total:
            return None
        part, step_in_part, steps_of_part = self.position(step - 1)
        if step_in_part + 1 < steps_of_part:
            return None
        return part


def rate_factor(step: int, total: int, config: OptimConfig) -> float:
    """Factor on the learning rate at a step of `total`: a linear warm-up, then the schedule."""
    warmup_steps = max(int(total * config.warmup), 1)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if config.schedule == "cosine":
        progress = min((step - warmup_steps) / max(total - warmup_steps, 1), 1.0)
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    if config.schedule == "linear":
        return max(total - step, 0) / max(total - warmup_steps, 1)
    if config.schedule == "inverse_sqrt":
        return math.sqrt(warmup_steps / (step + 1))
    return 1.0 if step < total * config.drop else 0.1


def scheduled_rate(step: int, length: Length, config: OptimConfig) -> float:
    """Factor on the learning rate at a step: every part has its own warm-up and schedule.

    Restarts have the factor `restart_rate` on all rates.
    """
    part, step_in_part, steps_of_part = length.position(step)
    factor = rate_factor(step_in_part, steps_of_part, config)
    if part > 0:
        factor *= config.restart_rate
    return factor


def build_optimizer(
    groups: list[dict[str, Any]], config: OptimConfig, length: Length, *, fused: bool = True
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW, or Muon with AdamW, and its schedule, which is stepped after every batch.

    The optional `lr` of a group is relative to the recipe's learning rate. `fused` uses AdamW's
    fused kernel; Lightning cannot clip gradients with it in mixed precision.
    """
    scaled = []
    for group in groups:
        relative_rate = group.get("lr", 1.0)
        scaled.append({**group, "lr": config.learning_rate * relative_rate})

    optimizer: torch.optim.Optimizer
    if config.muon_rate:
        optimizer = Muon(scaled, config.learning_rate, config.betas)
    else:
        optimizer = torch.optim.AdamW(
            scaled, lr=config.learning_rate, betas=config.betas, fused=fused
        )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: scheduled_rate(step, length, config)
    )
    return optimizer, schedule
