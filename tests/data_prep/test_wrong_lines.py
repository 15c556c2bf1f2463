"""A wrong line of a recording is counted as dropped; the scenes of the other lines remain."""

import sqlite3
from pathlib import Path

import pytest
from support.raw_folders import FOLDERS

from trajformer.errors import SceneError
from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.scene import Scene
from trajformer.testing.readers import read_all

# Reader, file, number of the line, text, its replacement, and the reported detail.
CASES = {
    "a word in a box": ("sdd", "annotations.txt", 3, b" 0 0 0", b" x 0 0", "row: lost: expected"),
    "no text in UTF-8": ("sdd", "annotations.txt", 0, b'"Biker"', b'"Bi\xff"', "label: unknown"),
    "a short row of boxes": ("sdd", "annotations.txt", 39, b" 0 0 0", b"", "row: another number"),
    "a time step without time": (
        "sumo",
        "fcd.xml",
        3,
        b'time="',
        b'time="x',
        "timestep: could not",
    ),
    "a cut row of inD": ("ind", "00_tracks.csv", -1, b",", b";", "row: another number of columns"),
    # pyarrow would print a traceback.
    "a cut row of inD, not UTF-8": ("ind", "00_tracks.csv", -1, b",", b"\xff", "row: another"),
    "a cut row of a clip, not UTF-8": ("vci", "ped_filtered.csv", 4, b",", b"\xff", "row: another"),
    "a cut row of a table, not UTF-8": ("table", "drive.csv", 4, b",", b"\xff", "row: another"),
    "a damaged class": ("ind", "00_tracksMeta.csv", 1, b"car", b"\xffar", "class: unknown value"),
    "a cut row of SIND": ("ind", "Veh_smoothed_tracks.csv", 4, b",", b";", "row: another number"),
    "a cut row of a clip": ("vci", "01_traj_ped_filtered.csv", 4, b",", b";", "row: another"),
    "a cut row of a table": ("table", "drive.csv", 4, b",", b";", "row: another number"),
    "a cut line of json": ("trajnetpp", "hotel.ndjson", 9, b"}", b"", "row: no scene and no track"),
    "a word as position": (
        "commonroad",
        "T-1.xml",
        None,
        b"<exact>3<",
        b"<exact>x<",
        "state: could",
    ),
}


def read_folder(name: str, raw: Path) -> tuple[list[Scene], set[str]]:
    """The scenes of a raw folder, and the dropped details."""
    reader = FOLDERS[name](raw) if not raw.exists() else FOLDERS[name](raw.with_name("other"))
    scenes = []
    with collect_dropped() as dropped:
        for split in reader.splits(raw):
            for outcome in read_all(reader, raw, split).values():
                assert isinstance(outcome, Scene), outcome
                scenes.append(outcome)
    return scenes, {cause for _, cause in dropped}


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", CASES)
def test_a_wrong_line_is_counted(tmp_path: Path, case: str) -> None:
    name, file, number, text, replacement, cause = CASES[case]
    raw = tmp_path / "raw"
    before, known = read_folder(name, raw)
    [path] = raw.rglob(f"*{file}")
    lines = path.read_bytes().splitlines(keepends=True)
    if number is None:
        number = next(row for row, line in enumerate(lines) if text in line)
    assert text in lines[number]
    lines[number] = lines[number].replace(text, replacement)
    path.write_bytes(b"".join(lines))
    scenes, causes = read_folder(name, raw)
    assert [scene.scene_id for scene in scenes] == [scene.scene_id for scene in before]
    [added] = causes - known
    assert added.startswith(cause)


def test_many_wrong_lines_are_refused(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    reader = FOLDERS["vci"](raw)
    [path] = raw.rglob("*_ped_filtered.csv")
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:8], *(line.replace(",", ";") for line in lines[8:])]))
    [item] = reader.inputs(raw, "dut")
    with pytest.raises(SceneError, match=r"csv: another number of columns, expected \d+ as in the"):
        raise SceneError(item.problem or str(reader.read(item, "dut", raw)))


def test_a_box_without_position_is_counted(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    before, _ = read_folder("nuplan", raw)
    [path] = raw.rglob("*.db")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE lidar_box SET x = 'far' WHERE rowid = 3")
    connection.commit()
    connection.close()
    scenes, causes = read_folder("nuplan", raw)
    assert len(scenes) == len(before)
    assert causes == {"row: lidar_box: x, y: no finite number"}
