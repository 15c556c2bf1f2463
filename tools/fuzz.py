"""Open randomly damaged files of all formats.

Each file must be valid or refused with one line that names the file.

    nice -n 19 python tools/fuzz.py --count 10000 --json fuzz.json
    python tools/fuzz.py --formats table checkpoint --first 8123 --count 1

Damages are edits of bytes (bits, truncation, deletion, copies of other parts) and of fields
(columns, cells, types, entries of documents, tensors). A failure is another exception, the end of
the process, more than 10 s or more than 2 GB for one file; it is printed with its number, with
which --first repeats it. Raw formats are the folders of tests/support/raw_folders.py: a new reader
adds a line there.
"""

import argparse
import gzip
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# The damages and the small valid files are shared with the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
import numpy as np
from PIL import Image
from support import hostile
from support.heads import voc_annotation
from support.raw_folders import FOLDERS
from support.scenes import make_scene

from data_prep.reader import Input
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast, read_forecasts, write_forecasts
from trajformer.heads.detr.voc import VocConfig, VocDataset
from trajformer.heads.translation.data import read_lines
from trajformer.models.crowd import CrowdConfig
from trajformer.recipes.checkpoint import load_checkpoint, write_checkpoint
from trajformer.recipes.names import read_recipe, recipe_file
from trajformer.recipes.recipe import DataConfig, TrainConfig, TrainerConfig
from trajformer.scenes.manifest import verify_store, write_manifest
from trajformer.scenes.scene import Scene
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.testing.readers import check_messages, example_files, read_all
from trajformer.training.forecasting import TASK
from trajformer.training.run import train

# Opens the files; returns the reasons against them, or raises a TrajformerError.
Open = Callable[[], list[str]]
MAX_S = 10.0  # for one file
MAX_MB = 2_000.0
START_S = 120.0  # of a process


def raw(name: str, folder: Path) -> Open:
    """A raw folder of a reader."""
    reader = FOLDERS[name](folder)
    splits = reader.splits(folder)

    def read() -> list[str]:
        outcomes: dict[Input, Scene | str] = {}
        for split in splits:
            outcomes |= read_all(reader, folder, split)
        check_messages(outcomes, folder)
        return [outcome for outcome in outcomes.values() if isinstance(outcome, str)]

    return read


def store(folder: Path) -> Open:
    """A store with two scenes: a shard and the manifest."""
    scenes = [make_scene(4, seed=seed) for seed in (0, 1)]
    write_shard(shard_path(folder, "train", 0), scenes, ShardInfo("synthetic", "train"))
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

    def read() -> list[str]:
        for path in paths:
            load_checkpoint(path)
        return []

    return read


def recipe(folder: Path) -> Open:
    """A recipe; its model is built."""
    path = folder / "recipe.yaml"
    path.write_text(recipe_file("mmtransformer_argoverse1").read_text())

    def read() -> list[str]:
        read_recipe(path).check()
        return []

    return read


def forecasts(folder: Path) -> Open:
    """A forecast file."""
    path = folder / "forecasts.parquet"
    position = np.random.default_rng(0).uniform(-9, 9, (6, 12, 2))  # [K, F, 2]
    probability = np.full(6, 1 / 6)
    tracks = [TrackForecast("a", str(track), probability, position) for track in range(5)]
    write_forecasts(path, tracks)

    def read() -> list[str]:
        for _ in read_forecasts(path):
            pass
        return []

    return read


def run(folder: Path) -> Open:
    """A finished run, which resumes: its last checkpoint and its table of metrics."""
    data = folder.parent / f"{folder.name}_store"  # not damaged
    for seed, split in enumerate(("train", "val")):
        scenes = [make_scene(4, seed=seed, scene_id=split)]
        write_shard(shard_path(data, split, 0), scenes, ShardInfo("synthetic", split))
    recipe = TrainConfig(
        CrowdConfig(time_layers=1),
        data=DataConfig(str(data), str(data)),
        trainer=TrainerConfig(epochs=1, accelerator="cpu", threads=1),
    )
    train(recipe, TASK, folder, progress=False)
    for name in ("best.ckpt", "config.yaml"):  # resuming does not read them
        (folder / name).rename(data / name)
    shutil.rmtree(folder / "tensorboard", ignore_errors=True)

    def read() -> list[str]:
        shutil.copytree(folder, data / "run")
        try:
            shutil.copy(data / "best.ckpt", data / "run")
            train(recipe, TASK, data / "run", resume=True, progress=False)
        except TrajformerError as error:
            message = str(error).replace(str(data / "run"), str(folder))
            raise TrajformerError(message) from error
        finally:
            shutil.rmtree(data / "run")
        return []

    return read


def text(folder: Path) -> Open:
    """A compressed text for a translation."""
    path = folder / "text.gz"
    path.write_bytes(gzip.compress(b"Ein Satz je Zeile.\n" * 20))

    def read() -> list[str]:
        read_lines(path)
        return []

    return read


def annotations(folder: Path) -> Open:
    """Labeled boxes of an image in the layout of Pascal VOC."""
    for part in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / part).mkdir(parents=True)
    boxes = voc_annotation(("cell", 4, 5, 20, 25), ("cell", 7, 7, 9, 9))
    for name in ("a", "b"):
        (folder / "Annotations" / f"{name}.xml").write_text(boxes)
        Image.new("RGB", (40, 30)).save(folder / "JPEGImages" / f"{name}.png")
    (folder / "ImageSets" / "Main" / "val.txt").write_text("a\nb\n")

    def read() -> list[str]:
        dataset = VocDataset(VocConfig(str(folder)), "val", ["cell"], (32, 64))
        for index in range(len(dataset)):
            box = dataset.example(index).box
            assert not len(box) or 0 <= box.min() <= box.max() <= 64, "a box outside"
        return list(dataset.skipped)

    return read


OTHERS: dict[str, Callable[[Path], Open]] = {
    "store": store,
    "checkpoint": checkpoint,
    "recipe": recipe,
    "forecasts": forecasts,
    "run": run,
    "text": text,
    "annotations": annotations,
}
FORMATS = (*FOLDERS, *OTHERS)


def outcomes(name: str, folder: Path, first: int, count: int) -> Iterator[tuple[str, str]]:
    """Damage one file after the other; yield "valid", "refused" or "failure" with the reason.

    The damage is a function of the format and the number, so that it can be repeated.
    """
    folder.mkdir(parents=True, exist_ok=True)
    read = raw(name, folder) if name in FOLDERS else OTHERS[name](folder)
    assert read() == [], f"{name}: the files are not valid"
    files = list(example_files(folder))
    for number in range(first, first + count):
        rng = random.Random(f"{name} {number}")
        file = rng.choice(files)
        content = file.read_bytes()
        state = file.stat()
        hostile.random_damage(file.suffix, rng)(file)
        os.utime(file, ns=(number, number))  # else a cached content may be used
        yield _attempt(read, folder)
        file.write_bytes(content)
        os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def _attempt(read: Open, folder: Path) -> tuple[str, str]:
    """Open the files once; return the outcome and the reason."""
    reasons: list[str] = []
    start_time = time.perf_counter()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = hostile.memory_mb("VmRSS")
    try:
        reasons = read()
    except TrajformerError as error:
        message = str(error)
        reasons = [message]
        names_file = str(folder) in message or message.startswith("scene ")
        if "\n" in message or not names_file:
            return "failure", f"several lines, or no file: {message}"
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        location = f"{Path(frame.filename).name}, line {frame.lineno}"
        return "failure", f"{type(error).__name__}: {str(error)[:200]} ({location})"
    seconds = time.perf_counter() - start_time
    if seconds > MAX_S:
        return "failure", f"{seconds:.0f} s"
    growth_mb = hostile.memory_mb("VmHWM") - before
    if growth_mb > MAX_MB:
        return "failure", f"{growth_mb:.0f} MB"
    if reasons:
        return "refused", reasons[0].replace(f"{folder}/", "")
    return "valid", ""


def _serve(name: str, folder: str, first: int, count: int, pipe: Any) -> None:
    """Send the outcomes of damages through a pipe, from a process with limited memory."""
    size = int(hostile.memory_mb("VmSize") * 2**20 + 2 * MAX_MB * 1e6)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    for outcome in outcomes(name, Path(folder), first, count):
        pipe.send(outcome)


def fuzz(name: str, first: int, count: int) -> dict[str, Any]:
    """Open `count` damaged files of a format and count the outcomes.

    A process that dies or hangs is replaced.
    """
    start_time = time.monotonic()
    kinds = Counter[str]()  # "valid", "refused", "failure"
    reasons = Counter[str]()  # of refusals, without names and numbers
    failures: dict[int, str] = {}
    number = first
    while number < first + count:
        for kind, reason in _outcomes_of_process(name, number, first + count - number):
            kinds[kind] += 1
            if kind == "failure":
                failures[number] = reason
            if kind == "refused":
                reasons[re.sub(r"'.*'|\S*\d\S*", "#", reason)] += 1
            number += 1
    row = {"format": name, "first": first, "count": count, **kinds, "reasons": len(reasons)}
    return row | {
        "seconds": round(time.monotonic() - start_time),
        "failures": failures,
        "examples": dict(reasons.most_common(20)),
    }


def _outcomes_of_process(name: str, first: int, count: int) -> Iterator[tuple[str, str]]:
    """Yield outcomes of a new process; the last one is a failure if the process dies or hangs."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = (name, f"{folder}/raw", first, count, sender)
        process = context.Process(target=_serve, args=arguments)
        process.start()
        sender.close()
        try:
            limit_s = START_S
            for _ in range(count):
                if not receiver.poll(limit_s):
                    yield "failure", f"no answer in {limit_s:.0f} s"
                    return
                yield receiver.recv()
                limit_s = 3 * MAX_S
        except EOFError:
            process.join()
            yield "failure", f"exit status {process.exitcode}"
        finally:
            process.kill()
            process.join()


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
        row = fuzz(name, args.first, args.count)
        rows.append(row)
        hidden = ("failures", "examples")
        line = " ".join(f"{key} {value}" for key, value in row.items() if key not in hidden)
        print(line, flush=True)
        for number, reason in row["failures"].items():
            print(f"  {number}: {reason}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["failures"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
