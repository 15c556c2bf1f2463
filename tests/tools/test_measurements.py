"""Tools that measure: benchmarks, the GPU report, a sample of the fuzzing."""

import json
from pathlib import Path

import bench_forecast
import bench_peers
import fuzz
import gpu_report
import pytest
import torch
from bench_forecast import enlarged, larger_scenes, one_scene, threads, training
from support.processes import ROOT, environment, run_python

from trajformer.data.loading import SceneDataset
from trajformer.data.sample import BatchConfig
from trajformer.recipes.choices import MODELS
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.testing.scenes import example_scenes


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> SceneStore:
    root = tmp_path_factory.mktemp("store")
    scenes = example_scenes((9,), 50, 60)
    write_shard(shard_path(root, "train", 0), scenes, ShardInfo("synthetic", "train"))
    return SceneStore(root, "train")


def test_rows_of_both_tables(store: SceneStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_forecast, "SIZES", ((8, 16), (16, 32)))
    monkeypatch.setattr(bench_forecast, "AGENTS_BY_THREADS", (1, 3))
    rows = list(one_scene(store, 0, 1))
    assert [row["targets"] > 1 for row in rows] == [True, True, False, False, True, False]
    assert all(row["ms"] > 0 for row in rows)
    assert "mmTransformer" in rows[-1]["model"]
    larger = list(larger_scenes(store, 0, 1))
    assert [row["agents"] for row in larger] == [8, 16]
    assert larger[0]["linear"] == 1.0
    by_threads = list(threads(store, 0, 1))
    assert [row["agents"] for row in by_threads] == [1, 3]
    assert all(row["1 threads, ms"] > 0 for row in by_threads)
    (step,) = training(store, 0, 1)
    assert step["scenes"] == 32
    assert step["scenes/s"] * step["step, ms"] == pytest.approx(32e3)


def test_both_weights_take_turns_with_peers() -> None:
    forecasts = bench_peers.se2former(3, 5)
    assert len(forecasts) == 4
    cells = bench_peers.measure(forecasts | {"peer": lambda: None}, 1)
    assert list(cells) == [*forecasts, "peer"]
    assert all(float(cell.split(" / ")[0]) >= 0 for cell in cells.values())


def test_larger_scenes_keep_the_motion_of_their_agents(store: SceneStore) -> None:
    observation = SceneDataset(store, BatchConfig(targets="all"))[[0]].observation
    large = enlarged(observation, 30, 50)
    assert large.num_targets == 30
    assert large.agent_mask.shape[1] == 30
    assert large.polyline_mask.shape[1] == 50
    assert torch.equal(large.pose, enlarged(observation, 30, 50).pose)
    motion = large.position.diff(dim=2)[0, 0]
    expected = observation.position.diff(dim=2)[0, 0]
    torch.testing.assert_close(motion, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", fuzz.OTHERS)
def test_damaged_files_are_valid_or_refused(tmp_path: Path, name: str) -> None:
    outcomes = list(fuzz.outcomes(name, tmp_path / name, 0, 25))
    assert [reason for kind, reason in outcomes if kind == "failure"] == []
    assert "refused" in {kind for kind, _ in outcomes}


def test_another_exception_and_a_reason_without_a_file_are_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path) -> dict[str, float]:
        return {"a": 1 / (path.stat().st_mtime_ns != 3)}

    monkeypatch.setattr(fuzz, "read_forecasts", read)
    kinds = [kind for kind, _ in fuzz.outcomes("forecasts", tmp_path, 0, 6)]
    assert kinds == ["valid", "valid", "valid", "failure", "valid", "valid"]


PROGRAM = """
import sys
for name in ("av2", "jsonargparse", "tensorboard", "ray", "sentencepiece", "pycocotools"):
    sys.modules[name] = None
import gpu_report
from dataclasses import replace
models = ("constant_velocity", "mmtransformer", "agentformer_sampler")
sizes = {"scenes": 4, "batch": 2, "latency": (1,), "repeats": 1, "matrix": 64, "workers": (0,)}
gpu_report.SMALL = replace(gpu_report.SMALL, models=models, **sizes)
gpu_report.main()
"""


def test_all_tables_are_measured_without_optional_packages(tmp_path: Path) -> None:
    words = ("-c", PROGRAM, "--small", "--out", tmp_path / "R.json")
    done = run_python(*words, env=environment(PYTHONPATH=f"{ROOT}:{ROOT / 'tools'}"))
    assert done.returncode == 0, done.stdout + done.stderr
    tables = json.loads((tmp_path / "R.json").read_text())["rows"]
    assert list(tables) == list(gpu_report.TABLES)
    assert done.stdout.count("\n| --- |") == len(tables)
    names = {title: [row["model"] for row in rows] for title, rows in tables.items()}
    models = ["mmtransformer", "agentformer_sampler"]
    assert names == {
        "Parity with the CPU": ["constant_velocity", *models],
        "Training": ["mmtransformer"] * 2 + ["agentformer_sampler"] * 2,
        "Latency": ["constant_velocity", *models],
        "Kernels of a training step in bf16": models,
        "Training steps of reference tasks": ["detection"] * 2 + ["translation"] * 2,
        "From the store to the device": ["mmtransformer"],
    }
    assert all(row["equal"] == "yes" for row in tables["Parity with the CPU"])
    cells = [value for rows in tables.values() for row in rows for value in row.values()]
    numbers = [value for value in cells if isinstance(value, float)]
    assert len(numbers) > 40
    assert min(numbers) >= 0.0


def test_all_models_are_in_the_report_and_an_error_is_a_row(tmp_path: Path) -> None:
    assert set(MODELS) <= set(gpu_report.Sizes().models)
    run = gpu_report.Run(torch.device("cpu"), None, gpu_report.SMALL)

    def fail(run: gpu_report.Run, name: str) -> None:
        raise RuntimeError(f"out of memory\nin {name}")

    assert list(gpu_report.measured(fail, run, "crowd")) == [
        {"model": "crowd", "error": "RuntimeError: out of memory in crowd"}
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_models_on_a_gpu_equal_those_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parity = {"Parity with the CPU": gpu_report.parity}
    monkeypatch.setattr(gpu_report, "TABLES", parity)
    assert gpu_report.report(tmp_path / "R.json", torch.device("cuda"), gpu_report.SMALL, tmp_path)
