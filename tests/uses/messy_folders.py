"""Raw folders with files in unexpected places, and with details that cannot be used."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from support.cli import run
from support.uses import Case

TABLE = "preprocess table table s --num-history 5 --num-future 5 --workers 1"
LANE = {"points": [[0.0, 0.0], [300.0, 0.0]]}


def lanes(content: object) -> Callable[[], object]:
    """Other lanes of the table drive.csv."""
    text = content if isinstance(content, str) else json.dumps(content)
    return lambda: Path("table/val/lanes.json").write_text(text)


def copied(source: str, target: str) -> Callable[[], object]:
    def make() -> None:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)

    return make


def compressed() -> None:
    path = Path("table/val/drive.csv")
    Path("table/val/more.csv.gz").write_bytes(gzip.compress(path.read_bytes()))


def lanes_in_capitals() -> None:
    Path("table/val/lanes.json").rename("table/val/LANES.Json")


def odd_name() -> None:
    shutil.copy("table/val/drive.csv", os.fsdecode(b"table/val/caf\xe9.csv"))


def store_with_a_skipped_input() -> None:
    """The store s without one of three scenes."""
    Path("raw/val/raw-val-0/scenario_raw-val-0.parquet").write_bytes(b"")
    assert run(*["preprocess", "argoverse2", "raw", "s", "--split", "val", "--workers", "1"]) == 0


CASES = [
    Case("a compressed table", TABLE, "val: 3 scenes, .* 0 skipped", compressed, status=0),
    Case(
        "a table in a sub-folder",
        TABLE,
        r"1 skipped\n  skipped val/day1/a.csv: not used: expected RAW/<split>/\*.csv",
        copied("table/val/drive.csv", "table/val/day1/a.csv"),
        status=0,
    ),
    Case(
        "lanes of another format",
        TABLE,
        "skipped val/lanes.osm: not used: .*lanes.geojson",
        copied("table/val/lanes.json", "table/val/lanes.osm"),
        status=0,
    ),
    Case(
        "a table with a name that is not UTF-8",
        TABLE,
        r"(?s)val: 2 scenes.*skipped val/caf.udce9.csv: the name of the file is not UTF-8",
        odd_name,
        status=0,
    ),
    Case(
        "a lane of one point",
        TABLE,
        r"0 skipped\n  dropped 1 detail of val/lanes.json: lanes: points: 1 different ones",
        lanes({"lanes": [LANE, {"points": [[3, 3]]}]}),
        status=0,
    ),
    Case(
        "a misspelt field of a lane",
        TABLE,
        "dropped 1 detail of val/lanes.json: lanes: unknown field 'sucessors', expected 'succ",
        lanes({"lanes": [LANE | {"sucessors": [2]}]}),
        status=0,
    ),
    Case(
        "a JSON key twice",
        TABLE,
        "dropped 1 detail of val/lanes.json: lanes: kind: twice in one object",
        lanes(
            f'{{"lanes": [{json.dumps(LANE)}, {{"points": [], "kind": "bus", "kind": "bike"}}]}}'
        ),
        status=0,
    ),
    Case(
        "lanes in capital letters",
        TABLE,
        "val: 2 scenes, .* 0 skipped",
        lanes_in_capitals,
        status=0,
    ),
    Case(
        "scores state the skipped inputs",
        "evaluate --model constant_velocity --store s --json m.json",
        "val: 2 scenes, 1 input skipped by preprocess",
        store_with_a_skipped_input,
        status=0,
        makes=(("m.json", '"num_skipped": 1'),),
    ),
    Case(
        "forecasts state the skipped inputs",
        "predict --model constant_velocity --store s --out f.parquet",
        "val: 2 scenes, 1 input skipped by preprocess",
        store_with_a_skipped_input,
        status=0,
    ),
    Case(
        "pictures state the skipped inputs",
        "plot s --split val --random 1 --out p",
        "p/",
        store_with_a_skipped_input,
        status=0,
    ),
]
