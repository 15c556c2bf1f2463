"""Optimisers, their parameter groups and learning-rate schedules."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trajformer.recipes.recipe import OptimConfig
from trajformer.training.muon import Muon


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Groups of parameters: weights with two or more axes have weight decay, learned positions and queries included.

    Biases, norms and `nn.Embedding` have none. With a `muon_rate`, the matrices of linear layers form a group for Muon, except
    those that the model names in its attribute `muon_exclude` (endings of names).
    """
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    linear = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    muon_exclude: tuple[str, ...] = getattr(model, "muon_exclude", ())
    hidden: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if (
            config.muon_rate
            and id(parameter) in linear - embeddings
            and not name.endswith(muon_exclude)
        ):
            hidden.append(parameter)
        elif parameter.ndim >= 2 and id(parameter) not in embeddings and not name.endswith("bias"):
            decayed.append(parameter)
        else:
            others.append(parameter)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    if not config.muon_rate:
        return groups
    rate = config.muon_rate / config.learning_rate
    return [
        *groups,
        {"params": hidden, "weight_decay": config.weight_decay, "lr": rate, "muon": True},
    ]


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
    groups: list[dict[str, Any]],
    config: OptimConfig,
    progress: Callable[[int], tuple[int, int]],
    *,
    fused: bool = True,
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW, or Muon with AdamW, and its schedule, which is stepped after every batch.

    The optional `lr` of a group is relative to the recipe's learning rate. `progress` maps a step to (done, total) of the
    schedule. `fused` uses AdamW's fused kernel; Lightning cannot clip gradients with it in mixed precision.
    """
    groups = [{**group, "lr": config.learning_rate * group.get("lr", 1.0)} for group in groups]
    optimizer: torch.optim.Optimizer
    if config.muon_rate:
        optimizer = Muon(groups, config.learning_rate, config.betas)
    else:
        optimizer = torch.optim.AdamW(
            groups, lr=config.learning_rate, betas=config.betas, fused=fused
        )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: rate_factor(*progress(step), config)
    )
    return optimizer, schedule
