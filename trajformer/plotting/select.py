"""Which scenes to draw: named ones, the worst ones, random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting.errors import track_error
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
    """Indices of scenes to draw: the named ones, then the worst, then random others; no scene twice.

    Args:
        store: the split to choose from.
        forecasts: by scene id; scenes that are not in the store are passed over.
        scene_ids: these, in this order.
        worst: this many with the largest minFDE of any of their forecast tracks, worst first; scenes whose future
            is not known do not take part.
        random: this many more, drawn without replacement from scenes with forecasts (from all if there are none).
        seed: of the random choice; equal seeds give equal choices.

    Returns:
        Indices into `store`; all scenes with forecasts (all scenes, if there are none) when nothing was asked for.

    Raises:
        StoreError: a named scene is not in the store.
        TrajformerError: a forecast does not fit its scene.
    """
    chosen = store.find(scene_ids) if scene_ids else []
    ids = store.scene_ids()
    candidates = [index for index, scene_id in enumerate(ids) if forecasts.get(scene_id)]
    candidates = candidates if forecasts else list(range(len(ids)))
    if not scene_ids and worst is None and random is None:
        return candidates
    if worst is not None:
        errors = {i: e for i in candidates if (e := _scene_error(store, i, forecasts.get(ids[i], ()))) is not None}
        chosen += sorted(errors, key=lambda index: (-errors[index], index))[:worst]
    if random is not None:
        rest = sorted(set(candidates) - set(chosen))
        drawn = np.random.default_rng(seed).permutation(len(rest))[:random]
        chosen += [rest[place] for place in drawn.tolist()]
    return list(dict.fromkeys(chosen))


def _scene_error(store: SceneStore, index: int, forecasts: Sequence[TrackForecast]) -> float | None:
    """The largest minFDE among the scene's forecasts, metres; None where none can be scored."""
    if not forecasts:
        return None
    scene = store[index]
    errors = [error for forecast in forecasts if (error := track_error(scene, forecast)) is not None]
    return max((error.min_fde_m for error in errors), default=None)
