"""One shard: a pure function of its task, so that shards can be made in any order and on any machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from data_prep.engine.reading import GROUP_SIZE, Reading, error_text, read_in_alternation
from data_prep.reader import Input, Reader, StagedReader
from trajformer.errors import SceneError, StoreError, TrajformerError
from trajformer.scenes.manifest import checksum
from trajformer.scenes.shard import PackedScene, ShardInfo, pack, read_shard_info, shard_path, write_shard

TIMEOUT_S = 60.0
MAX_REASON = 500  # characters; an error may quote a whole file
KILLED = "killed its process (a fault in a library, or out of memory)"


@dataclass(frozen=True)
class ShardTask:
    """All that is needed to make one shard. Folders are absolute."""

    reader: Reader
    raw: Path
    store: Path
    split: str
    index: int
    inputs: tuple[Input, ...]
    strict: bool = False
    timeout_s: float = TIMEOUT_S
    excluded: tuple[tuple[int, str], ...] = ()  # inputs that must not be read again: number and reason

    @property
    def path(self) -> Path:
        """Path of the shard."""
        return shard_path(self.store, self.split, self.index)

    def digest(self) -> str:
        """SHA-256 of the reader's options and the inputs' names and stamps."""
        names = (f"{item.name(self.raw)} {item.stamp}".rstrip() for item in self.inputs)
        text = "\n".join([repr(self.reader), self.split, *names])
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()

    def is_finished(self, retry_skipped: bool = False) -> bool:
        """Whether the shard on disk was made from the same task by this software version.

        Args:
            retry_skipped: a shard with skipped inputs does not count as finished.
        """
        try:
            info, _ = read_shard_info(self.path)
        except (StoreError, KeyError, TypeError, ValueError):  # the last three: foreign metadata
            return False
        expected = ShardInfo(source=self.reader.name, split=self.split, inputs=self.digest(), skipped=info.skipped)
        return info == expected and not (retry_skipped and info.skipped)

    def without(self, number: int, reason: str) -> ShardTask:
        """The same task with one more excluded input."""
        return replace(self, excluded=(*self.excluded, (number, reason)))


@dataclass(frozen=True)
class ShardResult:
    """A finished shard: its size on disk, the seconds spent on each input (also on skipped ones), and its checksum."""

    bytes: int
    seconds: tuple[float, ...]
    sha256: str


ShardResults: TypeAlias = Generator[tuple[ShardTask, ShardResult], None, None]


def prepare_shard(task: ShardTask, on_input: Callable[[int], Any] = lambda number: None) -> ShardResult:
    """Read the inputs of one shard and write it; inputs that cannot be used are listed in the shard.

    Every error of an input is a reason to skip it, also a bug in its reader.

    Args:
        task: the shard.
        on_input: called with the number of the input that is read next, at the end with the number of inputs.

    Raises:
        SceneError: an input cannot be used and the task is strict.
        TrajformerError: the shard cannot be written.
    """
    scenes: dict[int, PackedScene] = {}
    skipped: dict[int, str] = {}
    seconds = []
    count, group = len(task.inputs), 1 if task.strict else GROUP_SIZE
    for first in range(0, count, group):
        numbers = range(first, min(first + group, count))
        readings = [Reading(n, str(task.inputs[n]), _stages(task, n), task.timeout_s) for n in numbers]
        read_in_alternation(readings, on_input)
        for reading in readings:
            seconds.append(reading.seconds)
            if reading.error:
                _skip(task, reading.number, reading.error, skipped)
            elif reading.scene:
                scenes[reading.number] = reading.scene
    on_input(count)
    try:
        _write(task, scenes, skipped)
        return ShardResult(task.path.stat().st_size, tuple(seconds), checksum(task.path))
    except OSError as error:
        raise TrajformerError(f"{task.path}: cannot be written: {error.strerror or error}") from error
    except MemoryError as error:
        raise TrajformerError(f"{task.path}: out of memory: try fewer workers, or fewer scenes a shard") from error


def _stages(task: ShardTask, number: int) -> Generator[None, None, PackedScene]:
    """Read one input in stages and pack its scene."""
    item = task.inputs[number]
    if number in dict(task.excluded):
        raise SceneError(f"{item}: {dict(task.excluded)[number]}")
    if isinstance(task.reader, StagedReader):
        scene = yield from task.reader.stages(item, task.split, task.raw)
    else:
        scene = task.reader.read(item, task.split, task.raw)
    yield
    return pack(scene.validate())


def _skip(task: ShardTask, number: int, error: SceneError, skipped: dict[int, str]) -> None:
    if task.strict:
        raise error
    reason = " ".join(str(error).replace(f"{task.raw}/", "").split())
    skipped[number] = _printable(reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]} ...")


def _printable(text: str) -> str:
    """Escape characters that cannot be printed or stored."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _write(task: ShardTask, scenes: dict[int, PackedScene], skipped: dict[int, str]) -> None:
    def write(path: Path, chosen: list[PackedScene], digest: str) -> None:
        listed = tuple((_printable(task.inputs[i].name(task.raw)), skipped[i]) for i in sorted(skipped))
        write_shard(path, chosen, ShardInfo(task.reader.name, task.split, digest, listed))

    try:
        return write(task.path, list(scenes.values()), task.digest())
    except (OSError, MemoryError):
        raise
    except Exception as failure:  # a valid scene that cannot be stored: try each alone and skip it
        trial, kept = task.path.with_name(f".{task.path.name}.trial.tmp"), []
        for number, scene in scenes.items():
            try:
                write(trial, [scene], "")
                kept.append(scene)
            except Exception as error:
                _skip(task, number, SceneError(f"{task.inputs[number]}: cannot be stored: {error_text(error)}"), skipped)
        trial.unlink(missing_ok=True)
        if len(kept) == len(scenes):
            raise TrajformerError(f"{task.path}: cannot be written: {error_text(failure)}") from failure
        write(task.path, kept, task.digest())
