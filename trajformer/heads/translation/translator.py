"""A Transformer with its tokenizer: sentences in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trajformer.core.record import recorded_weights
from trajformer.errors import TrajformerError
from trajformer.heads.translation.decoding import beam_search, greedy
from trajformer.heads.translation.model import Hypotheses, Transformer
from trajformer.heads.translation.text import END, PAD, START, Tokenizer


@dataclass(frozen=True)
class SearchConfig:
    """How a translation is searched for.

    Attributes:
        beam: hypotheses kept at each step; 1 is greedy.
        length_penalty: alpha, larger prefers longer translations.
        batch_size: sentences at a time.
        cached: keep keys and values between steps; off, everything is computed again, to compare with.
    """

    beam: int = 5
    length_penalty: float = 0.6
    batch_size: int = 64
    cached: bool = True


def pad_tokens(rows: Sequence[Sequence[int]]) -> Tensor:
    """int64 [B, longest] of ragged rows, `PAD` behind each."""
    longest = max(map(len, rows), default=0)
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.int64)


class Translator(nn.Module):
    """The model that checkpoints hold; the tokenizer travels in its state, as bytes."""

    def __init__(self, transformer: Transformer, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.transformer, self.tokenizer = transformer, tokenizer

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """As `Transformer.forward`."""
        return self.transformer(source, target)

    def get_extra_state(self) -> Tensor:
        """The tokenizer's file as uint8 [bytes], empty where there is none."""
        return torch.frombuffer(bytearray(self.tokenizer.model if self.tokenizer else b"\0"), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Take the tokenizer of a checkpoint.

        Raises:
            TrajformerError: another one is in use already.
        """
        model = state.cpu().numpy().tobytes()
        if model == b"\0":
            return
        found = Tokenizer(model)
        if self.tokenizer is not None and self.tokenizer != found:
            raise TrajformerError("the tokenizer of the checkpoint is not that of the training text, which has changed")
        self.tokenizer = found

    def tokens(self, sentences: Sequence[str]) -> list[list[int]]:
        """Source tokens of each sentence, the end included.

        Raises:
            TrajformerError: the model came without a tokenizer.
        """
        if self.tokenizer is None:
            raise TrajformerError("the checkpoint has no tokenizer, so it translates tokens only")
        return [[*row, END] for row in self.tokenizer.encode(sentences)]

    def search(self, source: Tensor, config: SearchConfig) -> list[Tensor]:
        """Translations int64 [length] of source tokens int64 [B, S], each at most 10 tokens longer than twice its source."""
        steps = Hypotheses(self.transformer, source, config.beam, cached=config.cached)
        limit = 2 * (source != PAD).sum(1) + 10
        if config.beam == 1:
            return greedy(steps, limit, start=START, end=END)
        return beam_search(steps, limit, width=config.beam, start=START, end=END, alpha=config.length_penalty)

    @torch.inference_mode()
    def translate(self, sentences: Sequence[str], config: SearchConfig) -> Iterator[tuple[int, str]]:
        """(index, translation) of every sentence, those of similar length together; an empty one stays empty."""
        rows, device = self.tokens(sentences), self.transformer.projection.weight.device
        order = sorted((index for index, row in enumerate(rows) if len(row) > 1), key=lambda index: len(rows[index]))
        yield from ((index, "") for index, row in enumerate(rows) if len(row) == 1)
        for first in range(0, len(order), config.batch_size):
            batch = order[first : first + config.batch_size]
            found = self.search(pad_tokens([rows[index] for index in batch]).to(device), config)
            assert self.tokenizer is not None
            yield from zip(batch, self.tokenizer.decode([row.tolist() for row in found]), strict=True)

    @torch.inference_mode()
    def cross_attention(self, source: str, target: str) -> tuple[list[str], list[str], Tensor]:
        """What each token of a translation looked at: target pieces, source pieces, weights [layers, heads, L, S].

        Row i has the weights with which target piece i was chosen.
        """
        (tokens,) = self.tokens([source])
        assert self.tokenizer is not None
        (wanted,) = self.tokenizer.encode([target])
        device = self.transformer.projection.weight.device
        with recorded_weights(self.transformer.decoder) as record:
            self.transformer(pad_tokens([tokens]).to(device), pad_tokens([[START, *wanted]]).to(device))
        layers = [weights[0][0] for name, weights in record.items() if "cross_attention" in name]
        pieces = [self.tokenizer.pieces([*wanted, END]), self.tokenizer.pieces(tokens)]
        return pieces[0], pieces[1], torch.stack(layers)
