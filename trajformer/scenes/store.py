"""SceneStore: indexed access to the scenes of one split, read from memory-mapped shards."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trajformer.errors import StoreError
from trajformer.scenes.manifest import count_scenes, count_skipped, shard_sizes, store_splits
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import Shard, read_scene_ids, read_shard_info

if TYPE_CHECKING:
    import pandas as pd

MAX_OPEN_SHARDS = 8192  # a shard takes 70 kB, and Linux allows 65,530 mapped files per process


class SceneStore:
    """The scenes of one split of a store.

    `store[i]` and `store["id of the scene"]` are `Scene`s, `len(store)` is their number. Shards are
    opened on first use, so a store of a million scenes opens quickly. A pickled store contains only
    file names; each data-loader worker maps the files again. A store can be read while it is
    prepared; it then has the scenes that were complete when it was opened.

    Raises:
        StoreError: the store or split does not exist, a shard is truncated, or the schema version
            differs.
    """

    def __init__(self, root: Path | str, split: str) -> None:
        self.root = Path(root)
        self.split = split
        if not self.root.is_dir():
            raise StoreError(f"{self.root}: no such store; make one with `trajformer preprocess`")
        self._bytes = shard_sizes(self.root / split)
        counts = count_scenes(self.root, split, self._bytes)
        if not counts:
            raise StoreError(f"{self.root}: no split '{split}' ({_folder_content(self.root)})")
        self._names = list(counts)
        # index of the first scene of each shard, and the number of scenes
        self._starts: list[int] = np.cumsum([0, *counts.values()]).tolist()
        self._shards: dict[int, Shard] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shards": {}}

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int | str) -> Scene:
        if isinstance(index, str):
            [index] = self.find([index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"scene {index} of {len(self)}")
        index %= len(self)
        number = bisect.bisect_right(self._starts, index) - 1
        shard = self._shards.get(number)
        if shard is None:
            shard = self._open_shard(number)
            if len(self._shards) >= MAX_OPEN_SHARDS:
                oldest = next(iter(self._shards))
                self._shards.pop(oldest)
            self._shards[number] = shard
        return shard.scene(index - self._starts[number])

    @property
    def unit(self) -> str:
        """The unit of the lengths in all scenes, one of `scene.UNITS`.

        Raises StoreError: the first shard is damaged.
        """
        number = 0
        while self._count(number) == 0 and number + 1 < len(self._names):
            number += 1  # an empty shard has no unit
        info, _ = read_shard_info(self._path(number))
        return info.unit

    @property
    def num_skipped(self) -> int:
        """Number of inputs without a scene, which `trajformer store info` lists with reasons."""
        return count_skipped(self.root, self.split)

    def scene_ids(self) -> list[str]:
        """Ids of all scenes, in the order of their index."""
        ids: list[str] = []
        for number in range(len(self._names)):
            ids += self._shard_ids(number)
        return ids

    def id_range(self, start: int, stop: int) -> list[str]:
        """Ids of the scenes from index `start` to `stop`, read from their shards only."""
        first = bisect.bisect_right(self._starts, start) - 1
        ids: list[str] = []
        number = max(first, 0)
        while number < len(self._names) and self._starts[number] < stop:
            offset = self._starts[number]
            ids += self._shard_ids(number)[max(start - offset, 0) : max(stop - offset, 0)]
            number += 1
        return ids

    def sizes(self) -> np.ndarray:
        """Numbers of agents, polylines and points of each scene, without unpacking scenes.

        Returns int64 [scenes, 3].
        """
        return np.concatenate([shard.sizes() for shard in self.shards()])

    def index(self) -> pd.DataFrame:
        """One row per scene, in the order of the scenes, without unpacking scenes.

        Columns: scene_id, source, split, city, period_s, num_history, num_future, num_steps (T),
        origin_x, origin_y (metres, city frame), num_agents, num_polylines, num_points. Raises
        StoreError: a shard is damaged or has changed.
        """
        import pandas as pd  # processes that only read scenes do not load it

        parts = [shard.summary() for shard in self.shards()]
        columns = {}
        for name in parts[0]:
            columns[name] = np.concatenate([part[name] for part in parts])
        return pd.DataFrame(columns)

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
        """Indices by id of the scenes that are in this split.

        It is the first index if an id occurs twice.
        """
        requested = set(scene_ids)
        indices: dict[str, int] = {}
        for number in range(len(self._names)):
            if len(indices) == len(requested):
                break
            for index, scene_id in enumerate(self._shard_ids(number), self._starts[number]):
                if scene_id in requested:
                    indices.setdefault(scene_id, index)
        return indices

    def _path(self, number: int) -> Path:
        return self.root / self.split / self._names[number]

    def _count(self, number: int) -> int:
        """Number of scenes of a shard."""
        return self._starts[number + 1] - self._starts[number]

    def _open_shard(self, number: int) -> Shard:
        shard = Shard(self._path(number))
        self._check_unchanged(number, len(shard))
        return shard

    def _shard_ids(self, number: int) -> list[str]:
        shard = self._shards.get(number)
        ids = read_scene_ids(self._path(number)) if shard is None else shard.texts("scene_id")
        self._check_unchanged(number, len(ids))
        return ids

    def _check_unchanged(self, number: int, num_scenes: int) -> None:
        """Compare a shard with its number of scenes and its size at the time of opening."""
        path = self._path(number)
        expected = self._count(number)
        if num_scenes != expected:
            reason = "the file has changed or differs from its manifest"
            raise StoreError(f"{path}: {num_scenes} scenes, expected {expected}: {reason}")
        size = path.stat().st_size
        expected = self._bytes[path.name]
        if size != expected:
            raise StoreError(f"{path}: {size} bytes, expected {expected}: the file has changed")


def _folder_content(root: Path) -> str:
    """What a folder is that does not have the requested split."""
    if shard_sizes(root):
        return f"this folder is a split; its store is {root.resolve().parent}"
    splits = store_splits(root)
    if splits:
        return f"splits here: {', '.join(splits)}"
    return "not a store; `trajformer preprocess` makes one"
