"""Make shards in processes of their own, so that whatever an input does to its process the run goes on.

An input that kills the process reading it (a fault in a C library, no memory left) is tried once more in a fresh
process, then the shard is made without it. What is found does not depend on the number of processes.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from data_prep.engine.tasks import KILLED, ShardResult, ShardTask, prepare_shard
from trajformer.errors import TrajformerError

POLL_S = 0.2
END_S = 5.0  # for a killed process to end; one that waits for a dead file server does not
READY = "ready"
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # numpy reads it when it is imported
CHANCES = 2  # an input that kills its process so often is skipped
_CONTEXT = multiprocessing.get_context("spawn")  # forking a process that has threads (pyarrow, torch) may hang


class Report(Protocol):
    """Who is told of the progress."""

    def reading(self, inputs: int) -> None:
        """So many inputs of shards that are not finished have been read; called a few times a second."""

    def finished(self, task: ShardTask, result: ShardResult) -> None:
        """A shard has been written."""


def _attempt(task: ShardTask, note: Any) -> ShardResult | TrajformerError:
    """Make a shard; what went wrong is returned, as an exception that any process can unpickle."""
    try:
        return prepare_shard(task, note)
    except TrajformerError as error:
        return type(error)(str(error))
    except Exception as error:
        return TrajformerError(f"{task.path}: {type(error).__name__}: {error}")


class _Worker:
    """A process that makes one shard after the other, and the shard it is making."""

    def __init__(self) -> None:
        self.task: ShardTask | None = None
        self.idle = False  # not before it has started: a task may be larger than the pipe, and sending it would block
        self._under_way = _CONTEXT.RawValue("q", -1)  # number of the input being read, -1 before the first
        self.seen, self._since = -1, time.monotonic()
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(theirs, self._under_way), daemon=True)
        with _deaf_to_ctrl_c(), _one_thread():
            self.process.start()
        theirs.close()  # so that the pipe ends when the process does

    def give(self, task: ShardTask) -> None:
        """Begin a shard."""
        self.task, self.idle, self._under_way.value = task, False, -1
        self.seen, self._since = -1, time.monotonic()
        with suppress(OSError):  # it may have died: the pipe's end says so
            self.pipe.send(task)

    def answer(self) -> ShardResult | TrajformerError | str | None:
        """The finished shard, what went wrong, READY after the start, or None when the process has died."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def rest(self) -> None:
        """Be ready for the next shard."""
        self.task, self.idle = None, True

    def number(self) -> int:
        """The input under way, -1 before the first, their count while the shard is written."""
        return self._under_way.value if self.task else -1

    def look(self) -> None:
        """See which input is under way, and since when."""
        if self.number() != self.seen:
            self.seen, self._since = self.number(), time.monotonic()

    def stuck(self) -> bool:
        """Whether the input under way takes far longer than its time bound, without hearing its alarm."""
        self.look()
        if self.task is None or not 0 <= self.seen < len(self.task.inputs):
            return False
        return time.monotonic() - self._since > 2 * self.task.timeout_s + 1

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self.process.kill()
        self.process.join(END_S)
        self.pipe.close()


class Crew:
    """Processes that make shards, started when there is something to do and ended with the `with` block."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[_Worker] = []
        self._waiting: deque[ShardTask] = deque()
        self._deaths = Counter[tuple[str, int]]()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End all processes, whatever they are doing."""
        while self._workers:
            self._workers.pop().end()

    def make(self, tasks: Sequence[ShardTask], report: Report) -> None:
        """Make shards; whatever ends this early ends the processes at once.

        Raises:
            TrajformerError: a shard cannot be written, or an input is unusable and its task strict.
        """
        self._waiting, self._deaths = deque(tasks), Counter()
        try:
            while self._waiting or any(worker.task for worker in self._workers):
                self._give_work()
                busy = [worker for worker in self._workers if not worker.idle]
                ready = wait([worker.pipe for worker in busy], POLL_S)
                for worker in busy:
                    if worker.pipe in ready:
                        self._listen(worker, report)
                    elif worker.stuck():
                        self._dismiss(worker, _without_slow)
                report.reading(sum(max(worker.number(), 0) for worker in self._workers))
        except BaseException:
            self.end()
            raise

    def _give_work(self) -> None:
        for _ in range(min(self._size, len(self._waiting)) - len(self._workers)):
            self._workers.append(_Worker())
        for worker in self._workers:
            if worker.idle and self._waiting:
                worker.give(self._waiting.popleft())

    def _listen(self, worker: _Worker, report: Report) -> None:
        answer = worker.answer()
        if answer is None:
            worker.look()
            self._dismiss(worker, self._after_death)
            return
        if isinstance(answer, TrajformerError):
            raise answer
        if isinstance(answer, ShardResult) and worker.task:
            report.finished(worker.task, answer)
        worker.rest()

    def _dismiss(self, worker: _Worker, change: Callable[[ShardTask, int], ShardTask]) -> None:
        """End a process; its shard, changed, is for another one."""
        self._workers.remove(worker)
        worker.end()
        if worker.task:
            self._waiting.appendleft(change(worker.task, worker.seen))
            return
        self._deaths["start", 0] += 1
        if self._deaths["start", 0] >= CHANCES:
            guard = 'a script that prepares needs `if __name__ == "__main__":`'
            raise TrajformerError(f"a process that reads scenes cannot be started: out of memory? ({guard})")

    def _after_death(self, task: ShardTask, number: int) -> ShardTask:
        """What to do after a process died reading input `number`."""
        key = str(task.path), number
        self._deaths[key] += 1
        if self._deaths[key] < CHANCES:
            return task
        if 0 <= number < len(task.inputs):
            return task.without(number, KILLED)
        raise TrajformerError(f"{task.path}: the process that makes it is killed (out of memory?): try fewer workers")


def _without_slow(task: ShardTask, number: int) -> ShardTask:
    return task.without(number, task.overtime())


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes started here never see Ctrl-C: their parent decides. A Ctrl-C of this moment comes afterwards."""
    resource_tracker.ensure_running()  # of `multiprocessing`: its start would end the block
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started here have no threads for matrix products: nobody asks for any, and they are a tenth of the start."""
    before = os.environ.get(_BLAS_THREADS)
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_BLAS_THREADS]
        if before is not None:
            os.environ[_BLAS_THREADS] = before


def _serve(pipe: Connection, under_way: Any) -> None:
    """In a worker process: make the shards that come through the pipe until it ends."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)  # maps are many small objects and no cycles: looking for those costs 4 %

    def note(number: int) -> None:
        under_way.value = number

    pipe.send(READY)
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        except Exception as error:  # no such reader here
            task = TrajformerError(f"a task cannot be read: {type(error).__name__}: {error}")
        pipe.send(_attempt(task, note) if isinstance(task, ShardTask) else task)
        gc.collect()  # a library's cycles may hold much more memory than objects


def _end_with_parent() -> None:
    """A parent that is killed cannot end its processes; they must not stay behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
