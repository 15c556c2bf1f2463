"""The reader of sensor logs: caching, and damaged logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.sensor_logs import (
    Track,
    annotations,
    ego_path,
    make,
    read,
    small_tracks,
    write_log,
)

from data_prep.engine.prepare import PrepareOptions, prepare
from data_prep.reader import Input
from data_prep.readers.argoverse2 import log as argoverse2_log
from data_prep.readers.argoverse2.sensor import Argoverse2Sensor
from trajformer.errors import SceneError

SENSOR = Argoverse2Sensor()


def test_a_log_is_parsed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


FILES = ["annotations.feather", "city_SE3_egovehicle.feather", "map/log_map_archive_log-1____PIT_city_57819.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "cut short", "empty"])
def test_inputs_with_a_damaged_file_are_skipped(tmp_path: Path, name: str, damage: str) -> None:
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


def test_two_maps_of_a_log_are_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path / "val" / "log-1")
    (path.parent / "map" / "log_map_archive_x____MIA_city_1.json").write_text("{}")
    with pytest.raises(SceneError, match=r"log-1/map: 2 files log_map_archive_\*\.json, expected one"):
        read(path)


def test_a_log_shorter_than_a_window_is_one_skipped_input(tmp_path: Path) -> None:
    path = write_log(tmp_path / "val" / "log-1", annotations(small_tracks(109)))
    assert SENSOR.inputs(tmp_path, "val") == [Input(path)]
    with pytest.raises(SceneError, match=r"annotations\.feather: timestamp_ns: 109 steps of 0\.1 s, a scene has 110"):
        SENSOR.read(Input(path), "val", tmp_path)


def test_a_log_without_objects_has_no_scored_agent(tmp_path: Path) -> None:
    ego = Track("ego", "EGO_VEHICLE", ego_path(130))
    assert make(tmp_path, [ego], focal="ego").agent_id == ("AV",)
    with pytest.raises(SceneError, match="no moving agent"):
        make(tmp_path, [ego])
