"""The commands from raw files to pictures; the figures are computed again from the raw files."""

import json
import os
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


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with raw/, store/ and run/: twelve simulated scenes and a tiny model trained on them."""
    folder = tmp_path_factory.mktemp("line")
    (folder / "recipe.yaml").write_text(RECIPE.replace("train: store, val: store, ", ""))
    assert run("synthesize", folder / "raw", "--scenes", 12, "--seed", 5, "--workers", 1) == 0
    assert run("preprocess", "argoverse2", folder / "raw", folder / "store", "--workers", 1) == 0
    stores = ("--data.train", folder / "store", "--data.val", folder / "store")
    recipe = ("--config", folder / "recipe.yaml", "--trainer.epochs", 2, "--trainer.log_every", 1)
    assert run("train", *recipe, *stores, "--out", folder / "run") == 0
    return folder


def score(raw: Path, forecasts: Path) -> dict[str, float]:
    """The figures of a forecast file by the definitions of Argoverse 2, computed from the raw scenario files."""
    predicted, rows = pd.read_parquet(forecasts), []
    for path in sorted(raw.glob("*/scenario_*.parquet")):
        truth = pd.read_parquet(path)
        for track_id, track in truth[truth.object_category >= 2].groupby("track_id"):
            future = track[track.timestep >= 50].sort_values("timestep")
            if future.empty or future.timestep.iloc[-1] != 109:
                continue
            modes = predicted[
                (predicted.scenario_id == truth.scenario_id.iloc[0])
                & (predicted.track_id == track_id)
            ]
            modes = modes.sort_values("probability", ascending=False, kind="stable")
            x, y = (np.stack(modes[f"predicted_trajectory_{axis}"].tolist()) for axis in "xy")
            step = future.timestep.to_numpy().astype(int) - 50
            distance = np.hypot(
                x[:, step] - future.position_x.to_numpy(), y[:, step] - future.position_y.to_numpy()
            )
            row: dict[str, float] = {"scene": truth.scenario_id.iloc[0]}
            for k in (1, 6):
                best = distance[:k, -1].argmin()
                fde, probability = distance[best, -1], modes.probability.iloc[best]
                values = (distance[best].mean(), fde, fde > 2.0, fde + (1 - probability) ** 2)
                row |= dict(zip(NAMES[:4] if k == 1 else NAMES[4:], values, strict=True))
            rows.append(row)
    table = pd.DataFrame(rows)
    worst = table.groupby("scene").minFDE6.max().idxmax()
    return table[NAMES].mean().to_dict() | {"num_agents": len(table), "worst": worst}


def test_a_run_folder_has_the_documented_files(line: Path) -> None:
    found = {
        path.relative_to(line / "run").as_posix()
        for path in (line / "run").rglob("*")
        if path.is_file()
    }
    assert {"best.ckpt", "last.ckpt", "config.yaml", "csv/metrics.csv"} <= found
    assert any(name.startswith("tensorboard/events") for name in found)
    log = pd.read_csv(line / "run" / "csv" / "metrics.csv")
    assert {"train/loss", "val/minFDE6", "val/MR6", "epoch", "step"} <= set(log.columns)
    torch.load(line / "run" / "best.ckpt", weights_only=True)


@pytest.mark.parametrize("model", ["learned", "constant_velocity"])
def test_figures_of_evaluate_equal_figures_of_the_forecast_file(
    line: Path, tmp_path: Path, model: str, capsys: Any
) -> None:
    who = ("--checkpoint", line / "run" / "best.ckpt") if model == "learned" else ("--model", model)
    out, metrics, table = (
        tmp_path / "new" / "f.parquet",
        tmp_path / "figures.json",
        tmp_path / "rows.csv",
    )
    store = ("--store", line / "store", "--split", "train")  # it has the most scenes
    assert run("evaluate", *who, *store, "--json", metrics, "--csv", table) == 0
    assert run("predict", *who, *store, "--out", out) == 0
    assert capsys.readouterr().err == ""  # no progress bars without a terminal
    expected, found = score(line / "raw" / "train", out), json.loads(metrics.read_text())
    assert set(found) == {"num_agents", "minFDE", *NAMES, *plausibility.NAMES}
    assert found["num_agents"] == expected["num_agents"] == len(pd.read_csv(table)) > 12
    for name in NAMES:
        assert found[name] == pytest.approx(expected[name], abs=1e-4), name
        assert pd.read_csv(table)[name].mean() == pytest.approx(expected[name], abs=1e-4)
    assert list((written := pd.read_parquet(out)).columns) == COLUMNS
    assert np.allclose(written.groupby(["scenario_id", "track_id"]).probability.sum(), 1.0)


def test_files_of_evaluate_are_written_even_if_the_reader_of_the_output_has_ended(
    line: Path, tmp_path: Path, capfd: Any
) -> None:
    words = [
        "evaluate",
        "--model",
        "constant_velocity",
        "--store",
        line / "store",
        "--json",
        tmp_path / "a.json",
    ]
    command = [sys.executable, "-m", "trajformer.cli", *words, "--csv", tmp_path / "a.csv"]
    read, write = os.pipe()
    os.close(read)
    subprocess.run(command, stdout=write, check=False, env=environment())
    os.close(write)
    assert (
        json.loads((tmp_path / "a.json").read_text())["num_agents"]
        == len(pd.read_csv(tmp_path / "a.csv"))
        > 0
    )
    assert "Traceback" not in capfd.readouterr().err


def test_plots_of_named_worst_and_random_scenes(
    line: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forecasts = tmp_path / "f.parquet"
    run(
        "predict",
        "--checkpoint",
        line / "run" / "last.ckpt",
        "--store",
        line / "store",
        "--out",
        forecasts,
    )
    worst = score(line / "raw" / "val", forecasts)["worst"]
    train = sorted(path.name for path in (line / "raw" / "train").iterdir())[:2]
    cases = [
        (("--forecasts", forecasts, "--worst", 1), [worst]),
        (("--scene", *train), train),
        (("--random", 1), None),
    ]
    for number, (words, names) in enumerate(cases):
        capsys.readouterr()
        assert run("plot", line / "store", *words, "--out", tmp_path / str(number)) == 0
        paths = [Path(text) for text in capsys.readouterr().out.splitlines()]
        assert names is None or [path.stem for path in paths] == names
        assert set(paths) == set((tmp_path / str(number)).iterdir())
        assert paths and all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert run("plot", line / "store", "--scene", *train, "--out", tmp_path / "both.png") == 0
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


def test_a_split_without_a_future_is_predicted_for_all(line: Path, tmp_path: Path) -> None:
    who, store = (
        ("--checkpoint", line / "run" / "best.ckpt"),
        ("--store", line / "store", "--split", "test"),
    )
    for agents in ("focal", "scored", "all"):
        assert run("predict", *who, *store, "--agents", agents, "--out", tmp_path / agents) == 0
    count = {
        agents: pd.read_parquet(tmp_path / agents).track_id.nunique()
        for agents in ("focal", "scored", "all")
    }
    truth = pd.read_parquet(next((line / "raw" / "test").rglob("scenario_*.parquet")))
    assert (
        count["focal"]
        == 1
        < count["scored"]
        == truth[truth.object_category >= 2].track_id.nunique()
    )
    assert count["all"] == (truth.timestep == 49).sum() > 8  # more than max_agents


def test_errors_of_all_agents_by_motion(
    line: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "rows.csv"
    words = (
        "--model",
        "constant_velocity",
        "--store",
        line / "store",
        "--agents",
        "all",
        "--csv",
        table,
    )
    assert run("evaluate", *words) == 0
    rows = pd.read_csv(table)
    brief = rows.history_s < 0.95
    standing = rows[(rows.history_m < 0.5) & (rows.future_m < 0.5) & ~brief]
    assert 0 < len(standing) < len(rows) and brief.any()
    lines = capsys.readouterr().out.splitlines()
    assert sum(int(text.split()[-6]) for text in lines if " brief " in text) == brief.sum()
    printed = [text.split()[-6:] for text in lines if " standing " in text]  # by type
    counts, *metrics = np.array(printed, float).T
    assert counts.sum() == len(standing)
    assert (
        set(rows.manoeuvre) <= {kind.label for kind in Manoeuvre} and rows.manoeuvre.nunique() > 1
    )
    expected = [
        *standing[["minADE6", "minFDE6", "MR6", "minFDE1"]].mean(),
        (standing.minFDE1 <= 0.5).mean(),
    ]
    assert [np.average(values, weights=counts) for values in metrics] == pytest.approx(
        expected, abs=1e-3
    )


def test_real_argoverse2(real_data: Path, line: Path, tmp_path: Path) -> None:
    store, who = tmp_path / "store", ("--checkpoint", line / "run" / "best.ckpt")
    assert run("preprocess", "argoverse2", real_data / "argoverse2", store, "--workers", 1) == 0
    assert run("store", "verify", store) == 0
    assert run("evaluate", *who, "--store", store, "--json", tmp_path / "j") == 0
    for split in ("val", "test"):
        out = tmp_path / f"{split}.parquet"
        assert run("predict", *who, "--store", store, "--split", split, "--out", out) == 0
        assert run("plot", store, "--forecasts", out, "--random", 9, "--out", tmp_path / split) == 0
        folders = {path.name for path in (real_data / "argoverse2" / split).iterdir()}
        assert {path.stem for path in (tmp_path / split).iterdir()} == folders
        assert set(pd.read_parquet(out).scenario_id) == folders
    expected, metrics = (
        score(real_data / "argoverse2" / "val", out.with_stem("val")),
        json.loads((tmp_path / "j").read_text()),
    )
    assert {name: metrics[name] for name in NAMES} == pytest.approx(
        {name: expected[name] for name in NAMES}, abs=1e-4
    )


def test_the_demo_runs_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = ("demo", "--out", tmp_path / "demo", "--scenes", 4, "--epochs")
    for _ in range(2):
        assert run(*demo, 1) == 0
    assert "SE2Former" in capsys.readouterr().out.splitlines()[-4]
    assert len(list((tmp_path / "demo" / "pictures").iterdir())) >= 1
    assert run(*demo, 2) == 1
    assert "arguments.json: this folder was made with" in capsys.readouterr().err


@pytest.mark.parametrize(
    "other",
    [("--scenes", 13, "--seed", 5), ("--scenes", 12), ("--scenes", 12, "--seed", 5, "--branches")],
)
def test_simulated_traffic_has_one_set_of_arguments(
    line: Path, capsys: pytest.CaptureFixture[str], other: Any
) -> None:
    assert run("synthesize", line / "raw", *other) == 1
    assert "raw/arguments.json: this folder was made with" in capsys.readouterr().err


def test_the_program_itself(tmp_path: Path) -> None:
    for words, code, lines in ((["--help"], 0, 0), (["store", "info", "nowhere"], 1, 1)):
        done = run_python("-m", "trajformer.cli", *words, cwd=tmp_path)
        assert (done.returncode, len(done.stderr.splitlines())) == (code, lines), done.stderr
    command = [sys.executable, "-m", "trajformer.cli", "recipes"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as running:
        assert running.stdout and running.stderr
        running.stdout.close()
        assert (running.stderr.read(), running.wait()) == (b"", 141)  # a closed output is no error


def test_plot_selects_the_split_of_the_forecasts(tmp_path: Path) -> None:
    """Ids of Argoverse 1 recur between splits, so one common scene does not decide."""
    for split, ids in {"test_obs": ("1", "2"), "val": ("1", "3", "4")}.items():
        scenes = [make_scene(3, seed=int(i), scene_id=i) for i in ids]
        write_shard(shard_path(tmp_path, split, 0), scenes, ShardInfo(source="test", split=split))
    assert split_of(tmp_path, ["1", "3", "4"]) == "val"
    assert split_of(tmp_path, ["1", "2"]) == "test_obs"
    assert split_of(tmp_path, ["1"]) == "val"


def test_options_without_a_result_say_what_is_missing(
    line: Path, tmp_path: Path, fails: Callable[..., str]
) -> None:
    forecasts, store = tmp_path / "f.parquet", line / "store"
    assert run("predict", "--model", "constant_velocity", "--store", store, "--out", forecasts) == 0
    plot = ("plot", store, "--split", "train", "--forecasts", forecasts, "--out", tmp_path / "p")
    for words in (plot, (*plot, "--worst", 1)):
        assert fails(*words).endswith(
            f"no forecast of a scene in split 'train' of {store}; leave out --split\n"
        )
    scene = replace(make_scene(3), agent_role=np.ones(3, np.uint8))
    write_shard(
        shard_path(tmp_path / "s", "val", 0), [scene], ShardInfo(source="test", split="val")
    )
    write_manifest(tmp_path / "s")
    words = (
        "evaluate",
        "--model",
        "constant_velocity",
        "--store",
        tmp_path / "s",
        "--agents",
        "focal",
    )
    assert "split 'val': has no agent of the kind --agents focal" in fails(*words)
    name = "se2former_argoverse1"
    assert f"{name}: no such checkpoint; did you mean pretrained:{name}?" in fails(
        "evaluate", "--checkpoint", name, "--store", store
    )
    assert "nowhere: no run to resume there; correct --out" in fails(
        "train", "--resume", "--out", "nowhere"
    )
