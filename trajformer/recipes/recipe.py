"""The recipe: one typed dataclass for everything that `trajformer train` reads from a YAML file and the command line."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from torch import nn

from trajformer.data.augment import AugmentConfig
from trajformer.data.sample import BatchConfig, Frame, Targets
from trajformer.errors import TrajformerError
from trajformer.losses.mixture import MixtureLossConfig
from trajformer.losses.set_loss import SetLossConfig
from trajformer.losses.worlds import WorldLossConfig
from trajformer.models import ModelConfig, build_model
from trajformer.models.agentformer.loss import CVAELossConfig, SamplerLossConfig
from trajformer.models.mmtransformer.loss import RegionLossConfig
from trajformer.models.scene_set.loss import SceneSetLossConfig
from trajformer.recipes.objective import CHOSEN, LossConfig, choose


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


@dataclass(frozen=True)
class TrainConfig:
    """A whole recipe of a forecaster. It is trained with one loss (`objective`): its model's, or the one that is given.

    Attributes:
        model: which model, with its sizes.
        data: stores, batches and loading.
        loss: weights of the set loss, that of all models but those named below.
        mixture_loss: weights of the loss of a mixture; given means that Wayformer is trained with it instead.
        region_loss: weights of mmTransformer's loss with regions.
        world_loss: weights of the loss of joint worlds.
        scene_set_loss: weights of the loss of a scene's set of trajectories.
        cvae_loss: weights of the loss that AgentFormer is trained with.
        sampler_loss: the same for its second stage.
        first_stage: checkpoint of the AgentFormer that a second stage is trained for.
        augment: what is varied in training.
        optim: optimiser and schedule.
        trainer: length, device and precision.
        seed: of weights, order and augmentation; the same seed gives the same run.
    """

    model: ModelConfig
    data: DataConfig = field(default_factory=DataConfig)
    loss: SetLossConfig = field(default_factory=SetLossConfig)
    mixture_loss: MixtureLossConfig | None = None
    region_loss: RegionLossConfig | None = None
    world_loss: WorldLossConfig | None = None
    scene_set_loss: SceneSetLossConfig | None = None
    cvae_loss: CVAELossConfig = field(default_factory=CVAELossConfig)
    sampler_loss: SamplerLossConfig = field(default_factory=SamplerLossConfig)
    first_stage: str = ""
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    seed: int = 0
    task: ClassVar[str] = "forecasting"

    @property
    def partial(self) -> bool:
        """A step need not use all parameters: of AgentFormer's two score terms, agents who are alone have one only."""
        return self.model.agentformer is not None

    def build_model(self) -> nn.Module:
        """The model, untrained.

        Raises:
            TrajformerError: none or several models are given.
            ValueError: its sizes do not go together.
        """
        return build_model(self.model)

    def objective(self) -> LossConfig:
        """The loss to train with.

        Raises:
            TrajformerError: a loss is given that is not for this model, or several are.
        """
        names = ("loss", "cvae_loss", "sampler_loss", *CHOSEN)
        return choose(self.model, {name: getattr(self, name) for name in names})

    def check(self) -> None:
        """Refuse batches and losses that cannot be.

        Raises:
            TrajformerError: names the field.
        """
        if self.data.batch.polyline_points < 2:
            raise TrajformerError("data.batch.polyline_points: 1, expected at least 2")
        if self.data.batch.frame is Frame.AGENT:
            raise TrajformerError("data.batch.frame: AGENT is a forecast's frame; a batch has SCENE or FOCAL")
        if bool(self.first_stage) != (self.model.agentformer_sampler is not None):
            raise TrajformerError("first_stage: give a checkpoint for model.agentformer_sampler, and for no other model")
        if not isinstance(self.objective(), SetLossConfig) and self.data.branches:
            raise TrajformerError("data.branches: only the set loss knows several futures")
