"""The three networks of AgentFormer (Yuan et al., ICCV 2021, section 3.2) on normalised scenes (`agentformer_scene`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.core.cache import DecoderCache, StaticKVCache
from trajformer.core.dropout import Dropout, without_dropout
from trajformer.core.groups import Groups
from trajformer.core.positions import sinusoid
from trajformer.data.forecast import Gaussian
from trajformer.models.agentformer.scene import Context, Observed, mean_over, times, unless_all
from trajformer.models.tokens import mlp


def initialise(module: nn.Module) -> nn.Module:
    """Small weights and no biases, so that an untrained decoder predicts standing and latents are standard normal."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
    return module


class StepTokens(nn.Module):
    """An agent at a step as a token; time is a sinusoid that is concatenated and mixed in by a linear layer (section 3.2)."""

    def __init__(self, inputs: int, block: BlockConfig) -> None:
        super().__init__()
        self.width = block.width
        self.input = nn.Linear(inputs, block.width)
        self.mix = nn.Linear(2 * block.width, block.width)
        self.dropout = Dropout(block.dropout)

    def when(self, time: Tensor) -> Tensor:
        """What times float [T] in steps contribute: [T, 1, D], for any number of agents."""
        code = sinusoid(time.float(), self.width)
        return F.linear(code, self.mix.weight[:, self.width :], self.mix.bias)[:, None]

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        """[..., T, A, C] at times that `when` was made for to [..., T, A, D]."""
        return self.dropout(self._mixed(self.input(x)) + when)

    def part(self, x: Tensor, first: int = 0) -> Tensor:
        """What inputs [..., C'] from the `first` on contribute: both layers are linear, so parts can be added up."""
        weight = self.input.weight[:, first : first + x.shape[-1]]
        if first:
            return self._mixed(F.linear(x, weight, self.input.bias))
        return F.linear(x, self._mixed(weight.T).T)  # few inputs, many steps

    def _mixed(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mix.weight[:, : self.width])


class ContextEncoder(nn.Module):
    """The observed steps of all agents, and lanes, attend to one another."""

    def __init__(self, inputs: int, block: BlockConfig, layers: int) -> None:
        super().__init__()
        self.tokens, self.encoder = StepTokens(inputs, block), Encoder(block, layers)

    def forward(self, x: Tensor, time: Tensor, lanes: Tensor, observed: Observed) -> Context:
        """Tokens' inputs [B, H', A, C] at times [H'], and lanes [B, M, D]."""
        steps, agents = x.shape[1:3]
        count = lanes.shape[1]
        mask = observed.mask(agents, steps)
        if mask is not None and mask.shape[1] > 1:
            mask = torch.cat([mask, observed.seen[:, None].expand(-1, count, -1)], 1)
        tokens = torch.cat([self.tokens(x, self.tokens.when(time)).flatten(1, 2), lanes], 1)
        memory = self.encoder(tokens, mask, groups=Groups(agents, agents, (count, count)))
        real = observed.seen[:, : steps * agents].unflatten(1, (steps, agents))
        agent = mean_over(memory[:, : steps * agents].unflatten(1, (steps, agents)), real)
        return Context(**vars(observed), memory=memory, agent=agent)


class FutureEncoder(nn.Module):
    """The posterior of the latents: the true future attends to itself and to the context."""

    def __init__(
        self, inputs: int, block: BlockConfig, layers: int, hidden: tuple[int, ...], latent: int, per_token: int = 1
    ) -> None:
        super().__init__()
        self.per_token = per_token
        self.tokens, self.decoder = StepTokens(inputs, block), Decoder(block, layers)
        self.out = initialise(mlp(block.width, *hidden, 2 * latent, norm=False))

    def forward(self, x: Tensor, valid: Tensor, context: Context) -> Gaussian:
        """Tokens [B, F', S, C] of the first S agents, where bool [B, F', S] is True, to distributions [B, S, Z]."""
        steps, agents = valid.shape[1:]
        time = times(steps * self.per_token, self.per_token, x.device)
        tokens = self.tokens(x, self.tokens.when(time)).flatten(1, 2)
        real = valid.flatten(1)[:, None]
        if context.near is not None:
            real = real & context.near[:, :agents, :agents].repeat(1, steps, steps)
        hidden = self.decoder(
            tokens,
            context.memory,
            mask=unless_all(real),
            memory_mask=context.mask(agents, steps),
            groups=(Groups(agents, agents), Groups(agents, context.agent.shape[1], (0, context.lanes))),
        )[-1]
        mean = mean_over(hidden.unflatten(1, (steps, agents)), valid)
        return Gaussian(*self.out(mean).float().chunk(2, -1))


class FutureDecoder(nn.Module):
    """Latents to futures, step by step; a step attends to all agents' steps up to it and to the context.

    Futures are offsets from where an agent was last seen, or would be by going on as before. What is fed back carries no
    gradient, so a rollout with cached keys and values that nobody differentiates is followed, in training, by one pass over
    all steps at once. The rollout drops nothing, as in evaluation: what is fed back, and which sample is the best, is what it
    will be there.
    """

    def __init__(self, inputs: int, block: BlockConfig, layers: int, hidden: tuple[int, ...], per_token: int = 1) -> None:
        super().__init__()
        self.per_token = per_token
        self.tokens, self.decoder = StepTokens(inputs, block), Decoder(block, layers)
        self.out = mlp(block.width, *hidden, 2 * per_token, norm=False)
        initialise(self.out)

    def rollout(self, z: Tensor, context: Context, steps: int) -> Tensor:
        """Latents [B, K, A, Z] to positions [B, K, steps, A, 2], each token from the one before; without a gradient."""
        pairs, memory_mask = self._pairs(context), context.mask(z.shape[2], 1)
        with torch.no_grad(), without_dropout(self):
            cache, given = DecoderCache(len(self.decoder.layers)), self._given(z, context, steps)
            cache.layers = [(StaticKVCache(given.shape[2] * z.shape[2]), memory) for _, memory in cache.layers]
            out = [context.start[:, None, None].expand(-1, z.shape[1], -1, -1, -1)]
            base = self._base(context, given.shape[2])
            for token in range(given.shape[2]):
                mask = None if pairs is None else pairs.repeat(1, 1, token + 1)[:, None]
                masks = {"mask": mask, "memory_mask": memory_mask}
                tokens = self._tokens(out[-1][:, :, -1:], given[:, :, token : token + 1])
                out.append(self._step(tokens, context, base[:, :, token : token + 1], cache=cache, **masks))
        torch.clear_autocast_cache()  # else weights that were cast without a gradient would be used with one
        return torch.cat(out[1:], 2)[:, :, :steps]

    def replay(self, z: Tensor, context: Context, rolled: Tensor) -> Tensor:
        """The positions of a rollout [B, K, F, A, 2] once more, all tokens at once, with their gradient."""
        steps, agents = rolled.shape[2:4]
        given, fed = self._given(z, context, steps), rolled[:, :, self.per_token - 1 : steps - 1 : self.per_token]
        count = given.shape[2]
        start = context.start[:, None, None].expand(-1, z.shape[1], -1, -1, -1)
        past = torch.ones(count, count, dtype=torch.bool, device=z.device).tril()
        pairs = self._pairs(context)
        wide = torch.ones(1, agents, agents, dtype=torch.bool, device=z.device) if pairs is None else pairs
        mask = (past[:, None, :, None] & wide[:, None, :, None]).flatten(3, 4).flatten(1, 2)[:, None]
        tokens = self._tokens(torch.cat([start, fed], 2), given)
        masks = {"mask": mask, "memory_mask": context.mask(agents, count)}
        return self._step(tokens, context, self._base(context, count), **masks)[:, :, :steps]

    def _given(self, z: Tensor, context: Context, steps: int) -> Tensor:
        """What is known of tokens before any position: latents [B, K, A, Z], heading and time make [B, K, F', A, D]."""
        inputs = torch.cat([z, context.heading[:, None].expand(*z.shape[:-1], -1)], -1)
        return self.tokens.part(inputs, 2)[:, :, None] + self.tokens.when(times(steps, self.per_token, z.device))

    def _tokens(self, x: Tensor, given: Tensor) -> Tensor:
        """Fed positions [B, K, T, A, 2] and what is given to tokens [B, K, T, A, D]."""
        return self.tokens.dropout(self.tokens.part(x) + given)

    def _base(self, context: Context, tokens: int) -> Tensor:
        """What positions of all tokens' steps are offsets from [B, 1, F', steps, A, 2]."""
        time = torch.arange(1, tokens * self.per_token + 1, device=context.start.device)
        base = context.start[:, None] + context.drift[:, None] * time[:, None, None]
        return base.unflatten(1, (tokens, self.per_token))[:, None]

    def _step(self, tokens: Tensor, context: Context, base: Tensor, **arguments: Any) -> Tensor:
        """Tokens [B, K, T, A, D] to the positions of their steps, those after the ones they were fed: [B, K, T * steps, A, 2]."""
        agents = tokens.shape[3]
        groups = Groups(agents, agents), Groups(agents, agents, (0, context.lanes))
        inner = self.out[:-1](self.decoder(tokens.flatten(2, 3), context.memory, groups=groups, **arguments)[-1])
        with torch.autocast(inner.device.type, enabled=False):  # centimetres need more than half precision
            offset = self.out[-1](inner.float())
        by_step = offset.unflatten(2, tokens.shape[2:4]).unflatten(-1, (self.per_token, 2)).transpose(3, 4)
        return (by_step + base).flatten(2, 3)

    def _pairs(self, context: Context) -> Tensor | None:
        """Bool [B, A, A], or None for all: agents attend to those nearby who are still there, and to themselves."""
        own = torch.eye(context.here.shape[1], dtype=torch.bool, device=context.here.device)
        pairs = context.here[:, None] | own
        return unless_all(pairs if context.near is None else pairs & context.near)
