"""`evaluate` and `score` in parts: the same result for any number of processes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.cli import error_line, run
from support.fixtures import argoverse1_folder
from support.scenes import make_scene

from trajformer.cli import kept_parts, parts
from trajformer.cli.kept_parts import parts_folder
from trajformer.cli.parts import Job
from trajformer.evaluation.evaluate import evaluate
from trajformer.evaluation.parts import Part
from trajformer.recipes.checkpoint import load_predictor
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore

MODEL = ("--model", "constant_velocity", "--accelerator", "cpu")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole part, and a second one of a few scenes."""
    root = tmp_path_factory.mktemp("store")
    scenes = []
    for number in range(280):
        scenes.append(make_scene(4, 4, 5, seed=number % 7, scene_id=f"s{number}"))
    write_shard(shard_path(root, "val", 0), scenes, ShardInfo("synthetic", "val"))
    write_manifest(root)
    return root


def files_of(store: Path, out: Path, *more: object) -> list[bytes]:
    """The outputs of `evaluate`."""
    results = []
    words = ["evaluate", *MODEL, "--store", store, "--details", "dynamics", *more]
    files = {"--json": out.with_suffix(".json"), "--csv": out.with_suffix(".csv")}
    assert run(*words, *[word for pair in files.items() for word in pair]) == 0
    for path in files.values():
        results.append(path.read_bytes())
    return results


def test_metrics_are_the_same_for_any_number_of_processes(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = files_of(store, tmp_path / "one", "--workers", 1)
    two = files_of(store, tmp_path / "two", "--workers", 2)
    assert one == two
    assert capsys.readouterr().err == ""

    expected = evaluate(load_predictor("constant_velocity"), SceneStore(store, "val"))
    metrics = json.loads(one[0])
    assert expected.metrics["num_agents"] == metrics["num_agents"] > 280
    for name in ("minADE6", "minFDE6", "MR6", "p99_jerk", "recorded_p99_acceleration"):
        assert metrics[name] == pytest.approx(expected.metrics[name], rel=1e-12)


def test_one_worker_is_the_process_of_the_command(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(parts, "ProcessPoolExecutor")
    files_of(store, tmp_path / "one", "--workers", 1)


def test_scores_of_files_are_the_same_for_any_number_of_processes(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.parquet"
    assert run("predict", *MODEL, "--store", store, "--agents", "all", "--out", file) == 0
    table = pd.read_parquet(file)
    # Agents without a forecast in both parts, and forecasts of a scene that is not in the split.
    missing = (table.scenario_id.isin(["s3", "s270"])) & (table.track_id == table.track_id[0])
    table.loc[table.scenario_id == "s5", "scenario_id"] = "nowhere"
    table[~missing].to_parquet(tmp_path / "g.parquet")
    capsys.readouterr()
    results = []
    for name, more in {"plain": [], "one": ["--workers", 1], "two": ["--workers", 2]}.items():
        out = tmp_path / f"{name}.json"
        words = ("score", tmp_path / "g.parquet", "--store", store, "--by", "type", *more)
        assert run(*words, "--json", out, "--csv", out.with_suffix(".csv")) == 0
        printed = capsys.readouterr()
        results.append((out.read_bytes(), out.with_suffix(".csv").read_bytes(), printed.out))
        assert printed.err == ""
    assert results[0] == results[1] == results[2]
    findings = {one["kind"]: one["count"] for one in json.loads(results[0][0])["findings"]}
    assert findings["missing"] > 2
    assert findings["unknown scene"] >= 4


def interrupted(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    """Run a command that is interrupted after its first part."""
    whole = kept_parts.run_parts

    def stopped(args: Any, source: Any, jobs: dict[Part, Job], done: int) -> Iterator[Any]:
        yield next(iter(whole(args, source, dict(list(jobs.items())[:1]), done)))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kept_parts, "run_parts", stopped)
        assert run(*words) != 0


@pytest.mark.parametrize("command", ["evaluate", "score"])
def test_an_interrupted_run_keeps_its_parts(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    words: list[object] = [command, "--store", store, "--by", "type"]
    if command == "evaluate":
        words += [*MODEL, "--details", "dynamics"]
    else:
        file = tmp_path / "f.parquet"
        assert run("predict", *MODEL, "--store", store, "--agents", "all", "--out", file) == 0
        words += [file]
    out = tmp_path / "m.json"
    words += ["--json", out, "--workers"]
    interrupted(monkeypatch, *words, 1)
    folder = parts_folder(out) / "0"
    assert not out.exists() and len(list(folder.glob("*.pt"))) == 1

    line = error_line(capsys, *words, 1, "--agents", "focal")
    assert f"{folder}: has parts of an interrupted run with another model" in line
    [part] = folder.glob("*.pt")
    content = part.read_bytes()
    part.write_bytes(content[:-100])
    assert f"{part}: cannot be read; remove this file" in error_line(capsys, *words, 1)
    part.write_bytes(content)

    seen: list[tuple[int, int]] = []
    whole = kept_parts.run_parts

    def counted(args: Any, source: Any, jobs: dict[Part, Job], done: int) -> Iterator[Any]:
        seen.append((len(jobs), done))
        yield from whole(args, source, jobs, done)

    monkeypatch.setattr(kept_parts, "run_parts", counted)
    assert run(*words, 1) == 0
    assert seen == [(1, 256)]
    assert not parts_folder(out).exists()
    once = tmp_path / "once.json"
    assert run(*[once if word == out else word for word in words], 1) == 0
    assert once.read_bytes() == out.read_bytes()


def test_raw_data_are_scored_by_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argoverse1_folder(tmp_path / "raw", sequences=1)
    words = ("score", "f.csv", "--raw", "argoverse1", tmp_path / "raw", "--split", "train")
    line = error_line(capsys, *words, "--workers", 2)
    assert "--workers, --cluster: are for --store" in line


def test_options_that_do_not_fit_are_refused(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_line(capsys, "evaluate", *MODEL, "--store", store, "--ray-address", "auto")
    assert "--ray-address: is for --cluster ray" in line
