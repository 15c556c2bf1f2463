"""Images as tensors: file formats, damaged files, resizing, normalization and augmentation."""

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from trajformer.errors import TrajformerError
from trajformer.heads.images import (
    ImageAugmentConfig,
    augment_images,
    list_images,
    normalize,
    read_image,
    resize,
)

GRID = np.array([[0, 64, 128], [255, 32, 16]], np.uint8)


def save(path: Path, values: np.ndarray, mode: str | None = None, **options: object) -> Path:
    image = Image.fromarray(values)
    (image.convert(mode) if mode else image).save(path, **options)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "CMYK", "1"])
def test_every_mode_is_read_as_color_and_as_gray(tmp_path: Path, mode: str) -> None:
    path = save(tmp_path / ("a.tif" if mode == "CMYK" else "a.png"), GRID, mode)
    expected = torch.from_numpy(np.asarray(Image.open(path).convert("L"), np.float32) / 255)
    torch.testing.assert_close(read_image(path, gray=True), expected[None])
    torch.testing.assert_close(read_image(path), expected.expand(3, -1, -1), atol=0.01, rtol=0)


def broken(kind: str, folder: Path) -> Path:
    path = folder / f"{kind}.png"
    whole = save(
        folder / "whole.png", np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    ).read_bytes()
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "float":
        path = save(folder / "float.tif", np.ones((2, 2), np.float32))
    elif kind != "missing":
        garbage = whole[:40] + b"\xff" * 300 + whole[340:]
        header = b"IHDR" + struct.pack(
            ">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0
        )  # of an image of 10 gigapixels
        bomb = (
            whole[:8]
            + struct.pack(">I", 13)
            + header
            + struct.pack(">I", zlib.crc32(header))
            + whole[33:]
        )
        path.write_bytes(
            {
                "empty": b"",
                "text": b"no picture",
                "cut": whole[:-5000],
                "garbage": garbage,
                "bomb": bomb,
            }[kind]
        )
    return path


KINDS = ("missing", "empty", "text", "cut", "garbage", "bomb", "folder", "pipe", "loop", "float")


@pytest.mark.parametrize("kind", KINDS)
def test_unreadable_files_are_an_error_with_the_file_name(tmp_path: Path, kind: str) -> None:
    path = broken(kind, tmp_path)
    with pytest.raises(TrajformerError) as error:
        read_image(path)
    assert str(error.value).startswith(f"{path}: not a readable image (") and "\n" not in str(
        error.value
    )


def test_normalization_in_closed_form() -> None:
    image = torch.tensor([0.0, 0.5, 1.0])[:, None, None].expand(3, 2, 2)
    torch.testing.assert_close(normalize(image, "half")[:, 0, 0], torch.tensor([-1.0, 0.0, 1.0]))
    expected = torch.tensor([-0.485 / 0.229, (0.5 - 0.456) / 0.224, (1 - 0.406) / 0.225])
    torch.testing.assert_close(
        normalize(image.expand(4, 3, 2, 2), "imagenet")[3, :, 1, 1], expected
    )
    with pytest.raises(ValueError, match="1 channels"):
        normalize(image[:1], "imagenet")


@pytest.mark.parametrize("size", [(8, 8), (32, 20), (10, 40)])
def test_resizing_equals_pillow(size: tuple[int, int]) -> None:
    values = np.random.default_rng(0).random((20, 30)).astype(np.float32)
    expected = np.array(Image.fromarray(values).resize(size[::-1], Image.Resampling.BILINEAR))
    torch.testing.assert_close(
        resize(torch.from_numpy(values)[None], size)[0],
        torch.from_numpy(expected),
        atol=1e-4,
        rtol=0,
    )


def test_folders_are_searched_by_suffix_and_files_are_kept(tmp_path: Path) -> None:
    for name in ("b/2.PNG", "b/1.jpg", "a.png", "b/.hidden.png", "b/notes.txt", "odd"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    assert list_images([tmp_path / "odd", tmp_path]) == [
        tmp_path / name for name in ("odd", "a.png", "b/1.jpg", "b/2.PNG")
    ]
    with pytest.raises(TrajformerError, match="no images"):
        list_images([tmp_path / "empty"])
    with pytest.raises(TrajformerError, match="no such file or folder"):
        list_images([tmp_path / "nowhere"])


def squares(count: int = 64, size: int = 16) -> Tensor:
    """A bright square on black, not at the center."""
    image = torch.zeros(count, 1, size, size)
    image[..., 5:8, 9:12] = 1.0
    return image


def centers(image: Tensor) -> Tensor:
    """(row, column) [B, 2] of the brightness, pixels."""
    weight = image[:, 0] / image[:, 0].sum((1, 2), keepdim=True)
    position = torch.arange(image.shape[-1]) + 0.5
    return torch.stack([(weight.sum(2) * position).sum(1), (weight.sum(1) * position).sum(1)], -1)


def augmented(seed: int = 0, **config: float) -> Tensor:
    return augment_images(
        squares(), ImageAugmentConfig(**config), torch.Generator().manual_seed(seed)
    )


def test_pixels_keep_color_depth_transparency_and_orientation(tmp_path: Path) -> None:
    values = np.zeros((2, 3, 3), np.uint8)
    values[0, 2] = (255, 128, 0)
    image = read_image(save(tmp_path / "color.png", values))
    assert image.shape == (3, 2, 3) and image.dtype == torch.float32
    torch.testing.assert_close(image, torch.from_numpy(values).permute(2, 0, 1) / 255)
    deep = np.array([[0, 255, 65535], [32768, 256, 1]], np.uint16)
    image = read_image(save(tmp_path / "deep.png", deep), gray=True)
    torch.testing.assert_close(image[0], torch.from_numpy(deep.astype(np.float32)) / 65535)
    image = read_image(
        save(tmp_path / "transparent.png", np.array([[[0, 0, 0, 0], [255, 0, 0, 255]]], np.uint8))
    )
    torch.testing.assert_close(
        image[:, 0].T, torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    )  # on white
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    image = read_image(save(tmp_path / "rotated.png", GRID, exif=exif), gray=True)
    torch.testing.assert_close(image[0], torch.from_numpy(np.rot90(GRID, -1) / np.float32(255)))


def test_augmentation_follows_the_seed_and_stays_within_its_ranges() -> None:
    assert torch.equal(augmented(), squares()) and torch.equal(
        augmented(shift=0.2), augmented(shift=0.2)
    )
    assert not torch.equal(augmented(shift=0.2), augmented(1, shift=0.2))
    torch.testing.assert_close(augmented(flip=1.0), squares().flip(-1), atol=1e-5, rtol=0)
    assert 0.25 < (centers(augmented(flip=0.5))[:, 1] < 8).float().mean() < 0.75
    moved = centers(augmented(shift=0.125)) - centers(squares())
    assert (
        (moved.abs() <= 2.01).all() and (moved.amin(0) < -1.5).all() and (moved.amax(0) > 1.5).all()
    )
    offset, before = centers(augmented(rotate=0.3)) - 8, centers(squares()) - 8
    torch.testing.assert_close(offset.norm(dim=1), before.norm(dim=1), atol=0.1, rtol=0)
    angle = torch.atan2(offset[:, 0], offset[:, 1]) - torch.atan2(before[:, 0], before[:, 1])
    assert angle.abs().max() < 0.33 and angle.max() > 0.2 and angle.min() < -0.2
    share = (centers(augmented(scale=0.2)) - 8).norm(dim=1) / before.norm(dim=1)
    assert (
        0.8 < share.min() < 0.9 and 1.1 < share.max() < 1.26
    )  # at distances scaled by 1 / 1.2 to 1 / 0.8
