"""Small synthetic scenes: a crossing with all kinds of lanes, crosswalks, drivable area and all kinds of agents."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from trajformer.scenes.geometry import rotate, wrap
from trajformer.scenes.scene import AgentKind, AgentRole, EdgeKind, LaneFlag, PolylineKind, Scene

PERIOD_S = 0.1
ORIGIN = (1234.5, -6789.25)  # metres in the city frame, exact in float32 and float64
ARM_M, CROSSING_M = 60.0, 9.0
STATES = ("position", "heading", "velocity", "valid")
_KIND_NAMES = "VEHICLE VEHICLE PEDESTRIAN CYCLIST BUS MOTORCYCLIST UNKNOWN STATIC CONSTRUCTION RIDERLESS_BICYCLE BACKGROUND"
_KINDS = [AgentKind[name] for name in _KIND_NAMES.split()]
_SPEED_M_S = {"VEHICLE": 9.0, "BUS": 6.0, "MOTORCYCLIST": 10.0, "CYCLIST": 5.0, "PEDESTRIAN": 1.3}
# (lateral offset to the right, kind) of the lanes of one arm in driving direction
_LANES = (
    (1.75, PolylineKind.LANE_VEHICLE),
    (5.25, PolylineKind.LANE_BUS),
    (7.8, PolylineKind.LANE_BIKE),
)


Lines = list[
    tuple[np.ndarray, PolylineKind, LaneFlag]
]  # points [p, 2], kind and flags of each polyline
Edges = list[tuple[int, int, EdgeKind]]


def _add_road(lines: Lines, edges: Edges, heading: float) -> None:
    """One driving direction through the crossing: approach, crossing and exit of each lane, and a crosswalk."""
    turn, previous = np.array(heading), range(0)
    for side, kind in _LANES:
        ids = range(len(lines), len(lines) + 3)
        pieces = [(-ARM_M, -CROSSING_M), (-CROSSING_M, CROSSING_M), (CROSSING_M, ARM_M)]
        for (a, b), flag in zip(
            pieces, (LaneFlag.TRAFFIC_CONTROL, LaneFlag.INTERSECTION, LaneFlag.NONE), strict=True
        ):
            lines.append((rotate(np.linspace((a, -side), (b, -side), 7), turn), kind, flag))
        for first, second in pairwise(ids):
            edges += [(first, second, EdgeKind.SUCCESSOR), (second, first, EdgeKind.PREDECESSOR)]
        for left, right in zip(previous, ids, strict=False):
            edges += [(left, right, EdgeKind.RIGHT), (right, left, EdgeKind.LEFT)]
        previous = ids
    near, far = -CROSSING_M - 4.0, -CROSSING_M - 1.0
    ring = np.array([(near, -9.0), (far, -9.0), (far, 9.0), (near, 9.0), (near, -9.0)])
    lines.append((rotate(ring, turn), PolylineKind.CROSSWALK, LaneFlag.NONE))


def _map_fields(with_map: bool) -> dict[str, np.ndarray]:
    """The map of the crossing, or no polyline."""
    lines, edges = Lines(), Edges()
    for quarter in range(4 if with_map else 0):
        _add_road(lines, edges, quarter * math.pi / 2)
    w, a = CROSSING_M, ARM_M
    corner = [
        (a, -w),
        (a, w),
        (w, w),
        (w, a),
        (-w, a),
        (-w, w),
        (-a, w),
        (-a, -w),
        (-w, -w),
        (-w, -a),
        (w, -a),
        (w, -w),
    ]
    if with_map:
        lines.append((np.array([*corner, corner[0]]), PolylineKind.DRIVABLE_AREA, LaneFlag.NONE))
    ends = np.array(edges, np.int32).reshape(-1, 3)
    return {
        "polyline_id": np.arange(len(lines), dtype=np.int64) + 500,
        "polyline_kind": np.array([kind for _, kind, _ in lines], np.uint8),
        "polyline_flags": np.array([flag for _, _, flag in lines], np.uint8),
        "polyline_offset": np.cumsum([0, *(len(line) for line, _, _ in lines)]).astype(np.int32),
        "point": np.concatenate([np.zeros((0, 2)), *(line for line, _, _ in lines)]).astype(
            np.float32
        ),
        "edge": np.ascontiguousarray(ends[:, :2].T),
        "edge_kind": ends[:, 2].astype(np.uint8),
    }


def _motion(
    rng: np.random.Generator, kind: AgentKind, number: int, time_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Position [T, 2] and heading [T] of one agent: along a lane of its arm, the first one turning left."""
    speed = _SPEED_M_S.get(kind.name, 0.0)
    arm = np.array((number % 4) * math.pi / 2)
    side = (
        1.75 if number == 0 else (8.2 if speed < 6.0 else 5.25 if kind == AgentKind.BUS else 1.75)
    )
    start = -9.0 if number == 0 else -15.0 - 9.0 * (number // 4) + float(rng.uniform(-4.0, 4.0))
    rate = 0.22 if number == 0 else float(rng.uniform(-0.02, 0.02)) * (speed > 0)
    heading = rate * np.maximum(time_s, 0.0)
    step = speed * np.gradient(time_s)[:, None] * np.stack([np.cos(heading), np.sin(heading)], -1)
    path = np.cumsum(step, 0)
    path += np.array([start, -side]) - path[np.argmin(np.abs(time_s))]
    return rotate(path, arm), np.asarray(wrap(heading + arm))


def make_scene(
    num_agents: int = 12, num_history: int = 10, num_future: int = 12, *, with_future: bool = True, with_map: bool = True,
    num_scored: int = 2, seed: int = 0, scene_id: str = "",
) -> Scene:  # fmt: skip
    """A valid scene at a crossing; equal arguments give equal scenes.

    Agent 0 is focal (a vehicle turning left, always valid), agents 1 to `num_scored` are scored (always valid), the
    last of several agents is the recording vehicle "AV", and some context agents are missing at some steps. From 12
    agents on, all kinds occur. Without a future T = H (a test file); without a map there is no polyline.
    """
    rng = np.random.default_rng(seed)
    role = np.full(num_agents, AgentRole.CONTEXT, np.uint8)
    role[: num_scored + 1] = AgentRole.SCORED
    role[0] = AgentRole.FOCAL
    time_s = PERIOD_S * (np.arange(num_history + num_future) - (num_history - 1))
    kinds = [_KINDS[number % len(_KINDS)] for number in range(num_agents)]
    if num_agents > 1:
        kinds[-1] = AgentKind.VEHICLE
    motion = [_motion(rng, kind, number, time_s) for number, kind in enumerate(kinds)]
    ids = [str(1000 + number) for number in range(num_agents)]
    if num_agents > 1:
        ids[-1] = "AV"
    position = np.stack([xy for xy, _ in motion])
    velocity = np.gradient(position, PERIOD_S, axis=1)
    steps = slice(None) if with_future else slice(num_history)
    valid = np.ones((num_agents, len(time_s)), np.bool_)
    valid[num_scored + 1 : -1] = (
        rng.random((max(num_agents - num_scored - 2, 0), len(time_s))) > 0.1
    )
    valid = valid[:, steps]
    tracks = {
        "position": position,
        "heading": np.stack([h for _, h in motion]),
        "velocity": velocity,
    }
    arrays = {name: value[:, steps].astype(np.float32) for name, value in tracks.items()}
    for value in arrays.values():
        value[~valid] = 0.0
    names: dict[str, Any] = {
        "scene_id": scene_id or f"scene-{seed:04d}-crossing",
        "source": "synthetic",
        "city": "nowhere",
    }
    names |= {"split": "train" if with_future else "test", "origin": np.array(ORIGIN)}
    clock: dict[str, Any] = {
        "period_s": PERIOD_S,
        "num_history": num_history,
        "num_future": num_future,
    }
    agents = {
        "agent_id": tuple(ids),
        "agent_kind": np.array(kinds, np.uint8),
        "agent_role": role,
        "valid": valid,
    }
    return Scene(**names, **clock, **agents, **arrays, **_map_fields(with_map)).validate()


def transform_scene(
    scene: Scene, angle: float = 0.0, shift: tuple[float, float] = (0.0, 0.0)
) -> Scene:
    """The scene rotated by `angle` (radians, around `origin`) and shifted by `shift` (metres); `origin` is unchanged."""

    def move(xy: np.ndarray) -> np.ndarray:
        return (rotate(xy.astype(np.float64), np.array(angle)) + np.array(shift)).astype(np.float32)

    valid = scene.valid[..., None]
    heading = np.asarray(wrap(scene.heading.astype(np.float64) + angle)).astype(np.float32)
    return replace(
        scene,
        position=np.where(valid, move(scene.position), np.float32(0)),
        heading=np.where(scene.valid, heading, np.float32(0)),
        velocity=rotate(scene.velocity.astype(np.float64), np.array(angle)).astype(np.float32),
        point=move(scene.point),
    ).validate()


def hide(scene: Scene, agent: int, steps: slice) -> Scene:
    """The scene in which one agent is not seen at some steps."""
    arrays = {name: getattr(scene, name).copy() for name in STATES}
    for value in arrays.values():
        value[agent, steps] = 0
    return replace(scene, **arrays).validate()


def varied_scenes() -> list[Scene]:
    """Three scenes of different sizes; in the first one, a scored and a context agent are lost early and one is seen once."""
    first = hide(hide(make_scene(12), 1, slice(7, 10)), 4, slice(8, 10))
    return [
        hide(first, 5, slice(0, 9)),
        make_scene(5, num_scored=1, seed=1),
        make_scene(20, num_scored=4, seed=2),
    ]


def agent(scene: Scene, name: str) -> int:
    return scene.agent_id.index(name)


def with_role(scene: Scene, role: AgentRole) -> set[str]:
    """Names of the agents with a role."""
    return {scene.agent_id[index] for index in np.flatnonzero(scene.agent_role == role)}


def named_edges(graph: Any) -> set[tuple[int, int, EdgeKind]]:
    """Edges of a scene or a map, by the ids of their polylines."""
    names = graph.polyline_id[graph.edge]
    return {
        (int(a), int(b), EdgeKind(kind))
        for a, b, kind in zip(*names, graph.edge_kind.tolist(), strict=True)
    }


def assert_same_history(left: Scene, right: Scene, roles: bool = True) -> None:
    """All observed content is equal bit by bit; without `roles`, except the roles of agents."""
    for name in (
        "agent_id",
        "agent_kind",
        "origin",
        "polyline_id",
        "point",
        *(("agent_role",) if roles else ()),
    ):
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
    for name in STATES:
        past, other = (getattr(scene, name)[:, : scene.num_history] for scene in (left, right))
        assert np.array_equal(past, other), name


def assert_same_steps(left: Scene, right: Scene, name: str, count: int, tolerance: float) -> None:
    """The first steps of an agent are equal in the city frame."""
    rows = [(scene, agent(scene, name)) for scene in (left, right)]
    known, other = (scene.valid[row, :count] for scene, row in rows)
    assert np.array_equal(known, other), name
    for field in STATES[:3]:
        one, other = (getattr(scene, field)[row, :count][known] for scene, row in rows)
        shift = right.origin - left.origin if field == "position" else 0.0
        assert np.allclose(one - other - shift, 0.0, atol=tolerance), (name, field)


def in_city(scene: Scene) -> np.ndarray:
    """Positions float64 [A, T, 2] in the city frame, metres; the origin where invalid."""
    return scene.position + scene.origin


def assert_near(actual: Any, expected: Any, tolerance: float, name: str = "") -> None:
    """No value differs by more than the tolerance."""
    np.testing.assert_allclose(actual, expected, atol=tolerance, rtol=0, err_msg=name)
