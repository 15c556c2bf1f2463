"""`trajformer stream` on a store and on sensor logs."""

import shutil
from pathlib import Path

import pytest
from support.cli import error_line, run
from support.models import shallow_config
from support.processes import run_python
from support.sensor_logs import write_log
from support.training import recipe, training_store

from trajformer.evaluation.forecast_file import read_forecasts
from trajformer.recipes.checkpoint import write_checkpoint
from trajformer.scenes.spec import DataSpec
from trajformer.scenes.store import SceneStore


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_store(tmp_path_factory.mktemp("stream") / "store", 4, 2)


@pytest.fixture(scope="module")
def checkpoint(store: Path) -> Path:
    """An SE2Former with random weights for the scenes of the store."""
    spec = DataSpec.of(SceneStore(store, "train")[0])
    made = recipe(store, model=shallow_config("se2former", num_future=spec.num_future))
    state = made.build_model().state_dict()
    path = store.parent / "model.safetensors"
    write_checkpoint(path, made, state, spec)
    return path


def test_a_store_gives_the_file_of_predict(
    store: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--checkpoint", checkpoint, "--split", "train")
    assert run("stream", store, *words, "--out", tmp_path / "live.parquet") == 0
    assert "updates of 4 recordings" in capsys.readouterr().out
    batch = ("--store", store, *words, "--agents", "all", "--out", tmp_path / "batch.parquet")
    assert run("predict", *batch) == 0
    live = read_forecasts(tmp_path / "live.parquet")
    expected = read_forecasts(tmp_path / "batch.parquet")
    assert live.keys() == expected.keys()
    for scene_id, tracks in expected.items():
        by_track = {track.track_id: track for track in live[scene_id]}
        assert set(by_track) == {track.track_id for track in tracks}
        for track in tracks:
            assert by_track[track.track_id].position == pytest.approx(track.position, abs=2e-4)


def test_the_only_split_needs_no_option(
    store: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(store / "train", tmp_path / "own" / "train")
    assert run("stream", tmp_path / "own", "--checkpoint", checkpoint) == 0
    assert "updates of 4 recordings" in capsys.readouterr().out


FORECAST = """
import sys
from trajformer import load_model
from trajformer.cli import main
store, checkpoint, out = sys.argv[1:]
words = ["--checkpoint", checkpoint, "--split", "train"]
assert main(["predict", "--store", store, *words, "--out", out]) == 0
assert main(["stream", store, *words]) == 0
load_model(checkpoint)
names = {"lightning", "jsonargparse", "matplotlib", "torchmetrics"}
assert not names & {*sys.modules}, names & {*sys.modules}
"""


def test_commands_and_live_forecasts_import_no_training_libraries(
    store: Path, checkpoint: Path, tmp_path: Path
) -> None:
    done = run_python("-W", "ignore", "-c", FORECAST, store, checkpoint, tmp_path / "f.parquet")
    assert done.returncode == 0, done.stderr


def test_sensor_logs(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_log(tmp_path / "logs" / "a")
    assert run("stream", tmp_path / "logs", "--checkpoint", checkpoint) == 0
    assert "130 updates of 1 recordings" in capsys.readouterr().out


def test_a_folder_without_recordings(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_line(capsys, "stream", tmp_path, "--checkpoint", checkpoint)
    assert "neither a store" in line
