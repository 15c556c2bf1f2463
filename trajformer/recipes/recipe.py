"""The recipe of a forecaster: all that `trajformer train` reads from YAML and the command line."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from trajformer.config import Config
from trajformer.data.augment import AugmentConfig
from trajformer.data.sample import BatchConfig, Targets
from trajformer.errors import ConfigError, TrajformerError
from trajformer.losses.set_loss import SetLossConfig
from trajformer.models.forecaster import Forecaster
from trajformer.recipes.choices import LOSSES, MODELS
from trajformer.recipes.plain import one_of

DEFAULT_EPOCHS = 50


@dataclass(frozen=True)
class SourceConfig(Config, limits={"weight": (1e-3, 1e3)}):
    """One of several data sets.

    Attributes:
        store: store made by `trajformer preprocess`.
        split: split of the store, by default `train_split` or `val_split`.
        weight: scenes of this source in an epoch, relative to the number of its scenes. With 0.5,
            an epoch has half of them, and the next epoch the other half; with 2, each one twice.
    """

    store: str
    split: str | None = None
    weight: float = 1.0


@dataclass(frozen=True)
class DataConfig(
    Config,
    positive=("batch_size", "bucket"),
    limits={"limit_train": (1, 10**9), "workers": (0, 1_000)},
):
    """The scenes and how they become batches.

    Attributes:
        train: store made by `trajformer preprocess`, or a list of several (`SourceConfig`). Period
            and history of all scenes are then those of the first source, and the horizon is the
            longest one.
        val: store to validate on, often the same folder, or a list of several.
        train_split: split of `train`.
        val_split: split of `val`.
        batch_size: largest number of scenes per step and device.
        workers: loader processes, at most one per core; 0 loads in the training process.
        cache: keep samples (about 10 kB each) in memory after their first use, in every loader
            process.
        limit_train: use only the first `limit_train` scenes, of each source.
        bucket: number of steps among which scenes of similar size are grouped into batches; 1
            ignores the sizes.
        branches: join training scenes with a common past (`trajformer synthesize --branches`) into
            one with several futures.
        unit: of all lengths in this recipe, that of the scenes: "m" or "px".
        learn_from: targets in training, if they differ from those in validation (`batch.targets`).
            `moving` adds all other moving agents with a complete track.
        batch: how scenes become tensors.
    """

    train: str | tuple[SourceConfig, ...] = ""
    val: str | tuple[SourceConfig, ...] = ""
    train_split: str = "train"
    val_split: str = "val"
    batch_size: int = 32
    workers: int = 0
    cache: bool = False
    limit_train: int | None = None
    bucket: int = 32
    branches: bool = False
    unit: Literal["m", "px"] = "m"
    learn_from: Targets | None = None
    batch: BatchConfig = field(default_factory=BatchConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for part in ("train", "val"):
            if getattr(self, part) == ():
                raise ConfigError(part, "no source, give at least one store")
        if isinstance(self.train, tuple) and self.branches:
            raise ConfigError("branches", "true, but data.train is a list of sources")
        if any(source.weight != 1.0 for source in self.sources("val")):
            raise ConfigError("val", "has a weight, but weights are for data.train")

    @property
    def has_several(self) -> bool:
        """Whether the scenes are brought to a common clock: `train` or `val` is a list."""
        return isinstance(self.train, tuple) or isinstance(self.val, tuple)

    def sources(self, part: Literal["train", "val"]) -> tuple[SourceConfig, ...]:
        """The stores of a part with their splits; none if the part is not given."""
        given = getattr(self, part)
        default_split = getattr(self, f"{part}_split")
        if isinstance(given, str):
            given = (SourceConfig(given),) if given else ()
        return tuple([replace(one, split=one.split or default_split) for one in given])

    @property
    def train_batch(self) -> BatchConfig:
        """How training scenes become tensors."""
        return replace(self.batch, targets=self.learn_from or self.batch.targets)


_RATES = dict.fromkeys(("learning_rate", "muon_rate", "restart_rate"), (1e-12, 10.0))
_DECAYS = dict.fromkeys(("betas", "average"), (0.0, 0.999999))
_RESTARTS = {"restarts": (0, 1_000), "restart_steps": (1, 10**9), "average_restarts": (0, 100)}


@dataclass(frozen=True)
class OptimConfig(Config, fractions=("drop", "warmup"), limits=_RATES | _DECAYS | _RESTARTS):
    """Optimiser with a linear warm-up and a schedule after it, and restarts of both.

    A restart begins with the weights at the end of the part before it and a fresh state of the
    optimiser. It has its own warm-up and schedule, with all rates times `restart_rate`. The first
    part has `trainer.steps` steps. At the end of the training the model gets the mean of the
    weights at the ends of the last restarts, if `average_restarts` is more than 1. This mean is
    validated and is the content of `last.ckpt` (and of `best.ckpt` if it is the best one).

    Attributes:
        learning_rate: rate of AdamW after the warm-up.
        muon_rate: if given, Muon optimises the matrices of linear layers with this rate, and AdamW
            all other parameters. `Forecaster.muon_exclude` excludes layers that read features or
            give results (only SE2Former does).
        schedule: a cosine or a line to zero over the whole part, the inverse square root of the
            step (Vaswani et al. 2017), or one drop to a tenth of the rate (DETR).
        drop: fraction of the steps before the drop.
        weight_decay: of both optimisers, without biases, norms and embeddings.
        betas: betas of AdamW.
        warmup: fraction of the steps with a linear warm-up.
        clip: largest norm of the gradient, 0 for no clipping.
        average: decay of an exponential moving average of the weights, which is then used for
            evaluation; 0 for none.
        restarts: number of restarts after the first part.
        restart_steps: steps of each restart.
        restart_rate: factor on all rates in restarts.
        average_restarts: number of last restarts whose final weights are averaged, at most all of
            them. Whole numbers in the weights, such as counters, are those of the last restart.
    """

    learning_rate: float = 1e-3
    muon_rate: float | None = None
    schedule: Literal["cosine", "linear", "inverse_sqrt", "drop"] = "cosine"
    drop: float = 0.8
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    warmup: float = 0.05
    clip: float = 1.0
    average: float = 0.0
    restarts: int = 0
    restart_steps: int | None = None
    restart_rate: float = 0.5
    average_restarts: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.restarts and self.restart_steps is None:
            raise ConfigError("restart_steps", f"none, but restarts is {self.restarts}")
        if self.restarts and self.average:
            reason = f"{self.average}, but restarts is {self.restarts}; use average_restarts"
            raise ConfigError("average", reason)


@dataclass(frozen=True)
class TrainerConfig(
    Config,
    positive=("epochs", "devices", "threads", "validate_every", "log_every"),
    limits={"steps": (1, 10**9), "threads": (1, 1024)},
):
    """Length, device and precision of the training.

    Attributes:
        epochs: passes over the training data, 50 if neither `epochs` nor `steps` is given.
        steps: number of optimiser steps, in place of `epochs`. The last epoch may be incomplete.
        accelerator: auto uses a GPU if there is one.
        devices: number of devices of each machine; torchrun or Slurm start several machines.
        precision: precision of the forward and backward pass.
        threads: CPU threads of torch, at most and by default all cores.
        early_stopping: number of validations without improvement before training stops; 0 for no
            limit.
        validate_every: epochs between validations (the end of the training is always validated).
        checkpoint_minutes: minutes between checkpoints within an epoch; 0 for checkpoints at the
            end of each epoch only.
        log_every: steps between logged losses.
        compile: run the model through torch.compile.
    """

    epochs: int | None = None
    steps: int | None = None
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int = 1
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    threads: int | None = None
    early_stopping: int = 0
    validate_every: int = 1
    checkpoint_minutes: float = 10.0
    log_every: int = 20
    compile: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            reason = f"{self.epochs}, but steps is {self.steps}; set one of them to null"
            raise ConfigError("epochs", reason)

    @property
    def num_epochs(self) -> int | None:
        """Number of epochs, or None if the length is in steps."""
        if self.steps is not None:
            return None
        return self.epochs or DEFAULT_EPOCHS


class Recipe(Config):
    """Base class of recipes: fields that training needs in addition to the model, data and loss."""

    task: ClassVar[str]
    optim: OptimConfig
    trainer: TrainerConfig
    seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optim.restarts and self.trainer.steps is None:
            reason = f"{self.optim.restarts}, but trainer.steps is not given"
            raise ConfigError("optim.restarts", reason)

    @property
    def num_steps(self) -> int | None:
        """Number of steps of the first part and all restarts, None if the length is in epochs."""
        if self.trainer.steps is None:
            return None
        return self.trainer.steps + self.optim.restarts * (self.optim.restart_steps or 0)

    def build_model(self) -> nn.Module:
        """The model with random weights (ValueError or TrajformerError: its sizes do not fit)."""
        raise NotImplementedError

    def check(self, model: nn.Module | None = None) -> None:
        """Raise TrajformerError for fields that do not fit together.

        `model` is the model of the recipe if it has been built already.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class TrainConfig(Recipe):
    """A whole recipe of a forecaster.

    Attributes:
        model: config of the model; `model: {NAME: {...}}` in YAML.
        data: stores, batches and loading.
        loss: config of the loss, `loss: {NAME: {...}}` in YAML; by default the first one that the
            model supports.
        first_stage: checkpoint of the trained model that a second stage (AgentFormer's sampler)
            starts from.
        init: checkpoint of the same model, `pretrained:NAME` for example, from which training
            starts. Statistics that a model computes from its training scenes come from it, too. On
            the command line, fields of `model` and `data.batch` that are not given are those of
            the checkpoint.
        augment: variations of the training scenes.
        optim: optimiser and schedule.
        trainer: length, device and precision.
        seed: of weights, order and augmentation; the same seed gives the same run on one machine.
    """

    model: Any = field(metadata=one_of(MODELS))
    data: DataConfig = field(default_factory=DataConfig)
    loss: Any = field(default=None, metadata=one_of(LOSSES))
    first_stage: str = ""
    init: str = ""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = 0
    task: ClassVar[str] = "forecasting"

    def build_model(self) -> Forecaster:
        """The model with random weights (TrajformerError: its sizes do not fit together)."""
        try:
            model: Forecaster = self.model.build()
        except ValueError as error:
            raise TrajformerError(f"model: {error}") from error
        model.batch_config = self.data.batch
        return model

    def check(self, model: nn.Module | None = None) -> None:
        """Check that model, loss and first stage fit together (TrajformerError names the field).

        Without a model, one is built on the meta device, without memory for its weights.
        """
        if model is None:
            with torch.device("meta"):
                model = self.build_model()
        assert isinstance(model, Forecaster)
        self.loss_config(model)

    def loss_config(self, model: Forecaster) -> Any:
        """The loss config of the recipe, or the default of the model.

        Raises TrajformerError: loss, first stage or data do not fit the model.
        """
        model_name = type(model).__name__
        if self.loss is not None and type(self.loss) not in model.losses:
            supported = [name for name, kind in LOSSES.items() if kind in model.losses]
            reason = f"{type(self.loss).__name__} is not for {model_name}"
            raise TrajformerError(f"loss: {reason}, expected {' or '.join(supported)}")

        loss = model.choose_loss(self.loss)
        if self.data.branches and not isinstance(loss, SetLossConfig):
            reason = "only the set loss supports several futures of one past"
            raise TrajformerError(f"data.branches: true, but {reason}")

        if model.needs_first_stage and not self.first_stage:
            raise TrajformerError(f"first_stage: none, but {model_name} needs a checkpoint")
        if self.first_stage and not model.needs_first_stage:
            raise TrajformerError(f"first_stage: given, but {model_name} has none")
        return loss
