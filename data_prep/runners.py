"""Run a function over tasks, in this process or in several, and report progress while it goes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from trajformer.errors import TrajformerError

Task = TypeVar("Task")
Work = Callable[[Task, Callable[[], Any]], None]  # work(task, tick), which calls tick() after every scene
Report = Callable[[int], Any]
POLL_S = 0.2
_counter: Any = None  # in a worker process: the count of finished scenes, shared by all


def in_process(work: Work[Task], tasks: Sequence[Task], report: Report) -> None:
    """Do the tasks here, one after the other; report(n) is called whenever n more scenes are finished."""
    for task in tasks:
        work(task, lambda: report(1))


def in_processes(work: Work[Task], tasks: Sequence[Task], report: Report, workers: int) -> None:
    """Do the tasks in `workers` fresh processes; reports as `in_process` does, a few times a second.

    An error in one task, or Ctrl-C, cancels the tasks not yet begun and waits for the others.

    Raises:
        TrajformerError: a worker died; and whatever `work` raises.
    """
    context = multiprocessing.get_context("spawn")
    counter, seen = context.Value("q", 0), 0
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(counter,))
    try:
        waiting = {pool.submit(_call, work, task) for task in tasks}
        while waiting:
            done, waiting = wait(waiting, POLL_S, FIRST_EXCEPTION)
            for future in done:
                future.result()
            now = counter.value
            report(now - seen)
            seen = now
    except BrokenProcessPool as error:
        reason = "a worker process died (out of memory?); finished shards are kept: run again, with fewer workers"
        raise TrajformerError(reason) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(counter: Any) -> None:
    global _counter
    _counter = counter
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; a shard under way is finished


def _call(work: Work[Task], task: Task) -> None:
    work(task, _tick)


def _tick() -> None:
    with _counter.get_lock():
        _counter.value += 1
