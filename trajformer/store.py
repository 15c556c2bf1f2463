"""SceneStore: the scenes of one split of a store, by index, from its memory-mapped shards (`shard.py`)."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trajformer.errors import StoreError
from trajformer.scene import Scene
from trajformer.shard import Shard, read_shard_info


class SceneStore:
    """All scenes of one split of a store, by index: `store[i]` is a `Scene`, `len(store)` their number.

    Shards are opened when first needed, so that a store of a million scenes opens at once; the object pickles
    as its path, so that data-loader workers map the files themselves.

    Raises:
        StoreError: no such store or split, a shard cut short, or another schema version.
    """

    def __init__(self, root: Path | str, split: str) -> None:
        self.root, self.split = Path(root), split
        if not self.root.is_dir():
            raise StoreError(f"{self.root}: no such store; make one with `trajformer preprocess`")
        paths = sorted((self.root / split).glob("*.arrow"))
        if not paths:
            splits = ", ".join(store_splits(self.root)) or "none"
            raise StoreError(f"{self.root}: no split '{split}' (splits here: {splits})")
        self._open_at(paths)

    def _open_at(self, paths: list[Path]) -> None:
        self.paths = paths
        counts = [read_shard_info(path)[1] for path in paths]
        self._ends = np.cumsum(counts).tolist()
        self._shards: dict[int, Shard] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shards": {}}

    def __len__(self) -> int:
        return self._ends[-1]

    def _shard(self, index: int) -> Shard:
        if index not in self._shards:
            self._shards[index] = Shard(self.paths[index])
        return self._shards[index]

    def __getitem__(self, index: int) -> Scene:
        if not -len(self) <= index < len(self):
            raise IndexError(f"scene {index} of {len(self)}")
        index %= len(self)
        number = bisect.bisect_right(self._ends, index)
        start = self._ends[number - 1] if number else 0
        return self._shard(number).scene(index - start)

    def __iter__(self) -> Iterator[Scene]:
        return (self[index] for index in range(len(self)))

    def scene_ids(self) -> list[str]:
        """Ids of all scenes, in the order of their index."""
        return [scene_id for number in range(len(self.paths)) for scene_id in self._shard(number).scene_ids()]

    def sizes(self) -> np.ndarray:
        """Agents, polylines and points of every scene, int64 [scenes, 3], without reading any."""
        return np.concatenate([self._shard(number).sizes() for number in range(len(self.paths))])

    def find(self, wanted: Sequence[str]) -> list[int]:
        """Indices of the scenes with these ids.

        Raises:
            StoreError: an id is not in this split.
        """
        place = {scene_id: index for index, scene_id in enumerate(self.scene_ids())}
        missing = [scene_id for scene_id in wanted if scene_id not in place]
        if missing:
            raise StoreError(f"{self.root}: no scene {missing[0]} in split '{self.split}'")
        return [place[scene_id] for scene_id in wanted]


def store_splits(root: Path | str) -> list[str]:
    """Names of the splits that have shards."""
    return sorted({path.parent.name for path in Path(root).glob("*/*.arrow")})
