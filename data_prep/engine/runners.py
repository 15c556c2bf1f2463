"""Makes shards in worker processes on this machine or on a Ray cluster, so that no input can end the run.

If an input kills its process (a fault in a C library, out of memory), it is tried once more in a new process; then the
shard is made without it. The result does not depend on the number of processes. `concurrent.futures` has no way to find
the input that killed a worker or to kill a worker that hangs, and it gives up all tasks when one worker dies.
Only this module imports the optional package `ray` (extra `ray`).
"""

import gc
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from data_prep.engine.tasks import (
    KILLED,
    Alarm,
    InputTimeout,
    ShardResult,
    ShardResults,
    ShardTask,
    prepare_shard,
)
from trajformer.errors import TrajformerError

POLL_S = 0.2
_MAX_READS = 2  # an input that kills its process as often is skipped
_JOIN_S = 5.0  # a killed process that waits for a dead file server does not end
_READY = "ready"
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"  # numpy reads it when it is imported
_CONTEXT = multiprocessing.get_context(
    "spawn"
)  # forking a process that has threads (pyarrow, torch) may deadlock


class _Worker:
    """A process that makes one shard after the other."""

    def __init__(self) -> None:
        self.task: ShardTask | None = None
        self.idle = (
            False  # False during the start: sending a task that is larger than the pipe would block
        )
        self._reading = _CONTEXT.RawValue(
            "q", -1
        )  # number of the input being read, -1 before the first
        self._last_seen, self._since = -1, time.monotonic()
        self.pipe, child_pipe = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=_serve, args=(child_pipe, self._reading), daemon=True
        )
        with _start_settings():
            self._process.start()
        child_pipe.close()  # so that the pipe ends with the process

    def send(self, task: ShardTask) -> None:
        """Begin a shard."""
        self.task, self.idle, self._reading.value = task, False, -1
        self._last_seen, self._since = -1, time.monotonic()
        with suppress(OSError):  # the process may have died: then `receive` returns None
            self.pipe.send(task)

    def receive(self) -> ShardResult | TrajformerError | str | None:
        """The result of the shard, an error, _READY after the start, or None if the process has died."""
        try:
            answer = self.pipe.recv()
        except (EOFError, OSError):
            return None
        self.task, self.idle = None, True
        return answer

    @property
    def number(self) -> int:
        """Number of the input being read: -1 before the first, the number of inputs while the shard is written."""
        return self._reading.value if self.task else -1

    def is_stuck(self) -> bool:
        """Whether an input takes much longer than its time limit, because the process does not react to its alarm."""
        if self.number != self._last_seen:
            self._last_seen, self._since = self.number, time.monotonic()
        if self.task is None or not 0 <= self._last_seen < len(self.task.inputs):
            return False
        return time.monotonic() - self._since > 2 * self.task.timeout_s + 1

    def kill(self) -> None:
        """End the process in any state."""
        self._process.kill()
        self._process.join(_JOIN_S)
        self.pipe.close()


class WorkerPool:
    """Processes that make shards; they start when there is work and end with the `with` block."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[_Worker] = []
        self._waiting: deque[ShardTask] = deque()
        self._deaths = Counter[tuple[str, int]]()

    def close(self) -> None:
        """End all processes."""
        while self._workers:
            self._workers.pop().kill()

    def run(
        self, tasks: Sequence[ShardTask], on_progress: Callable[[int], Any] = lambda inputs: None
    ) -> ShardResults:
        """Make shards and yield each with its result; an error or an interruption kills all processes.

        `on_progress` is called several times a second with the number of inputs read for unfinished shards. Raises
        TrajformerError: a shard cannot be written, or an input cannot be used and its task is strict.
        """
        self._waiting, self._deaths = deque(tasks), Counter()
        try:
            while self._waiting or any(worker.task for worker in self._workers):
                self._assign()
                busy = [worker for worker in self._workers if not worker.idle]
                ready = wait([worker.pipe for worker in busy], POLL_S)
                for worker in busy:
                    task, number = worker.task, worker.number
                    if worker.pipe in ready:
                        answer = worker.receive()
                        if answer is None:
                            self._remove(worker)
                            self._waiting.extendleft(self._after_death(task, number))
                        elif isinstance(answer, TrajformerError):
                            raise answer
                        elif task and isinstance(answer, ShardResult):
                            yield task, answer
                    elif task and worker.is_stuck():
                        self._remove(worker)
                        self._waiting.appendleft(task.without(number, task.timeout_text))
                on_progress(sum(max(worker.number, 0) for worker in self._workers))
        except BaseException:
            self.close()
            raise

    def _assign(self) -> None:
        for _ in range(min(self._size, len(self._waiting)) - len(self._workers)):
            self._workers.append(_Worker())
        for worker in self._workers:
            if worker.idle and self._waiting:
                worker.send(self._waiting.popleft())

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.kill()

    def _after_death(self, task: ShardTask | None, number: int) -> list[ShardTask]:
        """The task to repeat after a process died while it read input `number`."""
        key = (str(task.path), number) if task else ("start", 0)
        self._deaths[key] += 1
        if self._deaths[key] < _MAX_READS:
            return [task] if task else []
        if task is None:
            hint = 'a script that prepares needs `if __name__ == "__main__":`'
            raise TrajformerError(
                f"a process that reads scenes cannot be started: out of memory? ({hint})"
            )
        if 0 <= number < len(task.inputs):
            return [task.without(number, KILLED)]
        raise TrajformerError(
            f"{task.path}: the process that makes it is killed (out of memory?): try fewer workers"
        )


@contextmanager
def _start_settings() -> Iterator[None]:
    """Settings that a new process inherits.

    It ignores Ctrl-C, which its parent handles. It has no threads for matrix products: readers need none, and they take a
    tenth of the start. Ctrl-C and SIGTERM wait for the end of the block: a process whose parent ends while it starts it
    prints a traceback.
    """
    resource_tracker.ensure_running()  # started inside the block, it would unblock the signal
    late: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {
            n: signal.signal(n, lambda number, _: late.append(number))
            for n in (signal.SIGINT, signal.SIGTERM)
        }
    mask, before = (
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}),
        os.environ.get(_BLAS_THREADS),
    )
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_BLAS_THREADS]
        os.environ |= {} if before is None else {_BLAS_THREADS: before}
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, handler in handlers.items():
            signal.signal(name, handler)
        for number in late:
            signal.raise_signal(number)


# ---- in a worker process -------------------------------------------------------------------------------------------


def _serve(pipe: Connection, reading: Any) -> None:
    """Make the shards that arrive through the pipe until it is closed."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    gc.freeze()
    gc.set_threshold(
        100_000, 20, 50
    )  # maps are many small objects without cycles: the search for cycles costs 4 %
    answer: ShardResult | TrajformerError | str = _READY
    while True:
        pipe.send(answer)
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        except Exception as error:  # this process cannot import the reader
            answer = TrajformerError(f"a task cannot be read: {type(error).__name__}: {error}")
            continue
        try:
            answer = prepare_shard(task, partial(setattr, reading, "value"))
        except TrajformerError as error:
            answer = type(error)(str(error))  # without attributes that cannot be pickled
        except Exception as error:
            answer = TrajformerError(f"{task.path}: {type(error).__name__}: {error}")
        gc.collect()  # cycles of a library may hold large objects


def _exit_with_parent() -> None:
    """End this process when its parent ends, also when the parent is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# ---- on a Ray cluster with a shared file system ----------------------------------------------------------------------

PROBE_S, CONNECT_S, START_S = 10.0, 30.0, 120.0
RAY_POLL_S = 1.0
TASKS_PER_CPU = 2  # tasks submitted at a time: one runs, one waits
MAX_LOSSES = 4  # losses of a worker or machine after which a shard fails
OBJECT_STORE_BYTES = 100_000_000  # tasks and results are small, scenes never pass through Ray


def run_on_ray(
    tasks: Sequence[ShardTask], workers: int, address: str | None, on_progress: Callable[[int], Any]
) -> ShardResults:
    """Make shards on a cluster, on which raw and store folder have the same path, and yield each with its result.

    A worker of the cluster reads in a process of a `WorkerPool`, so that the result does not depend on the machine. The shard of
    a lost worker or machine is made again. `address` is "HOST:PORT" of the cluster's head, "ray://HOST:PORT", "auto", or None to
    start Ray with `workers` processes on this machine; a running cluster uses all its processors. `on_progress` is called once a
    second with 0: inputs are counted when their shard is finished. Raises TrajformerError: ray is not installed, there is no
    cluster at the address, or as `WorkerPool.run`.
    """
    with _connect(workers, address) as ray:
        make_shard = ray.remote(num_cpus=1, max_retries=0)(_make_shard)
        waiting, losses, lost = deque(tasks), Counter[str](), ray.exceptions
        running: dict[Any, ShardTask] = {}
        while waiting or running:
            free = TASKS_PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1))) - len(running)
            for _ in range(min(free, len(waiting))):
                task = waiting.popleft()
                running[make_shard.remote(task)] = task
            for done in ray.wait(list(running), timeout=RAY_POLL_S)[0]:
                task = running.pop(done)
                try:
                    result = ray.get(done)
                except (
                    lost.WorkerCrashedError,
                    lost.OutOfMemoryError,
                    lost.NodeDiedError,
                    lost.ObjectLostError,
                ) as error:
                    losses[str(task.path)] += 1
                    if losses[str(task.path)] >= MAX_LOSSES:
                        times = f"{MAX_LOSSES} times (machines that vanish?)"
                        raise TrajformerError(
                            f"{task.path}: its worker was lost {times}"
                        ) from error
                    waiting.appendleft(task)
                    continue
                except lost.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    raise TrajformerError(
                        f"{task.path}: ray: {type(cause).__name__}: {cause}"
                    ) from error
                if isinstance(result, TrajformerError):
                    raise result
                yield task, result
            on_progress(0)


_pool = WorkerPool(1)  # in a worker of the cluster; its process is kept from shard to shard


def _make_shard(task: ShardTask) -> ShardResult | TrajformerError:
    """Make a shard in a worker of the cluster."""
    try:
        [(_, result)] = _pool.run([task])
    except TrajformerError as error:
        return error
    return result


@contextmanager
def _connect(workers: int, address: str | None) -> Iterator[Any]:
    """The connected `ray` module; an existing connection is used and kept."""
    try:
        import ray
    except ImportError as error:
        raise TrajformerError(
            "the executor ray needs the package ray (the extra 'ray'): pip install ray"
        ) from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {
            "num_cpus": workers,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    handler = signal.getsignal(signal.SIGTERM)
    try:
        _probe(address)
        with Alarm() as alarm:
            alarm.start(CONNECT_S if address else START_S)
            ray.init(address=address or "local", **options)
    except TrajformerError:
        raise
    except (Exception, SystemExit, InputTimeout) as error:  # ray raises SystemExit when it gives up
        problem = " ".join(str(error).split()) or "no answer"
        if address is None:
            raise TrajformerError(f"Ray cannot be started: {problem}") from error
        hint = "a cluster with authentication needs the environment variable RAY_AUTH_MODE=token"
        raise TrajformerError(f"no Ray cluster at {address}: {problem} ({hint})") from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # ray replaces it
    try:
        yield ray
    finally:
        ray.shutdown()


def _probe(address: str | None) -> None:
    """Check that a server listens: ray would try for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
        except (OSError, OverflowError) as error:
            raise TrajformerError(f"no Ray cluster at {address}: {error}") from error
