"""`predict --workers`: the same forecasts for any number of processes, and after interruptions."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli import error_line, run
from support.scenes import make_scene

from trajformer.cli import predict as command
from trajformer.cli.kept_parts import parts_folder
from trajformer.cli.parts import Job
from trajformer.evaluation.parts import Part
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two whole parts and a third one of a few scenes."""
    root = tmp_path_factory.mktemp("store")
    number = 0
    for shard in range(3):
        scenes = []
        for _ in range(180):
            scenes.append(make_scene(4, 4, 3, seed=number % 5, scene_id=f"s{number}"))
            number += 1
        write_shard(shard_path(root, "val", shard), scenes, ShardInfo("synthetic", "val"))
    write_manifest(root)
    return root


def predict(store: Path, out: Path, *more: object) -> list[object]:
    model = ["--model", "constant_velocity", "--accelerator", "cpu"]
    return ["predict", *model, "--store", store, "--out", out, *more]


def test_forecasts_are_the_same_for_any_number_of_processes(store: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.parquet"
    assert run(*predict(store, plain, "--threads", 1)) == 0
    out = tmp_path / "two.parquet"  # one is in the next test
    assert run(*predict(store, out, "--workers", 2)) == 0
    assert out.read_bytes() == plain.read_bytes()
    assert not parts_folder(out).exists()


def test_an_interrupted_run_keeps_its_parts(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.parquet"
    whole = command.run_parts

    def stopped(
        args: Any, source: Any, missing: dict[Part, Job], done: int
    ) -> Iterator[tuple[Part, Any]]:
        yield from whole(args, source, dict(list(missing.items())[:2]), done)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command, "run_parts", stopped)
        assert run(*predict(store, out, "--workers", 1)) != 0
    assert not out.exists()
    folder = parts_folder(out)
    made = {path: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}
    assert len(made) == 2

    line = error_line(capsys, *predict(store, out, "--workers", 1, "--batch-size", 16))
    assert "has parts of an interrupted run with another model, store or option" in line

    seen: list[int] = []

    def counted(
        args: Any, source: Any, missing: dict[Part, Job], done: int
    ) -> Iterator[tuple[Part, Any]]:
        seen.append(len(missing))
        assert {path: path.stat().st_mtime_ns for path in made} == made
        yield from whole(args, source, missing, done)

    monkeypatch.setattr(command, "run_parts", counted)
    assert run(*predict(store, out, "--workers", 2)) == 0
    assert seen == [1]
    plain = tmp_path / "plain.parquet"
    assert run(*predict(store, plain, "--threads", 1)) == 0
    assert out.read_bytes() == plain.read_bytes()
