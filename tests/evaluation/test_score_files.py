"""Scores of forecast files equal those of av2's functions on real scenarios, for all inputs.

The futures are those of the Argoverse 2 test split in its released layout, made from scenarios of
the validation split.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from support.cli import run
from support.released import write_released

from data_prep.readers.argoverse2.released import FILES
from trajformer.evaluation.forecast_csv import COLUMNS
from trajformer.evaluation.forecast_file import read_forecasts

MODEL = ("--checkpoint", "pretrained:se2former_simulated")
# Positions are stored as float32 relative to the scene, so errors have a rounding of 4e-6 m at
# 100 m; means have less.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Files:
    """Forecast files of the three scenes, a store of them, and the released layout."""

    store: Path
    raw: Path
    single: Path
    multi: Path


@pytest.fixture(scope="module")
def files(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("score")
    scenarios = sorted((real_data / "argoverse2" / "val").glob("*/scenario_*.parquet"))
    raw = write_released(folder / "raw", scenarios)
    made = Files(folder / "store", raw, folder / "single.parquet", folder / "multi.parquet")
    assert run("preprocess", "argoverse2", raw, made.store, "--workers", 1) == 0
    for track, path in (("single", made.single), ("multi", made.multi)):
        words = ("--store", made.store, "--split", "test", "--submission", track, "--out", path)
        assert run("predict", *MODEL, *words) == 0
    return made


def scored(tmp_path: Path, *words: Any) -> dict[str, Any]:
    """The JSON of `trajformer score`."""
    out = tmp_path / "scores.json"
    assert run("score", *words, "--split", "test", "--json", out, "--overwrite") == 0
    content: dict[str, Any] = json.loads(out.read_text())
    return content


def truth_of(raw: Path, name: str) -> dict[str, dict[str, np.ndarray]]:
    """Future positions [F, 2] by scene and track of a released table, as float64."""
    scenes: dict[str, dict[str, np.ndarray]] = {}
    for row in pq.read_table(raw / name).to_pylist():
        future = np.stack([row["gt_trajectory_x"], row["gt_trajectory_y"]], -1)
        scenes.setdefault(row["scenario_id"], {})[row["track_id"]] = future
    return scenes


def test_focal_agents_score_as_in_the_single_agent_challenge(files: Files, tmp_path: Path) -> None:
    metrics = pytest.importorskip("av2.datasets.motion_forecasting.eval.metrics")
    submission = pytest.importorskip("av2.datasets.motion_forecasting.eval.submission")
    predictions = submission.ChallengeSubmission.from_parquet(files.single).predictions
    rows = []
    for scene_id, tracks in truth_of(files.raw, FILES[0]).items():
        [(track_id, truth)] = tracks.items()
        probability, modes = predictions[scene_id]
        position = modes[track_id]
        fde = metrics.compute_fde(position, truth)
        ade = metrics.compute_ade(position, truth)
        best = fde.argmin()
        missed = metrics.compute_is_missed_prediction(position, truth)
        brier = metrics.compute_brier_fde(position, truth, probability, normalize=True)
        row = {"minFDE1": fde[0], "minADE1": ade[0], "MR1": missed[0]}
        row |= {"minFDE6": fde[best], "minADE6": ade[best], "MR6": missed[best]}
        rows.append(row | {"brier_minFDE6": brier[best]})
    expected = pd.DataFrame(rows).astype(float).mean()
    words = ("--raw", "argoverse2", files.raw, "--agents", "focal")
    content = scored(tmp_path, files.single, *words)
    assert content["num_agents"] == 3
    assert "findings" not in content
    for name, value in expected.items():
        assert content[name] == pytest.approx(value, abs=TOLERANCE), name


def test_joint_futures_score_as_in_the_multi_agent_challenge(files: Files, tmp_path: Path) -> None:
    metrics = pytest.importorskip("av2.datasets.motion_forecasting.eval.metrics")
    submission = pytest.importorskip("av2.datasets.motion_forecasting.eval.submission")
    predictions = submission.ChallengeSubmission.from_parquet(files.multi).predictions
    rows = []
    for scene_id, tracks in truth_of(files.raw, FILES[1]).items():
        probability, modes = predictions[scene_id]
        assert set(modes) == set(tracks)
        position = np.stack([modes[track_id] for track_id in tracks])
        truth = np.stack(list(tracks.values()))
        fde = metrics.compute_world_fde(position, truth)
        best = fde.argmin()
        ade = metrics.compute_world_ade(position, truth)
        missed = metrics.compute_world_misses(position, truth).mean(0)
        hit = metrics.compute_world_collisions(position).mean(0)
        brier = metrics.compute_world_brier_fde(position, truth, probability)
        row = {"avgMinFDE6": fde[best], "avgMinADE6": ade[best], "actorMR6": missed[best]}
        rows.append(row | {"actorCR6": hit[best], "avgBrierMinFDE6": brier[best]})
    expected = pd.DataFrame(rows).mean()
    content = scored(tmp_path, files.multi, "--raw", "argoverse2", files.raw, "--joint")
    for name, value in expected.items():
        assert content[name] == pytest.approx(value, abs=TOLERANCE), name


def test_a_store_and_its_raw_folder_give_the_same_scores(files: Files, tmp_path: Path) -> None:
    with_store = scored(tmp_path, files.multi, "--store", files.store)
    with_raw = scored(tmp_path, files.multi, "--raw", "argoverse2", files.raw)
    assert with_store.keys() == with_raw.keys()
    for name, value in with_store.items():
        if isinstance(value, float):
            assert with_raw[name] == pytest.approx(value, abs=1e-9, nan_ok=True), name
        else:
            assert with_raw[name] == value, name


def test_csv_files_have_the_same_scores(files: Files, tmp_path: Path) -> None:
    rows: list[tuple[Any, ...]] = []
    for scene_id, tracks in read_forecasts(files.multi).items():
        for track in tracks:
            for mode, future in enumerate(track.position):
                probability = track.probability[mode]
                for step, (x, y) in enumerate(future, start=1):
                    rows.append((scene_id, track.track_id, mode, probability, step, x, y))
    path = tmp_path / "forecasts.csv"
    pd.DataFrame(rows, columns=COLUMNS).to_csv(path, index=False)
    read = read_forecasts(path)
    for scene_id, tracks in read_forecasts(files.multi).items():
        for one, other in zip(tracks, read[scene_id], strict=True):
            assert one.track_id == other.track_id
            np.testing.assert_array_equal(one.position, other.position)
            np.testing.assert_allclose(one.probability, other.probability, rtol=1e-14)
    expected = scored(tmp_path, files.multi, "--store", files.store)
    content = scored(tmp_path, path, "--store", files.store)
    for name in ("minFDE6", "minADE6", "MR6", "brier_minFDE6"):
        assert content[name] == pytest.approx(expected[name], abs=1e-12)


def test_a_broken_scenario_is_listed_and_the_others_are_scored(
    files: Files, real_data: Path, tmp_path: Path
) -> None:
    scenarios = sorted((real_data / "argoverse2" / "val").glob("*/scenario_*.parquet"))
    raw = write_released(tmp_path / "raw", scenarios)
    broken = sorted(raw.glob("test/*/scenario_*.parquet"))[0]
    broken.write_bytes(broken.read_bytes()[:100])
    words = ("--raw", "argoverse2", raw, "--agents", "focal")
    content = scored(tmp_path, files.single, *words)
    assert content["num_agents"] == 2
    kinds = {finding["kind"]: finding["count"] for finding in content["findings"]}
    assert kinds == {"unreadable": 1, "unknown scene": 1}
    [finding, _] = content["findings"]
    assert "not a readable parquet file" in finding["examples"][0]
