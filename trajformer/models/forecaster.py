"""The base class of all models, and a model together with its batch settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import torch
from torch import nn

from trajformer.config import Config
from trajformer.core.blocks import BlockConfig
from trajformer.data.batch import Observation
from trajformer.data.loading import TrainingScenes
from trajformer.data.sample import BatchConfig
from trajformer.losses.set_loss import SetLossConfig
from trajformer.models.attended import TargetAttention
from trajformer.scenes.spec import DataSpec


class Forecaster(nn.Module):
    """A module `Observation -> Forecast`, in training and in evaluation.

    Attributes:
        losses: config classes of the losses that the model supports, the default first.
        joint: mode k of all targets is one joint future of the scene, with one probability.
        equivariant: predictions are SE(2)-equivariant: a rotated and shifted scene has rotated and
            shifted predictions. If False, predictions are translation-equivariant only.
        fixed_history: the forecast depends on the number of observed steps. If False, unseen first
            steps have the effect of a shorter history.
        find_unused_parameters: a training step may leave parameters without a gradient;
            distributed training must know this.
        compiled_methods: methods that the loss calls instead of the model; they are compiled too,
            and the contract tests check that their results do not depend on the recorded future.
        waits_for_device: the host waits for the device in the forward pass or in the loss, because
            it copies values (an assignment in the loss) or needs the size of a result (a boolean
            index).
        muon_exclude: endings of the names of matrices that read features or give results; Muon
            does not optimise them.
        needs_first_stage: `prepare` needs a trained first-stage model (`first_stage` of a recipe).
        keeps_map: the encoding of the map can be used for several forecasts: `encode_map`,
            `encode_agents` and `forecast` are the steps of the forward pass.
        trained_on: clock, horizon, unit, map and origin of the training scenes, from a checkpoint.
        batch_config: how scenes become its input, from its recipe or checkpoint.
    """

    losses: tuple[type[Any], ...] = (SetLossConfig,)
    joint: bool = False
    equivariant: bool = True
    fixed_history: bool = False
    find_unused_parameters: bool = False
    compiled_methods: tuple[str, ...] = ()
    waits_for_device: bool = False
    muon_exclude: tuple[str, ...] = ()
    needs_first_stage: bool = False
    keeps_map: bool = False
    trained_on: DataSpec = DataSpec()
    batch_config: BatchConfig = BatchConfig()

    def __init_subclass__(cls, config: type[ModelConfig] | None = None) -> None:
        if config is not None:
            config.model = cls

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile `forward` and the methods `compiled_methods`."""
        super().compile(*args, **kwargs)
        for name in self.compiled_methods:
            # An attribute of the instance precedes the method; `nn.Module` must not register it.
            self.__dict__[name] = torch.compile(getattr(self, name), *args, **kwargs)

    def prepare(
        self, scenes: TrainingScenes, seed: int, first_stage: nn.Module | None = None
    ) -> None:
        """Fit constants of the model to the training data, once before training.

        The default does nothing. Store the results in parameters or buffers, so that checkpoints
        contain them. The same arguments must give the same results, because resumed runs and all
        processes of a distributed run call this method.

        Args:
            scenes: the training scenes.
            seed: of random numbers.
            first_stage: the model of the recipe's `first_stage`, or None.

        Raises TrajformerError: the data or the first stage cannot be used.
        """

    def attention_layers(self, observation: Observation) -> Sequence[TargetAttention]:
        """The layers in which targets attend to agents and pieces of polylines, for pictures.

        The default is none. The last one is shown first.
        """
        return ()

    def choose_loss(self, config: Any | None) -> Any:
        """The loss config of a training: `config`, or the default if it is None.

        Raises TrajformerError: the values of the config do not fit the model.
        """
        if config is None:
            return self.losses[0]()
        return config


@dataclass(frozen=True)
class ModelConfig(Config):
    """Base class of the configs of models.

    `class Tiny(Forecaster, config=TinyConfig)` names the model that a config builds.
    """

    model: ClassVar[type[Any]]

    @classmethod
    def example(cls, num_future: int) -> Self:
        """A small config for tests, by default with the default of each field but `num_future`."""
        if any(field.name == "num_future" for field in fields(cls)):
            return cls(num_future=num_future)  # type: ignore[call-arg]
        return cls()

    def build(self) -> Any:
        """The model, with random weights."""
        return self.model(self)


@dataclass(frozen=True)
class SceneModelConfig(
    ModelConfig,
    positive=(
        "num_future",
        "modes",
        "max_history",
        "steps_per_token",
        "max_polylines",
        "map_width",
    ),
):
    """Fields that the configs of most models share.

    Attributes:
        num_future: F, steps to predict.
        modes: K, number of modes in evaluation.
        max_history: longest history, which determines the number of learned positions.
        steps_per_token: consecutive steps or displacements in a token of an agent (papers: 1).
        map_radius_m, max_polylines: maximum distance and number of the polylines around a target.
        map_width: width inside the polyline subgraph.
    """

    num_future: int
    modes: int = 6
    max_history: int = 50
    steps_per_token: int = 1
    map_radius_m: float = 65.0
    max_polylines: int = 80
    map_width: int = 64


@dataclass(frozen=True)
class TargetModelConfig(SceneModelConfig, positive=("max_neighbors",)):
    """Shared fields of models that encode the surroundings of each target with one kind of block.

    Attributes:
        consensus_m: in evaluation, modes are scored by `modes.consensus` with this temperature,
            which should equal the temperature of the confidence loss; 0 keeps the scores of the
            network.
        block: shape of all transformer blocks.
        social_radius_m, max_neighbors: maximum distance and number of the agents around a target,
            including itself.
    """

    consensus_m: float = 1.0
    block: BlockConfig = field(default_factory=BlockConfig)
    social_radius_m: float = 56.0
    max_neighbors: int = 24


_OF_MODEL = BatchConfig()  # this object, not its values


@dataclass(frozen=True, eq=False)
class Predictor:
    """A model that is ready to run.

    Attributes:
        model: in evaluation mode, on `device`.
        batch: settings that turn scenes into its input, by default those of a `Forecaster`.
        device: of the model.
        joint: predict joint futures of the whole scene.
    """

    model: nn.Module
    batch: BatchConfig = _OF_MODEL
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    joint: bool = False

    def __post_init__(self) -> None:
        if self.batch is _OF_MODEL and isinstance(self.model, Forecaster):
            object.__setattr__(self, "batch", self.model.batch_config)

    @property
    def trained_on(self) -> DataSpec:
        """Properties of the training scenes, all unknown for a model without training."""
        return getattr(self.model, "trained_on", DataSpec())
