"""Driven paths of nuScenes prediction: of other training scenes of the same city only."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.raw_folders import FOLDERS
from support.scenes import assert_near

from data_prep.readers.nuscenes.paths import NO_PATHS, driven_paths
from data_prep.readers.nuscenes.reader import NuscenesPrediction
from trajformer.errors import SceneError
from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.scene import PolylineKind, Scene
from trajformer.scenes.vector_map import build_map, joined


def copy_of(raw: Path, split: str, name: str) -> Path:
    """A copy of the files of scene-0001, as another scene; its label file."""
    label = raw / "label" / split / f"{name}.txt"
    label.parent.mkdir(exist_ok=True)
    shutil.copy(raw / "label" / "train" / "scene-0001.txt", label)
    for old, new in (
        ("scene-0001.png", f"{name}.png"),
        ("meta_scene-0001.txt", f"meta_{name}.txt"),
    ):
        shutil.copy(raw / "map_0.1" / old, raw / "map_0.1" / new)
    return label


def shift_y(label: Path, distance: float) -> None:
    rows = [line.split() for line in label.read_text().splitlines()]
    for row in rows:
        row[15] = str(float(row[15]) + distance)
    label.write_text("\n".join(map(" ".join, rows)) + "\n")


def lanes_of(raw: Path, split: str, name: str) -> list[np.ndarray]:
    """Lanes [p, 2] of the first sample time of a scene, in the frame of the city."""
    reader = NuscenesPrediction()
    [item, _] = [item for item in reader.inputs(raw, split) if item.path.stem == name]
    scene: Scene = reader.read(item, split, raw).validate()
    lanes = np.flatnonzero(scene.polyline_kind == PolylineKind.LANE_VEHICLE)
    assert (scene.polyline_kind == PolylineKind.ROAD_EDGE).any()
    return [scene.polyline(index) + scene.origin for index in lanes]


def test_paths_of_other_training_scenes_are_lanes(tmp_path: Path) -> None:
    FOLDERS["nuscenes_prediction"](tmp_path)
    assert lanes_of(tmp_path, "train", "scene-0001") == []  # not of the scene itself
    shift_y(copy_of(tmp_path, "train", "scene-0002"), 4.0)
    lanes = lanes_of(tmp_path, "train", "scene-0001")
    car = [lane for lane in lanes if np.ptp(lane[:, 1]) < 0.1]
    bus = [lane for lane in lanes if np.ptp(lane[:, 0]) < 0.1]
    assert len(car) + len(bus) == len(lanes)
    # The car drives 72 m along x, the bus 16 m against y.
    assert_near(min(lane[0, 0] for lane in car), 700.0, 1e-3)
    assert_near(max(lane[-1, 0] for lane in car), 772.0, 1e-3)
    assert all((np.diff(lane[:, 0]) > 0).all() for lane in car)
    assert_near(np.concatenate(car)[:, 1], 1504.0, 1e-3)
    [path] = bus
    assert_near(path[[0, -1]], [(760.0, 1508.0), (760.0, 1492.0)], 1e-3)


def test_scenes_of_other_parts_have_paths_and_give_none(tmp_path: Path) -> None:
    FOLDERS["nuscenes_prediction"](tmp_path)
    copy_of(tmp_path, "test", "scene-0003")
    assert lanes_of(tmp_path, "train", "scene-0001") == []
    assert len(lanes_of(tmp_path, "test", "scene-0003")) > 0
    shutil.rmtree(tmp_path / "label" / "train")
    with pytest.raises(SceneError, match="train: no such folder, but driven paths"):
        lanes_of(tmp_path, "test", "scene-0003")


def test_paths_of_another_city_with_the_same_coordinates_are_left_out(tmp_path: Path) -> None:
    FOLDERS["nuscenes_prediction"](tmp_path)
    copy_of(tmp_path, "train", "scene-0002")
    raster = np.zeros((600, 450, 3), np.uint8)
    raster[:, 190:260, 2] = 255  # a wider road
    Image.fromarray(raster).save(tmp_path / "map_0.1" / "scene-0002.png")
    assert lanes_of(tmp_path, "train", "scene-0001") == []


def test_pieces_that_repeat_others_are_left_out(tmp_path: Path) -> None:
    FOLDERS["nuscenes_prediction"](tmp_path)
    copy_of(tmp_path, "train", "scene-0002")
    once = lanes_of(tmp_path, "train", "scene-0001")
    assert once
    shift_y(copy_of(tmp_path, "train", "scene-0003"), 0.5)
    assert len(lanes_of(tmp_path, "train", "scene-0001")) == len(once)


def test_a_damaged_training_scene_is_reported_and_gives_no_paths(tmp_path: Path) -> None:
    FOLDERS["nuscenes_prediction"](tmp_path)
    damaged = copy_of(tmp_path, "train", "scene-0002")
    damaged.write_text("no numbers\n")
    folder = tmp_path / "map_0.1"
    label = tmp_path / "label" / "train" / "scene-0001.txt"
    files = (label, folder / "scene-0001.png", folder / "meta_scene-0001.txt")
    with collect_dropped() as dropped:
        paths = driven_paths(*files, label.parent)
    assert len(paths.polyline_id) == 0
    assert dropped == {(damaged, NO_PATHS): 1}


def test_joined_maps_have_the_polylines_and_links_of_both() -> None:
    point = np.arange(8.0).reshape(4, 2)
    first = build_map([(1, 0, 0), (2, 0, 0)], [2, 2], point, [(1, 2, 0)])
    second = build_map([(7, 0, 1), (8, 5, 0), (9, 0, 0)], [2, 2, 2], np.ones((6, 2)), [(9, 7, 1)])
    both = joined(first, second)
    assert both.polyline_id.tolist() == [1, 2, 7, 8, 9]
    assert both.polyline_offset.tolist() == [0, 2, 4, 6, 8, 10]
    assert both.edge.tolist() == [[0, 4], [1, 2]]
    assert both.edge_kind.tolist() == [0, 1]
    assert len(both.point) == 10
