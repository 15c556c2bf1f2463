"""Image classification with a Vision Transformer: recipe, training, accuracy."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.errors import TrajformerError
from trajformer.heads.images import (
    ClassRecipe,
    ImageAugmentConfig,
    augment_images,
    list_images,
    normalize,
    read_photo,
    resize,
    summed_up,
    to_bytes,
)
from trajformer.heads.vit.data import (
    SPLITS,
    ImageBatch,
    ImageDataConfig,
    LabeledImages,
    class_names,
    load_digits,
)
from trajformer.heads.vit.model import ViT, ViTConfig, interpolate_positions
from trajformer.recipes.recipe import OptimConfig, Recipe, TrainerConfig
from trajformer.scenes.notices import write_line
from trajformer.training.base import Task, TaskData, TaskModule


@dataclass(frozen=True)
class ClassificationRecipe(Recipe, ClassRecipe, limits={"smoothing": (0.0, 0.999)}):
    """The recipe of an image classifier.

    Attributes:
        model: sizes; `classes` must be the number of classes in the data.
        data: images and batches.
        labels: names of the classes in the order of the outputs; read from the data if empty.
        init: checkpoint to start from. Positions are interpolated to `model.image_size`. With other
            classes the head starts at zero (Dosovitskiy et al. 2021, section 3.2).
        augment: augmentation of the training images.
        smoothing: label smoothing.
        optim: optimizer and schedule.
        trainer: length, device and precision.
        seed: seed of weights, order, dropout and augmentation.
    """

    model: ViTConfig = field(default_factory=ViTConfig)
    data: ImageDataConfig = field(default_factory=ImageDataConfig)
    labels: tuple[str, ...] = ()
    init: str = ""
    augment: ImageAugmentConfig = field(default_factory=ImageAugmentConfig)
    smoothing: float = 0.1
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = 0
    task: ClassVar[str] = "classification"

    def build_model(self) -> ViT:
        """The untrained classifier."""
        return ViT(self.model)

    def check(self, model: nn.Module | None = None) -> None:
        """Check the values, and the number of classes in the data; an error names the field."""
        channels = self.model.channels
        if channels not in (1, 3):
            raise TrajformerError(f"model.channels: {channels}, expected 1 (gray) or 3 (color)")
        if self.data.normalize == "imagenet" and channels != 3:
            raise TrajformerError("data.normalize: imagenet needs model.channels 3")
        labels = self.labels or class_names(self.data)
        if len(labels) != self.model.classes:
            known = f"{len(labels)}: {', '.join(labels)[:200]}"
            raise TrajformerError(f"model.classes: {self.model.classes}, but there are {known}")

    def read(self, path: Path) -> Tensor:
        """Read an image file as [C, H, W] in 0..1 with the channels of the model.

        Raises the errors of `read_photo`.
        """
        image, _ = read_photo(path, gray=self.model.channels == 1)
        return image

    def resize(self, image: Tensor) -> Tensor:
        """Resize images [..., C, H, W] to the size of the model."""
        return resize(image, (self.model.image_size, self.model.image_size))

    def prepare(self, image: Tensor) -> Tensor:
        """Resize and normalize images [..., C, H, W] in 0..1 for the model."""
        return normalize(self.resize(image), self.data.normalize)

    def load(self, split: str) -> LabeledImages:
        """The labeled images of a split: train, val or test.

        Unreadable files are skipped and listed on standard error. Raises TrajformerError: the split
        is unknown, has no readable image, or has a class that is not in `labels`.
        """
        if split not in SPLITS:
            raise TrajformerError(f"no split '{split}' (splits: {', '.join(SPLITS)})")
        if self.data.dataset == "digits":
            digits, label = load_digits(split)
            image = self.resize(digits).expand(-1, self.model.channels, -1, -1)
            name = f"{self.data.root or self.data.dataset}: {split}"
            return LabeledImages(name, to_bytes(image), label)
        return self._load_folder(split)

    def _load_folder(self, split: str) -> LabeledImages:
        root = self.data.root
        labels = self.labels or class_names(self.data)
        images = []
        classes = []
        skipped = []
        for kind in class_names(self.data, split):
            if kind not in labels:
                known = ", ".join(labels)[:200]
                unknown = f"has a class '{kind}' that is not in {known}"
                raise TrajformerError(f"{root}: split '{split}' {unknown}")
            for path in list_images([Path(root, split, kind)]):
                try:
                    images.append(to_bytes(self.resize(self.read(path))))
                    classes.append(labels.index(kind))
                except TrajformerError as error:
                    skipped.append(f"skipped {error}")
        for line in summed_up(skipped):
            write_line(line)
        name = f"{root}: {split}"
        if len(labels) != self.model.classes:
            raise TrajformerError(
                f"{name}: {len(labels)} classes, but the model has {self.model.classes}; "
                "name them in the order of the outputs (`weights convert --labels`)"
            )
        if not images:
            raise TrajformerError(f"{root}: split '{split}' has no readable image")
        return LabeledImages(name, torch.stack(images), torch.tensor(classes))


class ClassificationModule(TaskModule):
    """Trains a classifier with cross-entropy and validates its accuracy."""

    config: ClassificationRecipe
    model: ViT

    def __init__(self, config: ClassificationRecipe) -> None:
        labels = config.labels or class_names(config.data)
        super().__init__(replace(config, labels=labels))
        if config.init:
            self._load_initial_weights()

    def _load_initial_weights(self) -> None:
        """Load the checkpoint `init`, adapted to the image size and the classes of the recipe."""
        state, start = self.config.load_start(("image_size",))
        model = self.config.model
        side = model.image_size // model.patch_size
        extra = 1 if model.pooling == "token" else 0
        position = "position.tables.0"
        state[position] = interpolate_positions(state[position], (side, side), extra)
        if start.names() != self.config.names():
            for name, tensor in self.model.head.state_dict().items():
                state[f"head.{name}"] = torch.zeros_like(tensor)
        self.model.load_state_dict(state)

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Loss of one augmented batch."""
        image = augment_images(batch.image, self.config.augment, self.seed_step())
        scores = self(self.config.prepare(image))
        loss = F.cross_entropy(scores, batch.label, label_smoothing=self.config.smoothing)
        return self.log_terms({"loss": loss}, len(batch.label))

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        """Log the metrics of one batch, which are averaged over the images of all processes."""
        scores = self(self.config.prepare(batch.image))
        count = len(batch.label)
        accuracy = (scores.argmax(-1) == batch.label).float().mean()
        self.log("val/accuracy", accuracy, prog_bar=True, batch_size=count, sync_dist=True)
        loss = F.cross_entropy(scores, batch.label)
        self.log("val/cross_entropy", loss, batch_size=count, sync_dist=True)


def load_images(recipe: ClassificationRecipe) -> TaskData:
    """Training and validation images of a recipe; raises as `ClassificationRecipe.load`."""
    train = recipe.load("train")
    val = recipe.load("val")
    return TaskData(train, val, recipe.data, recipe.seed)


# On a small split many checkpoints share the highest accuracy.
TASK = Task(
    recipe=ClassificationRecipe,
    module=ClassificationModule,
    data=load_images,
    monitor="val/cross_entropy",
    mode="min",
    shown=("val/accuracy", "val/cross_entropy"),
)
