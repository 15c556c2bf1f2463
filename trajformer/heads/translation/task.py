"""Training a Transformer to translate: parallel text in, token cross-entropy, BLEU of the validation text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from trajformer.errors import TrajformerError
from trajformer.heads.translation.loss import token_loss
from trajformer.heads.translation.model import Transformer, TransformerConfig
from trajformer.heads.translation.text import END, PAD, START, Tokenizer, learn_tokenizer, read_pairs
from trajformer.heads.translation.translator import SearchConfig, Translator, pad_tokens
from trajformer.recipes.recipe import OptimConfig, TrainerConfig
from trajformer.training.base import Task, TaskData, TaskModule


@dataclass(frozen=True)
class TextConfig:
    """Which text, and how it becomes batches.

    Attributes:
        root: folder of `<split>.<language>` files, plain or `.gz`, one sentence a line.
        source: language translated from.
        target: language translated into.
        train_split: what is learned from.
        val_split: what the best checkpoint is chosen by.
        vocabulary: tokens of the byte-pair encoding learned from both languages of the training text.
        max_tokens: longer training pairs are left out, and counted.
        batch_size: pairs a step and device, at most.
        workers: loader processes.
        bucket: pairs of similar length share a batch, sought among those of so many steps.
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


@dataclass(frozen=True)
class TranslationRecipe:
    """A whole recipe of a translator.

    Attributes:
        model: sizes; those of the vocabularies are set by `data.vocabulary`.
        data: text and batches.
        smoothing: label smoothing.
        optim: optimiser and schedule.
        trainer: length, device and precision.
        seed: of weights, order and dropout.
    """

    model: TransformerConfig = field(default_factory=TransformerConfig)
    data: TextConfig = field(default_factory=TextConfig)
    smoothing: float = 0.1
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = 0
    task: ClassVar[str] = "translation"

    def build_model(self) -> nn.Module:
        """The translator, untrained and still without a tokenizer."""
        size = self.data.vocabulary
        config = replace(self.model, source_tokens=size, target_tokens=size) if size else self.model
        return Translator(Transformer(config))

    def check(self) -> None:
        """Refuse sizes that cannot be.

        Raises:
            TrajformerError: names the field.
        """
        if not self.data.root:
            raise TrajformerError("data.root: give a folder of parallel text, `<split>.<language>` files")
        if not 0 <= self.smoothing < 1:
            raise TrajformerError(f"smoothing: {self.smoothing}, expected at least 0 and less than 1")


@dataclass(frozen=True)
class PairBatch:
    """B sentence pairs: int64 [B, S] and [B, L], padded behind; the target has start and end. `text` is the target's."""

    source: Tensor
    target: Tensor
    text: tuple[str, ...]

    def to(self, device: torch.device, *, non_blocking: bool = False) -> PairBatch:
        """The batch on another device."""
        source, target = (x.to(device, non_blocking=non_blocking) for x in (self.source, self.target))
        return PairBatch(source, target, self.text)


class Pairs:
    """Sentence pairs as tokens: `pairs[[3, 1, 4]]` is the batch of those three.

    Args:
        name: the files, for complaints.
        texts: source and target sentences.
        tokenizer: of both languages.
        max_tokens: pairs with more tokens, or none, on a side are left out; None keeps all.
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
        """Tokens of source and target: int64 [n, 2]."""
        return np.array([(len(self.source[index]), len(self.target[index])) for index in indices]).reshape(-1, 2)


class TextData(TaskData):
    """Pairs of a folder, and the tokenizer learned from its training split."""

    train: Pairs

    def __init__(self, config: TextConfig, seed: int = 0) -> None:
        root, names = Path(config.root), (config.train_split, config.val_split)
        train, val = (read_pairs(root, split, config.source, config.target) for split in names)
        self.tokenizer = learn_tokenizer(train[0] + train[1], config.vocabulary)
        pairs = Pairs(str(root / names[0]), train, self.tokenizer, config.max_tokens)
        if not len(pairs):
            raise TrajformerError(f"data.train_split: {pairs.name}: no pair of 1 to {config.max_tokens} tokens")
        super().__init__(pairs, Pairs(str(root / names[1]), val, self.tokenizer, None), config, seed)


class TranslationModule(TaskModule):
    """Trains with smoothed cross-entropy; validates with BLEU of greedy translations and the cross-entropy itself."""

    config: TranslationRecipe
    model: Translator

    def __init__(self, config: TranslationRecipe) -> None:
        from torchmetrics.text import SacreBLEUScore  # imports whatever language models are installed: seconds

        super().__init__(config)
        self.bleu = SacreBLEUScore()

    def setup(self, stage: str) -> None:
        """The tokenizer belongs to the model from now on; a checkpoint's, loaded after this, must be the same."""
        self.model.tokenizer = self.trainer.datamodule.tokenizer  # type: ignore[attr-defined]

    def _loss(self, batch: PairBatch, smoothing: float) -> tuple[Tensor, int]:
        transformer, given, wanted = self.model.transformer, batch.target[:, :-1], batch.target[:, 1:]
        real = wanted != PAD  # only these are worth the projection to a whole vocabulary
        features = transformer.decode(given, *transformer.encode(batch.source))[real]
        return token_loss(transformer.project(features), wanted[real], smoothing), int(real.sum())

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        """Loss of one batch."""
        self.seed_step()
        loss, count = self._loss(batch, self.config.smoothing)
        return self.log_terms({"loss": loss}, count)

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        """Accumulate BLEU and cross-entropy of one batch."""
        loss, count = self._loss(batch, 0.0)
        self.log("val/cross_entropy", loss, batch_size=count, sync_dist=True)
        found = self.model.search(batch.source, SearchConfig(beam=1))
        assert self.model.tokenizer is not None
        self.bleu.update(self.model.tokenizer.decode([row.tolist() for row in found]), [[text] for text in batch.text])

    def on_validation_epoch_end(self) -> None:
        """Log BLEU over all processes, and begin anew."""
        self.log("val/BLEU", 100 * self.bleu.compute(), prog_bar=True)
        self.bleu.reset()


TASK = Task(
    recipe=TranslationRecipe,
    module=TranslationModule,
    data=lambda recipe: TextData(recipe.data, recipe.seed),
    monitor="val/BLEU",
    mode="max",
    shown=("val/cross_entropy", "val/BLEU"),
)
