"""SceneStore: indexed access to the scenes of one split, read from memory-mapped shards (`shard.py`)."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trajformer.errors import StoreError
from trajformer.scenes.manifest import count_scenes, shard_sizes, store_splits
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import Shard, read_scene_ids, read_shard_info

if TYPE_CHECKING:
    import pandas as pd

MAX_OPEN_SHARDS = 8192  # a shard takes 70 kB, and Linux allows 65,530 mapped files per process


class SceneStore:
    """The scenes of one split of a store: `store[i]` is a `Scene`, `len(store)` the number of scenes.

    Shards are opened on first use, so a store of a million scenes opens quickly. A pickled store contains only file names; each
    data-loader worker maps the files again. A store can be read while it is prepared; it then has the scenes that were complete
    when it was opened. Raises StoreError: the store or split does not exist, a shard is truncated, or the schema version differs.
    """

    def __init__(self, root: Path | str, split: str) -> None:
        self.root, self.split = Path(root), split
        if not self.root.is_dir():
            raise StoreError(f"{self.root}: no such store; make one with `trajformer preprocess`")
        self._bytes = shard_sizes(self.root / split)
        counts = count_scenes(self.root, split, self._bytes)
        if not counts:
            if shard_sizes(self.root):
                here = f"this folder is a split; its store is {self.root.resolve().parent}"
            elif splits := store_splits(self.root):
                here = f"splits here: {', '.join(splits)}"
            else:
                here = "not a store; `trajformer preprocess` makes one"
            raise StoreError(f"{self.root}: no split '{split}' ({here})")
        self._names = list(counts)
        self._starts: list[int] = np.cumsum(
            [0, *counts.values()]
        ).tolist()  # index of the first scene of each shard, and the end
        self._shards: dict[int, Shard] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shards": {}}

    def __len__(self) -> int:
        return self._starts[-1]

    def _path(self, number: int) -> Path:
        return self.root / self.split / self._names[number]

    def _open_shard(self, number: int) -> Shard:
        shard = Shard(self._path(number))
        self._check_unchanged(number, len(shard))
        return shard

    def _check_unchanged(self, number: int, scenes: int) -> None:
        path, expected = self._path(number), self._starts[number + 1] - self._starts[number]
        if scenes != expected:
            raise StoreError(
                f"{path}: {scenes} scenes, expected {expected}: the file has changed or differs from its manifest"
            )
        if (size := path.stat().st_size) != self._bytes[path.name]:
            raise StoreError(
                f"{path}: {size} bytes, expected {self._bytes[path.name]}: the file has changed"
            )

    def __getitem__(self, index: int) -> Scene:
        if not -len(self) <= index < len(self):
            raise IndexError(f"scene {index} of {len(self)}")
        index %= len(self)
        number = bisect.bisect_right(self._starts, index) - 1
        shard = self._shards.get(number)
        if shard is None:
            shard = self._open_shard(number)
            if len(self._shards) >= MAX_OPEN_SHARDS:
                self._shards.pop(next(iter(self._shards)))
            self._shards[number] = shard
        return shard.scene(index - self._starts[number])

    def _shard_ids(self, number: int) -> list[str]:
        shard = self._shards.get(number)
        ids = read_scene_ids(self._path(number)) if shard is None else shard.texts("scene_id")
        self._check_unchanged(number, len(ids))
        return ids

    @property
    def unit(self) -> str:
        """The unit of the lengths in all scenes, one of `scene.UNITS` (StoreError: the first shard is damaged)."""
        scenes = (
            number
            for number in range(len(self._names))
            if self._starts[number + 1] > self._starts[number]
        )
        return read_shard_info(self._path(next(scenes, 0)))[0].unit

    def scene_ids(self) -> list[str]:
        """Ids of all scenes, in the order of their index."""
        return [
            scene_id for number in range(len(self._names)) for scene_id in self._shard_ids(number)
        ]

    def sizes(self) -> np.ndarray:
        """Numbers of agents, polylines and points of each scene, int64 [scenes, 3], without unpacking scenes."""
        return np.concatenate([shard.sizes() for shard in self.shards()])

    def index(self) -> pd.DataFrame:
        """One row per scene, in the order of the scenes, without unpacking scenes.

        Columns: scene_id, source, split, city, period_s, num_history, num_future, num_steps (T), origin_x, origin_y (metres, city
        frame), num_agents, num_polylines, num_points. Raises StoreError: a shard is damaged or has changed.
        """
        import pandas as pd  # processes that only read scenes do not load it

        parts = [shard.summary() for shard in self.shards()]
        return pd.DataFrame(
            {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        )

    def shards(self) -> Iterator[Shard]:
        """All shards in order; those that were not open are not kept open."""
        for number in range(len(self._names)):
            yield self._shards.get(number) or self._open_shard(number)

    def find(self, scene_ids: Sequence[str]) -> list[int]:
        """Indices of the scenes with these ids (StoreError: an id is not in this split)."""
        indices = self.indices(scene_ids)
        for scene_id in scene_ids:
            if scene_id not in indices:
                raise StoreError(f"{self.root}: no scene {scene_id} in split '{self.split}'")
        return [indices[scene_id] for scene_id in scene_ids]

    def indices(self, scene_ids: Iterable[str]) -> dict[str, int]:
        """Indices by id of the scenes that are in this split; the first index if an id occurs twice."""
        requested, indices = set(scene_ids), dict[str, int]()
        for number, start in enumerate(self._starts[:-1]):
            if len(indices) < len(requested):
                for index, scene_id in enumerate(self._shard_ids(number), start):
                    if scene_id in requested:
                        indices.setdefault(scene_id, index)
        return indices
