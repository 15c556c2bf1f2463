"""The choice of scenes to draw."""

from collections.abc import Mapping, Sequence

import numpy as np

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting.forecasts import match_forecasts, shown_errors
from trajformer.scenes.store import SceneStore

ByScene = Mapping[str, Sequence[TrackForecast]]


def choose_scenes(
    store: SceneStore,
    forecasts: ByScene,
    *,
    scene_ids: Sequence[str] = (),
    worst: int | None = None,
    random: int | None = None,
    seed: int = 0,
) -> list[int]:
    """Indices of scenes to draw, each once: `scene_ids`, then `worst` scenes, then `random` scenes.

    The worst scenes have the largest minFDE of the main forecast, which the title shows, or of any
    agent if there is no main forecast; the worst is the first. Scenes without a recorded future are
    never among them. The random scenes are other scenes with forecasts, or any scenes if there are
    no forecasts; equal seeds give equal choices. Without `scene_ids`, `worst` and `random`, the
    result is all scenes with forecasts, or all scenes if there are no forecasts. Forecasts for
    scenes that are not in the store are ignored.

    Raises StoreError: a requested scene is missing. TrajformerError: a forecast does not fit its
    scene.
    """
    chosen = store.find(scene_ids)
    ids = store.scene_ids()
    candidates = list(range(len(ids)))
    if forecasts:
        candidates = [index for index in candidates if forecasts.get(ids[index])]
    if not scene_ids and worst is None and random is None:
        return candidates
    if worst is not None and forecasts:
        chosen += _worst_scenes(store, forecasts, candidates)[:worst]
    if random is not None:
        others = sorted(set(candidates) - set(chosen))
        order = np.random.default_rng(seed).permutation(len(others))
        chosen += [others[i] for i in order[:random].tolist()]
    return list(dict.fromkeys(chosen))


def _worst_scenes(store: SceneStore, forecasts: ByScene, candidates: Sequence[int]) -> list[int]:
    """The candidates with a recorded future, sorted by the largest minFDE shown, worst first."""
    largest: dict[int, float] = {}
    for index in candidates:
        scene = store[index]
        errors = shown_errors(scene, match_forecasts(scene, forecasts[scene.scene_id]))
        if errors:
            largest[index] = max(fde for _, fde in errors)
    return sorted(largest, key=lambda index: (-largest[index], index))
