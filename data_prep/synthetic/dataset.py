"""Synthetic data sets on disk, with the splits train, val and test."""

import os
import signal
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from tqdm import tqdm

from data_prep.synthetic.argoverse2_files import is_written, table_path, write_scene
from data_prep.synthetic.branches import simulate_branches
from data_prep.synthetic.scene import scene_identity, simulate_scene
from data_prep.synthetic.traffic import NUM_HISTORY, NUM_STEPS
from trajformer.errors import TrajformerError

SPLITS = ("train", "val", "test")


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
    """Simulate scenes and write them as ``out/{train,val,test}/<uuid>/``.

    The files have the Argoverse 2 layout. Returns the number of pasts by split.

    Scene number i depends on ``(seed, i)`` only: the same arguments give the same bytes for any
    number of workers. After an interruption, calling it again writes the missing scenes and keeps
    the finished ones. Test scenes hold the 50 observed steps only (5 s at 10 Hz), the others all
    110. Of three scenes or more each split gets at least one. With ``branches``, two or three
    futures of each past are separate scenes with ids that differ after the last dot (in "test",
    which has no futures, only one).

    Raises ValueError: negative numbers, fractions outside [0, 1), or no training scene is left.
    TrajformerError: a worker was killed.
    """
    splits = assign_splits(num_scenes, val_fraction, test_fraction)
    if seed < 0 or workers < 1:
        values = f"seed={seed}, workers={workers}"
        raise ValueError(f"seed must be at least 0 and workers at least 1, got {values}")
    for split in SPLITS:
        (Path(out) / split).mkdir(parents=True, exist_ok=True)
    write = partial(_simulate_and_write, Path(out), seed, branches)
    # "spawn": forking a process that has threads (pyarrow, torch) may deadlock. A terminal sends
    # Ctrl-C to all processes; only this one handles it. The pool starts no process until it is
    # used: with one worker, this process does the work.
    pool = ProcessPoolExecutor(
        max_workers=min(workers, 4 * (os.cpu_count() or 1)),  # more only need memory
        mp_context=get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        run = map if workers == 1 else pool.map
        written = run(write, range(num_scenes), splits)
        for _ in tqdm(written, "synthesize", num_scenes, unit="scene", disable=not progress):
            pass
    except BrokenProcessPool as error:
        problem = "a worker ended unexpectedly, killed for memory for example"
        raise TrajformerError(f"{problem}; run the same command again") from error
    finally:
        # After an interruption, a process finishes the scenes it has received.
        pool.shutdown(cancel_futures=True)
    return {split: splits.count(split) for split in SPLITS}


def assign_splits(num_scenes: int, val_fraction: float, test_fraction: float) -> list[str]:
    """Return the split of each scene: first train, then val, then test.

    Arguments and ValueError as in ``synthesize``.
    """
    if num_scenes < 1:
        raise ValueError(f"num_scenes must be at least 1, got {num_scenes}")
    in_range = 0.0 <= val_fraction < 1.0 and 0.0 <= test_fraction < 1.0
    if not in_range or val_fraction + test_fraction >= 1.0:
        values = f"{val_fraction} and {test_fraction}"
        raise ValueError(f"fractions must be in [0, 1) and sum to less than 1, got {values}")
    minimum = 1 if num_scenes >= 3 else 0
    val = max(minimum, round(num_scenes * val_fraction))
    test = max(minimum, round(num_scenes * test_fraction))
    while val + test >= num_scenes and val + test > 0:  # rounding must leave a training scene
        if val >= test:
            val -= 1
        else:
            test -= 1
    train = num_scenes - val - test
    return ["train"] * train + ["val"] * val + ["test"] * test


def _simulate_and_write(out: Path, seed: int, branches: bool, number: int, split: str) -> None:
    """Write scene ``number``, or all futures of past ``number``, unless it is written."""
    sequence = np.random.SeedSequence([seed, number])
    folder = out / split
    scene_id = scene_identity(sequence)
    if branches:
        scene_id = f"{scene_id}.0"
    if is_written(table_path(folder, scene_id)):
        return
    scenes = simulate_branches(sequence) if branches else [simulate_scene(sequence)]
    num_steps = NUM_STEPS
    if split == "test":  # only the past, which is the same in all branches
        scenes = scenes[:1]
        num_steps = NUM_HISTORY
    for scene in reversed(scenes):  # scene 0 is the last, so that all exist if it does
        write_scene(scene, table_path(folder, scene.scene_id), num_steps)
