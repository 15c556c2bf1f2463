"""The Waymo benchmark from records to tables and submissions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import waymo as records
from support.cli import error_line, run

from data_prep.readers.waymo.reader import Waymo
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast, write_forecasts
from trajformer.evaluation.protocols import waymo, waymo_submission
from trajformer.scenes.scene import AgentRole, Scene


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two scenes with a pair of scored agents each, and one without any."""
    folder = tmp_path / "raw"
    contents = (
        records.scenario("a"),
        records.scenario("none", predict=()),
        records.scenario("b", predict=(0, 1)),
    )
    records.write(folder / "validation" / "v.tfrecord", *contents)
    return folder


def scenes(folder: Path, split: str = "validation") -> list[Scene]:
    reader = Waymo()
    return [reader.read(item, split, folder) for item in reader.inputs(folder, split)]


def recorded(scene: Scene, offset: tuple[float, float] = (0.0, 0.0)) -> list[TrackForecast]:
    """The recorded future of the scored agents as a mode of 0.9, and one that is far off."""
    tracks = []
    for row in np.flatnonzero(scene.agent_role >= AgentRole.SCORED):
        future = scene.position[row, 11:] + scene.origin + offset
        modes = np.stack([future + 30.0, future])
        tracks.append(
            TrackForecast(scene.scene_id, scene.agent_id[row], np.array([0.1, 0.9]), modes)
        )
    return tracks


def test_recorded_futures_have_no_error(raw: Path) -> None:
    by_scene = {scene.scene_id: recorded(scene) for scene in scenes(raw)}
    predictions = list(waymo.scene_predictions(scenes(raw), by_scene.__getitem__))
    assert [each.scene.scene_id for each in predictions] == ["a", "b"]
    table = waymo.evaluate(predictions)
    row = table["vehicle"]["3 s"]
    assert row["num_groups"] == 3
    assert row["minADE"] < 1e-3
    assert (row["miss_rate"], row["mAP"], row["soft_mAP"]) == (0.0, 1.0, 1.0)
    # The walker is lost after 4.9 s: its errors at 5 and 8 s are unknown.
    assert table["pedestrian"]["3 s"]["mAP"] == 1.0
    joint = waymo.evaluate(predictions, joint=True)
    assert joint["pedestrian"]["3 s"]["num_groups"] == 1  # the pair of a car and a walker
    assert joint["vehicle"]["8 s"]["mAP"] == 1.0


def test_errors_of_a_shifted_forecast(raw: Path) -> None:
    """1.5 m sideways: a miss at 3 s for cars of up to 11 m/s, whose limits are 0.5 to 1 m."""
    by_scene = {scene.scene_id: recorded(scene, (0.0, 1.5)) for scene in scenes(raw)}
    table = waymo.evaluate(waymo.scene_predictions(scenes(raw), by_scene.__getitem__))
    row = table["vehicle"]["3 s"]
    assert row["minADE"] == pytest.approx(1.5, abs=1e-3)
    assert row["minFDE"] == pytest.approx(1.5, abs=1e-3)
    assert (row["miss_rate"], row["mAP"]) == (1.0, 0.0)
    assert table["vehicle"]["8 s"]["miss_rate"] < 1.0  # 3 m, scaled by 0.53


def test_a_missing_or_short_forecast_is_refused(raw: Path) -> None:
    with pytest.raises(TrajformerError, match=r"^scene a: track '11' has no forecast$"):
        list(waymo.scene_predictions(scenes(raw), lambda scene_id: []))
    short = recorded(scenes(raw)[0])
    short[0] = TrackForecast("a", "11", short[0].probability, short[0].position[:, :30])
    with pytest.raises(TrajformerError, match="has 30 steps, expected 80"):
        list(waymo.scene_predictions(scenes(raw), lambda scene_id: short))


def submission_class() -> Any:
    """The class of submissions, made by the `protobuf` package from the published numbers."""
    return records.message_class(
        {
            "Trajectory": {"center_x": (2, "*float"), "center_y": (3, "*float")},
            "Scored": {"trajectory": (1, "Trajectory"), "confidence": (2, "float")},
            "Object": {"object_id": (1, "int32"), "trajectories": (2, "*Scored")},
            "Set": {"predictions": (1, "*Object")},
            "Path": {"object_id": (1, "int32"), "trajectory": (2, "Trajectory")},
            "ScoredJoint": {"trajectories": (2, "*Path"), "confidence": (3, "float")},
            "Joint": {"joint_trajectories": (1, "*ScoredJoint")},
            "Scene": {
                "scenario_id": (1, "string"),
                "single_predictions": (2, "Set"),
                "joint_prediction": (3, "Joint"),
            },
            "Submission": {"scenario_predictions": (1, "*Scene"), "submission_type": (2, "int32")},
        },
        "Submission",
    )


@pytest.mark.parametrize("joint", [False, True])
def test_submissions_are_read_back(raw: Path, tmp_path: Path, joint: bool) -> None:
    pytest.importorskip("google.protobuf")
    by_scene = {scene.scene_id: recorded(scene) for scene in scenes(raw)}
    path = tmp_path / "submission.bin"
    with waymo_submission.submission(path, joint) as add:
        for prediction in waymo.scene_predictions(scenes(raw), by_scene.__getitem__):
            add(prediction)
    first, second = waymo_submission.read_submission(path)
    assert (first.scenario_id, first.object_id) == ("a", (11, 13))
    assert (second.scenario_id, second.object_id) == ("b", (11, 12))
    assert first.position.shape == (2, 2, 16, 2)
    future = np.stack([by_scene["a"][row].position[1, 4::5] for row in (0, 1)])
    np.testing.assert_allclose(first.position[:, 0], future, atol=1e-3)
    np.testing.assert_allclose(first.confidence[0], [0.9, 0.1], rtol=1e-6)

    message = submission_class().FromString(path.read_bytes())
    assert message.submission_type == 1 + joint
    scene = message.scenario_predictions[0]
    if joint:
        mode = scene.joint_prediction.joint_trajectories[0]
        assert mode.confidence == pytest.approx(0.9)
        path_of = {each.object_id: each.trajectory for each in mode.trajectories}
    else:
        objects = scene.single_predictions.predictions
        path_of = {each.object_id: each.trajectories[0].trajectory for each in objects}
    np.testing.assert_array_equal(path_of[11].center_x, first.position[0, 0, :, 0])
    np.testing.assert_array_equal(path_of[13].center_y, first.position[1, 0, :, 1])

    waymo_submission.check_complete(path, {"a": {11, 13}, "b": {11, 12}})
    with pytest.raises(TrajformerError, match="1 scenes are missing, first c"):
        waymo_submission.check_complete(path, {"a": {11, 13}, "b": {11, 12}, "c": {1}})
    with pytest.raises(TrajformerError, match=r"scene a: objects \(11, 13\), expected \[11, 12\]"):
        waymo_submission.check_complete(path, {"a": {11, 12}, "b": {11, 12}})
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TrajformerError, match="not a readable submission"):
        list(waymo_submission.read_submission(path))


def test_the_command_scores_records_stores_and_files(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert run("preprocess", "waymo", raw, store, "--workers", 1) == 0
    tables = []
    for data in (raw, store):
        out = tmp_path / f"{data.name}.json"
        submission = tmp_path / f"{data.name}.bin"
        options = ("--model", "constant_velocity", "--json", out, "--export", submission)
        assert run("benchmark", "waymo", "--data", data, *options) == 0
        tables.append(json.loads(out.read_text())["constant_velocity"])
        waymo_submission.check_complete(submission, {"a": {11, 13}, "b": {11, 12}})
    assert tables[0] == tables[1]
    assert tables[0]["vehicle"]["8 s"]["minFDE"] < 1e-3  # constant velocities
    assert "Waymo motion prediction: 4 agents" in capsys.readouterr().out

    forecasts = tmp_path / "forecasts.parquet"
    write_forecasts(forecasts, [track for scene in scenes(raw) for track in recorded(scene)])
    options = ("--forecasts", forecasts, "--joint")
    assert run("benchmark", "waymo", "--data", store, *options) == 0
    assert "Waymo interaction prediction: 2 pairs" in capsys.readouterr().out
    write_forecasts(forecasts, recorded(scenes(raw)[0]))
    line = error_line(capsys, "benchmark", "waymo", "--data", store, "--forecasts", forecasts)
    assert "scene b: track '11' has no forecast" in line
    assert "no split 'test'" in error_line(
        capsys, "benchmark", "waymo", "--data", raw, "--split", "test"
    )


def test_a_testing_split_is_only_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records.write(tmp_path / "raw" / "testing" / "t.tfrecord", records.scenario("t", steps=11))
    path = tmp_path / "t.bin"
    options = ("--split", "testing", "--export", path)
    assert run("benchmark", "waymo", "--data", tmp_path / "raw", *options) == 0
    assert "1 scenes without a recorded future" in capsys.readouterr().out
    waymo_submission.check_complete(path, {"t": {11, 13}})
