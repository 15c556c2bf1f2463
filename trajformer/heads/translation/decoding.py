"""Greedy and beam search over any model that gives logits of the next token; whole batches, finished sentences leave."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Steps(Protocol):
    """N hypotheses that grow by a token a step."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append int64 [N]; returns the logits [N, V] of what follows."""
        ...

    def select(self, rows: Tensor, *, same_sentence: bool) -> None:
        """Go on with these rows; `same_sentence`: each takes the place of one of its own sentence."""
        ...


def length_penalty(length: Tensor, alpha: float) -> Tensor:
    """((5 + length) / 6) ** alpha (Wu et al. 2016, eq. 14); a sum of log-probabilities is divided by it."""
    return ((5 + length) / 6) ** alpha


@torch.inference_mode()
def greedy(steps: Steps, limit: Tensor, *, start: int, end: int) -> list[Tensor]:
    """The likeliest token at each step, one hypothesis a sentence.

    Args:
        steps: a row for each of B sentences.
        limit: int64 [B], the longest that each translation may get.
        start: token that hypotheses begin with; `end` is the one that finishes them.

    Returns:
        For each sentence int64 [length], without start and end.
    """
    rows, tokens = torch.arange(len(limit), device=limit.device), torch.full_like(limit, start)
    longest = int(limit.max())
    found = limit.new_full((len(limit), longest), end)
    for place in range(longest):
        tokens = steps.step(tokens).argmax(-1)
        found[rows, place] = tokens
        alive = ((tokens != end) & (limit[rows] > place + 1)).nonzero()[:, 0]
        if not len(alive):
            break
        if len(alive) < len(rows):
            rows, tokens = rows[alive], tokens[alive]
            steps.select(alive, same_sentence=False)
    return [_until(row, end) for row in found]


def _until(tokens: Tensor, end: int) -> Tensor:
    stops = (tokens == end).nonzero()
    return tokens[: int(stops[0])] if len(stops) else tokens


class _Beams:
    """W hypotheses of each of B sentences: tokens int64 [B, W, L]; log-probability, rank and whether finished [B, W]."""

    def __init__(self, limit: Tensor, width: int, alpha: float, end: int) -> None:
        sentences, device = len(limit), limit.device
        self.limit, self.width, self.alpha, self.end = limit, width, alpha, end
        self.tokens = torch.zeros(sentences, width, 0, dtype=torch.int64, device=device)
        self.total = torch.full((sentences, width), -torch.inf, device=device)
        self.total[:, 0] = 0.0  # all begin alike: one of them is enough
        self.rank = self.total.clone()
        self.finished = torch.zeros(sentences, width, dtype=torch.bool, device=device)
        self.sentence = torch.arange(sentences, device=device)

    def grow(self, log_probability: Tensor) -> Tensor:
        """Choose the best W continuations by [B * W, V]; returns the rows int64 [B * W] they go on from.

        A finished hypothesis is frozen: it keeps its tokens and its rank, and competes with those that still grow.
        """
        batch, width, place = len(self.sentence), self.width, self.tokens.shape[2] + 1
        total = self.total[..., None] + log_probability.view(batch, width, -1)
        rank = total / length_penalty(torch.tensor(place), self.alpha)
        rank = torch.where(self.finished[..., None], -torch.inf, rank)
        rank[..., self.end] = torch.where(self.finished, self.rank, rank[..., self.end])
        total[..., self.end] = torch.where(self.finished, self.total, total[..., self.end])
        self.rank, best = rank.flatten(1).topk(width, -1)
        self.total = total.flatten(1).gather(1, best)
        origin, token = best // rank.shape[-1], best % rank.shape[-1]
        self.finished = token == self.end
        before = self.tokens.gather(1, origin[..., None].expand_as(self.tokens))
        self.tokens = torch.cat([before, token[..., None]], -1)
        return (origin + torch.arange(batch, device=origin.device)[:, None] * width).flatten()

    def done(self) -> Tensor:
        """Which sentences are as long as they may get, or can no longer change: bool [B].

        A log-probability only falls and its penalty is largest at the limit, so that bounds what a hypothesis can reach.
        """
        reachable = torch.where(self.finished, -torch.inf, self.total).amax(1) / length_penalty(self.limit, self.alpha)
        finished = torch.where(self.finished, self.rank, -torch.inf).amax(1)
        return (finished >= reachable) | (self.limit <= self.tokens.shape[2])

    def best(self, chosen: Tensor) -> list[tuple[int, Tensor]]:
        """(sentence, tokens) of the highest-ranking finished hypothesis, or of any where none is finished."""
        rank = torch.where(self.finished | ~self.finished.any(1, keepdim=True), self.rank, -torch.inf)
        first, rows = rank.argmax(1), chosen.nonzero()[:, 0]
        return [(int(self.sentence[row]), _until(self.tokens[row, first[row]], self.end)) for row in rows]

    def keep(self, chosen: Tensor) -> None:
        """Go on with these sentences bool [B] alone."""
        for name in ("tokens", "total", "rank", "finished", "sentence", "limit"):
            setattr(self, name, getattr(self, name)[chosen])


@torch.inference_mode()
def beam_search(steps: Steps, limit: Tensor, *, width: int, start: int, end: int, alpha: float = 0.6) -> list[Tensor]:
    """The hypothesis with the highest log-probability over length penalty among `width` kept at each step.

    Args:
        steps: B * width rows, those of a sentence beside each other.
        limit: int64 [B], the longest that each translation may get, its end included.
        width: W, hypotheses kept a sentence.
        start: token that hypotheses begin with; `end` is the one that finishes them.
        alpha: of the length penalty, at least 0; 0 compares plain log-probabilities.

    Returns:
        For each sentence int64 [length], without start and end.
    """
    beams = _Beams(limit, width, alpha, end)
    found: dict[int, Tensor] = {}
    tokens = limit.new_full((len(limit) * width,), start)
    while len(tokens):
        rows = beams.grow(steps.step(tokens).float().log_softmax(-1))
        done = beams.done()
        if done.any():
            found.update(beams.best(done))
            beams.keep(~done)
            rows = rows.view(-1, width)[~done].flatten()
        steps.select(rows, same_sentence=not bool(done.any()))
        tokens = beams.tokens[..., -1].flatten()
    return [found[sentence] for sentence in range(len(limit))]
