"""Object detection with DETR: recipe, set loss training, average precision of the validation images by pycocotools."""

import contextlib
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, distributed, nn

from trajformer.config import Config
from trajformer.data.loading import EpochShuffle
from trajformer.errors import TrajformerError
from trajformer.heads.detr.data import (
    DetectionBatch,
    DetectionDataset,
    NumberedEpochShuffle,
    VocConfig,
    VocDataset,
    to_corners,
)
from trajformer.heads.detr.model import (
    MAX_GRID,
    BoxLossConfig,
    Detr,
    DetrConfig,
    Objects,
    box_loss,
    postprocess,
)
from trajformer.heads.detr.shapes import LABELS, ShapesConfig, ShapesDataset
from trajformer.heads.images import ClassRecipe
from trajformer.recipes.recipe import OptimConfig, Recipe, TrainerConfig
from trajformer.training.base import Task, TaskData, TaskModule

MAX_DETECTIONS = 100  # per image and class; the ones with the highest scores count
BoxTable = np.ndarray  # float64 [n, 6], boxes of an image: left, top, width and height in pixels, score (1 for labels), class


@dataclass(frozen=True)
class DetectionDataConfig(Config, positive=("shorter", "longest", "batch_size", "bucket")):
    """Images and their batches: a Pascal VOC folder if one is given, else generated shapes.

    Attributes:
        shapes: settings of the generated images.
        voc: a folder.
        shorter: length to which the shorter side of images of files is resized, pixels.
        longest: maximum length of the longer side, pixels.
        batch_size: maximum number of images per step and device.
        workers: number of loader processes.
        bucket: images of similar size share a batch; they are sorted within groups of this number of steps; 1 is off.
    """

    shapes: ShapesConfig = ShapesConfig()
    voc: VocConfig | None = None
    shorter: int = 800
    longest: int = 1333
    batch_size: int = 16
    workers: int = 0
    bucket: int = 1


@dataclass(frozen=True)
class DetectionRecipe(ClassRecipe, Recipe):
    """The recipe of a detector.

    Attributes:
        model: sizes; the number of `labels`, if given, sets the number of classes.
        labels: names of the classes in the order of the outputs; known for generated shapes.
        data: images and batches.
        loss: weights of the set loss.
        init: checkpoint to start from. Other classes initialize the class head again, another number of queries the queries.
        backbone_rate: learning rate of the backbone, as a share of the learning rate.
        optim: optimizer and schedule.
        trainer: length, device and precision.
        seed: seed of weights, order, dropout and augmentation.
    """

    model: DetrConfig = field(default_factory=DetrConfig)
    labels: tuple[str, ...] = ()
    data: DetectionDataConfig = field(default_factory=DetectionDataConfig)
    loss: BoxLossConfig = field(default_factory=BoxLossConfig)
    init: str = ""
    backbone_rate: float = 0.1
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = 0
    task: ClassVar[str] = "detection"

    def build_model(self) -> Detr:
        """The untrained detector."""
        return Detr(replace(self.model, classes=len(self.labels)) if self.labels else self.model)

    def check(self, model: nn.Module | None = None) -> None:
        """Check the values; an error names the field."""
        if self.data.voc is not None and not self.data.voc.root:
            raise TrajformerError(
                "data.voc.root: give a folder with Annotations/, ImageSets/Main/ and JPEGImages/"
            )
        if self.data.voc is not None and not self.labels:
            raise TrajformerError("labels: name the classes of the folder's objects")

    def load(self, split: str, *, augmented: bool = False) -> DetectionDataset:
        """The labeled images of a split, which must have usable ones; with `augmented`, images of files are augmented."""
        if self.data.voc is None:
            return ShapesDataset(self.data.shapes, split, self.seed)
        size = (self.data.shorter, self.data.longest)
        return VocDataset(
            self.data.voc, split, self.names(), size, self.seed if augmented else None
        )


def average_precision(
    pairs: Sequence[tuple[BoxTable, BoxTable]], labels: Sequence[str]
) -> dict[str, float]:
    """Mean average precision over the classes that occur, from detections and labels of each image.

    In 0..1: "AP", the mean over the IoU thresholds 0.5, 0.55, ... 0.95, "AP50" and "AP75" at one threshold, and "AP50 <class>"
    for every class that occurs. Raises TrajformerError: pycocotools is not installed, or no image has an object.
    """
    try:
        from pycocotools.coco import COCO  # type: ignore[import-untyped]
        from pycocotools.cocoeval import COCOeval  # type: ignore[import-untyped]
    except ImportError as error:
        raise TrajformerError(
            "average precision needs pycocotools (pip install pycocotools)"
        ) from error
    tables = [
        [np.insert(table, 0, image, axis=1) for image, table in enumerate(column)]
        for column in zip(*pairs, strict=True)
    ]
    detected, true = (
        np.concatenate(column) for column in tables
    )  # [N, 7], with the image as first column
    if not len(true):
        raise TrajformerError("average precision: no image has an object")
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        images = COCO()
        images.dataset = {"info": {}, "images": [{"id": index} for index in range(len(pairs))]}
        images.dataset["categories"] = [
            {"id": index, "name": name} for index, name in enumerate(labels)
        ]
        images.createIndex()
        evaluation = COCOeval(
            images.loadRes(true), images.loadRes(detected) if len(detected) else COCO(), "bbox"
        )
        evaluation.params.maxDets = [1, 10, MAX_DETECTIONS]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][
        :, :, :, 0, -1
    ]  # [thresholds, recall, classes]; -1 for a class without objects
    means = np.where(
        (precision > -1).any((0, 1)), precision.mean(1), np.nan
    )  # [thresholds, classes]
    result = {"AP": means, "AP50": means[0], "AP75": means[5]}
    per_class = {
        f"AP50 {name}": value
        for name, value in zip(labels, means[0].tolist(), strict=True)
        if not np.isnan(value)
    }
    return {name: float(np.nanmean(values)) for name, values in result.items()} | per_class


def pair_with_labels(
    batch: DetectionBatch, objects: Sequence[Objects]
) -> list[tuple[BoxTable, BoxTable]]:
    """Detections and labels of each image of a batch, in pixels of the original image."""
    targets = batch.targets.to("cpu")
    corners = to_corners(targets.box * batch.original.cpu().flip(-1).repeat(1, 2)[:, None]).numpy()
    pairs = []
    for found, box, label, mask in zip(
        objects, corners, targets.label.numpy(), targets.mask.numpy(), strict=True
    ):
        detected = _table(*(x.cpu().numpy() for x in (found.box, found.score, found.label)))
        pairs.append((detected, _table(box[mask], np.ones(mask.sum()), label[mask])))
    return pairs


def _table(box: np.ndarray, score: np.ndarray, label: np.ndarray) -> BoxTable:
    box = box.astype(np.float64)
    return np.column_stack([box[:, :2], box[:, 2:] - box[:, :2], score, label])


class DetectionModule(TaskModule):
    """Trains a detector with the set loss; validates with the average precision of COCO."""

    config: DetectionRecipe
    model: Detr

    def __init__(self, config: DetectionRecipe) -> None:
        if config.data.voc is None and config.labels in ((), LABELS):
            config = replace(config, labels=LABELS)
        super().__init__(config)
        self.pairs: list[
            tuple[BoxTable, BoxTable]
        ] = []  # detections and labels of the validation images
        data, limit = config.data, MAX_GRID * self.model.backbone.stride
        side = data.longest if data.voc else max(data.shapes.height, data.shapes.width)
        if self.model.position is not None and side > limit:
            raise TrajformerError(
                f"data: images of {side} pixels, but model.position: learned has room for {limit}"
            )
        if not config.init:
            return  # else load the weights of this checkpoint, except for a head of other classes and other queries
        state, start = self.config.load_start(("queries", "frozen", "padding", "stride"))
        parts = {
            "classify.": start.names() != self.config.names(),
            "queries.": start.model.queries != self.config.model.queries,
        }
        initial = tuple(part for part, differs in parts.items() if differs)
        self.model.load_state_dict(
            state | {n: t for n, t in self.model.state_dict().items() if n.startswith(initial)}
        )

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups; the backbone has a separate learning rate."""
        backbone = {id(parameter) for parameter in self.model.backbone.parameters()}
        groups = []
        for group in super().groups():
            for inside, share in ((False, 1.0), (True, self.config.backbone_rate)):
                chosen = [
                    p for p in group["params"] if (id(p) in backbone) == inside and p.requires_grad
                ]
                groups += (
                    [{**group, "params": chosen, "lr": group.get("lr", 1.0) * share}]
                    if chosen
                    else []
                )
        return groups

    def training_step(self, batch: DetectionBatch, batch_idx: int) -> Tensor:
        """Loss of one batch."""
        self.seed_step()
        return self.log_terms(
            box_loss(self(batch.pixels, batch.mask), batch.targets, self.config.loss),
            len(batch.pixels),
        )

    def validation_step(self, batch: DetectionBatch, batch_idx: int) -> None:
        """Collect the detections of one batch."""
        detections = self(batch.pixels, batch.mask)
        loss = box_loss(detections, batch.targets, self.config.loss)["loss"]
        self.log("val/loss", loss, batch_size=len(batch.pixels), sync_dist=True)
        self.pairs += pair_with_labels(batch, postprocess(detections, batch.original))

    def on_validation_epoch_end(self) -> None:
        """Log the average precision over the images of all processes, and forget the detections."""
        pairs, self.pairs = self.pairs, []
        if distributed.is_available() and distributed.is_initialized():
            gathered: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(gathered, pairs)
            pairs = [pair for one in gathered for pair in one]
        scores = average_precision(pairs, self.config.names())
        for name, value in scores.items():
            self.log(f"val/{name.replace(' ', '_')}", value, prog_bar=name == "AP50")


class DetectionData(TaskData):
    """Training and validation images of a recipe; those that are left out are listed on standard error."""

    def __init__(self, recipe: DetectionRecipe) -> None:
        data = recipe.data
        splits = (
            ("train", "val") if data.voc is None else (data.voc.train_split, data.voc.val_split)
        )
        train, val = recipe.load(splits[0], augmented=True), recipe.load(splits[1])
        for dataset in (train, val):
            sys.stderr.writelines(f"{dataset.name}: {line}\n" for line in dataset.skipped)
        super().__init__(train, val, data, recipe.seed)

    def order(self) -> EpochShuffle:
        """The order of training; images change from epoch to epoch."""
        return NumberedEpochShuffle(
            len(self.train), self._steps("train"), self.seed, self.loading.bucket, self.train.sizes
        )


TASK = Task(
    recipe=DetectionRecipe,
    module=DetectionModule,
    data=DetectionData,
    monitor="val/AP50",
    mode="max",
    shown=("val/loss", "val/AP", "val/AP50"),
)
