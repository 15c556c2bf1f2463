"""Average precision of detections, computed by pycocotools."""

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from trajformer.errors import TrajformerError
from trajformer.heads.detr.boxes import to_corners
from trajformer.heads.detr.data import DetectionBatch
from trajformer.heads.detr.objects import Objects

MAX_DETECTIONS = 100  # per image and class; the ones with the highest scores count
# Boxes of an image, float64 [n, 6]: left, top, width and height in pixels, score (1 for labels),
# class.
BoxTable = np.ndarray


def average_precision(
    pairs: Sequence[tuple[BoxTable, BoxTable]], labels: Sequence[str]
) -> dict[str, float]:
    """Mean average precision over the classes that occur.

    Args:
        pairs: detections and labels of each image.
        labels: names of the classes.

    Returns:
        In 0..1: "AP", the mean over the IoU thresholds 0.5, 0.55, ... 0.95, "AP50" and "AP75" at
        one threshold, and "AP50 <class>" for every class that occurs.

    Raises:
        TrajformerError: pycocotools is not installed, or no image has an object.
    """
    detected = _with_image_index([detected for detected, _ in pairs])
    true = _with_image_index([true for _, true in pairs])
    if not len(true):
        raise TrajformerError("average precision: no image has an object")

    precision = _coco_precision(detected, true, len(pairs), labels)
    occurs = (precision > -1).any((0, 1))
    means = np.where(occurs, precision.mean(1), np.nan)  # [thresholds, classes]
    scores = {
        "AP": float(np.nanmean(means)),
        "AP50": float(np.nanmean(means[0])),
        "AP75": float(np.nanmean(means[5])),
    }
    for name, value in zip(labels, means[0].tolist(), strict=True):
        if not np.isnan(value):
            scores[f"AP50 {name}"] = value
    return scores


def _with_image_index(tables: Sequence[BoxTable]) -> np.ndarray:
    """All boxes [N, 7], with the index of the image as first column."""
    numbered = [np.insert(table, 0, image, axis=1) for image, table in enumerate(tables)]
    return np.concatenate(numbered)


def _coco_precision(
    detected: np.ndarray, true: np.ndarray, images: int, labels: Sequence[str]
) -> np.ndarray:
    """Precision [thresholds, recall, classes]; -1 for a class without objects."""
    try:
        from pycocotools.coco import COCO  # type: ignore[import-untyped]
        from pycocotools.cocoeval import COCOeval  # type: ignore[import-untyped]
    except ImportError as error:
        reason = "average precision needs pycocotools (pip install pycocotools)"
        raise TrajformerError(reason) from error

    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        dataset = COCO()
        image_ids = [{"id": index} for index in range(images)]
        categories = [{"id": index, "name": name} for index, name in enumerate(labels)]
        dataset.dataset = {"info": {}, "images": image_ids, "categories": categories}
        dataset.createIndex()
        predicted: Any = dataset.loadRes(detected) if len(detected) else COCO()
        evaluation = COCOeval(dataset.loadRes(true), predicted, "bbox")
        evaluation.params.maxDets = [1, 10, MAX_DETECTIONS]
        evaluation.evaluate()
        evaluation.accumulate()
    return evaluation.eval["precision"][:, :, :, 0, -1]  # all areas, MAX_DETECTIONS


def pair_with_labels(
    batch: DetectionBatch, objects: Sequence[Objects]
) -> list[tuple[BoxTable, BoxTable]]:
    """Detections and labels of each image of a batch, in pixels of the original image."""
    targets = batch.targets.to("cpu")
    scale = batch.original.cpu().flip(-1).repeat(1, 2)[:, None]  # width, height, width, height
    corners = to_corners(targets.box * scale)
    pairs = []
    for index, image_objects in enumerate(objects):
        detected = image_objects.to("cpu")
        mask = targets.mask[index]
        box = corners[index][mask].numpy()
        label = targets.label[index][mask].numpy()
        detected_table = _table(
            detected.box.numpy(), detected.score.numpy(), detected.label.numpy()
        )
        pairs.append((detected_table, _table(box, np.ones(len(box)), label)))
    return pairs


def _table(box: np.ndarray, score: np.ndarray, label: np.ndarray) -> BoxTable:
    box = box.astype(np.float64)
    size = box[:, 2:] - box[:, :2]
    return np.column_stack([box[:, :2], size, score, label])
