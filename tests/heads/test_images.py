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
    summed_up,
)

GRID = np.array([[0, 64, 128], [255, 32, 16]], np.uint8)


def save(path: Path, values: np.ndarray, mode: str | None = None, **options: object) -> Path:
    image = Image.fromarray(values)
    if mode is not None:
        image = image.convert(mode)
    image.save(path, **options)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "CMYK", "1"])
def test_every_mode_is_read_as_color_and_as_gray(tmp_path: Path, mode: str) -> None:
    path = save(tmp_path / ("a.tif" if mode == "CMYK" else "a.png"), GRID, mode)
    expected = torch.from_numpy(np.asarray(Image.open(path).convert("L"), np.float32) / 255)
    torch.testing.assert_close(read_image(path, gray=True), expected[None])
    torch.testing.assert_close(read_image(path), expected.expand(3, -1, -1), atol=0.01, rtol=0)


def huge_header(png: bytes) -> bytes:
    """A PNG file with the header of an image of 10 gigapixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    length = struct.pack(">I", 13)
    checksum = struct.pack(">I", zlib.crc32(header))
    return png[:8] + length + header + checksum + png[33:]


def broken(kind: str, folder: Path) -> Path:
    """An unreadable file."""
    path = folder / f"{kind}.png"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "float":
        path = save(folder / "float.tif", np.ones((2, 2), np.float32))
    elif kind != "missing":
        values = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
        png = save(folder / "whole.png", values).read_bytes()
        content = {
            "empty": b"",
            "text": b"no picture",
            "cut": png[:-5000],
            "garbage": png[:40] + b"\xff" * 300 + png[340:],
            "bomb": huge_header(png),
        }
        path.write_bytes(content[kind])
    return path


KINDS = ("missing", "empty", "text", "cut", "garbage", "bomb", "folder", "pipe", "loop", "float")


@pytest.mark.parametrize("kind", KINDS)
def test_unreadable_files_are_an_error_with_the_file_name(tmp_path: Path, kind: str) -> None:
    path = broken(kind, tmp_path)
    with pytest.raises(TrajformerError) as error:
        read_image(path)
    message = str(error.value)
    assert message.startswith(f"{path}: not a readable image (")
    assert "\n" not in message


def test_normalization_in_closed_form() -> None:
    channels = torch.tensor([0.0, 0.5, 1.0])
    image = channels[:, None, None].expand(3, 2, 2)
    half = normalize(image, "half")
    torch.testing.assert_close(half[:, 0, 0], torch.tensor([-1.0, 0.0, 1.0]))

    mean = torch.tensor([0.485, 0.456, 0.406])
    std = torch.tensor([0.229, 0.224, 0.225])
    batch = normalize(image.expand(4, 3, 2, 2), "imagenet")
    torch.testing.assert_close(batch[3, :, 1, 1], (channels - mean) / std)
    with pytest.raises(ValueError, match="1 channels"):
        normalize(image[:1], "imagenet")


@pytest.mark.parametrize("size", [(8, 8), (32, 20), (10, 40)])
def test_resizing_equals_pillow(size: tuple[int, int]) -> None:
    values = np.random.default_rng(0).random((20, 30)).astype(np.float32)
    height, width = size
    pillow = Image.fromarray(values).resize((width, height), Image.Resampling.BILINEAR)
    expected = torch.from_numpy(np.array(pillow))
    resized = resize(torch.from_numpy(values)[None], size)[0]
    torch.testing.assert_close(resized, expected, atol=1e-4, rtol=0)


def test_folders_are_searched_by_suffix_and_files_are_kept(tmp_path: Path) -> None:
    for name in ("b/2.PNG", "b/1.jpg", "a.png", "b/.hidden.png", "b/notes.txt", "odd"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    expected = [tmp_path / name for name in ("odd", "a.png", "b/1.jpg", "b/2.PNG")]
    assert list_images([tmp_path / "odd", tmp_path]) == expected
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
    row = (weight.sum(2) * position).sum(1)
    column = (weight.sum(1) * position).sum(1)
    return torch.stack([row, column], -1)


def augmented(seed: int = 0, **config: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return augment_images(squares(), ImageAugmentConfig(**config), generator)


def test_channels_are_red_green_and_blue(tmp_path: Path) -> None:
    values = np.zeros((2, 3, 3), np.uint8)
    values[0, 2] = (255, 128, 0)
    image = read_image(save(tmp_path / "color.png", values))
    assert image.shape == (3, 2, 3)
    assert image.dtype == torch.float32
    torch.testing.assert_close(image, torch.from_numpy(values).permute(2, 0, 1) / 255)


def test_16_bits_per_pixel_are_kept(tmp_path: Path) -> None:
    values = np.array([[0, 255, 65535], [32768, 256, 1]], np.uint16)
    image = read_image(save(tmp_path / "deep.png", values), gray=True)
    expected = torch.from_numpy(values.astype(np.float32)) / 65535
    torch.testing.assert_close(image[0], expected)


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    values = np.array([[[0, 0, 0, 0], [255, 0, 0, 255]]], np.uint8)
    image = read_image(save(tmp_path / "transparent.png", values))
    white_and_red = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(image[:, 0].T, white_and_red)


def test_the_orientation_in_the_exif_data_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees clockwise
    image = read_image(save(tmp_path / "rotated.png", GRID, exif=exif), gray=True)
    expected = torch.from_numpy(np.rot90(GRID, -1) / np.float32(255))
    torch.testing.assert_close(image[0], expected)


def test_augmentation_follows_the_seed() -> None:
    assert torch.equal(augmented(), squares())
    assert torch.equal(augmented(shift=0.2), augmented(shift=0.2))
    assert not torch.equal(augmented(shift=0.2), augmented(1, shift=0.2))


def test_flips_have_their_probability() -> None:
    torch.testing.assert_close(augmented(flip=1.0), squares().flip(-1), atol=1e-5, rtol=0)
    at_left = centers(augmented(flip=0.5))[:, 1] < 8
    assert 0.25 < at_left.float().mean() < 0.75


def test_shifts_fill_their_range() -> None:
    offset = centers(augmented(shift=0.125)) - centers(squares())
    assert (offset.abs() <= 2.01).all()
    assert (offset.amin(0) < -1.5).all()
    assert (offset.amax(0) > 1.5).all()


def test_rotations_are_around_the_center_and_fill_their_range() -> None:
    before = centers(squares()) - 8
    after = centers(augmented(rotate=0.3)) - 8
    torch.testing.assert_close(after.norm(dim=1), before.norm(dim=1), atol=0.1, rtol=0)
    angle = torch.atan2(after[:, 0], after[:, 1]) - torch.atan2(before[:, 0], before[:, 1])
    assert angle.abs().max() < 0.33
    assert angle.max() > 0.2
    assert angle.min() < -0.2


def test_scales_fill_their_range() -> None:
    """Distances from the center are scaled by 1 / 1.2 to 1 / 0.8."""
    before = (centers(squares()) - 8).norm(dim=1)
    after = (centers(augmented(scale=0.2)) - 8).norm(dim=1)
    scale = after / before
    assert 0.8 < scale.min() < 0.9
    assert 1.1 < scale.max() < 1.26


def test_many_skipped_inputs_are_one_line_with_a_count() -> None:
    lines = [f"skipped a: b/{n}.png: not a readable image (bytes: {n})" for n in range(30)]
    boxes = [f"p{n}: {n + 1} boxes without area left out" for n in range(3)]
    classes = ["2 objects of class 'dog' left out", "1 objects of class 'cat' left out"]
    assert summed_up([*lines, *boxes, *classes]) == [
        f"{lines[0]} (and 29 more like this)",
        f"{boxes[0]} (and 2 more like this)",
        *classes,
    ]
