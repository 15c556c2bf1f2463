"""The recipe of a forecaster: one typed dataclass for everything that `trajformer train` reads from YAML and the command line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal

from torch import nn

from trajformer.data.augment import AugmentConfig
from trajformer.data.sample import BatchConfig, Targets
from trajformer.errors import ConfigError, TrajformerError, check_numbers
from trajformer.losses.mixture import MixtureLossConfig
from trajformer.losses.set_loss import SetLossConfig
from trajformer.losses.worlds import WorldLossConfig
from trajformer.models import MODELS
from trajformer.models.agentformer.loss import CVAELossConfig, SamplerLossConfig
from trajformer.models.forecaster import Forecaster
from trajformer.models.mmtransformer.loss import RegionLossConfig
from trajformer.models.scene_set.loss import SceneSetLossConfig
from trajformer.recipes.plain import one_of

LOSSES: dict[str, type[Any]] = {  # config classes by the name used in recipes
    "set": SetLossConfig,
    "mixture": MixtureLossConfig,
    "worlds": WorldLossConfig,
    "regions": RegionLossConfig,
    "scene_set": SceneSetLossConfig,
    "cvae": CVAELossConfig,
    "sampler": SamplerLossConfig,
}
LOSSES |= {plugin.name: plugin.load() for plugin in entry_points(group="trajformer.losses")}


@dataclass(frozen=True)
class DataConfig:
    """Where scenes come from and how they become batches.

    Attributes:
        train: store made by `trajformer preprocess`.
        val: store to validate on, often the same folder.
        train_split: split of `train` that is used.
        val_split: split of `val` that is used.
        batch_size: scenes a step and device, at most.
        workers: loader processes; 0 loads in the training process.
        cache: keep samples (about 10 kB each) in memory after their first use, in every loader process.
        limit_train: use only the first so many scenes.
        bucket: scenes of similar size share a batch, sought among those of so many steps; 1 leaves the sizes alone.
        branches: training scenes of one past (`trajformer synthesize --branches`) are one, with several futures.
        learn_from: who is predicted in training, where that is not who is predicted in validation (`batch.targets`). With
            `moving` all other agents with a whole track teach, too.
        batch: how scenes become tensors.
    """

    train: str = ""
    val: str = ""
    train_split: str = "train"
    val_split: str = "val"
    batch_size: int = 32
    workers: int = 0
    cache: bool = False
    limit_train: int | None = None
    bucket: int = 32
    branches: bool = False
    learn_from: Targets | None = None
    batch: BatchConfig = field(default_factory=BatchConfig)

    def __post_init__(self) -> None:
        check_numbers(self, positive=("batch_size", "limit_train", "bucket"))

    @property
    def train_batch(self) -> BatchConfig:
        """How training scenes become tensors."""
        return replace(self.batch, targets=self.learn_from or self.batch.targets)


@dataclass(frozen=True)
class OptimConfig:
    """AdamW with a linear warm-up and a schedule after it.

    Attributes:
        learning_rate: of AdamW, after the warm-up.
        schedule: a cosine or a straight line to zero over the whole training, the inverse square root of the step (Vaswani
            et al. 2017), or one drop to a tenth of the rate (DETR).
        drop: share of the steps after which the rate drops, where it does.
        weight_decay: of AdamW; biases, norms and embeddings are not decayed.
        betas: of AdamW.
        warmup: share of the steps spent warming up.
        clip: largest norm of the gradient, 0 for no clipping.
        average: decay of an exponential moving average of the weights that is used to evaluate; 0 for none.
    """

    learning_rate: float = 1e-3
    schedule: Literal["cosine", "linear", "inverse_sqrt", "drop"] = "cosine"
    drop: float = 0.8
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    warmup: float = 0.05
    clip: float = 1.0
    average: float = 0.0

    def __post_init__(self) -> None:
        check_numbers(self, positive=("learning_rate",), shares=("drop", "warmup", "average"))
        if max(self.betas) >= 1:
            raise ConfigError("betas", f"{self.betas}, expected less than 1")


@dataclass(frozen=True)
class TrainerConfig:
    """How long and on what to train.

    Attributes:
        epochs: passes over the training data.
        accelerator: auto takes a GPU where there is one.
        devices: how many of them.
        precision: of the forward and backward pass.
        threads: CPU threads of torch, all cores by default.
        early_stopping: stop after so many validations without a better one; 0 is off.
        validate_every: epochs between validations (the last epoch is always validated).
        checkpoint_minutes: minutes of training between checkpoints amid an epoch; 0 leaves those at the end of each.
        log_every: steps between logged losses.
        compile: run the model through torch.compile.
    """

    epochs: int = 50
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
        check_numbers(self, positive=("epochs", "devices", "threads", "validate_every", "log_every"))


@dataclass(frozen=True)
class TrainConfig:
    """A whole recipe of a forecaster.

    Attributes:
        model: config of the model; `model: {NAME: {...}}` in YAML.
        data: stores, batches and loading.
        loss: config of the loss, `loss: {NAME: {...}}` in YAML; by default the first one that the model supports.
        first_stage: checkpoint of the trained model that a second stage (AgentFormer's sampler) starts from.
        augment: variations of the training scenes.
        optim: optimiser and schedule.
        trainer: length, device and precision.
        seed: of weights, order and augmentation; the same seed gives the same run.
    """

    model: Any = field(metadata=one_of(MODELS))
    data: DataConfig = field(default_factory=DataConfig)
    loss: Any = field(default=None, metadata=one_of(LOSSES))
    first_stage: str = ""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = 0
    task: ClassVar[str] = "forecasting"

    def __post_init__(self) -> None:
        check_numbers(self)

    def build_model(self) -> Forecaster:
        """The model with random weights.

        Raises:
            TrajformerError: its sizes do not fit together.
        """
        try:
            model: Forecaster = self.model.build()
        except ValueError as error:
            raise TrajformerError(f"model: {error}") from error
        return model

    def check(self) -> None:
        """Check that model, loss and first stage fit together.

        Raises:
            TrajformerError: they do not; names the field.
        """
        self.build_loss(self.build_model())

    def build_loss(self, model: Forecaster) -> nn.Module:
        """The loss that the recipe gives, or the default of the model.

        Raises:
            TrajformerError: the loss, the first stage or the data does not fit the model.
        """
        config = model.losses[0]() if self.loss is None else self.loss
        if type(config) not in model.losses:
            supported = [name for name, kind in LOSSES.items() if kind in model.losses]
            reason = f"{type(config).__name__} is not for {type(model).__name__}, expected {' or '.join(supported)}"
            raise TrajformerError(f"loss: {reason}")
        if self.data.branches and not isinstance(config, SetLossConfig):
            raise TrajformerError("data.branches: true, but only the set loss supports several futures of one past")
        if bool(self.first_stage) != model.needs_first_stage:
            if model.needs_first_stage:
                raise TrajformerError(f"first_stage: none, but {type(model).__name__} needs a checkpoint")
            raise TrajformerError(f"first_stage: given, but {type(model).__name__} has none")
        loss: nn.Module = config.build()
        return loss
