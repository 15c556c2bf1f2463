"""Pictures of scenes."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, Unpack

from trajformer.cli.files import bars, make_folder
from trajformer.errors import TrajformerError


class Choice(TypedDict):
    """Which scenes: the named ones, so many of the worst, so many at random; 8 at random where nothing is said."""

    scene: list[str]
    worst: int | None
    random: int | None
    seed: int


def plot(
    store: Path, split: str | None, forecasts: Path | None, out: Path, *, density: bool = False, **choice: Unpack[Choice]
) -> list[Path]:
    """Draw scenes, with forecasts where there are any, and print the paths of the pictures."""
    from trajformer.evaluation.forecast_file import read_forecasts
    from trajformer.plotting.scene import save_scene_plots
    from trajformer.plotting.select import choose_scenes
    from trajformer.scenes.store import SceneStore

    scene, worst, random = choice["scene"], choice["worst"], choice["random"]
    if worst is not None and forecasts is None:
        raise TrajformerError("--worst needs --forecasts to tell what is bad")
    if density and forecasts is None:
        raise TrajformerError("--density needs --forecasts")
    modes = read_forecasts(forecasts) if forecasts is not None else {}
    scenes = SceneStore(store, split or _split_of(store, scene or list(modes)))
    if not (scene or worst is not None or random is not None):
        random = 8
    chosen = choose_scenes(scenes, modes, scene_ids=scene, worst=worst, random=random, seed=choice["seed"])
    if not chosen:
        raise TrajformerError(f"{store}: split '{scenes.split}' has no scene to draw (--worst needs recorded futures)")
    make_folder(out)
    paths = save_scene_plots(scenes, chosen, modes, out, progress=bars(), density=density)
    for path in paths:
        print(path)
    return paths


def _split_of(store: Path, wanted: list[str]) -> str:
    """The split that has most of the wanted scenes (ids recur between splits); without any, val or the only one."""
    from trajformer.scenes.store import SceneStore, store_splits

    splits = store_splits(store)
    found = {split: len(set(wanted) & set(SceneStore(store, split).scene_ids())) for split in splits} if wanted else {}
    if any(found.values()):
        return max(splits, key=lambda split: (found[split], split == "val"))
    if wanted and splits:
        raise TrajformerError(f"{store}: has no scene {wanted[0]} in any split ({', '.join(splits)})")
    return splits[0] if len(splits) == 1 else "val"
