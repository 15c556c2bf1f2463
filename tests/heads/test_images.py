"""Images as tensors: file formats, damaged files, resizing, normalization and augmentation."""

from __future__ import annotations

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
from trajformer.heads.images import ImageAugmentConfig, augment_images, list_images, normalize, read_image, resize

GRID = np.array([[0, 64, 128], [255, 32, 16]], np.uint8)


def save(path: Path, values: np.ndarray, mode: str | None = None, **options: object) -> Path:
    image = Image.fromarray(values)
    (image.convert(mode) if mode else image).save(path, **options)  # type: ignore[arg-type]
    return path


def test_colours_rows_and_columns_are_where_they_were(tmp_path: Path) -> None:
    values = np.zeros((2, 3, 3), np.uint8)
    values[0, 2] = (255, 128, 0)
    found = read_image(save(tmp_path / "a.png", values))
    assert found.shape == (3, 2, 3) and found.dtype == torch.float32
    torch.testing.assert_close(found[:, 0, 2], torch.tensor([1.0, 128 / 255, 0.0]))
    assert found.sum() == found[:, 0, 2].sum()


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "CMYK", "1"])
def test_every_mode_is_read_as_colours_and_as_grey(tmp_path: Path, mode: str) -> None:
    path = save(tmp_path / ("a.tif" if mode == "CMYK" else "a.png"), GRID, mode)
    expected = torch.from_numpy(np.asarray(Image.open(path).convert("L"), np.float32) / 255)
    torch.testing.assert_close(read_image(path, gray=True), expected[None])
    torch.testing.assert_close(read_image(path), expected.expand(3, -1, -1), atol=0.01, rtol=0)


def test_sixteen_bits_are_not_cut_off(tmp_path: Path) -> None:
    values = np.array([[0, 255, 65535], [32768, 256, 1]], np.uint16)
    found = read_image(save(tmp_path / "a.png", values), gray=True)
    torch.testing.assert_close(found[0], torch.from_numpy(values.astype(np.float32)) / 65535)


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    values = np.zeros((1, 2, 4), np.uint8)
    values[0, 1] = (255, 0, 0, 255)
    found = read_image(save(tmp_path / "a.png", values))
    torch.testing.assert_close(found[:, 0].T, torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]))


def test_a_camera_held_sideways_gives_an_upright_picture(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to see it upright
    path = save(tmp_path / "a.png", GRID, exif=exif)
    torch.testing.assert_close(read_image(path, gray=True)[0], torch.from_numpy(np.rot90(GRID, -1) / np.float32(255)))


def bomb() -> bytes:
    """A PNG that says it is 100,000 pixels wide and high."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 100)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (header, data, b"IEND")
    )


def broken(kind: str, folder: Path) -> Path:
    """A file that is no readable picture."""
    path = folder / f"{kind}.png"
    whole = save(folder / "whole.png", np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).read_bytes()
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
        path.write_bytes({"empty": b"", "text": b"no picture", "cut": whole[:-5000], "garbage": garbage, "bomb": bomb()}[kind])
    return path


KINDS = ("missing", "empty", "text", "cut", "garbage", "bomb", "folder", "pipe", "loop", "float")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_picture_is_one_error_that_names_the_file(tmp_path: Path, kind: str) -> None:
    path = broken(kind, tmp_path)
    with pytest.raises(TrajformerError) as error:
        read_image(path)
    assert str(error.value).startswith(f"{path}: not a readable image (") and "\n" not in str(error.value)


def test_normalisation_is_in_closed_form() -> None:
    image = torch.tensor([0.0, 0.5, 1.0])[:, None, None].expand(3, 2, 2)
    torch.testing.assert_close(normalize(image, "half")[:, 0, 0], torch.tensor([-1.0, 0.0, 1.0]))
    expected = torch.tensor([-0.485 / 0.229, (0.5 - 0.456) / 0.224, (1 - 0.406) / 0.225])
    torch.testing.assert_close(normalize(image.expand(4, 3, 2, 2), "imagenet")[3, :, 1, 1], expected)
    with pytest.raises(ValueError, match="1 channels"):
        normalize(image[:1], "imagenet")


@pytest.mark.parametrize("size", [(8, 8), (32, 20), (10, 40)])
def test_resizing_is_pillows_bilinear(size: tuple[int, int]) -> None:
    values = np.random.default_rng(0).random((20, 30)).astype(np.float32)
    expected = np.array(Image.fromarray(values).resize(size[::-1], Image.Resampling.BILINEAR))
    torch.testing.assert_close(resize(torch.from_numpy(values)[None], size)[0], torch.from_numpy(expected), atol=1e-4, rtol=0)


def test_folders_are_searched_and_files_taken_as_they_are(tmp_path: Path) -> None:
    for name in ("b/2.PNG", "b/1.jpg", "a.png", "b/.hidden.png", "b/notes.txt", "odd"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    assert list_images([tmp_path / "odd", tmp_path]) == [tmp_path / name for name in ("odd", "a.png", "b/1.jpg", "b/2.PNG")]
    with pytest.raises(TrajformerError, match="no images"):
        list_images([tmp_path / "empty"])
    with pytest.raises(TrajformerError, match="no such file or folder"):
        list_images([tmp_path / "nowhere"])


def pictures(count: int = 64, size: int = 16) -> Tensor:
    """A bright square off the centre, on black."""
    image = torch.zeros(count, 1, size, size)
    image[..., 5:8, 9:12] = 1.0
    return image


def centres(image: Tensor) -> Tensor:
    """(row, column) [B, 2] of the brightness, pixels."""
    weight = image[:, 0] / image[:, 0].sum((1, 2), keepdim=True)
    place = torch.arange(image.shape[-1]) + 0.5
    return torch.stack([(weight.sum(2) * place).sum(1), (weight.sum(1) * place).sum(1)], -1)


def varied(seed: int = 0, **config: float) -> Tensor:
    return augment_images(pictures(), ImageAugmentConfig(**config), torch.Generator().manual_seed(seed))


def test_nothing_to_vary_changes_nothing_and_a_seed_decides() -> None:
    assert varied() is not None and torch.equal(varied(), pictures())
    assert torch.equal(varied(shift=0.2), varied(shift=0.2)) and not torch.equal(varied(shift=0.2), varied(1, shift=0.2))


def test_a_flip_exchanges_left_and_right() -> None:
    torch.testing.assert_close(varied(flip=1.0), pictures().flip(-1), atol=1e-5, rtol=0)
    flipped = (centres(varied(flip=0.5))[:, 1] < 8).float().mean()
    assert 0.25 < flipped < 0.75


def test_shifts_are_shares_of_the_picture_in_both_directions() -> None:
    moved = centres(varied(shift=0.125)) - centres(pictures())
    assert (moved.abs() <= 2.01).all() and (moved.amin(0) < -1.5).all() and (moved.amax(0) > 1.5).all()


def test_rotation_keeps_the_distance_to_the_centre_and_stays_within_its_angle() -> None:
    offset, before = centres(varied(rotate=0.3)) - 8, centres(pictures()) - 8
    torch.testing.assert_close(offset.norm(dim=1), before.norm(dim=1), atol=0.1, rtol=0)
    angle = torch.atan2(offset[:, 0], offset[:, 1]) - torch.atan2(before[:, 0], before[:, 1])
    assert angle.abs().max() < 0.33 and angle.max() > 0.2 and angle.min() < -0.2


def test_scaling_moves_things_from_or_to_the_centre() -> None:
    share = (centres(varied(scale=0.2)) - 8).norm(dim=1) / (centres(pictures()) - 8).norm(dim=1)
    assert 0.8 < share.min() < 0.9 and 1.1 < share.max() < 1.26  # sampled at distances 0.8 to 1.2 times as large
