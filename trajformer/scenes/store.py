"""SceneStore: the scenes of one split of a store, by index, from its memory-mapped shards (`shard.py`)."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trajformer.errors import StoreError
from trajformer.scenes.manifest import count_scenes, store_splits
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import Shard, read_scene_ids

__all__ = ["SceneStore", "store_splits"]

MAX_OPEN_SHARDS = 8192  # shards open at a time: each takes 70 kB, and Linux allows a process 65,530 mapped files


class SceneStore:
    """All scenes of one split of a store, by index: `store[i]` is a `Scene`, `len(store)` their number.

    Shards are opened when first needed, so that a store of a million scenes opens at once; the object pickles
    as the names of its files, so that data-loader workers map them themselves. A store that is being prepared can be
    read, too: it is what there was when it was opened.

    Raises:
        StoreError: no such store or split, a shard cut short, or another schema version.
    """

    def __init__(self, root: Path | str, split: str) -> None:
        self.root, self.split = Path(root), split
        if not self.root.is_dir():
            raise StoreError(f"{self.root}: no such store; make one with `trajformer preprocess`")
        counts = count_scenes(self.root, split)
        if not counts:
            splits = ", ".join(store_splits(self.root)) or "none"
            raise StoreError(f"{self.root}: no split '{split}' (splits here: {splits})")
        self._names = list(counts)
        self._ends = np.cumsum(list(counts.values())).tolist()
        self._shards: dict[int, Shard] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shards": {}}

    def __len__(self) -> int:
        return self._ends[-1]

    def _path(self, number: int) -> Path:
        return self.root / self.split / self._names[number]

    def _start(self, number: int) -> int:
        """Index of a shard's first scene."""
        return self._ends[number - 1] if number else 0

    def _shard(self, number: int) -> Shard:
        shard = self._shards.get(number)
        if shard is None:
            shard = self._opened(number)
            if len(self._shards) >= MAX_OPEN_SHARDS:
                self._shards.pop(next(iter(self._shards)))
            self._shards[number] = shard
        return shard

    def _opened(self, number: int) -> Shard:
        shard = Shard(self._path(number))
        self._check(number, len(shard))
        return shard

    def _check(self, number: int, scenes: int) -> None:
        expected = self._ends[number] - self._start(number)
        if scenes != expected:
            path = self._path(number)
            raise StoreError(f"{path}: {scenes} scenes, not the {expected} of when the store was opened, or of its manifest")

    def __getitem__(self, index: int) -> Scene:
        if not -len(self) <= index < len(self):
            raise IndexError(f"scene {index} of {len(self)}")
        index %= len(self)
        number = bisect.bisect_right(self._ends, index)
        return self._shard(number).scene(index - self._start(number))

    def __iter__(self) -> Iterator[Scene]:
        return (self[index] for index in range(len(self)))

    def _ids(self, number: int) -> list[str]:
        shard = self._shards.get(number)
        ids = read_scene_ids(self._path(number)) if shard is None else shard.scene_ids()
        self._check(number, len(ids))
        return ids

    def scene_ids(self) -> list[str]:
        """Ids of all scenes, in the order of their index."""
        return [scene_id for number in range(len(self._names)) for scene_id in self._ids(number)]

    def sizes(self) -> np.ndarray:
        """Agents, polylines and points of every scene, int64 [scenes, 3], without reading any."""
        return np.concatenate([shard.sizes() for shard in self.shards()])

    def shards(self) -> Iterator[Shard]:
        """All shards, one after the other; those that are not in use are not kept open."""
        for number in range(len(self._names)):
            yield self._shards.get(number) or self._opened(number)

    def find(self, wanted: Sequence[str]) -> list[int]:
        """Indices of the scenes with these ids.

        Raises:
            StoreError: an id is not in this split.
        """
        place = self.indices(wanted)
        for scene_id in wanted:
            if scene_id not in place:
                raise StoreError(f"{self.root}: no scene {scene_id} in split '{self.split}'")
        return [place[scene_id] for scene_id in wanted]

    def indices(self, wanted: Iterable[str]) -> dict[str, int]:
        """Indices by id of those of the scenes that are in this split; of an id that occurs twice, the first."""
        missing, place = set(wanted), {}
        for number in range(len(self._names)):
            if not missing:
                break
            ids = self._ids(number)
            if not missing.isdisjoint(ids):
                for index, scene_id in enumerate(ids, self._start(number)):
                    if scene_id in missing:
                        place[scene_id] = index
                        missing.remove(scene_id)
        return place
