"""Forecast files of real scenes, scored by the package av2 and by `trajformer evaluate`."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from support.cli import run

MODEL = ("--checkpoint", "pretrained:se2former_simulated")
FIRST_FUTURE_STEP = 50


class Scored(NamedTuple):
    """A scene of a forecast file as av2 reads it."""

    probability: np.ndarray  # [K]
    modes: dict[str, np.ndarray]  # [K, F, 2] by track
    truth: dict[str, np.ndarray]  # [F, 2] by track
    focal: str


@pytest.fixture(scope="module")
def store(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of real scenarios of Argoverse 2."""
    out = tmp_path_factory.mktemp("av2") / "store"
    assert run("preprocess", "argoverse2", real_data / "argoverse2", out, "--workers", 1) == 0
    return out


def read_with_av2(forecasts: Path, raw: Path) -> list[Scored]:
    """The scenes of a forecast file as av2 reads them, with the recorded futures."""
    submission = pytest.importorskip("av2.datasets.motion_forecasting.eval.submission")
    serialization = pytest.importorskip("av2.datasets.motion_forecasting.scenario_serialization")
    scenes = []
    predictions = submission.ChallengeSubmission.from_parquet(forecasts).predictions
    for scene_id, (probability, modes) in predictions.items():
        path = raw / scene_id / f"scenario_{scene_id}.parquet"
        scenario = serialization.load_argoverse_scenario_parquet(path)
        truth = {}
        for track in scenario.tracks:
            if track.track_id in modes:
                states = [s for s in track.object_states if s.timestep >= FIRST_FUTURE_STEP]
                truth[track.track_id] = np.array([state.position for state in states])
        scenes.append(Scored(probability, modes, truth, scenario.focal_track_id))
    return scenes


def focal_brier(scene: Scored) -> float:
    """The brier-minFDE of av2 for the focal track."""
    metrics = pytest.importorskip("av2.datasets.motion_forecasting.eval.metrics")
    modes = scene.modes[scene.focal]
    truth = scene.truth[scene.focal]
    best = metrics.compute_fde(modes, truth).argmin()
    brier = metrics.compute_brier_fde(modes, truth, scene.probability, normalize=False)
    return float(brier[best])


def test_a_file_of_focal_agents_scores_as_evaluate_says(
    store: Path, real_data: Path, tmp_path: Path, capsys: Any
) -> None:
    table = tmp_path / "rows.csv"
    out = tmp_path / "f.parquet"
    words = (*MODEL, "--store", store)
    assert run("evaluate", *words, "--agents", "focal", "--csv", table) == 0
    assert run("predict", *words, "--submission", "single", "--out", out) == 0
    assert "av2" not in capsys.readouterr().err
    scenes = read_with_av2(out, real_data / "argoverse2" / "val")
    expected = [focal_brier(scene) for scene in scenes]
    rows = pd.read_csv(table)
    # the table has six decimals, of errors in float32
    assert sorted(rows.brier_minFDE6) == pytest.approx(sorted(expected), abs=2e-6)


def test_a_file_of_joint_futures_scores_as_evaluate_says(
    store: Path, real_data: Path, tmp_path: Path, capsys: Any
) -> None:
    metrics = pytest.importorskip("av2.datasets.motion_forecasting.eval.metrics")
    json_file = tmp_path / "metrics.json"
    out = tmp_path / "f.parquet"
    words = (*MODEL, "--store", store)
    assert run("evaluate", *words, "--joint", "--json", json_file) == 0
    assert run("predict", *words, "--submission", "multi", "--out", out) == 0
    assert "av2" not in capsys.readouterr().err
    brier = []
    for scene in read_with_av2(out, real_data / "argoverse2" / "val"):
        modes = np.stack([scene.modes[track] for track in scene.truth])
        truth = np.stack(list(scene.truth.values()))
        best = metrics.compute_world_fde(modes, truth).argmin()
        value = metrics.compute_world_brier_fde(modes, truth, scene.probability, normalize=False)
        brier.append(value[best])
    scored = json.loads(json_file.read_text())
    assert scored["avgBrierMinFDE6"] == pytest.approx(np.mean(brier), abs=1e-6)


def test_a_file_that_av2_would_misread_carries_a_warning(
    store: Path, real_data: Path, tmp_path: Path, capsys: Any
) -> None:
    table = tmp_path / "rows.csv"
    out = tmp_path / "f.parquet"
    words = (*MODEL, "--store", store)
    assert run("evaluate", *words, "--csv", table) == 0
    assert run("predict", *words, "--out", out) == 0
    warning = capsys.readouterr().err
    assert "the tracks of 2 of 3 scenes have different probabilities, and av2" in warning
    assert "--submission single` or multi" in warning
    scenes = read_with_av2(out, real_data / "argoverse2" / "val")
    focal = [focal_brier(scene) for scene in scenes]
    focal_tracks = [scene.focal for scene in scenes]
    rows = pd.read_csv(table, dtype={"track_id": str})
    evaluated = rows[rows.track_id.isin(focal_tracks)].brier_minFDE6
    assert sorted(evaluated) != pytest.approx(sorted(focal), abs=1e-3)
