"""Forecasts and scores of a split in parts: by several processes, or by actors of a Ray cluster.

Parts have the same scenes and batches for any number of processes, so that the result is the same.
Each process has one thread unless --threads of a command with a model is given.
"""

from __future__ import annotations

import copy
import os
import signal
import warnings
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from trajformer.cli.files import bars
from trajformer.cli.forecasters import load_forecaster
from trajformer.cli.parsing import Parser, Workers
from trajformer.errors import HANGUP, TrajformerError, TrajformerWarning, one_line
from trajformer.evaluation.parts import Part, Slice
from trajformer.scenes.spec import warn
from trajformer.scenes.store import SceneStore

if TYPE_CHECKING:
    from trajformer.models.forecaster import Predictor

MAX_LOSSES = 4  # of an actor of Ray, which starts again
POLL_S = 1.0
REPEAT = "the same command continues, perhaps with fewer --workers"


# Makes the result of a part, with the forecaster if there is one. It is a function of a module,
# which other processes can import.
Job = Callable[["Predictor | None", Slice], Any]
# The result, and warnings about the scenes of the part.
Result = tuple[Any, list[str]]


def add_parts(parser: Parser) -> None:
    """Add the options for several processes and machines."""
    parser.add_argument(
        "--workers",
        type=Workers,
        help="number of processes, with one thread each by default; the result is the same for "
        "any number, and after an interruption the same command continues (`evaluate` and `score` "
        "only with --json)",
    )
    parser.add_argument(
        "--cluster",
        choices=("local", "ray"),
        default="local",
        help="local processes, or a Ray cluster on which all paths are shared folders: one actor "
        "for each GPU, or for each CPU if there is no GPU or no model, at most --workers",
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="HOST:PORT of the head of the cluster, or auto (default: start Ray on this machine)",
    )


def has_parts(args: Namespace) -> bool:
    """Whether the options of `add_parts` ask for parts (TrajformerError: they do not fit)."""
    if args.ray_address is not None and args.cluster != "ray":
        raise TrajformerError("--ray-address: is for --cluster ray")
    return args.workers is not None or args.cluster == "ray"


def run_parts(
    args: Namespace, source: Path | str | None, jobs: Mapping[Part, Job], done: int = 0
) -> Iterator[tuple[Part, Any]]:
    """Yield parts with their results, in any order; at the end, repeat the warnings of one part.

    `source` is a model of `forecasters.sources`, or None for jobs without a forecaster, and `done`
    the number of scenes of parts that exist. Raises TrajformerError: a process ended, there is no
    Ray cluster, or an error of a job.
    """
    if not jobs:
        return
    worker = _Worker(args, source)
    run = _run_on_ray if args.cluster == "ray" else _run_locally
    messages: dict[int, list[str]] = {}
    total = done + sum(part.stop - part.start for part in jobs)
    bar = tqdm(total=total, initial=done, unit="scene", desc=args.split, disable=not bars())
    with bar:
        for part, (result, warned) in run(args, worker, jobs):
            bar.update(part.stop - part.start)
            if warned:
                messages[part.start] = warned
            yield part, result
    if messages:
        for message in messages[min(messages)]:
            warn(message)


class _Worker:
    """A process, or an actor of Ray, which loads scenes and model once."""

    def __init__(self, args: Namespace, source: Path | str | None) -> None:
        # The current folder of a process of Ray differs.
        if isinstance(source, Path) and source.exists():
            source = source.absolute()
        self.source = source
        self.args = copy.copy(args)
        self.args.store = args.store.absolute()
        self.loaded: tuple[SceneStore, Predictor | None] | None = None

    def make(self, job: Job, part: Part) -> Result | TrajformerError:
        """The result of a part; errors about its input are returned, because Ray wraps them."""
        import torch

        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", TrajformerWarning)
                if self.loaded is None:
                    self.loaded = self._load()
                    torch.set_num_threads(self.args.threads or 1)
                    caught.clear()  # the first process has shown them
                scenes, predictor = self.loaded
                result = job(predictor, Slice(scenes, part))
        except TrajformerError as error:
            return error
        return result, [str(one.message) for one in caught]

    def _load(self) -> tuple[SceneStore, Predictor | None]:
        if self.source is None:
            return SceneStore(self.args.store, self.args.split), None
        return load_forecaster(self.args, self.source, "predict")


_worker: _Worker | None = None  # of a local process


def _start(worker: _Worker) -> None:
    """Keep the worker of a new process, which leaves Ctrl-C to its parent."""
    global _worker
    for stop_signal in (signal.SIGINT, HANGUP):
        signal.signal(stop_signal, signal.SIG_IGN)
    _worker = worker


def _make(job: Job, part: Part) -> Result | TrajformerError:
    assert _worker is not None
    return _worker.make(job, part)


def _checked(result: Result | TrajformerError) -> Result:
    if isinstance(result, TrajformerError):
        raise result
    return result


def _run_locally(
    args: Namespace, worker: _Worker, jobs: Mapping[Part, Job]
) -> Iterator[tuple[Part, Result]]:
    """Results of processes of this machine."""
    num_processes = min(args.workers, len(jobs))
    if num_processes == 1:  # the start of another process takes seconds
        for part, job in jobs.items():
            yield part, _checked(worker.make(job, part))
        return
    # Forking a process that has threads may deadlock.
    context = get_context("spawn")
    pool = ProcessPoolExecutor(num_processes, context, _start, (worker,))
    try:
        running: dict[Future[Result | TrajformerError], Part] = {}
        for part, job in jobs.items():
            running[pool.submit(_make, job, part)] = part
        for future in as_completed(running):
            # A result may be large, so none is kept.
            yield running.pop(future), _checked(future.result())
    except BrokenProcessPool as error:
        reason = "a process ended, perhaps because memory was short"
        raise TrajformerError(f"{reason}; {REPEAT}") from error
    finally:
        pool.shutdown(cancel_futures=True)  # waits for parts that are being made


def _run_on_ray(
    args: Namespace, worker: _Worker, jobs: Mapping[Part, Job]
) -> Iterator[tuple[Part, Result]]:
    """Results of the actors of a cluster; Ray repeats the part of a lost actor."""
    from data_prep.engine.ray_runner import connect

    with connect(args.workers or os.cpu_count() or 1, args.ray_address) as ray:
        resources = ray.cluster_resources()
        num_devices = int(resources.get("CPU", 1))
        uses: dict[str, Any] = {"num_cpus": 1}
        if args.accelerator != "cpu" and resources.get("GPU", 0) >= 1:
            num_devices = int(resources["GPU"])
            uses["num_gpus"] = 1
        restarts = {"max_restarts": MAX_LOSSES, "max_task_retries": MAX_LOSSES}
        actor_class = ray.remote(**uses, **restarts)(_Worker)
        count = min(args.workers or num_devices, num_devices, len(jobs))
        idle = [actor_class.remote(worker.args, worker.source) for _ in range(count)]
        waiting = deque(jobs.items())
        running: dict[Any, tuple[Any, Part]] = {}
        while waiting or running:
            while waiting and idle:
                actor = idle.pop()
                part, job = waiting.popleft()
                running[actor.make.remote(job, part)] = (actor, part)
            finished, _ = ray.wait(list(running), timeout=POLL_S)
            for reference in finished:
                actor, part = running.pop(reference)
                try:
                    result = ray.get(reference)
                except ray.exceptions.RayError as error:
                    raise TrajformerError(f"ray: {one_line(error)}; {REPEAT}") from error
                idle.append(actor)
                yield part, _checked(result)
