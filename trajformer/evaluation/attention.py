"""The forecast of one scene, with the attention of its targets to agents and lanes."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from trajformer.data.batch import Observation
from trajformer.data.sample import Sources, sources
from trajformer.evaluation.evaluate import OneScene, forecast_scene, on_clock
from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.models.attended import TargetAttention, recorded_attention
from trajformer.models.forecaster import Forecaster, Predictor
from trajformer.scenes.scene import Scene


@dataclass(frozen=True, eq=False)
class SceneAttention:
    """Attention of S targets to the A agents and M pieces of polylines that a model received.

    Attributes:
        layers: names of the layers.
        shares: for each layer float32 [S, heads, A + M], the share of each agent and piece in the
            attention of a head. The sum is 1, or 0 if a target had nothing to attend to.
        sources: the agents and parts of polylines of the scene; the first S agents are the targets.
    """

    layers: tuple[str, ...]
    shares: tuple[np.ndarray, ...]
    sources: Sources


def explain(
    predictor: Predictor, scene: Scene
) -> tuple[list[TrackForecast], SceneAttention | None]:
    """The forecasts of one scene (`forecast_scene`), and the attention they are made with.

    The attention is None if the model has no attention layers from targets to agents and lanes
    (`Forecaster.attention_layers`), or the scene has no target. Raises as `run_scenes`.
    """
    layers: list[TargetAttention] = []
    shares: list[Tensor] = []
    recording = ExitStack()

    def record(model: nn.Module, inputs: tuple[Observation]) -> None:
        """Before the forward pass: tokens are known from the observation."""
        nonlocal shares
        [observation] = inputs
        if isinstance(model, Forecaster) and observation.num_targets:
            layers.extend(model.attention_layers(observation))
            shares = recording.enter_context(recorded_attention(layers))

    hook = predictor.model.register_forward_pre_hook(record)
    try:
        with recording:
            forecasts = forecast_scene(predictor, scene)
    finally:
        hook.remove()
    if not layers:
        return forecasts, None
    received = on_clock(OneScene(scene), predictor.trained_on)[0]
    attention = SceneAttention(
        layers=tuple([layer.name for layer in layers]),
        shares=tuple([share[0].float().cpu().numpy() for share in shares]),
        sources=sources(received, predictor.batch),
    )
    return forecasts, attention
