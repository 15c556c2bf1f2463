"""Average precision of detectors as COCO defines it, computed by pycocotools."""

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
from trajformer.heads.detr.data.batch import DetectionBatch
from trajformer.heads.detr.model import Found

_MOST = 100  # detections a picture that count, the surest ones


@dataclass(frozen=True, eq=False)
class Labelled:
    """Boxes in one picture: corners float [n, 4] in pixels and classes int [n]; `score` float [n] where they were found."""

    box: np.ndarray
    label: np.ndarray
    score: np.ndarray | None = None


def average_precision(found: Sequence[Labelled], true: Sequence[Labelled], labels: Sequence[str]) -> dict[str, float]:
    """Mean average precision over the classes of which there are objects.

    Args:
        found: what was found in each picture, with scores.
        true: what is there, in the same order of pictures.
        labels: names of the classes.

    Returns:
        In 0..1: "AP", the mean over thresholds of 0.5, 0.55, ... 0.95 on intersection over union, "AP50" and "AP75" at one
        of them, and "AP50 <class>" for every class that occurs.

    Raises:
        TrajformerError: pycocotools is not installed, or there is no object at all.
    """
    try:
        from pycocotools.coco import COCO  # type: ignore[import-untyped]
        from pycocotools.cocoeval import COCOeval  # type: ignore[import-untyped]
    except ImportError as error:
        raise TrajformerError("average precision needs pycocotools (pip install pycocotools)") from error
    if not any(len(one.label) for one in true):
        raise TrajformerError("average precision: there is no object in any picture")
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does
        truth = COCO()
        truth.dataset = {
            "info": {},
            "images": [{"id": index} for index in range(len(true))],
            "categories": [{"id": index, "name": name} for index, name in enumerate(labels)],
            "annotations": _rows(true),
        }
        truth.createIndex()
        rows = _rows(found)
        evaluation = COCOeval(truth, truth.loadRes(rows) if rows else COCO(), "bbox")
        evaluation.params.maxDets = [1, 10, _MOST]
        evaluation.evaluate()
        evaluation.accumulate()
    precision = evaluation.eval["precision"][:, :, :, 0, -1]  # thresholds, recall, classes; -1 for a class without objects
    means = np.where((precision > -1).any((0, 1)), precision.mean(1), np.nan)  # [thresholds, classes]
    result = {"AP": means, "AP50": means[0], "AP75": means[5]}
    each = {f"AP50 {name}": value for name, value in zip(labels, means[0].tolist(), strict=True) if not np.isnan(value)}
    return {name: float(np.nanmean(values)) for name, values in result.items()} | each


def compare(batch: DetectionBatch, found: Sequence[Found]) -> list[tuple[Labelled, Labelled]]:
    """What was found in each picture of a batch, in pixels of the original, and what is there."""
    targets = batch.targets
    scale = batch.original.flip(-1).repeat(1, 2)[:, None]  # width, height, width, height
    true = to_corners(targets.box * scale)
    pairs = []
    for one, box, label, mask in zip(found, true, targets.label, targets.mask, strict=True):
        there = Labelled(_array(box[mask]), _array(label[mask]))
        pairs.append((Labelled(_array(one.box), _array(one.label), _array(one.score)), there))
    return pairs


def _array(values: torch.Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()


def _rows(pictures: Sequence[Labelled]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for picture, one in enumerate(pictures):
        scores = np.ones(len(one.label)) if one.score is None else one.score
        for (left, top, right, bottom), label, score in zip(one.box.tolist(), one.label.tolist(), scores.tolist(), strict=True):
            width, height = right - left, bottom - top
            row = {"image_id": picture, "category_id": label, "bbox": [left, top, width, height], "score": score}
            rows.append(row | {"id": len(rows) + 1, "area": width * height, "iscrowd": 0})
    return rows
