"""Images with boxes: batches, augmentation, folders of Pascal VOC."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.heads import marked_example, voc_annotation
from torch import Tensor

from trajformer.errors import TrajformerError
from trajformer.heads.detr.augment import BoxAugmentConfig, augment_example
from trajformer.heads.detr.data import collate, resize_example
from trajformer.heads.detr.voc import VocConfig, VocDataset, read_annotation

SIZE = (60, 100)  # shorter and longest side of examples
CLASSES = ("dish", "cell")


def white_box(image: Tensor) -> list[float]:
    """Corners of the white pixels of an image."""
    rows, columns = (image[0] > 0.5).nonzero().unbind(1)
    left, top = columns.min().item(), rows.min().item()
    return [left, top, columns.max().item() + 1, rows.max().item() + 1]


def test_batches_are_padded_and_boxes_are_fractions_of_their_image() -> None:
    one = marked_example(20, 30, (3, 4, 9, 16))
    two = marked_example(10, 40, (0, 0, 40, 10), label=2)
    no_label = torch.zeros(0, dtype=torch.int64)
    none = replace(marked_example(5, 5, (0, 0, 5, 5)), box=torch.zeros(0, 4), label=no_label)
    batch = collate([one, two, none])

    assert batch.pixels.shape == (3, 3, 20, 40)
    assert batch.mask is not None
    assert [int(mask.sum()) for mask in batch.mask] == [600, 400, 25]
    assert batch.mask[1, 9, 39]
    assert not batch.mask[1, 10, 0]
    in_padding = ~batch.mask[:, None].expand(-1, 3, -1, -1)
    assert not batch.pixels[in_padding].any()

    targets = batch.targets
    assert targets.mask.tolist() == [[True], [True], [False]]
    assert targets.label[:, 0].tolist() == [1, 2, 0]
    expected = torch.tensor([[0.2, 0.5, 0.2, 0.6], [0.5, 0.5, 1.0, 1.0]])
    torch.testing.assert_close(targets.box[:2, 0], expected)

    moved = batch.to(torch.device("cpu"))
    assert moved.name == batch.name
    assert torch.equal(moved.targets.box, targets.box)
    assert collate([one, one]).mask is None


def test_boxes_are_augmented_with_the_image() -> None:
    example = marked_example(60, 90, (30, 25, 50, 37))
    unchanged = augment_example(example, BoxAugmentConfig(), np.random.default_rng(0))
    assert torch.equal(unchanged.image, example.image)

    config = BoxAugmentConfig(flip=0.5, flip_vertical=0.5, crop=1.0, smallest=0.7, light=0.2)
    for seed in range(12):
        augmented = augment_example(example, config, np.random.default_rng(seed))
        assert white_box(augmented.image) == augmented.box[0].tolist()
        resized = resize_example(augmented, 120, 150)
        assert max(resized.image.shape) <= 150
        assert min(resized.image.shape[1:]) <= 120
        np.testing.assert_allclose(white_box(resized.image), resized.box[0], atol=1.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four entries: two valid ones, one without annotation, one with a truncated image."""
    for part in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (tmp_path / part).mkdir(parents=True)
    first = voc_annotation(("cell", 4, 5, 20, 25), ("cell", 7, 7, 7, 9), ("dust", 1, 1, 3, 3))
    second = voc_annotation(("dish", 1.5, 2, 10, 40))
    for number, (width, height) in enumerate([(40, 30), (20, 50), (40, 30), (40, 30)]):
        pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3))
        image = Image.fromarray(pixels.astype(np.uint8))
        image.save(tmp_path / "JPEGImages" / f"p{number}.jpg")
        text = second if number == 1 else first
        (tmp_path / "Annotations" / f"p{number}.xml").write_text(text)
    (tmp_path / "Annotations" / "p2.xml").unlink()
    truncated = tmp_path / "JPEGImages" / "p3.jpg"
    truncated.write_bytes(truncated.read_bytes()[:700])
    (tmp_path / "ImageSets/Main/train.txt").write_text("p0 1\np1 -1\n\np2\np3\n")
    return tmp_path


def test_images_of_a_folder_are_resized_with_their_boxes(folder: Path) -> None:
    dataset = VocDataset(VocConfig(str(folder)), "train", CLASSES, SIZE)
    assert len(dataset) == 2
    assert dataset.sizes(np.array([1, 0])).tolist() == [[50, 20], [30, 40]]
    first = dataset.example(0)
    assert first.name == "p0"
    assert first.label.tolist() == [1]
    assert first.original == (30, 40)
    twice = torch.tensor([[8.0, 10.0, 40.0, 50.0]])
    torch.testing.assert_close(first.box, twice)
    second = dataset.example(1)
    assert second.label.tolist() == [0]
    assert second.image.shape == (3, 100, 40)
    batch = dataset[[0, 1]]
    assert batch.original.tolist() == [[30, 40], [50, 20]]
    assert batch.mask is not None


def test_unusable_images_and_boxes_are_left_out_and_listed(folder: Path) -> None:
    dataset = VocDataset(VocConfig(str(folder)), "train", CLASSES, SIZE)
    skipped = "\n".join(dataset.skipped)
    assert len(dataset.skipped) == 4
    assert "p0: 1 boxes without area left out" in skipped
    assert "1 objects of class 'dust' left out" in skipped
    assert f"skipped {folder}/Annotations/p2.xml: not an annotation: no such file" in skipped
    assert f"skipped {folder}/JPEGImages/p3.jpg: not a readable image" in skipped


def test_boxes_are_cut_at_the_border_of_their_image(folder: Path) -> None:
    outside = voc_annotation(
        ("cell", 30, -9, 90, 20), ("cell", 50, 5, 60, 9), ("cell", 1, 1, 41, 9)
    )
    (folder / "Annotations" / "p0.xml").write_text(outside)
    dataset = VocDataset(VocConfig(str(folder)), "train", CLASSES, (30, 40))
    assert dataset.example(0).box.tolist() == [[30.0, 0.0, 40.0, 20.0], [1.0, 1.0, 40.0, 9.0]]
    assert "p0: 2 boxes reach out of their image and are cut" in dataset.skipped
    assert "p0: 1 boxes without area left out" in dataset.skipped


def test_loader_processes_receive_no_cached_images(folder: Path) -> None:
    dataset = VocDataset(VocConfig(str(folder)), "train", CLASSES, SIZE)
    assert dataset.cache
    copy = pickle.loads(pickle.dumps(dataset))
    assert not copy.cache
    assert torch.equal(copy.example(0).image, dataset.example(0).image)


@pytest.mark.parametrize(
    ("root", "split", "label", "reason"),
    [
        (".", "val", "cell", r"ImageSets/Main/val\.txt: cannot be read \(splits here: train\)"),
        (".", "train", "bird", "no object of the classes bird; 1 objects of class 'cell' left out"),
        ("nowhere", "train", "cell", r"cannot be read \(splits here: none\)"),
    ],
)
def test_folders_without_usable_objects_are_rejected(
    folder: Path, root: str, split: str, label: str, reason: str
) -> None:
    with pytest.raises(TrajformerError, match=reason):
        VocDataset(VocConfig(str(folder / root)), split, (label,), SIZE)


def test_augmentation_differs_between_epochs_and_is_reproducible(folder: Path) -> None:
    config = VocConfig(str(folder), vary=BoxAugmentConfig(flip=0.5, crop=1.0, light=0.3))
    augmented = VocDataset(config, "train", CLASSES, SIZE, seed=7)
    images = [augmented.example(0, epoch).image for epoch in range(4)]
    for epoch, image in enumerate(images):
        for other in images[:epoch]:
            assert not torch.equal(image, other)
    assert torch.equal(augmented.example(0, 2).image, images[2])

    uncached = VocDataset(replace(config, cache=False), "train", CLASSES, SIZE, seed=7)
    assert torch.equal(uncached.example(0, 2).image, images[2])
    assert not uncached.cache

    plain = VocDataset(config, "train", CLASSES, SIZE, seed=None)
    assert torch.equal(plain.example(0, 2).image, plain.example(0).image)


VALID = voc_annotation(("cell", 1, 2, 3, 4))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', "document type"),
        ("<annotation><object>", "no element found"),
        (voc_annotation(("", 1, 2, 3, 4)), "no name"),
        (voc_annotation(("cell", 1, 2, float("nan"), 4)), "not finite"),
        (VALID.replace("<xmax>3", "<xmax>wide"), "wide"),
        (VALID.replace("ymin", "y"), "no bndbox/ymin"),
        ("", "no element found"),
        ("\0", "not UTF-8"),  # UTF-16 contains zeros and could hide a document type
    ],
)
def test_invalid_annotations_are_rejected_with_the_file_name(
    text: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "a.xml"
    path.write_text(text)
    with pytest.raises(TrajformerError, match=rf"a\.xml: not an annotation: .*{reason}"):
        read_annotation(path)


def test_all_blood_cells_are_read_except_two_boxes_without_area(real_data: Path) -> None:
    labels = ("RBC", "WBC", "Platelets")
    config = VocConfig(str(real_data / "bccd" / "BCCD"), cache=False)
    counts = dict.fromkeys(labels, 0)
    skipped: list[str] = []
    for split, images in (("train", 205), ("val", 87), ("test", 72)):
        dataset = VocDataset(config, split, labels, (240, 320))
        assert len(dataset) == images
        skipped += dataset.skipped
        for image in dataset.images:
            assert image.size == (480, 640)
            for label in image.label.tolist():
                counts[labels[label]] += 1
    assert counts == {"RBC": 4153, "WBC": 372, "Platelets": 361}
    assert sorted(skipped) == [
        "BloodImage_00338: 1 boxes without area left out",
        "BloodImage_00343: 1 boxes without area left out",
    ]
