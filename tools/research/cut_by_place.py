"""Hold out training scenes of a store by place.

    python tools/research/cut_by_place.py stores/av1 stores/dev

Windows of a data set overlap, so a part that is cut by scene id contains recorded seconds of the
training part. Here all scenes that have their origin in one square of the city go to one part:
half of the squares to `val`, chosen by a checksum of their names, the others to `train`. Squares
differ in their number of scenes: on the sample of Argoverse 1, `val` has 1,284 and `train` 6,106.
Choices are made on this `val`; 92 % of it is from one of two cities, so both are counted the same
(`trajformer evaluate --by city`). Scenes state their origin: their split is `train.train` or
`train.val`.
"""

import argparse
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from trajformer.cli.status import exit_status
from trajformer.errors import TrajformerError
from trajformer.scenes.files import lock_folder
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

SHARD_SCENES = 1000


def held_out(scene: Scene, side_m: float) -> bool:
    """Whether the square of a scene is held out."""
    x, y = np.floor(scene.origin / side_m).astype(int)
    checksum = zlib.crc32(f"{scene.city}{x},{y}".encode())
    return checksum % 6 in (0, 2, 3)


def cut(store: Path, out: Path, side_m: float) -> dict[str, int]:
    """Write both parts of the split `train`; returns their numbers of scenes.

    Raises TrajformerError: `out` is not empty, or all scenes are in one part.
    """
    parts: dict[str, list[Scene]] = {"train": [], "val": []}
    for scene in SceneStore(store, "train"):
        part = "val" if held_out(scene, side_m) else "train"
        parts[part].append(replace(scene, split=f"{scene.split}.{part}"))
    if not all(parts.values()):
        raise TrajformerError(f"{store}: all scenes are in one part; use a smaller --side-m")
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise TrajformerError(f"{out}: is not empty; name a new folder")
    with lock_folder(out):
        for split, scenes in parts.items():
            (out / split).mkdir()
            for index, start in enumerate(range(0, len(scenes), SHARD_SCENES)):
                shard = scenes[start : start + SHARD_SCENES]
                info = ShardInfo(shard[0].source, split)
                write_shard(shard_path(out, split, index), shard, info)
        write_manifest(out)
    return {split: len(scenes) for split, scenes in parts.items()}


def run(args: argparse.Namespace) -> None:
    """Cut and print the numbers of scenes."""
    counts = cut(args.store, args.out, args.side_m)
    print(f"{args.out}: train {counts['train']:,} scenes, val {counts['val']:,} scenes")


def main() -> int:
    """Run the command line; returns 1 after a failure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, help="made by `trajformer preprocess`")
    parser.add_argument("out", type=Path, help="new store")
    parser.add_argument("--side-m", type=float, default=400.0, help="side of a square in metres")
    args = parser.parse_args()
    return exit_status("cut_by_place", lambda: run(args), "")


if __name__ == "__main__":
    sys.exit(main())
