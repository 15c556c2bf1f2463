"""The commands from raw files to pictures; the metrics are computed again from the raw files."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.cli import run
from support.processes import environment, run_python
from support.scenes import make_scene
from support.uses import RECIPE

from trajformer.cli.plot import split_of
from trajformer.evaluation.metrics import plausibility
from trajformer.evaluation.metrics.manoeuvre import Manoeuvre
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard

NAMES = [f"{name}{k}" for k in (1, 6) for name in ("minADE", "minFDE", "MR", "brier_minFDE")]
COLUMNS = [
    "scenario_id",
    "track_id",
    "probability",
    "predicted_trajectory_x",
    "predicted_trajectory_y",
]
CONSTANT_VELOCITY = ("--model", "constant_velocity")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with raw/, store/ and run/: twelve simulated scenes and a tiny model for them."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "recipe.yaml").write_text(RECIPE.replace("train: store, val: store, ", ""))
    assert run("synthesize", folder / "raw", "--scenes", 12, "--seed", 5, "--workers", 1) == 0
    assert run("preprocess", "argoverse2", folder / "raw", folder / "store", "--workers", 1) == 0
    stores = ("--data.train", folder / "store", "--data.val", folder / "store")
    recipe = ("--config", folder / "recipe.yaml", "--trainer.epochs", 2, "--trainer.log_every", 1)
    assert run("train", *recipe, *stores, "--out", folder / "run") == 0
    return folder


def score(raw: Path, forecasts: Path) -> dict[str, float]:
    """The metrics of a forecast file by the definitions of Argoverse 2, from the raw scenarios."""
    predicted = pd.read_parquet(forecasts)
    rows = []
    for path in sorted(raw.glob("*/scenario_*.parquet")):
        truth = pd.read_parquet(path)
        scene = truth.scenario_id.iloc[0]
        for track_id, track in truth[truth.object_category >= 2].groupby("track_id"):
            future = track[track.timestep >= 50].sort_values("timestep")
            if future.empty or future.timestep.iloc[-1] != 109:
                continue
            is_track = (predicted.scenario_id == scene) & (predicted.track_id == track_id)
            rows.append({"scene": scene} | score_track(predicted[is_track], future))
    table = pd.DataFrame(rows)
    worst = table.groupby("scene").minFDE6.max().idxmax()
    return table[NAMES].mean().to_dict() | {"num_agents": len(table), "worst": worst}


def score_track(modes: pd.DataFrame, future: pd.DataFrame) -> dict[str, float]:
    """The metrics of the modes of one track, rows of a forecast file."""
    modes = modes.sort_values("probability", ascending=False, kind="stable")
    step = future.timestep.to_numpy().astype(int) - 50
    x = np.stack(modes.predicted_trajectory_x.tolist())[:, step]
    y = np.stack(modes.predicted_trajectory_y.tolist())[:, step]
    distance = np.hypot(x - future.position_x.to_numpy(), y - future.position_y.to_numpy())
    row = {}
    for k in (1, 6):
        best = distance[:k, -1].argmin()
        final = distance[best, -1]
        probability = modes.probability.iloc[best]
        row[f"minADE{k}"] = distance[best].mean()
        row[f"minFDE{k}"] = final
        row[f"MR{k}"] = final > 2.0
        row[f"brier_minFDE{k}"] = final + (1 - probability) ** 2
    return row


def test_a_run_folder_has_the_documented_files(work: Path) -> None:
    folder = work / "run"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"best.ckpt", "last.ckpt", "config.yaml", "csv/metrics.csv"} <= files
    assert any(name.startswith("tensorboard/events") for name in files)
    log = pd.read_csv(folder / "csv" / "metrics.csv")
    assert {"train/loss", "val/minFDE6", "val/MR6", "epoch", "step"} <= set(log.columns)
    torch.load(folder / "best.ckpt", weights_only=True)


@pytest.mark.parametrize("name", ["learned", "constant_velocity"])
def test_metrics_of_evaluate_equal_metrics_of_the_forecast_file(
    work: Path, tmp_path: Path, name: str, capsys: Any
) -> None:
    model: tuple[object, ...] = CONSTANT_VELOCITY
    if name == "learned":
        model = ("--checkpoint", work / "run" / "best.ckpt")
    out = tmp_path / "new" / "f.parquet"
    json_file = tmp_path / "metrics.json"
    csv_file = tmp_path / "rows.csv"
    store = ("--store", work / "store", "--split", "train")  # it has the most scenes
    assert run("evaluate", *model, *store, "--json", json_file, "--csv", csv_file) == 0
    assert run("predict", *model, *store, "--out", out) == 0
    # no progress bars without a terminal; a learned model has probabilities for each agent
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) <= 1
    assert all("have different probabilities, and av2" in line for line in lines)
    expected = score(work / "raw" / "train", out)
    metrics = json.loads(json_file.read_text())
    rows = pd.read_csv(csv_file)
    assert set(metrics) == {
        "num_agents",
        "minFDE",
        *NAMES,
        *plausibility.NAMES,
        "protocol",
        "num_skipped",
        "tables",
    }
    protocol = metrics["protocol"]
    assert (protocol["horizon_s"], protocol["horizon_steps"], protocol["unit"]) == (6.0, 60, "m")
    assert protocol["complete_futures"] == (rows.future_steps == 60).sum()
    assert protocol["forecast_agents"] >= len(rows)
    assert metrics["num_agents"] == expected["num_agents"] == len(rows) > 12
    for metric in NAMES:
        assert metrics[metric] == pytest.approx(expected[metric], abs=1e-4), metric
        assert rows[metric].mean() == pytest.approx(expected[metric], abs=1e-4)
    written = pd.read_parquet(out)
    assert list(written.columns) == COLUMNS
    total = written.groupby(["scenario_id", "track_id"]).probability.sum()
    assert np.allclose(total, 1.0)


def test_files_of_evaluate_are_written_even_if_the_reader_of_the_output_has_ended(
    work: Path, tmp_path: Path, capfd: Any
) -> None:
    words = ["evaluate", *CONSTANT_VELOCITY, "--store", work / "store"]
    files = ["--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv"]
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "trajformer.cli", *words, *files]
    subprocess.run(command, stdout=write, check=False, env=environment())
    os.close(write)
    metrics = json.loads((tmp_path / "a.json").read_text())
    assert metrics["num_agents"] == len(pd.read_csv(tmp_path / "a.csv")) > 0
    assert "Traceback" not in capfd.readouterr().err


def test_plots_of_named_worst_and_random_scenes(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = work / "store"
    forecasts = tmp_path / "f.parquet"
    model = ("--checkpoint", work / "run" / "last.ckpt")
    assert run("predict", *model, "--store", store, "--out", forecasts) == 0
    worst = score(work / "raw" / "val", forecasts)["worst"]
    named = sorted(path.name for path in (work / "raw" / "train").iterdir())[:2]
    cases = [
        (("--forecasts", forecasts, "--worst", 1), [worst]),
        (("--scene", *named), named),
        (("--random", 1), None),
    ]
    for number, (words, names) in enumerate(cases):
        out = tmp_path / str(number)
        capsys.readouterr()
        assert run("plot", store, *words, "--out", out) == 0
        paths = [Path(text) for text in capsys.readouterr().out.splitlines()]
        assert names is None or [path.stem for path in paths] == names
        assert paths and set(paths) == set(out.iterdir())
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert run("plot", store, "--scene", *named, "--out", tmp_path / "both.png") == 0
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


def test_a_split_without_a_future_is_predicted_for_all(work: Path, tmp_path: Path) -> None:
    model = ("--checkpoint", work / "run" / "best.ckpt")
    store = ("--store", work / "store", "--split", "test")
    count = {}
    for agents in ("focal", "scored", "all"):
        out = tmp_path / agents
        assert run("predict", *model, *store, "--agents", agents, "--out", out) == 0
        count[agents] = pd.read_parquet(out).track_id.nunique()
    truth = pd.read_parquet(next((work / "raw" / "test").rglob("scenario_*.parquet")))
    num_scored = truth[truth.object_category >= 2].track_id.nunique()
    assert count["focal"] == 1 < count["scored"] == num_scored
    is_recent = (truth.timestep >= 39) & (truth.timestep <= 49)  # seen in the last second
    assert count["all"] == truth[is_recent].track_id.nunique() > 8


def test_errors_of_all_agents_by_motion(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "rows.csv"
    json_file = tmp_path / "metrics.json"
    store = ("--store", work / "store", "--agents", "all")
    files = ("--csv", table, "--json", json_file)
    assert run("evaluate", *CONSTANT_VELOCITY, *store, *files) == 0
    rows = pd.read_csv(table)
    brief = rows.history_s < 0.95
    standing = rows[(rows.history_m < 0.5) & (rows.future_m < 0.5) & ~brief]
    assert 0 < len(standing) < len(rows)
    assert brief.any()
    labels = {kind.label for kind in Manoeuvre}
    assert set(rows.manoeuvre) <= labels
    assert rows.manoeuvre.nunique() > 1

    text_of_output = capsys.readouterr().out
    groups = json.loads(json_file.read_text())["groups"]
    in_json = [row for row in groups["type and motion"] if row["motion"] == "standing"]
    assert sum(row["agents"] for row in in_json) == len(standing)
    assert sum(row["agents"] for row in groups["manoeuvre"]) == len(rows)
    complete = (rows.future_steps == 60).sum()
    scored = f"{len(rows)} of \\d+ forecast agents are recorded at its end and scored"
    assert re.search(f"horizon 6 s .60 steps.; {scored}, {complete} of them", text_of_output)
    assert "minADE: ADE of the mode with the smallest end-point error" in text_of_output

    printed = text_of_output.splitlines()
    assert sum(int(text.split()[-6]) for text in printed if " brief " in text) == brief.sum()
    by_type = [text.split()[-6:] for text in printed if " standing " in text]
    counts, *metrics = np.array(by_type, float).T
    assert counts.sum() == len(standing)
    means = standing[["minADE6", "minFDE6", "MR6", "minFDE1"]].mean()
    expected = [*means, (standing.minFDE1 <= 0.5).mean()]
    found = [np.average(values, weights=counts) for values in metrics]
    assert found == pytest.approx(expected, abs=1e-3)


def test_real_argoverse2(real_data: Path, work: Path, tmp_path: Path) -> None:
    raw = real_data / "argoverse2"
    store = tmp_path / "store"
    model = ("--checkpoint", work / "run" / "best.ckpt", "--store", store)
    assert run("preprocess", "argoverse2", raw, store, "--workers", 1) == 0
    assert run("store", "verify", store) == 0
    assert run("evaluate", *model, "--json", tmp_path / "metrics.json") == 0
    for split in ("val", "test"):
        out = tmp_path / f"{split}.parquet"
        pictures = tmp_path / split
        assert run("predict", *model, "--split", split, "--out", out) == 0
        assert run("plot", store, "--forecasts", out, "--random", 9, "--out", pictures) == 0
        scene_ids = {path.name for path in (raw / split).iterdir()}
        assert {path.stem for path in pictures.iterdir()} == scene_ids
        assert set(pd.read_parquet(out).scenario_id) == scene_ids
    expected = score(raw / "val", tmp_path / "val.parquet")
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    for name in NAMES:
        assert metrics[name] == pytest.approx(expected[name], abs=1e-4), name


def test_the_demo_runs_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = ("demo", "--out", tmp_path / "demo", "--scenes", 4, "--epochs")
    for _ in range(2):
        assert run(*demo, 1) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "SE2Former" in lines[-5]
    assert not any("{" in line for line in lines)
    assert any((tmp_path / "demo" / "pictures").iterdir())
    page = tmp_path / "demo" / "view.html"
    assert f"page        {page}: open it in a browser" in lines[-1]
    assert 'id="scene-0"' in page.read_text(encoding="utf-8")
    assert run(*demo, 2) == 1
    assert "arguments.json: this folder was made with" in capsys.readouterr().err


@pytest.mark.parametrize(
    "other",
    [("--scenes", 13, "--seed", 5), ("--scenes", 12), ("--scenes", 12, "--seed", 5, "--branches")],
)
def test_simulated_traffic_has_one_set_of_arguments(
    work: Path, capsys: pytest.CaptureFixture[str], other: Any
) -> None:
    assert run("synthesize", work / "raw", *other) == 1
    assert "raw/arguments.json: this folder was made with" in capsys.readouterr().err


def test_the_program_itself(tmp_path: Path) -> None:
    for words, status, num_lines in ((["--help"], 0, 0), (["store", "info", "nowhere"], 1, 1)):
        done = run_python("-m", "trajformer.cli", *words, cwd=tmp_path)
        assert done.returncode == status, done.stderr
        assert len(done.stderr.splitlines()) == num_lines, done.stderr


def test_a_closed_output_is_no_error() -> None:
    command = [sys.executable, "-m", "trajformer.cli", "recipes"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, env=environment()) as running:
        assert running.stdout and running.stderr
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait() == 141


def test_plot_selects_the_split_of_the_forecasts(tmp_path: Path) -> None:
    """Ids of Argoverse 1 recur between splits, so one common scene does not decide."""
    for split, ids in {"test_obs": ("1", "2"), "val": ("1", "3", "4")}.items():
        scenes = [make_scene(3, seed=int(name), scene_id=name) for name in ids]
        write_shard(shard_path(tmp_path, split, 0), scenes, ShardInfo(source="test", split=split))
    assert split_of(tmp_path, ["1", "3", "4"]) == "val"
    assert split_of(tmp_path, ["1", "2"]) == "test_obs"
    assert split_of(tmp_path, ["1"]) == "val"


def test_options_without_a_result_say_what_is_missing(
    work: Path, tmp_path: Path, fails: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    store = work / "store"
    forecasts = tmp_path / "f.parquet"
    assert run("predict", *CONSTANT_VELOCITY, "--store", store, "--out", forecasts) == 0
    plot = ("plot", store, "--split", "train", "--forecasts", forecasts, "--out", tmp_path / "p")
    reason = f"no forecast of a scene in split 'train' of {store}; leave out --split\n"
    assert fails(*plot).endswith(reason)
    assert fails(*plot, "--worst", 1).endswith(reason)
    some = pd.read_parquet(forecasts)
    first = some.scenario_id.iloc[0]
    some.replace({"scenario_id": {first: "elsewhere"}}).to_parquet(forecasts)
    capsys.readouterr()
    view = ("view", store, "--forecasts", forecasts, "--out", tmp_path / "view.html")
    assert run(*view) == 0
    count = f"1 of {some.scenario_id.nunique()} forecast scenes are not in split 'val'"
    assert f"trajformer view: warning: {forecasts}: {count}" in capsys.readouterr().err

    scene = replace(make_scene(3), agent_role=np.ones(3, np.uint8))
    info = ShardInfo(source="test", split="val")
    write_shard(shard_path(tmp_path / "s", "val", 0), [scene], info)
    write_manifest(tmp_path / "s")
    words = ("evaluate", *CONSTANT_VELOCITY, "--store", tmp_path / "s", "--agents", "focal")
    assert "split 'val': has no agent of the kind --agents focal" in fails(*words)

    name = "se2former_argoverse1"
    line = fails("evaluate", "--checkpoint", name, "--store", store)
    assert f"{name}: no such checkpoint; did you mean pretrained:{name}?" in line


def test_options_of_evaluate_and_benchmark_are_not_mixed(
    work: Path, fails: Callable[..., str]
) -> None:
    evaluate = ("evaluate", *CONSTANT_VELOCITY, "--store", work / "store")
    for option in ("--data", "--export"):
        assert f"unrecognized arguments: {option}" in fails(*evaluate, option, work)
    benchmark = ("benchmark", "eth_ucy", "--data", work)
    for option in ("--store", "--model", "--csv"):
        assert f"unrecognized arguments: {option}" in fails(*benchmark, option, "x")
