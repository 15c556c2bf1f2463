"""Training a Vision Transformer to tell classes of pictures apart: labelled pictures, cross-entropy, accuracy."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric

from trajformer.errors import CheckpointError, TrajformerError
from trajformer.heads.images import Variation, normalise, read_image, resize, vary
from trajformer.heads.vit.data import ImageBatch, ImageDataConfig, LabelledImages, class_names, load_split
from trajformer.heads.vit.model import ViT, ViTConfig, resized
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.recipe import OptimConfig, TrainerConfig
from trajformer.training.base import Task, TaskData, TaskModule


@dataclass(frozen=True)
class ClassificationRecipe:
    """A whole recipe of an image classifier.

    Attributes:
        model: sizes; `classes` must be the number of classes in the data.
        data: pictures and batches.
        labels: names of the classes in the order of the model's outputs; found in the data where none are given.
        start: checkpoint to begin with. Positions are interpolated to `model.image_size`; a head of other classes begins
            anew, at zero (Dosovitskiy et al. 2021, section 3.2).
        augment: what is varied in training.
        smoothing: label smoothing.
        optim: optimiser and schedule.
        trainer: length, device and precision.
        seed: of weights, order, dropout and augmentation.
    """

    model: ViTConfig = field(default_factory=ViTConfig)
    data: ImageDataConfig = field(default_factory=ImageDataConfig)
    labels: tuple[str, ...] = ()
    start: str = ""
    augment: Variation = field(default_factory=Variation)
    smoothing: float = 0.1
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = 0
    task: ClassVar[str] = "classification"

    def build_model(self) -> nn.Module:
        """The classifier, untrained."""
        return ViT(self.model)

    def check(self) -> None:
        """Refuse sizes that cannot be, and classes that are not those of the data.

        Raises:
            TrajformerError: names the field.
        """
        if self.model.channels not in (1, 3):
            raise TrajformerError(f"model.channels: {self.model.channels}, expected 1 (grey) or 3 (colours)")
        if self.data.normalise == "imagenet" and self.model.channels != 3:
            raise TrajformerError("data.normalise: imagenet needs the three colours of model.channels 3")
        if not 0 <= self.smoothing < 1:
            raise TrajformerError(f"smoothing: {self.smoothing}, expected at least 0 and less than 1")
        labels = self.labels or class_names(self.data)
        if len(labels) != self.model.classes:
            raise TrajformerError(f"model.classes: {self.model.classes}, but there are {len(labels)}: {', '.join(labels)[:200]}")

    def names(self) -> tuple[str, ...]:
        """A name for every output of the model, "class 0" and so on where none are known."""
        return self.labels or tuple(f"class {index}" for index in range(self.model.classes))

    def read(self, path: Path) -> Tensor:
        """A picture file in 0..1 [C, H, W], with as many colours as the model wants.

        Raises:
            TrajformerError: it cannot be read.
        """
        return read_image(path, grey=self.model.channels == 1)

    def prepare(self, image: Tensor) -> Tensor:
        """Pictures [..., C, H, W] in 0..1 of any size, as the model wants them."""
        return normalise(resize(image, (self.model.image_size, self.model.image_size)), self.data.normalise)

    def load(self, split: str) -> LabelledImages:
        """The labelled pictures of a split; see `load_split`.

        Raises:
            TrajformerError: there are none, or they are of other classes.
        """
        labels = self.labels or class_names(self.data)
        return load_split(self.data, split, labels, self.model.channels, self.model.image_size)


class ClassificationModule(TaskModule):
    """Trains a classifier with cross-entropy; validates with the share of pictures whose most probable class is right.

    Raises:
        TrajformerError: there is nothing to read the classes' names from, or the checkpoint to begin with does not fit.
    """

    config: ClassificationRecipe

    def __init__(self, config: ClassificationRecipe) -> None:
        super().__init__(replace(config, labels=config.labels or class_names(config.data)))
        if config.start:
            start_from(self.model, self.config)
        self.accuracy, self.loss = MeanMetric(), MeanMetric()

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Loss of one augmented batch."""
        image = vary(batch.image, self.config.augment, self.seed_step())
        loss = F.cross_entropy(self(self.config.prepare(image)), batch.label, label_smoothing=self.config.smoothing)
        return self.log_terms({"loss": loss}, len(batch.label))

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        """Accumulate one batch."""
        scores = self(self.config.prepare(batch.image))
        self.accuracy.update((scores.argmax(-1) == batch.label).float())
        self.loss.update(F.cross_entropy(scores, batch.label, reduction="none"))

    def on_validation_epoch_end(self) -> None:
        """Log the means over all processes, and begin anew."""
        for name, metric in (("accuracy", self.accuracy), ("cross_entropy", self.loss)):
            self.log(f"val/{name}", metric.compute(), prog_bar=name == "accuracy")
            metric.reset()


class ImageData(TaskData):
    """Pictures of the training and the validation split of a recipe; opening them fails early and clearly."""

    train: LabelledImages
    val: LabelledImages

    def __init__(self, recipe: ClassificationRecipe) -> None:
        super().__init__(recipe.load("train"), recipe.load("val"), recipe.data, recipe.seed)


def start_from(model: nn.Module, recipe: ClassificationRecipe) -> None:
    """Give a model the weights of the checkpoint `recipe.start`, fitted to the recipe's picture size and classes.

    Raises:
        CheckpointError: no readable checkpoint of a classifier, or of one of another shape.
    """
    before, config = load_checkpoint(recipe.start, ClassificationRecipe)
    was, now = _fixed(config.model), _fixed(recipe.model)
    if differing := [name for name in now if was[name] != now[name]]:
        name = differing[0]
        raise CheckpointError(f"{recipe.start}: has {name} {was[name]}, the recipe {now[name]}")
    state = resized(before.state_dict(), recipe.model)
    if config.labels != recipe.labels:
        head = model.get_submodule("head")
        state |= {f"head.{name}": torch.zeros_like(tensor) for name, tensor in head.state_dict().items()}
    model.load_state_dict(state)


def _fixed(model: ViTConfig) -> dict[str, object]:
    """What a model has in common with one that it may begin with, by the name of the field."""
    block = {f"model.block.{item.name}": getattr(model.block, item.name) for item in fields(model.block)}
    shape = {f"model.{name}": getattr(model, name) for name in ("patch_size", "channels", "layers", "pooling")}
    return shape | {name: value for name, value in block.items() if not name.endswith("dropout")}


TASK = Task(
    recipe=ClassificationRecipe,
    module=ClassificationModule,
    data=ImageData,
    monitor="val/cross_entropy",  # on a small split many checkpoints share the highest accuracy
    mode="min",
    shown=("val/accuracy", "val/cross_entropy"),
)
