"""Image classification with a Vision Transformer (Dosovitskiy et al. 2021): model, labeled images, training, accuracy.

The patches of an image are the tokens of a transformer encoder. The images are scikit-learn's handwritten digits, or a folder
with one subfolder per class.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.core.blocks import BlockConfig, Encoder
from trajformer.core.multihead import recorded_weights
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import TensorRecord
from trajformer.errors import TrajformerError
from trajformer.heads.images import (
    ClassRecipe,
    ImageAugmentConfig,
    Normalization,
    augment_images,
    list_images,
    normalize,
    read_image,
    resize,
    to_bytes,
)  # fmt: skip
from trajformer.recipes.recipe import OptimConfig, Recipe, TrainerConfig
from trajformer.training.base import Task, TaskData, TaskModule


@dataclass(frozen=True)
class ViTConfig(
    Config, positive=("image_size", "patch_size", "channels"), limits={"classes": (1, 1_000_000)}
):
    """Sizes of a Vision Transformer; the defaults are ViT-B/16 (table 1).

    Attributes:
        image_size: height and width of the images, pixels. `ViT` also accepts other sizes.
        patch_size: height and width of a patch, pixels.
        channels: color channels of an image.
        classes: number of classes.
        layers: number of encoder layers.
        block: sizes of each layer; pre-norm with GELU in the paper.
        pooling: classify a learned class token (the paper) or the mean over the patches (appendix D.3).
    """

    image_size: int = 224
    patch_size: int = 16
    channels: int = 3
    classes: int = 1000
    layers: int = 12
    block: BlockConfig = BlockConfig(
        768, 12, 3072, norm_first=True, activation="gelu", norm_eps=1e-6
    )
    pooling: Literal["token", "mean"] = "token"


class ViT(nn.Module):
    """Maps images to class scores (eqs. 1 to 4).

    Positions are learned for images of `image_size` and interpolated for images of another size. Raises ValueError: `image_size`
    is no multiple of `patch_size`.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        if config.image_size % config.patch_size:
            raise ValueError(
                f"image_size {config.image_size} is no multiple of patch_size {config.patch_size}"
            )
        self.config = config
        width, side = config.block.width, config.image_size // config.patch_size
        self.patches = nn.Conv2d(config.channels, width, config.patch_size, config.patch_size)
        self.token = (
            nn.Parameter(torch.randn(1, width) * 0.02) if config.pooling == "token" else None
        )
        self.position = LearnedPosition((side**2 + (self.token is not None),), width)
        self.dropout = nn.Dropout(config.block.dropout)
        self.encoder = Encoder(config.block, config.layers)
        self.head = nn.Linear(width, config.classes)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores [B, classes] (logits) of normalized images float [B, C, H, W]; raises as `grid`."""
        grid, extra = self.grid(images), int(self.token is not None)
        x = (
            self.patches(images).flatten(2).mT
        )  # [B, L, D], row by row; a strided convolution is one linear map per patch
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), 1, -1), x], 1)
        x = self.encoder(self.dropout(x + interpolate_positions(self.position(), grid, extra)))
        return self.head(x[:, 0] if extra else x.mean(-2))

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Rows and columns of patches in images [..., C, H, W]; ValueError for a wrong C, or if patches do not fill H or W."""
        channels, height, width = images.shape[-3:]
        size = self.config.patch_size
        if channels != self.config.channels:
            raise ValueError(f"images have {channels} channels, expected {self.config.channels}")
        if not height or not width or height % size or width % size:
            raise ValueError(
                f"images of {height} x {width} pixels cannot be divided into patches of {size} x {size}"
            )
        return height // size, width // size


def interpolate_positions(position: Tensor, grid: tuple[int, int], extra: int) -> Tensor:
    """Interpolate positions [extra + N, D] of a square grid of N patches to another grid (section 3.2).

    The first `extra` positions belong to tokens that are no patches and are kept. The interpolation is bicubic without
    antialiasing in float32, as in Hugging Face's ViT. timm uses antialiasing, so its scores at other sizes differ slightly.
    """
    kept, patches = position[:extra], position[extra:]
    side = round(len(patches) ** 0.5)
    if grid == (side, side):
        return position
    image = patches.float().mT.unflatten(-1, (side, side))[None]
    image = F.interpolate(image, size=grid, mode="bicubic", align_corners=False)[0]
    return torch.cat([kept, image.flatten(1).mT.to(position.dtype)])


def attention_rollout(weights: Sequence[Tensor]) -> Tensor:
    """Attention rollout [..., L, L] of the weights [..., heads, L, L] of each layer (Abnar and Zuidema 2020, section 3).

    Row i holds the share of each input token in output token i and sums to 1. Each layer mixes tokens half by its attention
    weights, averaged over heads, and half by the residual connection.
    """
    rollout = identity = torch.eye(
        weights[0].shape[-1], dtype=weights[0].dtype, device=weights[0].device
    )
    for weight in weights:
        mixed = 0.5 * weight.mean(-3) + 0.5 * identity
        rollout = mixed / mixed.sum(-1, keepdim=True) @ rollout
    return rollout


@torch.no_grad()
def classify_with_rollout(model: ViT, images: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [B, classes] of images [B, C, H, W], and the share [B, rows, columns] of each patch in the classified feature."""
    with recorded_weights(model.encoder) as record:
        scores = model(images)
    rollout = attention_rollout([weights[0] for weights in record.values()])
    shares = rollout.mean(-2) if model.token is None else rollout[:, 0, 1:]
    return scores, shares.unflatten(-1, model.grid(images))


SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class ImageDataConfig(Config, positive=("batch_size",)):
    """Labeled images and their batches.

    Attributes:
        dataset: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, or a folder.
        root: the folder, with images at `<split>/<class name>/*.png` (or .jpg and others); the splits are train, val, test.
        normalise: "half" maps to -1..1, "imagenet" uses the mean and standard deviation of ImageNet.
        batch_size: maximum number of images per step and device.
        workers: number of loader processes.
    """

    dataset: Literal["digits", "folder"] = "digits"
    root: str = ""
    normalise: Normalization = "half"
    batch_size: int = 64
    workers: int = 0
    bucket: ClassVar[int] = 1  # all images have the same size, so batches are not grouped by size


@dataclass(frozen=True, eq=False)
class ImageBatch(TensorRecord):
    """B labeled images."""

    image: Tensor  # float32 [B, C, H, W] in 0..1
    label: Tensor  # int64 [B]


@dataclass(frozen=True, eq=False)
class LabeledImages:
    """The images of a split in memory."""

    name: str  # for error messages
    image: Tensor  # uint8 [N, C, H, W]
    label: Tensor  # int64 [N]

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, indices: Sequence[int]) -> ImageBatch:
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return ImageBatch(self.image[rows].float() / 255.0, self.label[rows])

    def sizes(self, indices: np.ndarray) -> np.ndarray:
        """Equal sizes int [n, 1]: batches have no padding."""
        return np.ones((len(indices), 1), np.int64)


def class_names(data: ImageDataConfig, split: str = "train") -> tuple[str, ...]:
    """Names of the classes: the digits, or the sorted subfolders of a split; an error if there are none."""
    if data.dataset == "digits":
        return tuple("0123456789")
    if not data.root:
        raise TrajformerError("data.root: give a folder of images, `<split>/<class name>/*.png`")
    folder = Path(data.root, split)
    if not folder.is_dir():
        raise TrajformerError(
            f"{folder}: no such folder; images are expected at {data.root}/{split}/<class name>/*.png"
        )
    names = sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    if not names:
        raise TrajformerError(f"{folder}: has no subfolder for a class")
    return tuple(names)


def load_digits(split: str) -> tuple[Tensor, Tensor]:
    """The handwritten digits of scikit-learn: images [N, 1, 8, 8] in 0..1, white on black, and labels int64 [N].

    The split is fixed and stratified: of ten successive images of a class, in the order of the data set, the fourth and the
    ninth are test images and the seventh is a validation image. Every split contains all 13 writers. Raises TrajformerError:
    scikit-learn is not installed.
    """
    try:
        from sklearn import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise TrajformerError(
            "data.dataset: digits needs scikit-learn (pip install scikit-learn)"
        ) from error
    pixels, classes = datasets.load_digits(return_X_y=True)
    index = (
        pd.Series(classes).groupby(classes).cumcount().to_numpy() % 10
    )  # index of an image within its class, modulo ten
    test, val = np.isin(index, (3, 8)), index == 6
    rows = {"train": ~(test | val), "val": val, "test": test}[split]
    image = torch.from_numpy(pixels[rows]).float().reshape(-1, 1, 8, 8) / 16.0
    return image, torch.from_numpy(classes[rows].astype(np.int64))


@dataclass(frozen=True)
class ClassificationRecipe(Recipe, ClassRecipe, limits={"smoothing": (0.0, 0.999)}):
    """The recipe of an image classifier.

    Attributes:
        model: sizes; `classes` must be the number of classes in the data.
        data: images and batches.
        labels: names of the classes in the order of the outputs; read from the data if empty.
        init: checkpoint to start from. Positions are interpolated to `model.image_size`. With other classes the head starts
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
        if self.model.channels not in (1, 3):
            raise TrajformerError(
                f"model.channels: {self.model.channels}, expected 1 (gray) or 3 (color)"
            )
        if self.data.normalise == "imagenet" and self.model.channels != 3:
            raise TrajformerError("data.normalise: imagenet needs model.channels 3")
        labels = self.labels or class_names(self.data)
        if len(labels) != self.model.classes:
            raise TrajformerError(
                f"model.classes: {self.model.classes}, but there are {len(labels)}: {', '.join(labels)[:200]}"
            )

    def read(self, path: Path) -> Tensor:
        """Read an image file as [C, H, W] in 0..1 with the channels of the model; raises as `read_image`."""
        return read_image(path, gray=self.model.channels == 1)

    def prepare(self, image: Tensor) -> Tensor:
        """Resize and normalize images [..., C, H, W] in 0..1 for the model."""
        return normalize(
            resize(image, (self.model.image_size, self.model.image_size)), self.data.normalise
        )

    def load(self, split: str) -> LabeledImages:
        """The labeled images of a split: train, val or test. Unreadable files are skipped and listed on standard error.

        Raises TrajformerError: the split is unknown, has no readable image, or has a class that is not in `labels`.
        """
        if split not in SPLITS:
            raise TrajformerError(f"no split '{split}' (splits: {', '.join(SPLITS)})")
        data, channels, size = (
            self.data,
            self.model.channels,
            (self.model.image_size, self.model.image_size),
        )
        labels, name = self.labels or class_names(data), f"{data.root or data.dataset}: {split}"
        if data.dataset == "digits":
            digits, label = load_digits(split)
            return LabeledImages(
                name, to_bytes(resize(digits, size).expand(-1, channels, -1, -1)), label
            )
        images, classes = [], []
        for kind in class_names(data, split):
            if kind not in labels:
                known = ", ".join(labels)[:200]
                raise TrajformerError(
                    f"{data.root}: split '{split}' has a class '{kind}' that is not in {known}"
                )
            for path in list_images([Path(data.root, split, kind)]):
                try:
                    images.append(to_bytes(resize(self.read(path), size)))
                    classes.append(labels.index(kind))
                except TrajformerError as error:
                    sys.stderr.write(f"skipped {error}\n")
        if (number := len(labels)) != self.model.classes:
            known = f"{number} classes, but the model has {self.model.classes}"
            raise TrajformerError(
                f"{name}: {known}; name them in the order of the outputs (`weights convert --labels`)"
            )
        if not images:
            raise TrajformerError(f"{data.root}: split '{split}' has no readable image")
        return LabeledImages(name, torch.stack(images), torch.tensor(classes))


class ClassificationModule(TaskModule):
    """Trains a classifier with cross-entropy and validates its accuracy."""

    config: ClassificationRecipe
    model: ViT

    def __init__(self, config: ClassificationRecipe) -> None:
        super().__init__(replace(config, labels=config.labels or class_names(config.data)))
        if not config.init:
            return  # else load the weights of this checkpoint, adapted to the image size and the classes of the recipe
        state, start = self.config.load_start(("image_size",))
        sizes, position = self.config.model, "position.tables.0"
        side = sizes.image_size // sizes.patch_size
        state[position] = interpolate_positions(
            state[position], (side, side), int(sizes.pooling == "token")
        )
        if start.names() != self.config.names():
            state |= {
                f"head.{name}": torch.zeros_like(tensor)
                for name, tensor in self.model.head.state_dict().items()
            }
        self.model.load_state_dict(state)

    def training_step(self, batch: ImageBatch, batch_idx: int) -> Tensor:
        """Loss of one augmented batch."""
        image = augment_images(batch.image, self.config.augment, self.seed_step())
        loss = F.cross_entropy(
            self(self.config.prepare(image)), batch.label, label_smoothing=self.config.smoothing
        )
        return self.log_terms({"loss": loss}, len(batch.label))

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        """Log the metrics of one batch, which are averaged over the images of all processes."""
        scores, count = self(self.config.prepare(batch.image)), len(batch.label)
        accuracy = (scores.argmax(-1) == batch.label).float().mean()
        self.log("val/accuracy", accuracy, prog_bar=True, batch_size=count, sync_dist=True)
        self.log(
            "val/cross_entropy",
            F.cross_entropy(scores, batch.label),
            batch_size=count,
            sync_dist=True,
        )


# On a small split many checkpoints share the highest accuracy.
TASK = Task(
    recipe=ClassificationRecipe,
    module=ClassificationModule,
    data=lambda recipe: TaskData(
        recipe.load("train"), recipe.load("val"), recipe.data, recipe.seed
    ),
    monitor="val/cross_entropy",
    mode="min",
    shown=("val/accuracy", "val/cross_entropy"),
)
