"""Average precision of detectors by the definition of COCO, computed with pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trajformer.errors import TrajformerError
from trajformer.heads.detr.boxes import to_corners
from trajformer.heads.detr.data import DetectionBatch
from trajformer.heads.detr.model import Objects

MAX_DETECTIONS = 100  # per image; the ones with the highest scores count


@dataclass(frozen=True, eq=False)
class ImageBoxes:
    """Boxes in one image.

    Attributes:
        box: corners float [n, 4], pixels.
        label: int [n].
        score: float [n] of detections; None for labels.
    """

    box: np.ndarray
    label: np.ndarray
    score: np.ndarray | None = None


def average_precision(detected: Sequence[ImageBoxes], true: Sequence[ImageBoxes], labels: Sequence[str]) -> dict[str, float]:
    """Mean average precision over the classes that occur.

    Args:
        detected: detections in each image.
        true: labeled boxes, in the same order of images.
        labels: names of the classes.

    Returns:
        In 0..1: "AP", the mean over the IoU thresholds 0.5, 0.55, ... 0.95, "AP50" and "AP75" at one threshold, and
        "AP50 <class>" for every class that occurs.

    Raises:
        TrajformerError: pycocotools is not installed, or no image has an object.
    """
    try:
        from pycocotools.coco import COCO  # type: ignore[import-untyped]
        from pycocotools.cocoeval import COCOeval  # type: ignore[import-untyped]
    except ImportError as error:
        raise TrajformerError("average precision needs pycocotools (pip install pycocotools)") from error
    if not any(len(one.label) for one in true):
        raise TrajformerError("average precision: no image has an object")
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        truth = COCO()
        truth.dataset = {
            "info": {},
            "images": [{"id": index} for index in range(len(true))],
            "categories": [{"id": index, "name": name} for index, name in enumerate(labels)],
            "annotations": _rows(true),
        }
        truth.createIndex()
        rows = _rows(detected)
        evaluation = COCOeval(truth, truth.loadRes(rows) if rows else COCO(), "bbox")
        evaluation.params.maxDets = [1, 10, MAX_DETECTIONS]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # [thresholds, recall, classes]; -1 for a class without objects
    means = np.where((precision > -1).any((0, 1)), precision.mean(1), np.nan)  # [thresholds, classes]
    result = {"AP": means, "AP50": means[0], "AP75": means[5]}
    per_class = {f"AP50 {name}": value for name, value in zip(labels, means[0].tolist(), strict=True) if not np.isnan(value)}
    return {name: float(np.nanmean(values)) for name, values in result.items()} | per_class


def pair_with_labels(batch: DetectionBatch, objects: Sequence[Objects]) -> list[tuple[ImageBoxes, ImageBoxes]]:
    """(detections, labels) for each image of a batch, in pixels of the original image."""
    targets = batch.targets
    scale = batch.original.flip(-1).repeat(1, 2)[:, None]  # [B, 1, 4]: width, height, width, height
    true = to_corners(targets.box * scale)
    pairs = []
    for one, box, label, mask in zip(objects, true, targets.label, targets.mask, strict=True):
        detected = ImageBoxes(_array(one.box), _array(one.label), _array(one.score))
        pairs.append((detected, ImageBoxes(_array(box[mask]), _array(label[mask]))))
    return pairs


def _array(values: torch.Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()


def _rows(images: Sequence[ImageBoxes]) -> list[dict[str, Any]]:
    """Annotations in the format of COCO."""
    rows: list[dict[str, Any]] = []
    for image, boxes in enumerate(images):
        scores = np.ones(len(boxes.label)) if boxes.score is None else boxes.score
        for corners, label, score in zip(boxes.box.tolist(), boxes.label.tolist(), scores.tolist(), strict=True):
            left, top, right, bottom = corners
            width, height = right - left, bottom - top
            row = {"image_id": image, "category_id": label, "bbox": [left, top, width, height], "score": score}
            rows.append(row | {"id": len(rows) + 1, "area": width * height, "iscrowd": 0})
    return rows
