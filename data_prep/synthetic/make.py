"""Many scenes on disk: splits, worker processes, resuming."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data_prep.synthetic.branches import branch_id, simulate_branches
from data_prep.synthetic.scene import scene_identity, simulate_scene
from data_prep.synthetic.write import is_written, write_scene

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, slots=True)
class _Job:
    out: Path
    seed: int
    number: int
    split: str
    branches: bool


def synthesize(
    out: Path,
    num_scenes: int,
    seed: int,
    *,
    val_fraction: float = 0.2,
    test_fraction: float = 0.05,
    workers: int = 1,
    progress: bool = True,
    branches: bool = False,
) -> dict[str, int]:
    """Simulate scenes and write them as ``out/{train,val,test}/<uuid>/`` in the Argoverse 2 layout.

    Scene number i depends on ``(seed, i)`` alone, whatever the number of workers, and the same arguments give
    the same bytes. Calling again after an interruption writes what is missing and leaves the rest alone. Test
    scenes hold the 50 observed steps only (5 s at 10 Hz), the others all 110.

    Args:
        out: folder to write to, created if missing.
        num_scenes: number of scenes over all splits.
        seed: non-negative number.
        val_fraction: share of scenes in "val".
        test_fraction: share of scenes in "test"; with three scenes or more each split gets at least one.
        workers: number of processes.
        progress: whether to draw a progress bar.
        branches: whether each scene is one past with two or three futures, written as scenes of their own with ids that
            differ after the last dot (in "test", which has no futures, one of them).

    Returns:
        The number of scenes in each split, those of one past counted once.

    Raises:
        ValueError: for negative numbers, fractions outside [0, 1) or that leave nothing to train on.
        OSError: if ``out`` cannot be written.
    """
    splits = assign_splits(num_scenes, val_fraction, test_fraction)
    if seed < 0 or workers < 1:
        raise ValueError(f"seed must be at least 0 and workers at least 1, got seed={seed}, workers={workers}")
    for split in SPLITS:
        (Path(out) / split).mkdir(parents=True, exist_ok=True)
    jobs = [_Job(Path(out), seed, number, split, branches) for number, split in enumerate(splits)]
    if workers == 1:
        _exhaust(map(_make, jobs), len(jobs), progress)
    else:
        # A fresh interpreter a worker: forking a process that has threads (pyarrow, torch) may hang.
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            chunk = max(1, min(16, len(jobs) // (4 * workers)))
            _exhaust(pool.map(_make, jobs, chunksize=chunk), len(jobs), progress)
    return {split: splits.count(split) for split in SPLITS}


def assign_splits(num_scenes: int, val_fraction: float, test_fraction: float) -> list[str]:
    """Return the split of each scene: the first ones train, then val, then test.

    Args:
        num_scenes: number of scenes.
        val_fraction: share of "val".
        test_fraction: share of "test".

    Raises:
        ValueError: as ``synthesize``.
    """
    if num_scenes < 1:
        raise ValueError(f"num_scenes must be at least 1, got {num_scenes}")
    if not (0.0 <= val_fraction < 1.0 and 0.0 <= test_fraction < 1.0 and val_fraction + test_fraction < 1.0):
        raise ValueError(f"fractions must be in [0, 1) and sum to less than 1, got {val_fraction} and {test_fraction}")
    least = 1 if num_scenes >= 3 else 0
    val = max(least, round(num_scenes * val_fraction))
    test = max(least, round(num_scenes * test_fraction))
    while val + test >= num_scenes and val + test > 0:  # rounding must not eat the last training scene
        val, test = (val - 1, test) if val >= test else (val, test - 1)
    return ["train"] * (num_scenes - val - test) + ["val"] * val + ["test"] * test


def _exhaust(results: Iterable[None], total: int, progress: bool) -> None:
    for _ in tqdm(results, total=total, desc="synthesize", unit="scene", disable=not progress):
        pass


def _make(job: _Job) -> None:
    sequence = np.random.SeedSequence([job.seed, job.number])
    folder, test = job.out / job.split, job.split == "test"
    scene_id = scene_identity(sequence)
    if not job.branches:
        if not is_written(folder, scene_id):
            write_scene(simulate_scene(sequence), folder, observed_only=test)
    elif not is_written(folder, branch_id(scene_id, 0)):
        scenes = simulate_branches(sequence)
        for scene in reversed(scenes[: 1 if test else None]):  # the first one last: it says that all are there
            write_scene(scene, folder, observed_only=test)
