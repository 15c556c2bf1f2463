"""User errors and damaged files give one line with the file and the field, a non-zero exit status and no traceback."""

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from support import fixtures
from support.cli import Evil, run
from support.scenes import make_scene
from support.training import recipe

from trajformer.recipes.plain import to_plain
from trajformer.scenes.manifest import write_manifest
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.training.forecasting import TASK
from trajformer.training.run import train

Fails = Callable[..., str]


def make_store(root: Path, num_future: int = 12) -> Path:
    """A store with three train scenes, two val scenes and a test scene without a future."""
    for split, seeds in (("train", range(3)), ("val", range(3, 5)), ("test", range(5, 6))):
        scenes = [make_scene(6, num_future=num_future, seed=seed, with_future=split != "test") for seed in seeds]
        write_shard(shard_path(root, split, 0), [replace(scene, split=split) for scene in scenes], ShardInfo("synthetic", split))
    write_manifest(root)
    return root


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with store/, longer/ (another horizon), run/best.ckpt and recipe.yaml, all valid."""
    folder = tmp_path_factory.mktemp("sound")
    config = recipe(make_store(folder / "store"), trainer={"epochs": 1})
    train(config, TASK, folder / "run", progress=False)
    make_store(folder / "longer", num_future=14)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(to_plain(config)))
    return folder


# ---- stores ----------------------------------------------------------------------------------------------------------


def test_a_store_of_another_version(sound: Path, tmp_path: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        for name in ("trajformer.scenes.shard.SCHEMA_VERSION", "trajformer.scenes.manifest.SCHEMA_VERSION"):
            patch.setattr(name, 7)
        info = ShardInfo("synthetic", "val", schema_version=7)
        write_shard(shard_path(tmp_path / "new", "val", 0), [make_scene(3)], info)
        write_manifest(tmp_path / "new")
    for words in (("store", "info", "new"), ("store", "verify", "new")):
        assert "new/manifest.json: schema_version 7, this software reads 2" in fails(*words)
    for words in (("evaluate", "--model", "constant_velocity", "--store", "new"), ("plot", "new", "--out", "p")):
        assert "new/val/00000.arrow: schema version 7, this software reads 2" in fails(*words)


def test_a_shard_cut_short_or_missing(sound: Path, tmp_path: Path, fails: Fails) -> None:
    shutil.copytree(sound / "store", tmp_path / "cut")
    path = tmp_path / "cut" / "val" / "00000.arrow"
    path.write_bytes(path.read_bytes()[:-100])
    evaluate = ("evaluate", "--model", "constant_velocity", "--store", "cut")
    for words in (evaluate, ("store", "verify", "cut")):
        assert "cut/val/00000.arrow: not a readable shard (truncated or damaged)" in fails(*words)
    path.unlink()
    assert "listed in the manifest but missing" in fails("store", "verify", "cut")
    assert "cut: no split 'val' (splits here: test, train)" in fails(*evaluate)
    (tmp_path / "cut" / "manifest.json").write_text("[]")
    assert "cut/manifest.json: schema_version None" in fails("store", "info", "cut")


def test_missing_stores_and_splits(sound: Path, fails: Fails) -> None:
    constant, store = ("--model", "constant_velocity", "--store"), sound / "store"
    for words in (("evaluate", *constant, "nowhere"), ("store", "info", "nowhere"), ("plot", "nowhere", "--out", "p")):
        assert "nowhere: no such store" in fails(*words)
    assert "no split 'moon' (splits here: test, train, val)" in fails("evaluate", *constant, store, "--split", "moon")
    assert "split 'test' has no known future to score against" in fails("evaluate", *constant, store, "--split", "test")
    assert "data.train: give a store" in fails("train", "--config", sound / "recipe.yaml", "--data.train", "", "--out", "r")
    train_on = ("train", "--config", sound / "recipe.yaml", "--out", "r")
    assert "nowhere: no such store" in fails(*train_on, "--data.val", "nowhere")
    assert "split 'test' has no known future" in fails(*train_on, "--data.train_split", "test")


def test_another_horizon(sound: Path, fails: Fails) -> None:
    store, best = sound / "longer", sound / "run" / "best.ckpt"
    for words in (("evaluate",), ("predict", "--out", "f.parquet")):
        text = fails(*words, "--checkpoint", best, "--store", store)
        assert f"{store}: split 'val': num_future 14, but the training scenes have 12; convert it: trajformer store" in text
    assert not Path("f.parquet").exists()
    run("predict", "--checkpoint", best, "--store", sound / "store", "--out", "f.parquet")
    assert "has no track" in fails("plot", store, "--forecasts", wrong_track(Path("f.parquet")), "--out", "p")
    assert "12 steps, the scene has 14" in fails("plot", store, "--forecasts", "f.parquet", "--out", "p")


def wrong_track(path: Path) -> Path:
    """The same forecasts for tracks that do not exist."""
    table = pd.read_parquet(path)
    table["track_id"] = "x" + table.track_id
    table.to_parquet("wrong.parquet")
    return Path("wrong.parquet")


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_files_that_are_not_checkpoints(sound: Path, fails: Fails) -> None:
    whole = (sound / "run" / "best.ckpt").read_bytes()
    Path("text").write_text("hello\n" * 9)
    Path("empty").touch()
    Path("cut").write_bytes(whole[: len(whole) // 2])
    with zipfile.ZipFile("archive", "w") as archive:
        archive.writestr("a", "b")
    torch.save({"weights": torch.ones(2)}, "other")
    torch.save(torch.ones(2), "tensor")
    torch.save({"trajformer": Evil(), "state_dict": {}}, "evil")
    Path("pickle").write_bytes(pickle.dumps(Evil()))
    for name in ("text", "empty", "cut", "archive", "evil", "pickle"):
        line = fails("evaluate", "--checkpoint", name, "--store", sound / "store")
        assert f"{name}: not a readable checkpoint" in line
    for name in ("other", "tensor"):
        line = fails("predict", "--checkpoint", name, "--store", sound / "store", "--out", "f")
        assert f"{name}: not a trajformer checkpoint" in line
    assert "nothing: no such checkpoint" in fails("evaluate", "--checkpoint", "nothing", "--store", sound / "store")
    assert not Path("executed").exists()


def test_checkpoints_that_do_not_fit(sound: Path, fails: Fails) -> None:
    def broken(change: Callable[[dict], object]) -> str:
        raw = torch.load(sound / "run" / "best.ckpt", weights_only=True)
        change(raw)
        torch.save(raw, "broken")
        return fails("evaluate", "--checkpoint", "broken", "--store", sound / "store")

    state, model = "state_dict", "mmtransformer"
    assert "broken: recipe and weights do not fit" in (text := broken(lambda raw: raw[state].popitem()))
    assert "Missing key" in text
    assert "size mismatch for position" in broken(lambda raw: raw[state].update({"model.position": torch.ones(1)}))
    config = lambda raw: raw["trajformer"]["config"]["model"][model]  # noqa: E731
    assert "unknown field 'speed'" in broken(lambda raw: config(raw).update(speed=3))
    assert "model.mmtransformer.proposals: expected" in broken(lambda raw: config(raw).update(proposals="six"))
    assert "heads 5 does not divide width 16" in broken(lambda raw: config(raw)["block"].update(heads=5))
    assert "broken: " in broken(lambda raw: raw.update(trajformer=3))
    assert "either --checkpoint CKPT or --model" in fails("evaluate", "--store", sound / "store")


# ---- numbers, raw data, pictures, outputs ---------------------------------------------------------------------------


def test_numbers_on_the_command_line(sound: Path, fails: Fails) -> None:
    assert "workers: Not of type PositiveInt" in fails("preprocess", "argoverse2", "raw", "s", "--workers", 0)
    assert "seed: Not of type" in fails("synthesize", "raw", "--seed", -1)
    assert "batch_size" in fails("evaluate", "--model", "constant_velocity", "--store", sound / "store", "--batch-size", 0)
    assert "invalid choice: 'waymo'" in fails("preprocess", "waymo", "raw", "s")


def test_bad_scenes_are_listed_and_the_rest_is_kept(fails: Fails, capsys: pytest.CaptureFixture[str]) -> None:
    raw = Path("raw")
    for number in range(4):
        fixtures.write_argoverse2(raw, uuid=str(number))
    (raw / "val" / "1" / "scenario_1.parquet").write_text("no parquet")
    (raw / "val" / "2" / "log_map_archive_2.json").write_text("{")
    columns = fixtures.argoverse2_columns()
    columns["heading"][5] = float("nan")
    fixtures.write_argoverse2(raw, columns, uuid="4")
    preprocess = ("preprocess", "argoverse2", raw, "store", "--workers", 1)
    assert run(*preprocess) == 0
    text = capsys.readouterr().out
    assert "val: 2 scenes" in text and "3 skipped" in text
    for number, reason in ((1, "not a readable parquet"), (2, "log_map_archive_2.json"), (4, "heading: NaN or infinity")):
        [line] = [line for line in text.splitlines() if f"skipped val/{number}/" in line]
        assert reason in line
    assert run("store", "info", "store") == 0
    assert capsys.readouterr().out.count("    skipped ") == 3
    assert "scenario_1.parquet: not a readable parquet file" in fails(*preprocess[:3], "strict", "--strict", "--workers", 1)
    shutil.rmtree(raw / "val" / "0")
    shutil.rmtree(raw / "val" / "3")
    assert "split 'val': no usable scene (the first of 3: " in fails(*preprocess[:3], "none", "--workers", 1)
    assert "nowhere: no such folder" in fails("preprocess", "argoverse2", "nowhere", "s")
    assert "raw: not a argoverse1 folder (expected RAW/" in fails("preprocess", "argoverse1", raw, "s")
    assert "raw: no split 'moon'" in fails(*preprocess, "--split", "moon")


def test_plots_of_missing_scenes_and_forecasts(sound: Path, fails: Fails) -> None:
    plot = ("plot", sound / "store", "--out", "p")
    assert "no scene moon in any split" in fails(*plot, "--scene", "moon")
    assert "no scene moon in split 'val'" in fails(*plot, "--scene", "moon", "--split", "val")
    assert "--worst needs --forecasts" in fails(*plot, "--worst", 2)
    assert "nothing: no such file" in fails(*plot, "--forecasts", "nothing")
    Path("text").write_text("hello")
    assert "text: not a readable parquet file" in fails(*plot, "--forecasts", "text")
    pd.DataFrame({"scenario_id": ["a"]}).to_parquet("table")
    assert "table: not a forecast file: no column track_id" in fails(*plot, "--forecasts", "table")
    run("predict", "--model", "constant_velocity", "--store", sound / "store", "--split", "test", "--out", "f")
    assert "no scene to draw" in fails(*plot, "--forecasts", "f", "--worst", 1)  # scenes without a future have no error


def test_outputs_that_cannot_be_written(sound: Path, fails: Fails) -> None:
    Path("file").touch()
    fixtures.write_argoverse2(Path("raw"))
    who = ("--model", "constant_velocity", "--store", sound / "store")
    commands = [
        ("synthesize", "file", "--scenes", 1),
        ("synthesize", "file/out", "--scenes", 1),
        ("preprocess", "argoverse2", "raw", "file/out"),
        ("train", "--config", sound / "recipe.yaml", "--out", "file/out"),
        ("evaluate", *who, "--json", "file/out"),
        ("evaluate", *who, "--csv", "file/out"),
        ("predict", *who, "--out", "file/out"),
        ("plot", sound / "store", "--out", "file/out"),
        ("demo", "--out", "file/out"),
    ]
    for words in commands:
        line = fails(*words)
        assert "file" in line and ("cannot be written" in line or "Not a directory" in line or "File exists" in line), line
    assert "raw: cannot be written: is a folder" in fails("predict", *who, "--out", "raw")
    assert json.loads((sound / "store" / "manifest.json").read_text())["schema_version"] == 2
