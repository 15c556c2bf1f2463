"""Speed of data preparation and loading: raw files to shards, shards to scenes, scenes to batches.

    python tools/bench_data.py [--argoverse2 RAW] [--argoverse1 RAW] [--scenes 2000] [--against CHECKOUT] [--json FILE]

Argoverse 2 is measured on --scenes scenarios: half are copies of real scenarios of RAW with new ids, half are simulated;
without RAW all are simulated. "Raw to shard" is the whole of `trajformer preprocess`, from the list of files to the manifest,
with the start of the worker process. --argoverse1 (unpacked, official layout) adds more rows. References run in the same
process on the same files: av2's loader and map API, and the lower bound, bytes to arrays without checks (pyarrow without
threads, msgspec). Figures are medians over alternating repeats. Run it on an idle machine.

--against CHECKOUT only compares processor times with another checkout (a folder of `git worktree add`), in alternating runs:
`trajformer preprocess` in one process, start included, of the set above and of the first --scenes sequences of each Argoverse 1
split, then random reading of these stores. Both use this Python.
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
from trajformer.scenes.scene import Scene
from trajformer.scenes.store import SceneStore

QCNET_PREPARE_MS, QCNET_READ_US = 32.0, 900.0  # published cost: process(), reading a pickle
COLUMNS = [
    "track_id",
    "object_type",
    "object_category",
    "timestep",
    "position_x",
    "position_y",
    "heading",
]
COLUMNS += ["velocity_x", "velocity_y"]
BATCH = 32
PREPARE = "import sys; from trajformer.cli import main; sys.exit(main(sys.argv[1:]))"
READ = """
import sys, time, numpy
try:
    from trajformer.scenes.store import SceneStore
except ImportError:  # version 0.1
    from trajformer.store import SceneStore
store = SceneStore(sys.argv[1], "train")
order = numpy.random.default_rng(0).permutation(len(store)).tolist()
for warm in (True, False):
    start = time.process_time()
    for index in order * (1 if warm else 20_000 // len(order) + 1):
        store[index]
print((time.process_time() - start) / (20_000 // len(order) + 1) / len(order))
"""
# Worker processes import this file: modules that `trajformer preprocess` does not need are imported inside functions.


def make_set(folder: Path, real: Path | None, count: int) -> dict[str, list[Input]]:
    """Create `folder/set/train` with `count` scenarios, copies with new ids; returns some inputs by kind."""
    from data_prep.synthetic import synthesize

    synthesize(folder / "made", min(count, 100), 0, workers=2, progress=False)
    sources = {"simulated": folder / "made"} | ({"real": real} if real else {})
    few: dict[str, list[Input]] = {}
    for name, raw in sources.items():
        scenarios = sorted(raw.glob("*/*/scenario_*.parquet"))
        for index in range(count // len(sources)):
            path = scenarios[index % len(scenarios)]
            old, new = path.parent.name, f"{index:06d}-{path.parent.name}"
            target = folder / "set" / "train" / new
            target.mkdir(parents=True)
            for kind, end in (("scenario", "parquet"), ("log_map_archive", "json")):
                shutil.copyfile(
                    path.with_name(f"{kind}_{old}.{end}"), target / f"{kind}_{new}.{end}"
                )
            if index < len(scenarios[:8]):
                few.setdefault(name, []).append(Input(target / f"scenario_{new}.parquet"))
    return few


# The part of a map that `lower_bound` decodes.
Point: Any = msgspec.defstruct("Point", [(name, float) for name in "xyz"], gc=False)
Lane: Any = msgspec.defstruct(
    "Lane", [(f"{side}_lane_boundary", list[Point]) for side in ("left", "right")], gc=False
)
Area: Any = msgspec.defstruct("Area", [("area_boundary", list[Point])], gc=False)
Map: Any = msgspec.defstruct(
    "Map", [("lane_segments", dict[str, Lane]), ("drivable_areas", dict[str, Area])], gc=False
)


def lower_bound(item: Input) -> None:
    """Lower bound, bytes to arrays: columns of the tracks and points of the map, without checks, resampling or joining."""
    data = pa.BufferReader(item.path.read_bytes())
    with pq.ParquetFile(data, pre_buffer=False, read_dictionary=COLUMNS[:2]) as file:
        table = file.read(COLUMNS, use_threads=False)
    for name in COLUMNS[2:]:
        np.from_dlpack(table[name].combine_chunks())
    archive = msgspec.json.decode(
        item.path.with_name(f"log_map_archive_{item.path.parent.name}.json").read_bytes(), type=Map
    )
    lines = [
        line
        for lane in archive.lane_segments.values()
        for line in (lane.left_lane_boundary, lane.right_lane_boundary)
    ]
    lines += [area.area_boundary for area in archive.drivable_areas.values()]
    np.array([(p.x, p.y, p.z) for line in lines for p in line])


def av2_loader(item: Input) -> None:
    """Load a scenario and its map with the official API."""
    from av2.datasets.motion_forecasting.scenario_serialization import (
        load_argoverse_scenario_parquet,
    )
    from av2.map.map_api import ArgoverseStaticMap

    load_argoverse_scenario_parquet(item.path)
    ArgoverseStaticMap.from_json(
        item.path.with_name(f"log_map_archive_{item.path.parent.name}.json")
    )


def rows(
    title: str, unit: str, values: Mapping[str, float], scale: float = 1.0
) -> Iterator[dict[str, Any]]:
    """A row of the table for each value."""
    for name, value in values.items():
        yield {"name": f"{title}: {name}", "value": value * scale, "unit": unit}


def bench_argoverse2(real: Path | None, count: int, repeats: int) -> Iterator[dict[str, Any]]:
    """Milliseconds per scenario: raw files to a written shard; parts and references on some of the files."""
    from data_prep.engine.options import PrepareOptions
    from data_prep.engine.prepare import prepare

    with tempfile.TemporaryDirectory() as name:
        temporary, reader = Path(name), Argoverse2()
        for kind, few in make_set(temporary, real, count).items():
            runs: dict[str, Callable[[], object]] = {
                "read and checked": lambda few=few: [
                    reader.read(i, "train", temporary / "set").validate() for i in few
                ],
                "lower bound: bytes to arrays": lambda few=few: [lower_bound(i) for i in few],
            }
            if importlib.util.find_spec("av2"):
                runs["av2 loader and map API"] = lambda few=few: [av2_loader(i) for i in few]
            yield from rows(
                f"Argoverse 2 {kind}", "ms/scenario", medians_ms(runs, repeats), 1 / len(few)
            )

        def run(workers: int, limit: int | None) -> None:
            with tempfile.TemporaryDirectory() as store:
                prepare(
                    reader,
                    temporary / "set",
                    Path(store),
                    PrepareOptions(workers=workers, limit=limit, progress=False),
                )

        runs = {
            "single": lambda: run(1, None),
            "double": lambda: run(2, None),
            "start": lambda: run(1, 1),
        }
        wall, cpu = np.median(list(times_s(runs, 5, warm_up=0).values()), 1).T
    parts = {
        "raw to shard, 1 process": wall[0],
        "start and end of the run, included": wall[2],
        "CPU time": cpu[0],
    }
    yield from rows(f"Argoverse 2, {count} scenarios", "ms/scenario", parts, 1e3 / count)
    yield from rows(
        f"Argoverse 2, {count} scenarios", "times faster", {"2 processes": wall[0] / wall[1]}
    )
    yield from rows(
        "Argoverse 2", "ms/scenario", {"QCNet process() (published cost)": QCNET_PREPARE_MS}
    )


def bench_reading(store: SceneStore, label: str, scene: int) -> Iterator[dict[str, Any]]:
    """Microseconds per scene: from the store, and from a pickle and a torch file of the same scene as a dict of tensors."""
    import torch

    order = np.random.default_rng(0).permutation(len(store))[:3000].tolist()
    ms: dict[str, float] = {}
    for name, indices in (("random access", order), ("the same scene repeatedly", [scene] * 2000)):
        number = itertools.cycle(indices)
        calls = times_s({"": lambda number=number: store[next(number)]}, 2 * len(indices))[""]  # type: ignore[misc]
        ms[name] = float(np.median(calls[len(indices) :, 0])) * 1e3  # warm cache
    values = {name: getattr(store[scene], name) for name in Scene.__dataclass_fields__}
    plain = {
        name: torch.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v
        for name, v in values.items()
    }
    with tempfile.TemporaryDirectory() as name:
        pickled, saved = Path(name) / "scene.pkl", Path(name) / "scene.pt"
        pickled.write_bytes(pickle.dumps(plain))
        torch.save(plain, saved)
        runs: dict[str, Callable[[], object]] = {
            "the same scene by pickle.load": lambda: pickle.loads(pickled.read_bytes()),
            "the same scene by torch.load": lambda: torch.load(
                io.BytesIO(saved.read_bytes()), weights_only=True
            ),
        }
        ms |= medians_ms(runs, 200)
    yield from rows(
        label, "us/scene", ms | {"QCNet's pickle (published cost)": QCNET_READ_US / 1e3}, 1e3
    )


def bench_batches(store: SceneStore, repeats: int) -> Iterator[dict[str, Any]]:
    """Milliseconds per batch of 32, from scenes and from cached samples."""
    from trajformer.data.batch import collate, stack
    from trajformer.data.sample import BatchConfig, samples

    config = BatchConfig()
    order = np.random.default_rng(0).permutation(len(store))
    batches = [
        [store[i] for i in order[start : start + BATCH].tolist()]
        for start in range(0, BATCH * 8, BATCH)
    ]
    kept = [samples(scenes, config) for scenes in batches]
    runs = {
        "32 scenes to a batch": lambda: [collate(scenes, config) for scenes in batches],
        "32 cached samples to a batch": lambda: [stack(cached, config.frame) for cached in kept],
    }
    yield from rows("Argoverse 1", "ms/batch", medians_ms(runs, repeats), 1 / len(batches))


def bench_epoch(root: Path) -> Iterator[dict[str, Any]]:
    """An epoch of the recipe's loader, and the share of a training step (forward and backward) spent waiting for it."""
    from trajformer.recipes.names import read_recipe
    from trajformer.training.forecasting import SceneData

    config = read_recipe(
        "mmtransformer_argoverse1", {"data.train": str(root), "data.val": str(root)}
    )
    data = SceneData(config.data)
    for name in ("first epoch (from the store)", "later epochs (cached samples)"):
        start = time.perf_counter()
        count = sum(batch.num_scenes for batch in data.train_dataloader())
        seconds = time.perf_counter() - start
        yield from rows("Argoverse 1", "scenes/s", {f"{name}, loader only": count / seconds})
    model = config.build_model()
    loss = config.loss_config(model).build()
    waiting = working = 0.0
    start = time.perf_counter()
    for batch in itertools.islice(data.train_dataloader(), 40):
        ready = time.perf_counter()
        model.zero_grad()
        loss(model, batch)["loss"].backward()
        end = time.perf_counter()
        waiting, working, start = waiting + ready - start, working + end - ready, end
    share = waiting / (waiting + working) * 100
    yield from rows("Argoverse 1", "% of a step", {"waiting for cached samples in training": share})


def bench_stores(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Prepare the stores once, then measure reading."""
    from data_prep.engine.options import PrepareOptions
    from data_prep.engine.prepare import prepare
    from data_prep.readers.argoverse1 import Argoverse1

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        if args.argoverse2:
            summary = prepare(
                Argoverse2(), args.argoverse2, root / "av2", PrepareOptions(progress=False)
            )
            split = max(summary.splits, key=lambda s: s.split == "train").split
            yield from bench_reading(SceneStore(root / "av2", split), "Argoverse 2 store", -1)
        if args.argoverse1:
            start = time.perf_counter()
            prepare(
                Argoverse1(),
                args.argoverse1,
                root / "av1",
                PrepareOptions(workers=2, progress=False),
            )
            yield from rows(
                "Argoverse 1", "s", {"the whole folder, 2 processes": time.perf_counter() - start}
            )
            store = SceneStore(root / "av1", "train")
            yield from bench_reading(store, "Argoverse 1 store", 0)
            yield from bench_batches(store, args.repeats)
            yield from bench_epoch(root / "av1")


def bench_against(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Processor time of this tree, of another checkout, and the median ratio of the pairs, for preparation and reading."""
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
        raws = {"argoverse2": temporary / "set"} | (
            {"argoverse1": args.argoverse1.resolve()} if args.argoverse1 else {}
        )
        for source, raw in raws.items():
            stores = {tree: temporary / f"{source} of {tree}" for tree in trees}
            runs = {tree: partial(prepare, tree, source, raw, stores[tree]) for tree in trees}
            prepared = {tree: times[:, 1] for tree, times in times_s(runs, args.repeats).items()}
            pairs = [
                [float(run(tree, READ, stores[tree])) * 1e6 for tree in trees]
                for _ in range(args.repeats)
            ]
            read = dict(zip(trees, np.array(pairs).T, strict=True))
            for what, unit, values in (
                ("prepare", "CPU s", prepared),
                ("read", "CPU us/scene", read),
            ):
                yield from rows(
                    f"{source}, {what}",
                    unit,
                    {tree: float(np.median(values[tree])) for tree in trees},
                )
                ratio = float(np.median(values["this tree"] / values["other tree"]))
                yield from rows(f"{source}, {what}", "times", {"this tree / other tree": ratio})


def main() -> None:
    """Measure everything, or compare two trees."""
    parser = new_parser(__doc__, repeats=20)
    parser.add_argument("--argoverse2", type=Path, help="raw folder with train/ val/ test/")
    parser.add_argument(
        "--argoverse1", type=Path, help="raw folder, unpacked to the official layout"
    )
    parser.add_argument("--scenes", type=int, default=2000, help="scenarios of the Argoverse 2 set")
    parser.add_argument("--against", type=Path, help="another checkout of this repository")
    args = parse(parser)
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
    main()
