"""The three networks of AgentFormer (Yuan et al., ICCV 2021, section 3.2).

A context encoder, a future encoder (the posterior) and a future decoder attend to the tokens of all
agents (`tokens.py`), with H' tokens per agent in the past and F' in the future.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trajformer.core.attention import Groups, useful_mask
from trajformer.core.blocks import BlockConfig, Decoder, DecoderCache, Encoder, masked_mean
from trajformer.core.caches import StaticKVCache
from trajformer.core.dropout import without_dropout
from trajformer.data.forecast import Gaussian
from trajformer.models.agentformer.tokens import StepTokens, future_times, initialize
from trajformer.models.tokens import mlp


@dataclass(frozen=True, eq=False)
class Context:
    """The encoded past of A agents and M lanes, in normalised units.

    Tokens of agents are in time-major order, then come lanes. The future of an agent that is not
    `present` is not attended to. Futures are offsets from `start`, moved by `velocity` in each
    step.
    """

    memory: Tensor  # [B, H' * A + M, D], encoded tokens
    mask: Tensor | None  # bool [B, 1, H' * A + M], which tokens are real; None if all are
    num_lanes: int  # M
    agent: Tensor  # [B, A, D], mean over the tokens of each agent
    present: Tensor  # bool [B, A], seen in the last second
    start: Tensor  # [B, A, 2], present position
    velocity: Tensor  # [B, A, 2], displacement per step; zero without `extrapolate`
    heading: Tensor  # [B, A, 2], last observed cosine and sine, or [B, A, 0] without headings


class ContextEncoder(nn.Module):
    """Self-attention over all agents at all observed steps, and lanes."""

    def __init__(self, inputs: int, block: BlockConfig, layers: int) -> None:
        super().__init__()
        self.tokens = StepTokens(inputs, block)
        self.encoder = Encoder(block, layers)

    def forward(
        self,
        x: Tensor,
        real: Tensor,
        present: Tensor,
        time: Tensor,
        lanes: Tensor,
        lane_mask: Tensor,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Encode the past: `memory`, `mask` and `agent` of the `Context`.

        Inputs [B, H', A, C] of tokens, `real` bool [B, H', A], are at times [H']. Tokens of agents
        that are not `present`, bool [B, A], are not attended to. Lanes are tokens [B, M, D] with
        bool [B, M].
        """
        steps, agents = real.shape[1:]
        num_lanes = lanes.shape[1]
        tokens = self.tokens(x, time).flatten(1, 2)  # [B, H' * A, D]
        of_present = real & present[:, None]
        keys = torch.cat([of_present.flatten(1), lane_mask], 1)
        mask = useful_mask(keys[:, None])
        groups = Groups(agents, agents, (num_lanes, num_lanes))
        memory = self.encoder(torch.cat([tokens, lanes], 1), mask, groups=groups)
        by_step = memory[:, : steps * agents].unflatten(1, (steps, agents))
        return memory, mask, masked_mean(by_step, real[..., None], 1)


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
        self.tokens = StepTokens(inputs, block)
        self.decoder = Decoder(block, layers)
        self.out = initialize(mlp(block.width, *hidden, 2 * latent, norm=False))

    def forward(self, x: Tensor, valid: Tensor, context: Context) -> Gaussian:
        """Inputs [B, F', S, C] of the first S agents with bool [B, F', S] to [B, S, Z]."""
        steps, agents = valid.shape[1:]
        time = future_times(steps * self.per_token, self.per_token, x.device)
        itself = Groups(agents, agents)
        past = Groups(agents, context.agent.shape[1], (0, context.num_lanes))
        layers = self.decoder(
            self.tokens(x, time).flatten(1, 2),
            context.memory,
            mask=useful_mask(valid.flatten(1)[:, None]),
            memory_mask=context.mask,
            groups=(itself, past),
        )
        by_step = layers[-1].unflatten(1, (steps, agents))  # [B, F', S, D]
        mean = masked_mean(by_step, valid[..., None], 1)
        return Gaussian(*self.out(mean).float().chunk(2, -1))


class FutureDecoder(nn.Module):
    """Decodes latents to futures, token by token.

    A token attends to the tokens of all agents up to its time and to the context. Futures are
    offsets from the last observed position, or from constant velocity. Fed-back positions have no
    gradient, so `rollout` needs none. It has no dropout, so that these positions and the choice of
    the best sample are as in evaluation.
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
        self.tokens = StepTokens(inputs, block)
        self.decoder = Decoder(block, layers)
        self.out = initialize(mlp(block.width, *hidden, 2 * per_token, norm=False))

    def rollout(self, z: Tensor, context: Context, steps: int) -> Tensor:
        """Decode latents [B, K, A, Z] to positions [B, K, steps, A, 2], without a gradient."""
        samples, agents = z.shape[1:3]
        agent_mask = self._agent_mask(context)
        decoded = []
        with torch.no_grad(), without_dropout(self):
            known = self._known_inputs(z, context, steps)  # [B, K, F', A, D]
            count = known.shape[2]
            base = self._base(context, count)
            cache = self._cache(count * agents)
            position = self._start(context, samples)  # fed back: [B, K, 1, A, 2]
            for index in range(count):
                token = slice(index, index + 1)
                mask = None
                if agent_mask is not None:  # the same for all tokens so far
                    mask = agent_mask.repeat(1, 1, index + 1)[:, None]
                tokens = self._tokens(position, known[:, :, token])
                decoded.append(self._decode(tokens, context, base[:, :, token], mask, cache))
                position = decoded[-1][:, :, -1:]
        torch.clear_autocast_cache()  # it holds casts of weights that were made without a gradient
        return torch.cat(decoded, 2)[:, :, :steps]

    def replay(self, z: Tensor, context: Context, rolled: Tensor) -> Tensor:
        """Decode a rollout [B, K, F, A, 2] again, all tokens in parallel, with its gradient."""
        samples = z.shape[1]
        steps = rolled.shape[2]
        known = self._known_inputs(z, context, steps)
        count = known.shape[2]
        # Each token receives the last position of the token before it.
        fed_back = rolled[:, :, self.per_token - 1 : steps - 1 : self.per_token]
        position = torch.cat([self._start(context, samples), fed_back], 2)  # [B, K, F', A, 2]
        tokens = self._tokens(position, known)
        mask = self._causal_mask(context, count)
        decoded = self._decode(tokens, context, self._base(context, count), mask)
        return decoded[:, :, :steps]

    def _known_inputs(self, z: Tensor, context: Context, steps: int) -> Tensor:
        """The contribution of latents, headings and time to all tokens [B, K, F', A, D]."""
        heading = context.heading[:, None].expand(*z.shape[:-1], -1)
        of_agent = self.tokens.project_others(torch.cat([z, heading], -1))  # [B, K, A, D]
        time = future_times(steps, self.per_token, z.device)
        return of_agent[:, :, None] + self.tokens.encode_time(time)

    def _tokens(self, position: Tensor, known: Tensor) -> Tensor:
        """Fed-back positions [B, K, T, A, 2] and all other contributions [B, K, T, A, D]."""
        return self.tokens.dropout(self.tokens.project_positions(position) + known)

    def _start(self, context: Context, samples: int) -> Tensor:
        """The input of the first token [B, K, 1, A, 2]: the last observed position."""
        return context.start[:, None, None].expand(-1, samples, -1, -1, -1)

    def _base(self, context: Context, tokens: int) -> Tensor:
        """The positions that outputs are offsets from [B, 1, F', steps, A, 2]."""
        time = torch.arange(1, tokens * self.per_token + 1, device=context.start.device)
        base = context.start[:, None] + context.velocity[:, None] * time[:, None, None]
        return base.unflatten(1, (tokens, self.per_token))[:, None]

    def _cache(self, length: int) -> DecoderCache:
        """A cache with memory for `length` tokens, so that it is not copied in each step."""
        cache = DecoderCache(len(self.decoder.layers))
        cache.layers = [(StaticKVCache(length), memory) for _, memory in cache.layers]
        return cache

    def _decode(
        self,
        tokens: Tensor,
        context: Context,
        base: Tensor,
        mask: Tensor | None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """Tokens [B, K, T, A, D] to the positions of their steps [B, K, T * steps, A, 2]."""
        count, agents = tokens.shape[2:4]
        itself = Groups(agents, agents)
        past = Groups(agents, agents, (0, context.num_lanes))
        layers = self.decoder(
            tokens.flatten(2, 3),
            context.memory,
            cache=cache,
            mask=mask,
            memory_mask=context.mask,
            groups=(itself, past),
        )
        hidden = self.out[:-1](layers[-1])
        # Half precision cannot represent centimetres.
        with torch.autocast(hidden.device.type, enabled=False):
            offset = self.out[-1](hidden.float())  # [B, K, T * A, steps * 2]
        offset = offset.unflatten(2, (count, agents)).unflatten(-1, (self.per_token, 2))
        offset = offset.transpose(3, 4)  # [B, K, T, steps, A, 2]
        return (offset + base).flatten(2, 3)

    def _causal_mask(self, context: Context, count: int) -> Tensor:
        """Bool [B or 1, 1, F' * A, F' * A]: tokens of attended agents up to the same time."""
        device = context.present.device
        agents = context.present.shape[1]
        causal = torch.ones(count, count, dtype=torch.bool, device=device).tril()
        agent_mask = self._agent_mask(context)
        if agent_mask is None:
            agent_mask = torch.ones(1, agents, agents, dtype=torch.bool, device=device)
        pairs = causal[:, None, :, None] & agent_mask[:, None, :, None]  # [B, F', A, F', A]
        return pairs.flatten(3, 4).flatten(1, 2)[:, None]

    def _agent_mask(self, context: Context) -> Tensor | None:
        """Bool [B, A, A], or None for all: agents attend to themselves and to present agents."""
        agents = context.present.shape[1]
        itself = torch.eye(agents, dtype=torch.bool, device=context.present.device)
        return useful_mask(context.present[:, None] | itself)
