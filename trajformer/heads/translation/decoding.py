"""Beam search with cached keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from trajformer.core.blocks import DecoderCache
from trajformer.heads.translation.model import Transformer
from trajformer.heads.translation.tokenizer import END, START


class Hypotheses:
    """Partial translations of source sentences.

    Sentences int64 [B, S] have N = B * copies rows; the rows of a sentence are adjacent. The model
    is in evaluation mode. Without `cached`, every step decodes the whole prefix again, for
    comparison.
    """

    def __init__(
        self, model: Transformer, source: Tensor, copies: int = 1, *, cached: bool = True
    ) -> None:
        self.model = model
        memory, mask = model.encode(source)
        self.memory = memory.repeat_interleave(copies, 0)
        self.mask = mask.repeat_interleave(copies, 0)
        self.cache = DecoderCache(len(model.decoder.layers)) if cached else None

    def step(self, prefix: Tensor) -> Tensor:
        """Logits [N, V] of the tokens that follow `prefix` int64 [N, L].

        L is 1 in the first step and grows by 1 per step.
        """
        target = prefix[:, -1:] if self.cache else prefix
        features = self.model.decode(target, self.memory, self.mask, self.cache)
        return self.model.project(features[:, -1])

    def select(self, rows: Tensor, *, same_sentence: bool) -> None:
        """Keep the rows int64 [N'].

        With `same_sentence`, each row stays within the rows of its sentence.
        """
        if self.cache:
            self.cache.select(rows, memory=not same_sentence)
        if not same_sentence:
            self.memory = self.memory[rows]
            self.mask = self.mask[rows]


def length_penalty(length: Tensor, alpha: float) -> Tensor:
    """((5 + length) / 6) ** alpha (Wu et al. 2016, eq. 14).

    It divides a sum of log-probabilities.
    """
    return ((5 + length) / 6) ** alpha


@torch.inference_mode()
def beam_search(steps: Hypotheses, limit: Tensor, width: int, alpha: float = 0.6) -> list[Tensor]:
    """Keep `width` hypotheses per step, return the best by log-probability over length penalty.

    A finished hypothesis keeps its rank and competes with unfinished ones. The search for a
    sentence ends when no unfinished hypothesis can exceed its best finished one: a log-probability
    only decreases, and the penalty is largest at the limit.

    Args:
        steps: hypotheses with B * width rows.
        limit: maximum length of each translation with its end, int64 [B].
        width: W.
        alpha: exponent of the length penalty, at least 0.

    Returns:
        int64 [length] for each sentence, without start and end.
    """
    device = limit.device
    output = [limit[:0]] * len(limit)
    sentence = torch.arange(len(limit), device=device)  # unfinished sentences
    tokens = limit.new_full((len(limit), width, 1), START)  # [B, W, L]
    # Sums of log-probabilities. All hypotheses start equal, so the first step expands only one.
    total = torch.full((len(limit), width), -torch.inf, device=device)  # [B, W]
    total[:, 0] = 0.0
    rank = total.clone()
    finished = torch.zeros_like(total, dtype=torch.bool)

    while len(sentence):
        length = limit.new_tensor(tokens.shape[2])  # after this step, without the start
        log_probability = steps.step(tokens.flatten(0, 1)).float().log_softmax(-1)
        totals = total[..., None] + log_probability.unflatten(0, (-1, width))  # [B, W, V]
        ranks = totals / length_penalty(length, alpha)
        # Another end token is the only continuation of a finished hypothesis.
        ranks = ranks.masked_fill(finished[..., None], -torch.inf)
        ranks[..., END] = torch.where(finished, rank, ranks[..., END])
        totals[..., END] = torch.where(finished, total, totals[..., END])

        # Keep the best continuations of each sentence.
        rank, best = ranks.flatten(1).topk(width, -1)
        total = totals.flatten(1).gather(1, best)
        origin = best // ranks.shape[-1]  # [B, W]
        token = best % ranks.shape[-1]
        prefix = tokens.gather(1, origin[..., None].expand_as(tokens))
        tokens = torch.cat([prefix, token[..., None]], -1)
        finished = token == END

        # A sentence is done if its best finished hypothesis cannot be exceeded.
        best_total = total.masked_fill(finished, -torch.inf).amax(1)
        reachable = best_total / length_penalty(limit, alpha)
        best_finished = rank.masked_fill(~finished, -torch.inf).amax(1)
        done = (best_finished >= reachable) | (limit <= length)
        preferred = finished | ~finished.any(1, keepdim=True)
        chosen = rank.masked_fill(~preferred, -torch.inf).argmax(1)
        for row in done.nonzero()[:, 0].tolist():
            output[int(sentence[row])] = _until_end(tokens[row, chosen[row], 1:])

        # Continue with the other sentences.
        first_row = torch.arange(len(sentence), device=device)[:, None] * width
        rows = (first_row + origin)[~done].flatten()
        steps.select(rows, same_sentence=not bool(done.any()))
        sentence = sentence[~done]
        limit = limit[~done]
        tokens = tokens[~done]
        total = total[~done]
        rank = rank[~done]
        finished = finished[~done]
    return output


def _until_end(tokens: Tensor) -> Tensor:
    """The tokens int64 [length] before the first end token."""
    length = (tokens != END).cumprod(0).sum()
    return tokens[: int(length)]
