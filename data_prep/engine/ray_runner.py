"""Makes shards on a Ray cluster with a shared file system: the same tasks, the same bytes.

Only this module imports the optional package `ray` (extra `ray`).
"""

from __future__ import annotations

import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from data_prep.engine.runners import WorkerPool
from data_prep.engine.tasks import Alarm, InputTimeout, ShardResult, ShardResults, ShardTask
from trajformer.errors import TrajformerError

PROBE_S, CONNECT_S, START_S = 10.0, 30.0, 120.0
POLL_S = 1.0
TASKS_PER_CPU = 2  # tasks submitted at a time: one runs, one waits
MAX_ATTEMPTS = 4  # losses of a worker or machine after which a shard fails
OBJECT_STORE_BYTES = 100_000_000  # tasks and results are small, scenes never pass through Ray


def run_on_ray(tasks: Sequence[ShardTask], workers: int, address: str | None, on_progress: Callable[[int], Any]) -> ShardResults:
    """Make shards on a cluster, on which raw and store folder have the same path, and yield each with its result.

    A worker of the cluster reads in a process of a `WorkerPool`, so that the result does not depend on the
    machine. The shard of a lost worker or machine is made again.

    Args:
        tasks: the shards.
        workers: number of processes of a Ray started on this machine; all processors of a running cluster are used.
        address: "HOST:PORT" of the cluster's head, "ray://HOST:PORT", "auto", or None to start Ray on this machine.
        on_progress: called once a second with 0: inputs are counted when their shard is finished.

    Raises:
        TrajformerError: ray is not installed, there is no cluster at the address, or as `WorkerPool.run`.
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
            for done in ray.wait(list(running), timeout=POLL_S)[0]:
                task = running.pop(done)
                try:
                    result = ray.get(done)
                except (lost.WorkerCrashedError, lost.OutOfMemoryError, lost.NodeDiedError, lost.ObjectLostError) as error:
                    losses[str(task.path)] += 1
                    if losses[str(task.path)] >= MAX_ATTEMPTS:
                        times = f"{MAX_ATTEMPTS} times (machines that vanish?)"
                        raise TrajformerError(f"{task.path}: its worker was lost {times}") from error
                    waiting.appendleft(task)
                    continue
                except lost.RayError as error:
                    cause = getattr(error, "cause", None) or error
                    raise TrajformerError(f"{task.path}: ray: {type(cause).__name__}: {cause}") from error
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
        raise TrajformerError("the executor ray needs the package ray (the extra 'ray'): pip install ray") from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"num_cpus": workers, "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
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
