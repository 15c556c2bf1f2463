"""Image classification as a user drives it: pictures in folders, training, scores, names; digits; another picture size."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from support.cli import run

from trajformer.core.blocks import BlockConfig
from trajformer.errors import CheckpointError, TrajformerError
from trajformer.heads.images import ImageAugmentConfig
from trajformer.heads.vit.data import ImageDataConfig, load_digits, load_split
from trajformer.heads.vit.model import ViTConfig
from trajformer.heads.vit.task import TASK, ClassificationModule, ClassificationRecipe, start_from
from trajformer.recipes.checkpoint import load_checkpoint, write_checkpoint
from trajformer.recipes.recipe import OptimConfig, TrainerConfig
from trajformer.training.run import train

RECIPE = Path(__file__).parents[2] / "configs" / "heads" / "vit_digits.yaml"
CORNERS = ("lower left", "lower right", "upper left", "upper right")
BLOCK = BlockConfig(width=32, heads=2, feedforward=32, dropout=0.0, activation="gelu")


def corner(name: str, rng: np.random.Generator, size: int = 16) -> np.ndarray:
    """A noisy picture [size, size, 3] that is bright in one corner: only the place tells the classes apart."""
    image = rng.integers(0, 90, (size, size, 3))
    half = size // 2
    rows, columns = (
        slice(0, half) if "upper" in name else slice(half, None),
        slice(0, half) if "left" in name else slice(half, None),
    )
    image[rows, columns] += 100
    return image.astype(np.uint8)


@pytest.fixture(scope="module")
def corners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of 16 x 16 pixels of four classes: 12 of each to train on, 3 to validate, 5 to test."""
    root, rng = tmp_path_factory.mktemp("corners"), np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 3), ("test", 5)):
        for name in CORNERS:
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(corner(name, rng)).save(folder / f"{index}.png")
    return root


def recipe(root: Path, **changes: Any) -> ClassificationRecipe:
    """A tiny recipe for the four corners."""
    config = ClassificationRecipe(
        model=ViTConfig(16, 4, 3, 4, 2, BLOCK),
        data=ImageDataConfig("folder", str(root), batch_size=16),
        augment=ImageAugmentConfig(shift=0.05),
        optim=OptimConfig(learning_rate=5e-3),
        trainer=TrainerConfig(epochs=12, threads=1, accelerator="cpu", validate_every=4),
    )
    return replace(config, **changes)


@pytest.fixture(scope="module")
def checkpoint(corners: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of corners."""
    return train(recipe(corners), TASK, tmp_path_factory.mktemp("run") / "run", progress=False)


def test_a_trained_classifier_names_the_test_pictures(checkpoint: Path, corners: Path, capsys: Any) -> None:
    assert run("classify", "--checkpoint", checkpoint, "--split", "test") == 0
    assert re.match(
        rf"{corners}: test: 20 images, accuracy 100\.00% \(0 wrong\), cross-entropy 0\.\d+\n$", capsys.readouterr().out
    )
    files = [corners / "test" / name / "0.png" for name in CORNERS]
    assert run("classify", "--checkpoint", checkpoint, *files, "--top", 2) == 0
    lines = capsys.readouterr().out.splitlines()
    for line, path, name in zip(lines, files, CORNERS, strict=True):
        words = line.split("  ")
        assert words[0] == str(path) and words[1].startswith(name) and len(words) == 3
        assert [float(word.rsplit(" ", 1)[1]) for word in words[1:]] == sorted(
            (float(w.rsplit(" ", 1)[1]) for w in words[1:]), reverse=True
        )


def test_mistakes_are_counted_against_the_labels(checkpoint: Path, corners: Path, tmp_path: Path, capsys: Any) -> None:
    """Two of five images are in the folder of another class."""
    for name in CORNERS[:2]:
        (tmp_path / "test" / name).mkdir(parents=True)
    for index in range(4):
        path = tmp_path / "test" / CORNERS[0] / f"{index}.png"
        path.symlink_to(corners / "test" / CORNERS[0 if index < 2 else 3] / f"{index}.png")
    (tmp_path / "test" / CORNERS[1] / "0.png").symlink_to(corners / "test" / CORNERS[1] / "0.png")
    assert run("classify", "--checkpoint", checkpoint, tmp_path, "--split", "test") == 0
    out = capsys.readouterr().out
    assert "5 images, accuracy 60.00% (2 wrong)" in out and "2 of 4 'lower left' classified as 'upper right'" in out


def test_unreadable_pictures_are_listed_and_the_others_classified_and_drawn(
    checkpoint: Path, corners: Path, tmp_path: Path, capsys: Any
) -> None:
    for place, name in enumerate(("a/1.png", "b/1.png", "c.png")):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).symlink_to(corners / "test" / CORNERS[place] / "0.png")
    (tmp_path / "in" / "b" / "broken.png").write_bytes(b"no picture")
    large = Image.fromarray(corner("upper right", np.random.default_rng(1), 50)).convert("L")
    large.save(tmp_path / "in" / "large.jpg")  # of another size, and grey
    words = ("classify", "--checkpoint", checkpoint, tmp_path / "in", "--out", tmp_path / "out", "--batch-size", 2)
    assert run(*words) == 0
    lines = capsys.readouterr().out.splitlines()
    found = {line.split("  ")[0].removeprefix(f"{tmp_path}/in/"): line.split("  ")[1][:-6] for line in lines[:4]}
    assert found == {"a/1.png": CORNERS[0], "b/1.png": CORNERS[1], "c.png": CORNERS[2], "large.jpg": CORNERS[3]}
    assert len(lines) == 5 and lines[4].startswith(f"skipped {tmp_path}/in/b/broken.png: not a readable image")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["1-2.png", "1.png", "c.png", "large.png"]
    assert all(Image.open(path).size == (1080, 390) for path in (tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "give images or folders"),
        (("nowhere.png",), "nowhere.png: no such file or folder"),
        (("EMPTY",), "no images in this folder"),
        (("BROKEN",), "none of the 1 images can be read"),
        (("--split", "all"), "no split 'all' (splits: train, val, test)"),
        (("EMPTY", "--split", "test"), "no such folder; images are expected at"),
        (("a", "b", "--split", "test"), "one folder at most"),
        (("--split", "test", "--out", "pictures"), "--out is for images that are classified"),
    ],
)
def test_what_cannot_be_classified_is_one_line(
    checkpoint: Path, tmp_path: Path, capsys: Any, words: tuple[str, ...], complaint: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").touch()
    places = {"EMPTY": tmp_path / "empty", "BROKEN": tmp_path / "broken.png"}
    assert run("classify", "--checkpoint", checkpoint, *(places.get(word, word) for word in words)) == 1
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1


def test_a_forecasters_checkpoint_is_refused(tmp_path: Path, capsys: Any) -> None:
    torch.save({"trajformer": {"task": "forecasting", "config": {}}, "state_dict": {}}, tmp_path / "a.ckpt")
    assert run("classify", "--checkpoint", tmp_path / "a.ckpt", tmp_path / "a.ckpt") == 1
    assert "holds a model for forecasting, expected one for classification" in capsys.readouterr().err


def accuracy(model: torch.nn.Module, config: ClassificationRecipe, split: str = "test") -> float:
    data = config.load(split)
    batch = data[range(len(data))]
    return float((model(config.prepare(batch.image)).argmax(-1) == batch.label).float().mean())


def test_another_picture_size_keeps_the_accuracy_before_any_further_training(checkpoint: Path, corners: Path) -> None:
    """Of 24 x 24 pixels, six patches in a row instead of four: only positions at the right places tell the corners apart."""
    model = replace(recipe(corners).model, image_size=24)
    config = recipe(corners, model=model, start=str(checkpoint))
    module = ClassificationModule(config).eval()
    assert len(module.model.position()) == 37
    assert accuracy(module.model, config) == 1.0
    with torch.no_grad():  # the same picture, its positions turned upside down
        position = module.model.position.tables[0]
        position[1:] = position[1:].unflatten(0, (6, 6)).flip(0).flatten(0, 1)
    assert accuracy(module.model, config) < 0.3


def test_a_run_goes_on_from_a_checkpoint_of_another_size(checkpoint: Path, corners: Path, tmp_path: Path) -> None:
    yaml = checkpoint.parent / "config.yaml"
    words = ("--config", yaml, "--start", checkpoint, "--model.image_size", 24, "--trainer.epochs", 1)
    assert run("train", *words, "--out", tmp_path / "run") == 0
    found, config = load_checkpoint(tmp_path / "run" / "best.ckpt", ClassificationRecipe)
    assert accuracy(found, config) == 1.0
    assert run("train", *words, "--trainer.epochs", 2, "--out", tmp_path / "run", "--resume") == 0


def test_other_classes_get_a_head_of_zeros_and_the_same_ones_keep_theirs(checkpoint: Path, corners: Path) -> None:
    before, config = load_checkpoint(checkpoint, ClassificationRecipe)
    same = ClassificationModule(replace(config, start=str(checkpoint)))
    torch.testing.assert_close(same.model.head.weight, before.head.weight)
    digits = replace(config, model=replace(config.model, classes=10), labels=(), data=ImageDataConfig(), start=str(checkpoint))
    other = ClassificationModule(digits)
    assert other.config.labels == tuple("0123456789")
    assert not other.model.head.weight.any() and other.model.head.weight.shape == (10, 32)
    torch.testing.assert_close(other.model.patches.weight, before.patches.weight)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"patch_size": 8}, "model.patch_size 4, the recipe 8"),
        ({"layers": 3}, "model.layers 2, the recipe 3"),
        ({"pooling": "mean"}, "model.pooling token, the recipe mean"),
        ({"block": replace(BLOCK, heads=4)}, "model.block.heads 2, the recipe 4"),
        ({"block": replace(BLOCK, dropout=0.5)}, ""),
    ],
)
def test_a_start_of_another_shape_is_refused(checkpoint: Path, corners: Path, change: dict[str, Any], complaint: str) -> None:
    config = recipe(corners, start=str(checkpoint), labels=CORNERS)
    config = replace(config, model=replace(config.model, **change))
    if not complaint:
        start_from(config.build_model(), config)
        return
    with pytest.raises(CheckpointError, match=re.escape(complaint)):
        start_from(config.build_model(), config)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": ViTConfig(16, 4, 3, 5, 2, BLOCK)}, "model.classes: 5, but there are 4: lower left, lower right"),
        ({"model": ViTConfig(16, 4, 2, 4, 2, BLOCK)}, "model.channels: 2"),
        ({"data": ImageDataConfig("folder")}, "data.root: give a folder"),
        ({"data": ImageDataConfig("folder", "nowhere")}, "nowhere/train: no such folder"),
        ({"smoothing": 1.0}, "smoothing: 1.0"),
        ({"model": ViTConfig(16, 4, 1, 10, 2, BLOCK), "data": ImageDataConfig(normalise="imagenet")}, "data.normalise"),
        ({"model": ViTConfig(18, 4, 3, 4, 2, BLOCK)}, "image_size 18 is no multiple of patch_size 4"),
        ({"model": ViTConfig(16, 0, 3, 4, 2, BLOCK)}, "image_size 16 is no multiple of patch_size 0"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused_before_anything_is_written(
    corners: Path, tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(TrajformerError, match=re.escape(complaint)):
        train(recipe(corners, **changes), TASK, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_the_shipped_recipe_trains_through_the_command_line(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("sklearn")
    fast = ("--trainer.epochs", 6, "--model.layers", 1, "--model.block.width", 32, "--trainer.threads", 1)
    assert run("train", "--config", RECIPE, "--out", tmp_path / "run", *fast) == 0
    assert run("classify", "--checkpoint", tmp_path / "run" / "best.ckpt", "--split", "test") == 0
    found = re.search(r"digits: test: 357 images, accuracy (\S+)%", capsys.readouterr().out)
    assert found and float(found[1]) > 30  # a tenth by chance


def test_folders_are_read_with_unreadable_files_listed(corners: Path, tmp_path: Path, capsys: Any) -> None:
    for name in CORNERS:
        (tmp_path / "val" / name).mkdir(parents=True)
        (tmp_path / "val" / name / "good.png").symlink_to(corners / "val" / name / "0.png")
    (tmp_path / "val" / CORNERS[2] / "bad.png").write_bytes(b"\x89PNG")
    data = load_split(ImageDataConfig("folder", str(tmp_path)), "val", CORNERS, 3, 16)
    assert capsys.readouterr().err.startswith(f"skipped {tmp_path}/val/upper left/bad.png: not a readable image")
    batch = data[[0, 3]]
    assert len(data) == 4 and batch.label.tolist() == [0, 3]
    pixels = np.array(Image.open(corners / "val" / CORNERS[3] / "0.png")).transpose(2, 0, 1)
    torch.testing.assert_close(batch.image[1], torch.from_numpy(pixels / np.float32(255)))
    for split, labels, complaint in (("val", CORNERS[:2], "has a class 'upper left'"), ("dev", CORNERS, "no split 'dev'")):
        with pytest.raises(TrajformerError, match=complaint):
            load_split(ImageDataConfig("folder", str(tmp_path)), split, labels, 3, 16)


def test_the_digits_are_split_once_and_for_all() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, _ = datasets.load_digits(return_X_y=True)
    found = {split: load_digits(split) for split in ("train", "val", "test")}
    assert {split: len(label) for split, (_, label) in found.items()} == {"train": 1261, "val": 179, "test": 357}
    rows = [tuple(row) for image, _ in found.values() for row in (image.flatten(1) * 16).int().tolist()]
    assert sorted(rows) == sorted(tuple(row) for row in pixels.astype(int).tolist())  # every picture once
    for _, label in found.values():
        shares = label.bincount() / len(label)
        assert (shares - 0.1).abs().max() < 0.01
    torch.testing.assert_close(found["test"][0].amax(), torch.tensor(1.0))


def test_digits_of_another_size_and_in_colours() -> None:
    pytest.importorskip("sklearn")
    data = load_split(ImageDataConfig(), "val", tuple("0123456789"), 3, 16)
    assert data.image.shape == (179, 3, 16, 16) and data.image.dtype == torch.uint8
    assert torch.equal(data.image[:, 0], data.image[:, 2])


def test_a_saved_digit_is_classified_as_in_the_data_set(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    config = ClassificationRecipe(model=ViTConfig(8, 2, 1, 10, 1, BLOCK))
    data = config.load("test")
    Image.fromarray(data.image[7, 0].numpy()).save(tmp_path / "digit.png")
    torch.testing.assert_close(config.read(tmp_path / "digit.png"), data[[7]].image[0])


def test_outputs_without_names_are_numbered(tmp_path: Path, capsys: Any) -> None:
    config = ClassificationRecipe(model=ViTConfig(16, 4, 3, 3, 1, BLOCK), data=ImageDataConfig("folder"))
    write_checkpoint(tmp_path / "a.ckpt", config, config.build_model().state_dict())
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    assert run("classify", "--checkpoint", tmp_path / "a.ckpt", tmp_path / "a.png") == 0
    assert set(re.findall(r"class (\d)", capsys.readouterr().out)) == {"0", "1", "2"}


def test_the_best_checkpoint_is_the_one_with_the_lowest_cross_entropy_on_validation(checkpoint: Path) -> None:
    model, config = load_checkpoint(checkpoint, ClassificationRecipe)
    batch = config.load("val")[range(12)]
    assert accuracy(model, config, "val") == 1.0
    table = pd.read_csv(checkpoint.parent / "csv" / "metrics.csv")
    assert table["val/accuracy"].max() == 1.0 and table["val/accuracy"].count() == 3 and table["train/loss"].notna().any()
    expected = torch.nn.functional.cross_entropy(model(config.prepare(batch.image)), batch.label)
    assert float(expected.detach()) == pytest.approx(table["val/cross_entropy"].min(), abs=1e-5)
