"""Sentences: parallel text files, and tokens through sentencepiece's byte-pair encoding."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from trajformer.errors import TrajformerError

PAD, START, END, UNKNOWN = 0, 1, 2, 3


def read_lines(path: Path) -> list[str]:
    """The sentences of a text file, plain or gzipped, one a line.

    Raises:
        TrajformerError: it cannot be read or is no UTF-8 text.
    """
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except OSError as error:
        raise TrajformerError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, UnicodeDecodeError, ValueError) as error:
        raise TrajformerError(f"{path}: not UTF-8 text: {error}") from error
    return [line.strip() for line in text.split("\n")][: -1 if text.endswith("\n") else None]


def read_pairs(root: Path, split: str, source: str, target: str) -> tuple[list[str], list[str]]:
    """The sentences of `root/<split>.<source>[.gz]` and `root/<split>.<target>[.gz]`, line by line a pair.

    Raises:
        TrajformerError: a file is missing or empty, or they have different numbers of lines.
    """
    texts = []
    for language in (source, target):
        paths = [root / f"{split}.{language}{ending}" for ending in ("", ".gz")]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise TrajformerError(f"{paths[0]}: no such file, nor with .gz behind it")
        texts.append(read_lines(path))
    if len(texts[0]) != len(texts[1]) or not texts[0]:
        counts = " and ".join(str(len(text)) for text in texts)
        raise TrajformerError(f"{root}: split '{split}' has {counts} lines of {source} and {target}, expected as many, not none")
    return texts[0], texts[1]


class Tokenizer:
    """A sentencepiece model: text to numbers and back.

    Args:
        model: its file, as bytes.

    Raises:
        TrajformerError: the bytes are no model, or one with other special tokens than ours.
    """

    def __init__(self, model: bytes) -> None:
        import sentencepiece

        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise TrajformerError("not a sentencepiece model") from error
        of = self._processor
        if (of.pad_id(), of.bos_id(), of.eos_id(), of.unk_id()) != (PAD, START, END, UNKNOWN):
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
        """The sentences of tokens."""
        return self._processor.decode([list(map(int, row)) for row in tokens])

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """How each token is written; a leading space as ▁."""
        return [self._processor.id_to_piece(int(token)) for token in tokens]


def learn_tokenizer(sentences: Iterable[str], size: int) -> Tokenizer:
    """Byte-pair encoding of at most `size` tokens (Sennrich et al. 2016), the same for the same sentences.

    Raises:
        TrajformerError: the text is too small for so many tokens.
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
