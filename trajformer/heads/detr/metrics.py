"""Average precision of detectors by the definition of COCO, computed with pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence

import numpy as np

from trajformer.errors import TrajformerError
from trajformer.heads.detr.boxes import to_corners
from trajformer.heads.detr.data import DetectionBatch
from trajformer.heads.detr.model import Objects

MAX_DETECTIONS = 100  # per image; the ones with the highest scores count
BoxTable = np.ndarray  # float64 [n, 6], boxes of an image: left, top, width and height in pixels, score (1 for labels), class


def average_precision(pairs: Sequence[tuple[BoxTable, BoxTable]], labels: Sequence[str]) -> dict[str, float]:
    """Mean average precision over the classes that occur.

    Args:
        pairs: detections and labels of each image.
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
    tables = [[np.insert(table, 0, image, axis=1) for image, table in enumerate(column)] for column in zip(*pairs, strict=True)]
    detected, true = (np.concatenate(column) for column in tables)  # [N, 7], with the image as first column
    if not len(true):
        raise TrajformerError("average precision: no image has an object")
    with contextlib.redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        images = COCO()
        images.dataset = {"info": {}, "images": [{"id": index} for index in range(len(pairs))]}
        images.dataset["categories"] = [{"id": index, "name": name} for index, name in enumerate(labels)]
        images.createIndex()
        evaluation = COCOeval(images.loadRes(true), images.loadRes(detected) if len(detected) else COCO(), "bbox")
        evaluation.params.maxDets = [1, 10, MAX_DETECTIONS]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # [thresholds, recall, classes]; -1 for a class without objects
    means = np.where((precision > -1).any((0, 1)), precision.mean(1), np.nan)  # [thresholds, classes]
    result = {"AP": means, "AP50": means[0], "AP75": means[5]}
    per_class = {f"AP50 {name}": value for name, value in zip(labels, means[0].tolist(), strict=True) if not np.isnan(value)}
    return {name: float(np.nanmean(values)) for name, values in result.items()} | per_class


def pair_with_labels(batch: DetectionBatch, objects: Sequence[Objects]) -> list[tuple[BoxTable, BoxTable]]:
    """Detections and labels of each image of a batch, in pixels of the original image."""
    targets = batch.targets.to("cpu")
    corners = to_corners(targets.box * batch.original.cpu().flip(-1).repeat(1, 2)[:, None]).numpy()
    pairs = []
    for found, box, label, mask in zip(objects, corners, targets.label.numpy(), targets.mask.numpy(), strict=True):
        found = found.to("cpu")
        table = _table(found.box.numpy(), found.score.numpy(), found.label.numpy())
        pairs.append((table, _table(box[mask], np.ones(mask.sum()), label[mask])))
    return pairs


def _table(box: np.ndarray, score: np.ndarray, label: np.ndarray) -> BoxTable:
    box = box.astype(np.float64)
    return np.column_stack([box[:, :2], box[:, 2:] - box[:, :2], score, label])
