"""Translation: recipe, training with the cross-entropy of tokens, validation with BLEU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.errors import TrajformerError
from trajformer.heads.translation.data import PairBatch, Pairs, TextConfig, read_pairs
from trajformer.heads.translation.model import Transformer, TransformerConfig
from trajformer.heads.translation.tokenizer import learn_tokenizer
from trajformer.heads.translation.translator import Translator
from trajformer.recipes.recipe import OptimConfig, Recipe, TrainerConfig
from trajformer.training.base import Task, TaskData, TaskModule


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

    def build_model(self) -> Translator:
        """The untrained translator, without a tokenizer."""
        config = self.model
        size = self.data.vocabulary
        if size:
            config = replace(config, source_tokens=size, target_tokens=size)
        return Translator(Transformer(config))

    def check(self, model: nn.Module | None = None) -> None:
        """Check the values; an error names the field."""
        if not self.data.root:
            raise TrajformerError(
                "data.root: give a folder of parallel text, `<split>.<language>` files"
            )


def load_text(recipe: TranslationRecipe) -> TaskData:
    """The sentence pairs of a folder, as tokens of a tokenizer learned from the training split.

    Raises TrajformerError: as `read_pairs` and `learn_tokenizer`, or no training pair is left.
    """
    config = recipe.data
    root = Path(config.root)
    train = read_pairs(root, config.train_split, config.source, config.target)
    val = read_pairs(root, config.val_split, config.source, config.target)
    tokenizer = learn_tokenizer(train[0] + train[1], config.vocabulary)
    train_pairs = Pairs(str(root / config.train_split), train, tokenizer, config.max_tokens)
    val_pairs = Pairs(str(root / config.val_split), val, tokenizer, None)
    if not len(train_pairs):
        reason = f"no pair of 1 to {config.max_tokens} tokens"
        raise TrajformerError(f"data.train_split: {train_pairs.name}: {reason}")
    return TaskData(train_pairs, val_pairs, config, recipe.seed)


def token_loss(logits: Tensor, target: Tensor, smoothing: float = 0.1) -> Tensor:
    """Mean cross-entropy of logits [N, C] and tokens int64 [N] without padding.

    The smoothed probability is distributed over the C - 1 wrong tokens (Szegedy et al. 2016).
    PyTorch distributes it over all C tokens, so its smoothing is `smoothing * C / (C - 1)`.
    """
    classes = logits.shape[-1]
    torch_smoothing = smoothing * classes / (classes - 1)
    return F.cross_entropy(logits.float(), target, label_smoothing=torch_smoothing)


class TranslationModule(TaskModule):
    """Trains with smoothed cross-entropy.

    Validates with cross-entropy and with BLEU of greedy translations.
    """

    config: TranslationRecipe
    model: Translator

    def __init__(self, config: TranslationRecipe) -> None:
        # A slow import: it loads all installed language models.
        from torchmetrics.text import SacreBLEUScore

        super().__init__(config)
        self.bleu = SacreBLEUScore()

    def attach(self, data: Any) -> None:
        """Give the tokenizer to the model.

        A checkpoint that is loaded later must have the same one.
        """
        self.model.tokenizer = data.train.tokenizer

    def _loss(self, batch: PairBatch, smoothing: float) -> Tensor:
        """The loss over real tokens; only these are projected to the vocabulary."""
        transformer = self.model.transformer
        memory, memory_mask = transformer.encode(batch.source)
        features = transformer.decode(batch.target[:, :-1], memory, memory_mask)
        logits = transformer.project(features.flatten(0, 1)[batch.real])  # [N, V]
        target = batch.target[:, 1:].flatten()[batch.real]
        return token_loss(logits, target, smoothing)

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        """Loss of one batch."""
        self.seed_step()
        loss = self._loss(batch, self.config.smoothing)
        return self.log_terms({"loss": loss}, len(batch.real))

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        """Update BLEU and cross-entropy with one batch."""
        loss = self._loss(batch, 0.0)
        self.log("val/cross_entropy", loss, batch_size=len(batch.real), sync_dist=True)
        translated = self.model.decode_tokens(self.model.search(batch.source, beam=1))
        self.bleu.update(translated, [[text] for text in batch.text])

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
