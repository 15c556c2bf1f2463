"""`trajformer score` and several models in `trajformer evaluate`: output and files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.cli import run
from support.training import training_store

from trajformer.evaluation.forecast_file import TrackForecast, read_forecasts, write_forecasts

MODEL = ("--model", "constant_velocity", "--agents", "all")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, the forecasts a.parquet of a model and the same without some agents, shifted."""
    folder = tmp_path_factory.mktemp("score")
    store = training_store(folder / "store", 8, 4)
    out = folder / "a.parquet"
    assert run("predict", *MODEL, "--store", store, "--split", "train", "--out", out) == 0
    shifted = []
    for tracks in read_forecasts(out).values():
        for track in tracks[1:]:
            position = track.position + np.array([0.5, 0.0])
            one = TrackForecast(track.scene_id, track.track_id, track.probability, position)
            shifted.append(one)
    write_forecasts(folder / "b.parquet", shifted)
    return folder


def test_a_file_has_the_metrics_of_its_model(folder: Path, tmp_path: Path) -> None:
    words = ("--store", folder / "store", "--split", "train", "--horizons", "0.5,1", "--by", "type")
    files = [tmp_path / "model.json", tmp_path / "file.json"]
    assert run("evaluate", *MODEL, *words, "--json", files[0]) == 0
    score = ("score", folder / "a.parquet", "--agents", "all")
    assert run(*score, *words, "--json", files[1], "--csv", tmp_path / "file.csv") == 0
    expected, actual = (json.loads(file.read_text()) for file in files)
    for name, value in expected.items():
        if isinstance(value, float):
            assert actual[name] == pytest.approx(value, abs=1e-6), name
    assert set(expected["tables"]) == {"overall", "by horizon", "by type"}
    [first, second, end] = actual["tables"]["by horizon"]
    assert (first["horizon"], second["horizon"], end["horizon"]) == ("0.5", "1", "1.2")
    assert first["minFDE6"]["mean"] == pytest.approx(actual["minFDE6@0.5s"])
    assert sum(row["agents"] for row in actual["tables"]["by type"]) == actual["num_agents"]
    rows = pd.read_csv(tmp_path / "file.csv")
    assert rows["minFDE6@1s"].mean() == pytest.approx(actual["minFDE6@1s"], abs=1e-6)


def test_files_are_compared_and_missing_agents_are_listed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--store", folder / "store", "--split", "train", "--agents", "all")
    names = (folder / "a.parquet", folder / "b.parquet")
    written = ("--json", tmp_path / "s.json", "--markdown", tmp_path / "s.md")
    assert run("score", *names, *words, *written, "--csv", tmp_path / "s.csv") == 0
    text = capsys.readouterr().out
    assert f"{names[1]}: 8 agents to score have no usable forecast (first: track" in text
    assert f"{names[1]} against {names[0]}: " in text
    content = json.loads((tmp_path / "s.json").read_text())
    first, second = content["forecasts"]
    assert first["num_agents"] == second["num_agents"] + 8
    [missing] = [one for one in second["findings"] if one["kind"] == "missing"]
    assert missing["count"] == 8
    rows = pd.read_csv(tmp_path / "s.csv")
    assert rows.groupby("forecast").size().tolist() == [first["num_agents"], second["num_agents"]]
    page = (tmp_path / "s.md").read_text()
    assert page.startswith("# Scores of forecasts\n")
    assert "| minFDE6 |" in page
    assert run("score", *names, *words, *written, "--overwrite") == 0


def test_models_are_compared_with_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--store", folder / "store", "--split", "train", "--against", folder / "b.parquet")
    assert run("evaluate", *MODEL, *words, "--by", "speed") == 0
    text = capsys.readouterr().out
    assert f"constant_velocity against {folder / 'b.parquet'}: " in text
    [line] = [line for line in text.splitlines() if line.startswith("minFDE1 ")]
    _, agents, scenes, this, baseline, difference, *_ = line.split()
    assert int(scenes) == 8 < int(agents)
    assert float(difference) == pytest.approx(float(this) - float(baseline), abs=2e-3)
