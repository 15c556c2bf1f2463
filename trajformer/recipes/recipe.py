"""The recipe of a forecaster: one typed dataclass for everything that `trajformer train` reads from YAML and the command line."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import nn

from trajformer.config import Config
from trajformer.data.augment import AugmentConfig
from trajformer.data.sample import BatchConfig, Targets
from trajformer.errors import TrajformerError
from trajformer.losses.set_loss import SetLossConfig
from trajformer.models.forecaster import Forecaster
from trajformer.recipes.choices import LOSSES, MODELS
from trajformer.recipes.plain import one_of


@dataclass(frozen=True)
class DataConfig(
    Config,
    positive=("batch_size", "bucket"),
    limits={"limit_train": (1, 10**9), "workers": (0, 1_000)},
):
    """The scenes and how they become batches.

    Attributes:
        train: store made by `trajformer preprocess`.
        val: store to validate on, often the same folder.
        train_split: split of `train`.
        val_split: split of `val`.
        batch_size: largest number of scenes per step and device.
        workers: loader processes, at most one per core; 0 loads in the training process.
        cache: keep samples (about 10 kB each) in memory after their first use, in every loader process.
        limit_train: use only the first `limit_train` scenes.
        bucket: number of steps among which scenes of similar size are grouped into batches; 1 ignores the sizes.
        branches: join training scenes with a common past (`trajformer synthesize --branches`) into one with several futures.
        unit: of all lengths in this recipe, that of the scenes: "m" or "px".
        learn_from: targets in training, if they differ from those in validation (`batch.targets`). `moving` adds all other
            moving agents with a complete track.
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
    unit: Literal["m", "px"] = "m"
    learn_from: Targets | None = None
    batch: BatchConfig = field(default_factory=BatchConfig)

    @property
    def train_batch(self) -> BatchConfig:
        """How training scenes become tensors."""
        return replace(self.batch, targets=self.learn_from or self.batch.targets)


@dataclass(frozen=True)
class OptimConfig(
    Config,
    fractions=("drop", "warmup"),
    limits=dict.fromkeys(("learning_rate", "muon_rate"), (1e-12, 10.0))
    | dict.fromkeys(("betas", "average"), (0.0, 0.999999)),
):
    """Optimiser with a linear warm-up and a schedule after it.

    Attributes:
        learning_rate: rate of AdamW after the warm-up.
        muon_rate: if given, Muon optimises the matrices of linear layers with this rate, and AdamW all other parameters.
            `Forecaster.muon_exclude` excludes layers that read features or give results (only SE2Former does).
        schedule: a cosine or a line to zero over the whole training, the inverse square root of the step (Vaswani et al. 2017),
            or one drop to a tenth of the rate (DETR).
        drop: share of the steps before the drop.
        weight_decay: of both optimisers, without biases, norms and embeddings.
        betas: betas of AdamW.
        warmup: share of the steps with a linear warm-up.
        clip: largest norm of the gradient, 0 for no clipping.
        average: decay of an exponential moving average of the weights, which is then used for evaluation; 0 for none.
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


@dataclass(frozen=True)
class TrainerConfig(
    Config, positive=("epochs", "minutes", "devices", "threads", "validate_every", "log_every")
):
    """Length, device and precision of the training.

    Attributes:
        epochs: passes over the training data.
        minutes: if given, train for this many processor minutes of the training process instead of `epochs`. Validation is not
            counted. The schedule follows the time, so that a faster machine makes more steps.
        accelerator: auto uses a GPU if there is one.
        devices: number of devices.
        precision: precision of the forward and backward pass.
        threads: CPU threads of torch, all cores by default.
        early_stopping: number of validations without improvement before training stops; 0 for no limit.
        validate_every: epochs between validations (the last epoch is always validated).
        checkpoint_minutes: minutes between checkpoints within an epoch; 0 for checkpoints at the end of each epoch only.
        log_every: steps between logged losses.
        compile: run the model through torch.compile.
    """

    epochs: int = 50
    minutes: float | None = None
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    devices: int = 1
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    threads: int | None = None
    early_stopping: int = 0
    validate_every: int = 1
    checkpoint_minutes: float = 10.0
    log_every: int = 20
    compile: bool = False


class Recipe(Config):
    """Base class of recipes: fields that training needs in addition to the model, data and loss of the task."""

    task: ClassVar[str]
    optim: OptimConfig
    trainer: TrainerConfig
    seed: int

    def build_model(self) -> nn.Module:
        """The model with random weights (ValueError or TrajformerError: its sizes do not fit together)."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise TrajformerError for fields that do not fit together."""
        raise NotImplementedError


@dataclass(frozen=True)
class TrainConfig(Recipe):
    """A whole recipe of a forecaster.

    Attributes:
        model: config of the model; `model: {NAME: {...}}` in YAML.
        data: stores, batches and loading.
        loss: config of the loss, `loss: {NAME: {...}}` in YAML; by default the first one that the model supports.
        first_stage: checkpoint of the trained model that a second stage (AgentFormer's sampler) starts from.
        init: checkpoint of the same model, `pretrained:NAME` for example, from which training starts. Statistics that a model
            computes from its training scenes come from it, too.
        augment: variations of the training scenes.
        optim: optimiser and schedule.
        trainer: length, device and precision.
        seed: of weights, order and augmentation; the same seed gives the same run, except with `trainer.minutes`.
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
        return model

    def check(self) -> None:
        """Check that model, loss and first stage fit together (TrajformerError: they do not; names the field)."""
        self.loss_config(self.build_model())

    def loss_config(self, model: Forecaster) -> Any:
        """The loss config of the recipe, or the default of the model (TrajformerError: loss, first stage or data misfit)."""
        if self.loss is not None and type(self.loss) not in model.losses:
            supported = [name for name, kind in LOSSES.items() if kind in model.losses]
            reason = f"{type(self.loss).__name__} is not for {type(model).__name__}, expected {' or '.join(supported)}"
            raise TrajformerError(f"loss: {reason}")
        config = model.choose_loss(self.loss)
        if self.data.branches and not isinstance(config, SetLossConfig):
            raise TrajformerError(
                "data.branches: true, but only the set loss supports several futures of one past"
            )
        if bool(self.first_stage) != model.needs_first_stage:
            if model.needs_first_stage:
                raise TrajformerError(
                    f"first_stage: none, but {type(model).__name__} needs a checkpoint"
                )
            raise TrajformerError(f"first_stage: given, but {type(model).__name__} has none")
        return config
