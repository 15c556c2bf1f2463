"""Tools that measure: benchmarks, the GPU report, paired comparisons, a sample of the fuzzing."""

import json
from pathlib import Path

import bench_forecast
import fuzz
import gpu_report
import numpy as np
import pandas as pd
import pytest
import torch
from bench_forecast import enlarged, larger_scenes, one_scene, threads, training
from paired import compare, mean_errors
from support.processes import ROOT, environment, run_python

from trajformer.data.loading import SceneDataset
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
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


def write(path: Path, error: np.ndarray) -> Path:
    numbers = range(len(error))  # two agents in each scene
    table = pd.DataFrame(
        {
            "scenario_id": [f"{number // 2:03}" for number in numbers],
            "track_id": [str(number % 2) for number in numbers],
            "minFDE6": error,
        }
    )
    table.to_csv(path)
    return path


def test_ids_that_look_like_missing_values_are_compared(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", np.arange(4.0))
    text = path.read_text().replace(",001,1,", ",001,NA,")
    path.write_text(text.replace(",000,", ",null,"))
    # sorted by scene and track
    assert mean_errors([path]).minFDE6.tolist() == [2.0, 3.0, 0.0, 1.0]


def test_interval_of_a_paired_difference(tmp_path: Path) -> None:
    """Against the normal approximation; errors of scenes vary far more than the difference."""
    rng = np.random.default_rng(0)
    base = rng.gamma(1.0, 2.0, 800)
    gap_of_scene = rng.normal(-0.1, 0.4, 400)
    gap = gap_of_scene.repeat(2)
    seeds = [
        write(tmp_path / "a0.csv", base + gap - 0.2),
        write(tmp_path / "a1.csv", base + gap + 0.2),
    ]
    reference = write(tmp_path / "b.csv", base)
    row = compare(seeds, [reference], ["minFDE6"]).loc["minFDE6"]
    assert row.second == pytest.approx(base.mean(), abs=1e-9)
    assert row.difference == pytest.approx(gap.mean(), abs=1e-9)
    half = 1.96 * gap_of_scene.std() / 400**0.5
    assert row.low == pytest.approx(gap.mean() - half, abs=0.004)
    assert row.high == pytest.approx(gap.mean() + half, abs=0.004)


def test_cities_with_few_scenes_count_the_same(tmp_path: Path) -> None:
    """Against the normal approximation.

    The variance of a mean of two means is a quarter of the sum of their variances.
    """
    rng = np.random.default_rng(0)
    miami = rng.normal(0.1, 0.4, 320)
    pittsburgh = rng.normal(-0.5, 0.2, 80)
    city = dict.fromkeys((f"{number:03}" for number in range(320)), "Miami")
    city |= dict.fromkeys((f"{number:03}" for number in range(320, 400)), "Pittsburgh")
    gap = np.concatenate([miami, pittsburgh]).repeat(2)
    first = write(tmp_path / "a.csv", 5 + gap)
    second = write(tmp_path / "b.csv", np.full(800, 5.0))
    row = compare([first], [second], ["minFDE6"], city).loc["minFDE6"]

    middle = (miami.mean() + pittsburgh.mean()) / 2
    assert row["first"] == pytest.approx(5 + middle, abs=1e-9)
    assert row["second"] == pytest.approx(5, abs=1e-9)
    assert row["difference"] == pytest.approx(middle, abs=1e-9)
    variance = (miami.var() / 320 + pittsburgh.var() / 80) / 4
    half = 1.96 * variance**0.5
    assert row["low"] == pytest.approx(middle - half, abs=0.004)
    assert row["high"] == pytest.approx(middle + half, abs=0.004)


def test_agents_at_rest_can_be_left_out(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", np.array([1.0, 9.0, 3.0, 9.0]))
    second = write(tmp_path / "b.csv", np.full(4, 2.0))
    for file in (first, second):
        table = pd.read_csv(file, dtype=str)
        table.assign(future_m=[3.0, 2.9, 5.0, 0.0]).to_csv(file, index=False)
    row = compare([first], [second], ["minFDE6"], moved=3.0).loc["minFDE6"]
    assert row[["first", "second", "difference"]].tolist() == [2.0, 2.0, 0.0]
    with pytest.raises(TrajformerError, match=r"a\.csv: fewer than two scenes"):
        compare([first], [second], ["minFDE6"], moved=6.0)


def test_unknown_scenes_and_cities_with_one_scene_are_errors(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", np.ones(6))
    with pytest.raises(TrajformerError, match=r"a.csv: scene 002 is not in the store of --cities"):
        compare([file], [file], ["minFDE6"], {"000": "Miami", "001": "Miami"})
    with pytest.raises(TrajformerError, match=r"a.csv: fewer than two scenes, in a city"):
        compare([file], [file], ["minFDE6"], {"000": "Miami", "001": "Miami", "002": "Pittsburgh"})


def test_other_agents_are_an_error(tmp_path: Path) -> None:
    one = write(tmp_path / "one.csv", np.ones(4))
    two = write(tmp_path / "two.csv", np.ones(6))
    with pytest.raises(TrajformerError, match=r"two.csv: other agents than .*one.csv"):
        compare([one], [two], ["minFDE6"])


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
