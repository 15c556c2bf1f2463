"""Forecasts of a split by several processes, in parts that an interrupted run keeps.

Parts have the same scenes and batches for any number of processes, so the result is the same. A
part is written next to the output, atomically; the same command continues with the parts that are
missing. Each process has one thread unless --threads is given.
"""

from __future__ import annotations

import hashlib
import json
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from tqdm import tqdm

from trajformer.cli.files import bars
from trajformer.cli.forecasters import load_forecaster, sources
from trajformer.errors import HANGUP, TrajformerError, TrajformerWarning
from trajformer.scenes.files import write_atomically
from trajformer.scenes.manifest import shard_sizes
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import warn

if TYPE_CHECKING:
    from trajformer.evaluation.forecast_file import TrackForecast
    from trajformer.models.forecaster import Predictor
    from trajformer.scenes.store import SceneStore

MIN_SCENES = 256  # of a part, but the last one
_INPUTS = "inputs.json"


@dataclass(frozen=True)
class Part:
    """Scenes `start` to `stop` of a split, and the file of their forecasts."""

    start: int
    stop: int
    batch_size: int
    path: Path


class _Slice:
    """Some neighboring scenes of a split, as `Scenes` for `track_forecasts`."""

    def __init__(self, scenes: SceneStore, start: int, stop: int) -> None:
        self.scenes = scenes
        self.start = start
        self.stop = stop
        self.split = scenes.split
        self.root = scenes.root

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> Scene:
        return self.scenes[self.start + index]


def parts_folder(out: Path) -> Path:
    """The folder with the parts of an output."""
    return out.with_name(f".{out.name}.parts")


def forecasts_of_parts(args: Namespace, scenes: SceneStore) -> Iterator[TrackForecast]:
    """Forecast the parts that are missing with `args.workers` processes; then yield all forecasts.

    Raises TrajformerError: the parts next to `args.out` are of other inputs, a process ended, or an
    error of `track_forecasts`.
    """
    from trajformer.evaluation.forecast_file import read_forecasts

    folder = parts_folder(args.out)
    folder.mkdir(parents=True, exist_ok=True)
    _check_inputs(args, folder)
    parts = _plan(folder, len(scenes), args.batch_size)
    missing = [part for part in parts if not part.path.is_file()]
    make_parts(args, missing, len(scenes))
    for part in parts:
        for tracks in read_forecasts(part.path).values():
            yield from tracks


def _plan(folder: Path, scenes: int, batch_size: int) -> list[Part]:
    """Parts of whole batches, so that no batch depends on the parts."""
    size = -(-MIN_SCENES // batch_size) * batch_size
    parts = []
    for start in range(0, scenes, size):
        stop = min(start + size, scenes)
        parts.append(Part(start, stop, batch_size, folder / f"{start:09d}.parquet"))
    return parts


def _check_inputs(args: Namespace, folder: Path) -> None:
    """Write the inputs of a run to a file (TrajformerError: the parts are of other inputs)."""
    [source] = sources(args)
    model = str(source)
    if isinstance(source, Path) and source.is_file():
        model = hashlib.sha256(source.read_bytes()).hexdigest()
    names = ("split", "agents", "joint", "batch_size", "threads", "accelerator")
    inputs = {name: args[name] for name in names}
    inputs["model"] = model
    shards = json.dumps(shard_sizes(args.store / args.split), sort_keys=True)
    inputs["shards"] = hashlib.sha256(shards.encode()).hexdigest()
    text = json.dumps(inputs, sort_keys=True) + "\n"
    path = folder / _INPUTS
    if path.is_file() and path.read_text(encoding="utf-8") != text:
        reason = "has forecasts of an interrupted run with another model, store or option"
        raise TrajformerError(f"{folder}: {reason}; remove this folder, or repeat that command")
    write_atomically(path, text)


def make_parts(args: Namespace, parts: list[Part], num_scenes: int) -> None:
    """Write the files of parts, and repeat the warnings of the first part that has some."""
    if not parts:
        return
    done = num_scenes - sum(part.stop - part.start for part in parts)
    bar = tqdm(total=num_scenes, initial=done, unit="scene", desc=args.split, disable=not bars())
    workers = min(args.workers, len(parts))
    # Forking a process that has threads may deadlock.
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _start, (args,))
    messages: list[str] = []
    try:
        with bar:
            running: dict[Future[list[str]], Part] = {}
            for part in parts:
                running[pool.submit(_make_part, part)] = part
            for future in as_completed(running):
                messages = messages or future.result()
                bar.update(running[future].stop - running[future].start)
    except BrokenProcessPool as error:
        reason = "a process ended, perhaps because memory was short"
        advice = "the same command continues, perhaps with fewer --workers"
        raise TrajformerError(f"{reason}; {advice}") from error
    finally:
        pool.shutdown(cancel_futures=True)  # waits for parts that are being made
    for message in messages:
        warn(message)


_state: tuple[SceneStore, Predictor] | None = None  # of a worker process


def _start(args: Namespace) -> None:
    """Load scenes and model in a new process, which leaves Ctrl-C to its parent."""
    import torch

    global _state
    for stop_signal in (signal.SIGINT, HANGUP):
        signal.signal(stop_signal, signal.SIG_IGN)
    [source] = sources(args)
    _state = load_forecaster(args, source, "predict")
    torch.set_num_threads(args.threads or 1)


def _make_part(part: Part) -> list[str]:
    """Write the file of a part; returns warnings about its scenes."""
    from trajformer.evaluation.evaluate import track_forecasts
    from trajformer.evaluation.forecast_file import check_forecast, write_forecasts
    from trajformer.scenes.spec import DataSpec

    assert _state is not None
    scenes, predictor = _state
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TrajformerWarning)
        own = _Slice(scenes, part.start, part.stop)
        forecasts = track_forecasts(predictor, own, batch_size=part.batch_size)
        checked = [check_forecast(forecast) for forecast in forecasts]
    messages = [str(one.message) for one in caught]
    with warnings.catch_warnings():
        # The joined file has the warnings about its tracks.
        warnings.simplefilter("ignore", TrajformerWarning)
        write_forecasts(part.path, checked, DataSpec.of(scenes[part.start]))
    return messages
