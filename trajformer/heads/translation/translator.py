"""A Transformer with its tokenizer: sentences in, sentences out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trajformer.core.multihead import recorded_weights
from trajformer.errors import TrajformerError
from trajformer.heads.translation.decoding import Hypotheses, beam_search
from trajformer.heads.translation.model import Transformer
from trajformer.heads.translation.tokenizer import END, PAD, START, load_tokenizer, pad_tokens

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

MAX_TOKENS = 1024  # of a sentence
BATCH_TOKENS = 1 << 15  # of a batch, in all hypotheses
_NO_TOKENIZER = b"\0"  # content of the state dict without a tokenizer


class Translator(nn.Module):
    """A Transformer with its tokenizer, which the state dict holds as bytes."""

    def __init__(
        self, transformer: Transformer, tokenizer: SentencePieceProcessor | None = None
    ) -> None:
        super().__init__()
        self.transformer = transformer
        self.tokenizer = tokenizer

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """As `Transformer.forward`."""
        return self.transformer(source, target)

    def get_extra_state(self) -> Tensor:
        """The file of the tokenizer as uint8 [bytes]; a single zero without tokenizer."""
        model = _NO_TOKENIZER
        if self.tokenizer is not None:
            model = self.tokenizer.serialized_model_proto()
        return torch.frombuffer(bytearray(model), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Load the tokenizer of a checkpoint.

        Raises TrajformerError: the model already has a different one.
        """
        model = state.cpu().numpy().tobytes()
        if model == _NO_TOKENIZER:
            return
        if self.tokenizer is not None and self.tokenizer.serialized_model_proto() != model:
            raise TrajformerError(
                "the checkpoint has another tokenizer: the training text has changed"
            )
        self.tokenizer = load_tokenizer(model)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.transformer.projection.weight.device

    def tokens(self, sentences: Sequence[str]) -> list[list[int]]:
        """Source tokens of each sentence, including the end token.

        Raises TrajformerError: the translator has no tokenizer.
        """
        return [[*row, END] for row in self._require_tokenizer().encode(sentences)]

    def decode_tokens(self, rows: Sequence[Tensor]) -> list[str]:
        """The sentences of rows of tokens int64 [length]; raises as `tokens`."""
        return self._require_tokenizer().decode([row.tolist() for row in rows])

    def _require_tokenizer(self) -> SentencePieceProcessor:
        if self.tokenizer is None:
            raise TrajformerError(
                "the checkpoint has no tokenizer, so it can translate tokens only"
            )
        return self.tokenizer

    def search(self, source: Tensor, beam: int = 5, alpha: float = 0.6) -> list[Tensor]:
        """Translations int64 [length] of source tokens int64 [B, S].

        They have at most twice the source length plus 10 tokens. `beam` and `alpha` are width and
        exponent of `beam_search`.
        """
        limit = 2 * (source != PAD).sum(1) + 10
        return beam_search(Hypotheses(self.transformer, source, beam), limit, beam, alpha)

    @torch.inference_mode()
    def translate(
        self, sentences: Sequence[str], beam: int = 5, alpha: float = 0.6, batch_size: int = 64
    ) -> Iterator[tuple[int, str]]:
        """(index, translation) of every sentence, in batches of similar length.

        An empty sentence stays empty. `beam` and `alpha` are as in `search`. Raises
        TrajformerError: a sentence is too long.
        """
        rows = self.tokens(sentences)
        order = []
        for index, row in enumerate(rows):
            if row == [END]:
                yield index, ""
            else:
                order.append(index)
        order.sort(key=lambda index: len(rows[index]))
        if order and len(rows[order[-1]]) > MAX_TOKENS:
            sentence = f"sentence {order[-1] + 1} has {len(rows[order[-1]])} tokens"
            raise TrajformerError(f"{sentence}, expected at most {MAX_TOKENS}; divide it")
        while order:
            # The memory grows with the tokens of all hypotheses.
            longest = len(rows[order[min(batch_size, len(order)) - 1]])
            count = min(batch_size, max(BATCH_TOKENS // (beam * longest), 1))
            batch = order[:count]
            del order[:count]
            source = pad_tokens([rows[index] for index in batch]).to(self.device)
            translated = self.decode_tokens(self.search(source, beam, alpha))
            yield from zip(batch, translated, strict=True)

    @torch.inference_mode()
    def cross_attention(self, source: str, target: str) -> tuple[list[str], list[str], Tensor]:
        """Cross-attention of a sentence pair.

        Returns the target pieces, the source pieces, and the weights [layers, heads, L, S]. Row i
        holds the weights with which the model predicts target piece i.
        """
        tokenizer = self._require_tokenizer()
        source_tokens = [*tokenizer.encode(source), END]
        target_tokens = tokenizer.encode(target)
        source_row = pad_tokens([source_tokens]).to(self.device)
        target_row = pad_tokens([[START, *target_tokens]]).to(self.device)
        with recorded_weights(self.transformer.decoder) as record:
            self.transformer(source_row, target_row)
        layers = [weights[0][0] for name, weights in record.items() if "cross_attention" in name]
        target_pieces = tokenizer.id_to_piece([*target_tokens, END])
        source_pieces = tokenizer.id_to_piece(source_tokens)
        return target_pieces, source_pieces, torch.stack(layers)
