"""Inputs of AgentFormer's tokens (Yuan et al., ICCV 2021, section 3.2).

A token holds one step of one agent, or several consecutive steps (`steps_per_token`). The tokens of all agents are one
sequence in time-major order, with H' tokens per agent in the past and F' in the future. Positions are normalised: relative to
an origin per scene, in units of `scale_m` metres.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def token_width(steps: int, heading: bool) -> int:
    """C, the size of the last axis of the output of `token_inputs`."""
    return (4 if steps == 1 else 5 * steps) + 2 * heading


def token_inputs(
    position: Tensor, displacement: Tensor, valid: Tensor, heading: Tensor, steps: int, past: bool
) -> tuple[Tensor, Tensor]:
    """Group the states of agents into tokens of `steps` consecutive steps.

    Args:
        position: [B, A, T, 2].
        displacement: [B, A, T, 2], from the previous step.
        valid: bool [B, A, T].
        heading: [B, A, 2] as cosine and sine, or [B, A, 0] in a model without headings.
        steps: steps per token. A token of several steps also contains the validity of each step.
        past: True: an incomplete token is the first one; False: the last one.

    Returns:
        inputs [B, T', A, C] with T' = ceil(T / steps), and bool [B, T', A], True for tokens with a valid step.
    """
    x = torch.cat([position, displacement], -1)
    if steps > 1:
        x = torch.cat([x, valid[..., None].to(x.dtype)], -1)
        missing = -x.shape[2] % steps
        padding = (missing, 0) if past else (0, missing)
        x = F.pad(x * valid[..., None], (0, 0, *padding)).unflatten(2, (-1, steps)).flatten(3)
        valid = F.pad(valid, padding).unflatten(2, (-1, steps)).any(-1)
    x = torch.cat([x, heading[:, :, None].expand(*x.shape[:3], -1)], -1)
    return x.transpose(1, 2), valid.transpose(1, 2)


def displacements(position: Tensor, valid: Tensor) -> Tensor:
    """Displacements [B, A, H, 2] from the previous step, or to the next step where the previous one is not valid, or zero."""
    known = (valid[:, :, 1:] & valid[:, :, :-1])[..., None]
    step = (position[:, :, 1:] - position[:, :, :-1]) * known
    from_previous, to_next = F.pad(step, (0, 0, 1, 0)), F.pad(step, (0, 0, 0, 1))
    return torch.where(F.pad(known, (0, 0, 1, 0)), from_previous, to_next)


def future_times(num_steps: int, steps_per_token: int, device: torch.device) -> Tensor:
    """Int64 [F'], the index of the last step of each future token; the first future step has index 0."""
    return torch.arange(steps_per_token - 1, num_steps + (-num_steps % steps_per_token), steps_per_token, device=device)


def time_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the T tokens of [B, T, A, D] where bool [B, T, A] is True: [B, A, D], zero where it is never True."""
    return (x * mask[..., None]).sum(1) / mask.sum(1).clamp(min=1)[..., None]
