"""All files of a raw folder are used, or listed as skipped."""

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.raw_folders import FOLDERS
from support.tables import two_tracks, write

from data_prep.engine.options import PrepareOptions
from data_prep.engine.plan import plan
from data_prep.engine.prepare import prepare
from data_prep.reader import Input
from data_prep.readers.table.reader import Table

OPTIONS = PrepareOptions(workers=1, progress=False)
TABLE = Table(num_history=5, num_future=5)


def planned(reader: object, raw: Path) -> list[Input]:
    tasks = plan(reader, raw, raw.parent / "store", OPTIONS)  # type: ignore[arg-type]
    return [item for split in tasks.values() for task in split for item in task.inputs]


def problems(reader: object, raw: Path) -> dict[str, str]:
    """The inputs that are not read, with the reason."""
    return {item.name(raw): item.problem for item in planned(reader, raw) if item.problem}


@pytest.mark.parametrize("name", FOLDERS)
def test_all_files_of_a_valid_folder_are_used(tmp_path: Path, name: str) -> None:
    raw = tmp_path / "raw"
    reader = FOLDERS[name](raw)
    (raw / "README.txt").write_text("about")
    (raw / "picture.png").write_text("no data")
    assert problems(reader, raw) == {}


def test_the_arguments_of_a_simulation_are_no_unused_file(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    reader = FOLDERS["argoverse2"](raw)
    (raw / "arguments.json").write_text("{}")
    assert problems(reader, raw) == {}


# By reader: a file that is copied, and a place in which the reader does not look.
MISPLACED = {
    "argoverse1": ("*/data/1.csv", "loose.csv"),
    "argoverse2": ("*/*/scenario_*.parquet", "val/copy.parquet"),
    "argoverse2_sensor": ("*/*/annotations.feather", "val/log-1/old.feather"),
    "eth_ucy": ("eth/*.txt", "eth/more/day1/a.txt"),
    "interaction": ("*/*/vehicle_tracks_*.csv", "recorded_trackfiles/vehicle_tracks_900.csv"),
    "nuscenes_prediction": ("label/*/*.txt", "label/train/old/scene-0002.txt"),
    "scenarionet": ("*/*/*_1.pkl", "val/loose.pkl"),
    "sdd": ("*/*.txt", "train/video0/annotations.txt"),
    "table": ("val/*.csv", "val/day1/a.csv"),
}


@pytest.mark.parametrize("name", MISPLACED)
def test_a_file_in_another_place_is_listed(tmp_path: Path, name: str) -> None:
    raw = tmp_path / "raw"
    reader = FOLDERS[name](raw)
    pattern, place = MISPLACED[name]
    (raw / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(next(raw.glob(pattern)), raw / place)
    assert problems(reader, raw) == {place: f"not used: expected {reader.layout}"}


def test_pedestrians_without_vehicles_are_listed(tmp_path: Path) -> None:
    reader = FOLDERS["interaction"](tmp_path / "raw")
    vehicles = next((tmp_path / "raw").glob("*/*/vehicle_tracks_*.csv"))
    pedestrians = vehicles.with_name("pedestrian_tracks_900.csv")
    shutil.copy(vehicles, pedestrians)
    assert list(problems(reader, tmp_path / "raw")) == [
        pedestrians.relative_to(tmp_path / "raw").as_posix()
    ]


def broken_link(path: Path) -> None:
    path.symlink_to("nowhere")


TABLES: dict[str, tuple[Callable[[Path], object], str]] = {
    "b.csv": (broken_link, "val/b.csv: cannot be read: No such file or directory"),
    "c.CSV": (os.mkfifo, "val/c.CSV: cannot be read: neither a file nor a folder"),
    "d.parquet": (Path.mkdir, "a folder, expected a file"),
    "e": (broken_link, "cannot be read: a link to a missing file"),
    "f.lanes.geojson": (Path.touch, f"not used: expected {TABLE.layout}"),
    "g.csv.bz2": (Path.touch, f"not used: expected {TABLE.layout}"),
    "caf\udce9.csv": (Path.touch, "the name of the file is not UTF-8: rename it"),
}


@pytest.mark.parametrize("name", TABLES)
def test_what_lies_next_to_a_table_is_listed(tmp_path: Path, name: str) -> None:
    raw = tmp_path / "raw"
    write(raw / "val" / "a.csv", two_tracks())
    make, reason = TABLES[name]
    make(raw / "val" / name)
    summary = prepare(TABLE, raw, tmp_path / "store", OPTIONS)
    assert summary.scenes == 1
    [(listed, actual)] = summary.skipped
    assert listed == f"val/{name}".replace("\udce9", "\\udce9")
    assert actual == reason

    # A file without a role may go, and the scenes stay.
    path = raw / "val" / name
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    if "not used" in reason:
        assert prepare(TABLE, raw, tmp_path / "store", OPTIONS).skipped == []


def test_many_files_of_a_folder_are_one_line(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for name in ("a", "day1/b", "day1/c", "day1/d"):
        write(raw / "val" / f"{name}.csv", two_tracks())
    [(folder, problem)] = problems(TABLE, raw).items()
    assert folder == "val/day1"
    assert problem == f"3 files, such as b.csv, are not used: expected {TABLE.layout}"


def test_a_selected_split_lists_its_own_files_only(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for name in ("train/a", "train/day1/b", "val/c", "val/day1/d"):
        write(raw / f"{name}.csv", two_tracks())
    tasks = plan(TABLE, raw, tmp_path / "store", PrepareOptions(splits=("val",)))
    [task] = tasks["val"]
    names = [item.path.name for item in task.inputs if item.problem]
    assert names == ["d.csv"]


@pytest.mark.parametrize("name", ["b.csv.gz", "b.CSV.GZ", "b.csv"])
def test_compressed_tables_are_read(tmp_path: Path, name: str) -> None:
    raw = tmp_path / "raw"
    plain = write(raw / "val" / "a.csv", two_tracks())
    (raw / "val" / name).write_bytes(gzip.compress(plain.read_bytes()))
    scenes = {}
    for item in TABLE.inputs(raw, "val"):
        scene = TABLE.read(item, "val", raw)
        scenes[scene.scene_id] = scene.position.tolist()
    assert list(scenes) == ["a", "b"]
    assert scenes["a"] == scenes["b"]


NO_TABLES = {
    "a bomb": (gzip.compress(bytes(300_000_000)), "unpacks to more than 268 MB"),
    "half an archive": (gzip.compress(os.urandom(9000))[:5000], "a damaged gzip file"),
    "a zip archive": (b"PK\x03\x04" + bytes(99), "a zip archive: unpack it"),
    "UTF-16": ("track_id,x".encode("utf-16"), "text in UTF-16: save it as UTF-8"),
}


@pytest.mark.parametrize("case", NO_TABLES)
def test_other_formats_are_named(tmp_path: Path, case: str) -> None:
    raw = tmp_path / "raw"
    content, reason = NO_TABLES[case]
    write(raw / "val" / "a.csv", two_tracks())
    (raw / "val" / "b.csv").write_bytes(content)
    summary = prepare(TABLE, raw, tmp_path / "store", OPTIONS)
    assert summary.scenes == 1
    [(name, actual)] = summary.skipped
    assert name == "val/b.csv"
    assert reason in actual
