"""Generated images of discs, rectangles and triangles."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from trajformer.errors import ConfigError, TrajformerError
from trajformer.heads.detr.data import collate
from trajformer.heads.detr.shapes import (
    LABELS,
    Shape,
    ShapesConfig,
    ShapesDataset,
    draw_shape,
    draw_shapes,
)

SMALL = ShapesConfig(height=40, width=56, train=6, val=4, test=4)


def enclosing_box(shape: Shape) -> list[int]:
    """Corners of the pixels that a shape covers by more than half."""
    rows, columns = np.nonzero(shape.cover > 0.5)
    window_rows, window_columns = shape.window
    rows = rows + window_rows.start
    columns = columns + window_columns.start
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def test_a_shape_fills_its_box_and_has_its_area() -> None:
    rng = np.random.default_rng(0)
    size = 200
    config = replace(SMALL, height=size, width=size, radius=(0.1, 0.2))
    fractions: dict[str, set[float]] = {name: set() for name in LABELS}  # of the box, covered
    for _ in range(60):
        shape = draw_shape(rng, config)
        # A sharp corner covers less than half of its pixels.
        np.testing.assert_allclose(enclosing_box(shape), shape.box, atol=2.5)
        if shape.box.min() > 0 and shape.box.max() < size:
            assert shape.cover.sum() == pytest.approx(shape.area, rel=0.02)
            width, height = shape.box[2:] - shape.box[:2]
            fractions[LABELS[shape.label]].add(round(shape.area / (width * height), 1))
    assert fractions["disc"] == {0.8}
    assert max(fractions["triangle"]) <= 0.5
    assert max(fractions["rectangle"]) > 0.5


def test_an_image_follows_from_split_seed_epoch_and_index() -> None:
    train = ShapesDataset(SMALL, "train", seed=3)
    again = ShapesDataset(SMALL, "train", seed=3)
    other_seed = ShapesDataset(SMALL, "train", seed=4)
    val = ShapesDataset(SMALL, "val", seed=3)
    test = ShapesDataset(SMALL, "test")
    assert torch.equal(train[[2, 5]].pixels, again[[2, 5]].pixels)

    number = 6 * 4 + 2
    in_epoch_4 = collate([train.example(2, epoch=4)])
    assert torch.equal(train[[number]].pixels, in_epoch_4.pixels)

    different = [
        train.example(2),
        train.example(3),
        train.example(2, epoch=1),
        other_seed.example(2),
        val.example(2),
        test.example(2),
    ]
    for index, one in enumerate(different):
        for other in different[:index]:
            assert not torch.equal(one.image, other.image)


def test_validation_images_do_not_depend_on_the_seed() -> None:
    first = ShapesDataset(SMALL, "val", seed=3).example(2)
    second = ShapesDataset(SMALL, "val", seed=9).example(2)
    assert torch.equal(first.image, second.image)


def test_a_data_set_has_the_numbers_and_the_size_of_its_config() -> None:
    train = ShapesDataset(SMALL, "train")
    assert len(train) == 6
    assert len(ShapesDataset(SMALL, "val")) == 4
    assert train.sizes(np.arange(2)).tolist() == [[40, 56], [40, 56]]
    with pytest.raises(TrajformerError, match="no split 'tset'"):
        ShapesDataset(SMALL, "tset")


def test_generated_images_follow_the_config() -> None:
    examples = [draw_shapes(SMALL, (1, index)) for index in range(60)]
    assert {len(example.label) for example in examples} == set(range(1, 9))
    for example in examples:
        assert example.image.shape == (3, 40, 56)
        assert example.image.min() >= 0
        assert example.image.max() <= 1
        first = example.box[:, :2]
        last = example.box[:, 2:]
        assert (first < last).all()
        assert first.min() >= 0
        assert (last <= torch.tensor([56, 40])).all()


def test_unusable_ranges_are_refused() -> None:
    with pytest.raises(ConfigError, match="objects: 3, 2: expected a positive number"):
        replace(SMALL, objects=(3, 2))
    with pytest.raises(ConfigError, match=r"radius: 22\.0, expected fractions of the image"):
        replace(SMALL, radius=(8.0, 22.0))
