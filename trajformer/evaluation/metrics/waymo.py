"""Metrics of the Waymo motion and interaction prediction challenges, on arrays.

The definitions follow the published metrics library (`motion_metrics.cc` of waymo-open-dataset). A
group is predicted together: a single object, or an interacting pair. Letters: K modes, N
objects of a group, P points (16 at 2 Hz), R measured points (3, 5 and 8 s), O other objects.

- minADE and minFDE: the smallest mean error over the objects of a group, of K modes.
- Miss: at a measured point, no mode has all objects within the limits sideways and lengthways in
  the frame of the true heading. The limits grow with the present speed.
- Overlap: the box of an object in the most confident mode overlaps with the recorded box of another
  object that was seen at the present, at any point up to the measured one.
- mAP: average precision of all modes of all groups, sorted by confidence, for each shape of the
  true path; then the mean over shapes. Only the most confident match of a group is a hit; others
  are false alarms, or left out in Soft mAP.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from trajformer.evaluation.metrics.boxes import boxes_overlap

METRICS = ("minADE", "minFDE", "miss_rate", "overlap_rate", "mAP", "soft_mAP")


class Shape(IntEnum):
    """Shapes of recorded paths; a pair has the larger number of its objects."""

    STATIONARY = 0
    STRAIGHT = 1
    STRAIGHT_RIGHT = 2
    STRAIGHT_LEFT = 3
    RIGHT_TURN = 4
    LEFT_TURN = 5
    LEFT_U_TURN = 6
    RIGHT_U_TURN = 7  # counts as a right turn in mAP


UNKNOWN_SHAPE = -1
STATIONARY_M_S = 2.0
STATIONARY_M = 3.0
STRAIGHT_RAD = np.pi / 6
STRAIGHT_M = 2.5


@dataclass(frozen=True)
class Rules:
    """Constants of the challenges."""

    points: tuple[int, ...] = (5, 9, 15)  # measured, of 16
    sideways_m: tuple[float, ...] = (1.0, 1.8, 3.0)
    lengthways_m: tuple[float, ...] = (2.0, 3.6, 6.0)
    slow_m_s: float = 1.4
    fast_m_s: float = 11.0
    slow_scale: float = 0.5  # of the limits
    fast_scale: float = 1.0
    modes: int = 6  # the first ones count


class Boxes(NamedTuple):
    """Recorded boxes of O objects that are seen at the present."""

    position: np.ndarray  # [O, P, 2], metres
    heading: np.ndarray  # [O, P], radians
    size: np.ndarray  # [O, 2], length and width in metres
    valid: np.ndarray  # bool [O, P]


class Group(NamedTuple):
    """The prediction of a group and its truth."""

    confidence: np.ndarray  # [K], of any scale
    position: np.ndarray  # [K, N, P, 2], metres
    member: np.ndarray  # int64 [N], index of the objects in `boxes`
    boxes: Boxes
    speed: np.ndarray  # [N], m/s at the present
    kind: int  # class of the group in the table
    shape: int  # Shape, or UNKNOWN_SHAPE


class GroupMetrics(NamedTuple):
    """Values of a group at R measured points; NaN if nothing is recorded."""

    min_ade: np.ndarray  # [R]
    min_fde: np.ndarray  # [R]
    miss: np.ndarray  # [R], 0 or 1
    overlap: np.ndarray  # [R], 0 or 1
    match: np.ndarray  # bool [K, R]
    confidence: np.ndarray  # [K]


def path_shape(
    start: np.ndarray, end: np.ndarray, heading: tuple[float, float], speed: tuple[float, float]
) -> Shape:
    """The shape of a recorded path.

    `start` and `end` are [2], in metres, the present and the last recorded position. `heading`
    (radians) and `speed` (m/s) are recorded there.
    """
    delta = np.subtract(end, start, dtype=np.float64)
    turn = (heading[1] - heading[0] + np.pi) % (2 * np.pi) - np.pi
    cos, sin = np.cos(heading[0]), np.sin(heading[0])
    along = cos * delta[0] + sin * delta[1]
    left = cos * delta[1] - sin * delta[0]
    if max(speed) < STATIONARY_M_S and np.hypot(*delta) < STATIONARY_M:
        return Shape.STATIONARY
    if abs(turn) < STRAIGHT_RAD:
        if abs(left) < STRAIGHT_M:
            return Shape.STRAIGHT
        return Shape.STRAIGHT_RIGHT if left < 0 else Shape.STRAIGHT_LEFT
    if left < 0:
        return Shape.RIGHT_U_TURN if along < 0 else Shape.RIGHT_TURN
    return Shape.LEFT_U_TURN if along < 0 else Shape.LEFT_TURN


def group_metrics(group: Group, rules: Rules = Rules()) -> GroupMetrics:
    """All metrics of a group except the average precisions."""
    position = group.position[: rules.modes].astype(np.float64)
    confidence = group.confidence[: rules.modes]
    boxes = group.boxes
    gap = position - boxes.position[group.member]  # [K, N, P, 2]
    valid = boxes.valid[group.member]  # [N, P]
    ade, fde = _errors(np.hypot(gap[..., 0], gap[..., 1]), valid, rules)
    known = valid[:, list(rules.points)].all(0)  # [R]
    match = _matches(gap, boxes.heading[group.member], group.speed, rules) & known
    best = position[confidence.argmax()]
    return GroupMetrics(
        min_ade=ade.min(0),
        min_fde=fde.min(0),
        miss=np.where(known, ~match.any(0), np.nan),
        overlap=_overlap(best, group, rules).astype(np.float64),
        match=match,
        confidence=confidence,
    )


def _errors(distance: np.ndarray, valid: np.ndarray, rules: Rules) -> tuple[np.ndarray, np.ndarray]:
    """ADE and FDE [K, R], means over objects; NaN if an object has no recorded point."""
    seen = np.where(valid, distance, 0.0).cumsum(-1)  # [K, N, P]
    count = valid.cumsum(-1)
    with np.errstate(invalid="ignore"):
        ade = (seen / count)[..., list(rules.points)]
    fde = np.where(valid, distance, np.nan)[..., list(rules.points)]
    return ade.mean(1), fde.mean(1)


def _matches(gap: np.ndarray, heading: np.ndarray, speed: np.ndarray, rules: Rules) -> np.ndarray:
    """Whether all objects of a mode are within the limits, bool [K, R].

    `gap` is [K, N, P, 2], predicted minus recorded; `heading` [N, P] and `speed` [N].
    """
    points = list(rules.points)
    gap = gap[:, :, points]
    cos = np.cos(heading[:, points])
    sin = np.sin(heading[:, points])
    lengthways = np.abs(cos * gap[..., 0] + sin * gap[..., 1])
    sideways = np.abs(cos * gap[..., 1] - sin * gap[..., 0])
    fraction = (speed - rules.slow_m_s) / (rules.fast_m_s - rules.slow_m_s)
    spread = rules.fast_scale - rules.slow_scale
    scale = rules.slow_scale + spread * np.clip(fraction, 0.0, 1.0)
    is_near = lengthways / scale[:, None] <= np.array(rules.lengthways_m)
    is_near &= sideways / scale[:, None] <= np.array(rules.sideways_m)
    return is_near.all(1)


def _overlap(best: np.ndarray, group: Group, rules: Rules) -> np.ndarray:
    """Whether a predicted box [N, P, 2] overlaps up to each measured point, bool [R]."""
    boxes = group.boxes
    step = np.diff(best, axis=1)
    angle = np.arctan2(step[..., 1], step[..., 0])  # [N, P - 1]
    before, after = angle[:, :-1], angle[:, 1:]
    middle = np.arctan2(np.sin(before) + np.sin(after), np.cos(before) + np.cos(after))
    heading = np.concatenate([angle[:, :1], middle, angle[:, -1:]], 1)

    size = boxes.size[group.member]
    offset = best[:, None] - boxes.position  # [N, O, P, 2]
    overlap = boxes_overlap(
        offset, heading[:, None], size[:, None, None], boxes.heading, boxes.size[:, None]
    )
    is_other = np.arange(len(boxes.size)) != group.member[:, None]  # [N, O]
    # An object without a recorded box at a point has no size there.
    own_valid = boxes.valid[group.member][:, None]
    overlap &= is_other[..., None] & boxes.valid & own_valid
    first: np.ndarray = np.logical_or.accumulate(overlap.any((0, 1)))
    return first[list(rules.points)]


# ---- average precision ---------------------------------------------------------------------------


def average_precision(confidence: np.ndarray, is_hit: np.ndarray, positives: int) -> float:
    """Area below the interpolated curve of precision and recall.

    `confidence` [n] and `is_hit` bool [n] are the modes; `positives` is the number of groups. Of
    equal confidences the false alarms come first.
    """
    if not len(confidence):
        return 0.0
    order = np.lexsort((is_hit, -confidence))
    hits = is_hit[order].cumsum()
    precision = hits / np.arange(1, len(hits) + 1)
    recall = hits / positives
    # The precision at a recall is the largest one at this or a higher recall.
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float((np.diff(recall, prepend=0.0) * envelope).sum())


class _Samples:
    """The modes of all groups of a class, a measured point and a shape."""

    def __init__(self) -> None:
        self.confidence: list[float] = []
        self.is_hit: list[bool] = []
        self.positives = 0

    def add(self, confidence: np.ndarray, match: np.ndarray, soft: bool) -> None:
        """Add the modes [K] of a group."""
        self.positives += 1
        was_found = False
        for mode in np.argsort(-confidence, kind="stable").tolist():
            is_match = bool(match[mode])
            if not (soft and is_match and was_found):
                self.confidence.append(float(confidence[mode]))
                self.is_hit.append(is_match and not was_found)
            was_found = was_found or is_match

    def average_precision(self) -> float:
        """See `average_precision`."""
        return average_precision(np.array(self.confidence), np.array(self.is_hit), self.positives)


def score(groups: Iterable[Group], rules: Rules = Rules()) -> dict[int, list[dict[str, float]]]:
    """The `METRICS` and the number of groups by class of the groups, at each measured point."""
    values: dict[int, list[tuple[np.ndarray, ...]]] = defaultdict(list)
    samples: dict[tuple[int, int, bool, int], _Samples] = defaultdict(_Samples)
    for group in groups:
        metrics = group_metrics(group, rules)
        values[group.kind].append(metrics[:4])
        if group.shape == UNKNOWN_SHAPE:
            continue
        shape = group.shape
        if shape == Shape.RIGHT_U_TURN:
            shape = Shape.RIGHT_TURN
        for point in range(len(rules.points)):
            if np.isnan(metrics.miss[point]):
                continue
            for soft in (False, True):
                bucket = samples[group.kind, point, soft, int(shape)]
                bucket.add(metrics.confidence, metrics.match[:, point], soft)

    table: dict[int, list[dict[str, float]]] = {}
    for kind, rows in sorted(values.items()):
        means = _means(np.array(rows))  # [4, R]
        table[kind] = []
        for point in range(len(rules.points)):
            row = dict(zip(METRICS[:4], means[:, point].tolist(), strict=True))
            for name, soft in (("mAP", False), ("soft_mAP", True)):
                buckets = [samples.get((kind, point, soft, int(shape))) for shape in Shape]
                row[name] = _mean_over_shapes(buckets)
            table[kind].append(row | {"num_groups": len(rows)})
    return table


def _means(rows: np.ndarray) -> np.ndarray:
    """Means [4, R] of values [groups, 4, R] that are known; 0 without any."""
    known = ~np.isnan(rows)
    total: np.ndarray = np.where(known, rows, 0.0).sum(0)
    return total / np.maximum(known.sum(0), 1)


def _mean_over_shapes(buckets: Sequence[_Samples | None]) -> float:
    precisions = [bucket.average_precision() for bucket in buckets if bucket is not None]
    return float(np.mean(precisions)) if precisions else 0.0
