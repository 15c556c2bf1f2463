"""Makes shards on a Ray cluster with a shared file system.

Only this module imports the optional package `ray` (extra `ray`).
"""

import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any

from data_prep.engine.limits import Alarm, InputTimeout
from data_prep.engine.local_runner import WorkerPool
from data_prep.engine.tasks import ShardResult, ShardResults, ShardTask
from trajformer.errors import TrajformerError

PROBE_S = 10.0
CONNECT_S = 30.0
START_S = 120.0
POLL_S = 1.0
TASKS_PER_CPU = 2  # tasks submitted at a time: one runs, one waits
MAX_LOSSES = 4  # losses of a worker or machine after which a shard fails
OBJECT_STORE_BYTES = 100_000_000  # tasks and results are small, scenes never pass through Ray


def run_on_ray(
    tasks: Sequence[ShardTask], workers: int, address: str | None, on_progress: Callable[[int], Any]
) -> ShardResults:
    """Make shards on a cluster and yield each with its result.

    Raw and store folder have the same path on all machines. A worker of the cluster reads in a
    process of a `WorkerPool`, so that the result does not depend on the machine. The shard of a
    lost worker or machine is made again. `address` is "HOST:PORT" of the cluster's head,
    "ray://HOST:PORT", "auto", or None to start Ray with `workers` processes on this machine; a
    running cluster uses all its processors. `on_progress` is called once a second with 0: inputs
    are counted when their shard is finished. Raises TrajformerError: ray is not installed, there is
    no cluster at the address, or as `WorkerPool.run`.
    """
    with connect(workers, address) as ray:
        make_shard = ray.remote(num_cpus=1, max_retries=0)(_make_shard)
        waiting = deque(tasks)
        running: dict[Any, ShardTask] = {}
        losses = Counter[str]()
        while waiting or running:
            cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
            while waiting and len(running) < TASKS_PER_CPU * cpus:
                task = waiting.popleft()
                running[make_shard.remote(task)] = task
            finished, _ = ray.wait(list(running), timeout=POLL_S)
            for reference in finished:
                task = running.pop(reference)
                result = _get_result(ray, reference, task, losses)
                if result is None:
                    waiting.appendleft(task)
                elif isinstance(result, TrajformerError):
                    raise result
                else:
                    yield task, result
            on_progress(0)


def _get_result(
    ray: Any, reference: Any, task: ShardTask, losses: Counter[str]
) -> ShardResult | TrajformerError | None:
    """The result of a finished task; None if its worker was lost. Counts the losses."""
    errors = ray.exceptions
    worker_lost = (
        errors.WorkerCrashedError,
        errors.OutOfMemoryError,
        errors.NodeDiedError,
        errors.ObjectLostError,
    )
    try:
        return ray.get(reference)
    except worker_lost as error:
        losses[str(task.path)] += 1
        if losses[str(task.path)] >= MAX_LOSSES:
            problem = f"its worker was lost {MAX_LOSSES} times (machines that vanish?)"
            raise TrajformerError(f"{task.path}: {problem}") from error
        return None
    except errors.RayError as error:
        cause = getattr(error, "cause", None) or error
        problem = f"{type(cause).__name__}: {cause}"
        raise TrajformerError(f"{task.path}: ray: {problem}") from error


_pool = WorkerPool(1)  # in a worker of the cluster; its process is kept from shard to shard


def _make_shard(task: ShardTask) -> ShardResult | TrajformerError:
    """Make a shard in a worker of the cluster."""
    try:
        [(_, result)] = _pool.run([task])
    except TrajformerError as error:
        return error
    return result


@contextmanager
def connect(workers: int, address: str | None) -> Iterator[Any]:
    """The connected `ray` module; an existing connection is used and kept."""
    try:
        import ray
    except ImportError as error:
        problem = "the executor ray needs the package ray (the extra 'ray'): pip install ray"
        raise TrajformerError(problem) from error
    if ray.is_initialized():
        yield ray
        return
    _start_or_find(ray, workers, address)
    try:
        yield ray
    finally:
        ray.shutdown()


def _start_or_find(ray: Any, workers: int, address: str | None) -> None:
    """Connect to a cluster, or start Ray on this machine."""
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    limit_s = CONNECT_S
    if address is None:
        limit_s = START_S
        options["num_cpus"] = workers
        options["include_dashboard"] = False
        options["object_store_memory"] = OBJECT_STORE_BYTES
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address is not None:
            _probe(address)
        # Ray lets its workers import modules of the current folder.
        with Alarm() as alarm, chdir(Path(__file__).parents[2]):
            alarm.start(limit_s)
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


def _probe(address: str) -> None:
    """Check that a server listens: ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), PROBE_S)
        connection.close()
    except (OSError, OverflowError) as error:
        raise TrajformerError(f"no Ray cluster at {address}: {error}") from error
