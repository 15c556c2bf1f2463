"""The forecast of one scene, with the attention of its targets to agents and lanes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from trajformer.data.batch import collate
from trajformer.data.sample import Sources, sources
from trajformer.evaluation.evaluate import checked_forecast
from trajformer.evaluation.forecast_file import TrackForecast, track_forecasts_of
from trajformer.models.attended import recorded_attention
from trajformer.models.forecaster import Forecaster, Predictor
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import DataSpec, check_scenes, warn_about_maps


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
    """The forecasts of one scene, as in `track_forecasts`, and the attention they are made with.

    The attention is None if the model has no attention layers from targets to agents and lanes
    (`Forecaster.attention_layers`), or the scene has no target. The model is put into evaluation
    mode. Warns if the scene has no map and the training scenes had maps, and the reverse. Raises
    TrajformerError: the model does not fit the scene, or the forecast has NaN or infinity.
    """
    where = f"scene {scene.scene_id}"
    check_scenes(DataSpec.of(scene), predictor.trained_on, where)
    model = predictor.model.eval()
    batch = collate([scene], predictor.batch).to(predictor.device)
    observation = batch.observation
    with torch.inference_mode():
        layers = []
        if isinstance(model, Forecaster) and observation.num_targets:
            layers = list(model.attention_layers(observation))
        with recorded_attention(layers) as shares:
            forecast = checked_forecast(predictor, batch, where)
    has_map = predictor.batch.receives(scene.polyline_kind).any()
    warn_about_maps(int(has_map), 1, predictor.trained_on, where)
    forecasts = list(track_forecasts_of(forecast, observation))
    if not layers:
        return forecasts, None
    attention = SceneAttention(
        layers=tuple([layer.name for layer in layers]),
        shares=tuple([share[0].float().cpu().numpy() for share in shares]),
        sources=sources(scene, predictor.batch),
    )
    return forecasts, attention
