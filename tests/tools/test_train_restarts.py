"""Training with restarts: the parts, the mean of their weights, a second call, and refused options."""

import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import train_restarts
import yaml
from support.training import recipe, training_store

from trajformer.recipes.plain import to_plain


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of four and two scenes, and a recipe for a second of processor time."""
    root = tmp_path_factory.mktemp("restarts")
    training_store(root / "store", 4, 2)
    plain: dict[str, Any] = to_plain(recipe(root / "store"))
    plain["trainer"] |= {"minutes": 0.01, "threads": 1}
    plain["optim"] |= {"learning_rate": 1e-3, "muon_rate": 2e-3}
    (root / "recipe.yaml").write_text(yaml.safe_dump(plain))
    return root


def train(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Exit status of the tool with two restarts and one seed, 3."""
    where = [
        f"--config={folder / 'recipe.yaml'}",
        f"--store={folder / 'store'}",
        f"--out={folder / 'out'}",
    ]
    length = ["--restarts=2", "--average=2", "--seeds=3", "--jobs=1"]
    monkeypatch.setattr(train_restarts, "MINUTES", 0.005)
    monkeypatch.setattr(sys, "argv", ["train_restarts", *where, *length, *words])
    return train_restarts.main()


def test_the_mean_of_the_last_parts_is_scored(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    assert train(folder, monkeypatch) == 0
    out = folder / "out" / "seed3"
    recipes = [
        yaml.safe_load((out / f"part{part}" / "recipe.yaml").read_text()) for part in range(3)
    ]
    assert [one["seed"] for one in recipes] == [3, 13, 23]
    assert [one["init"] for one in recipes] == [
        "",
        *(str(out / f"part{part}" / "last.ckpt") for part in range(2)),
    ]
    assert [one["trainer"]["minutes"] for one in recipes] == [0.01, 0.005, 0.005]
    assert [one["optim"]["learning_rate"] for one in recipes] == [1e-3, 5e-4, 5e-4]
    assert [one["optim"]["muon_rate"] for one in recipes] == [2e-3, 1e-3, 1e-3]
    files = [
        out / "part1" / "last.ckpt",
        out / "part2" / "last.ckpt",
        out / "mean_1_2" / "mean.ckpt",
    ]
    first, second, mean = (torch.load(file, weights_only=True)["state_dict"] for file in files)
    assert all(
        torch.allclose(mean[name], (first[name] + second[name]) / 2, atol=1e-6) for name in mean
    )
    assert any(not torch.equal(first[name], second[name]) for name in mean)
    text = capfd.readouterr().out
    assert "part1: 0.005 processor minutes, progress in log.txt\n" in text
    assert "parts 1 to 2, 0.02 processor minutes in all" in text

    assert train(folder, monkeypatch) == 0  # everything is done
    again = capfd.readouterr().out
    assert "progress in log.txt" not in again and again.splitlines()[-4:] == text.splitlines()[-4:]

    training_store(folder / "other", 3, 2)
    assert train(folder, monkeypatch, f"--store={folder / 'other'}") == 1
    line = f"{out / 'part0'}: has a run of another recipe, length or store; remove it or use another --out"
    assert line in capfd.readouterr().err


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Parts and means in the order in which they were made, without a training."""
    made: list[str] = []

    def train_all(trainings: list[Any], jobs: int) -> dict[Any, str]:
        for one in trainings:
            one.folder.mkdir(parents=True, exist_ok=True)
            one.write_record(done=True)
            one.checkpoint.touch()
            made.append(one.folder.name)
        return {}

    def average(words: list[str], **_: bool) -> None:
        Path(words[words.index("--out") + 1]).touch()
        made.append("mean")

    monkeypatch.setattr(train_restarts, "train_all", train_all)
    monkeypatch.setattr(train_restarts, "subprocess", SimpleNamespace(run=average))
    monkeypatch.setattr(train_restarts, "score", lambda *_: {"scores": {"minADE6": 1.0}})
    return made


def test_parts_after_a_part_that_is_trained_again_are_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trained: list[str]
) -> None:
    """A later call trains part 1 again: part 2 and the mean came from other weights."""
    out = f"--out={tmp_path / 'out'}"
    assert train(folder, monkeypatch, out) == train(folder, monkeypatch, out) == 0
    assert trained == ["part0", "part1", "part2", "mean"]
    shutil.rmtree(tmp_path / "out" / "seed3" / "part1")
    assert train(folder, monkeypatch, out) == 0
    assert trained[4:] == ["part1", "part2", "mean"]
    assert train(folder, monkeypatch, out, "--restarts=3") == 0
    assert (
        trained[7:] == ["part3", "mean"]
        and (tmp_path / "out" / "seed3" / "mean_1_2" / "mean.ckpt").exists()
    )


def test_a_recipe_with_epochs_is_continued_for_a_third_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trained: list[str], capfd: Any
) -> None:
    """A newer part makes a new mean."""
    words = [f"--out={tmp_path / 'out'}", "--trainer.minutes=null", "--trainer.epochs=7"]
    assert train(folder, monkeypatch, *words) == 0
    parts = [tmp_path / "out" / "seed3" / f"part{part}" for part in range(3)]
    recipes = [json.loads((part / "run.json").read_text())["recipe"] for part in parts]
    assert [one["trainer"]["epochs"] for one in recipes] == [7, 2, 2] and {
        one["trainer"]["minutes"] for one in recipes
    } == {None}
    assert "parts 1 to 2, 11 epochs in all" in capfd.readouterr().out
    metrics, newer = tmp_path / "out" / "seed3" / "mean_1_2" / "scores.json", parts[2] / "last.ckpt"
    metrics.touch()  # of the mean before
    os.utime(newer, (newer.stat().st_atime, newer.stat().st_mtime + 60))
    assert train(folder, monkeypatch, *words) == 0 and trained == [
        "part0",
        "part1",
        "part2",
        "mean",
        "mean",
    ]
    assert not metrics.exists()


def test_each_seed_begins_with_its_own_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trained: list[str]
) -> None:
    words = [f"--out={tmp_path / 'out'}", "--init=pre{seed}/last.ckpt", "--seeds", "3", "4"]
    assert train(folder, monkeypatch, *words) == 0
    for seed in (3, 4):
        parts = [tmp_path / "out" / f"seed{seed}" / f"part{part}" for part in range(3)]
        recipes = [json.loads((part / "run.json").read_text())["recipe"] for part in parts]
        assert [one["init"] for one in recipes] == [
            f"pre{seed}/last.ckpt",
            *(str(part / "last.ckpt") for part in parts[:2]),
        ]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--average=3"], "--average 3: expected 2 to 2, the number of --restarts"),
        (
            ["--trainer.epochs=3"],
            "--trainer.epochs: the length is trainer.minutes; add --trainer.minutes null for epochs",
        ),
        (
            ["--trainer.minutes=null", "--minutes=3"],
            "--minutes: the recipe has epochs, and its restarts take a third of them",
        ),
        (["--seed", "7"], "--seed: this tool sets the field; leave it out"),
        (
            ["--sedes", "7", "8"],
            "--sedes: neither an option of this tool nor a field of a recipe (--trainer.minutes)",
        ),
        (
            ["--trainer.minutes"],
            "--trainer.minutes: expected a field of the recipe and its value, --optim.clip 1.0",
        ),
    ],
)
def test_options_without_a_meaning_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any, words: list[str], line: str
) -> None:
    assert train(folder, monkeypatch, *words) == 1
    assert line in capfd.readouterr().err
