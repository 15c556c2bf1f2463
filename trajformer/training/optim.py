"""Optimiser recipes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from trajformer.recipes.recipe import OptimConfig


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices of linear layers and attention decay; vectors and embeddings do not."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    decay: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for parameter in model.parameters():
        (decay if parameter.ndim >= 2 and id(parameter) not in embeddings else rest).append(parameter)
    return [{"params": decay, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]


def warmup_cosine(step: int, total: int, warmup: float) -> float:
    """Factor on the learning rate: linear up over the first share `warmup` of the steps, cosine to zero after it."""
    ramp = max(int(total * warmup), 1)
    if step < ramp:
        return (step + 1) / ramp
    progress = min((step - ramp) / max(total - ramp, 1), 1.0)
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def factor(step: int, total: int, config: OptimConfig) -> float:
    """Factor on the learning rate at a step of `total`: the warm-up, then the recipe's schedule."""
    if config.schedule == "cosine":
        return warmup_cosine(step, total, config.warmup)
    ramp = max(int(total * config.warmup), 1)
    if step < ramp:
        return (step + 1) / ramp
    if config.schedule == "linear":
        return max(total - step, 0) / max(total - ramp, 1)
    if config.schedule == "inverse_sqrt":
        return math.sqrt(ramp / (step + 1))
    return 1.0 if step < total * config.drop else 0.1


def build_optimizer(
    groups: list[dict[str, Any]], config: OptimConfig, total_steps: int, *, fused: bool = True
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW and its schedule, to be stepped after every batch; Lightning cannot clip a `fused` one in mixed precision.

    Args:
        groups: of parameters; a group's `lr`, where it has one, is a share of the recipe's.
    """
    groups = [{**group, "lr": config.learning_rate * group.get("lr", 1.0)} for group in groups]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, total_steps, config))
    return optimizer, schedule
