"""Parallel text: files of sentences, and sentence pairs as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from trajformer.config import Config
from trajformer.data.batch import TensorRecord
from trajformer.errors import TrajformerError
from trajformer.heads.translation.tokenizer import END, PAD, START, pad_tokens
from trajformer.scenes.files import read_gzip, reading

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor


@dataclass(frozen=True)
class TextConfig(
    Config, positive=("max_tokens", "batch_size", "bucket"), limits={"vocabulary": (0, 1_000_000)}
):
    """Parallel text and its batches.

    Attributes:
        root: folder of `<split>.<language>` files, plain or `.gz`, with one sentence per line.
        source: language to translate from.
        target: language to translate into.
        train_split: the training split.
        val_split: the split that selects the best checkpoint.
        vocabulary: size of the byte-pair encoding, which is learned from both languages of the
            training text.
        max_tokens: longer training pairs are left out and counted.
        batch_size: maximum number of pairs per step and device.
        workers: number of loader processes.
        bucket: pairs of similar length share a batch; they are sorted within groups of this number
            of steps.
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
    """The sentences of a text file, plain or gzipped, one per line.

    Raises TrajformerError: it is no readable UTF-8 text.
    """
    if path.exists() and not path.is_file():  # reading a pipe or a device may never end
        raise TrajformerError(f"{path}: cannot be read: not a file")
    with reading(path, "UTF-8 text"):
        data = read_gzip(path) if path.suffix == ".gz" else path.read_bytes()
        text = data.decode("utf-8")
    return split_lines(text)


def split_lines(text: str) -> list[str]:
    """The sentences of a text, one per line; only a line feed ends a line."""
    if not text:
        return []
    return [line.strip() for line in text.removesuffix("\n").split("\n")]


def read_pairs(root: Path, split: str, source: str, target: str) -> tuple[list[str], list[str]]:
    """The sentences of `root/<split>.<source>[.gz]` and `root/<split>.<target>[.gz]`.

    Raises TrajformerError: a file is missing or as `read_lines`, or they have different numbers of
    sentences, or none.
    """
    source_text = read_lines(_text_file(root, split, source))
    target_text = read_lines(_text_file(root, split, target))
    if len(source_text) != len(target_text) or not source_text:
        counts = f"{len(source_text)} and {len(target_text)}"
        raise TrajformerError(
            f"{root}: split '{split}' has {counts} lines of {source} and {target}, "
            "expected equal numbers"
        )
    return source_text, target_text


def _text_file(root: Path, split: str, language: str) -> Path:
    plain = root / f"{split}.{language}"
    zipped = root / f"{split}.{language}.gz"
    if plain.is_file():
        return plain
    if zipped.is_file():
        return zipped
    raise TrajformerError(f"{plain}: no such file, also not with .gz")


class TokenPair(NamedTuple):
    """One sentence pair."""

    source: list[int]  # with the end token
    target: list[int]  # with the start and the end token
    text: str  # the target sentence


@dataclass(frozen=True, eq=False)
class PairBatch(TensorRecord):
    """B sentence pairs, padded at the end."""

    source: Tensor  # int64 [B, S], with the end token
    target: Tensor  # int64 [B, L], with the start and the end token
    text: tuple[str, ...]  # the target sentences
    # int64 [N], indices of the N real tokens in target[:, 1:].flatten(); a GPU would have to wait
    # for their number
    real: Tensor


class Pairs:
    """Sentence pairs as tokens: `pairs[[3, 1, 4]]` is the batch of these three pairs.

    Args:
        name: for error messages.
        texts: source and target sentences.
        tokenizer: of both languages.
        max_tokens: pairs in which a side is empty or longer are left out and counted; None keeps
            all pairs.
    """

    def __init__(
        self,
        name: str,
        texts: tuple[list[str], list[str]],
        tokenizer: SentencePieceProcessor,
        max_tokens: int | None,
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.pairs: list[TokenPair] = []
        self.left_out = 0
        source_text, target_text = texts
        sources = tokenizer.encode(source_text)
        targets = tokenizer.encode(target_text)
        for source, target, text in zip(sources, targets, target_text, strict=True):
            shorter, longer = sorted((len(source), len(target)))
            if max_tokens is not None and (shorter == 0 or longer > max_tokens):
                self.left_out += 1
            else:
                self.pairs.append(TokenPair([*source, END], [START, *target, END], text))

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, indices: Sequence[int]) -> PairBatch:
        pairs = [self.pairs[index] for index in indices]
        source = pad_tokens([pair.source for pair in pairs])
        target = pad_tokens([pair.target for pair in pairs])
        text = tuple(pair.text for pair in pairs)
        real = (target[:, 1:] != PAD).flatten().nonzero()[:, 0]
        return PairBatch(source, target, text, real)

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Numbers of source tokens and target tokens: int64 [n, 2]."""
        pairs = [self.pairs[index] for index in indices]
        lengths = [(len(pair.source), len(pair.target)) for pair in pairs]
        return np.array(lengths).reshape(-1, 2)
