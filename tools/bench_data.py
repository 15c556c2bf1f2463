"""Speed of data preparation and loading: raw files to shards, shards to scenes, scenes to batches.

    python tools/bench_data.py [--argoverse2 RAW] [--argoverse1 RAW] [--scenes 2000] [--json FILE]

Argoverse 2 is measured on --scenes scenarios: half are copies of real scenarios of RAW with new ids, half are simulated;
without RAW all are simulated. "Raw to shard" is the whole of `trajformer preprocess`, from the list of files to the manifest,
with the start of the worker process. --argoverse1 (unpacked, official layout) adds more rows. References run in the same
process on the same files: av2's loader and map API, and the lower bound, bytes to arrays without checks (pyarrow without
threads, msgspec). Figures are medians over alternating repeats. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import itertools
import json
import pickle
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from measure import environment, medians_s, new_parser, times_s, write_json

from data_prep.reader import Input, Reader
from data_prep.readers.argoverse2.reader import Argoverse2
from trajformer.scenes.scene import Scene

if TYPE_CHECKING:
    from trajformer.scenes.store import SceneStore

QCNET_PREPARE_MS, QCNET_READ_US = 32.0, 900.0  # published cost: process(), reading a pickle
COLUMNS = ["track_id", "object_type", "object_category", "timestep", "position_x", "position_y", "heading"]
COLUMNS += ["velocity_x", "velocity_y"]
BATCH = 32
# Worker processes import this file: modules that `trajformer preprocess` does not need are imported inside functions.
Row = dict[str, Any]


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
                shutil.copyfile(path.with_name(f"{kind}_{old}.{end}"), target / f"{kind}_{new}.{end}")
            if index < len(scenarios[:8]):
                few.setdefault(name, []).append(Input(target / f"scenario_{new}.parquet"))
    return few


class _Point(msgspec.Struct, gc=False):
    x: float
    y: float
    z: float


class _Lane(msgspec.Struct, gc=False):
    left_lane_boundary: list[_Point]
    right_lane_boundary: list[_Point]


class _Area(msgspec.Struct, gc=False):
    area_boundary: list[_Point]


class _Map(msgspec.Struct, gc=False):
    lane_segments: dict[str, _Lane]
    drivable_areas: dict[str, _Area]


def lower_bound(item: Input) -> None:
    """Lower bound, bytes to arrays: columns of the tracks and points of the map, without checks, resampling or joining."""
    data = pa.BufferReader(item.path.read_bytes())
    with pq.ParquetFile(data, pre_buffer=False, read_dictionary=COLUMNS[:2]) as file:
        table = file.read(COLUMNS, use_threads=False)
    for name in COLUMNS[2:]:
        np.from_dlpack(table[name].combine_chunks())
    archive = msgspec.json.decode(_map_of(item).read_bytes(), type=_Map)
    lines = [line for lane in archive.lane_segments.values() for line in (lane.left_lane_boundary, lane.right_lane_boundary)]
    lines += [area.area_boundary for area in archive.drivable_areas.values()]
    np.array([(p.x, p.y, p.z) for line in lines for p in line])


def _map_of(item: Input) -> Path:
    return item.path.with_name(f"log_map_archive_{item.path.parent.name}.json")


def av2_loader(item: Input) -> None:
    """Load a scenario and its map with the official API."""
    from av2.datasets.motion_forecasting.scenario_serialization import load_argoverse_scenario_parquet
    from av2.map.map_api import ArgoverseStaticMap

    load_argoverse_scenario_parquet(item.path)
    ArgoverseStaticMap.from_json(_map_of(item))


def processor_s() -> float:
    """CPU time of this process with its finished child processes."""
    usages = (resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def prepare_times(
    reader: Reader, raw: Path, runs: Sequence[tuple[int, int | None]], repeats: int = 5
) -> list[tuple[float, float]]:
    """Median seconds and CPU seconds of preparing a raw folder, for each (workers, limit), alternating."""
    from data_prep.engine.prepare import PrepareOptions, prepare

    times: list[list[tuple[float, float]]] = [[] for _ in runs]
    for _ in range(repeats):
        for (workers, limit), measured in zip(runs, times, strict=True):
            with tempfile.TemporaryDirectory() as store:
                options = PrepareOptions(workers=workers, limit=limit, progress=False)
                start, cpu_start = time.perf_counter(), processor_s()
                prepare(reader, raw, Path(store) / "store", options)
                measured.append((time.perf_counter() - start, processor_s() - cpu_start))
    return [(statistics.median(wall), statistics.median(cpu)) for wall, cpu in (zip(*m, strict=True) for m in times)]


def bench_argoverse2(real: Path | None, count: int, repeats: int) -> list[Row]:
    """Milliseconds per scenario: raw files to a written shard; parts and references on some of the files."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder, reader = Path(temporary) / "set", Argoverse2()
        for kind, few in make_set(Path(temporary), real, count).items():
            rows += _bench_parts(kind, few, folder, repeats)
        (single, cpu), (double, _), (start, _) = prepare_times(reader, folder, [(1, None), (2, None), (1, 1)])
    parts = {"raw to shard, 1 process": single, "start and end of the run, included": start, "CPU time": cpu}
    for name, seconds in parts.items():
        rows.append({"name": f"Argoverse 2, {count} scenarios: {name}", "value": seconds / count * 1e3, "unit": "ms/scenario"})
    rows.append({"name": f"Argoverse 2, {count} scenarios: 2 processes", "value": single / double, "unit": "times faster"})
    rows.append({"name": "Argoverse 2: QCNet process() (published cost)", "value": QCNET_PREPARE_MS, "unit": "ms/scenario"})
    return rows


def _bench_parts(kind: str, few: list[Input], folder: Path, repeats: int) -> list[Row]:
    reader = Argoverse2()
    runs: dict[str, Callable[[], object]] = {
        "read and checked": lambda: [reader.read(i, "train", folder).validate() for i in few],
        "lower bound: bytes to arrays": lambda: [lower_bound(i) for i in few],
    }
    if importlib.util.find_spec("av2"):
        runs["av2 loader and map API"] = lambda: [av2_loader(i) for i in few]
    seconds = medians_s(runs, repeats)
    return [
        {"name": f"Argoverse 2 {kind}: {label}", "value": value / len(few) * 1e3, "unit": "ms/scenario"}
        for label, value in seconds.items()
    ]


def plain(scene: Scene) -> dict[str, Any]:
    """A scene as a dict of tensors, as other projects store it."""
    import torch

    values = {field.name: getattr(scene, field.name) for field in fields(Scene)}
    return {name: torch.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v for name, v in values.items()}


def bench_reading(store: SceneStore, label: str, scene: int) -> list[Row]:
    """Microseconds per scene: from the store, and from a pickle and a torch file of the same scene."""
    import torch

    order = np.random.default_rng(0).permutation(len(store))[:3000].tolist()
    rows: list[Row] = []
    for name, indices in (("random access", order), ("the same scene repeatedly", [scene] * 2000)):
        number = itertools.cycle(indices)
        calls = times_s({name: lambda number=number: store[next(number)]}, 2 * len(indices))[name]  # type: ignore[misc]
        rows.append({"name": f"{label}: {name}", "value": statistics.median(calls[len(indices) :]) * 1e6})  # warm cache
    with tempfile.TemporaryDirectory() as name:
        pickled, saved = Path(name) / "scene.pkl", Path(name) / "scene.pt"
        pickled.write_bytes(pickle.dumps(plain(store[scene])))
        torch.save(plain(store[scene]), saved)
        runs = {
            "the same scene by pickle.load": lambda: pickle.loads(pickled.read_bytes()),
            "the same scene by torch.load": lambda: torch.load(io.BytesIO(saved.read_bytes()), weights_only=True),
        }
        rows += [{"name": f"{label}: {name}", "value": seconds * 1e6} for name, seconds in medians_s(runs, 200).items()]
    rows.append({"name": f"{label}: QCNet's pickle (published cost)", "value": QCNET_READ_US})
    return [row | {"unit": "us/scene"} for row in rows]


def bench_batches(store: SceneStore, label: str, repeats: int) -> list[Row]:
    """Milliseconds per batch of 32, from scenes and from cached samples."""
    from trajformer.data.batch import collate, stack
    from trajformer.data.sample import BatchConfig, sample

    config = BatchConfig()
    order = np.random.default_rng(0).permutation(len(store))
    batches = [[store[i] for i in order[start : start + BATCH].tolist()] for start in range(0, BATCH * 8, BATCH)]
    kept = [[sample(scene, config) for scene in scenes] for scenes in batches]
    runs = {
        "32 scenes to a batch": lambda: [collate(scenes, config) for scenes in batches],
        "32 cached samples to a batch": lambda: [stack(samples, config.frame) for samples in kept],
    }
    return [
        {"name": f"{label}: {name}", "value": seconds / len(batches) * 1e3, "unit": "ms/batch"}
        for name, seconds in medians_s(runs, repeats).items()
    ]


def bench_epoch(root: Path, label: str, recipe: Path) -> list[Row]:
    """An epoch of the recipe's loader, and the share of a training step (forward and backward) spent waiting for it."""
    from trajformer.cli.models import recipe_from, train_parser
    from trajformer.recipes.recipe import TrainConfig
    from trajformer.training.forecasting import SceneData

    words = ["--config", str(recipe), "--out", "unused", "--data.train", str(root), "--data.val", str(root)]
    config = recipe_from(train_parser().parse_args(words), TrainConfig)
    data, rows = SceneData(config.data), []
    for name in ("first epoch (from the store)", "later epochs (cached samples)"):
        start = time.perf_counter()
        count = sum(batch.num_scenes for batch in data.train_dataloader())
        seconds = time.perf_counter() - start
        rows.append({"name": f"{label}: {name}, loader only", "value": count / seconds, "unit": "scenes/s"})
    model = config.build_model()
    loss = config.build_loss(model)
    waiting = working = 0.0
    batches = iter(data.train_dataloader())
    for _ in range(40):
        start = time.perf_counter()
        batch = next(batches)
        ready = time.perf_counter()
        model.zero_grad()
        loss(model, batch)["loss"].backward()
        waiting, working = waiting + ready - start, working + time.perf_counter() - ready
    share = waiting / (waiting + working) * 100
    return [*rows, {"name": f"{label}: waiting for cached samples in training", "value": share, "unit": "% of a step"}]


def bench_stores(args: argparse.Namespace) -> list[Row]:
    """Prepare the stores once, then measure reading."""
    from data_prep.engine.prepare import PrepareOptions, prepare
    from data_prep.readers.argoverse1 import Argoverse1
    from trajformer.scenes.store import SceneStore

    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        if args.argoverse2:
            summary = prepare(Argoverse2(), args.argoverse2, Path(name) / "av2", PrepareOptions(progress=False))
            split = max(summary.splits, key=lambda s: s.split == "train").split
            rows += bench_reading(SceneStore(Path(name) / "av2", split), "Argoverse 2 store", -1)
        if args.argoverse1:
            options = PrepareOptions(workers=2, progress=False)
            start = time.perf_counter()
            prepare(Argoverse1(), args.argoverse1, Path(name) / "av1", options)
            seconds = time.perf_counter() - start
            rows.append({"name": "Argoverse 1: the whole folder, 2 processes", "value": seconds, "unit": "s"})
            store = SceneStore(Path(name) / "av1", "train")
            rows += bench_reading(store, "Argoverse 1 store", 0)
            rows += bench_batches(store, "Argoverse 1", args.repeats)
            rows += bench_epoch(Path(name) / "av1", "Argoverse 1", args.recipe)
    return rows


def main() -> None:
    """Measure everything and print one table."""
    parser = new_parser(__doc__, repeats=20)
    parser.add_argument("--argoverse2", type=Path, help="raw folder with train/ val/ test/")
    parser.add_argument("--argoverse1", type=Path, help="raw folder, unpacked to the official layout")
    parser.add_argument("--scenes", type=int, default=2000, help="scenarios of the Argoverse 2 set")
    parser.add_argument("--recipe", type=Path, default=Path("configs/mmtransformer_argoverse1.yaml"))
    args = parser.parse_args()
    machine = environment()
    print(json.dumps(machine))
    rows = bench_argoverse2(args.argoverse2, args.scenes, args.repeats) + bench_stores(args)
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['value']:>10.2f}  {row['unit']}")
    if args.json:
        write_json(args.json, rows, machine)


if __name__ == "__main__":
    main()
