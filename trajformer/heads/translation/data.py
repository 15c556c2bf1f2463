"""Parallel text: files, byte-pair tokens through sentencepiece, and batches of sentence pairs."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trajformer.errors import TrajformerError, check_numbers

PAD, START, END, UNKNOWN = 0, 1, 2, 3


@dataclass(frozen=True)
class TextConfig:
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

    def __post_init__(self) -> None:
        check_numbers(self, positive=("max_tokens", "batch_size", "bucket"))


def read_lines(path: Path) -> list[str]:
    """The sentences of a text file, plain or gzipped, one per line.

    Raises:
        TrajformerError: the file cannot be read or is no UTF-8 text.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except OSError as error:
        raise TrajformerError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, UnicodeDecodeError, ValueError) as error:
        raise TrajformerError(f"{path}: not UTF-8 text: {error}") from error
    return [line.strip() for line in text.removesuffix("\n").split("\n")] if text else []


def read_pairs(root: Path, split: str, source: str, target: str) -> tuple[list[str], list[str]]:
    """The sentences of `root/<split>.<source>[.gz]` and `root/<split>.<target>[.gz]`.

    Raises:
        TrajformerError: a file is missing or empty, or the files have different numbers of lines.
    """
    texts = []
    for language in (source, target):
        paths = [root / f"{split}.{language}{suffix}" for suffix in ("", ".gz")]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise TrajformerError(f"{paths[0]}: no such file, also not with .gz")
        texts.append(read_lines(path))
    if len(texts[0]) != len(texts[1]) or not texts[0]:
        counts = " and ".join(str(len(text)) for text in texts)
        raise TrajformerError(f"{root}: split '{split}' has {counts} lines of {source} and {target}, expected equal numbers")
    return texts[0], texts[1]


class Tokenizer:
    """A sentencepiece model.

    Args:
        model: the content of its file.

    Raises:
        TrajformerError: the bytes are no model, or its special tokens have other numbers.
    """

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TrajformerError("not a sentencepiece model") from error
        ids = self._processor
        if (ids.pad_id(), ids.bos_id(), ids.eos_id(), ids.unk_id()) != (PAD, START, END, UNKNOWN):
            raise TrajformerError(
                f"sentencepiece model: padding, start, end and unknown are not {PAD}, {START}, {END}, {UNKNOWN}"
            )

    def __len__(self) -> int:
        """Number of tokens."""
        return self._processor.get_piece_size()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and other.model == self.model

    def __hash__(self) -> int:
        return hash(self.model)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[bytes]]:
        return Tokenizer, (self.model,)

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """Tokens of each sentence, without start and end."""
        return self._processor.encode(list(sentences))

    def decode(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Sentences from tokens."""
        return self._processor.decode([list(map(int, row)) for row in tokens])

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Text of each token; ▁ is a leading space."""
        return [self._processor.id_to_piece(int(token)) for token in tokens]


def learn_tokenizer(sentences: Iterable[str], size: int) -> Tokenizer:
    """Learn a byte-pair encoding with at most `size` tokens (Sennrich et al. 2016); deterministic.

    Raises:
        TrajformerError: the text is too small for this size.
    """
    import sentencepiece

    file = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=file,
            vocab_size=size,
            model_type="bpe",
            character_coverage=1.0,
            pad_id=PAD,
            bos_id=START,
            eos_id=END,
            unk_id=UNKNOWN,
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = " ".join(str(error).split())[-200:]
        raise TrajformerError(f"data.vocabulary: {size}: {reason}") from error
    return Tokenizer(file.getvalue())


def pad_tokens(rows: Sequence[Sequence[int]]) -> Tensor:
    """Rows of different lengths as int64 [B, longest], padded with `PAD` at the end."""
    longest = max(map(len, rows), default=0)
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.int64)


@dataclass(frozen=True)
class PairBatch:
    """B sentence pairs, padded at the end.

    Attributes:
        source: int64 [B, S], with the end token.
        target: int64 [B, L], with the start and the end token.
        text: the target sentences.
    """

    source: Tensor
    target: Tensor
    text: tuple[str, ...]

    def to(self, device: torch.device, *, non_blocking: bool = False) -> PairBatch:
        """The batch on another device."""
        source, target = (x.to(device, non_blocking=non_blocking) for x in (self.source, self.target))
        return PairBatch(source, target, self.text)


class Pairs:
    """Sentence pairs as tokens: `pairs[[3, 1, 4]]` is the batch of these three pairs.

    Args:
        name: the files, for error messages.
        texts: source and target sentences.
        tokenizer: the tokenizer of both languages.
        max_tokens: pairs in which a side is longer or empty are left out; None keeps all pairs.
    """

    def __init__(self, name: str, texts: tuple[list[str], list[str]], tokenizer: Tokenizer, max_tokens: int | None) -> None:
        self.name = name
        pairs = list(zip(*(tokenizer.encode(text) for text in texts), texts[1], strict=True))
        usable = [p for p in pairs if max_tokens is None or (p[0] and p[1] and max(len(p[0]), len(p[1])) <= max_tokens)]
        self.left_out = len(pairs) - len(usable)
        self.source = [[*source, END] for source, _, _ in usable]
        self.target = [[START, *target, END] for _, target, _ in usable]
        self.text = [text for _, _, text in usable]

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self.source)

    def __getitem__(self, indices: Sequence[int]) -> PairBatch:
        source, target = ([side[index] for index in indices] for side in (self.source, self.target))
        return PairBatch(pad_tokens(source), pad_tokens(target), tuple(self.text[index] for index in indices))

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Numbers of source tokens and target tokens: int64 [n, 2]."""
        return np.array([(len(self.source[index]), len(self.target[index])) for index in indices]).reshape(-1, 2)
