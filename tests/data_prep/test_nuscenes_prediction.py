"""The reader of nuScenes prediction: scenes, the map traced from a raster, and the counts of the published splits."""

from pathlib import Path

import numpy as np
from PIL import Image
from support.nuscenes import unpack
from support.raw_folders import FOLDERS
from support.scenes import with_role

from data_prep.readers.nuscenes_prediction import NuscenesPrediction, read_labels
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
    assert (scene.period_s, scene.num_history, scene.num_future, scene.agent_id) == (
        0.5,
        4,
        12,
        ("1", "2"),
    )
    assert scene.agent_role.tolist() == [AgentRole.SCORED, AgentRole.CONTEXT]
    assert scene.agent_kind.tolist() == [AgentKind.VEHICLE, AgentKind.BUS]
    frames = np.arange(1, 17)
    expected = [
        [(700 + 4.5 * frame, 1500.0) for frame in frames],
        [(760.0, 1504.0 - frame) for frame in frames],
    ]
    np.testing.assert_allclose(scene.position + scene.origin, expected, atol=1e-4)
    np.testing.assert_allclose(scene.velocity[:, 3], [(9.0, 0.0), (0.0, -2.0)], atol=1e-4)
    np.testing.assert_allclose(scene.heading[:, 3], [0.0, -np.pi / 2], atol=1e-6)


def test_a_raster_is_traced(tmp_path: Path) -> None:
    reader = FOLDERS["nuscenes_prediction"](tmp_path)
    scene = reader.read(reader.inputs(tmp_path, "train")[0], "train", tmp_path).validate()
    edge, line = (points(scene, kind) for kind in (PolylineKind.ROAD_EDGE, PolylineKind.ROAD_LINE))
    assert (
        np.abs(np.abs(edge[:, 1] - 1500.0) - 10.0).max() < 0.4
    )  # two borders, and none at the edge of the raster
    assert set(np.sign(edge[:, 1] - 1500.0)) == {-1, 1}
    assert np.abs(line[:, 1] - 1500.0).max() < 0.4
    assert np.abs([line[:, 0].min() - 640.0, line[:, 0].max() - 800.0]).max() < 1.0
    near = NuscenesPrediction(map_radius_m=5.0)
    scene = near.read(near.inputs(tmp_path, "train")[0], "train", tmp_path).validate()
    assert set(scene.polyline_kind) == {PolylineKind.ROAD_LINE}


def test_real_counts_and_scenes(real_data: Path, tmp_path: Path) -> None:
    raw, reader = (
        unpack(real_data, tmp_path, lambda name: name.startswith("scene"), chosen),
        NuscenesPrediction(),
    )
    assert reader.splits(raw) == ["test", "train", "val"]
    for split, files, targets in (
        ("train", 475, 32_186),
        ("val", 185, 8_560),
        ("test", 138, 9_041),
    ):
        items, paths = reader.inputs(raw, split), sorted((raw / "label" / split).iterdir())
        assert (len(items), len(paths)) == (reader.published[split], files)
        assert sum(int(read_labels(path).target.sum()) for path in paths) == targets
        some = {
            item.path: item for item in items if chosen(item.path.stem)
        }  # the last sample time of a file
        assert len(some) >= 2
        for path, item in some.items():
            _check(reader.read(item, split, raw).validate(), path, int(item.part))


def chosen(name: str) -> bool:
    """Some scenes of each split."""
    return name.endswith(("03", "67"))


def _check(scene: Scene, path: Path, frame: int) -> None:
    """Compare a scene with the text and the raster."""
    rows = [line.split() for line in path.read_text().splitlines()]
    state = {
        (int(float(row[0])) - frame + 3, str(int(float(row[1])))): row for row in rows
    }  # by step of the scene
    assert with_role(scene, AgentRole.SCORED) == {
        agent for (step, agent), row in state.items() if step == 3 and row[17] == "1.0"
    }
    assert set(scene.agent_id) == {agent for step, agent in state if 0 <= step <= 3}
    for index, agent in enumerate(scene.agent_id):
        assert [(step, agent) in state for step in range(16)] == scene.valid[index].tolist()
        for step in np.flatnonzero(scene.valid[index]).tolist():
            x, _, y, yaw = map(float, state[step, agent][13:17])
            np.testing.assert_allclose(
                scene.position[index, step] + scene.origin, (x, y), atol=1e-3
            )
            assert abs(np.sin(scene.heading[index, step] - yaw)) < 1e-5
    folder = path.parents[2] / "map_0.1"
    with Image.open(folder / f"{path.stem}.png") as image:
        pixels = np.asarray(image.convert("RGB")) > 0
    x, y, scale = map(float, (folder / f"meta_{path.stem}.txt").read_text().split())
    padded = np.pad(pixels, [(6, 6), (6, 6), (0, 0)], "edge")

    def around(kind: PolylineKind) -> np.ndarray:
        """The 7 x 7 pixels around each point [n, 7, 7, 3]; the pixel of x is a row."""
        row, column = np.rint((points(scene, kind) - (x, y)) * scale).astype(int).T
        return np.stack(
            [padded[r + 3 : r + 10, c + 3 : c + 10] for r, c in zip(row, column, strict=True)]
        )

    drivable = around(PolylineKind.ROAD_EDGE)[..., 2]
    assert drivable.any((1, 2)).all() and not drivable.all((1, 2)).any()
    if (scene.polyline_kind == PolylineKind.ROAD_LINE).any():
        assert around(PolylineKind.ROAD_LINE)[..., :2].any((1, 2, 3)).mean() > 0.99
