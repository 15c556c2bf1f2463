"""The reader of sensor logs: what is parsed again, and broken logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyarrow import feather
from support import sensor_logs
from support.sensor_logs import (
    Columns,
    Track,
    annotations,
    ego_path,
    make,
    poses,
    read,
    small_tracks,
    take,
    write_log,
)

from data_prep.engine.prepare import PrepareOptions, prepare
from data_prep.reader import Input
from data_prep.readers.argoverse2 import log as argoverse2_log
from data_prep.readers.argoverse2.sensor import Argoverse2Sensor
from trajformer.errors import SceneError

SENSOR = Argoverse2Sensor()


def test_a_log_is_parsed_once_and_again_when_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Path] = []
    real = argoverse2_log.read_map
    monkeypatch.setattr(argoverse2_log, "read_map", lambda path: (parsed.append(path), real(path))[1])
    path = write_log(tmp_path / "val" / "log-1")
    scenes = [read(path, item.part) for item in SENSOR.inputs(tmp_path, "val")]
    assert len(scenes) == 3
    assert len(parsed) == 1
    moved = [replace(track, position=track.position + 1.0) for track in small_tracks()]
    write_log(path.parent, annotations(moved))
    assert np.abs(read(path).origin - scenes[0].origin - 1.0).max() < 1e-6
    archive = next((path.parent / "map").glob("log_map*"))
    archive.write_text(archive.read_text().replace('"BIKE"', '"BUS"'))
    assert read(path).polyline_kind.tolist() != scenes[0].polyline_kind.tolist()
    assert len(parsed) == 3


# ---- broken logs ---------------------------------------------------------------------------------------------------


def changed(name: str, value: object, row: int = 40) -> Callable[[Columns], Columns]:
    """A column with one other value."""

    def change(rows: Columns) -> Columns:
        column = rows[name].astype(object) if isinstance(value, str) else rows[name].astype(np.asarray(value).dtype)
        column[row] = value
        return rows | {name: column.astype(str) if isinstance(value, str) else column}

    return change


def without(name: str) -> Callable[[Columns], Columns]:
    return lambda rows: {key: value for key, value in rows.items() if key != name}


def null(name: str) -> Callable[[Columns], Columns]:
    def change(rows: Columns) -> Columns:
        column = rows[name].astype(object)
        column[3] = None
        return rows | {name: column}

    return change


BROKEN: dict[str, tuple[str, Callable[[Columns], Columns], str]] = {
    "no column": ("a", without("tx_m"), "tx_m: no such column"),
    "no timestamps": ("a", without("timestamp_ns"), "timestamp_ns: no such column"),
    "no rows": ("a", lambda rows: take(rows, np.zeros(0, int)), "timestamp_ns: no rows"),
    "NaN": ("a", changed("ty_m", np.nan), "ty_m: NaN, infinity or a number beyond 1e+06"),
    "too far": ("a", changed("tx_m", -1e300), "tx_m: NaN, infinity or a number beyond 1e+06"),
    "infinity": ("a", changed("qz", np.inf), "qz: NaN, infinity or a number beyond 1e+06"),
    "null": ("a", null("tx_m"), "tx_m: empty in 1 rows"),
    "null id": ("a", null("track_uuid"), "track_uuid: empty in 1 rows"),
    "no rotation": (
        "a",
        lambda rows: rows | {"qw": 0 * rows["qw"], "qz": 0 * rows["qz"]},
        "a quaternion of length 0, expected 1",
    ),
    "text for numbers": ("a", lambda rows: rows | {"tx_m": rows["tx_m"].astype(str)}, "tx_m: type string, expected a number"),
    "numbers for text": ("a", lambda rows: rows | {"track_uuid": rows["tx_m"]}, "track_uuid: type double, expected text"),
    "float time": ("a", lambda rows: rows | {"timestamp_ns": rows["tx_m"]}, "timestamp_ns: type double, expected whole numbers"),
    "unknown category": ("a", changed("category", "TRAM"), "category: unknown value 'TRAM'"),
    "a row twice": (
        "a",
        lambda rows: take(rows, np.append(np.arange(600), 40)),
        "track_uuid: a track has two rows with one timestamp_ns",
    ),
    "two sweeps at once": ("a", changed("timestamp_ns", sensor_logs.T0 + 1), "falls on the same step of 0.1 s as"),
    "a wrong time": ("a", changed("timestamp_ns", 40), "timestamp_ns: 131 sweeps spread over 3.15966e+08 s"),
    "farthest apart": ("a", changed("timestamp_ns", -(2**63)), "timestamp_ns: 131 sweeps spread over"),
    "no pose": ("p", lambda rows: take(rows, np.arange(250)), "timestamp_ns: no pose at 3159662661573"),
    "no pose column": ("p", without("qw"), "qw: no such column"),
    "NaN in a pose": ("p", changed("tx_m", np.nan), "tx_m: NaN, infinity or a number beyond 1e+06"),
    "a pose without rotation": ("p", changed("qw", 0.0), "a quaternion of length 0.149438, expected 1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_log_is_named_with_its_column(tmp_path: Path, case: str) -> None:
    which, change, message = BROKEN[case]
    rows, pose_rows = annotations(small_tracks()), poses()
    path = write_log(tmp_path / "val" / "log-1", *((change(rows), pose_rows) if which == "a" else (rows, change(pose_rows))))
    for item in SENSOR.inputs(tmp_path, "val"):
        with pytest.raises(SceneError) as caught:
            SENSOR.read(item, "val", tmp_path)
        assert str(path if which == "a" else path.with_name("city_SE3_egovehicle.feather")) in str(caught.value)
        assert message in str(caught.value)


FILES = ["annotations.feather", "city_SE3_egovehicle.feather", "map/log_map_archive_log-1____PIT_city_57819.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "cut short", "empty"])
def test_a_log_with_a_bad_file_is_one_skipped_input_or_its_windows_are(tmp_path: Path, name: str, damage: str) -> None:
    write_log(tmp_path / "raw" / "val" / "good")
    file = write_log(tmp_path / "raw" / "val" / "log-1").parent / name
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2 * (damage == "cut short")])
    if damage == "missing":
        file.unlink()
    summary = prepare(SENSOR, tmp_path / "raw", tmp_path / "store", PrepareOptions(progress=False))
    assert summary.scenes == 3
    listed = damage != "missing" and name != "annotations.feather"  # its timestamps are sound
    assert [entry for entry, _ in summary.skipped] == [
        f"val/log-1/annotations.feather{part}" for part in (("#000", "#010", "#020") if listed else ("",))
    ]
    for _, reason in summary.skipped:
        where = "val/log-1/map" if damage == "missing" and name == FILES[2] else f"val/log-1/{name}"
        assert reason.startswith(f"{where}: "), reason
        assert "\n" not in reason


def test_text_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = write_log(tmp_path / "val" / "log-1")
    feather.write_feather(feather.read_table(path), path, compression="uncompressed")
    path.write_bytes(path.read_bytes().replace(b"parked", b"park\xff\xff"))
    with pytest.raises(SceneError, match=r"annotations\.feather: not a readable feather file: .*UTF8"):
        read(path)


def test_two_maps_are_one_too_many(tmp_path: Path) -> None:
    path = write_log(tmp_path / "val" / "log-1")
    (path.parent / "map" / "log_map_archive_x____MIA_city_1.json").write_text("{}")
    with pytest.raises(SceneError, match=r"log-1/map: 2 files log_map_archive_\*\.json, expected one"):
        read(path)


def test_a_log_shorter_than_a_window_is_one_skipped_input(tmp_path: Path) -> None:
    path = write_log(tmp_path / "val" / "log-1", annotations(small_tracks(109)))
    assert SENSOR.inputs(tmp_path, "val") == [Input(path)]
    with pytest.raises(SceneError, match=r"annotations\.feather: timestamp_ns: 109 steps of 0\.1 s, a scene has 110"):
        SENSOR.read(Input(path), "val", tmp_path)


def test_a_log_without_any_object_has_nobody_to_score(tmp_path: Path) -> None:
    ego = Track("ego", "EGO_VEHICLE", ego_path(130))
    assert make(tmp_path, [ego], focal="ego").agent_id == ("AV",)
    with pytest.raises(SceneError, match="no moving agent"):
        make(tmp_path, [ego])
