"""Translation with a Transformer (Vaswani et al. 2017): parallel text, model, beam search, training, BLEU.

The tokens are byte pairs by sentencepiece. Training minimizes the cross-entropy of tokens.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from trajformer.config import Config
from trajformer.core.blocks import BlockConfig, Decoder, DecoderCache, Encoder
from trajformer.core.dropout import Dropout
from trajformer.core.multihead import recorded_weights
from trajformer.core.positions import sinusoid
from trajformer.data.batch import TensorRecord
from trajformer.errors import TrajformerError
from trajformer.recipes.recipe import OptimConfig, Recipe, TrainerConfig
from trajformer.training.base import Task, TaskData, TaskModule

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

PAD, START, END, UNKNOWN = 0, 1, 2, 3
_SPECIAL: dict[str, Any] = {"pad_id": PAD, "bos_id": START, "eos_id": END, "unk_id": UNKNOWN}


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
    if path.exists() and not path.is_file():  # reading a pipe or a device may never end
        raise TrajformerError(f"{path}: cannot be read: not a file")
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except OSError as error:
        raise TrajformerError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, UnicodeDecodeError, ValueError) as error:
        raise TrajformerError(f"{path}: not UTF-8 text: {error}") from error
    return split_lines(text)


def split_lines(text: str) -> list[str]:
    """The sentences of a text, one per line; only a line feed ends a line."""
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
        raise TrajformerError(
            f"{root}: split '{split}' has {counts} lines of {source} and {target}, expected equal numbers"
        )
    return texts[0], texts[1]


def load_tokenizer(model: bytes) -> SentencePieceProcessor:
    """The tokenizer in a sentencepiece file; an error if the bytes are no model, or its special tokens have other numbers."""
    from sentencepiece import SentencePieceProcessor

    try:
        tokenizer = SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise TrajformerError("not a sentencepiece model") from error
    if any(getattr(tokenizer, name)() != number for name, number in _SPECIAL.items()):
        raise TrajformerError(
            f"sentencepiece model: padding, start, end and unknown are not {PAD}, {START}, {END}, {UNKNOWN}"
        )
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
    real: Tensor  # int64 [N], indices of the N real tokens in target[:, 1:].flatten(); a GPU would have to wait for their number


class Pairs:
    """Sentence pairs as tokens: `pairs[[3, 1, 4]]` is the batch of these three pairs; `name` is for error messages.

    Pairs in which a side is empty or longer than `max_tokens` are left out and counted; None keeps all pairs.
    """

    def __init__(
        self,
        name: str,
        texts: tuple[list[str], list[str]],
        tokenizer: SentencePieceProcessor,
        max_tokens: int | None,
    ) -> None:
        self.name, self.tokenizer = name, tokenizer
        self.pairs: list[tuple[list[int], list[int], str]] = []
        for source, target, text in zip(
            *(tokenizer.encode(text) for text in texts), texts[1], strict=True
        ):
            if max_tokens is None or (
                source and target and max(len(source), len(target)) <= max_tokens
            ):
                self.pairs.append(([*source, END], [START, *target, END], text))
        self.left_out = len(texts[1]) - len(self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, indices: Sequence[int]) -> PairBatch:
        source, target, text = zip(*(self.pairs[index] for index in indices), strict=True)
        tokens = pad_tokens(target)
        return PairBatch(
            pad_tokens(source), tokens, text, (tokens[:, 1:] != PAD).flatten().nonzero()[:, 0]
        )

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Numbers of source tokens and target tokens: int64 [n, 2]."""
        return np.array(
            [[len(side) for side in self.pairs[index][:2]] for index in indices]
        ).reshape(-1, 2)


@dataclass(frozen=True)
class TransformerConfig(
    Config, limits=dict.fromkeys(("source_tokens", "target_tokens"), (1, 1_000_000))
):
    """Sizes of an encoder-decoder.

    Attributes:
        source_tokens: size of the source vocabulary.
        target_tokens: size of the target vocabulary.
        block: sizes of a layer; post-norm in the paper. `attention-is-all-you-need-pytorch` omits the biases.
        layers: number of layers in the encoder and in the decoder.
        tied: no weights are shared; target embedding and output projection share them; or the source embedding, too.
        scale: scaling of a shared matrix, which has to be small as an embedding and large as a projection: embeddings are
            scaled by sqrt(D) (section 3.4), or logits by 1 / sqrt(D).
        embedding_norm: apply a layer norm to embeddings with positions.
        final_norm: apply a layer norm after each stack; by default only with pre-norm blocks.
    """

    source_tokens: int = 8000
    target_tokens: int = 8000
    block: BlockConfig = BlockConfig(width=512, heads=8, feedforward=2048, norm_first=False)
    layers: tuple[int, int] = (6, 6)
    tied: Literal["none", "projection", "all"] = "all"
    scale: Literal["none", "embedding", "projection"] = "embedding"
    embedding_norm: bool = False
    final_norm: bool | None = None


class Embedding(nn.Module):
    """Token vectors plus sinusoidal positions, then dropout (section 5.4)."""

    def __init__(self, tokens: int, config: TransformerConfig) -> None:
        super().__init__()
        width = config.block.width
        self.token = nn.Embedding(tokens, width, padding_idx=PAD)
        nn.init.normal_(self.token.weight, std=width**-0.5)
        nn.init.zeros_(self.token.weight[PAD])
        self.factor = width**0.5 if config.scale == "embedding" else 1.0
        self.dropout = Dropout(config.block.dropout)
        self.norm = (
            nn.LayerNorm(width, eps=config.block.norm_eps)
            if config.embedding_norm
            else nn.Identity()
        )

    def forward(self, tokens: Tensor, first: int = 0) -> Tensor:
        """Embed tokens int64 [B, L] at positions `first`, `first` + 1, ... as [B, L, D]."""
        position = torch.arange(
            first, first + tokens.shape[1], device=tokens.device, dtype=torch.float32
        )
        x = self.token(tokens) * self.factor
        return self.norm(self.dropout(x + sinusoid(position, x.shape[-1]).to(x.dtype)))


class Transformer(nn.Module):
    """Encoder-decoder over tokens. Sentences are padded with `PAD` at the end.

    A sentence that consists of padding gives finite outputs and gradients. Raises ValueError: all weights are shared but the
    vocabularies have different sizes.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if config.tied == "all" and config.source_tokens != config.target_tokens:
            raise ValueError(
                f"tied: {config.source_tokens} source and {config.target_tokens} target tokens cannot share weights"
            )
        self.source = Embedding(config.source_tokens, config)
        self.target = Embedding(config.target_tokens, config)
        self.encoder = Encoder(config.block, config.layers[0], final_norm=config.final_norm)
        self.decoder = Decoder(config.block, config.layers[1], final_norm=config.final_norm)
        self.projection = nn.Linear(config.block.width, config.target_tokens, bias=False)
        if config.tied != "none":
            self.projection.weight = self.target.token.weight
        if config.tied == "all":
            self.source.token.weight = self.target.token.weight
        self.factor = config.block.width**-0.5 if config.scale == "projection" else 1.0

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Logits [B, L, V] of the token after each token of `target` int64 [B, L], given `source` int64 [B, S]."""
        return self.project(self.decode(target, *self.encode(source)))

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Memory [B, S, D] of tokens int64 [B, S], and its mask bool [B, 1, S]."""
        mask = (source != PAD)[:, None]
        return self.encoder(self.source(source), mask), mask

    def decode(
        self, target: Tensor, memory: Tensor, memory_mask: Tensor, cache: DecoderCache | None = None
    ) -> Tensor:
        """Features [B, L, D] of tokens int64 [B, L] with causal attention.

        With a cache, `target` holds only the tokens that follow the cached ones.
        """
        first, length = cache.length if cache else 0, target.shape[1]
        causal = torch.ones(length, first + length, dtype=torch.bool, device=target.device).tril(
            first
        )
        mask = causal if length > 1 else None  # a single new token attends to all tokens
        return self.decoder(
            self.target(target, first), memory, mask=mask, memory_mask=memory_mask, cache=cache
        )[-1]

    def project(self, x: Tensor) -> Tensor:
        """Logits [..., V] of features [..., D]."""
        return F.linear(x, self.projection.weight) * self.factor


class Hypotheses:
    """Partial translations of source sentences int64 [B, S], N = B * copies rows; the rows of a sentence are adjacent.

    The model is in evaluation mode. Without `cached`, every step decodes the whole prefix again, for comparison.
    """

    def __init__(
        self, model: Transformer, source: Tensor, copies: int = 1, *, cached: bool = True
    ) -> None:
        self.model = model
        self.memory, self.mask = (x.repeat_interleave(copies, 0) for x in model.encode(source))
        self.cache = DecoderCache(len(model.decoder.layers)) if cached else None

    def step(self, prefix: Tensor) -> Tensor:
        """Logits [N, V] of the tokens that follow `prefix` int64 [N, L]; L is 1 in the first step and grows by 1 per step."""
        target = prefix[:, -1:] if self.cache else prefix
        return self.model.project(
            self.model.decode(target, self.memory, self.mask, self.cache)[:, -1]
        )

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
    hypothesis can exceed its best finished one: a log-probability only decreases, and the penalty is largest at the limit, int64
    [B], the maximum length of each translation with its end. `steps` has B * width rows; `alpha` is the exponent of the length
    penalty, at least 0. Returns int64 [length] for each sentence, without start and end.
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
        ranks = (totals / length_penalty(length, alpha)).masked_fill(
            finished[..., None], -torch.inf
        )
        ranks[..., END] = torch.where(
            finished, rank, ranks[..., END]
        )  # the only continuation of a finished hypothesis
        totals[..., END] = torch.where(finished, total, totals[..., END])
        rank, best = ranks.flatten(1).topk(width, -1)
        total = totals.flatten(1).gather(1, best)
        origin, token = best // ranks.shape[-1], best % ranks.shape[-1]
        tokens = torch.cat(
            [tokens.gather(1, origin[..., None].expand_as(tokens)), token[..., None]], -1
        )
        finished = token == END

        reachable = total.masked_fill(finished, -torch.inf).amax(1) / length_penalty(limit, alpha)
        done = (rank.masked_fill(~finished, -torch.inf).amax(1) >= reachable) | (limit <= length)
        chosen = rank.masked_fill(~finished & finished.any(1, keepdim=True), -torch.inf).argmax(1)
        for row in done.nonzero()[:, 0].tolist():
            body = tokens[row, chosen[row], 1:]
            output[int(sentence[row])] = body[: int((body != END).cumprod(0).sum())]
        rows = origin + torch.arange(len(sentence), device=limit.device)[:, None] * width
        steps.select(rows[~done].flatten(), same_sentence=not bool(done.any()))
        sentence, limit, tokens, total, rank, finished = (
            x[~done] for x in (sentence, limit, tokens, total, rank, finished)
        )
    return output


class Translator(nn.Module):
    """A Transformer with its tokenizer, which the state dict holds as bytes."""

    def __init__(
        self, transformer: Transformer, tokenizer: SentencePieceProcessor | None = None
    ) -> None:
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
        """Load the tokenizer of a checkpoint; raises TrajformerError if the model already has a different one."""
        model = state.cpu().numpy().tobytes()
        if model == b"\0":
            return
        if self.tokenizer is not None and self.tokenizer.serialized_model_proto() != model:
            raise TrajformerError(
                "the checkpoint has another tokenizer: the training text has changed"
            )
        self.tokenizer = load_tokenizer(model)

    def tokens(self, sentences: Sequence[str]) -> list[list[int]]:
        """Source tokens of each sentence, including the end token; raises TrajformerError without a tokenizer."""
        if self.tokenizer is None:
            raise TrajformerError(
                "the checkpoint has no tokenizer, so it can translate tokens only"
            )
        return [[*row, END] for row in self.tokenizer.encode(sentences)]

    def search(self, source: Tensor, beam: int = 5, alpha: float = 0.6) -> list[Tensor]:
        """Translations int64 [length] of source tokens int64 [B, S], with at most twice the source length plus 10 tokens."""
        return beam_search(
            Hypotheses(self.transformer, source, beam), 2 * (source != PAD).sum(1) + 10, beam, alpha
        )

    @torch.inference_mode()
    def translate(
        self, sentences: Sequence[str], beam: int = 5, alpha: float = 0.6, batch_size: int = 64
    ) -> Iterator[tuple[int, str]]:
        """(index, translation) of every sentence, in batches of similar length; an empty sentence stays empty.

        `beam` and `alpha` are width and exponent of `beam_search`.
        """
        rows, device = self.tokens(sentences), self.transformer.projection.weight.device
        order = sorted(
            (index for index, row in enumerate(rows) if len(row) > 1),
            key=lambda index: len(rows[index]),
        )
        yield from ((index, "") for index, row in enumerate(rows) if len(row) == 1)
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            output = self.search(
                pad_tokens([rows[index] for index in batch]).to(device), beam, alpha
            )
            assert self.tokenizer is not None
            yield from zip(
                batch, self.tokenizer.decode([row.tolist() for row in output]), strict=True
            )

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
            self.transformer(
                pad_tokens([tokens]).to(device), pad_tokens([[START, *target_tokens]]).to(device)
            )
        layers = [weights[0][0] for name, weights in record.items() if "cross_attention" in name]
        return (
            self.tokenizer.id_to_piece([*target_tokens, END]),
            self.tokenizer.id_to_piece(tokens),
            torch.stack(layers),
        )


@dataclass(frozen=True)
class TranslationRecipe(Recipe, limits={"smoothing": (0.0, 0.999)}):
    """The recipe of a translator.

    Attributes:
        model: sizes; `data.vocabulary` sets the sizes of the vocabularies.
        data: text and batches.
        smoothing: label smoothing.
        optim: optimizer and schedule.
        trainer: length, device and precision.
        seed: seed of weights, order and dropout.
    """

    model: TransformerConfig = field(default_factory=TransformerConfig)
    data: TextConfig = field(default_factory=TextConfig)
    smoothing: float = 0.1
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = 0
    task: ClassVar[str] = "translation"

    def build_model(self) -> nn.Module:
        """The untrained translator, without a tokenizer."""
        size = self.data.vocabulary
        config = replace(self.model, source_tokens=size, target_tokens=size) if size else self.model
        return Translator(Transformer(config))

    def check(self, model: nn.Module | None = None) -> None:
        """Check the values; an error names the field."""
        if not self.data.root:
            raise TrajformerError(
                "data.root: give a folder of parallel text, `<split>.<language>` files"
            )


def load_text(recipe: TranslationRecipe) -> TaskData:
    """The sentence pairs of a folder, as tokens of a tokenizer that is learned from the training split."""
    config = recipe.data
    root, splits = Path(config.root), (config.train_split, config.val_split)
    train, val = (read_pairs(root, split, config.source, config.target) for split in splits)
    tokenizer = learn_tokenizer(train[0] + train[1], config.vocabulary)
    pairs = Pairs(str(root / splits[0]), train, tokenizer, config.max_tokens)
    if not len(pairs):
        raise TrajformerError(
            f"data.train_split: {pairs.name}: no pair of 1 to {config.max_tokens} tokens"
        )
    return TaskData(pairs, Pairs(str(root / splits[1]), val, tokenizer, None), config, recipe.seed)


def token_loss(logits: Tensor, target: Tensor, smoothing: float = 0.1) -> Tensor:
    """Mean cross-entropy of logits [N, C] and tokens int64 [N] without padding.

    The smoothed probability is shared by the C - 1 wrong tokens (Szegedy et al. 2016). PyTorch shares it among all C tokens, so
    its smoothing is `smoothing * C / (C - 1)`.
    """
    classes = logits.shape[-1]
    return F.cross_entropy(
        logits.float(), target, label_smoothing=smoothing * classes / (classes - 1)
    )


class TranslationModule(TaskModule):
    """Trains with smoothed cross-entropy; validates with cross-entropy and with BLEU of greedy translations."""

    config: TranslationRecipe
    model: Translator

    def __init__(self, config: TranslationRecipe) -> None:
        from torchmetrics.text import (
            SacreBLEUScore,  # a slow import: it loads all installed language models
        )

        super().__init__(config)
        self.bleu = SacreBLEUScore()

    def attach(self, data: Any) -> None:
        """Give the tokenizer to the model; a checkpoint that is loaded later must have the same one."""
        self.model.tokenizer = data.train.tokenizer

    def _loss(self, batch: PairBatch, smoothing: float) -> tuple[Tensor, int]:
        """The loss over real tokens and their number."""
        transformer, real = (
            self.model.transformer,
            batch.real,
        )  # only real tokens are projected to the vocabulary
        features = transformer.decode(
            batch.target[:, :-1], *transformer.encode(batch.source)
        ).flatten(0, 1)[real]
        return token_loss(
            transformer.project(features), batch.target[:, 1:].flatten()[real], smoothing
        ), len(real)

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        """Loss of one batch."""
        self.seed_step()
        loss, count = self._loss(batch, self.config.smoothing)
        return self.log_terms({"loss": loss}, count)

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        """Update BLEU and cross-entropy with one batch."""
        loss, count = self._loss(batch, 0.0)
        self.log("val/cross_entropy", loss, batch_size=count, sync_dist=True)
        rows = self.model.search(batch.source, beam=1)
        assert self.model.tokenizer is not None
        self.bleu.update(
            self.model.tokenizer.decode([row.tolist() for row in rows]),
            [[text] for text in batch.text],
        )

    def on_validation_epoch_end(self) -> None:
        """Log BLEU over all processes and reset it."""
        self.log("val/BLEU", 100 * self.bleu.compute(), prog_bar=True)
        self.bleu.reset()


TASK = Task(
    recipe=TranslationRecipe,
    module=TranslationModule,
    data=load_text,
    monitor="val/BLEU",
    mode="max",
    shown=("val/cross_entropy", "val/BLEU"),
)
