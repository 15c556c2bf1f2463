"""One shard: a pure function of its task, so that shards can be made in any order and on any machine.

Inputs are read in alternation: all inputs of a group finish one stage before any begins the next. Repeated
code stays in the processor's caches: 16 scenarios of Argoverse 2 take three quarters of the time of 16 single readings.
"""

from __future__ import annotations

import hashlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from data_prep.engine.plausible import MAX_SPEED_M_S, check_plausible
from data_prep.reader import Input, Reader, StagedReader
from trajformer.errors import SceneError, StoreError, TrajformerError
from trajformer.scenes.files import SIZE_SCALE
from trajformer.scenes.manifest import checksum
from trajformer.scenes.shard import (
    PackedScene,
    ShardInfo,
    pack,
    read_shard_info,
    shard_path,
    write_shard,
)

if sys.platform == "linux":
    import resource

TIMEOUT_S = 60.0
MEMORY_GB = 8.0
GROUP_SIZE = 16  # inputs read in alternation
LONG_STAGE_S = 0.1  # an input with a longer stage is read to its end, so that only one large input is in memory
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
    memory_gb: float = MEMORY_GB
    max_speed_m_s: float = MAX_SPEED_M_S  # see `check_plausible`
    excluded: tuple[
        tuple[int, str], ...
    ] = ()  # inputs that must not be read again: number and reason

    @property
    def path(self) -> Path:
        """Path of the shard."""
        return shard_path(self.store, self.split, self.index)

    def digest(self) -> str:
        """SHA-256 of the reader's options and the inputs' names and stamps."""
        names = (f"{item.name(self.raw)} {item.stamp}".rstrip() for item in self.inputs)
        limit = [] if self.max_speed_m_s == MAX_SPEED_M_S else [repr(self.max_speed_m_s)]
        text = "\n".join([repr(self.reader), self.split, *limit, *names])
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()

    def is_finished(self, retry_skipped: bool = False) -> bool:
        """Whether the shard on disk was made from the same task by this software version.

        With `retry_skipped`, a shard with skipped inputs does not count as finished.
        """
        info = self._info()
        if info is None or (retry_skipped and info.skipped):
            return False
        return info == ShardInfo(
            self.reader.name, self.split, self.digest(), info.skipped, info.unit
        )

    def is_foreign(self) -> bool:
        """Whether the shard on disk was made from other inputs, or with other options."""
        info = self._info()
        return info is not None and info.inputs != self.digest()

    def _info(self) -> ShardInfo | None:
        try:
            return read_shard_info(self.path)[0]
        except (StoreError, KeyError, TypeError, ValueError):  # the last three: foreign metadata
            return None

    @property
    def timeout_text(self) -> str:
        """The reason for skipping an input that exceeds its time limit."""
        return f"took longer than {self.timeout_s:g} s"

    def without(self, number: int, reason: str) -> ShardTask:
        """The same task with one more excluded input."""
        return replace(self, excluded=(*self.excluded, (number, reason)))


class ShardResult(NamedTuple):
    """A finished shard: its size on disk, the seconds spent on each input (also on skipped ones), and its checksum."""

    bytes: int
    seconds: tuple[float, ...]
    sha256: str


ShardResults: TypeAlias = Generator[tuple[ShardTask, ShardResult], None, None]


def prepare_shard(
    task: ShardTask, on_input: Callable[[int], Any] = lambda number: None
) -> ShardResult:
    """Read the inputs of one shard and write it; inputs that cannot be used are listed in the shard.

    Every error of an input is a reason to skip it, also a bug in its reader. `on_input` is called with the number of the input
    that is read next, at the end with the number of inputs. Raises SceneError: an input cannot be used and the task is strict.
    TrajformerError: the shard cannot be written.
    """
    scenes: dict[int, PackedScene] = {}
    skipped: dict[int, str] = {}
    seconds = []
    count, size = len(task.inputs), 1 if task.strict else GROUP_SIZE
    for first in range(0, count, size):
        group = [
            _Reading(task, number, _stages(task, number))
            for number in range(first, min(first + size, count))
        ]
        with Alarm() as alarm, memory_limit(task.memory_gb):
            while pending := [
                reading for reading in group if reading.scene is None and reading.error is None
            ]:
                for reading in pending:
                    on_input(reading.number)
                    reading.advance(alarm)
        for reading in group:
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
        raise TrajformerError(
            f"{task.path}: cannot be written: {error.strerror or error}"
        ) from error
    except MemoryError as error:
        raise TrajformerError(
            f"{task.path}: out of memory: try fewer workers, or fewer scenes a shard"
        ) from error


@dataclass
class _Reading:
    """State of one input while it is read: the seconds spent so far, then a scene or the reason against it."""

    task: ShardTask
    number: int
    stages: Generator[None, None, PackedScene]
    seconds: float = 0.0
    scene: PackedScene | None = None
    error: SceneError | None = None

    def advance(self, alarm: Alarm) -> None:
        """Run the next stage; after a long stage, also all others."""
        start_time = time.perf_counter()
        try:
            try:
                alarm.start(self.task.timeout_s - self.seconds)
                next(self.stages)
                if time.perf_counter() - start_time > LONG_STAGE_S:
                    while True:
                        next(self.stages)
            finally:
                alarm.stop()
        except StopIteration as end:
            self.scene = end.value
        except SceneError as error:
            self.error = error
        except (Exception, InputTimeout) as error:
            reason = (
                self.task.timeout_text if isinstance(error, InputTimeout) else _error_text(error)
            )
            if isinstance(error, MemoryError):
                reason = f"MemoryError: more than {self.task.memory_gb:g} GB are needed (--memory-gb), or no memory is left"
            self.error = SceneError(f"{self.task.inputs[self.number]}: {reason}")
        self.seconds += time.perf_counter() - start_time


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
    scene.validate()
    try:
        check_plausible(scene, task.max_speed_m_s)
    except SceneError as error:
        raise SceneError(f"{item}: {error}") from error
    return pack(scene)


@contextmanager
def memory_limit(gigabytes: float) -> Iterator[None]:
    """Refuse, with a MemoryError, more memory than this process has and the given number of gigabytes. On Linux only.

    More than `MEMORY_GB` also raises the readers' limits of sizes, on every system.
    """
    scale = SIZE_SCALE.set(max(gigabytes / MEMORY_GB, 1.0))
    try:
        if sys.platform == "linux":
            before = resource.getrlimit(resource.RLIMIT_AS)
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + int(gigabytes * 1e9)
            resource.setrlimit(
                resource.RLIMIT_AS,
                (min((limit, *(b for b in before if b != resource.RLIM_INFINITY))), before[1]),
            )
        yield
    finally:
        SIZE_SCALE.reset(scale)
        if sys.platform == "linux":
            resource.setrlimit(resource.RLIMIT_AS, before)


class InputTimeout(BaseException):
    """The time limit is exceeded. Not an `Exception`, so that a reader's `except Exception` does not catch it."""


class Alarm:
    """Raises `InputTimeout` between `start` and `stop`; the `with` block restores the previous timer and handler.

    There is no limit outside the main thread or on a system without interval timers. A call into a C library is
    interrupted only when it returns: `WorkerPool` kills a process that does not react.
    """

    def __enter__(self) -> Alarm:
        self._supported = (
            hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
        )
        self._running = False
        if self._supported:
            self._handler = signal.signal(signal.SIGALRM, self._expire)
            self._timer = signal.setitimer(signal.ITIMER_REAL, 0)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            if self._supported:
                signal.setitimer(signal.ITIMER_REAL, *self._timer)
                signal.signal(signal.SIGALRM, self._handler)

    def _expire(self, *_: Any) -> None:
        if self._running:
            raise InputTimeout

    def start(self, seconds: float) -> None:
        """Raise `InputTimeout` after `seconds`, and again every second: Python drops exceptions raised in destructors."""
        self._running = True
        if self._supported:
            signal.setitimer(
                signal.ITIMER_REAL, max(seconds, 1e-3), 1.0
            )  # a timer of zero seconds never expires

    def stop(self) -> None:
        """Cancel. A timeout that happens at this moment is raised here, none afterwards."""
        try:
            self._running = False
        finally:
            self._running = False
            if self._supported:
                signal.setitimer(signal.ITIMER_REAL, 0)


def _error_text(error: BaseException) -> str:
    """Type and message of an error; a message may be empty."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _skip(task: ShardTask, number: int, error: SceneError, skipped: dict[int, str]) -> None:
    if task.strict:
        raise error
    reason = " ".join(str(error).replace(f"{task.raw}/", "").split())
    skipped[number] = _printable(
        reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]} ..."
    )


def _printable(text: str) -> str:
    """Escape characters that cannot be printed or stored."""
    return (
        text
        if text.isprintable()
        else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    )


def _write(task: ShardTask, scenes: dict[int, PackedScene], skipped: dict[int, str]) -> None:
    def write(path: Path, chosen: list[PackedScene], digest: str) -> None:
        listed = tuple(
            (_printable(task.inputs[i].name(task.raw)), skipped[i]) for i in sorted(skipped)
        )
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
                _skip(
                    task,
                    number,
                    SceneError(f"{task.inputs[number]}: cannot be stored: {_error_text(error)}"),
                    skipped,
                )
        trial.unlink(missing_ok=True)
        if len(kept) == len(scenes):
            raise TrajformerError(
                f"{task.path}: cannot be written: {_error_text(failure)}"
            ) from failure
        write(task.path, kept, task.digest())
