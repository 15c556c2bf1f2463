"""Parallel text: files, byte-pair tokens through sentencepiece, and batches of sentence pairs."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trajformer.data.batch import TensorRecord
from trajformer.errors import Config, TrajformerError

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

PAD, START, END, UNKNOWN = 0, 1, 2, 3
_SPECIAL: dict[str, Any] = {"pad_id": PAD, "bos_id": START, "eos_id": END, "unk_id": UNKNOWN}


@dataclass(frozen=True)
class TextConfig(Config, positive=("max_tokens", "batch_size", "bucket")):
    """Parallel text and its batches.

    Attributes:
        root: folder of `<split>.<language>` files, plain or `.gz`, with one sentence per line.
        source: language to translate from.
        target: language to translate into.
        train_split: the training split.
        val_split: the split that selects the best checkpoint.
        vocabulary: size of the byte-pair encoding, which is learned from both languages of the training text.
        max_tokens: longer training pairs are left out and counted.
        batch_size: maximum number of pairs per step and device.
        workers: number of loader processes.
        bucket: pairs of similar length share a batch; they are sorted within groups of this number of steps.
    """

    root: str = ""
    source: str = "de"
    target: str = "en"
    train_split: str = "train"
    val_split: str = "val"
    vocabulary: int = 8000
    max_tokens: int = 100
    batch_size: int = 128
    workers: int = 0
    bucket: int = 32


def read_lines(path: Path) -> list[str]:
    """The sentences of a text file, plain or gzipped, one per line; an error if it is no readable UTF-8 text."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except OSError as error:
        raise TrajformerError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, UnicodeDecodeError, ValueError) as error:
        raise TrajformerError(f"{path}: not UTF-8 text: {error}") from error
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []


def read_pairs(root: Path, split: str, source: str, target: str) -> tuple[list[str], list[str]]:
    """The sentences of `root/<split>.<source>[.gz]` and `root/<split>.<target>[.gz]`, which must be equal in number."""
    texts = []
    for language in (source, target):
        plain, zipped = (root / f"{split}.{language}{suffix}" for suffix in ("", ".gz"))
        if not plain.is_file() and not zipped.is_file():
            raise TrajformerError(f"{plain}: no such file, also not with .gz")
        texts.append(read_lines(plain if plain.is_file() else zipped))
    if len(texts[0]) != len(texts[1]) or not texts[0]:
        counts = " and ".join(str(len(text)) for text in texts)
        raise TrajformerError(f"{root}: split '{split}' has {counts} lines of {source} and {target}, expected equal numbers")
    return texts[0], texts[1]


def load_tokenizer(model: bytes) -> SentencePieceProcessor:
    """The tokenizer in a sentencepiece file; an error if the bytes are no model, or its special tokens have other numbers."""
    from sentencepiece import SentencePieceProcessor

    try:
        tokenizer = SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise TrajformerError("not a sentencepiece model") from error
    if any(getattr(tokenizer, name)() != number for name, number in _SPECIAL.items()):
        raise TrajformerError(f"sentencepiece model: padding, start, end and unknown are not {PAD}, {START}, {END}, {UNKNOWN}")
    return tokenizer


def learn_tokenizer(sentences: Iterable[str], size: int) -> SentencePieceProcessor:
    """Learn a byte-pair encoding of at most `size` tokens (Sennrich et al. 2016); deterministic. Too little text is an error."""
    from sentencepiece import SentencePieceTrainer

    file = io.BytesIO()
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(sentences), model_writer=file, vocab_size=size, model_type="bpe", character_coverage=1.0,
            num_threads=1, minloglevel=2, **_SPECIAL,
        )  # fmt: skip
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-200:]
        raise TrajformerError(f"data.vocabulary: {size}: {reason}") from error
    return load_tokenizer(file.getvalue())


def pad_tokens(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of different lengths as int64 [B, longest], padded with `PAD` at the end."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


@dataclass(frozen=True, eq=False)
class PairBatch(TensorRecord):
    """B sentence pairs, padded at the end."""

    source: Tensor  # int64 [B, S], with the end token
    target: Tensor  # int64 [B, L], with the start and the end token
    text: tuple[str, ...]  # the target sentences


class Pairs:
    """Sentence pairs as tokens: `pairs[[3, 1, 4]]` is the batch of these three pairs; `name` is for error messages.

    Pairs in which a side is empty or longer than `max_tokens` are left out and counted; None keeps all pairs.
    """

    def __init__(
        self, name: str, texts: tuple[list[str], list[str]], tokenizer: SentencePieceProcessor, max_tokens: int | None
    ) -> None:
        self.name, self.tokenizer = name, tokenizer
        self.pairs: list[tuple[list[int], list[int], str]] = []
        for source, target, text in zip(*(tokenizer.encode(text) for text in texts), texts[1], strict=True):
            if max_tokens is None or (source and target and max(len(source), len(target)) <= max_tokens):
                self.pairs.append(([*source, END], [START, *target, END], text))
        self.left_out = len(texts[1]) - len(self.pairs)

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.pairs)

    def __getitem__(self, indices: Sequence[int]) -> PairBatch:
        source, target, text = zip(*(self.pairs[index] for index in indices), strict=True)
        return PairBatch(pad_tokens(source), pad_tokens(target), text)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Numbers of source tokens and target tokens: int64 [n, 2]."""
        return np.array([[len(side) for side in self.pairs[index][:2]] for index in indices]).reshape(-1, 2)
