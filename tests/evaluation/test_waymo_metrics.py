"""Waymo's metrics: the cases and numbers of the published tests, written as arrays."""

import numpy as np
import pytest

from trajformer.evaluation.metrics.waymo import (
    Boxes,
    Group,
    Rules,
    Shape,
    average_precision,
    group_metrics,
    path_shape,
    score,
)

# Two vehicles and four points at 10 Hz: one drives along the diagonal, one along -x.
DIAGONAL = np.array([[4.0, 4.0], [6.0, 6.0], [8.0, 8.0], [10.0, 10.0]])
BACK = np.array([[-2.0, 0.0], [-3.0, 0.0], [-4.0, 0.0], [-5.0, 0.0]])
PLAIN = Rules(points=(3,), sideways_m=(1.0,), lengthways_m=(2.0,), slow_scale=1.0)


def pair(
    *modes: tuple[np.ndarray, np.ndarray],
    confidence: tuple[float, ...] = (0.5,),
    speed: float = 10.0,
    kind: int = 1,
    shape: Shape = Shape.STRAIGHT,
) -> Group:
    """The prediction of both vehicles; the boxes have no size."""
    heading = np.stack([np.full(4, np.pi / 4), np.full(4, np.pi)])
    boxes = Boxes(np.stack([DIAGONAL, BACK]), heading, np.zeros((2, 2)), np.ones((2, 4), bool))
    return Group(
        confidence=np.array(confidence),
        position=np.array(modes),
        member=np.arange(2),
        boxes=boxes,
        speed=np.array([np.hypot(20, 20), speed]),
        kind=kind,
        shape=shape,
    )


def ended(path: np.ndarray, x: float, y: float) -> np.ndarray:
    """The path with another last point."""
    changed = path.copy()
    changed[-1] = x, y
    return changed


@pytest.mark.parametrize(
    ("first", "second", "is_miss"),
    [
        (DIAGONAL, BACK, False),
        (DIAGONAL, BACK + np.array([0.0, 1.01]), True),
        (ended(DIAGONAL, 9.292, 10.708), BACK, True),
        (ended(DIAGONAL, 9.294, 10.706), BACK, False),
        (DIAGONAL, ended(BACK, -7.01, 0.0), True),
        (ended(DIAGONAL, 11.415, 11.415), BACK, True),
        (ended(DIAGONAL, 11.414, 11.414), BACK, False),
    ],
)
def test_a_pair_misses_if_one_object_is_beyond_a_limit(
    first: np.ndarray, second: np.ndarray, is_miss: bool
) -> None:
    [row] = score([pair((first, second))], PLAIN)[1]
    assert row["miss_rate"] == float(is_miss)
    assert row["mAP"] == float(not is_miss)


@pytest.mark.parametrize("end", [(-5.0, 0.75), (-6.5, 0.0)])
@pytest.mark.parametrize(
    ("speed", "is_miss"), [(10.0, False), (0.0, True), (1.9999, True), (2.001, False)]
)
def test_limits_grow_with_the_present_speed(
    end: tuple[float, float], speed: float, is_miss: bool
) -> None:
    rules = Rules((3,), (1.0,), (2.0,), slow_m_s=1.0, fast_m_s=3.0)
    group = pair((DIAGONAL, ended(BACK, *end)), speed=speed)
    assert group_metrics(group, rules).miss.tolist() == [float(is_miss)]


def test_average_precision_of_two_modes_of_a_pair() -> None:
    far = (DIAGONAL, ended(BACK, -7.01, 0.0))
    both = pair(far, (DIAGONAL, BACK), confidence=(0.8, 0.5))
    [row] = score([both], PLAIN)[1]
    assert (row["miss_rate"], row["mAP"]) == (0.0, 0.5)
    missed = pair(far, (ended(DIAGONAL, 14.0, 14.0), BACK), confidence=(0.8, 0.5))
    [row] = score([missed], PLAIN)[1]
    assert (row["miss_rate"], row["mAP"]) == (1.0, 0.0)


def test_errors_of_a_pair_are_means_over_its_objects() -> None:
    x = np.array([4.0, 6.0, 8.0, 10.0])
    y = np.array([2.0, 3.0, 4.0, 5.0])
    zero = np.zeros(4)
    near = (np.stack([x, zero], -1), np.stack([zero, y], -1))
    far = (np.stack([x + 10, zero], -1), np.stack([zero, y + 20], -1))
    metrics = group_metrics(pair(near, far, confidence=(0.5, 0.5)), PLAIN)
    np.testing.assert_allclose(metrics.min_ade, 5.97487, atol=1e-4)
    np.testing.assert_allclose(metrics.min_fde, 8.53553, atol=1e-4)


def test_average_precision_of_samples() -> None:
    confidence = np.array([0.3, 0.7, 0.4, 0.8, 0.5, 0.2])
    is_hit = np.array([True, True, False, True, False, False])
    assert average_precision(confidence, is_hit, 4) == pytest.approx(0.65)
    confidence = np.array([0.8, 0.5, 0.5, 0.5, 0.5, 0.5])
    is_hit = np.array([True, False, True, True, False, False])
    assert average_precision(confidence, is_hit, 6) == pytest.approx(1 / 3)


def test_soft_precision_skips_further_matches() -> None:
    """The less confident match is a false alarm of mAP in front of the hit of another group."""
    twice = pair((DIAGONAL, BACK), (DIAGONAL, BACK), confidence=(0.9, 0.8))
    once = pair((DIAGONAL, BACK), confidence=(0.7,))
    [row] = score([twice, once], PLAIN)[1]
    assert row["mAP"] == pytest.approx(0.5 + 0.5 * 2 / 3)
    assert row["soft_mAP"] == 1.0


@pytest.mark.parametrize(
    ("end", "heading", "speed", "shape"),
    [
        ((2.0, 0.0), 0.0, 1.9, Shape.STATIONARY),
        ((3.1, 0.0), 0.0, 1.9, Shape.STRAIGHT),
        ((2.0, 0.0), 0.0, 2.1, Shape.STRAIGHT),
        ((30.0, 2.4), 0.5, 9.0, Shape.STRAIGHT),
        ((30.0, -2.6), 0.5, 9.0, Shape.STRAIGHT_RIGHT),
        ((30.0, 2.6), -0.5, 9.0, Shape.STRAIGHT_LEFT),
        ((10.0, -5.0), -1.5, 9.0, Shape.RIGHT_TURN),
        ((10.0, 5.0), 1.5, 9.0, Shape.LEFT_TURN),
        ((-1.0, 9.0), 3.0, 9.0, Shape.LEFT_U_TURN),
        ((-1.0, -9.0), -3.0, 9.0, Shape.RIGHT_U_TURN),
    ],
)
def test_shapes_of_paths(
    end: tuple[float, float], heading: float, speed: float, shape: Shape
) -> None:
    for frame in (0.0, 2.5):  # the shape does not depend on the frame
        turn = np.array([[np.cos(frame), -np.sin(frame)], [np.sin(frame), np.cos(frame)]])
        start = np.array([100.0, -50.0])
        result = path_shape(start, start + turn @ end, (frame, frame + heading), (0.0, speed))
        assert result == shape


def test_right_u_turns_count_as_right_turns() -> None:
    """One shape with two groups, not two shapes."""
    hit = pair((DIAGONAL, BACK), shape=Shape.RIGHT_U_TURN)
    missed = pair((DIAGONAL, ended(BACK, -9.0, 0.0)), confidence=(0.9,), shape=Shape.RIGHT_TURN)
    [row] = score([hit, missed], PLAIN)[1]
    assert row["mAP"] == pytest.approx(0.25)


def test_boxes_overlap_with_recorded_boxes_of_others() -> None:
    """A forecast along x meets a standing car at its third point, up to the end."""
    x = np.array([0.0, 5.0, 10.0, 15.0])
    path = np.stack([x, np.zeros(4)], -1)
    standing = np.full((4, 2), [12.0, 1.0])
    boxes = Boxes(
        position=np.stack([path, standing]),
        heading=np.zeros((2, 4)),
        size=np.array([[4.0, 2.0], [4.0, 2.0]]),
        valid=np.ones((2, 4), bool),
    )
    rules = Rules(points=(1, 2, 3), sideways_m=(1.0,) * 3, lengthways_m=(2.0,) * 3)
    group = Group(np.ones(1), path[None, None], np.zeros(1, int), boxes, np.ones(1), 1, 1)
    assert group_metrics(group, rules).overlap.tolist() == [0.0, 1.0, 1.0]
    # Boxes that only touch do not overlap; unknown boxes do not exist.
    apart = boxes._replace(position=np.stack([path, standing + np.array([0.0, 1.0])]))
    assert not group_metrics(group._replace(boxes=apart), rules).overlap.any()
    unknown = boxes._replace(valid=np.array([[True] * 4, [False] * 4]))
    assert not group_metrics(group._replace(boxes=unknown), rules).overlap.any()


def test_points_that_are_not_recorded_do_not_count() -> None:
    group = pair((DIAGONAL, BACK + 1.0))
    valid = np.ones((2, 4), bool)
    valid[1, 3] = False
    metrics = group_metrics(group._replace(boxes=group.boxes._replace(valid=valid)), PLAIN)
    np.testing.assert_allclose(metrics.min_ade, np.sqrt(2) / 2)
    assert np.isnan(metrics.min_fde).all() and np.isnan(metrics.miss).all()
