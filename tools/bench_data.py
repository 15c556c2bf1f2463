"""Speed of data preparation and loading: raw files to shards to scenes to batches.

    python tools/bench_data.py [--argoverse2 RAW] [--argoverse1 RAW] [--scenes 2000] [--json FILE]
    python tools/bench_data.py --against CHECKOUT [--argoverse2 RAW] [--argoverse1 RAW]

Argoverse 2 is measured on --scenes scenarios: half are copies of real scenarios of RAW with new
ids, half are simulated; without RAW all are simulated. "Raw to shard" is the whole of `trajformer
preprocess`, from the list of files to the manifest, with the start of the worker process.
--argoverse1 (unpacked, official layout) adds more rows. References run in the same process on the
same files: av2's loader and map API, and the lower bound, bytes to arrays without checks (pyarrow
without threads, msgspec). Values are medians over alternating repeats. Run it on an idle machine.

--against CHECKOUT only compares processor times with another checkout (a folder of `git worktree
add`), in alternating runs: `trajformer preprocess` in one process, start included, of the set above
and of the first --scenes sequences of each Argoverse 1 split, then random reading of these stores.
Both use this Python.
"""

import argparse
import importlib.util
import io
import itertools
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import medians_ms, new_parser, parse, report, times_s

from data_prep.reader import Input
from data_prep.readers.argoverse2.reader import Argoverse2
from trajformer.cli.status import exit_status
from trajformer.scenes.scene import Scene
from trajformer.scenes.store import SceneStore

# Published costs of QCNet: process(), reading a pickle.
QCNET_PREPARE_MS = 32.0
QCNET_READ_US = 900.0
COLUMNS = [
    "track_id",
    "object_type",
    "object_category",
    "timestep",
    "position_x",
    "position_y",
    "heading",
    "velocity_x",
    "velocity_y",
]
BATCH = 32
PREPARE = "import sys; from trajformer.cli import main; sys.exit(main(sys.argv[1:]))"
READ = """
import sys, time, numpy
from trajformer.scenes.store import SceneStore
store = SceneStore(sys.argv[1], "train")
order = numpy.random.default_rng(0).permutation(len(store)).tolist()
repeats = 20_000 // len(order) + 1
for index in order:  # warm the cache
    store[index]
start = time.process_time()
for index in order * repeats:
    store[index]
print((time.process_time() - start) / repeats / len(order))
"""
# Worker processes import this file: modules that `trajformer preprocess` does not need are imported
# inside functions.


def make_set(folder: Path, real: Path | None, count: int) -> dict[str, list[Input]]:
    """Create `folder/set/train` with `count` scenarios, copies with new ids.

    Returns up to eight inputs of each kind, "simulated" and "real".
    """
    from data_prep.synthetic import synthesize

    synthesize(folder / "made", min(count, 100), 0, workers=2, progress=False)
    sources = {"simulated": folder / "made"}
    if real:
        sources["real"] = real
    few: dict[str, list[Input]] = {}
    for name, raw in sources.items():
        scenarios = sorted(raw.glob("*/*/scenario_*.parquet"))
        for index in range(count // len(sources)):
            path = scenarios[index % len(scenarios)]
            old = path.parent.name
            new = f"{index:06d}-{old}"
            target = folder / "set" / "train" / new
            target.mkdir(parents=True)
            shutil.copyfile(path, target / f"scenario_{new}.parquet")
            shutil.copyfile(map_path(path, old), target / f"log_map_archive_{new}.json")
            if index < min(len(scenarios), 8):
                few.setdefault(name, []).append(Input(target / f"scenario_{new}.parquet"))
    return few


def map_path(scenario_path: Path, scenario_id: str) -> Path:
    """Path of the map of a scenario."""
    return scenario_path.with_name(f"log_map_archive_{scenario_id}.json")


# The part of a map that `lower_bound` decodes.


class Point(msgspec.Struct, gc=False):
    """A vertex, metres."""

    x: float
    y: float
    z: float


class Lane(msgspec.Struct, gc=False):
    """The boundaries of a lane segment."""

    left_lane_boundary: list[Point]
    right_lane_boundary: list[Point]


class Area(msgspec.Struct, gc=False):
    """A drivable area."""

    area_boundary: list[Point]


class Map(msgspec.Struct, gc=False):
    """A map archive."""

    lane_segments: dict[str, Lane]
    drivable_areas: dict[str, Area]


def lower_bound(item: Input) -> None:
    """Bytes to arrays: columns of the tracks and points of the map.

    A lower bound, without checks, resampling or joining.
    """
    data = pa.BufferReader(item.path.read_bytes())
    with pq.ParquetFile(data, pre_buffer=False, read_dictionary=COLUMNS[:2]) as file:
        table = file.read(COLUMNS, use_threads=False)
    for name in COLUMNS[2:]:
        np.from_dlpack(table[name].combine_chunks())
    document = map_path(item.path, item.path.parent.name).read_bytes()
    archive = msgspec.json.decode(document, type=Map)
    points: list[Point] = []
    for lane in archive.lane_segments.values():
        points += lane.left_lane_boundary
        points += lane.right_lane_boundary
    for area in archive.drivable_areas.values():
        points += area.area_boundary
    np.array([(point.x, point.y, point.z) for point in points])


def av2_loader(item: Input) -> None:
    """Load a scenario and its map with the official API."""
    from av2.datasets.motion_forecasting.scenario_serialization import (
        load_argoverse_scenario_parquet,
    )
    from av2.map.map_api import ArgoverseStaticMap

    load_argoverse_scenario_parquet(item.path)
    ArgoverseStaticMap.from_json(map_path(item.path, item.path.parent.name))


def rows(
    title: str, unit: str, values: Mapping[str, float], scale: float = 1.0
) -> Iterator[dict[str, Any]]:
    """A row of the table for each value."""
    for name, value in values.items():
        yield {"name": f"{title}: {name}", "value": value * scale, "unit": unit}


def bench_argoverse2(real: Path | None, count: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Milliseconds per scenario: raw files to a written shard.

    Parts and references are measured on some of the files.
    """
    from data_prep.engine.options import PrepareOptions
    from data_prep.engine.prepare import prepare

    with tempfile.TemporaryDirectory() as name:
        reader = Argoverse2()
        inputs_by_kind = make_set(Path(name), real, count)
        raw = Path(name) / "set"

        def read_and_check(item: Input) -> None:
            reader.read(item, "train", raw).validate()

        for kind, inputs in inputs_by_kind.items():
            readers = {
                "read and checked": read_and_check,
                "lower bound: bytes to arrays": lower_bound,
            }
            if importlib.util.find_spec("av2"):
                readers["av2 loader and map API"] = av2_loader
            runs = {label: partial(for_each, read, inputs) for label, read in readers.items()}
            values = medians_ms(runs, repeats)
            yield from rows(f"Argoverse 2 {kind}", "ms/scenario", values, 1 / len(inputs))

        def run(workers: int, limit: int | None) -> None:
            options = PrepareOptions(workers=workers, limit=limit, progress=False)
            with tempfile.TemporaryDirectory() as store:
                prepare(reader, raw, Path(store), options)

        runs = {
            "one process": partial(run, 1, None),
            "two processes": partial(run, 2, None),
            "start": partial(run, 1, 1),
        }
        times = times_s(runs, 5, warm_up=0)
    wall = {label: float(np.median(values[:, 0])) for label, values in times.items()}
    parts = {
        "raw to shard, 1 process": wall["one process"],
        "start and end of the run, included": wall["start"],
        "CPU time": float(np.median(times["one process"][:, 1])),
    }
    title = f"Argoverse 2, {count} scenarios"
    yield from rows(title, "ms/scenario", parts, 1e3 / count)
    speedup = wall["one process"] / wall["two processes"]
    yield from rows(title, "times faster", {"2 processes": speedup})
    published = {"QCNet process() (published cost)": QCNET_PREPARE_MS}
    yield from rows("Argoverse 2", "ms/scenario", published)


def for_each(function: Callable[[Input], object], inputs: list[Input]) -> None:
    """Call a function with each input."""
    for item in inputs:
        function(item)


def bench_reading(store: SceneStore, label: str, scene: int) -> Iterator[dict[str, Any]]:
    """Microseconds per scene from the store.

    For comparison also from a pickle and a torch file of the same scene as a dict of tensors.
    """
    import torch

    order = np.random.default_rng(0).permutation(len(store))[:3000].tolist()
    ms: dict[str, float] = {}
    runs: dict[str, Callable[[], object]]
    for name, indices in (("random access", order), ("the same scene repeatedly", [scene] * 2000)):
        number = itertools.cycle(indices)
        runs = {"read": partial(read_next, store, number)}
        times = times_s(runs, 2 * len(indices))["read"]
        ms[name] = float(np.median(times[len(indices) :, 0])) * 1e3  # warm cache
    plain: dict[str, Any] = {}
    for name in Scene.__dataclass_fields__:
        value = getattr(store[scene], name)
        plain[name] = torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
    with tempfile.TemporaryDirectory() as name:
        pickled = Path(name) / "scene.pkl"
        saved = Path(name) / "scene.pt"
        pickled.write_bytes(pickle.dumps(plain))
        torch.save(plain, saved)

        def read_pickle() -> object:
            return pickle.loads(pickled.read_bytes())

        def read_tensors() -> object:
            return torch.load(io.BytesIO(saved.read_bytes()), weights_only=True)

        runs = {
            "the same scene by pickle.load": read_pickle,
            "the same scene by torch.load": read_tensors,
        }
        ms |= medians_ms(runs, 200)
    ms["QCNet's pickle (published cost)"] = QCNET_READ_US / 1e3
    yield from rows(label, "us/scene", ms, 1e3)


def read_next(store: SceneStore, indices: Iterator[int]) -> Scene:
    """Read the scene of the next index."""
    return store[next(indices)]


def bench_batches(store: SceneStore, repeats: int) -> Iterator[dict[str, Any]]:
    """Milliseconds per batch of 32, from scenes and from cached samples."""
    from trajformer.data.batch import collate, stack
    from trajformer.data.sample import BatchConfig, samples

    config = BatchConfig()
    order = np.random.default_rng(0).permutation(len(store))
    batches = []
    for start in range(0, BATCH * 8, BATCH):
        indices = order[start : start + BATCH].tolist()
        batches.append([store[i] for i in indices])
    kept = [samples(scenes, config) for scenes in batches]
    runs = {
        "32 scenes to a batch": lambda: [collate(scenes, config) for scenes in batches],
        "32 cached samples to a batch": lambda: [stack(cached, config.frame) for cached in kept],
    }
    yield from rows("Argoverse 1", "ms/batch", medians_ms(runs, repeats), 1 / len(batches))


def bench_epoch(root: Path) -> Iterator[dict[str, Any]]:
    """An epoch of the recipe's loader.

    Also the percentage of a training step (forward and backward) spent waiting for it.
    """
    from trajformer.recipes.names import read_recipe
    from trajformer.training.forecasting import SceneData

    changes = {"data.train": str(root), "data.val": str(root)}
    config = read_recipe("mmtransformer_argoverse1", changes)
    data = SceneData(config.data)
    for name in ("first epoch (from the store)", "later epochs (cached samples)"):
        start = time.perf_counter()
        count = sum(batch.num_scenes for batch in data.train_dataloader())
        seconds = time.perf_counter() - start
        yield from rows("Argoverse 1", "scenes/s", {f"{name}, loader only": count / seconds})
    model = config.build_model()
    loss = config.loss_config(model).build()
    waiting_s = 0.0
    working_s = 0.0
    start = time.perf_counter()
    for batch in itertools.islice(data.train_dataloader(), 40):
        ready = time.perf_counter()
        model.zero_grad()
        loss(model, batch)["loss"].backward()
        end = time.perf_counter()
        waiting_s += ready - start
        working_s += end - ready
        start = end
    percentage = 100 * waiting_s / (waiting_s + working_s)
    values = {"waiting for cached samples in training": percentage}
    yield from rows("Argoverse 1", "% of a step", values)


def bench_stores(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Prepare the stores once, then measure reading."""
    from data_prep.engine.options import PrepareOptions
    from data_prep.engine.prepare import prepare
    from data_prep.readers.argoverse1 import Argoverse1

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        if args.argoverse2:
            options = PrepareOptions(progress=False)
            summary = prepare(Argoverse2(), args.argoverse2, root / "av2", options)
            splits = [split.split for split in summary.splits]
            split = "train" if "train" in splits else splits[0]
            yield from bench_reading(SceneStore(root / "av2", split), "Argoverse 2 store", -1)
        if args.argoverse1:
            start = time.perf_counter()
            options = PrepareOptions(workers=2, progress=False)
            prepare(Argoverse1(), args.argoverse1, root / "av1", options)
            seconds = time.perf_counter() - start
            yield from rows("Argoverse 1", "s", {"the whole folder, 2 processes": seconds})
            store = SceneStore(root / "av1", "train")
            yield from bench_reading(store, "Argoverse 1 store", 0)
            yield from bench_batches(store, args.repeats)
            yield from bench_epoch(root / "av1")


def bench_against(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Processor time of two checkouts for preparation and reading: this one and the given one.

    Also the median ratio of the pairs of runs.
    """
    trees = {
        "this tree": Path(__file__).resolve().parents[1],
        "other tree": args.against.resolve(strict=True),
    }

    def run(tree: str, script: str, *values: object) -> str:
        environment = os.environ | {"PYTHONPATH": str(trees[tree])}
        command = [sys.executable, "-c", script, *map(str, values)]
        return subprocess.run(
            command, cwd=trees[tree], env=environment, check=True, capture_output=True, text=True
        ).stdout

    def prepare(tree: str, name: str, raw: Path, store: Path) -> None:
        shutil.rmtree(store, ignore_errors=True)
        run(tree, PREPARE, "preprocess", name, raw, store, "--limit", args.scenes, "--workers", 1)

    with tempfile.TemporaryDirectory() as name:
        temporary = Path(name)
        make_set(temporary, args.argoverse2, args.scenes)
        raws = {"argoverse2": temporary / "set"}
        if args.argoverse1:
            raws["argoverse1"] = args.argoverse1.resolve()
        for source, raw in raws.items():
            stores: dict[str, Path] = {}
            runs: dict[str, Callable[[], object]] = {}
            for tree in trees:
                stores[tree] = temporary / f"{source} of {tree}"
                runs[tree] = partial(prepare, tree, source, raw, stores[tree])
            times = times_s(runs, args.repeats)
            prepare_s = {tree: times[tree][:, 1] for tree in trees}
            yield from compare_trees(f"{source}, prepare", "CPU s", prepare_s)
            read_us: dict[str, list[float]] = {tree: [] for tree in trees}
            for _ in range(args.repeats):
                for tree in trees:
                    read_us[tree].append(float(run(tree, READ, stores[tree])) * 1e6)
            yield from compare_trees(f"{source}, read", "CPU us/scene", read_us)


def compare_trees(title: str, unit: str, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows with the median of each tree, and with the median ratio of the pairs."""
    medians = {tree: float(np.median(numbers)) for tree, numbers in values.items()}
    yield from rows(title, unit, medians)
    ratios = np.array(values["this tree"]) / np.array(values["other tree"])
    yield from rows(title, "times", {"this tree / other tree": float(np.median(ratios))})


def main() -> int:
    """Measure everything, or compare two trees; returns 1 after an error."""
    parser = new_parser(__doc__, repeats=20)
    parser.add_argument("--argoverse2", type=Path, help="raw folder with train/ val/ test/")
    parser.add_argument(
        "--argoverse1", type=Path, help="raw folder, unpacked to the official layout"
    )
    parser.add_argument("--scenes", type=int, default=2000, help="scenarios of the Argoverse 2 set")
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    args = parse(parser)
    return exit_status("bench_data", lambda: run(args))


def run(args: argparse.Namespace) -> None:
    """Measure and print the tables of the command line."""
    if args.against:
        report(args, {"Processor time": bench_against(args)})
        return
    report(
        args,
        {
            "Preparation": bench_argoverse2(args.argoverse2, args.scenes, args.repeats),
            "Reading": bench_stores(args),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
