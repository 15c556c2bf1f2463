"""Selection of scenes to draw: by id, by error, at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting.matching import match_forecasts, track_error
from trajformer.scenes.store import SceneStore


def choose_scenes(
    store: SceneStore,
    forecasts: Mapping[str, Sequence[TrackForecast]],
    *,
    scene_ids: Sequence[str] = (),
    worst: int | None = None,
    random: int | None = None,
    seed: int = 0,
) -> list[int]:
    """Indices of scenes to draw: scenes by id, then the worst scenes, then random scenes, each scene once.

    Args:
        store: the split.
        forecasts: by scene id; scenes that are not in the store are ignored.
        scene_ids: these scenes, in this order.
        worst: this number of scenes with the largest minFDE of any agent, worst first; scenes without a recorded
            future are left out.
        random: this number of other scenes with forecasts (of all scenes if there are no forecasts).
        seed: of the random choice; equal seeds give equal choices.

    Returns:
        Indices into `store`; without any selection all scenes with forecasts (all scenes if there are no forecasts).

    Raises:
        StoreError: a requested scene is not in the store.
        TrajformerError: a forecast does not fit its scene.
    """
    chosen = store.find(scene_ids) if scene_ids else []
    ids = store.scene_ids()
    candidates = [index for index, scene_id in enumerate(ids) if forecasts.get(scene_id) or not forecasts]
    if not scene_ids and worst is None and random is None:
        return candidates
    if worst is not None:
        errors = {index: _scene_error(store, index, forecasts.get(ids[index], ())) for index in candidates}
        known = {index: error for index, error in errors.items() if error is not None}
        chosen += sorted(known, key=lambda index: (-known[index], index))[:worst]
    if random is not None:
        rest = sorted(set(candidates) - set(chosen))
        chosen += [rest[i] for i in np.random.default_rng(seed).permutation(len(rest))[:random].tolist()]
    return list(dict.fromkeys(chosen))


def _scene_error(store: SceneStore, index: int, forecasts: Sequence[TrackForecast]) -> float | None:
    """The largest minFDE of the forecasts of a scene, metres; None without a recorded future."""
    if not forecasts:
        return None
    scene = store[index]
    errors = [track_error(scene, forecast) for forecast in match_forecasts(scene, forecasts)]
    return max((error[1] for error in errors if error is not None), default=None)
