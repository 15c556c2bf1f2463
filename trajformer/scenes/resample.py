"""Scenes with another clock, a shorter history or a shorter horizon: interpolation between recorded steps.

Step 0, the last observed one, is kept exactly. Positions and velocities are interpolated linearly, headings along the shorter
arc; traffic lights keep their state until the next recorded step. A step between two recorded steps is valid if both are, so
that gaps remain gaps. Observed steps are computed from observed steps only.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trajformer.errors import SceneError, StoreError
from trajformer.scenes.files import atomically, write_atomically
from trajformer.scenes.geometry import wrap
from trajformer.scenes.manifest import (
    RESAMPLED,
    read_finished,
    shard_sizes,
    store_splits,
    write_manifest,
)
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import PackedScene, Shard, pack, write_shard
from trajformer.scenes.spec import MAX_STEPS, ROUNDING, longest


def resample_scene(
    scene: Scene,
    period_s: float | None = None,
    num_history: int | None = None,
    num_future: int | None = None,
) -> Scene:
    """The scene with another clock or length; the map is unchanged.

    By default, the period is unchanged, and `num_history` and `num_future` cover the whole recording. Raises SceneError: the
    recorded history or horizon is too short, or the result is not a valid scene.
    """
    period_s = period_s or scene.period_s
    ratio, last = period_s / scene.period_s, scene.num_history - 1
    limits = longest(ratio, scene.num_history, scene.num_future)
    history, future = num_history or limits[0], num_future or limits[1]
    for name, number, limit in (
        ("num_history", history, limits[0]),
        ("num_future", future, limits[1]),
    ):
        if not 0 < number <= min(limit, MAX_STEPS):
            reason = f"{number} steps of {period_s} s, expected 1 to {min(limit, MAX_STEPS)} (the recording has no more)"
            raise SceneError(f"scene {scene.scene_id}: {name}: {reason}")
    known = future if scene.num_steps > scene.num_history else 0
    step = last + ratio * np.arange(1 - history, known + 1)  # float64 [T], in recorded steps
    whole = np.rint(step)
    step = np.where(
        np.abs(step - whole) <= ROUNDING * max(ratio, 1.0), whole, step
    )  # as `longest` does
    low = np.floor(step).astype(np.intp)
    share = step - low
    high = low + (share > 0)
    valid = scene.valid[:, low] & scene.valid[:, high]

    def linear(values: np.ndarray) -> np.ndarray:
        """Values float32 [A, T, 2] at `step`, zero where not valid."""
        values = values.astype(np.float64)
        mixed = values[:, low] + (values[:, high] - values[:, low]) * share[:, None]
        return np.where(valid[..., None], mixed, 0.0).astype(np.float32)

    heading = scene.heading.astype(np.float64)
    turned = heading[:, low] + wrap(heading[:, high] - heading[:, low]) * share
    turned = np.where(share > 0, wrap(turned), turned)  # wrapping rounds
    return replace(
        scene,
        period_s=period_s,
        num_history=history,
        num_future=future,
        position=linear(scene.position),
        velocity=linear(scene.velocity),
        heading=np.where(valid, turned, 0.0).astype(np.float32),
        valid=valid,
        light_state=scene.light_state[:, low] if len(scene.light_state) else scene.light_state,
    ).validate()


def resample_store(
    store: Path, out: Path, progress: Callable[[Iterator[Path], int], Iterator[Path]], **clock: Any
) -> dict[str, Any]:
    """Write a store with all scenes of another store, resampled; it appears when it is complete. Returns its manifest.

    `out` is a folder that does not exist or is empty, and `clock` are the arguments of `resample_scene`. Scenes that cannot be
    resampled are listed as skipped. `progress` wraps an iterator of a known length, for a progress bar. Raises StoreError: the
    store is not finished or damaged, `out` is in use, or no scene of a split can be resampled.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StoreError(f"{out}: exists already: choose a new folder")
    if out.resolve().is_relative_to(store.resolve()):
        raise StoreError(f"{out}: the new store must lie outside of {store}")
    read_finished(store)
    paths = [
        store / split / name for split in store_splits(store) for name in shard_sizes(store / split)
    ]
    with atomically(out) as temporary:
        for path in progress(iter(paths), len(paths)):
            shard, scenes, skipped = Shard(path), list[PackedScene](), list[tuple[str, str]]()
            for row in range(len(shard)):
                scene = shard.scene(row)
                try:
                    scenes.append(pack(resample_scene(scene, **clock)))
                except SceneError as error:
                    skipped.append((scene.scene_id, str(error)))
            info = replace(shard.info, inputs="", skipped=(*shard.info.skipped, *skipped))
            write_shard(temporary / path.parent.name / path.name, scenes, info)
        write_atomically(
            temporary / RESAMPLED, json.dumps({"store": str(store)} | clock, indent=1) + "\n"
        )
        manifest = write_manifest(temporary)
        for split, entry in manifest["splits"].items():
            if not entry["scenes"] and entry["skipped"]:
                raise StoreError(f"{store}: split '{split}': {entry['skipped'][-1]['reason']}")
    return manifest
