"""Drone recordings in the layouts of inD, highD and SIND."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
from support import drone_files

from data_prep.readers.ind.reader import Ind
from trajformer.errors import SceneError
from trajformer.scenes.geometry import GRID_M
from trajformer.scenes.scene import AgentKind, PolylineKind, Scene
from trajformer.scenes.utm import utm

SMALL = Ind(**drone_files.SMALL, stride=100)


def read(raw: Path, split: str, reader: Ind = SMALL) -> Scene:
    [item] = reader.inputs(raw, split)
    return reader.read(item, split, raw)


def test_ind_has_degrees_sizes_and_classes(tmp_path: Path) -> None:
    drone_files.write_ind(tmp_path / "data")
    scene = read(tmp_path, "data")
    assert scene.agent_id == ("1", "7")
    assert scene.agent_kind.tolist() == [AgentKind.VEHICLE, AgentKind.PEDESTRIAN]
    np.testing.assert_allclose(scene.agent_size, [[4.5, 1.8], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(scene.heading[0, 4], -np.arctan2(4, 3), atol=1e-5)
    np.testing.assert_allclose(scene.velocity[0, 4], [3, -4])
    world = scene.position[0, 4] + scene.origin
    np.testing.assert_allclose(world, [21.2, -31.6], atol=GRID_M)


def test_rows_between_steps_are_left_out(tmp_path: Path) -> None:
    drone_files.write_ind(tmp_path / "every", every=3)
    drone_files.write_ind(tmp_path / "fine", every=1)
    long = Ind(num_history=2, num_future=2, stride=100)
    assert read(tmp_path, "fine", long).num_steps == 4
    coarse = long.inputs(tmp_path, "every")[0]
    fine = long.inputs(tmp_path, "fine")[0]
    positions = []
    for split, item in (("every", coarse), ("fine", fine)):
        scene = long.read(item, split, tmp_path)
        positions.append(scene.position + scene.origin)
    np.testing.assert_allclose(positions[0], positions[1], atol=1e-5)


def test_a_skipped_frame_begins_another_part(tmp_path: Path) -> None:
    """All rows after it are at other frames: none is lost, and no window crosses it."""
    folder = tmp_path / "data"
    drone_files.write_ind(folder)
    path = folder / "00_tracks.csv"
    names, *rows = path.read_text().splitlines()
    late = []
    for row in rows:
        cells = row.split(",")
        cells[2] = str(int(cells[2]) + 35)  # the last row has frame 33, so this is 2 frames later
        late.append(",".join(cells))
    path.write_text("\n".join([names, *rows, *late]) + "\n")
    items = SMALL.inputs(tmp_path, "data")
    assert [item.part for item in items] == ["00-t0", "00-t12"]
    for item in items:
        assert SMALL.read(item, "data", tmp_path).valid.all()


def test_other_frame_rates_are_interpolated(tmp_path: Path) -> None:
    drone_files.write_ind(tmp_path / "data", frame_rate=25.0, every=2)
    scene = read(tmp_path, "data", Ind(num_history=4, num_future=4, stride=100))
    step = np.diff(scene.position[0], axis=0)
    np.testing.assert_allclose(step, np.tile([0.3, -0.4], (7, 1)), atol=GRID_M)


def test_highd_has_centers_and_lanes(tmp_path: Path) -> None:
    drone_files.write_highd(tmp_path / "data")
    scene = read(tmp_path, "data", Ind(num_history=5, num_future=6, stride=100))
    now = scene.position[:, 4] + scene.origin
    np.testing.assert_allclose(now, [[302 - 12, -9], [55 + 12, -21.25]], atol=1e-4)
    np.testing.assert_allclose(np.cos(scene.heading[:, 4]), [-1, 1], atol=1e-5)
    assert (scene.polyline_kind == PolylineKind.LANE_VEHICLE).all()
    lanes = (scene.point + scene.origin).reshape(-1, 2, 2)
    np.testing.assert_allclose(lanes[:, 0, 1], [-9, -21, -25], atol=1e-4)
    assert (np.sign(np.diff(lanes[:, :, 0])[:, 0]) == [-1, 1, 1]).all()


def test_sind_joins_vehicles_pedestrians_and_the_map(tmp_path: Path) -> None:
    drone_files.write_sind(tmp_path / "Tianjin" / "8_2_1")
    drone_files.write_degrees_map(tmp_path / "Tianjin" / "map.osm")
    scene = read(tmp_path, "Tianjin")
    assert (scene.agent_id, scene.city) == (("12", "P1"), "Tianjin")
    assert scene.agent_kind.tolist() == [AgentKind.VEHICLE, AgentKind.PEDESTRIAN]
    lane = scene.point[: scene.polyline_offset[1]] + scene.origin
    np.testing.assert_allclose(lane[[0, -1]], [[0, 2.21], [111.4, 2.21]], atol=0.1)


def test_maps_of_places_use_the_utm_origin(tmp_path: Path) -> None:
    drone_files.write_ind(tmp_path / "data")
    origin = utm(np.array(50.0), np.array(0.0), 31, is_south=False) - (20, -30)
    meta = tmp_path / "data" / "00_recordingMeta.csv"
    names = "recordingId,locationId,frameRate,xUtmOrigin,yUtmOrigin"
    drone_files.write_rows(meta, names, [(0, 1, 30, *origin)])
    drone_files.write_degrees_map(tmp_path / "maps" / "place" / "location1.osm", latitude=50.0)
    scene = read(tmp_path, "data")
    ends = scene.point[[0, scene.polyline_offset[1] - 1]] + scene.origin
    # 0.001 degrees of longitude at 50 degrees north are 71.7 m, turned by the convergence.
    np.testing.assert_allclose(ends[0], [20, -30 + 2.2], atol=0.1)
    np.testing.assert_allclose(np.hypot(*(ends[1] - ends[0])), 71.7, atol=0.1)


def test_errors_name_the_file(tmp_path: Path) -> None:
    drone_files.write_ind(tmp_path / "data")
    [item] = SMALL.inputs(tmp_path, "data")
    meta = tmp_path / "data" / "00_recordingMeta.csv"
    meta.write_text("recordingId,frameRate\n0,fast\n")
    with pytest.raises(SceneError, match=r"Meta\.csv: frameRate: 'fast', expected a num"):
        SMALL.read(item, "data", tmp_path)
    meta.unlink()
    with pytest.raises(SceneError, match=r"00_recordingMeta\.csv: "):
        SMALL.read(item, "data", tmp_path)


def test_a_real_recording(real_data: Path, tmp_path: Path) -> None:
    """The smallest of the 22 recordings of drone/korea_ind_layout."""
    with tarfile.open(real_data / "drone" / "korea_ind_layout.tar.xz") as archive:
        for member in archive:
            if "/1001_" in member.name and not member.name.startswith("map"):
                archive.extract(member, tmp_path, filter="data")
    reader = Ind()
    items = reader.inputs(tmp_path, "tracks")
    assert len(items) == 28  # the recording skips a frame at step 166
    scene = reader.read(items[0], "tracks", tmp_path)
    kinds = dict(zip(scene.agent_id, scene.agent_kind.tolist(), strict=True))
    assert (kinds["1"], kinds["3"]) == (AgentKind.CYCLIST, AgentKind.VEHICLE)
    assert scene.agent_size[scene.agent_id.index("3"), 0] == pytest.approx(6.1257, abs=1e-3)
