"""A large store: equal bytes of local processes and Ray, time to open it, memory to read it.

    python tools/bench_store_scale.py --scenes 100000 --folder FOLDER [--json FILE]

FOLDER receives the raw scenes and both stores, which are kept: a repeated command continues, and
prints the time of the run that completed a store. The scenes are Argoverse 2 scenarios: up to
--simulated ones are simulated, the others are the same files under new ids (hard links, which take
no space). Both preparations use two processes. Opening and reading are measured in a new process:
the memory is that of the process without mapped files, which the system keeps in memory while it is
free.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import new_parser, parse, report

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.readers.argoverse2.reader import Argoverse2
from data_prep.synthetic import synthesize

WORKERS = 2
EXECUTORS = ("local", "ray")
# Ray lowers the priority of its workers by 15, and a busy machine then runs local processes only.
os.environ.setdefault("RAY_worker_niceness", "0")
# Opens a store several times, then reads random scenes; prints seconds and megabytes.
READ = """
import json, sys, time
from pathlib import Path
import numpy as np
from trajformer.scenes.store import SceneStore

def memory_mb():
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1e3

before = memory_mb()
times = []
for _ in range(5):
    start = time.perf_counter()
    store = SceneStore(sys.argv[1], "train")
    times.append(time.perf_counter() - start)
result = {"open_ms": 1e3 * float(np.median(times)), "first_open_ms": 1e3 * times[0]}
result["scenes"] = len(store)
result["open_mb"] = memory_mb() - before
rng = np.random.default_rng(0)
for name, count in (("read_1", 1), ("read_1000", 999), ("read_10000", 9000)):
    start = time.perf_counter()
    for index in rng.integers(len(store), size=count).tolist():
        store[index].position.sum()
    result[f"{name}_us_each"] = 1e6 * (time.perf_counter() - start) / count
    result[f"{name}_mb"] = memory_mb() - before
print(json.dumps(result))
"""
# Worker processes import this file.


def make_raw(folder: Path, num_scenes: int, num_simulated: int) -> Path:
    """A raw folder with one split of this number of scenarios; files that exist are kept."""
    simulated = folder / "simulated"
    synthesize(
        simulated,
        min(num_scenes, num_simulated),
        0,
        val_fraction=0.0,
        test_fraction=0.0,
        workers=WORKERS,
        progress=False,
    )
    scenarios = sorted(simulated.glob("train/*/scenario_*.parquet"))
    raw = folder / "raw"
    for index in range(num_scenes):
        path = scenarios[index % len(scenarios)]
        scenario_id = path.parent.name
        new_id = f"{index:09d}-{scenario_id}"
        target = raw / "train" / new_id
        if target.is_dir():
            continue
        # Renamed at the end, so that a folder of an interrupted run is incomplete or has all files.
        made = raw / f".{new_id}"
        made.mkdir(parents=True, exist_ok=True)
        names = {f"scenario_{scenario_id}.parquet": f"scenario_{new_id}.parquet"}
        names[f"log_map_archive_{scenario_id}.json"] = f"log_map_archive_{new_id}.json"
        for old, new in names.items():
            (made / new).unlink(missing_ok=True)
            os.link(path.with_name(old), made / new)
        target.parent.mkdir(exist_ok=True)
        made.rename(target)
    return raw


def prepare_both(folder: Path, raw: Path) -> Iterator[dict[str, Any]]:
    """A row for each preparation."""
    for executor in EXECUTORS:
        options = PrepareOptions(workers=WORKERS, executor=executor, progress=False)
        record = folder / f"{executor}.seconds"
        start = time.perf_counter()
        summary = prepare(Argoverse2(), raw, folder / executor, options)
        if not record.exists():
            record.write_text(str(time.perf_counter() - start))
        seconds = float(record.read_text())
        size = sum(split.bytes for split in summary.splits)
        yield {"executor": executor, "scenes": summary.scenes, "GB": size / 1e9, "s": seconds}


def compare(folder: Path) -> Iterator[dict[str, Any]]:
    """The number of shards, and of shards that differ between the stores."""
    shards = [sorted((folder / name / "train").glob("*.arrow")) for name in EXECUTORS]
    names = [[path.name for path in paths] for paths in shards]
    if names[0] != names[1]:
        raise SystemExit(f"{folder}: the stores have other shards")
    different = []
    for local, ray in zip(*shards, strict=True):
        if local.read_bytes() != ray.read_bytes():
            different.append(local.name)
    yield {"shards": len(names[0]), "different": len(different)}
    if different:
        raise SystemExit(f"{folder}: shards differ: {' '.join(different[:5])}")


def read(folder: Path) -> Iterator[dict[str, Any]]:
    """Time and memory of opening and reading, a row for each quantity."""
    command = [sys.executable, "-c", READ, str(folder / EXECUTORS[0])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    for name, value in json.loads(done.stdout).items():
        yield {"quantity": name, "value": value}


def main() -> None:
    """Prepare, compare, read."""
    parser = new_parser(__doc__, repeats=1)
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--simulated", type=int, default=200)
    parser.add_argument("--folder", type=Path, required=True)
    args = parse(parser)
    raw = make_raw(args.folder, args.scenes, args.simulated)
    tables = {"preparation by two processes": prepare_both(args.folder, raw)}
    tables["shards with equal bytes"] = compare(args.folder)
    tables["opening and random reading"] = read(args.folder)
    report(args, tables)


if __name__ == "__main__":
    main()
