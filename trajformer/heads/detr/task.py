"""Training DETR: pictures with boxes in, the set loss, average precision of the validation pictures."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor, distributed, nn

from trajformer.data.order import EpochShuffle
from trajformer.errors import CheckpointError, TrajformerError
from trajformer.heads.detr.data.batch import DetectionBatch
from trajformer.heads.detr.data.pictures import Anew, Pictures
from trajformer.heads.detr.data.shapes import LABELS, Shapes, ShapesConfig
from trajformer.heads.detr.data.voc import VocConfig, VocFolder
from trajformer.heads.detr.loss import BoxLossConfig, box_loss
from trajformer.heads.detr.metrics import Labelled, average_precision, compare
from trajformer.heads.detr.model import Detr, DetrConfig, find
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.recipe import OptimConfig, TrainerConfig
from trajformer.training.base import Task, TaskData, TaskModule


@dataclass(frozen=True)
class DetectionDataConfig:
    """Which pictures, and how they become batches: a Pascal VOC folder where one is given, else generated shapes.

    Attributes:
        shapes: what is generated.
        voc: a folder.
        shorter: length of the shorter side to which pictures of files are resized.
        longest: of the longer side, at most.
        batch_size: pictures a step and device, at most.
        workers: loader processes.
        bucket: pictures of similar size share a batch, sought among those of so many steps; 1 leaves the sizes alone.
    """

    shapes: ShapesConfig = field(default_factory=ShapesConfig)
    voc: VocConfig | None = None
    shorter: int = 800
    longest: int = 1333
    batch_size: int = 16
    workers: int = 0
    bucket: int = 1


@dataclass(frozen=True)
class DetectionRecipe:
    """A whole recipe of a detector.

    Attributes:
        model: sizes; with `labels`, their number is that of the classes.
        labels: names of the classes in the order of the model's outputs; those of generated shapes are known.
        data: pictures and batches.
        loss: weights of the set loss.
        start: checkpoint to begin with; with other classes their head begins anew, with another number of queries these do.
        backbone_rate: learning rate of the backbone, as a share of that of the rest.
        optim: optimiser and schedule.
        trainer: length, device and precision.
        seed: of weights, order, dropout and variation.
    """

    model: DetrConfig = field(default_factory=DetrConfig)
    labels: tuple[str, ...] = ()
    data: DetectionDataConfig = field(default_factory=DetectionDataConfig)
    loss: BoxLossConfig = field(default_factory=BoxLossConfig)
    start: str = ""
    backbone_rate: float = 0.1
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = 0
    task: ClassVar[str] = "detection"

    def build_model(self) -> nn.Module:
        """The detector, untrained."""
        return Detr(replace(self.model, classes=len(self.labels)) if self.labels else self.model)

    def names(self) -> tuple[str, ...]:
        """A name for every class of the model, "class 0" and so on where none are known."""
        return self.labels or tuple(f"class {index}" for index in range(self.model.classes))

    def check(self) -> None:
        """Refuse sizes that cannot be.

        Raises:
            TrajformerError: names the field.
        """
        if self.data.voc is not None and not self.data.voc.root:
            raise TrajformerError("data.voc.root: give a folder with Annotations/, ImageSets/Main/ and JPEGImages/")
        if self.data.voc is not None and not self.labels:
            raise TrajformerError("labels: name the classes of the folder's objects")
        shapes = self.data.shapes
        for name, (low, high) in {"data.shapes.objects": shapes.objects, "data.shapes.radius": shapes.radius}.items():
            if not 0 < low <= high:
                raise TrajformerError(f"{name}: {low}, {high}: expected the smaller one first, more than 0")

    def load(self, split: str, *, varied: bool = False) -> Pictures:
        """The labelled pictures of a split.

        Args:
            varied: as they are varied in training.

        Raises:
            TrajformerError: there is no such split, or nothing in it can be used.
        """
        if self.data.voc is None:
            return Shapes(self.data.shapes, split, self.seed)
        size = (self.data.shorter, self.data.longest)
        return VocFolder(self.data.voc, split, self.names(), size, self.seed if varied else None)


class DetectionModule(TaskModule):
    """Trains a detector with the set loss; validates with COCO's average precision."""

    config: DetectionRecipe
    model: Detr

    def __init__(self, config: DetectionRecipe) -> None:
        if config.data.voc is None and config.labels in ((), LABELS):
            config = replace(config, labels=LABELS)
        super().__init__(config)
        if config.start:
            start_from(self.model, config)
        self.seen: list[tuple[Labelled, Labelled]] = []

    def groups(self) -> list[dict[str, Any]]:
        """The backbone has its own learning rate."""
        backbone = {id(parameter) for parameter in self.model.backbone.parameters()}
        groups = []
        for group in super().groups():
            for inside, share in ((False, 1.0), (True, self.config.backbone_rate)):
                mine = [p for p in group["params"] if (id(p) in backbone) == inside and p.requires_grad]
                groups += [{**group, "params": mine, "lr": share}] if mine else []
        return groups

    def training_step(self, batch: DetectionBatch, batch_idx: int) -> Tensor:
        """Loss of one batch."""
        self.seed_step()
        return self.log_terms(box_loss(self(batch.pixels, batch.mask), batch.targets, self.config.loss), len(batch))

    def validation_step(self, batch: DetectionBatch, batch_idx: int) -> None:
        """Keep what was found in one batch."""
        detections = self(batch.pixels, batch.mask)
        self.log("val/loss", box_loss(detections, batch.targets, self.config.loss)["loss"], batch_size=len(batch), sync_dist=True)
        self.seen += compare(batch, find(detections, batch.original))

    def on_validation_epoch_end(self) -> None:
        """Log average precision over the pictures of all processes, and begin anew."""
        seen, self.seen = self.seen, []
        if distributed.is_available() and distributed.is_initialized():
            everywhere: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(everywhere, seen)
            seen = [pair for one in everywhere for pair in one]
        figures = average_precision([pair[0] for pair in seen], [pair[1] for pair in seen], self.config.names())
        for name, value in figures.items():
            self.log(f"val/{name.replace(' ', '_')}", value, prog_bar=name == "AP50")


def start_from(model: nn.Module, recipe: DetectionRecipe) -> None:
    """Give a model the weights of the checkpoint `recipe.start`; other classes or queries than there begin anew.

    Raises:
        CheckpointError: no readable checkpoint of a detector, or of one of other sizes.
    """
    before, config = load_checkpoint(recipe.start, DetectionRecipe)
    state, mine = before.state_dict(), model.state_dict()
    anew = [f"{part}." for part, same in (
        ("classify", config.names() == recipe.names()), ("queries", config.model.queries == recipe.model.queries)
    ) if not same]  # fmt: skip
    for name in sorted(mine.keys() | state.keys()):
        if name.startswith(tuple(anew)):
            state[name] = mine[name]
        elif name not in mine or name not in state or mine[name].shape != state[name].shape:
            raise CheckpointError(f"{recipe.start}: '{name}' is not of the same size as the recipe's")
    model.load_state_dict(state)


class DetectionData(TaskData):
    """Pictures of the training and the validation split of a recipe; opening them fails early and clearly."""

    train: Pictures
    val: Pictures

    def __init__(self, recipe: DetectionRecipe) -> None:
        data = recipe.data
        splits = ("train", "val") if data.voc is None else (data.voc.train_split, data.voc.val_split)
        train, val = recipe.load(splits[0], varied=True), recipe.load(splits[1])
        for pictures in (train, val):
            for line in pictures.complaints:
                sys.stderr.write(f"{pictures.name}: {line}\n")
        super().__init__(train, val, data, recipe.seed)

    def order(self) -> EpochShuffle:
        """The order of training; every epoch sees the pictures anew."""
        return Anew(len(self.train), self._steps("train"), self.seed, self.loading.bucket, self.train.sizes)


TASK = Task(
    recipe=DetectionRecipe,
    module=DetectionModule,
    data=DetectionData,
    monitor="val/AP50",
    mode="max",
    shown=("val/loss", "val/AP", "val/AP50"),
)
