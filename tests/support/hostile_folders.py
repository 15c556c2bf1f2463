"""Raw folders that mix whole inputs and broken ones, all made from real recordings, one for every reader."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from support import hostile_argoverse1, hostile_argoverse2, hostile_maps, hostile_sensor, hostile_text
from support.hostile import Cases, Damage, column, data, parquet
from support.hostile_argoverse1 import near

WHOLE = ("0-whole", "m-whole", "zz-whole")  # before, among and behind the broken ones
Put = Callable[[Path, str], Path]  # a whole input of some name into a raw folder: the file to be broken


@dataclass(frozen=True)
class Mixture:
    """A reader, and what its raw folder holds besides whole inputs."""

    reader: str
    split: str
    put: Callable[[Path, Path], Put]  # from the real recordings, and a folder to unpack them in
    cases: Cases
    harmless: dict[str, Damage] = field(default_factory=dict)  # these make the same scene
    options: dict[str, Any] = field(default_factory=dict)


def argoverse2(real: Path, cache: Path, in_map: bool = False) -> Put:
    """The scenario of val, or its map."""
    [source] = (real / "argoverse2" / "val").glob("00a0ec58*/scenario_*.parquet")
    [archive] = source.parent.glob("*.json")

    def put(raw: Path, name: str) -> Path:
        home = raw / "val" / name
        home.mkdir(parents=True)
        files = home / f"scenario_{name}.parquet", home / f"log_map_archive_{name}.json"
        for old, new in zip((source, archive), files, strict=True):
            shutil.copyfile(old, new)
        return files[in_map]

    return put


def argoverse1(real: Path, cache: Path, in_map: bool = False) -> Put:
    """A sequence of val with the part of the map around it."""
    if not (cache / "val").is_dir():
        script = [sys.executable, real / "argoverse1" / "unpack.py", cache, "--split", "val", "--limit", "1"]
        subprocess.run(script, check=True, capture_output=True)
    [source] = (cache / "val" / "data").glob("*.csv")
    text = source.read_text()
    *_, x, y, city = text.splitlines()[1].split(",")
    [archive] = (cache / "map_files").glob(f"*_{city}_*.xml")
    lanes = near(archive, np.array([x, y], float))

    def put(raw: Path, name: str) -> Path:
        own = name.replace("-", "_") if in_map else city
        path, archive = raw / "val" / "data" / f"{name}.csv", raw / "map_files" / hostile_argoverse1.MAP.format(own)
        for parent in (path.parent, archive.parent):
            parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(city, own))
        archive.write_text(lanes)
        return archive if in_map else path

    return put


def sensor(real: Path, cache: Path) -> Put:
    """A log."""
    source = min(path.parent for path in (real / "argoverse2_sensor").glob("*/annotations.feather"))

    def put(raw: Path, name: str) -> Path:
        home = raw / "val" / name
        (home / "map").mkdir(parents=True)
        for path in [*source.glob("*.feather"), *source.glob("map/*.json")]:
            shutil.copyfile(path, home / path.relative_to(source))
        return home / "annotations.feather"

    return put


def recordings(real: Path, cache: Path) -> Put:
    """The beginning of a recording."""
    whole = b"\n".join((real / "eth_ucy" / "eth" / "biwi_eth.txt").read_bytes().splitlines()[:600])

    def put(raw: Path, name: str) -> Path:
        (raw / "eth").mkdir(parents=True, exist_ok=True)
        path = raw / "eth" / f"{name}.txt"
        path.write_bytes(whole)
        return path

    return put


def tables(real: Path, cache: Path, packed: bool = False) -> Put:
    """A scenario of Argoverse 2 as a table of one's own."""
    [source] = (real / "argoverse2" / "val").glob("00a0ec58*/scenario_*.parquet")
    names = {"track_id": "track_id", "timestep": "step", "position_x": "x", "position_y": "y", "heading": "heading"}
    names |= {"velocity_x": "vx", "velocity_y": "vy", "object_type": "kind"}
    table = pq.read_table(source).select(list(names)).rename_columns(list(names.values()))
    table = table.append_column("role", pa.array(["scored"] * len(table)))

    def put(raw: Path, name: str) -> Path:
        (raw / "val").mkdir(parents=True, exist_ok=True)
        path = raw / "val" / (f"{name}.parquet" if packed else f"{name}.csv")
        (pq.write_table if packed else pa_csv.write_csv)(table, path)
        return path

    return put


HARMLESS = {
    "rows-shuffled": parquet(lambda t: t.take(pa.array(np.random.default_rng(0).permutation(len(t))))),
    "rows-in-parts": parquet(lambda t: t, row_group_size=100),
    "unpacked": parquet(lambda t: t, compression=None, use_dictionary=False),
    "more-columns": parquet(lambda t: t.append_column("x", pa.array([[1.0]] * len(t)))),
    "float-steps": parquet(column("timestep", lambda v: v.cast(pa.float64()))),
    "small-types": parquet(lambda t: column("object_category", lambda v: v.cast(pa.uint8()))(t)),
    "large-text": parquet(column("track_id", lambda v: v.cast(pa.large_string()))),
    "coded-text": parquet(column("object_type", lambda v: v.dictionary_encode())),
    "other-id": parquet(column("scenario_id", lambda v: "../../x\n")),
}
HARMLESS_MAPS = {
    "map-more-fields": data(lambda b: b'{"more": [1, {"a": null}], "lane_segments": {},' + b[1:]),
    "map-spaces": data(lambda b: b"\n" + b.replace(b",", b" ,\t\r\n") + b"\n \n"),
}
HARMLESS_ROWS = {
    "csv-shuffled": hostile_argoverse1.rows(lambda lines: sorted(lines, key=lambda row: row[3])),
    "csv-windows": data(lambda b: b.replace(b"\n", b"\r\n")),
    "csv-mark": data(lambda b: b"\xef\xbb\xbf" + b),
    "csv-more-columns": data(lambda b: b"\n".join(line + b",extra" for line in b.splitlines())),
}


_argoverse2_map, _argoverse1_map = partial(argoverse2, in_map=True), partial(argoverse1, in_map=True)
MIXTURES = {
    "argoverse2": Mixture("argoverse2", "val", argoverse2, hostile_argoverse2.CASES, HARMLESS),
    "argoverse2 maps": Mixture("argoverse2", "val", _argoverse2_map, hostile_maps.CASES, HARMLESS_MAPS),
    "argoverse1": Mixture("argoverse1", "val", argoverse1, hostile_argoverse1.SEQUENCES, HARMLESS_ROWS),
    "argoverse1 maps": Mixture("argoverse1", "val", _argoverse1_map, hostile_argoverse1.MAPS),
    "sensor": Mixture("argoverse2_sensor", "val", sensor, hostile_sensor.CASES, options={"stride_s": 20.0}),
    "recordings": Mixture("eth_ucy", "eth_test", recordings, hostile_text.RECORDINGS, options={"stride": 50}),
    "tables": Mixture("table", "val", tables, hostile_text.TABLES),
}
