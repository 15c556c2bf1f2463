"""One shard: a pure function of its task, so that shards can be made in any order and on any machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_prep.reader import Input, Reader
from trajformer.errors import SceneError, StoreError, TrajformerError
from trajformer.scene import Scene
from trajformer.shard import ShardInfo, read_shard_info, shard_path, write_shard


@dataclass(frozen=True)
class ShardTask:
    """Everything needed to make one shard."""

    reader: Reader
    raw: Path
    store: Path
    split: str
    index: int
    inputs: tuple[Input, ...]
    strict: bool = False

    @property
    def path(self) -> Path:
        """Where the shard lies."""
        return shard_path(self.store, self.split, self.index)

    def digest(self) -> str:
        """SHA-256 of the reader's options and the input names."""
        text = "\n".join([repr(self.reader), self.split, *(item.name(self.raw) for item in self.inputs)])
        return hashlib.sha256(text.encode()).hexdigest()

    def finished(self) -> bool:
        """True when the shard on disk was made from this very task by this software version."""
        try:
            info, _ = read_shard_info(self.path)
        except StoreError:
            return False
        fresh = ShardInfo(source=self.reader.name, split=self.split, inputs=self.digest(), skipped=info.skipped)
        return info == fresh


def prepare_shard(task: ShardTask, tick: Callable[[], Any] = lambda: None) -> None:
    """Read the inputs of one shard and write it; inputs that cannot be used are listed in the shard itself.

    Args:
        task: what to make.
        tick: called after every input.

    Raises:
        SceneError: an input cannot be used and the task is strict.
        TrajformerError: the shard cannot be written.
    """
    scenes: list[Scene] = []
    skipped: list[tuple[str, str]] = []
    for item in task.inputs:
        try:
            scenes.append(task.reader.read(item, task.split, task.raw).validate())
        except (SceneError, OSError, ValueError) as error:
            reason = str(error) if isinstance(error, SceneError) else f"{item}: {type(error).__name__}: {error}"
            if task.strict:
                raise SceneError(reason) from error
            skipped.append((item.name(task.raw), reason.replace(f"{task.raw}/", "")))
        tick()
    info = ShardInfo(task.reader.name, task.split, task.digest(), tuple(skipped))
    try:
        write_shard(task.path, scenes, info)
    except OSError as error:
        raise TrajformerError(f"{task.path}: cannot be written: {error}") from error
