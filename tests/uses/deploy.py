"""Careless and hostile inputs of exported models, live forecasts, pages, scores and readers."""

import math
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from support.uses import Case
from uses.hostile import plant

SCORE = "score forecasts.parquet --store store"
PREDICT = "predict --store store --out out.parquet"


def text(path: str, content: str = "notes\n") -> Callable[[], object]:
    def write() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content)

    return write


def folder(path: str) -> Callable[[], object]:
    return lambda: Path(path).mkdir(parents=True)


def pipe(path: str) -> Callable[[], object]:
    def make() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)

    return make


def renamed_zip() -> None:
    with zipfile.ZipFile("model.pt2", "w") as archive:
        archive.writestr("notes.txt", "notes")


def forecasts_with(value: float) -> Callable[[], object]:
    """A forecast with one other coordinate."""

    def write() -> None:
        table = pq.read_table("forecasts.parquet")
        name = "predicted_trajectory_x"
        index = table.schema.get_field_index(name)
        rows = table.column(name).to_pylist()
        rows[3][5] = value
        changed = table.set_column(index, name, pa.array(rows))
        pq.write_table(changed, "odd.parquet")

    return write


def odd_name() -> None:
    shutil.copy("forecasts.parquet", b"caf\xe9.parquet")


def long_record() -> None:
    """The header of a record of Waymo with a length of 2**62 bytes."""
    Path("waymo_odd/validation").mkdir(parents=True)
    Path("waymo_odd/validation/a.tfrecord").write_bytes(struct.pack("<QI", 1 << 62, 0) + b"x" * 99)


def entities(path: str, root: str) -> Callable[[], object]:
    """An XML file that grows to gigabytes."""
    levels = [f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10)]
    head = f'<?xml version="1.0"?><!DOCTYPE a [<!ENTITY e0 "aaaaaaaaaa">{"".join(levels)}]>'
    return text(path, f"{head}<{root}>&e9;</{root}>")


EXPORTED = [
    Case(
        "predict with notes as ONNX",
        f"{PREDICT} --checkpoint model.onnx",
        "model.onnx: cannot be read: .*",
        text("model.onnx"),
    ),
    Case(
        "evaluate a renamed zip file",
        "evaluate --store store --checkpoint model.pt2",
        "model.pt2: cannot be read: an unexpected part: notes.txt",
        renamed_zip,
    ),
    Case(
        "time a folder",
        "latency model.onnx",
        "model.onnx: cannot be read: .*folder",
        folder("model.onnx"),
    ),
    Case(
        "time a pipe",
        "latency model.pt2",
        "model.pt2: cannot be read: neither a file",
        pipe("model.pt2"),
    ),
    Case("time notes", "latency notes.txt", "notes.txt: not a readable checkpoint"),
    Case("time a run", "latency run", "run: a folder; its checkpoint is run/last.ckpt"),
    Case(
        "stream with a missing export",
        "stream store --checkpoint model.pt2",
        "model.pt2: cannot be read: .*No such file",
    ),
    Case("export an export", "export model.onnx --out b.onnx", "model.onnx: ", text("model.onnx")),
    Case(
        "export to its input",
        "export run/best.ckpt --out run/best.ckpt --overwrite",
        "run/best.ckpt: cannot be written: .* input",
    ),
    Case(
        "export to a folder",
        "export run/best.ckpt --out a.onnx",
        "a.onnx: cannot be written: .*folder",
        folder("a.onnx"),
    ),
    Case(
        "export beside a foreign map",
        "export run/best.ckpt --out a.onnx --overwrite",
        "a.map.onnx: exists and is not a onnx file",
        text("a.map.onnx"),
    ),
    Case(
        "time a billion agents",
        "latency run/best.ckpt --agents 1000000000",
        "--agents: '1000000000', expected 1 to 2048",
        status=2,
    ),
    Case(
        "time a billion lanes",
        "latency run/best.ckpt --lanes 1000000000",
        "--lanes: '1000000000', expected 1 to 20000",
        status=2,
    ),
    Case("time with many threads", "latency run/best.ckpt --threads 100000", "threads"),
    Case("time for ever", "latency run/best.ckpt --calls 1000000000000", "calls: ", status=2),
]
LIVE = [
    Case("stream notes", "stream notes.txt --checkpoint run/best.ckpt", "notes.txt: "),
    Case(
        "stream an empty folder",
        "stream empty --checkpoint run/best.ckpt",
        "empty: ",
        folder("empty"),
    ),
    Case(
        "stream into a store",
        "stream store --checkpoint run/best.ckpt --out store/val/a.parquet",
        "store/val/a.parquet: cannot be written: store is an input",
    ),
    Case(
        "stream to a pipe",
        "stream store --checkpoint run/best.ckpt --out p.parquet",
        "p.parquet: cannot be written: neither a file nor a folder",
        pipe("p.parquet"),
    ),
    Case(
        "stream with many threads",
        "stream store --checkpoint run/best.ckpt --threads 100000",
        "threads",
    ),
]
SCORES = [
    Case("score a folder", "score store --store store", "store: a folder, pipe or device"),
    Case(
        "score a pipe",
        "score p.parquet --store store",
        "p.parquet: a folder, pipe or device",
        pipe("p.parquet"),
    ),
    Case(
        "score with figures over the forecasts",
        f"{SCORE} --json forecasts.parquet --overwrite",
        "forecasts.parquet: cannot be written: .*input",
    ),
    Case(
        "score NaN",
        "score odd.parquet --store store",
        "odd.parquet: 1 forecasts are malformed and not scored .*has NaN or infinity",
        forecasts_with(math.nan),
        status=0,
    ),
    Case(
        "score a name that is not UTF-8",
        ("score", "caf\udce9.parquet", "--store", "store"),
        r"caf\\udce9.parquet: a name that is not UTF-8; rename it",
        odd_name,
    ),
    Case("score with a closed standard error", SCORE, "minFDE", lambda: os.close(2), status=0),
    Case(
        "report into a store",
        "report forecasts.parquet --store store --out store/r.html",
        "store/r.html: cannot be written: store is an input",
    ),
    Case(
        "report over another page",
        "report forecasts.parquet --store store --out a.html --overwrite",
        "a.html: exists and is not",
        text("a.html", "<html></html>"),
    ),
    Case(
        "view NaN",
        "view store --forecasts odd.parquet --out p.html",
        "odd.parquet: ",
        forecasts_with(math.nan),
    ),
    Case("view a billion scenes", "view store --random 1000000000 --out p.html", "", status=0),
    Case(
        "view a scene with a long name",
        ("view", "store", "--scene", "x" * 100_000, "--out", "p.html"),
        "no scene x",
    ),
    Case(
        "MCAP of NaN",
        "export-mcap store --forecasts odd.parquet --out p.mcap",
        "odd.parquet: ",
        forecasts_with(math.nan),
    ),
    Case(
        "MCAP over forecasts",
        "export-mcap store --forecasts forecasts.parquet --out forecasts.parquet --overwrite",
        "forecasts.parquet: cannot be written: .*input",
    ),
    Case(
        "MCAP of a pipe",
        "export-mcap store --forecasts p.parquet --out p.mcap",
        "p.parquet: ",
        pipe("p.parquet"),
    ),
]
READERS = [
    Case(
        "benchmark waymo on notes",
        "benchmark waymo --data notes.txt --model constant_velocity",
        "notes.txt: ",
    ),
    Case(
        "benchmark waymo on an empty folder",
        "benchmark waymo --data empty --model constant_velocity",
        "empty: ",
        folder("empty"),
    ),
    Case(
        "prepare a record of Waymo with a huge length",
        "preprocess waymo waymo_odd s --workers 1",
        "waymo_odd: split 'validation'.*",
        long_record,
    ),
    Case(
        "prepare a pipe of inD",
        "preprocess ind ind_odd s --workers 1",
        "ind_odd",
        pipe("ind_odd/data/00_tracks.csv"),
    ),
    Case(
        "prepare notes as inD",
        "preprocess ind ind_odd s --workers 1",
        "ind_odd",
        text("ind_odd/data/00_tracks.csv"),
    ),
    Case(
        "prepare a folder as TrajNet++",
        "preprocess trajnetpp odd s --workers 1",
        "odd",
        folder("odd/train/a.ndjson"),
    ),
    Case(
        "prepare numbers that are none as TrajNet++",
        "preprocess trajnetpp odd s --workers 1",
        "odd",
        text("odd/train/a.ndjson", '{"track": {"f": 1e999, "p": NaN, "x": 1, "y": 2}}\n' * 9),
    ),
    Case(
        "prepare nested lists as TrajNet++",
        "preprocess trajnetpp odd s --workers 1",
        "odd",
        text("odd/train/a.ndjson", "[" * 200_000),
    ),
    Case(
        "prepare a growing CommonRoad file",
        "preprocess commonroad odd s --workers 1",
        "odd",
        entities("odd/train/a.xml", "commonRoad"),
    ),
    Case(
        "prepare a growing SUMO file",
        "preprocess sumo odd s --workers 1",
        "odd",
        entities("odd/train/fcd.xml", "fcd-export"),
    ),
    Case(
        "prepare notes as a database of nuPlan",
        "preprocess nuplan odd s --workers 1",
        "odd",
        text("odd/train/a.db"),
    ),
]


def next_to_modules(words: str) -> Case:
    """A command in a folder with modules of the names that it imports."""

    def prepare() -> None:
        plant()
        executed = Path("executed").absolute()
        for name in ("onnxruntime", "onnx", "ray", "mcap", "matplotlib", "pandas", "json", "av"):
            Path(f"{name}.py").write_text(f"open({str(executed)!r}, 'w')\n")

    use = f"{words}, next to planted modules"
    return Case(use, words, "", prepare, status=0, spawns=True)


MODULES = [
    next_to_modules(SCORE),
    next_to_modules("report forecasts.parquet --store store --out r.html"),
    next_to_modules("view store --out p.html"),
    next_to_modules("export-mcap store --out p.mcap"),
    next_to_modules("stream store --checkpoint run/best.ckpt"),
    next_to_modules("predict --checkpoint run/best.ckpt --store store --out o.parquet --workers 2"),
    next_to_modules("latency run/best.ckpt --agents 2 --lanes 3 --calls 2 --runtimes eager"),
]
CASES = [*EXPORTED, *LIVE, *SCORES, *READERS, *MODULES]
