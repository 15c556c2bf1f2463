"""Training a classifier, starting from a checkpoint, and the command `classify`.

The images are in folders, or the digits.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.cli import error_line, run

from trajformer.core.blocks import BlockConfig
from trajformer.errors import TrajformerError
from trajformer.heads.images import ImageAugmentConfig
from trajformer.heads.vit.data import ImageDataConfig, load_digits
from trajformer.heads.vit.model import ViTConfig
from trajformer.heads.vit.task import TASK, ClassificationModule, ClassificationRecipe
from trajformer.recipes.checkpoint import load_checkpoint, write_checkpoint
from trajformer.recipes.recipe import OptimConfig, TrainerConfig
from trajformer.training.run import train

RECIPE = Path(__file__).parents[2] / "configs" / "heads" / "vit_digits.yaml"
CORNERS = ("lower left", "lower right", "upper left", "upper right")
BLOCK = BlockConfig(width=32, heads=2, feedforward=32, dropout=0.0, activation="gelu")


def corner(name: str, rng: np.random.Generator, size: int = 16) -> np.ndarray:
    """A noisy image [size, size, 3] that is bright in one corner, which is its class."""
    half = size // 2
    rows = slice(half, None) if "lower" in name else slice(0, half)
    columns = slice(half, None) if "right" in name else slice(0, half)
    image = rng.integers(0, 90, (size, size, 3))
    image[rows, columns] += 100
    return image.astype(np.uint8)


@pytest.fixture(scope="module")
def corners(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images of 16 x 16 pixels.

    Each class has 12 images for training, 3 for validation and 5 for tests.
    """
    root = tmp_path_factory.mktemp("corners")
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 3), ("test", 5)):
        for name in CORNERS:
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                Image.fromarray(corner(name, rng)).save(folder / f"{index}.png")
    return root


def recipe(root: Path, **changes: Any) -> ClassificationRecipe:
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
    return train(recipe(corners), TASK, tmp_path_factory.mktemp("run") / "run", progress=False)


def test_classify_prints_draws_and_lists_unreadable_files(
    checkpoint: Path, corners: Path, tmp_path: Path, capsys: Any
) -> None:
    source = tmp_path / "in"
    for name, kind in (("a/1.png", CORNERS[0]), ("b/1.png", CORNERS[1]), ("c.png", CORNERS[2])):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).symlink_to(corners / "test" / kind / "0.png")
    (source / "b" / "broken.png").write_bytes(b"no picture")
    large_and_gray = corner(CORNERS[3], np.random.default_rng(1), size=50)
    Image.fromarray(large_and_gray).convert("L").save(source / "large.jpg")

    out = tmp_path / "out"
    options = ("--checkpoint", checkpoint, "--out", out, "--batch-size", 2)
    assert run("classify", source, *options) == 0
    *rows, skipped = capsys.readouterr().out.splitlines()
    classified = {}
    for row in rows:
        path, best, *_ = row.split("  ")
        classified[path.removeprefix(f"{source}/")] = best.rpartition(" ")[0]
    assert classified == {
        "a/1.png": CORNERS[0],
        "b/1.png": CORNERS[1],
        "c.png": CORNERS[2],
        "large.jpg": CORNERS[3],
    }
    assert skipped.startswith(f"skipped {source}/b/broken.png: not a readable image")

    pictures = sorted(out.iterdir())
    assert [path.name for path in pictures] == ["1-2.png", "1.png", "c.png", "large.png"]
    for path in pictures:
        assert Image.open(path).size == (1080, 390)


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
def test_mistakes_are_one_line_errors(
    checkpoint: Path, tmp_path: Path, capsys: Any, words: Any, complaint: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").touch()
    paths = {"EMPTY": tmp_path / "empty", "BROKEN": tmp_path / "broken.png"}
    arguments = [paths.get(word, word) for word in words]
    assert complaint in error_line(capsys, "classify", "--checkpoint", checkpoint, *arguments)


def accuracy(model: torch.nn.Module, config: ClassificationRecipe, split: str = "test") -> float:
    data = config.load(split)
    batch = data[range(len(data))]
    predicted = model(config.prepare(batch.image)).argmax(-1)
    return float((predicted == batch.label).float().mean())


def test_a_run_can_start_from_a_checkpoint_with_another_image_size(
    checkpoint: Path, corners: Path, tmp_path: Path
) -> None:
    """24 x 24 pixels have 6 x 6 patches.

    Without correctly interpolated positions the corners cannot be distinguished.
    """
    config = recipe(corners)
    config = replace(config, model=replace(config.model, image_size=24), init=str(checkpoint))
    model = ClassificationModule(config).eval().model
    before, _ = load_checkpoint(checkpoint, ClassificationRecipe)
    images = torch.rand(2, 3, 24, 24)
    # The forward pass interpolates in the same way.
    torch.testing.assert_close(model(images), before(images))
    assert len(model.position()) == 37
    assert accuracy(model, config) == 1.0

    out = tmp_path / "run"
    start = ("--config", checkpoint.parent / "config.yaml", "--init", checkpoint)
    words = ("train", *start, "--model.image_size", 24, "--out", out)
    assert run(*words, "--trainer.epochs", 1) == 0
    trained, trained_config = load_checkpoint(out / "best.ckpt", ClassificationRecipe)
    assert accuracy(trained, trained_config) == 1.0
    assert run(*words, "--trainer.epochs", 2, "--resume") == 0


def test_the_head_is_kept_for_the_same_classes_and_zero_for_others(
    checkpoint: Path, corners: Path
) -> None:
    before, config = load_checkpoint(checkpoint, ClassificationRecipe)
    same = ClassificationModule(replace(config, init=str(checkpoint)))
    torch.testing.assert_close(same.model.head.weight, before.head.weight)
    digits = replace(
        config,
        model=replace(config.model, classes=10),
        labels=(),
        data=ImageDataConfig(),
        init=str(checkpoint),
    )
    other = ClassificationModule(digits)
    assert other.config.labels == tuple("0123456789")
    assert other.model.head.weight.shape == (10, 32)
    assert not other.model.head.weight.any()
    torch.testing.assert_close(other.model.patches.weight, before.patches.weight)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"model": ViTConfig(16, 4, 3, 5, 2, BLOCK)},
            "model.classes: 5, but there are 4: lower left, lower right",
        ),
        ({"model": ViTConfig(16, 4, 2, 4, 2, BLOCK)}, "model.channels: 2"),
        ({"data": ImageDataConfig("folder")}, "data.root: give a folder"),
        ({"data": ImageDataConfig("folder", "nowhere")}, "nowhere/train: no such folder"),
        (
            {
                "model": ViTConfig(16, 4, 1, 10, 2, BLOCK),
                "data": ImageDataConfig(normalize="imagenet"),
            },
            "data.normalize",
        ),
        (
            {"model": ViTConfig(18, 4, 3, 4, 2, BLOCK)},
            "image_size 18 is no multiple of patch_size 4",
        ),
        (
            {"model": ViTConfig(16, 32, 3, 4, 2, BLOCK)},
            "image_size 16 is no multiple of patch_size 32",
        ),
    ],
)
def test_invalid_recipes_write_nothing(
    corners: Path, tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(TrajformerError, match=re.escape(complaint)):
        train(recipe(corners, **changes), TASK, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_the_shipped_recipe_trains_through_the_command_line(tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("sklearn")
    small = ("--model.layers", 1, "--model.block.width", 32)
    short = ("--trainer.epochs", 6, "--trainer.threads", 1)
    out = tmp_path / "run"
    assert run("train", "--config", RECIPE, "--out", out, *small, *short) == 0
    assert run("classify", "--checkpoint", out / "best.ckpt", "--split", "test") == 0
    printed = capsys.readouterr().out
    match = re.search(r"digits: test: 357 images, accuracy (\S+)%", printed)
    assert match is not None
    assert float(match[1]) > 30  # random classes give 10


def test_folders_are_read_and_unreadable_files_listed(
    corners: Path, tmp_path: Path, capsys: Any
) -> None:
    for name in CORNERS:
        (tmp_path / "val" / name).mkdir(parents=True)
        (tmp_path / "val" / name / "good.png").symlink_to(corners / "val" / name / "0.png")
    (tmp_path / "val" / CORNERS[2] / "bad.png").write_bytes(b"\x89PNG")
    config = recipe(tmp_path, labels=CORNERS)
    data = config.load("val")
    skipped = f"skipped {tmp_path}/val/upper left/bad.png: not a readable image"
    assert capsys.readouterr().err.startswith(skipped)
    assert len(data) == 4
    batch = data[[0, 3]]
    assert batch.label.tolist() == [0, 3]
    pixels = np.array(Image.open(corners / "val" / CORNERS[3] / "0.png")).transpose(2, 0, 1)
    torch.testing.assert_close(batch.image[1], torch.from_numpy(pixels / np.float32(255)))


def test_unknown_classes_and_splits_are_errors(corners: Path) -> None:
    with pytest.raises(TrajformerError, match="has a class 'upper left'"):
        recipe(corners, labels=CORNERS[:2]).load("val")
    with pytest.raises(TrajformerError, match="no split 'dev'"):
        recipe(corners, labels=CORNERS).load("dev")


def test_classes_without_names_are_numbered(tmp_path: Path, capsys: Any) -> None:
    config = ClassificationRecipe(
        model=ViTConfig(16, 4, 3, 3, 1, BLOCK), data=ImageDataConfig("folder")
    )
    write_checkpoint(tmp_path / "a.ckpt", config, config.build_model().state_dict())
    Image.new("RGB", (20, 10)).save(tmp_path / "a.png")
    assert run("classify", "--checkpoint", tmp_path / "a.ckpt", tmp_path / "a.png") == 0
    assert set(re.findall(r"class (\d)", capsys.readouterr().out)) == {"0", "1", "2"}


def test_classify_counts_mistakes_in_a_split(
    checkpoint: Path, corners: Path, tmp_path: Path, capsys: Any
) -> None:
    assert run("classify", "--checkpoint", checkpoint, "--split", "test") == 0
    summary = rf"{corners}: test: 20 images, accuracy 100\.00% \(0 wrong\), cross-entropy 0\.\d+\n$"
    assert re.match(summary, capsys.readouterr().out)
    # Two of five images are in a wrong folder.
    for folder, kind in ((0, 0), (0, 0), (0, 3), (0, 3), (1, 1)):
        path = tmp_path / "test" / CORNERS[folder]
        path.mkdir(parents=True, exist_ok=True)
        number = len(list(path.iterdir()))
        image = corners / "test" / CORNERS[kind] / "0.png"
        (path / f"{number}.png").symlink_to(image)
    assert run("classify", "--checkpoint", checkpoint, tmp_path, "--split", "test") == 0
    out = capsys.readouterr().out
    assert "5 images, accuracy 60.00% (2 wrong)" in out
    assert "2 of 4 'lower left' classified as 'upper right'" in out


def test_a_model_with_another_number_of_classes_is_not_scored(corners: Path) -> None:
    for classes in (2, 5):
        config = recipe(corners, model=ViTConfig(16, 4, 3, classes, 2, BLOCK))
        expected = rf"4 classes, but the model has {classes}; name them"
        with pytest.raises(TrajformerError, match=expected):
            config.load("test")


def test_the_digits_have_a_fixed_stratified_split() -> None:
    pixels, _ = pytest.importorskip("sklearn.datasets").load_digits(return_X_y=True)
    images = []
    for split, count in (("train", 1261), ("val", 179), ("test", 357)):
        image, label = load_digits(split)
        assert len(label) == count
        frequency = label.bincount() / len(label)
        assert (frequency - 0.1).abs().max() < 0.01
        images += (image.flatten(1) * 16).int().tolist()
    assert sorted(images) == sorted(pixels.astype(int).tolist())  # every image once


def test_the_digits_have_the_size_and_the_channels_of_the_model(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    data = ClassificationRecipe(model=ViTConfig(16, 2, 3, 10, 1, BLOCK)).load("val")
    assert data.image.shape == (179, 3, 16, 16)
    assert torch.equal(data.image[:, 0], data.image[:, 2])

    config = ClassificationRecipe(model=ViTConfig(8, 2, 1, 10, 1, BLOCK))
    file = tmp_path / "digit.png"
    Image.fromarray(config.load("test").image[7, 0].numpy()).save(file)
    images, _ = load_digits("test")
    torch.testing.assert_close(config.read(file), images[7], atol=0.51 / 255, rtol=0.0)
