"""Open randomly damaged files of all formats: each must be valid or refused with one line that names the file.

    nice -n 19 python tools/fuzz.py --count 10000 --json fuzz.json
    python tools/fuzz.py --formats table checkpoint --first 8123 --count 1

Damages are edits of bytes (bits, truncation, deletion, copies of other parts) and of fields (columns, cells, types, entries of
documents, tensors). A failure is another exception, the end of the process, more than 10 s or more than 2 GB for one file; it is
printed with its number, with which --first repeats it. Raw formats are the folders of tests/support/raw_folders.py: a new reader
adds a line there.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(
    str(Path(__file__).parents[1] / "tests")
)  # the damages and the small valid files are shared with the tests
from support import hostile
from support.raw_folders import FOLDERS
from support.scenes import make_scene

from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast, read_forecasts, write_forecasts
from trajformer.models.crowd import CrowdConfig
from trajformer.recipes.checkpoint import load_checkpoint, write_checkpoint
from trajformer.recipes.names import read_recipe, recipe_file
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.manifest import verify_store, write_manifest
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.testing.readers import check_messages, example_files, read_all

Open = Callable[
    [], list[str]
]  # opens the files; returns the reasons against them, or raises a TrajformerError
MAX_S, MAX_MB = 10.0, 2_000.0


def raw(name: str, folder: Path) -> Open:
    """A raw folder of a reader."""
    reader = FOLDERS[name](folder)
    splits = reader.splits(folder)

    def read() -> list[str]:
        outcomes = {
            item: outcome
            for split in splits
            for item, outcome in read_all(reader, folder, split).items()
        }
        check_messages(outcomes, folder)
        return [outcome for outcome in outcomes.values() if isinstance(outcome, str)]

    return read


def store(folder: Path) -> Open:
    """A store with two scenes: a shard and the manifest."""
    write_shard(
        shard_path(folder, "train", 0),
        [make_scene(4, seed=seed) for seed in (0, 1)],
        ShardInfo("synthetic", "train"),
    )
    write_manifest(folder)

    def read() -> list[str]:
        problems = verify_store(folder, lambda paths, _: paths)
        for scene in SceneStore(folder, "train"):
            scene.validate()
        return problems

    return read


def checkpoint(folder: Path) -> Open:
    """A small checkpoint in both formats."""
    recipe = TrainConfig(CrowdConfig(time_layers=1))
    paths = [folder / "model.ckpt", folder / "model.safetensors"]
    for path in paths:
        write_checkpoint(path, recipe, recipe.build_model().state_dict())
    return lambda: [str(load_checkpoint(path)) for path in paths][:0]


def recipe(folder: Path) -> Open:
    """A recipe; its model is built."""
    path = folder / "recipe.yaml"
    path.write_text(recipe_file("mmtransformer_argoverse1").read_text())
    return lambda: [str(read_recipe(path).check())][:0]


def forecasts(folder: Path) -> Open:
    """A forecast file."""
    rng, path = random.Random(0), folder / "forecasts.parquet"
    position = [[[rng.uniform(-9, 9) for _ in "xy"] for _ in range(12)] for _ in range(6)]
    write_forecasts(
        path, [TrackForecast("a", str(track), [1 / 6] * 6, position) for track in range(5)]
    )  # type: ignore[arg-type]
    return lambda: list(read_forecasts(path))[:0]


OTHERS: dict[str, Callable[[Path], Open]] = {
    f.__name__: f for f in (store, checkpoint, recipe, forecasts)
}
FORMATS = (*FOLDERS, *OTHERS)


def outcomes(name: str, folder: Path, first: int, count: int) -> Iterator[tuple[str, str]]:
    """Damage one file after the other; "valid", "refused" or "failure" with the reason.

    The damage is a function of the format and the number, so that it can be repeated.
    """
    folder.mkdir(parents=True, exist_ok=True)
    read = raw(name, folder) if name in FOLDERS else OTHERS[name](folder)
    assert read() == [], f"{name}: the files are not valid"
    files = list(example_files(folder))
    for number in range(first, first + count):
        rng = random.Random(f"{name} {number}")
        file = rng.choice(files)
        content, state = file.read_bytes(), file.stat()
        hostile.random_damage(file.suffix, rng)(file)
        os.utime(file, ns=(number, number))  # else a cached content may be used
        yield _attempt(read, folder)
        file.write_bytes(content)
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def _attempt(read: Open, folder: Path) -> tuple[str, str]:
    reasons: list[str] = []
    start = time.perf_counter()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = hostile.memory_mb("VmRSS")
    try:
        reasons = read()
    except TrajformerError as error:
        reasons = [str(error)]
        if "\n" in str(error) or not (str(folder) in str(error) or str(error).startswith("scene ")):
            return "failure", f"several lines, or no file: {error}"
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return (
            "failure",
            f"{type(error).__name__}: {str(error)[:200]} ({Path(place.filename).name}, line {place.lineno})",
        )
    if (seconds := time.perf_counter() - start) > MAX_S:
        return "failure", f"{seconds:.0f} s"
    if (growth := hostile.memory_mb("VmHWM") - before) > MAX_MB:
        return "failure", f"{growth:.0f} MB"
    return ("refused", reasons[0].replace(f"{folder}/", "")) if reasons else ("valid", "")


def _serve(name: str, folder: str, first: int, count: int, pipe: Any) -> None:
    size = int(hostile.memory_mb("VmSize") * 2**20 + 2 * MAX_MB * 1e6)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    for outcome in outcomes(name, Path(folder), first, count):
        pipe.send(outcome)


def fuzz(name: str, first: int, count: int) -> dict[str, Any]:
    """Open `count` damaged files of a format in processes that are replaced when they die or hang."""
    start, kinds, reasons, failures = time.monotonic(), Counter[str](), Counter[str](), {}
    number, last, spawn = first, first + count, multiprocessing.get_context("spawn")
    while number < last:
        receiver, sender = spawn.Pipe(duplex=False)
        with tempfile.TemporaryDirectory() as folder:
            process = spawn.Process(
                target=_serve, args=(name, f"{folder}/raw", number, last - number, sender)
            )
            process.start()
            sender.close()
            limit = 120.0  # the start
            while number < last:
                kind, reason = "failure", f"no answer in {limit:.0f} s"
                alive = receiver.poll(limit)
                try:
                    kind, reason = receiver.recv() if alive else (kind, reason)
                except EOFError:
                    process.join()
                    kind, reason, alive = "failure", f"exit status {process.exitcode}", False
                kinds[kind] += 1
                if kind == "failure":
                    failures[number] = reason
                reasons[re.sub(r"'.*'|\S*\d\S*", "#", reason)] += kind == "refused"
                number, limit = number + 1, 3 * MAX_S
                if not alive:
                    break
            process.kill()
            process.join()
    row = {"format": name, "first": first, "count": count, **kinds, "reasons": len(+reasons)}
    return row | {
        "seconds": round(time.monotonic() - start),
        "failures": failures,
        "examples": dict(reasons.most_common(20)),
    }


def main() -> int:
    """Print a line per format; the exit status is 1 after a failure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--first", type=int, default=0, help="number of the first damage")
    parser.add_argument("--count", type=int, default=1_000, help="damages of each format")
    parser.add_argument("--json", type=Path, help="also write the record to this file")
    args = parser.parse_args()
    rows = []
    for name in args.formats:
        rows.append(fuzz(name, args.first, args.count))
        shown = {
            key: value for key, value in rows[-1].items() if key not in ("failures", "examples")
        }
        print(" ".join(f"{key} {value}" for key, value in shown.items()), flush=True)
        for number, reason in rows[-1]["failures"].items():
            print(f"  {number}: {reason}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["failures"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
