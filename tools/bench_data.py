"""The data engine against its peers and its floor: raw files to shards, shards to scenes, scenes to batches.

    python tools/bench_data.py [--argoverse2 RAW] [--argoverse1 RAW] [--scenes 2000] [--json FILE]

Argoverse 2 is measured on a set of --scenes scenarios: real ones of RAW repeated under new ids (half of them) and
simulated ones; without RAW all are simulated. "Raw to shard" is all that `trajformer preprocess` does, from listing the
folder to the manifest, the start of the reading process included. --argoverse1 (unpacked, official layout) adds its
rows. Peers and floor run in the same process on the same files: av2's loader and map API, and bare bytes to arrays
(pyarrow without threads, msgspec). Figures are medians over repeats, rounds alternating between what is compared; the
machine, versions and allocator environment are printed with them. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import platform
import resource
import shutil
import statistics
import sys
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

from data_prep.reader import Input, Reader
from data_prep.readers.argoverse2.reader import Argoverse2
from trajformer.scenes.scene import Scene

if TYPE_CHECKING:
    from trajformer.scenes.store import SceneStore

PEER_QCNET_MS, PEER_READ_US = 32.0, 900.0  # QCNet's process() and its pickles, published cost on such a machine
COLUMNS = ["track_id", "object_type", "object_category", "timestep", "position_x", "position_y", "heading"]
COLUMNS += ["velocity_x", "velocity_y"]
BATCH = 32  # the rest is imported where it is needed: as with `trajformer preprocess`, reading processes import this file, too
Row = dict[str, Any]


def timed(run: Callable[[], object]) -> float:
    """Seconds of one call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def rounds(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each call, the calls taking turns so that a drifting machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(repeats + 1):
        for name, run in runs.items():
            seconds = timed(run)
            if index:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    from importlib.metadata import version

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    allocator = {n: os.environ[n] for n in os.environ if n.startswith(("MALLOC_", "ARROW_", "LD_PRELOAD", "OMP_"))}
    versions = {name: version(name) for name in ("numpy", "pyarrow", "msgspec", "torch")} | {"python": platform.python_version()}
    load = os.getloadavg()[0]
    return {"cpu": f"{os.cpu_count()} x {names[0] if names else platform.machine()}", "load": load} | versions | allocator


# ---- Argoverse 2: raw to shard -------------------------------------------------------------------------------------


def make_set(folder: Path, real: Path | None, count: int) -> dict[str, list[Input]]:
    """`folder/set/train` with `count` scenarios, copies of a few under many ids; some inputs of each kind."""
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


def floor(item: Input) -> None:
    """Bytes to arrays: the columns of the tracks, the points of the map; nothing checked, resampled or put together."""
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
    """What the official API does to load a scenario and its map."""
    from av2.datasets.motion_forecasting.scenario_serialization import load_argoverse_scenario_parquet
    from av2.map.map_api import ArgoverseStaticMap

    load_argoverse_scenario_parquet(item.path)
    ArgoverseStaticMap.from_json(_map_of(item))


def has_av2() -> bool:
    """Whether the peer is installed."""
    try:
        import av2.map.map_api  # noqa: F401
    except ImportError:
        return False
    return True


def processor_s() -> float:
    """Processor time of this process and of those that it started and that have ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def prepared(reader: Reader, raw: Path, hows: Sequence[tuple[int, int | None]], repeats: int = 5) -> list[tuple[float, float]]:
    """Median seconds, and seconds of processors, of preparing a raw folder from nothing, for each (workers, limit) in turns."""
    from data_prep.engine.prepare import PrepareOptions, prepare

    times: list[list[tuple[float, float]]] = [[] for _ in hows]
    for _ in range(repeats):
        for (workers, limit), measured in zip(hows, times, strict=True):
            with tempfile.TemporaryDirectory() as store:
                options, before = PrepareOptions(workers=workers, limit=limit, progress=False), processor_s()
                seconds = timed(lambda: prepare(reader, raw, Path(store) / "store", options))  # noqa: B023
                measured.append((seconds, processor_s() - before))
    return [tuple(map(statistics.median, zip(*measured, strict=True))) for measured in times]  # type: ignore[misc]


def bench_argoverse2(real: Path | None, count: int, repeats: int) -> list[Row]:
    """Milliseconds a scenario: raw files to a written shard, and the parts and peers on a few of the same files."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder, reader = Path(name) / "set", Argoverse2()
        for kind, few in make_set(Path(name), real, count).items():
            rows += _bench_parts(kind, few, folder, repeats)
        (alone, used), (both, _), (start, _) = prepared(reader, folder, [(1, None), (2, None), (1, 1)])
    parts = {
        "raw to shard, 1 process": alone,
        "of these, start and end of the run": start,
        "processor time": used,
    }
    for what, seconds in parts.items():
        rows.append({"what": f"Argoverse 2, {count} scenarios: {what}", "value": seconds / count * 1e3, "unit": "ms/scenario"})
    rows.append({"what": f"Argoverse 2, {count} scenarios: 2 processes", "value": alone / both, "unit": "times faster"})
    rows.append({"what": "Argoverse 2: QCNet process() (published cost)", "value": PEER_QCNET_MS, "unit": "ms/scenario"})
    return rows


def _bench_parts(kind: str, few: list[Input], folder: Path, repeats: int) -> list[Row]:
    reader = Argoverse2()
    runs: dict[str, Callable[[], object]] = {
        "read and checked": lambda: [reader.read(i, "train", folder).validate() for i in few],
        "floor: bytes to arrays": lambda: [floor(i) for i in few],
    }
    if has_av2():
        runs["av2 loader and map API"] = lambda: [av2_loader(i) for i in few]
    seconds = rounds(runs, repeats)
    return [
        {"what": f"Argoverse 2 {kind}: {label}", "value": value / len(few) * 1e3, "unit": "ms/scenario"}
        for label, value in seconds.items()
    ]


# ---- reading -------------------------------------------------------------------------------------------------------


def access(store: SceneStore, indices: Sequence[int]) -> float:
    """Median seconds of one random access, warm."""
    for index in indices:
        store[index]
    return statistics.median(timed(lambda: store[index]) for index in indices)  # noqa: B023


def plain(scene: Scene) -> dict[str, Any]:
    """A scene as peers keep it: a dict of tensors."""
    import torch

    values = {field.name: getattr(scene, field.name) for field in fields(Scene)}
    return {name: torch.from_numpy(v.copy()) if isinstance(v, np.ndarray) else v for name, v in values.items()}


def bench_reading(store: SceneStore, label: str, scene: int) -> list[Row]:
    """Microseconds for one scene: from the store, and from a pickle and a torch file of the same scene."""
    import torch

    rng = np.random.default_rng(0)
    rows = [{"what": f"{label}: random access", "value": access(store, rng.permutation(len(store))[:3000].tolist()) * 1e6}]
    rows.append({"what": f"{label}: one scene again and again", "value": access(store, [scene] * 2000) * 1e6})
    with tempfile.TemporaryDirectory() as name:
        pickled, saved = Path(name) / "scene.pkl", Path(name) / "scene.pt"
        pickled.write_bytes(pickle.dumps(plain(store[scene])))
        torch.save(plain(store[scene]), saved)
        runs = {
            "the same scene by pickle.load": lambda: pickle.loads(pickled.read_bytes()),
            "the same scene by torch.load": lambda: torch.load(io.BytesIO(saved.read_bytes()), weights_only=True),
        }
        rows += [{"what": f"{label}: {name}", "value": seconds * 1e6} for name, seconds in rounds(runs, 200).items()]
    rows.append({"what": f"{label}: QCNet's pickle (published cost)", "value": PEER_READ_US})
    return [row | {"unit": "us/scene"} for row in rows]


def bench_batches(store: SceneStore, label: str, repeats: int) -> list[Row]:
    """Milliseconds for a batch of 32: scenes to batch, kept samples to batch."""
    from trajformer.data.batch import collate, stack
    from trajformer.data.sample import BatchConfig, sample

    config = BatchConfig()
    order = np.random.default_rng(0).permutation(len(store))
    batches = [[store[i] for i in order[start : start + BATCH].tolist()] for start in range(0, BATCH * 8, BATCH)]
    kept = [[sample(scene, config) for scene in scenes] for scenes in batches]
    runs = {
        "32 scenes to a batch": lambda: [collate(scenes, config) for scenes in batches],
        "32 kept samples to a batch": lambda: [stack(samples, config.frame) for samples in kept],
    }
    rows = [
        {"what": f"{label}: {name}", "value": seconds / len(batches) * 1e3, "unit": "ms/batch"}
        for name, seconds in rounds(runs, repeats).items()
    ]
    return rows


def bench_epoch(root: Path, label: str, recipe: Path) -> list[Row]:
    """An epoch of the recipe's loader, and the share of a step (forward and backward) spent waiting for kept samples."""
    from trajformer.cli.models import train_parser
    from trajformer.recipes.recipe import TrainConfig
    from trajformer.training.forecasting import ForecastingModule, SceneData

    words = ["--config", str(recipe), "--out", "unused", "--data.train", str(root), "--data.val", str(root)]
    parser = train_parser()
    values = parser.instantiate(parser.parse_args(words))
    config = TrainConfig(**{item.name: values[item.name] for item in fields(TrainConfig)})
    data = SceneData(config.data)
    rows, count = [], len(data.train)
    for name in ("first epoch (from the store)", "later epochs (samples kept)"):
        seconds = timed(lambda: [None for _ in data.train_dataloader()])
        rows.append({"what": f"{label}: {name}, loader alone", "value": count / seconds, "unit": "scenes/s"})
    module = ForecastingModule(config)
    waiting = working = 0.0
    batches = iter(data.train_dataloader())
    for _ in range(40):
        began = time.perf_counter()
        batch = next(batches)
        ready = time.perf_counter()
        module.model.zero_grad()
        _train_step(module, batch)
        waiting, working = waiting + ready - began, working + time.perf_counter() - ready
    share = waiting / (waiting + working) * 100
    return [*rows, {"what": f"{label}: waiting for kept samples while training", "value": share, "unit": "% of a step"}]


def _train_step(module: Any, batch: Any) -> None:
    from trajformer.losses.set_loss import set_loss

    set_loss(module.model(batch), batch.target, batch.target_valid, module.config.loss)["loss"].backward()


# ---- all -----------------------------------------------------------------------------------------------------------


def bench_stores(args: argparse.Namespace) -> list[Row]:
    """Prepare the stores once, then read from them."""
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
            seconds = timed(
                lambda: prepare(Argoverse1(), args.argoverse1, Path(name) / "av1", PrepareOptions(workers=2, progress=False))
            )
            rows.append({"what": "Argoverse 1: the whole folder, 2 processes", "value": seconds, "unit": "s"})
            store = SceneStore(Path(name) / "av1", "train")
            rows += bench_reading(store, "Argoverse 1 store", 0)
            rows += bench_batches(store, "Argoverse 1", args.repeats)
            rows += bench_epoch(Path(name) / "av1", "Argoverse 1", args.recipe)
    return rows


def main() -> None:
    """Measure everything and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--argoverse2", type=Path, help="raw folder with train/ val/ test/")
    parser.add_argument("--argoverse1", type=Path, help="raw folder, unpacked to the official layout")
    parser.add_argument("--scenes", type=int, default=2000, help="scenarios of the Argoverse 2 set")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--recipe", type=Path, default=Path("configs/mmtransformer_argoverse1.yaml"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    machine = environment()
    print(json.dumps(machine))
    rows = bench_argoverse2(args.argoverse2, args.scenes, args.repeats) + bench_stores(args)
    width = max(len(row["what"]) for row in rows)
    for row in rows:
        print(f"{row['what']:<{width}}  {row['value']:>10.2f}  {row['unit']}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
