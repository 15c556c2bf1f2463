"""One shard: a pure function of its task, so that shards can be made in any order and on any machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data_prep.engine.reading import SIDE_BY_SIDE, Reading, named, overtime, read_side_by_side
from data_prep.reader import Input, Reader, StagedReader
from trajformer.errors import SceneError, StoreError, TrajformerError
from trajformer.scenes.manifest import checksum
from trajformer.scenes.shard import PackedScene, ShardInfo, pack, read_shard_info, shard_path, write_shard

TIMEOUT_S = 60.0
LONGEST_REASON = 500  # characters; an error may quote a whole file
KILLED = "killed its process (a fault in a library, or out of memory)"


@dataclass(frozen=True)
class ShardTask:
    """Everything needed to make one shard. Folders are absolute."""

    reader: Reader
    raw: Path
    store: Path
    split: str
    index: int
    inputs: tuple[Input, ...]
    strict: bool = False
    timeout_s: float = TIMEOUT_S
    fatal: tuple[tuple[int, str], ...] = ()  # inputs that must not be read again: number and what they did

    @property
    def path(self) -> Path:
        """Where the shard lies."""
        return shard_path(self.store, self.split, self.index)

    def digest(self) -> str:
        """SHA-256 of the reader's options and the inputs' names and stamps."""
        names = (f"{item.name(self.raw)} {item.stamp}".rstrip() for item in self.inputs)
        text = "\n".join([repr(self.reader), self.split, *names])
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()

    def finished(self, retry_skipped: bool = False) -> bool:
        """True when the shard on disk was made from this very task by this software version.

        Args:
            retry_skipped: then a shard that skipped an input does not count as finished.
        """
        try:
            info, _ = read_shard_info(self.path)
        except (StoreError, KeyError, TypeError, ValueError):  # the last three: foreign metadata
            return False
        fresh = ShardInfo(source=self.reader.name, split=self.split, inputs=self.digest(), skipped=info.skipped)
        return info == fresh and not (retry_skipped and info.skipped)

    def without(self, number: int, reason: str) -> ShardTask:
        """The same task with an input that must not be read again, and why."""
        return replace(self, fatal=(*self.fatal, (number, reason)))

    def overtime(self) -> str:
        """What is said of an input that took too long."""
        return overtime(self.timeout_s)


@dataclass(frozen=True)
class ShardResult:
    """A shard that has been made: its size on disk, the seconds each input took, and the file's checksum."""

    bytes: int
    seconds: tuple[float, ...]
    sha256: str

    @property
    def inputs(self) -> int:
        """How many inputs it was made from, skipped ones included."""
        return len(self.seconds)


def prepare_shard(task: ShardTask, note: Callable[[int], Any] = lambda number: None) -> ShardResult:
    """Read the inputs of one shard and write it; inputs that cannot be used are listed in the shard itself.

    Whatever is wrong with an input, a fault in its reader included, is a reason to skip it.

    Args:
        task: what to make.
        note: told the number of the input whose turn it is, at last their count.

    Raises:
        SceneError: an input cannot be used and the task is strict.
        TrajformerError: the shard cannot be written.
    """
    scenes: dict[int, PackedScene] = {}
    skipped: dict[int, str] = {}
    seconds = []
    count, together = len(task.inputs), 1 if task.strict else SIDE_BY_SIDE
    staged = task.reader if isinstance(task.reader, StagedReader) else None  # a protocol takes its time to look
    for first in range(0, count, together):
        numbers = range(first, min(first + together, count))
        readings = [Reading(n, str(task.inputs[n]), _stages(task, n, staged), task.timeout_s) for n in numbers]
        read_side_by_side(readings, note)
        for reading in readings:
            seconds.append(reading.seconds)
            if reading.error:
                _skip(task, reading.number, reading.error, skipped)
            elif reading.scene:
                scenes[reading.number] = reading.scene
    note(len(task.inputs))
    try:
        _write(task, scenes, skipped)
        return ShardResult(task.path.stat().st_size, tuple(seconds), checksum(task.path))
    except OSError as error:
        raise TrajformerError(f"{task.path}: cannot be written: {error.strerror or error}") from error
    except MemoryError as error:
        raise TrajformerError(f"{task.path}: out of memory: try fewer workers, or fewer scenes a shard") from error


def _stages(task: ShardTask, number: int, staged: StagedReader | None) -> Generator[None, None, PackedScene]:
    """The way of one input to a scene that can be written, in stages."""
    item = task.inputs[number]
    if number in dict(task.fatal):
        raise SceneError(f"{item}: {dict(task.fatal)[number]}")
    if staged:
        scene = yield from staged.stages(item, task.split, task.raw)
    else:
        scene = task.reader.read(item, task.split, task.raw)
    yield
    return pack(scene.validate())


def _skip(task: ShardTask, number: int, error: SceneError, skipped: dict[int, str]) -> None:
    if task.strict:
        raise error
    reason = " ".join(str(error).replace(f"{task.raw}/", "").split())
    skipped[number] = _plain(reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]} ...")


def _plain(text: str) -> str:
    """Text that can be printed and stored, whatever a file or its name holds."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _write(task: ShardTask, scenes: Mapping[int, PackedScene], skipped: dict[int, str]) -> None:
    def write(path: Path, chosen: list[PackedScene], digest: str) -> None:
        listed = tuple((_plain(task.inputs[i].name(task.raw)), skipped[i]) for i in sorted(skipped))
        write_shard(path, chosen, ShardInfo(task.reader.name, task.split, digest, listed))

    try:
        return write(task.path, list(scenes.values()), task.digest())
    except (OSError, MemoryError):
        raise
    except Exception as failure:  # a valid scene that cannot be stored: find it
        trial, kept = task.path.with_name(f".{task.path.name}.trial.tmp"), []
        for number, scene in scenes.items():
            try:
                write(trial, [scene], "")
                kept.append(scene)
            except Exception as error:
                problem = f"{task.inputs[number]}: cannot be stored: {named(error)}"
                _skip(task, number, SceneError(problem), skipped)
        trial.unlink(missing_ok=True)
        if len(kept) == len(scenes):
            raise TrajformerError(f"{task.path}: cannot be written: {named(failure)}") from failure
        write(task.path, kept, task.digest())
