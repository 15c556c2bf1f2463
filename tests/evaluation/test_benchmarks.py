"""The protocols of nuScenes prediction and Stanford Drone against independent scripts, and their refusals."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
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


# ---- nuScenes prediction -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def raw(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(
        real_data, tmp_path_factory.mktemp("nuscenes"), SCENES.__contains__, SCENES.__contains__
    )


def recorded(raw: Path) -> tuple[Paths, Paths]:
    """Futures [12, 2] of the official targets, and constant velocity and yaw as the forecast of each."""
    futures, straight = Paths(), Paths()
    for file in (raw / "label" / "test").iterdir():
        rows = [line.split() for line in file.read_text().splitlines()]
        state = {
            (int(float(row[0])), int(float(row[1]))): np.array([row[13], row[15], row[16]], float)
            for row in rows
        }
        for row in (row for row in rows if float(row[17]) == 1):
            frame, agent = int(float(row[0])), int(float(row[1]))
            *now, yaw = state[frame, agent]
            speed = np.hypot(*(now - state[frame - 1, agent][:2]))
            name = (f"{file.stem}-{frame}", f"{file.stem}-{agent}")
            futures[name] = np.stack([state[frame + step, agent][:2] for step in range(1, 13)])
            straight[name] = now + np.arange(1, 13)[:, None] * speed * np.array(
                [np.cos(yaw), np.sin(yaw)]
            )
    return futures, straight


def metrics_of(futures: Paths, forecasts: Paths) -> dict[str, float]:
    """The figures of forecasts [K, 12, 2] with the most probable mode first."""
    table: dict[str, list[float]] = {}
    for name, future in futures.items():
        error = np.sqrt(((forecasts[name] - future) ** 2).sum(-1))  # [K, 12]
        for k in (1, 5, 10):
            table.setdefault(f"ADE_{k}", []).append(error[:k].mean(1).min())
            table.setdefault(f"FDE_{k}", []).append(error[:k, -1].min())
            table.setdefault(f"{MISS}_{k}", []).append(bool((error[:k].max(1) >= 2.0).all()))
    return {name: float(np.mean(values)) for name, values in table.items()}


def test_nuscenes_agrees_with_a_script_on_text(
    raw: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    futures, straight = recorded(raw)
    expect_targets(monkeypatch, nuscenes, len(futures))
    model, metrics, challenge = (
        checkpoint(tmp_path / "m.ckpt"),
        tmp_path / "figures.json",
        tmp_path / "challenge.json",
    )
    words = (
        "benchmark",
        "nuscenes",
        "--data",
        raw,
        "--json",
        metrics,
        "--export",
        challenge,
    )
    assert run(*words, "--checkpoint", model) == 0
    rows = json.loads(metrics.read_text())
    assert list(rows) == ["constant_velocity", "constant_velocity_yaw", str(model)]
    expected = metrics_of(futures, {name: path[None] for name, path in straight.items()})
    row = rows["constant_velocity_yaw"]
    assert row.pop("num_targets") == len(futures) and row == pytest.approx(
        {name: expected[name] for name in row}, abs=1e-4
    )

    entries = json.loads(challenge.read_text())
    forecasts = {
        (entry["sample"], entry["instance"]): np.array(entry["prediction"]) for entry in entries
    }
    assert all(
        entry["probabilities"] == sorted(entry["probabilities"], reverse=True) for entry in entries
    )
    expected = metrics_of(futures, forecasts)
    row = rows[str(model)]
    assert (
        row["ADE_10"] < row["ADE_5"] < row["FDE_5"] < row["FDE_1"]
        and row[f"{MISS}_10"] < row[f"{MISS}_5"]
    )
    assert all(
        row[name] == pytest.approx(expected[name], abs=2e-3) for name in nuscenes.BENCHMARK.columns
    )

    text = capsys.readouterr().out
    assert re.search(r"\nAgentFormer \(corrected\) +1.856 +1.452 ", text) and "Map: " in text
    assert f"{row['ADE_5'] - 1.856:+.3f}" in text.split("difference from AgentFormer")[1]


def test_nuscenes_agrees_with_the_devkit(raw: Path, tmp_path: Path, monkeypatch: Any) -> None:
    metrics = pytest.importorskip(
        "nuscenes.eval.prediction.metrics", reason="pip install nuscenes-devkit"
    )
    from nuscenes.eval.prediction.data_classes import Prediction

    futures, _ = recorded(raw)
    expect_targets(monkeypatch, nuscenes, len(futures))
    model, metrics, challenge = (
        checkpoint(tmp_path / "m.ckpt"),
        tmp_path / "figures.json",
        tmp_path / "challenge.json",
    )
    options = ("--json", metrics, "--export", challenge, "--checkpoint", model)
    assert run("benchmark", "nuscenes", "--data", raw, *options) == 0
    forecasts = [Prediction.deserialize(entry) for entry in json.loads(challenge.read_text())]
    expected = {}
    for name, metric in (("ADE", "MinADEK"), ("FDE", "MinFDEK"), (MISS, "MissRateTopK")):
        official = getattr(metrics, metric)([1, 5, 10], [metrics.RowMean()])
        values = np.concatenate(
            [official(futures[each.sample, each.instance], each) for each in forecasts]
        )
        expected |= {
            f"{name}_{k}": value
            for k, value in zip((1, 5, 10), official.aggregators[0](values), strict=True)
        }
    row = json.loads(metrics.read_text())[str(model)]
    assert all(
        row[name] == pytest.approx(expected[name], abs=2e-3) for name in nuscenes.BENCHMARK.columns
    )


ENTRY = {
    "instance": "a",
    "sample": "b",
    "prediction": np.zeros((2, 12, 2)).tolist(),
    "probabilities": [0.75, 0.25],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": 1}, "entry 1: expected the fields instance, prediction, probabilities, sample"),
        ({"instance": "a"}, r"entry 1: instance, sample: \('a', 'b'\) is not text or occurs twice"),
        ({"instance": 3}, "is not text or occurs twice"),
        ({"prediction": [[[0.0, 0.0]]]}, r"shapes \(1, 1, 2\) and \(2,\), expected \[K, 12, 2\]"),
        (
            {"prediction": np.zeros((26, 12, 2)).tolist(), "probabilities": [1 / 26] * 26},
            "with K up to 25",
        ),
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


# ---- Stanford Drone ------------------------------------------------------------------------------------------------


def test_sdd_agrees_with_a_script_on_the_table(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pd.read_parquet(real_data / "sdd" / "sdd.parquet")
    frame = frame[(frame.split == "test") & (frame.scene < 60)].sort_values(
        ["scene", "agent", "step"]
    )
    raw = tmp_path / "raw"
    raw.mkdir()
    pq.write_table(pa.Table.from_pandas(frame), raw / "sdd.parquet")
    track = frame[["x", "y"]].to_numpy(np.float64).reshape(-1, 20, 2)
    expect_targets(monkeypatch, sdd, len(track))
    store, forecasts, metrics = (
        tmp_path / "store",
        tmp_path / "f.parquet",
        tmp_path / "figures.json",
    )
    words = ("benchmark", "sdd", "--data", raw, "--json", metrics)
    assert run(*words) == 0
    straight = track[:, 7:8] + np.arange(1, 13)[:, None] * (track[:, 7:8] - track[:, 6:7])
    error = np.linalg.norm(straight - track[:, 8:], axis=-1)
    row = json.loads(metrics.read_text())["constant_velocity"]
    mean, last = error.mean(), error[:, -1].mean()
    expected = {
        "ADE_20": mean,
        "FDE_20": last,
        "ADE_at_best_FDE_20": mean,
        "ADE_1": mean,
        "FDE_1": last,
    }
    assert row.pop("num_targets") == len(track) and row == pytest.approx(expected, abs=1e-3)

    model = checkpoint(tmp_path / "m.ckpt", unit="px")  # 25 modes
    assert (
        run(*words, "--overwrite", "--checkpoint", model)
        == run("preprocess", "sdd", raw, store, "--workers", 1)
        == 0
    )
    assert (
        run(
            "predict",
            "--checkpoint",
            model,
            "--store",
            store,
            "--split",
            "test",
            "--out",
            forecasts,
        )
        == 0
    )
    row = json.loads(metrics.read_text())[str(model)]
    parts = []
    for (scene, agent), modes in pd.read_parquet(forecasts).groupby(["scenario_id", "track_id"]):
        future = frame[
            (frame.scene == int(scene.split("-")[1]))
            & (frame.agent == int(agent))
            & (frame.step >= 8)
        ]
        best = modes.sort_values("probability", ascending=False, kind="stable").head(20)
        x, y = (
            np.stack(best[f"predicted_trajectory_{axis}"]) - future[axis].to_numpy()
            for axis in "xy"
        )
        error = np.hypot(x, y)  # [20, 12]
        at_best = error[error[:, -1].argmin()].mean()
        parts.append(
            (error.mean(1).min(), error[:, -1].min(), at_best, error[0].mean(), error[0, -1])
        )
    assert len(parts) == len(track)
    expected = dict(zip(sdd.BENCHMARK.columns, np.mean(parts, 0), strict=True))
    assert {name: row[name] for name in expected} == pytest.approx(expected, abs=1e-2)


def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    FOLDERS["sdd"](tmp_path / "raw")
    words = ("benchmark", "sdd", "--data", tmp_path / "raw")
    assert "no split 'test' (expected RAW/*.parquet" in fails(*words)
    monkeypatch.setattr(sdd, "BENCHMARK", replace(sdd.BENCHMARK, split="train"))
    assert "split 'train': 4 targets, expected 2829: another version of the files" in fails(*words)
    same = checkpoint(tmp_path / "a", unit="px", split="train")
    assert "the model was trained on split 'train'" in fails(*words, "--checkpoint", same)
    other, slow = (
        checkpoint(tmp_path / "b", unit="m", split="mine"),
        checkpoint(tmp_path / "c", period_s=1.0, split="mine"),
    )
    expect_targets(monkeypatch, sdd, 4)
    assert "have 1.0; use a model that was trained on scenes like these" in fails(
        *words, "--checkpoint", slow
    )
    assert "unit px, but the training scenes have m" in fails(*words, "--checkpoint", other)
    assert "unrecognized arguments: --export" in fails(*words, "--export", tmp_path / "e")
    assert "no such folder" in fails("benchmark", "nuscenes", "--data", tmp_path / "nothing")
    assert "arguments are required: data" in fails("benchmark", "nuscenes")
    assert "unrecognized arguments: --store" in fails(*words, "--store", tmp_path)
