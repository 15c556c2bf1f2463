"""The split of commands without --split: own recordings have one, of any name."""

from pathlib import Path

import pytest
from support.cli import error_line, run

from trajformer.scenes.files import lock_folder
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.testing.scenes import example_scenes

MODEL = ("--model", "constant_velocity", "--accelerator", "cpu", "--agents", "all")


def write_split(store: Path, split: str) -> None:
    scenes = example_scenes((5, 7), 20, 30)
    write_shard(shard_path(store, split, 0), scenes, ShardInfo("synthetic", split))
    with lock_folder(store):
        write_manifest(store)


@pytest.mark.parametrize("workers", [(), ("--workers", 2)])
def test_the_only_split_of_a_store_is_found(tmp_path: Path, workers: tuple[object, ...]) -> None:
    store = tmp_path / "own"
    write_split(store, "all")
    forecasts, evaluated, scored = (tmp_path / name for name in ("f.parquet", "e.json", "s.json"))
    given = ("--store", store, *workers)
    assert run("predict", *MODEL, *given, "--out", forecasts) == 0
    assert run("evaluate", *MODEL, *given, "--json", evaluated) == 0
    score = ("score", forecasts, "--agents", "all", *given)
    assert run(*score, "--json", scored) == 0
    assert evaluated.exists()
    assert scored.exists()
    page = tmp_path / "report.html"
    report = ("report", forecasts, "--agents", "all", "--store", store, "--details", "dynamics")
    assert run(*report, "--out", page) == 0
    assert "split all" in page.read_text()


def test_of_several_splits_it_is_val(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "own"
    for split in ("morning", "noon"):
        write_split(store, split)
    evaluate = ("evaluate", *MODEL, "--store", store)
    message = error_line(capsys, *evaluate)
    assert "no split 'val' (splits here: morning, noon)" in message
    write_split(store, "val")
    assert run(*evaluate) == 0
