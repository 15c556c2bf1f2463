"""Translation with a Transformer: recipe, token cross-entropy training, BLEU of the validation text."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.errors import TrajformerError
from trajformer.heads.translation.data import PAD, PairBatch, Pairs, TextConfig, learn_tokenizer, read_pairs
from trajformer.heads.translation.model import Transformer, TransformerConfig, Translator
from trajformer.recipes.recipe import OptimConfig, TrainerConfig
from trajformer.training.base import Task, TaskData, TaskModule


@dataclass(frozen=True)
class TranslationRecipe:
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

    def check(self) -> None:
        """Check the values; an error names the field."""
        if not self.data.root:
            raise TrajformerError("data.root: give a folder of parallel text, `<split>.<language>` files")
        if not 0 <= self.smoothing < 1:
            raise TrajformerError(f"smoothing: {self.smoothing}, expected at least 0 and less than 1")


def load_text(recipe: TranslationRecipe) -> TaskData:
    """The sentence pairs of a folder, as tokens of a tokenizer that is learned from the training split."""
    config = recipe.data
    root, splits = Path(config.root), (config.train_split, config.val_split)
    train, val = (read_pairs(root, split, config.source, config.target) for split in splits)
    tokenizer = learn_tokenizer(train[0] + train[1], config.vocabulary)
    pairs = Pairs(str(root / splits[0]), train, tokenizer, config.max_tokens)
    if not len(pairs):
        raise TrajformerError(f"data.train_split: {pairs.name}: no pair of 1 to {config.max_tokens} tokens")
    return TaskData(pairs, Pairs(str(root / splits[1]), val, tokenizer, None), config, recipe.seed)


def token_loss(logits: Tensor, target: Tensor, smoothing: float = 0.1) -> Tensor:
    """Mean cross-entropy of logits [N, C] and tokens int64 [N] without padding.

    The smoothed probability is shared by the C - 1 wrong tokens (Szegedy et al. 2016). PyTorch shares it among all C tokens, so
    its smoothing is `smoothing * C / (C - 1)`.
    """
    classes = logits.shape[-1]
    return F.cross_entropy(logits.float(), target, label_smoothing=smoothing * classes / (classes - 1))


class TranslationModule(TaskModule):
    """Trains with smoothed cross-entropy; validates with cross-entropy and with BLEU of greedy translations."""

    config: TranslationRecipe
    model: Translator

    def __init__(self, config: TranslationRecipe) -> None:
        from torchmetrics.text import SacreBLEUScore  # a slow import: it loads all installed language models

        super().__init__(config)
        self.bleu = SacreBLEUScore()

    def setup(self, stage: str) -> None:
        """Give the tokenizer to the model; a checkpoint that is loaded later must have the same one."""
        self.model.tokenizer = self.trainer.datamodule.train.tokenizer  # type: ignore[attr-defined]

    def _loss(self, batch: PairBatch, smoothing: float) -> tuple[Tensor, int]:
        """The loss over real tokens and their number."""
        transformer, given, expected = self.model.transformer, batch.target[:, :-1], batch.target[:, 1:]
        real = expected != PAD  # only real tokens are projected to the vocabulary
        features = transformer.decode(given, *transformer.encode(batch.source))[real]
        return token_loss(transformer.project(features), expected[real], smoothing), int(real.sum())

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
        self.bleu.update(self.model.tokenizer.decode([row.tolist() for row in rows]), [[text] for text in batch.text])

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
