"""Make shards on a Ray cluster whose machines share the file system: the same tasks, the same bytes.

The optional package `ray` is imported here alone (extra `ray`).
"""

from __future__ import annotations

import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from data_prep.engine.overtime import Overtime, time_bound
from data_prep.engine.runners import Crew, Report
from data_prep.engine.tasks import ShardResult, ShardTask
from trajformer.errors import TrajformerError

PROBE_S, CONNECT_S, START_S = 10.0, 30.0, 120.0
POLL_S = 1.0
TASKS_A_CPU = 2  # handed to the cluster at a time: one is made, one waits
CHANCES = 4  # losses of a worker or its machine that one shard survives
LOCAL_STORE_BYTES = 100_000_000  # tasks and results are small, scenes never pass through Ray


def on_ray(tasks: Sequence[ShardTask], workers: int, address: str | None, report: Report) -> None:
    """Make shards on a cluster; reports shard by shard.

    A worker of the cluster has a process of its own that reads, as `runners.Crew` does here, so what is found does
    not depend on where a shard is made. A shard whose worker or machine is lost is made again.

    Args:
        tasks: shards to make; raw and store folder are the same on every machine.
        workers: processes of the Ray started here when there is no address; a cluster is used as a whole.
        address: "HOST:PORT" of the cluster's head, "ray://HOST:PORT", "auto", or None to start Ray on this machine.
        report: told of the progress.

    Raises:
        TrajformerError: ray is not installed, nothing answers at the address, or as `Crew.make`.
    """
    with _connected(workers, address) as ray:
        make = ray.remote(num_cpus=1, max_retries=0)(_make)
        waiting, losses = deque(tasks), Counter[str]()
        running: dict[Any, ShardTask] = {}
        while waiting or running:
            room = TASKS_A_CPU * max(1, int(ray.cluster_resources().get("CPU", 1))) - len(running)
            for _ in range(min(room, len(waiting))):
                task = waiting.popleft()
                running[make.remote(task)] = task
            for done in ray.wait(list(running), timeout=POLL_S)[0]:
                task = running.pop(done)
                if (result := _result(ray, done, task)) is not None:
                    report.finished(task, result)
                    continue
                losses[str(task.path)] += 1
                if losses[str(task.path)] >= CHANCES:
                    raise TrajformerError(f"{task.path}: its worker was lost {CHANCES} times (machines that vanish?)")
                waiting.appendleft(task)
            report.reading(0)


def _result(ray: Any, done: Any, task: ShardTask) -> ShardResult | None:
    """A finished shard, or None when its worker was lost."""
    errors = ray.exceptions
    try:
        answer = ray.get(done)
    except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError, errors.ObjectLostError):
        return None
    except errors.RayError as error:
        cause = getattr(error, "cause", None) or error
        raise TrajformerError(f"{task.path}: ray: {type(cause).__name__}: {cause}") from error
    if isinstance(answer, TrajformerError):
        raise answer
    return answer


class _Kept:
    """A `runners.Report` that keeps the only result."""

    result: ShardResult

    def reading(self, inputs: int) -> None:
        """Nobody listens."""

    def finished(self, task: ShardTask, result: ShardResult) -> None:
        """Keep it."""
        self.result = result


_crew = Crew(1)  # in a worker of the cluster: its process, kept from shard to shard


def _make(task: ShardTask) -> ShardResult | TrajformerError:
    """Make a shard, in a worker of the cluster."""
    kept = _Kept()
    try:
        _crew.make([task], kept)
    except TrajformerError as error:
        return error
    return kept.result


@contextmanager
def _connected(workers: int, address: str | None) -> Iterator[Any]:
    """The `ray` module, connected; a connection that was there already is used and kept."""
    try:
        import ray
    except ImportError as error:
        raise TrajformerError("the executor ray needs the package ray (the extra 'ray'): pip install ray") from error
    if ray.is_initialized():
        yield ray
        return
    here = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": LOCAL_STORE_BYTES}
    main = threading.current_thread() is threading.main_thread()
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        _probe(address)
        with time_bound(CONNECT_S if address else START_S):
            quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
            ray.init(address=address or "local", **quiet | ({} if address else here))
    except (Exception, SystemExit, Overtime) as error:  # SystemExit is how ray gives up
        if isinstance(error, TrajformerError):
            raise
        problem = " ".join(str(error).split()) or "no answer"
        if address is None:
            raise TrajformerError(f"Ray cannot be started: {problem}") from error
        hint = "a cluster with authentication wants the environment variable RAY_AUTH_MODE=token"
        raise TrajformerError(f"no Ray cluster at {address}: {problem} ({hint})") from error
    finally:
        if main:
            signal.signal(signal.SIGTERM, terminate)  # ray has its own
    try:
        yield ray
    finally:
        ray.shutdown()


def _probe(address: str | None) -> None:
    """See whether anything listens, as ray itself tries for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
        except (OSError, OverflowError) as error:
            raise TrajformerError(f"no Ray cluster at {address}: {error}") from error
