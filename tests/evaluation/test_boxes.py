"""Overlaps of boxes: closed forms, and shapely on random boxes and real scenes."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.scenes import make_scene

from trajformer.evaluation.metrics.boxes import (
    ASSUMED_SIZE_M,
    agent_sizes,
    boxes_overlap,
    overlapping_pairs,
    overlaps,
    path_headings,
)
from trajformer.scenes.scene import AgentKind, Scene


def polygons(center: np.ndarray, heading: np.ndarray, size: np.ndarray) -> Any:
    """Boxes [n] as polygons of shapely."""
    shapely = pytest.importorskip("shapely")
    signs = np.array([[1, 1], [-1, 1], [-1, -1], [1, -1]]) / 2
    corner = signs * size[:, None]  # [n, 4, 2]
    cos = np.cos(heading)[:, None]
    sin = np.sin(heading)[:, None]
    x = corner[..., 0] * cos - corner[..., 1] * sin
    y = corner[..., 0] * sin + corner[..., 1] * cos
    return shapely.polygons(np.stack([x, y], -1) + center[:, None])


def test_every_kind_has_an_assumed_size() -> None:
    assert set(ASSUMED_SIZE_M) == set(AgentKind)


@pytest.mark.parametrize(
    ("offset", "turn", "expected"),
    [
        ((3.9, 0.0), 0.0, True),  # boxes of 4 m by 2 m behind each other
        ((4.0, 0.0), 0.0, False),  # they touch
        ((0.0, 1.9), 0.0, True),
        ((0.0, 2.1), 0.0, False),
        ((0.0, 2.9), math.pi / 2, True),  # across
        ((0.0, 3.1), math.pi / 2, False),
        ((3.1, 0.0), math.pi / 2, False),
        ((2.0 + 1.5 * math.sqrt(2) - 0.01, 0.0), math.pi / 4, True),  # a corner in the middle
        ((2.0 + 1.5 * math.sqrt(2) + 0.01, 0.0), math.pi / 4, False),
        ((2.9, 1.7), math.pi / 4, True),
        ((3.4, 2.6), -math.pi / 4, False),  # separated by an axis of the turned box only
    ],
)
def test_closed_forms(offset: tuple[float, float], turn: float, expected: bool) -> None:
    size = np.array([4.0, 2.0])
    zero = np.zeros(())
    assert bool(boxes_overlap(np.array(offset), zero, size, zero + turn, size)) is expected
    # the other way round, and rotated
    shift = -np.array(offset)
    assert bool(boxes_overlap(shift, zero + turn, size, zero, size)) is expected


def test_random_boxes_equal_shapely() -> None:
    shapely = pytest.importorskip("shapely")
    rng = np.random.default_rng(0)
    count = 5000
    center = rng.uniform(-4, 4, (2, count, 2))
    heading = rng.uniform(-np.pi, np.pi, (2, count))
    size = rng.uniform(0.1, 6, (2, count, 2))
    offset = center[0] - center[1]
    actual = boxes_overlap(offset, heading[0], size[0], heading[1], size[1])
    first = polygons(center[0], heading[0], size[0])
    second = polygons(center[1], heading[1], size[1])
    expected = shapely.intersects(first, second)
    np.testing.assert_array_equal(actual, expected)
    assert 0.3 < expected.mean() < 0.8


def test_pairs_are_found_at_any_step_of_a_world() -> None:
    """Agents 0 and 1 meet at step 2 of world 1; agent 2 has no known step there."""
    position = np.zeros((3, 2, 4, 2))
    position[1, :, :, 0] = 20.0
    position[1, 1, 2, 0] = 3.0
    position[2] = np.nan
    size = np.full((3, 2), 4.0)
    pairs = overlapping_pairs(position, np.zeros((3, 2, 4)), size)
    assert np.argwhere(pairs).tolist() == [[0, 1, 1], [1, 0, 1]]


def test_headings_follow_the_path_and_keep_the_last_direction() -> None:
    path = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0], [1.0, 2.0], [1.05, 2.0]])
    heading = path_headings(path, np.zeros(2), np.array(0.3))
    quarter = math.pi / 2
    np.testing.assert_allclose(heading, [math.pi / 4, quarter, quarter, quarter, quarter])
    standing = path_headings(np.zeros((5, 2)), np.zeros(2), np.array(0.3))
    np.testing.assert_allclose(standing, np.full(5, 0.3))
    gap = path.copy()
    gap[1] = np.nan
    np.testing.assert_allclose(path_headings(gap, np.zeros(2), np.array(0.3))[0], 0.3)


def test_recorded_sizes_are_used_and_missing_ones_are_assumed() -> None:
    scene = make_scene(3, num_scored=1)
    rows = np.array([2, 0])
    size, assumed = agent_sizes(scene, rows)
    kinds = [AgentKind(kind) for kind in scene.agent_kind[rows]]
    assert size.tolist() == [list(ASSUMED_SIZE_M[kind]) for kind in kinds]
    assert assumed.all()

    recorded = np.array([[5, 2], [1, 1], [0, 0]], np.float32)
    size, assumed = agent_sizes(replace(scene, agent_size=recorded), rows)
    assert size.tolist() == [list(ASSUMED_SIZE_M[kinds[0]]), [5.0, 2.0]]
    assert assumed.tolist() == [True, False]

    in_pixels = overlaps(replace(scene, unit="px"), rows, np.zeros((2, 1, 30, 2)))
    assert not in_pixels.overlap.any() and in_pixels.assumed.all()


def two_cars(gap: float) -> tuple[Scene, np.ndarray]:
    """Cars of 4 m by 2 m behind each other, and worlds [2, 2, 30, 2].

    In world 0 both stand; in world 1 the rear car drives 10 m forward.
    """
    scene = make_scene(2, num_scored=1)
    position = np.zeros_like(scene.position)
    position[1, :, 0] = gap
    size = np.array([[4, 2], [4, 2]], np.float32)
    heading = np.zeros_like(scene.heading)
    scene = replace(scene, position=position, heading=heading, agent_size=size)
    worlds = np.zeros((2, 2, 30, 2))
    worlds[1, :, :, 0] = gap
    worlds[0, 1, :, 0] = np.linspace(0, 10, 30)
    return scene, worlds


def test_worlds_overlap_unless_the_pair_overlaps_in_the_present() -> None:
    scene, worlds = two_cars(gap=6.0)
    result = overlaps(scene, np.arange(2), worlds)
    assert result.overlap.tolist() == [[False, True], [False, True]]
    assert result.known.all() and not result.assumed.any()

    scene, worlds = two_cars(gap=3.0)
    assert not overlaps(scene, np.arange(2), worlds).overlap.any()


def test_unknown_steps_do_not_overlap() -> None:
    scene, worlds = two_cars(gap=6.0)
    valid = np.ones((2, 1, 30), bool)
    valid[0, 0, 3:] = False
    assert not overlaps(scene, np.arange(2), worlds, valid).overlap.any()
    valid[0] = False
    assert not overlaps(scene, np.arange(2), worlds, valid).known.any()


def test_an_agent_without_another_one_has_no_answer() -> None:
    scene, worlds = two_cars(gap=6.0)
    assert overlaps(scene, np.arange(2), worlds).known.all()
    assert not overlaps(scene, np.array([1]), worlds[1:]).known.any()
    unknown = worlds.copy()
    unknown[0, 0] = np.nan
    known = overlaps(scene, np.arange(2), unknown).known
    assert known.tolist() == [[False, True], [False, True]]


def test_real_scenes_equal_shapely(argoverse2_scenes: list[Scene]) -> None:
    """Boxes of all agents at recorded steps, enlarged by 1.5 so that some overlap."""
    shapely = pytest.importorskip("shapely")
    found = 0
    for scene in argoverse2_scenes:
        rows = np.flatnonzero(scene.valid.all(1))
        size = 1.5 * agent_sizes(scene, rows)[0]
        step = slice(scene.num_history, None, 20)
        position = scene.position[rows, None, step].astype(np.float64)
        heading = scene.heading[rows, None, step].astype(np.float64)
        expected = np.zeros((len(rows), len(rows)), bool)
        for time in range(position.shape[2]):
            boxes = polygons(position[:, 0, time], heading[:, 0, time], size)
            expected |= shapely.intersects(boxes[:, None], boxes[None])
        np.fill_diagonal(expected, False)
        pairs = overlapping_pairs(position, heading, size)
        np.testing.assert_array_equal(pairs[..., 0], expected)
        found += int(expected.sum())
    assert found > 0
