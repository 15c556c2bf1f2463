"""The three networks of AgentFormer (Yuan et al., ICCV 2021, section 3.2): context encoder, future encoder, future decoder.

A token holds one step of one agent, or several consecutive steps (`steps_per_token`). The tokens of all agents are one
sequence in time-major order, with H' tokens per agent in the past and F' in the future. Positions are normalised: relative to
an origin per scene, in units of `scale_m` metres.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.attention import Groups, useful_mask
from trajformer.core.blocks import BlockConfig, Decoder, DecoderCache, Encoder, masked_mean
from trajformer.core.caches import StaticKVCache
from trajformer.core.dropout import Dropout, without_dropout
from trajformer.core.positions import sinusoid
from trajformer.data.forecast import Gaussian
from trajformer.models.tokens import group_steps, mlp

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, eq=False)
class Context:
    """The encoded past of A agents and M lanes, in normalised units."""

    memory: Tensor  # [B, H' * A + M, D], encoded tokens; agents in time-major order, then lanes
    mask: Tensor | None  # bool [B, 1, H' * A + M], which tokens are real; None if all are
    num_lanes: int  # M
    agent: Tensor  # [B, A, D], mean over the tokens of each agent
    present: Tensor  # bool [B, A], observed in the last step; the future of other agents is not attended to
    start: Tensor  # [B, A, 2], last observed position
    velocity: Tensor  # [B, A, 2], displacement per step that futures are offsets from; zero without `extrapolate`
    heading: Tensor  # [B, A, 2], last observed heading as cosine and sine, or [B, A, 0] in a model without headings


def token_inputs(
    position: Tensor, displacement: Tensor, valid: Tensor, heading: Tensor, steps: int, past: bool
) -> tuple[Tensor, Tensor]:
    """Group the states of agents into tokens of `steps` consecutive steps.

    Position and displacement from the previous step are [B, A, T, 2], `valid` is bool [B, A, T], the heading [B, A, 2] as cosine
    and sine, or [B, A, 0] in a model without headings. A token of several steps also contains the validity of each step; an
    incomplete token is the first one (`past`) or the last one. Returns inputs [B, T', A, C] with T' = ceil(T / steps), and bool
    [B, T', A], True for tokens with a valid step.
    """
    x = torch.cat([position, displacement], -1)
    if steps > 1:
        x = torch.cat([x, valid[..., None].to(x.dtype)], -1)
        x, valid = group_steps(x * valid[..., None], valid, steps, past=past)
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
    return torch.arange(
        steps_per_token - 1,
        num_steps + (-num_steps % steps_per_token),
        steps_per_token,
        device=device,
    )


def initialize(module: M) -> M:
    """Small weights and zero biases: an untrained decoder predicts standing agents, untrained latents are standard normal."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return module


class StepTokens(nn.Module):
    """Embeds the inputs of tokens; the sinusoidal time code is concatenated and mixed in by a linear layer (section 3.2)."""

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

    def project(self, x: Tensor, first: int = 0) -> Tensor:
        """The contribution of the inputs `first` to `first` + C' - 1, [..., C'], to tokens [..., D].

        Both layers are linear, so the contributions of inputs and time add up to the token.
        """
        weight = self.input.weight[:, first : first + x.shape[-1]]
        if first:
            return self._mix(F.linear(x, weight, self.input.bias))
        return F.linear(x, self._mix(weight.T).T)  # cheaper for few inputs at many steps

    def _mix(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mix.weight[:, : self.width])


class ContextEncoder(nn.Module):
    """Self-attention over all agents at all observed steps, and lanes."""

    def __init__(self, inputs: int, block: BlockConfig, layers: int) -> None:
        super().__init__()
        self.tokens, self.encoder = StepTokens(inputs, block), Encoder(block, layers)

    def forward(
        self, x: Tensor, real: Tensor, time: Tensor, lanes: tuple[Tensor, Tensor], **last: Tensor
    ) -> Context:
        """Encode the past: inputs [B, H', A, C] of tokens, `real` bool [B, H', A], at times [H'].

        `lanes` are tokens [B, M, D], and bool [B, M]; `last` are the fields of `Context` about the last step.
        """
        steps, agents = real.shape[1:]
        num_lanes = lanes[0].shape[1]
        mask = useful_mask(torch.cat([real.flatten(1), lanes[1]], 1)[:, None])
        tokens = torch.cat([self.tokens(x, time).flatten(1, 2), lanes[0]], 1)  # [B, H' * A + M, D]
        memory = self.encoder(tokens, mask, groups=Groups(agents, agents, (num_lanes, num_lanes)))
        by_step = memory[:, : steps * agents].unflatten(1, (steps, agents))
        return Context(memory, mask, num_lanes, masked_mean(by_step, real[..., None], 1), **last)


class FutureEncoder(nn.Module):
    """The posterior of the latents: the true future attends to itself and to the context."""

    def __init__(
        self,
        inputs: int,
        block: BlockConfig,
        layers: int,
        hidden: tuple[int, ...],
        latent: int,
        per_token: int = 1,
    ) -> None:
        super().__init__()
        self.per_token = per_token
        self.tokens, self.decoder = StepTokens(inputs, block), Decoder(block, layers)
        self.out = initialize(mlp(block.width, *hidden, 2 * latent, norm=False))

    def forward(self, x: Tensor, valid: Tensor, context: Context) -> Gaussian:
        """Inputs [B, F', S, C] of the first S agents with bool [B, F', S] to distributions [B, S, Z]."""
        steps, agents = valid.shape[1:]
        time = future_times(steps * self.per_token, self.per_token, x.device)
        hidden = self.decoder(
            self.tokens(x, time).flatten(1, 2),
            context.memory,
            mask=useful_mask(valid.flatten(1)[:, None]),
            memory_mask=context.mask,
            groups=(
                Groups(agents, agents),
                Groups(agents, context.agent.shape[1], (0, context.num_lanes)),
            ),
        )[-1]
        mean = masked_mean(hidden.unflatten(1, (steps, agents)), valid[..., None], 1)
        return Gaussian(*self.out(mean).float().chunk(2, -1))


class FutureDecoder(nn.Module):
    """Decodes latents to futures, token by token; a token attends to the tokens of all agents up to its time and to the context.

    Futures are offsets from the last observed position, or from constant velocity. Fed-back positions have no gradient, so
    `rollout` needs none. It has no dropout, so that these positions and the choice of the best sample are as in evaluation.
    """

    def __init__(
        self,
        inputs: int,
        block: BlockConfig,
        layers: int,
        hidden: tuple[int, ...],
        per_token: int = 1,
    ) -> None:
        super().__init__()
        self.per_token = per_token
        self.tokens, self.decoder = StepTokens(inputs, block), Decoder(block, layers)
        self.out = initialize(mlp(block.width, *hidden, 2 * per_token, norm=False))

    def rollout(self, z: Tensor, context: Context, steps: int) -> Tensor:
        """Decode latents [B, K, A, Z] autoregressively to positions [B, K, steps, A, 2], without a gradient."""
        agent_mask = self._agent_mask(context)
        with torch.no_grad(), without_dropout(self):
            cache, known = DecoderCache(len(self.decoder.layers)), self._known(z, context, steps)
            count = known.shape[2]
            cache.layers = [
                (StaticKVCache(count * z.shape[2]), memory) for _, memory in cache.layers
            ]
            out = [context.start[:, None, None].expand(-1, z.shape[1], -1, -1, -1)]
            base = self._base(context, count)
            for index in range(count):
                token = slice(index, index + 1)
                mask = None if agent_mask is None else agent_mask.repeat(1, 1, index + 1)[:, None]
                tokens = self._tokens(out[-1][:, :, -1:], known[:, :, token])
                out.append(self._decode(tokens, context, base[:, :, token], cache=cache, mask=mask))
        torch.clear_autocast_cache()  # it holds casts of weights that were made without a gradient
        return torch.cat(out[1:], 2)[:, :, :steps]

    def replay(self, z: Tensor, context: Context, rolled: Tensor) -> Tensor:
        """Decode the positions of a rollout [B, K, F, A, 2] again, all tokens in parallel, with their gradient."""
        steps, agents = rolled.shape[2:4]
        known, fed_back = (
            self._known(z, context, steps),
            rolled[:, :, self.per_token - 1 : steps - 1 : self.per_token],
        )
        count = known.shape[2]
        start = context.start[:, None, None].expand(-1, z.shape[1], -1, -1, -1)
        causal = torch.ones(count, count, dtype=torch.bool, device=z.device).tril()
        agent_mask = self._agent_mask(context)
        if agent_mask is None:
            agent_mask = torch.ones(1, agents, agents, dtype=torch.bool, device=z.device)
        mask = (
            (causal[:, None, :, None] & agent_mask[:, None, :, None])
            .flatten(3, 4)
            .flatten(1, 2)[:, None]
        )
        tokens = self._tokens(torch.cat([start, fed_back], 2), known)
        return self._decode(tokens, context, self._base(context, count), mask=mask)[:, :, :steps]

    def _known(self, z: Tensor, context: Context, steps: int) -> Tensor:
        """The contribution of latents, headings and time to all tokens [B, K, F', A, D]."""
        inputs = torch.cat([z, context.heading[:, None].expand(*z.shape[:-1], -1)], -1)
        time = future_times(steps, self.per_token, z.device)
        return self.tokens.project(inputs, 2)[:, :, None] + self.tokens.encode_time(time)

    def _tokens(self, position: Tensor, known: Tensor) -> Tensor:
        """Fed-back positions [B, K, T, A, 2] and all other contributions [B, K, T, A, D] to tokens."""
        return self.tokens.dropout(self.tokens.project(position) + known)

    def _base(self, context: Context, tokens: int) -> Tensor:
        """The positions that outputs are offsets from [B, 1, F', steps, A, 2]."""
        time = torch.arange(1, tokens * self.per_token + 1, device=context.start.device)
        base = context.start[:, None] + context.velocity[:, None] * time[:, None, None]
        return base.unflatten(1, (tokens, self.per_token))[:, None]

    def _decode(self, tokens: Tensor, context: Context, base: Tensor, **arguments: Any) -> Tensor:
        """Tokens [B, K, T, A, D] to the positions of their steps [B, K, T * steps, A, 2]."""
        agents = tokens.shape[3]
        groups = Groups(agents, agents), Groups(agents, agents, (0, context.num_lanes))
        decoded = self.decoder(
            tokens.flatten(2, 3),
            context.memory,
            memory_mask=context.mask,
            groups=groups,
            **arguments,
        )
        hidden = self.out[:-1](decoded[-1])
        with torch.autocast(
            hidden.device.type, enabled=False
        ):  # half precision cannot represent centimetres
            offset = self.out[-1](hidden.float())  # [B, K, T * A, steps * 2]
        offset = (
            offset.unflatten(2, tokens.shape[2:4])
            .unflatten(-1, (self.per_token, 2))
            .transpose(3, 4)
        )
        return (offset + base).flatten(2, 3)

    def _agent_mask(self, context: Context) -> Tensor | None:
        """Bool [B, A, A], or None for all: agents attend to themselves and to present agents."""
        itself = torch.eye(
            context.present.shape[1], dtype=torch.bool, device=context.present.device
        )
        return useful_mask(context.present[:, None] | itself)
