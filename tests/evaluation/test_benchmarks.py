"""The protocols of nuScenes prediction and Stanford Drone against independent scripts."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from support.cli import run
from support.nuscenes import unpack
from support.raw_folders import FOLDERS

from trajformer.errors import TrajformerError
from trajformer.evaluation.protocols import nuscenes, sdd
from trajformer.evaluation.protocols.nuscenes import MISS, check_challenge
from trajformer.models.constant_velocity import ConstantVelocityConfig
from trajformer.recipes.checkpoint import describe
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.spec import DataSpec

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
SCENES = ("scene-0003", "scene-0039", "scene-0565")  # of the official val
Paths = dict[tuple[str, str], np.ndarray]  # positions [T, 2] by sample and agent


def expect_targets(monkeypatch: pytest.MonkeyPatch, module: Any, count: int) -> None:
    monkeypatch.setattr(module, "BENCHMARK", replace(module.BENCHMARK, num_targets=count))


def checkpoint(path: Path, **trained_on: Any) -> Path:
    config = TrainConfig(ConstantVelocityConfig(modes=25))
    torch.save({"trajformer": describe(config, DataSpec(**trained_on)), "state_dict": {}}, path)
    return path


# ---- nuScenes prediction -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def raw(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    is_kept = SCENES.__contains__
    return unpack(real_data, tmp_path_factory.mktemp("nuscenes"), is_kept, is_kept)


def recorded(raw: Path) -> tuple[Paths, Paths]:
    """Futures [12, 2] of the official targets, and forecasts by constant velocity and yaw."""
    futures = Paths()
    straight = Paths()
    for file in (raw / "label" / "test").iterdir():
        state = {}  # x, y and yaw by frame and agent
        targets = []
        for line in file.read_text().splitlines():
            row = line.split()
            key = (int(float(row[0])), int(float(row[1])))
            state[key] = np.array([row[13], row[15], row[16]], float)
            if float(row[17]) == 1:
                targets.append(key)
        for frame, agent in targets:
            *position, yaw = state[frame, agent]
            speed = np.hypot(*(position - state[frame - 1, agent][:2]))
            velocity = speed * np.array([np.cos(yaw), np.sin(yaw)])
            future = [state[frame + step, agent][:2] for step in range(1, 13)]
            name = (f"{file.stem}-{frame}", f"{file.stem}-{agent}")
            futures[name] = np.stack(future)
            straight[name] = position + np.arange(1, 13)[:, None] * velocity
    return futures, straight


def metrics_of(futures: Paths, forecasts: Paths) -> dict[str, float]:
    """Metrics of forecasts [K, 12, 2] with the most probable mode first."""
    table: dict[str, list[float]] = {}
    for name, future in futures.items():
        error = np.sqrt(((forecasts[name] - future) ** 2).sum(-1))  # [K, 12]
        for k in (1, 5, 10):
            table.setdefault(f"ADE_{k}", []).append(error[:k].mean(1).min())
            table.setdefault(f"FDE_{k}", []).append(error[:k, -1].min())
            missed = (error[:k].max(1) >= 2.0).all()
            table.setdefault(f"{MISS}_{k}", []).append(float(missed))
    return {name: float(np.mean(values)) for name, values in table.items()}


@dataclass
class Outputs:
    """Results of the nuScenes benchmark."""

    metrics: dict[str, dict[str, float]]  # by label of the model
    entries: list[dict[str, Any]]  # of the challenge file
    printed: str
    futures: Paths
    straight: Paths
    checkpoint: str  # label of the model with 25 modes


@pytest.fixture
def outputs(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Outputs:
    futures, straight = recorded(raw)
    expect_targets(monkeypatch, nuscenes, len(futures))
    model = checkpoint(tmp_path / "m.ckpt")
    metrics = tmp_path / "metrics.json"
    challenge = tmp_path / "challenge.json"
    files = ("--json", metrics, "--export", challenge, "--checkpoint", model)
    assert run("benchmark", "nuscenes", "--data", raw, "--driven-paths", "false", *files) == 0
    return Outputs(
        metrics=json.loads(metrics.read_text()),
        entries=json.loads(challenge.read_text()),
        printed=capsys.readouterr().out,
        futures=futures,
        straight=straight,
        checkpoint=str(model),
    )


def test_constant_velocity_on_nuscenes_equals_a_script_on_text(outputs: Outputs) -> None:
    models = ["constant_velocity", "constant_velocity_yaw", outputs.checkpoint]
    assert list(outputs.metrics) == models
    metrics = outputs.metrics["constant_velocity_yaw"]
    assert metrics.pop("num_targets") == len(outputs.futures)
    forecasts = {name: path[None] for name, path in outputs.straight.items()}
    expected = metrics_of(outputs.futures, forecasts)
    assert metrics == pytest.approx({name: expected[name] for name in metrics}, abs=1e-4)


def test_the_challenge_file_has_the_metrics_of_the_table(outputs: Outputs) -> None:
    forecasts = {}
    for entry in outputs.entries:
        probabilities = entry["probabilities"]
        assert probabilities == sorted(probabilities, reverse=True)
        forecasts[entry["sample"], entry["instance"]] = np.array(entry["prediction"])
    expected = metrics_of(outputs.futures, forecasts)
    metrics = outputs.metrics[outputs.checkpoint]
    for name in nuscenes.BENCHMARK.columns:
        assert metrics[name] == pytest.approx(expected[name], abs=2e-3), name
    assert metrics["ADE_10"] < metrics["ADE_5"] < metrics["FDE_5"] < metrics["FDE_1"]
    assert metrics[f"{MISS}_10"] < metrics[f"{MISS}_5"]


def test_nuscenes_without_the_training_part_has_no_driven_paths(
    raw: Path, fails: Callable[..., str]
) -> None:
    assert "add --driven-paths false" in fails("benchmark", "nuscenes", "--data", raw)


def test_the_table_of_nuscenes_has_published_rows_and_differences(outputs: Outputs) -> None:
    assert re.search(r"\nAgentFormer \(corrected\) +1.856 +1.452 ", outputs.printed)
    assert "Map: " in outputs.printed
    _, differences = outputs.printed.split("difference from AgentFormer")
    ade = outputs.metrics[outputs.checkpoint]["ADE_5"]
    assert f"{ade - 1.856:+.3f}" in differences


def test_nuscenes_agrees_with_the_devkit(outputs: Outputs) -> None:
    devkit = pytest.importorskip(
        "nuscenes.eval.prediction.metrics", reason="pip install nuscenes-devkit"
    )
    from nuscenes.eval.prediction.data_classes import Prediction

    ks = [1, 5, 10]
    forecasts = [Prediction.deserialize(entry) for entry in outputs.entries]
    expected = {}
    for name, metric in (("ADE", "MinADEK"), ("FDE", "MinFDEK"), (MISS, "MissRateTopK")):
        official = getattr(devkit, metric)(ks, [devkit.RowMean()])
        values = []
        for forecast in forecasts:
            future = outputs.futures[forecast.sample, forecast.instance]
            values.append(official(future, forecast))
        means = official.aggregators[0](np.concatenate(values))
        for k, mean in zip(ks, means, strict=True):
            expected[f"{name}_{k}"] = mean
    metrics = outputs.metrics[outputs.checkpoint]
    for name in nuscenes.BENCHMARK.columns:
        assert metrics[name] == pytest.approx(expected[name], abs=2e-3), name


ENTRY = {
    "instance": "a",
    "sample": "b",
    "prediction": np.zeros((2, 12, 2)).tolist(),
    "probabilities": [0.75, 0.25],
}
MODES_26 = {"prediction": np.zeros((26, 12, 2)).tolist(), "probabilities": [1 / 26] * 26}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": 1}, "entry 1: expected the fields instance, prediction, probabilities, sample"),
        ({"instance": "a"}, r"entry 1: instance, sample: \('a', 'b'\) is not text or occurs twice"),
        ({"instance": 3}, "is not text or occurs twice"),
        ({"prediction": [[[0.0, 0.0]]]}, r"shapes \(1, 1, 2\) and \(2,\), expected \[K, 12, 2\]"),
        (MODES_26, "with K up to 25"),
        ({"prediction": [[0.0], [1.0, 2.0]]}, "not arrays of numbers"),
        ({"prediction": np.full((2, 12, 2), np.inf).tolist()}, "prediction: has NaN or infinity"),
        ({"probabilities": [0.75, 0.75]}, "a sum of 1.5, expected 1"),
        ({"probabilities": [1.75, -0.75]}, "probabilities: a negative one"),
        ({}, "f.json: 2 targets, expected 9041"),
    ],
)
def test_a_wrong_challenge_file_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TrajformerError, match=message):
        check_challenge([ENTRY, ENTRY | {"instance": "c"} | changes], Path("f.json"))


# ---- Stanford Drone ----------------------------------------------------------------------------


@pytest.fixture
def tracks(real_data: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Some official test tracks, 20 rows each."""
    table = pd.read_parquet(real_data / "sdd" / "sdd.parquet")
    table = table[(table.split == "test") & (table.scene < 60)]
    expect_targets(monkeypatch, sdd, len(table) // 20)
    return table.sort_values(["scene", "agent", "step"])


@pytest.fixture
def drone_raw(tracks: pd.DataFrame, tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    pq.write_table(pa.Table.from_pandas(tracks), folder / "sdd.parquet")
    return folder


def test_constant_velocity_on_sdd_equals_a_script_on_the_table(
    tracks: pd.DataFrame, drone_raw: Path, tmp_path: Path
) -> None:
    json_file = tmp_path / "metrics.json"
    assert run("benchmark", "sdd", "--data", drone_raw, "--json", json_file) == 0
    metrics = json.loads(json_file.read_text())["constant_velocity"]

    position = tracks[["x", "y"]].to_numpy(np.float64).reshape(-1, 20, 2)
    last = position[:, 7:8]
    velocity = last - position[:, 6:7]
    straight = last + np.arange(1, 13)[:, None] * velocity
    error = np.linalg.norm(straight - position[:, 8:], axis=-1)
    ade = error.mean()
    fde = error[:, -1].mean()
    expected = {"ADE_20": ade, "ADE_at_best_FDE_20": ade, "ADE_1": ade, "FDE_20": fde, "FDE_1": fde}
    assert metrics.pop("num_targets") == len(position)
    assert metrics == pytest.approx(expected, abs=1e-3)


def drone_metrics(error: np.ndarray) -> dict[str, float]:
    """Metrics of a track from errors [20, 12] with the most probable mode first."""
    ade = error.mean(1)
    fde = error[:, -1]
    return {
        "ADE_20": ade.min(),
        "FDE_20": fde.min(),
        "ADE_at_best_FDE_20": ade[fde.argmin()],
        "ADE_1": ade[0],
        "FDE_1": fde[0],
    }


def test_the_20_most_probable_modes_count_on_sdd(
    tracks: pd.DataFrame, drone_raw: Path, tmp_path: Path
) -> None:
    model = checkpoint(tmp_path / "m.ckpt", unit="px")  # 25 modes
    store = tmp_path / "store"
    forecasts = tmp_path / "f.parquet"
    json_file = tmp_path / "metrics.json"
    options = ("--json", json_file, "--checkpoint", model)
    assert run("benchmark", "sdd", "--data", drone_raw, *options) == 0
    assert run("preprocess", "sdd", drone_raw, store, "--workers", 1) == 0
    where = ("--store", store, "--split", "test", "--out", forecasts)
    assert run("predict", "--checkpoint", model, *where) == 0

    futures = tracks[tracks.step >= 8].groupby(["scene", "agent"])
    rows = []
    for (scene, agent), modes in pd.read_parquet(forecasts).groupby(["scenario_id", "track_id"]):
        future = futures.get_group((int(scene.split("-")[1]), int(agent)))
        best = modes.sort_values("probability", ascending=False, kind="stable").head(20)
        error_x = np.stack(best.predicted_trajectory_x) - future.x.to_numpy()
        error_y = np.stack(best.predicted_trajectory_y) - future.y.to_numpy()
        rows.append(drone_metrics(np.hypot(error_x, error_y)))
    assert len(rows) == len(futures)
    metrics = json.loads(json_file.read_text())[str(model)]
    assert metrics.pop("num_targets") == len(rows)
    assert metrics == pytest.approx(pd.DataFrame(rows).mean().to_dict(), abs=1e-2)


@pytest.fixture
def small_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four tracks of the split "train", which is scored."""
    FOLDERS["sdd"](tmp_path / "raw")
    monkeypatch.setattr(sdd, "BENCHMARK", replace(sdd.BENCHMARK, split="train"))
    return tmp_path / "raw"


def test_other_data_is_refused(tmp_path: Path, fails: Callable[..., str]) -> None:
    FOLDERS["sdd"](tmp_path / "raw")
    command = ("benchmark", "sdd", "--data", tmp_path / "raw")
    assert "no split 'test' (expected RAW/*.parquet" in fails(*command)
    assert "no such folder" in fails("benchmark", "nuscenes", "--data", tmp_path / "nothing")


def test_another_number_of_targets_is_refused(small_raw: Path, fails: Callable[..., str]) -> None:
    message = "split 'train': 4 targets, expected 2829: another version of the files"
    assert message in fails("benchmark", "sdd", "--data", small_raw)


@pytest.mark.parametrize(
    ("trained_on", "message"),
    [
        ({"unit": "px", "split": "train"}, "the model was trained on split 'train'"),
        ({"unit": "m", "split": "mine"}, "unit px, but the training scenes have m"),
        (
            {"period_s": 1.0, "split": "mine"},
            "have 1.0; use a model that was trained on scenes like these",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(
    small_raw: Path,
    tmp_path: Path,
    fails: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
    trained_on: dict[str, Any],
    message: str,
) -> None:
    expect_targets(monkeypatch, sdd, 4)
    model = checkpoint(tmp_path / "m.ckpt", **trained_on)
    assert message in fails("benchmark", "sdd", "--data", small_raw, "--checkpoint", model)


def test_options_of_other_commands_are_refused(tmp_path: Path, fails: Callable[..., str]) -> None:
    command = ("benchmark", "sdd", "--data", tmp_path)
    assert "unrecognized arguments: --export" in fails(*command, "--export", tmp_path / "e")
    assert "unrecognized arguments: --store" in fails(*command, "--store", tmp_path)
    assert "arguments are required: --data" in fails("benchmark", "nuscenes")
