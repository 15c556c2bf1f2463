"""Hold out scenes of a store by place.

    python tools/research/cut_by_place.py stores/av1 stores/dev
    python tools/research/cut_by_place.py stores/av1 stores/more --split val_official --sixths 3

Windows of a data set overlap, so a part that is cut by scene id contains recorded seconds of the
training part. Here all scenes that have their origin in one square of the city go to one part:
half of the squares to `val`, chosen by a checksum of their names, the others to `train`. Squares
differ in their number of scenes: on the sample of Argoverse 1, `val` has 1,284 and `train` 6,106.
Choices are made on this `val`; 92 % of it is from one of two cities, so both are counted the same
(`trajformer evaluate --by city`). Scenes state their origin: their split is `train.train` or
`train.val`. The second command holds out 1,155 of the 6,037 scenes of `val_official`.
"""

import argparse
import sys
import zlib
from collections.abc import Sequence
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


def held_out(scene: Scene, side_m: float, sixths: Sequence[int]) -> bool:
    """Whether the square of a scene is held out."""
    x, y = np.floor(scene.origin / side_m).astype(int)
    checksum = zlib.crc32(f"{scene.city}{x},{y}".encode())
    return checksum % 6 in sixths


def cut(
    store: Path,
    out: Path,
    side_m: float,
    split: str = "train",
    sixths: Sequence[int] = (0, 2, 3),
) -> dict[str, int]:
    """Write both parts of a split as `train` and `val`; returns their numbers of scenes.

    Raises TrajformerError: `out` is not empty, or all scenes are in one part.
    """
    parts: dict[str, list[Scene]] = {"train": [], "val": []}
    for scene in SceneStore(store, split):
        part = "val" if held_out(scene, side_m, sixths) else "train"
        parts[part].append(replace(scene, split=f"{scene.split}.{part}"))
    if not all(parts.values()):
        raise TrajformerError(f"{store}: all scenes are in one part; use a smaller --side-m")
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise TrajformerError(f"{out}: is not empty; name a new folder")
    with lock_folder(out):
        for part, scenes in parts.items():
            (out / part).mkdir()
            for index, start in enumerate(range(0, len(scenes), SHARD_SCENES)):
                shard = scenes[start : start + SHARD_SCENES]
                info = ShardInfo(shard[0].source, part)
                write_shard(shard_path(out, part, index), shard, info)
        write_manifest(out)
    return {part: len(scenes) for part, scenes in parts.items()}


def run(args: argparse.Namespace) -> None:
    """Cut and print the numbers of scenes."""
    counts = cut(args.store, args.out, args.side_m, args.split, args.sixths)
    print(f"{args.out}: train {counts['train']:,} scenes, val {counts['val']:,} scenes")


def main() -> int:
    """Run the command line; returns 1 after a failure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", type=Path, help="made by `trajformer preprocess`")
    parser.add_argument("out", type=Path, help="new store")
    parser.add_argument("--side-m", type=float, default=400.0, help="side of a square in metres")
    parser.add_argument("--split", default="train", help="split that is cut")
    parser.add_argument(
        "--sixths",
        type=int,
        nargs="+",
        choices=range(6),
        default=[0, 2, 3],
        help="which sixths of the squares are held out",
    )
    args = parser.parse_args()
    return exit_status("cut_by_place", lambda: run(args), "")


if __name__ == "__main__":
    sys.exit(main())
