"""AdamW, its parameter groups and learning-rate schedules."""

import math
from typing import Any

import torch
from torch import nn

from trajformer.recipes.recipe import OptimConfig


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices of linear layers and attention have weight decay; vectors and embeddings have none."""
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.ndim >= 2 and id(parameter) not in embeddings:
            decayed.append(parameter)
        else:
            others.append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def rate_factor(step: int, total: int, config: OptimConfig) -> float:
    """Factor on the learning rate at a step of `total`: a linear warm-up, then the recipe's schedule."""
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


def build_optimizer(
    groups: list[dict[str, Any]], config: OptimConfig, total_steps: int, *, fused: bool = True
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW and its schedule, which is stepped after every batch.

    Args:
        groups: parameter groups; the optional `lr` of a group is relative to the recipe's learning rate.
        config: of the optimiser.
        total_steps: of the whole training.
        fused: use the fused kernel; Lightning cannot clip gradients with it in mixed precision.
    """
    groups = [{**group, "lr": config.learning_rate * group.get("lr", 1.0)} for group in groups]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, total_steps, config))
    return optimizer, schedule
