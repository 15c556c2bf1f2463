"""A scene as AgentFormer (Yuan et al., ICCV 2021) has it: what is known of its agents, and their steps as tokens.

Tokens are all agents at all steps in one sequence, step by step, or some steps at a time: H' and F' tokens an agent. Lengths are
in units of the scene's scale, relative to the mean of all observed positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from trajformer.data.forecast import Gaussian


@dataclass(frozen=True, eq=False)
class Observed:
    """What of a scene is known beside its tokens: A agents, M lanes.

    Attributes:
        seen: bool [B, H' * A + M], which tokens of agents, and which lanes after them, are real.
        here: bool [B, A], seen at the last observed step: others may attend to its future.
        start: [B, A, 2], last observed position, normalised.
        drift: [B, A, 2], displacement a step of whoever goes on as before; zero in a model that starts from standing.
        heading: [B, A, 2], direction there, or [B, A, 0] in a model that does not use it.
        near: bool [B, A, A], which agents may attend to which; None if all may.
        lanes: M.
    """

    seen: Tensor
    here: Tensor
    start: Tensor
    drift: Tensor
    heading: Tensor
    near: Tensor | None
    lanes: int

    def mask(self, agents: int, steps: int) -> Tensor | None:
        """Bool [B, 1 or steps * agents, H' * A + M] for queries of the first agents, or None where all may attend to all."""
        seen = self.seen[:, None]
        if self.near is not None:
            history = (self.seen.shape[1] - self.lanes) // self.near.shape[1]
            seen = seen & F.pad(self.near[:, :agents].repeat(1, steps, history), (0, self.lanes), value=True)
        return unless_all(seen)


@dataclass(frozen=True, eq=False)
class Context(Observed):
    """The same, encoded.

    Attributes:
        memory: [B, H' * A + M, D], tokens of all agents, lanes after them.
        agent: [B, A, D], mean over an agent's tokens.
    """

    memory: Tensor
    agent: Tensor


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What a CVAE is trained on; positions in metres in the batch frame.

    Attributes:
        position: [B, S, F, 2], decoded from a sample of the posterior.
        best: [B, S, F, 2], of K samples from the prior the one nearest to an agent's future.
        posterior: [B, S, Z], of the latents given past and future.
        prior: [B, S, Z], given the past.
    """

    position: Tensor
    best: Tensor
    posterior: Gaussian
    prior: Gaussian


def unless_all(mask: Tensor) -> Tensor | None:
    """A mask that hides something; in a compiled graph, which must not depend on it, any."""
    return None if not torch.compiler.is_compiling() and bool(mask.all()) else mask


def used(best: Tensor, real: Tensor, samples: int) -> tuple[Tensor, Tensor]:
    """The samples that are a target's best, and where among them that of each target is.

    Args:
        best: int64 [B, S], of K samples.
        real: bool [B, S], which targets have a future.
        samples: K.

    Returns:
        int64 [B, k], k being as many as any scene needs (others have some that nobody uses; in a compiled graph as many as any
        scene could need), and int64 [B, S] into it.
    """
    taken = (F.one_hot(best, samples).bool() & real[..., None]).any(1)
    count = min(samples, best.shape[1]) if torch.compiler.is_compiling() else int(taken.sum(1).max())
    rows = taken.int().argsort(dim=1, descending=True, stable=True)[:, : max(count, 1)]
    return rows, (rows[:, None] == best[..., None]).int().argmax(-1)


def mean_over(x: Tensor, real: Tensor) -> Tensor:
    """Mean over steps of [B, T, A, D] where bool [B, T, A] is True: [B, A, D], zero where it never is."""
    return (x * real[..., None]).sum(1) / real.sum(1).clamp(min=1)[..., None]


def velocity(xy: Tensor, valid: Tensor) -> Tensor:
    """Displacements [B, A, H, 2] since the step before; where that is unseen those to the step after it, or zero."""
    known = (valid[:, :, 1:] & valid[:, :, :-1])[..., None]
    step = (xy[:, :, 1:] - xy[:, :, :-1]) * known
    before, after = F.pad(step, (0, 0, 1, 0)), F.pad(step, (0, 0, 0, 1))
    return torch.where(F.pad(known, (0, 0, 1, 0)), before, after)


def inputs_per_token(steps: int, heading: bool) -> int:
    """C, how many numbers `tokens_of` has of an agent in a token."""
    return (4 if steps == 1 else 5 * steps) + 2 * heading


def times(steps: int, per_token: int, device: torch.device) -> Tensor:
    """Of the tokens of so many future steps: when their last step is, the first step of all being 0. Int64 [F']."""
    return torch.arange(per_token - 1, steps + (-steps % per_token), per_token, device=device)


def tokens_of(xy: Tensor, moved: Tensor, valid: Tensor, heading: Tensor, steps: int, past: bool) -> tuple[Tensor, Tensor]:
    """Inputs of tokens that are some consecutive steps of an agent each.

    Args:
        xy: [B, A, T, 2], positions.
        moved: [B, A, T, 2], displacements.
        valid: bool [B, A, T].
        heading: [B, A, 2], or [B, A, 0] in a model that does not use it.
        steps: of a token; tokens of several have all positions, all displacements and whether each step is real.
        past: incomplete tokens are the first ones; else the last ones.

    Returns:
        [B, T', A, C] and bool [B, T', A], which have a real step; T' = ceil(T / steps).
    """
    x = torch.cat([xy, moved], -1)
    if steps > 1:
        x = torch.cat([x, valid[..., None].to(x.dtype)], -1)
        lacking = -x.shape[2] % steps
        sides = (lacking, 0) if past else (0, lacking)
        x = F.pad(x * valid[..., None], (0, 0, *sides)).unflatten(2, (-1, steps)).flatten(3)
        valid = F.pad(valid, sides).unflatten(2, (-1, steps)).any(-1)
    x = torch.cat([x, heading[:, :, None].expand(*x.shape[:3], -1)], -1)
    return x.transpose(1, 2), valid.transpose(1, 2)
