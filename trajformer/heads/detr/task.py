"""Object detection with DETR: recipe, training with the set loss, validation."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import Tensor, distributed, nn

from trajformer.config import Config
from trajformer.data.loading import EpochShuffle
from trajformer.errors import TrajformerError
from trajformer.heads.detr.data import DetectionBatch, DetectionDataset, NumberedEpochShuffle
from trajformer.heads.detr.loss import BoxLossConfig, box_loss
from trajformer.heads.detr.metrics import BoxTable, average_precision, pair_with_labels
from trajformer.heads.detr.model import MAX_GRID, Detr, DetrConfig
from trajformer.heads.detr.objects import postprocess
from trajformer.heads.detr.shapes import LABELS, ShapesConfig, ShapesDataset
from trajformer.heads.detr.voc import VocConfig, VocDataset
from trajformer.heads.images import ClassRecipe, summed_up
from trajformer.recipes.recipe import OptimConfig, Recipe, TrainerConfig
from trajformer.scenes.notices import write_line
from trajformer.training.base import Task, TaskData, TaskModule


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
        bucket: images of similar size share a batch; they are sorted within groups of this number
            of steps; 1 is off.
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
        init: checkpoint to start from. Other classes initialize the class head again, another
            number of queries the queries.
        backbone_rate: learning rate of the backbone, relative to the learning rate.
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
        config = self.model
        if self.labels:
            config = replace(config, classes=len(self.labels))
        return Detr(config)

    def check(self, model: nn.Module | None = None) -> None:
        """Check the values; an error names the field."""
        if self.data.voc is None:
            return
        if not self.data.voc.root:
            folders = "Annotations/, ImageSets/Main/ and JPEGImages/"
            raise TrajformerError(f"data.voc.root: give a folder with {folders}")
        if not self.labels:
            raise TrajformerError("labels: name the classes of the folder's objects")

    def load(self, split: str, *, augmented: bool = False) -> DetectionDataset:
        """The labeled images of a split; with `augmented`, images of files are augmented.

        Raises TrajformerError: as `ShapesDataset` and `VocDataset`.
        """
        data = self.data
        if data.voc is None:
            return ShapesDataset(data.shapes, split, self.seed)
        size = (data.shorter, data.longest)
        seed = self.seed if augmented else None
        return VocDataset(data.voc, split, self.names(), size, seed)


class DetectionModule(TaskModule):
    """Trains a detector with the set loss; validates with the average precision of COCO."""

    config: DetectionRecipe
    model: Detr

    def __init__(self, config: DetectionRecipe) -> None:
        if config.data.voc is None and config.labels in ((), LABELS):
            config = replace(config, labels=LABELS)
        super().__init__(config)
        # Detections and labels of the validation images.
        self.pairs: list[tuple[BoxTable, BoxTable]] = []
        self._check_image_size()
        if config.init:
            self._load_initial_weights()

    def _check_image_size(self) -> None:
        """Raise TrajformerError if images can be larger than the learned position encoding."""
        if self.model.position is None:
            return
        data = self.config.data
        limit = MAX_GRID * self.model.backbone.stride
        side = data.longest if data.voc else max(data.shapes.height, data.shapes.width)
        if side > limit:
            reason = f"model.position: learned has positions for {limit}"
            raise TrajformerError(f"data: images of {side} pixels, but {reason}")

    def _load_initial_weights(self) -> None:
        """Load the checkpoint `init`, except for a head of other classes and other queries."""
        state, start = self.config.load_start(("queries", "frozen", "padding", "stride"))
        untrained: list[str] = []
        if start.names() != self.config.names():
            untrained.append("classify.")
        if start.model.queries != self.config.model.queries:
            untrained.append("queries.")
        for name, tensor in self.model.state_dict().items():
            if name.startswith(tuple(untrained)):
                state[name] = tensor
        self.model.load_state_dict(state)

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups; the backbone has a separate learning rate."""
        in_backbone = {id(parameter) for parameter in self.model.backbone.parameters()}
        groups = []
        for group in super().groups():
            rate = group.get("lr", 1.0)
            trained = [parameter for parameter in group["params"] if parameter.requires_grad]
            others = [parameter for parameter in trained if id(parameter) not in in_backbone]
            backbone = [parameter for parameter in trained if id(parameter) in in_backbone]
            if others:
                groups.append({**group, "params": others, "lr": rate})
            if backbone:
                backbone_rate = rate * self.config.backbone_rate
                groups.append({**group, "params": backbone, "lr": backbone_rate})
        return groups

    def training_step(self, batch: DetectionBatch, batch_idx: int) -> Tensor:
        """Loss of one batch."""
        self.seed_step()
        detections = self(batch.pixels, batch.mask)
        terms = box_loss(detections, batch.targets, self.config.loss)
        return self.log_terms(terms, len(batch.pixels))

    def validation_step(self, batch: DetectionBatch, batch_idx: int) -> None:
        """Collect the detections of one batch."""
        detections = self(batch.pixels, batch.mask)
        loss = box_loss(detections, batch.targets, self.config.loss)["loss"]
        self.log("val/loss", loss, batch_size=len(batch.pixels), sync_dist=True)
        self.pairs += pair_with_labels(batch, postprocess(detections, batch.original))

    def on_validation_epoch_end(self) -> None:
        """Log the average precision over the images of all processes; forget the detections."""
        pairs = self.pairs
        self.pairs = []
        if distributed.is_available() and distributed.is_initialized():
            by_process: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(by_process, pairs)
            pairs = [pair for process in by_process for pair in process]
        scores = average_precision(pairs, self.config.names())
        for name, value in scores.items():
            self.log(f"val/{name.replace(' ', '_')}", value, prog_bar=name == "AP50")


class DetectionData(TaskData):
    """Training and validation images of a recipe.

    Images and objects that are left out are listed on standard error.
    """

    def __init__(self, recipe: DetectionRecipe) -> None:
        voc = recipe.data.voc
        train_split = voc.train_split if voc else "train"
        val_split = voc.val_split if voc else "val"
        train = recipe.load(train_split, augmented=True)
        val = recipe.load(val_split)
        for dataset in (train, val):
            for line in summed_up(dataset.skipped):
                write_line(f"{dataset.name}: {line}")
        super().__init__(train, val, recipe.data, recipe.seed)

    def order(self) -> EpochShuffle:
        """The order of training; images change from epoch to epoch."""
        steps = self._steps("train")
        bucket = self.loading.bucket
        return NumberedEpochShuffle(len(self.train), steps, self.seed, bucket, self.train.sizes)


TASK = Task(
    recipe=DetectionRecipe,
    module=DetectionModule,
    data=DetectionData,
    monitor="val/AP50",
    mode="max",
    shown=("val/loss", "val/AP", "val/AP50"),
)
