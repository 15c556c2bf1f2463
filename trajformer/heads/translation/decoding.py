"""From a model to sentences: greedy search, beam search, and a translator with its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trajformer.core.cache import DecoderCache
from trajformer.core.record import recorded_weights
from trajformer.errors import TrajformerError
from trajformer.heads.translation.data import END, PAD, START, Tokenizer, pad_tokens
from trajformer.heads.translation.model import Transformer


class Hypotheses:
    """Partial translations of B sentences, N = B * copies rows; the rows of a sentence are adjacent.

    Args:
        model: the model, in evaluation mode.
        source: int64 [B, S].
        copies: hypotheses per sentence.
        cached: keep keys and values; otherwise every step decodes the whole prefix again, for comparison.
    """

    def __init__(self, model: Transformer, source: Tensor, copies: int = 1, *, cached: bool = True) -> None:
        self.model = model
        self.memory, self.mask = (x.repeat_interleave(copies, 0) for x in model.encode(source))
        self.cache = DecoderCache(len(model.decoder.layers)) if cached else None
        self.prefix = source.new_zeros(len(self.memory), 0)

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens int64 [N] and return the logits [N, V] of the next tokens."""
        self.prefix = torch.cat([self.prefix, tokens[:, None]], 1)
        target = self.prefix[:, -1:] if self.cache else self.prefix
        return self.model.project(self.model.decode(target, self.memory, self.mask, self.cache)[:, -1])

    def select(self, rows: Tensor, *, same_sentence: bool) -> None:
        """Keep the rows int64 [N']. With `same_sentence`, each row stays within the rows of its sentence."""
        self.prefix = self.prefix[rows]
        if self.cache:
            self.cache.select(rows, memory=not same_sentence)
        if not same_sentence:
            self.memory, self.mask = self.memory[rows], self.mask[rows]


def length_penalty(length: Tensor, alpha: float) -> Tensor:
    """((5 + length) / 6) ** alpha (Wu et al. 2016, eq. 14), the divisor of a sum of log-probabilities."""
    return ((5 + length) / 6) ** alpha


@torch.inference_mode()
def greedy(steps: Hypotheses, limit: Tensor, *, start: int, end: int) -> list[Tensor]:
    """Take the most probable token at each step.

    Args:
        steps: one row for each of B sentences.
        limit: int64 [B], maximum length of each translation.
        start: token that starts a hypothesis.
        end: token that ends a hypothesis.

    Returns:
        For each sentence int64 [length], without start and end.
    """
    rows, tokens = torch.arange(len(limit), device=limit.device), torch.full_like(limit, start)
    longest = int(limit.max())
    output = limit.new_full((len(limit), longest), end)
    for position in range(longest):
        tokens = steps.step(tokens).argmax(-1)
        output[rows, position] = tokens
        unfinished = ((tokens != end) & (limit[rows] > position + 1)).nonzero()[:, 0]
        if not len(unfinished):
            break
        if len(unfinished) < len(rows):
            rows, tokens = rows[unfinished], tokens[unfinished]
            steps.select(unfinished, same_sentence=False)
    return [_before(row, end) for row in output]


def _before(tokens: Tensor, end: int) -> Tensor:
    ends = (tokens == end).nonzero()
    return tokens[: int(ends[0])] if len(ends) else tokens


class _Beams:
    """W hypotheses for each of B sentences: tokens int64 [B, W, L]; log-probability, rank and finished [B, W]."""

    def __init__(self, limit: Tensor, width: int, alpha: float, end: int) -> None:
        sentences, device = len(limit), limit.device
        self.limit, self.width, self.alpha, self.end = limit, width, alpha, end
        self.tokens = torch.zeros(sentences, width, 0, dtype=torch.int64, device=device)
        self.total = torch.full((sentences, width), -torch.inf, device=device)
        self.total[:, 0] = 0.0  # all hypotheses start equal, so the first step expands only one
        self.rank = self.total.clone()
        self.finished = torch.zeros(sentences, width, dtype=torch.bool, device=device)
        self.sentence = torch.arange(sentences, device=device)

    def grow(self, log_probability: Tensor) -> Tensor:
        """Choose the best W continuations by [B * W, V] and return the rows int64 [B * W] that they continue.

        A finished hypothesis keeps its tokens and its rank and competes with the unfinished ones.
        """
        batch, width, length = len(self.sentence), self.width, self.tokens.shape[2] + 1
        total = self.total[..., None] + log_probability.view(batch, width, -1)  # [B, W, V]
        rank = total / length_penalty(torch.tensor(length), self.alpha)
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
        """Sentences that have reached their limit or whose best hypothesis can no longer change: bool [B].

        A log-probability only decreases and the penalty is largest at the limit, which bounds the rank of a hypothesis.
        """
        reachable = torch.where(self.finished, -torch.inf, self.total).amax(1) / length_penalty(self.limit, self.alpha)
        finished = torch.where(self.finished, self.rank, -torch.inf).amax(1)
        return (finished >= reachable) | (self.limit <= self.tokens.shape[2])

    def best(self, chosen: Tensor) -> list[tuple[int, Tensor]]:
        """(sentence, tokens) of the highest-ranking finished hypothesis, or of any hypothesis if all are unfinished."""
        rank = torch.where(self.finished | ~self.finished.any(1, keepdim=True), self.rank, -torch.inf)
        first, rows = rank.argmax(1), chosen.nonzero()[:, 0]
        return [(int(self.sentence[row]), _before(self.tokens[row, first[row]], self.end)) for row in rows]

    def keep(self, chosen: Tensor) -> None:
        """Keep only these sentences, bool [B]."""
        for name in ("tokens", "total", "rank", "finished", "sentence", "limit"):
            setattr(self, name, getattr(self, name)[chosen])


@torch.inference_mode()
def beam_search(steps: Hypotheses, limit: Tensor, *, width: int, start: int, end: int, alpha: float = 0.6) -> list[Tensor]:
    """Keep `width` hypotheses per step and return the one with the highest log-probability over length penalty.

    Args:
        steps: B * width rows.
        limit: int64 [B], maximum length of each translation, including its end.
        width: W, hypotheses per sentence.
        start: token that starts a hypothesis.
        end: token that ends a hypothesis.
        alpha: exponent of the length penalty, at least 0; 0 compares log-probabilities.

    Returns:
        For each sentence int64 [length], without start and end.
    """
    beams = _Beams(limit, width, alpha, end)
    output: dict[int, Tensor] = {}
    tokens = limit.new_full((len(limit) * width,), start)
    while len(tokens):
        rows = beams.grow(steps.step(tokens).float().log_softmax(-1))
        done = beams.done()
        if done.any():
            output.update(beams.best(done))
            beams.keep(~done)
            rows = rows.view(-1, width)[~done].flatten()
        steps.select(rows, same_sentence=not bool(done.any()))
        tokens = beams.tokens[..., -1].flatten()
    return [output[sentence] for sentence in range(len(limit))]


@dataclass(frozen=True)
class SearchConfig:
    """Settings of the search for a translation.

    Attributes:
        beam: hypotheses per step; 1 is greedy search.
        length_penalty: exponent alpha; larger values prefer longer translations.
        batch_size: sentences per batch.
        cached: keep keys and values between steps; without, every step computes the whole prefix again.
    """

    beam: int = 5
    length_penalty: float = 0.6
    batch_size: int = 64
    cached: bool = True


class Translator(nn.Module):
    """A Transformer with its tokenizer, which the state dict holds as bytes."""

    def __init__(self, transformer: Transformer, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.transformer, self.tokenizer = transformer, tokenizer

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """As `Transformer.forward`."""
        return self.transformer(source, target)

    def get_extra_state(self) -> Tensor:
        """The file of the tokenizer as uint8 [bytes]; a single zero without tokenizer."""
        return torch.frombuffer(bytearray(self.tokenizer.model if self.tokenizer else b"\0"), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Load the tokenizer of a checkpoint.

        Raises:
            TrajformerError: the model already has a different tokenizer.
        """
        model = state.cpu().numpy().tobytes()
        if model == b"\0":
            return
        tokenizer = Tokenizer(model)
        if self.tokenizer is not None and self.tokenizer != tokenizer:
            raise TrajformerError("the checkpoint has another tokenizer: the training text has changed")
        self.tokenizer = tokenizer

    def tokens(self, sentences: Sequence[str]) -> list[list[int]]:
        """Source tokens of each sentence, including the end token.

        Raises:
            TrajformerError: the model has no tokenizer.
        """
        if self.tokenizer is None:
            raise TrajformerError("the checkpoint has no tokenizer, so it can translate tokens only")
        return [[*row, END] for row in self.tokenizer.encode(sentences)]

    def search(self, source: Tensor, config: SearchConfig) -> list[Tensor]:
        """Translations int64 [length] of source tokens int64 [B, S], with at most twice the source length plus 10 tokens."""
        steps = Hypotheses(self.transformer, source, config.beam, cached=config.cached)
        limit = 2 * (source != PAD).sum(1) + 10
        if config.beam == 1:
            return greedy(steps, limit, start=START, end=END)
        return beam_search(steps, limit, width=config.beam, start=START, end=END, alpha=config.length_penalty)

    @torch.inference_mode()
    def translate(self, sentences: Sequence[str], config: SearchConfig) -> Iterator[tuple[int, str]]:
        """(index, translation) of every sentence, in batches of similar length; an empty sentence stays empty."""
        rows, device = self.tokens(sentences), self.transformer.projection.weight.device
        order = sorted((index for index, row in enumerate(rows) if len(row) > 1), key=lambda index: len(rows[index]))
        yield from ((index, "") for index, row in enumerate(rows) if len(row) == 1)
        for first in range(0, len(order), config.batch_size):
            batch = order[first : first + config.batch_size]
            output = self.search(pad_tokens([rows[index] for index in batch]).to(device), config)
            assert self.tokenizer is not None
            yield from zip(batch, self.tokenizer.decode([row.tolist() for row in output]), strict=True)

    @torch.inference_mode()
    def cross_attention(self, source: str, target: str) -> tuple[list[str], list[str], Tensor]:
        """Target pieces, source pieces, and the cross-attention weights [layers, heads, L, S].

        Row i holds the weights with which the model predicts target piece i.
        """
        (tokens,) = self.tokens([source])
        assert self.tokenizer is not None
        (target_tokens,) = self.tokenizer.encode([target])
        device = self.transformer.projection.weight.device
        with recorded_weights(self.transformer.decoder) as record:
            self.transformer(pad_tokens([tokens]).to(device), pad_tokens([[START, *target_tokens]]).to(device))
        layers = [weights[0][0] for name, weights in record.items() if "cross_attention" in name]
        return self.tokenizer.pieces([*target_tokens, END]), self.tokenizer.pieces(tokens), torch.stack(layers)
