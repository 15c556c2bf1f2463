"""Makes shards in worker processes on this machine, so that no input can end the run.

If an input kills its process (a fault in a C library, out of memory), it is tried once more in a
new process; then the shard is made without it. The result does not depend on the number of
processes. `concurrent.futures` cannot find the input that killed a worker and cannot kill a worker
that hangs, and it gives up all tasks when one worker dies.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any

from data_prep.engine.tasks import KILLED, ShardResult, ShardResults, ShardTask
from data_prep.engine.worker import Answer, serve
from trajformer.errors import TERMINATION_SIGNALS, TrajformerError

POLL_S = 0.2
WORKERS_PER_CORE = 4  # more need memory and save no time
_MAX_READS = 2  # an input that kills its process as often is skipped
_JOIN_S = 5.0  # a killed process that waits for a dead file server does not end
PROCESS_VARIABLES = {  # of the environment of a new process
    # glibc keeps freed memory for the next input: page faults take a tenth of the time.
    "MALLOC_MMAP_THRESHOLD_": "33554432",  # bytes
    "MALLOC_TRIM_THRESHOLD_": "268435456",
    "OPENBLAS_NUM_THREADS": "1",  # numpy reads it when it is imported
    "PYTHONSAFEPATH": "1",  # no module of the current folder is imported
}
# Forking a process that has threads (pyarrow, torch) may deadlock.
_CONTEXT = multiprocessing.get_context("spawn")


class WorkerPool:
    """Processes that make shards; they start when there is work and end with `close`."""

    def __init__(self, size: int) -> None:
        self._size = min(size, WORKERS_PER_CORE * (os.cpu_count() or 1))
        self._workers: list[_Worker] = []
        self._waiting: deque[ShardTask] = deque()
        self._deaths = Counter[tuple[str, int]]()  # of processes, by path of the shard and input

    def close(self) -> None:
        """End all processes."""
        while self._workers:
            self._workers.pop().kill()

    def run(
        self, tasks: Sequence[ShardTask], on_progress: Callable[[int], Any] = lambda inputs: None
    ) -> ShardResults:
        """Make shards and yield each with its result; an error or interruption kills all processes.

        `on_progress` is called several times a second with the number of inputs read for unfinished
        shards. Raises TrajformerError: a shard cannot be written, or an input cannot be used and
        its task is strict.
        """
        self._waiting = deque(tasks)
        self._deaths.clear()
        try:
            while self._waiting or any(worker.task for worker in self._workers):
                self._assign()
                busy = [worker for worker in self._workers if not worker.idle]
                answered = wait([worker.pipe for worker in busy], POLL_S)
                for worker in busy:
                    if worker.pipe in answered:
                        task = worker.task
                        result = self._receive(worker)
                        if task and result:
                            yield task, result
                    else:
                        self._replace_if_stuck(worker)
                on_progress(sum(max(worker.number, 0) for worker in self._workers))
        except BaseException:
            self.close()
            raise

    def _assign(self) -> None:
        """Start missing workers and send waiting tasks to idle ones."""
        missing = min(self._size, len(self._waiting)) - len(self._workers)
        for _ in range(missing):
            self._workers.append(_Worker())
        for worker in self._workers:
            if worker.idle and self._waiting:
                worker.send(self._waiting.popleft())

    def _receive(self, worker: "_Worker") -> ShardResult | None:
        """The result of a worker; None if it has just started or has died. Raises its error."""
        task = worker.task
        number = worker.number
        answer = worker.receive()
        if isinstance(answer, ShardResult):
            return answer
        if isinstance(answer, TrajformerError):
            raise answer
        if answer is None:
            self._remove(worker)
            self._repeat_after_death(task, number)
        return None

    def _replace_if_stuck(self, worker: "_Worker") -> None:
        """Kill a worker that is stuck and make its shard again without the input that it reads."""
        task = worker.task
        number = worker.stuck_input()
        if task and number is not None:
            self._remove(worker)
            self._waiting.appendleft(task.without(number, task.timeout_text))

    def _remove(self, worker: "_Worker") -> None:
        self._workers.remove(worker)
        worker.kill()

    def _repeat_after_death(self, task: ShardTask | None, number: int) -> None:
        """Put back the task of a process that died while it read input `number`."""
        key = (str(task.path), number) if task else ("start", 0)
        self._deaths[key] += 1
        if self._deaths[key] < _MAX_READS:
            if task:
                self._waiting.appendleft(task)
            return
        if task is None:
            problem = "a process that reads scenes cannot be started: out of memory?"
            hint = 'a script that prepares needs `if __name__ == "__main__":`'
            raise TrajformerError(f"{problem} ({hint})")
        if not 0 <= number < len(task.inputs):
            problem = "the process that makes it is killed (out of memory?)"
            raise TrajformerError(f"{task.path}: {problem}: try fewer workers")
        self._waiting.appendleft(task.without(number, KILLED))


class _Worker:
    """A process that makes one shard after the other."""

    def __init__(self) -> None:
        self.task: ShardTask | None = None
        # Not idle during the start: sending a task that is larger than the pipe would block.
        self.idle = False
        # Number of the input being read, written by the process; -1 before the first.
        self._input_number = _CONTEXT.RawValue("q", -1)
        self._last_number = -1
        self._last_change = time.monotonic()
        self.pipe, child_pipe = _CONTEXT.Pipe()
        arguments = (child_pipe, self._input_number)
        self._process = _CONTEXT.Process(target=serve, args=arguments, daemon=True)
        with _start_settings():
            self._process.start()
        child_pipe.close()  # so that the pipe ends with the process

    def send(self, task: ShardTask) -> None:
        """Begin a shard."""
        self.task = task
        self.idle = False
        self._input_number.value = -1
        self._last_number = -1
        self._last_change = time.monotonic()
        with suppress(OSError):  # the process may have died: then `receive` returns None
            self.pipe.send(task)

    def receive(self) -> Answer | None:
        """The result of the shard, an error, READY after the start, or None if the process died."""
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            return None
        self.task = None
        self.idle = True
        return answer

    @property
    def number(self) -> int:
        """Number of the input being read.

        -1 before the first, the number of inputs while the shard is written.
        """
        return self._input_number.value if self.task else -1

    def stuck_input(self) -> int | None:
        """Number of an input that takes much longer than its limit: the alarm had no effect."""
        number = self.number
        if number != self._last_number:
            self._last_number = number
            self._last_change = time.monotonic()
        if self.task is None or not 0 <= number < len(self.task.inputs):
            return None
        limit_s = 2 * self.task.timeout_s + 1
        is_stuck = time.monotonic() - self._last_change > limit_s
        return number if is_stuck else None

    def kill(self) -> None:
        """End the process in any state."""
        self._process.kill()
        self._process.join(_JOIN_S)
        self.pipe.close()


@contextmanager
def _start_settings() -> Iterator[None]:
    """Settings that a new process inherits.

    It ignores Ctrl-C, which its parent handles. It has no threads for matrix products: readers need
    none, and they take a tenth of the start. Ctrl-C and termination wait for the end of the block:
    a process prints a traceback if its parent ends while starting it.
    """
    late_signals: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, *TERMINATION_SIGNALS):
            handlers[number] = signal.signal(number, lambda n, _: late_signals.append(n))
    before = dict(os.environ)
    os.environ |= PROCESS_VARIABLES
    resource_tracker.ensure_running()  # it unblocks the signal when it starts
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        for name in PROCESS_VARIABLES:
            if name in before:
                os.environ[name] = before[name]
            else:  # an empty text would be the number 0 for the C library of later processes
                del os.environ[name]
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for late_signal in late_signals:
            signal.raise_signal(late_signal)
