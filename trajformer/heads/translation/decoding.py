"""From a model to sentences: beam search and a translator with its tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trajformer.core.cache import DecoderCache
from trajformer.core.record import recorded_weights
from trajformer.errors import TrajformerError
from trajformer.heads.translation.data import END, PAD, START, load_tokenizer, pad_tokens
from trajformer.heads.translation.model import Transformer

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor


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

    def step(self, prefix: Tensor) -> Tensor:
        """Logits [N, V] of the tokens that follow `prefix` int64 [N, L]; L is 1 in the first step and grows by 1 per step."""
        target = prefix[:, -1:] if self.cache else prefix
        return self.model.project(self.model.decode(target, self.memory, self.mask, self.cache)[:, -1])

    def select(self, rows: Tensor, *, same_sentence: bool) -> None:
        """Keep the rows int64 [N']. With `same_sentence`, each row stays within the rows of its sentence."""
        if self.cache:
            self.cache.select(rows, memory=not same_sentence)
        if not same_sentence:
            self.memory, self.mask = self.memory[rows], self.mask[rows]


def length_penalty(length: Tensor, alpha: float) -> Tensor:
    """((5 + length) / 6) ** alpha (Wu et al. 2016, eq. 14), the divisor of a sum of log-probabilities."""
    return ((5 + length) / 6) ** alpha


@torch.inference_mode()
def beam_search(steps: Hypotheses, limit: Tensor, width: int, alpha: float = 0.6) -> list[Tensor]:
    """Keep `width` hypotheses per step and return the one with the highest log-probability over length penalty.

    A finished hypothesis keeps its rank and competes with unfinished ones. The search for a sentence ends when no unfinished
    hypothesis can exceed its best finished one: a log-probability only decreases, and the penalty is largest at the limit.

    Args:
        steps: B * width rows.
        limit: int64 [B], maximum length of each translation, including its end.
        width: W, hypotheses per sentence; 1 is greedy search.
        alpha: exponent of the length penalty, at least 0; 0 compares log-probabilities.

    Returns:
        For each sentence int64 [length], without start and end.
    """
    output = [limit[:0]] * len(limit)
    sentence = torch.arange(len(limit), device=limit.device)
    tokens = limit.new_full((len(limit), width, 1), START)  # [B, W, L]
    total = torch.full((len(limit), width), -torch.inf, device=limit.device)  # log-probabilities
    total[:, 0] = 0.0  # all hypotheses start equal, so the first step expands only one
    rank, finished = total.clone(), torch.zeros_like(total, dtype=torch.bool)
    while len(sentence):
        length = limit.new_tensor(tokens.shape[2])  # after this step, without the start
        log_probability = steps.step(tokens.flatten(0, 1)).float().log_softmax(-1)
        totals = total[..., None] + log_probability.unflatten(0, (-1, width))  # [B, W, V]
        ranks = (totals / length_penalty(length, alpha)).masked_fill(finished[..., None], -torch.inf)
        ranks[..., END] = torch.where(finished, rank, ranks[..., END])  # the only continuation of a finished hypothesis
        totals[..., END] = torch.where(finished, total, totals[..., END])
        rank, best = ranks.flatten(1).topk(width, -1)
        total = totals.flatten(1).gather(1, best)
        origin, token = best // ranks.shape[-1], best % ranks.shape[-1]
        tokens = torch.cat([tokens.gather(1, origin[..., None].expand_as(tokens)), token[..., None]], -1)
        finished = token == END

        reachable = total.masked_fill(finished, -torch.inf).amax(1) / length_penalty(limit, alpha)
        done = (rank.masked_fill(~finished, -torch.inf).amax(1) >= reachable) | (limit <= length)
        chosen = rank.masked_fill(~finished & finished.any(1, keepdim=True), -torch.inf).argmax(1)
        for row in done.nonzero()[:, 0].tolist():
            body = tokens[row, chosen[row], 1:]
            output[int(sentence[row])] = body[: int((body != END).cumprod(0).sum())]
        rows = origin + torch.arange(len(sentence), device=limit.device)[:, None] * width
        steps.select(rows[~done].flatten(), same_sentence=not bool(done.any()))
        sentence, limit, tokens, total, rank, finished = (x[~done] for x in (sentence, limit, tokens, total, rank, finished))
    return output


class Translator(nn.Module):
    """A Transformer with its tokenizer, which the state dict holds as bytes."""

    def __init__(self, transformer: Transformer, tokenizer: SentencePieceProcessor | None = None) -> None:
        super().__init__()
        self.transformer, self.tokenizer = transformer, tokenizer

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """As `Transformer.forward`."""
        return self.transformer(source, target)

    def get_extra_state(self) -> Tensor:
        """The file of the tokenizer as uint8 [bytes]; a single zero without tokenizer."""
        model = b"\0" if self.tokenizer is None else self.tokenizer.serialized_model_proto()
        return torch.frombuffer(bytearray(model), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Load the tokenizer of a checkpoint.

        Raises:
            TrajformerError: the model already has a different tokenizer.
        """
        model = state.cpu().numpy().tobytes()
        if model == b"\0":
            return
        if self.tokenizer is not None and self.tokenizer.serialized_model_proto() != model:
            raise TrajformerError("the checkpoint has another tokenizer: the training text has changed")
        self.tokenizer = load_tokenizer(model)

    def tokens(self, sentences: Sequence[str]) -> list[list[int]]:
        """Source tokens of each sentence, including the end token.

        Raises:
            TrajformerError: the model has no tokenizer.
        """
        if self.tokenizer is None:
            raise TrajformerError("the checkpoint has no tokenizer, so it can translate tokens only")
        return [[*row, END] for row in self.tokenizer.encode(sentences)]

    def search(self, source: Tensor, beam: int = 5, alpha: float = 0.6) -> list[Tensor]:
        """Translations int64 [length] of source tokens int64 [B, S], with at most twice the source length plus 10 tokens."""
        return beam_search(Hypotheses(self.transformer, source, beam), 2 * (source != PAD).sum(1) + 10, beam, alpha)

    @torch.inference_mode()
    def translate(
        self, sentences: Sequence[str], beam: int = 5, alpha: float = 0.6, batch_size: int = 64
    ) -> Iterator[tuple[int, str]]:
        """(index, translation) of every sentence, in batches of similar length; an empty sentence stays empty.

        Args:
            sentences: source sentences.
            beam: hypotheses per step; 1 is greedy search.
            alpha: exponent of the length penalty; larger values prefer longer translations.
            batch_size: sentences per batch.
        """
        rows, device = self.tokens(sentences), self.transformer.projection.weight.device
        order = sorted((index for index, row in enumerate(rows) if len(row) > 1), key=lambda index: len(rows[index]))
        yield from ((index, "") for index, row in enumerate(rows) if len(row) == 1)
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            output = self.search(pad_tokens([rows[index] for index in batch]).to(device), beam, alpha)
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
        return self.tokenizer.id_to_piece([*target_tokens, END]), self.tokenizer.id_to_piece(tokens), torch.stack(layers)
