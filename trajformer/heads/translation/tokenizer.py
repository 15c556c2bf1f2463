"""Tokens of a text: byte pairs by sentencepiece."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trajformer.errors import TrajformerError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

PAD = 0
START = 1
END = 2
UNKNOWN = 3
_SPECIAL: dict[str, Any] = {"pad_id": PAD, "bos_id": START, "eos_id": END, "unk_id": UNKNOWN}


def load_tokenizer(model: bytes) -> SentencePieceProcessor:
    """The tokenizer in a sentencepiece file.

    Raises TrajformerError: the bytes are no model, or its special tokens have other numbers.
    """
    from sentencepiece import SentencePieceProcessor

    try:
        tokenizer = SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise TrajformerError("not a sentencepiece model") from error
    for name, number in _SPECIAL.items():
        if getattr(tokenizer, name)() != number:
            raise TrajformerError(
                "sentencepiece model: padding, start, end and unknown are not "
                f"{PAD}, {START}, {END}, {UNKNOWN}"
            )
    return tokenizer


def learn_tokenizer(sentences: Iterable[str], size: int) -> SentencePieceProcessor:
    """Learn a byte-pair encoding of at most `size` tokens (Sennrich et al. 2016); deterministic.

    Raises TrajformerError: the text is too short.
    """
    from sentencepiece import SentencePieceTrainer

    file = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=file,
            vocab_size=size,
            model_type="bpe",
            character_coverage=1.0,
            num_threads=1,
            minloglevel=2,
            **_SPECIAL,
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-200:]
        raise TrajformerError(f"data.vocabulary: {size}: {reason}") from error
    return load_tokenizer(file.getvalue())


def pad_tokens(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of different lengths as int64 [B, longest], padded with `PAD` at the end."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)
