"""Tokens of AgentFormer: states of agents, time codes and embeddings (Yuan et al., section 3.2).

A token holds one step of one agent, or several consecutive steps (`steps_per_token`). The tokens of
all agents are one sequence in time-major order. Positions are normalised: relative to an origin per
scene, in units of `scale_m` metres.
"""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.blocks import BlockConfig
from trajformer.core.dropout import Dropout
from trajformer.core.positions import sinusoid
from trajformer.models.tokens import group_steps

M = TypeVar("M", bound=nn.Module)


def token_width(steps_per_token: int, *, heading: bool) -> int:
    """Number of inputs C of a token of `token_inputs`."""
    width = 4
    if steps_per_token > 1:
        width = 5 * steps_per_token
    if heading:
        width += 2
    return width


class AgentStates(NamedTuple):
    """States of agents at T steps, in normalised units."""

    position: Tensor  # [B, A, T, 2]
    displacement: Tensor  # [B, A, T, 2], from the previous step
    valid: Tensor  # bool [B, A, T]
    recorded: Tensor  # bool [B, A, T], False for steps that are extrapolated


def token_inputs(
    states: AgentStates, heading: Tensor, steps: int, past: bool
) -> tuple[Tensor, Tensor]:
    """Group the states of agents into tokens of `steps` consecutive steps.

    The heading is [B, A, 2], cosine and sine, or [B, A, 0] in a model without headings. A token of
    several steps also says which of them were recorded (the paper's token of one step does not); an
    incomplete token is the first one (`past`) or the last one. Returns inputs [B, T', A, C] with
    T' = ceil(T / steps), and bool [B, T', A], True for tokens with a valid step.
    """
    valid = states.valid
    state = torch.cat([states.position, states.displacement], -1)  # [B, A, T, 4]
    if steps > 1:
        state = torch.cat([state, states.recorded[..., None].to(state.dtype)], -1)
        state, valid = group_steps(state * valid[..., None], valid, steps, past=past)
    heading_of_token = heading[:, :, None].expand(*state.shape[:3], -1)
    inputs = torch.cat([state, heading_of_token], -1)  # [B, A, T', C]
    return inputs.transpose(1, 2), valid.transpose(1, 2)


def displacements(position: Tensor, valid: Tensor) -> Tensor:
    """Displacements [B, A, H, 2] from the previous step.

    Where the previous step is not valid, it is the displacement to the next step, or zero.
    """
    known = (valid[:, :, 1:] & valid[:, :, :-1])[..., None]
    step = (position[:, :, 1:] - position[:, :, :-1]) * known
    from_previous = F.pad(step, (0, 0, 1, 0))
    to_next = F.pad(step, (0, 0, 0, 1))
    previous_known = F.pad(known, (0, 0, 1, 0))
    return torch.where(previous_known, from_previous, to_next)


def future_times(num_steps: int, steps_per_token: int, device: torch.device) -> Tensor:
    """Int64 [F'], the index of the last step of each future token; the first step has index 0."""
    num_tokens = -(-num_steps // steps_per_token)
    token = torch.arange(1, num_tokens + 1, device=device)
    return token * steps_per_token - 1


def initialize(module: M) -> M:
    """Small weights and zero biases.

    Then an untrained decoder predicts standing agents, and untrained latents are standard normal.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return module


class StepTokens(nn.Module):
    """Embeds the inputs of tokens.

    The sinusoidal time code is concatenated and mixed in by a linear layer (section 3.2). Both
    layers are linear, so the contributions of inputs and time add up to the token.
    """

    def __init__(self, inputs: int, block: BlockConfig) -> None:
        super().__init__()
        self.width = block.width
        self.input = nn.Linear(inputs, block.width)
        self.mix = nn.Linear(2 * block.width, block.width)
        self.dropout = Dropout(block.dropout)

    def encode_time(self, time: Tensor) -> Tensor:
        """The contribution of times [T], in steps, to all tokens of these times: [T, 1, D]."""
        code = sinusoid(time.float(), self.width)
        return F.linear(code, self.mix.weight[:, self.width :], self.mix.bias)[:, None]

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Inputs [..., T, A, C] at times [T] to tokens [..., T, A, D]."""
        return self.dropout(self._mix(self.input(x)) + self.encode_time(time))

    def project_positions(self, position: Tensor) -> Tensor:
        """The contribution of the first two inputs [..., 2] to tokens [..., D]."""
        weight = self.input.weight[:, :2]
        return F.linear(position, self._mix(weight.T).T)  # cheaper for few inputs at many steps

    def project_others(self, x: Tensor) -> Tensor:
        """The contribution of the other inputs [..., C - 2], and the bias, to tokens [..., D]."""
        return self._mix(F.linear(x, self.input.weight[:, 2:], self.input.bias))

    def _mix(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mix.weight[:, : self.width])
