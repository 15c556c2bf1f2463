"""Forecasts and attention of one scene, and the parts of the scene that it is of."""

import numpy as np
import pytest
from support.models import MODEL_CONFIGS, build
from support.scenes import make_scene

from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig, sources
from trajformer.errors import TrajformerError
from trajformer.evaluation.attention import explain
from trajformer.evaluation.forecast_file import track_forecasts_of
from trajformer.models.forecaster import Predictor
from trajformer.scenes.scene import Scene

BATCH = BatchConfig(map_radius_m=30.0)


def part_ends(scene: Scene, polyline: int, part: int, count: int) -> np.ndarray:
    """First and last point [2, 2] of a part of a polyline."""
    first, last = scene.polyline_offset[polyline : polyline + 2]
    point = scene.point[first:last].astype(np.float64)
    arc = np.concatenate([[0.0], np.linalg.norm(np.diff(point, axis=0), axis=1).cumsum()])
    at = np.array([part, part + 1]) / count * arc[-1]
    return np.stack([np.interp(at, arc, point[:, axis]) for axis in (0, 1)], -1)


def test_sources_are_the_agents_and_pieces_of_the_batch() -> None:
    scene = make_scene()
    observation = collate([scene], BATCH).observation
    origin = sources(scene, BATCH)
    assert tuple(scene.agent_id[row] for row in origin.agent) == observation.agent_id[0]
    pieces = observation.polyline[0].numpy()
    assert len(origin.polyline) == len(pieces)
    assert origin.parts.max() > 1
    for piece, *numbers in zip(pieces, origin.polyline, origin.part, origin.parts, strict=True):
        np.testing.assert_allclose(piece[[0, -1]], part_ends(scene, *numbers), atol=1e-3)


def test_a_scene_has_its_forecasts_and_attention() -> None:
    scene = make_scene()
    model = build(MODEL_CONFIGS["se2former"])
    forecasts, attention = explain(Predictor(model, BATCH), scene)
    observation = collate([scene], BATCH).observation
    for one, expected in zip(
        forecasts, track_forecasts_of(model(observation), observation), strict=True
    ):
        assert one.track_id == expected.track_id
        np.testing.assert_allclose(one.position, expected.position, atol=1e-5)
    assert attention is not None
    for share in attention.shares:
        assert share.shape[0] == len(forecasts)
        assert share.shape[2] == len(attention.sources.agent) + len(attention.sources.polyline)
        np.testing.assert_allclose(share.sum(-1), 1.0, atol=1e-5)


def test_other_models_have_forecasts_only() -> None:
    predictor = Predictor(build(MODEL_CONFIGS["gatformer"]), BATCH)
    forecasts, attention = explain(predictor, make_scene())
    assert len(forecasts) == 3
    assert attention is None


def test_scenes_must_fit_the_model() -> None:
    predictor = Predictor(build(MODEL_CONFIGS["se2former"]), BATCH)
    with pytest.raises(TrajformerError, match="does not fit the model"):
        explain(predictor, make_scene(num_future=5))
