"""Scenes with another clock, a shorter history or a shorter horizon, by interpolation.

Step 0, the last observed one, is kept exactly. Positions and velocities are interpolated linearly,
headings along the shorter arc; traffic lights keep their state until the next recorded step. A step
between two recorded steps is valid if both are, so that gaps remain gaps. Observed steps are
computed from observed steps only.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trajformer.errors import SceneError, StoreError
from trajformer.scenes.files import atomically, write_atomically
from trajformer.scenes.geometry import on_grid, wrap
from trajformer.scenes.manifest import RESAMPLED, read_finished, shard_files, write_manifest
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import PackedScene, Shard, pack, write_shard
from trajformer.scenes.spec import MAX_STEPS, ROUNDING, DataSpec, max_steps


def resample_scene(
    scene: Scene,
    period_s: float | None = None,
    num_history: int | None = None,
    num_future: int | None = None,
) -> Scene:
    """The scene with another clock or length; the map is unchanged.

    By default, the period is unchanged, and `num_history` and `num_future` cover the whole
    recording. Raises SceneError: the recorded history or horizon is too short, or the result is not
    a valid scene.
    """
    period_s = period_s or scene.period_s
    ratio = period_s / scene.period_s
    max_history, max_future = max_steps(ratio, scene.num_history, scene.num_future)
    num_history = num_history or max_history
    num_future = num_future or max_future
    _check_length(scene, "num_history", num_history, max_history, period_s)
    _check_length(scene, "num_future", num_future, max_future, period_s)

    has_future = scene.num_steps > scene.num_history
    num_known = num_future if has_future else 0
    step = scene.num_history - 1 + ratio * np.arange(1 - num_history, num_known + 1)
    # A step that differs from a recorded one by a rounding error is that step, as in `max_steps`.
    nearest = np.rint(step)
    is_recorded = np.abs(step - nearest) <= ROUNDING * max(ratio, 1.0)
    step = np.where(is_recorded, nearest, step)  # float64 [T], in recorded steps
    before = np.floor(step).astype(np.intp)
    fraction = step - before
    after = before + (fraction > 0)
    valid = scene.valid[:, before] & scene.valid[:, after]

    def linear(values: np.ndarray) -> np.ndarray:
        """Values float64 [A, T, 2] at `step`, zero where not valid."""
        values = values.astype(np.float64)
        change = values[:, after] - values[:, before]
        mixed = values[:, before] + change * fraction[:, None]
        return np.where(valid[..., None], mixed, 0.0)

    position = linear(scene.position)
    position = np.where(fraction[:, None] > 0, on_grid(position), position)
    heading = scene.heading.astype(np.float64)
    turn = wrap(heading[:, after] - heading[:, before])  # along the shorter arc
    heading = heading[:, before] + turn * fraction
    heading = np.where(fraction > 0, wrap(heading), heading)  # wrapping rounds
    light_state = scene.light_state
    if len(light_state) > 0:
        light_state = light_state[:, before]
    resampled = replace(
        scene,
        period_s=period_s,
        num_history=num_history,
        num_future=num_future,
        position=position.astype(np.float32),
        velocity=linear(scene.velocity).astype(np.float32),
        heading=np.where(valid, heading, 0.0).astype(np.float32),
        valid=valid,
        light_state=light_state,
    )
    return resampled.validate()


class ResampledScenes:
    """The scenes of a split with the period of another clock, resampled when they are read.

    They have at most the history and horizon of the clock, and fewer steps if the recording is
    shorter. They have no steps that were not recorded: batches add those.
    """

    def __init__(self, scenes: Any, clock: DataSpec) -> None:
        self.scenes = scenes  # a `SceneStore`
        self.clock = clock

    @property
    def root(self) -> Path:
        """The folder of the scenes."""
        root: Path = self.scenes.root
        return root

    @property
    def split(self) -> str:
        """Name of the split."""
        split: str = self.scenes.split
        return split

    def __len__(self) -> int:
        return len(self.scenes)

    def __getitem__(self, index: int) -> Scene:
        clock = self.clock
        assert clock.period_s and clock.num_history and clock.num_future
        scene: Scene = self.scenes[index]
        ratio = clock.period_s / scene.period_s
        history, future = max_steps(ratio, scene.num_history, scene.num_future)
        history = min(history, clock.num_history)
        future = min(future, clock.num_future)
        is_same = abs(ratio - 1) <= ROUNDING
        if is_same and (history, future) == (scene.num_history, scene.num_future):
            return replace(scene, period_s=clock.period_s)
        return resample_scene(scene, clock.period_s, history, future)


def _check_length(scene: Scene, name: str, steps: int, recorded: int, period_s: float) -> None:
    """Check a requested number of steps of `period_s` (SceneError: the recording has fewer)."""
    limit = min(recorded, MAX_STEPS)
    if not 0 < steps <= limit:
        expected = f"expected 1 to {limit} (the recording has no more)"
        raise SceneError(
            f"scene {scene.scene_id}: {name}: {steps} steps of {period_s} s, {expected}"
        )


def resample_store(
    store: Path, out: Path, progress: Callable[[Iterator[Path], int], Iterator[Path]], **clock: Any
) -> dict[str, Any]:
    """Write a store with all scenes of another store, resampled. Returns its manifest.

    The store appears when it is complete. `out` is a folder that does not exist or is empty, and
    `clock` are the arguments of `resample_scene`. Scenes that cannot be resampled are listed as
    skipped. `progress` wraps an iterator of a known length, for a progress bar. Raises StoreError:
    the store is not finished or damaged, `out` is in use, or no scene of a split can be resampled.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StoreError(f"{out}: exists already: choose a new folder")
    if out.resolve().is_relative_to(store.resolve()):
        raise StoreError(f"{out}: the new store must lie outside of {store}")
    read_finished(store)
    paths = shard_files(store)
    with atomically(out) as temporary:
        for path in progress(iter(paths), len(paths)):
            _resample_shard(path, temporary / path.parent.name / path.name, clock)
        record = {"store": str(store)} | clock
        write_atomically(temporary / RESAMPLED, json.dumps(record, indent=1) + "\n")
        manifest = write_manifest(temporary)
        for split, entry in manifest["splits"].items():
            if entry["scenes"] == 0 and entry["skipped"]:
                reason = entry["skipped"][-1]["reason"]
                raise StoreError(f"{store}: split '{split}': {reason}")
    return manifest


def _resample_shard(path: Path, out: Path, clock: dict[str, Any]) -> None:
    shard = Shard(path)
    scenes: list[PackedScene] = []
    skipped = list(shard.info.skipped)
    for row in range(len(shard)):
        scene = shard.scene(row)
        try:
            scenes.append(pack(resample_scene(scene, **clock)))
        except SceneError as error:
            skipped.append((scene.scene_id, str(error)))
    write_shard(out, scenes, replace(shard.info, inputs="", skipped=tuple(skipped)))
