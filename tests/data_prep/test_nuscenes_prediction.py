"""The reader of nuScenes prediction: scenes, the map of a raster, counts of published splits."""

from pathlib import Path

import numpy as np
from PIL import Image
from support.nuscenes import unpack
from support.raw_folders import FOLDERS
from support.scenes import assert_near, in_city, with_role

from data_prep.readers.nuscenes.labels import read_labels
from data_prep.readers.nuscenes.reader import NuscenesPrediction
from trajformer.scenes.scene import AgentKind, AgentRole, PolylineKind, Scene


def points(scene: Scene, kind: PolylineKind) -> np.ndarray:
    """Points [n, 2] of all polylines of a kind, in the frame of the city."""
    lines = [scene.polyline(index) for index in np.flatnonzero(scene.polyline_kind == kind)]
    return np.concatenate(lines) + scene.origin


def test_a_sample_time_becomes_a_scene(tmp_path: Path) -> None:
    reader = FOLDERS["nuscenes_prediction"](tmp_path)
    items = reader.inputs(tmp_path, "train")
    assert [item.part for item in items] == ["3", "4"]
    scene = reader.read(items[1], "train", tmp_path).validate()
    assert (scene.scene_id, scene.city, scene.unit) == ("scene-0001-4", "scene-0001", "m")
    assert (scene.period_s, scene.num_history, scene.num_future) == (0.5, 4, 12)
    assert scene.agent_id == ("1", "2")
    assert scene.agent_role.tolist() == [AgentRole.SCORED, AgentRole.CONTEXT]
    assert scene.agent_kind.tolist() == [AgentKind.VEHICLE, AgentKind.BUS]
    frames = np.arange(1, 17)
    car, bus = in_city(scene)
    assert_near(car, [(700 + 4.5 * frame, 1500.0) for frame in frames], 1e-4)
    assert_near(bus, [(760.0, 1504.0 - frame) for frame in frames], 1e-4)
    assert_near(scene.velocity[:, 3], [(9.0, 0.0), (0.0, -2.0)], 1e-4)
    assert_near(scene.heading[:, 3], [0.0, -np.pi / 2], 1e-6)


def test_a_raster_is_traced(tmp_path: Path) -> None:
    reader = FOLDERS["nuscenes_prediction"](tmp_path)
    scene = reader.read(reader.inputs(tmp_path, "train")[0], "train", tmp_path).validate()
    _, edge_y = points(scene, PolylineKind.ROAD_EDGE).T
    line_x, line_y = points(scene, PolylineKind.ROAD_LINE).T
    # Two borders at 10 m from the middle, and none at the edge of the raster.
    assert_near(np.abs(edge_y - 1500.0), 10.0, 0.4)
    assert set(np.sign(edge_y - 1500.0)) == {-1, 1}
    assert_near(line_y, 1500.0, 0.4)
    assert_near([line_x.min(), line_x.max()], [640.0, 800.0], 1.0)
    near = NuscenesPrediction(map_radius_m=5.0)
    scene = near.read(near.inputs(tmp_path, "train")[0], "train", tmp_path).validate()
    assert set(scene.polyline_kind) == {PolylineKind.ROAD_LINE}


def test_real_counts_and_scenes(real_data: Path, tmp_path: Path) -> None:
    raw = unpack(real_data, tmp_path, lambda name: name.startswith("scene"), chosen)
    reader = NuscenesPrediction()
    assert reader.splits(raw) == ["test", "train", "val"]
    counts = {"train": (475, 32_186), "val": (185, 8_560), "test": (138, 9_041)}
    for split, (num_files, num_targets) in counts.items():
        items = reader.inputs(raw, split)
        paths = sorted((raw / "label" / split).iterdir())
        assert len(items) == reader.published[split]
        assert len(paths) == num_files
        assert sum(int(read_labels(path).target.sum()) for path in paths) == num_targets
        # The last sample time of a file.
        some = {item.path: item for item in items if chosen(item.path.stem)}
        assert len(some) >= 2
        for path, item in some.items():
            _check(reader.read(item, split, raw).validate(), path, int(item.part))


def chosen(name: str) -> bool:
    """Some scenes of each split."""
    return name.endswith(("03", "67"))


def _check(scene: Scene, path: Path, frame: int) -> None:
    """Compare a scene with the text and the raster."""
    state = {}  # by step of the scene and agent
    for line in path.read_text().splitlines():
        row = line.split()
        step = int(float(row[0])) - frame + 3
        state[step, str(int(float(row[1])))] = row
    targets = {agent for (step, agent), row in state.items() if step == 3 and row[17] == "1.0"}
    assert with_role(scene, AgentRole.SCORED) == targets
    assert set(scene.agent_id) == {agent for step, agent in state if 0 <= step <= 3}
    position = in_city(scene)
    for index, agent in enumerate(scene.agent_id):
        assert [(step, agent) in state for step in range(16)] == scene.valid[index].tolist()
        for step in np.flatnonzero(scene.valid[index]).tolist():
            x, _, y, yaw = map(float, state[step, agent][13:17])
            assert_near(position[index, step], (x, y), 1e-3)
            assert abs(np.sin(scene.heading[index, step] - yaw)) < 1e-5
    folder = path.parents[2] / "map_0.1"
    with Image.open(folder / f"{path.stem}.png") as image:
        pixels = np.asarray(image.convert("RGB")) > 0
    x, y, scale = map(float, (folder / f"meta_{path.stem}.txt").read_text().split())
    padded = np.pad(pixels, [(6, 6), (6, 6), (0, 0)], "edge")

    def around(kind: PolylineKind) -> np.ndarray:
        """The 7 x 7 pixels around each point [n, 7, 7, 3]; the pixel of x is a row."""
        pixel = np.rint((points(scene, kind) - (x, y)) * scale).astype(int)
        return np.stack([padded[r + 3 : r + 10, c + 3 : c + 10] for r, c in pixel])

    drivable = around(PolylineKind.ROAD_EDGE)[..., 2]
    assert drivable.any((1, 2)).all()
    assert not drivable.all((1, 2)).any()
    if (scene.polyline_kind == PolylineKind.ROAD_LINE).any():
        assert around(PolylineKind.ROAD_LINE)[..., :2].any((1, 2, 3)).mean() > 0.99
