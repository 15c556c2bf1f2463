"""Optimiser recipes."""

from __future__ import annotations

import math

import torch
from torch import nn

from trajformer.training.config import OptimConfig


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
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


def build_optimizer(
    model: nn.Module, config: OptimConfig, total_steps: int, *, fused: bool = True
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW and its schedule, to be stepped after every batch; Lightning cannot clip a `fused` one in mixed precision."""
    groups = parameter_groups(model, config.weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_cosine(step, total_steps, config.warmup))
    return optimizer, schedule
