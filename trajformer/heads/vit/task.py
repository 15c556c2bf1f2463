"""Image classification with a Vision Transformer: recipe, cross-entropy training, accuracy on the validation images."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from trajformer.errors import TrajformerError
from trajformer.heads.classes import ClassRecipe
from trajformer.heads.images import ImageAugmentConfig, augment_images, normalize, read_image, resize
from trajformer.heads.vit.data import ImageBatch, ImageDataConfig, LabeledImages, class_names, load_split
from trajformer.heads.vit.model import ViT, ViTConfig, interpolate_positions
from trajformer.recipes.recipe import OptimConfig, TrainerConfig
from trajformer.training.base import Task, TaskData, TaskModule


@dataclass(frozen=True)
class ClassificationRecipe(ClassRecipe):
    """The recipe of an image classifier.

    Attributes:
        model: sizes; `classes` must be the number of classes in the data.
        data: images and batches.
        labels: names of the classes in the order of the outputs; read from the data if empty.
        start: checkpoint to start from. Positions are interpolated to `model.image_size`. With other classes the head starts
            at zero (Dosovitskiy et al. 2021, section 3.2).
        augment: augmentation of the training images.
        smoothing: label smoothing.
        optim: optimizer and schedule.
        trainer: length, device and precision.
        seed: seed of weights, order, dropout and augmentation.
    """

    model: ViTConfig = field(default_factory=ViTConfig)
    data: ImageDataConfig = field(default_factory=ImageDataConfig)
    labels: tuple[str, ...] = ()
    start: str = ""
    augment: ImageAugmentConfig = field(default_factory=ImageAugmentConfig)
    smoothing: float = 0.1
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = 0
    task: ClassVar[str] = "classification"

    def build_model(self) -> ViT:
        """The untrained classifier."""
        return ViT(self.model)

    def check(self) -> None:
        """Check the values, and the number of classes in the data.

        Raises:
            TrajformerError: names the field.
        """
        if self.model.channels not in (1, 3):
            raise TrajformerError(f"model.channels: {self.model.channels}, expected 1 (gray) or 3 (color)")
        if self.data.normalise == "imagenet" and self.model.channels != 3:
            raise TrajformerError("data.normalise: imagenet needs model.channels 3")
        if not 0 <= self.smoothing < 1:
            raise TrajformerError(f"smoothing: {self.smoothing}, expected at least 0 and less than 1")
        labels = self.labels or class_names(self.data)
        if len(labels) != self.model.classes:
            raise TrajformerError(f"model.classes: {self.model.classes}, but there are {len(labels)}: {', '.join(labels)[:200]}")

    def read(self, path: Path) -> Tensor:
        """Read an image file as [C, H, W] in 0..1 with the channels of the model.

        Raises:
            TrajformerError: the file cannot be read.
        """
        return read_image(path, gray=self.model.channels == 1)

    def prepare(self, image: Tensor) -> Tensor:
        """Resize and normalize images [..., C, H, W] in 0..1 for the model."""
        return normalize(resize(image, (self.model.image_size, self.model.image_size)), self.data.normalise)

    def load(self, split: str) -> LabeledImages:
        """The labeled images of a split; see `load_split`."""
        labels = self.labels or class_names(self.data)
        return load_split(self.data, split, labels, self.model.channels, self.model.image_size)


class ClassificationModule(TaskModule):
    """Trains a classifier with cross-entropy and validates its accuracy.

    Raises:
        TrajformerError: the names of the classes cannot be read from the data, or the checkpoint to start from does not fit.
    """

    config: ClassificationRecipe
    model: ViT

    def __init__(self, config: ClassificationRecipe) -> None:
        super().__init__(replace(config, labels=config.labels or class_names(config.data)))
        if config.start:
            self.load_start()

    def load_start(self) -> None:
        """Load the weights of the checkpoint to start from, adapted to the image size and the classes of the recipe.

        Raises:
            CheckpointError: the checkpoint cannot be read, or its model has other sizes.
        """
        state, start = self.config.load_start(("image_size",))
        sizes, position = self.config.model, "position.tables.0"
        side = sizes.image_size // sizes.patch_size
        state[position] = interpolate_positions(state[position], (side, side), int(sizes.pooling == "token"))
        if start.names() != self.config.names():
            state |= {f"head.{name}": torch.zeros_like(tensor) for name, tensor in self.model.head.state_dict().items()}
        self.model.load_state_dict(state)

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Loss of one augmented batch."""
        image = augment_images(batch.image, self.config.augment, self.seed_step())
        loss = F.cross_entropy(self(self.config.prepare(image)), batch.label, label_smoothing=self.config.smoothing)
        return self.log_terms({"loss": loss}, len(batch.label))

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        """Log the metrics of one batch, which are averaged over the images of all processes."""
        scores, count = self(self.config.prepare(batch.image)), len(batch.label)
        accuracy = (scores.argmax(-1) == batch.label).float().mean()
        self.log("val/accuracy", accuracy, prog_bar=True, batch_size=count, sync_dist=True)
        self.log("val/cross_entropy", F.cross_entropy(scores, batch.label), batch_size=count, sync_dist=True)


TASK = Task(
    recipe=ClassificationRecipe,
    module=ClassificationModule,
    data=lambda recipe: TaskData(recipe.load("train"), recipe.load("val"), recipe.data, recipe.seed),
    monitor="val/cross_entropy",  # on a small split many checkpoints share the highest accuracy
    mode="min",
    shown=("val/accuracy", "val/cross_entropy"),
)
