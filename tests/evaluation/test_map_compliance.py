"""Map compliance: closed forms on a road of two lanes, and shapely on real maps."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from support.scenes import Map, make_scene

from trajformer.evaluation.metrics.map_compliance import (
    Compliance,
    SceneMap,
    area_distance,
    compliance,
    in_areas,
    lane_relation,
)
from trajformer.scenes.scene import AgentKind, PolylineKind, Scene

LANES = range(int(PolylineKind.CROSSWALK))


def road_scene() -> Scene:
    """A road along the x axis: a lane to the east at y = 0 and one to the west at y = 4.

    The car is at x = 0, y = 0 in the present; the second agent is a pedestrian next to the road.
    """
    road = Map()
    road.add(np.array([[-20.0, 0.0], [40.0, 0.0], [100.0, 0.0]]), PolylineKind.LANE_VEHICLE)
    road.add(np.array([[100.0, 4.0], [-20.0, 4.0]]), PolylineKind.LANE_BUS)
    road.add(np.array([[-20.0, 8.0], [100.0, 8.0]]), PolylineKind.ROAD_LINE)
    # two rings with a common edge at x = 50; the second one is not closed
    near = [[-20.0, -2.0], [50.0, -2.0], [50.0, 6.0], [-20.0, 6.0], [-20.0, -2.0]]
    road.add(np.array(near), PolylineKind.DRIVABLE_AREA)
    far = [[50.0, -2.0], [100.0, -2.0], [100.0, 6.0], [50.0, 6.0]]
    road.add(np.array(far), PolylineKind.DRIVABLE_AREA)
    scene = make_scene(2, num_scored=1, with_map=False)
    position = scene.position.copy()
    position[:, scene.num_history - 1] = [[0.0, 0.0], [0.0, -4.0]]
    kinds = np.array([AgentKind.VEHICLE, AgentKind.PEDESTRIAN], np.uint8)
    return replace(scene, position=position, agent_kind=kinds, **road.fields()).validate()


def line(end: tuple[float, float], start: tuple[float, float] = (0.0, 0.0)) -> np.ndarray:
    """A path [1, 30, 2] at constant velocity, without its start."""
    share = np.arange(1, 31)[:, None] / 30
    return (np.array(start) + share * (np.array(end) - np.array(start)))[None]


def of_car(path: np.ndarray, valid: np.ndarray | None = None) -> Compliance:
    scene = road_scene()
    return compliance(SceneMap.of(scene), scene, np.array([0]), path[None], valid)


@pytest.mark.parametrize(
    ("end", "off_lane", "off_road", "wrong_way"),
    [
        ((30.0, 0.0), 0, 0, 0),  # along the lane, over the common edge of the areas
        ((90.0, 0.0), 0, 0, 0),
        ((30.0, -2.2), 0, 0, 0),  # within the tolerance
        ((30.0, -2.5), 0, 1, 0),  # leaves the road, but stays near the lane
        ((30.0, -9.0), 1, 1, 0),
        ((-15.0, 0.0), 0, 0, 1),  # against the lane
        ((-15.0, -2.0), 0, 0, 1),
        ((0.0, 5.9), 0, 0, 0),  # across both lanes
        ((-4.0, 0.0), 0, 0, np.nan),  # too short for a direction
        ((150.0, 0.0), 1, 1, 0),  # beyond the end of the map
    ],
)
def test_paths_of_a_car(
    end: tuple[float, float], off_lane: float, off_road: float, wrong_way: float
) -> None:
    result = of_car(line(end))
    assert result.off_lane.item() == off_lane
    assert result.off_road.item() == off_road
    np.testing.assert_equal(result.wrong_way.item(), wrong_way)


def test_either_direction_is_allowed_within_3_m_of_both_lanes() -> None:
    """At y = 2 both lanes are 2 m away."""
    for end in ((60.0, 2.0), (-15.0, 2.0)):
        assert of_car(line(end, start=(0.0, 2.0))).wrong_way.item() == 0


def test_the_distance_is_that_of_the_nearest_lane_of_any_kind() -> None:
    path = np.array([[[10.0, 1.0], [10.0, 5.5], [10.0, 9.0], [103.0, -4.0]]])
    np.testing.assert_allclose(of_car(path).lane_distance[0, 0], [1.0, 1.5, 5.0, 5.0])


def test_unknown_steps_are_nan_and_do_not_count() -> None:
    path = line((30.0, 0.0))
    path[0, 10] = [10.0, 50.0]  # off the road
    valid = np.ones((1, 1, 30), bool)
    valid[0, 0, 10] = False
    result = of_car(path, valid)
    assert np.flatnonzero(np.isnan(result.lane_distance)).tolist() == [10]
    assert (result.off_road.item(), result.wrong_way.item()) == (0.0, 0.0)
    assert of_car(path).off_road.item() == 1.0

    nothing = of_car(path, np.zeros((1, 1, 30), bool))
    for value in nothing:
        assert np.isnan(value).all()


def test_pedestrians_and_agents_that_start_off_the_road_have_no_answer() -> None:
    scene = road_scene()
    scene_map = SceneMap.of(scene)
    path = line((30.0, 0.0))[None]
    pedestrian = compliance(scene_map, scene, np.array([1]), path)
    assert np.isnan(pedestrian.off_road).all() and np.isnan(pedestrian.wrong_way).all()
    assert pedestrian.off_lane.item() == 0

    kinds = np.full(2, AgentKind.VEHICLE, np.uint8)
    on_sidewalk = replace(scene, agent_kind=kinds)
    result = compliance(scene_map, on_sidewalk, np.array([1]), path)
    assert np.isnan(result.off_road).all() and result.wrong_way.item() == 0


def test_a_scene_without_a_map_gives_nan() -> None:
    scene = make_scene(3, num_scored=1, with_map=False)
    rows = np.arange(3)
    path = np.zeros((3, 2, 30, 2))
    result = compliance(SceneMap.of(scene), scene, rows, path)
    assert result.lane_distance.shape == (3, 2, 30)
    assert result.off_road.shape == (3, 2)
    for value in result:
        assert np.isnan(value).all()


def test_lines_of_a_single_point_are_no_map() -> None:
    broken = Map()
    broken.add(np.zeros((4, 2)), PolylineKind.DRIVABLE_AREA)
    broken.add(np.zeros((2, 2)), PolylineKind.LANE_VEHICLE)
    scene = make_scene(1, num_scored=0, with_map=False)
    scene = replace(scene, **broken.fields()).validate()
    scene_map = SceneMap.of(scene)
    assert scene_map == SceneMap(None, None)


def test_a_path_may_leave_the_earth() -> None:
    path = line((30.0, 0.0))
    path[0, -1] = [1e300, -1e300]
    result = of_car(path)
    assert (result.off_lane.item(), result.off_road.item()) == (1.0, 1.0)
    assert result.lane_distance[0, 0, -1] == pytest.approx(math.hypot(1e9, 1e9))


def test_real_maps_equal_shapely(argoverse2_scenes: list[Scene]) -> None:
    """Distances, areas and directions of random points, near and far from the map."""
    shapely = pytest.importorskip("shapely")
    rng = np.random.default_rng(0)
    for scene in argoverse2_scenes:
        scene_map = SceneMap.of(scene)
        spread = np.array([2.0, 30.0, 300.0])[rng.integers(0, 3, 200)]
        base = scene.point[rng.integers(0, len(scene.point), 200)].astype(np.float64)
        point = base + spread[:, None] * rng.normal(size=(200, 2))
        velocity = rng.normal(size=(200, 2)) * 5
        distance, against = lane_relation(scene_map.lanes, point, velocity)
        inside = in_areas(scene_map.areas, point)

        rows = range(scene.num_polylines)
        lines = [scene.polyline(m).astype(float) for m in rows if scene.polyline_kind[m] in LANES]
        rings = [scene.polyline(m) for m in rows if scene.polyline_kind[m] == 4]
        points = shapely.points(point)
        lanes = shapely.multilinestrings([shapely.linestrings(each) for each in lines])
        np.testing.assert_allclose(distance, shapely.distance(points, lanes), atol=1e-9)
        areas = shapely.polygons([shapely.linearrings(ring) for ring in rings])
        contained = shapely.contains(areas[:, None], points[None]).any(0)
        np.testing.assert_array_equal(inside == 1, contained)
        off_area = shapely.distance(areas[:, None], points[None]).min(0)
        np.testing.assert_allclose(area_distance(scene_map.areas, point), off_area, atol=1e-9)
        pieces = np.array([pair for each in lines for pair in pairwise(each)])
        expected = [runs_against(pieces, *pair) for pair in zip(point, velocity, strict=True)]
        np.testing.assert_array_equal(against, expected)
        assert 0 < inside.mean() < 1 and set(expected) >= {0.0, 1.0}


def runs_against(pieces: np.ndarray, point: np.ndarray, velocity: np.ndarray) -> float:
    """1 if all lanes within 3 m deviate by over 120 degrees, 0 if not, NaN without a lane."""
    start, end = pieces.swapaxes(0, 1)
    step = end - start
    share = ((point - start) * step).sum(1) / (step**2).sum(1)
    gap = np.linalg.norm(start + share.clip(0, 1)[:, None] * step - point, axis=1)
    angle = np.arctan2(step[:, 1], step[:, 0]) - np.arctan2(velocity[1], velocity[0])
    deviation = np.abs(np.angle(np.exp(1j * angle)))
    near = deviation[gap <= 3.0]
    if not len(near) or np.linalg.norm(velocity) < 1.0:
        return np.nan
    return float(near.min() > np.radians(120))
