"""Small synthetic scenes: a crossing with all kinds of map elements and agents."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from trajformer.scenes.geometry import rotate, wrap
from trajformer.scenes.scene import AgentKind, AgentRole, EdgeKind, LaneFlag, PolylineKind, Scene

PERIOD_S = 0.1
ORIGIN = (1234.5, -6789.25)  # metres in the city frame, exact in float32 and float64
ARM_M = 60.0  # from the center of the crossing to the end of an arm
CROSSING_M = 9.0  # from its center to its edge
STATES = ("position", "heading", "velocity", "valid")
_KINDS = [
    AgentKind.VEHICLE,
    AgentKind.VEHICLE,
    AgentKind.PEDESTRIAN,
    AgentKind.CYCLIST,
    AgentKind.BUS,
    AgentKind.MOTORCYCLIST,
    AgentKind.UNKNOWN,
    AgentKind.STATIC,
    AgentKind.CONSTRUCTION,
    AgentKind.RIDERLESS_BICYCLE,
    AgentKind.BACKGROUND,
]
_SPEED_M_S = {"VEHICLE": 9.0, "BUS": 6.0, "MOTORCYCLIST": 10.0, "CYCLIST": 5.0, "PEDESTRIAN": 1.3}
# (lateral offset to the right, kind) of the lanes of one arm in driving direction
_LANES = (
    (1.75, PolylineKind.LANE_VEHICLE),
    (5.25, PolylineKind.LANE_BUS),
    (7.8, PolylineKind.LANE_BIKE),
)
# begin and end in driving direction of the pieces of a lane, and their flags
_PIECES = (
    (-ARM_M, -CROSSING_M, LaneFlag.TRAFFIC_CONTROL),
    (-CROSSING_M, CROSSING_M, LaneFlag.INTERSECTION),
    (CROSSING_M, ARM_M, LaneFlag.NONE),
)
_OUTLINE = [  # corners of the drivable area
    (ARM_M, -CROSSING_M),
    (ARM_M, CROSSING_M),
    (CROSSING_M, CROSSING_M),
    (CROSSING_M, ARM_M),
    (-CROSSING_M, ARM_M),
    (-CROSSING_M, CROSSING_M),
    (-ARM_M, CROSSING_M),
    (-ARM_M, -CROSSING_M),
    (-CROSSING_M, -CROSSING_M),
    (-CROSSING_M, -ARM_M),
    (CROSSING_M, -ARM_M),
    (CROSSING_M, -CROSSING_M),
]


class Map:
    """Polylines and edges of a map that is built."""

    def __init__(self) -> None:
        self.points: list[np.ndarray] = []
        self.kinds: list[PolylineKind] = []
        self.flags: list[LaneFlag] = []
        self.edges: list[tuple[int, int, EdgeKind]] = []

    def add(self, points: np.ndarray, kind: PolylineKind, flag: LaneFlag = LaneFlag.NONE) -> int:
        """Add a polyline with points [p, 2]; returns its index."""
        self.points.append(points)
        self.kinds.append(kind)
        self.flags.append(flag)
        return len(self.points) - 1

    def connect(self, first: int, second: int, kind: EdgeKind, reverse: EdgeKind) -> None:
        """Add an edge and the reverse edge."""
        self.edges.append((first, second, kind))
        self.edges.append((second, first, reverse))

    def add_road(self, heading: float) -> None:
        """Add one driving direction through the crossing: its lanes and a crosswalk.

        A lane consists of its approach, crossing and exit.
        """
        turn = np.array(heading)
        left_lane: list[int] = []
        for side, kind in _LANES:
            lane = []
            for begin, end, flag in _PIECES:
                points = np.linspace((begin, -side), (end, -side), 7)
                lane.append(self.add(rotate(points, turn), kind, flag))
            for first, second in pairwise(lane):
                self.connect(first, second, EdgeKind.SUCCESSOR, EdgeKind.PREDECESSOR)
            for left, right in zip(left_lane, lane, strict=False):
                self.connect(left, right, EdgeKind.RIGHT, EdgeKind.LEFT)
            left_lane = lane
        near = -CROSSING_M - 4.0
        far = -CROSSING_M - 1.0
        ring = [(near, -9.0), (far, -9.0), (far, 9.0), (near, 9.0), (near, -9.0)]
        self.add(rotate(np.array(ring), turn), PolylineKind.CROSSWALK)

    def fields(self) -> dict[str, np.ndarray]:
        """The fields of a scene."""
        edges = np.array(self.edges, np.int32).reshape(-1, 3)
        offset = np.cumsum([0, *map(len, self.points)])
        point = np.concatenate([np.zeros((0, 2)), *self.points])
        return {
            "polyline_id": np.arange(len(self.points), dtype=np.int64) + 500,
            "polyline_kind": np.array(self.kinds, np.uint8),
            "polyline_flags": np.array(self.flags, np.uint8),
            "polyline_offset": offset.astype(np.int32),
            "point": point.astype(np.float32),
            "edge": np.ascontiguousarray(edges[:, :2].T),
            "edge_kind": edges[:, 2].astype(np.uint8),
        }


def _crossing() -> Map:
    crossing = Map()
    for quarter in range(4):
        crossing.add_road(quarter * math.pi / 2)
    outline = np.array([*_OUTLINE, _OUTLINE[0]])
    crossing.add(outline, PolylineKind.DRIVABLE_AREA)
    return crossing


def _lateral_offset(kind: AgentKind, speed: float) -> float:
    """Offset to the right of the lane that an agent uses; slow agents use the sidewalk."""
    if speed < 6.0:
        return 8.2
    if kind == AgentKind.BUS:
        return 5.25
    return 1.75


def _motion(
    rng: np.random.Generator, kind: AgentKind, number: int, time_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Position [T, 2] and heading [T] of one agent along a lane of its arm.

    The first agent turns left.
    """
    speed = _SPEED_M_S.get(kind.name, 0.0)
    if number == 0:
        side = 1.75
        start = -9.0
        turn_rate = 0.22
    else:
        side = _lateral_offset(kind, speed)
        start = -15.0 - 9.0 * (number // 4) + float(rng.uniform(-4.0, 4.0))
        turn_rate = float(rng.uniform(-0.02, 0.02))
        if speed == 0:
            turn_rate = 0.0

    heading = turn_rate * np.maximum(time_s, 0.0)
    direction = np.stack([np.cos(heading), np.sin(heading)], -1)
    path = np.cumsum(speed * np.gradient(time_s)[:, None] * direction, 0)
    now = np.argmin(np.abs(time_s))
    path += np.array([start, -side]) - path[now]
    arm = np.array((number % 4) * math.pi / 2)
    return rotate(path, arm), np.asarray(wrap(heading + arm))


def make_scene(
    num_agents: int = 12,
    num_history: int = 10,
    num_future: int = 12,
    *,
    with_future: bool = True,
    with_map: bool = True,
    num_scored: int = 2,
    seed: int = 0,
    scene_id: str = "",
) -> Scene:
    """A valid scene at a crossing; equal arguments give equal scenes.

    Agent 0 is focal (a vehicle turning left, always valid), agents 1 to `num_scored` are scored
    (always valid), the last of several agents is the recording vehicle "AV", and some context
    agents are missing at some steps. From 12 agents on, all kinds occur. Without a future T = H (a
    test file); without a map there is no polyline.
    """
    rng = np.random.default_rng(seed)
    role = np.full(num_agents, AgentRole.CONTEXT, np.uint8)
    role[: num_scored + 1] = AgentRole.SCORED
    role[0] = AgentRole.FOCAL
    kinds = [_KINDS[number % len(_KINDS)] for number in range(num_agents)]
    ids = [str(1000 + number) for number in range(num_agents)]
    if num_agents > 1:
        kinds[-1] = AgentKind.VEHICLE
        ids[-1] = "AV"

    # the time is 0 s in the last observed step
    time_s = PERIOD_S * (np.arange(num_history + num_future) - (num_history - 1))
    positions, headings = [], []
    for number, kind in enumerate(kinds):
        agent_position, agent_heading = _motion(rng, kind, number, time_s)
        positions.append(agent_position)
        headings.append(agent_heading)
    position = np.stack(positions)
    tracks = {
        "position": position,
        "heading": np.stack(headings),
        "velocity": np.gradient(position, PERIOD_S, axis=1),
    }

    valid = np.ones((num_agents, len(time_s)), np.bool_)
    num_context = max(num_agents - num_scored - 2, 0)
    valid[num_scored + 1 : -1] = rng.random((num_context, len(time_s))) > 0.1
    num_steps = len(time_s) if with_future else num_history
    valid = valid[:, :num_steps]
    for name, values in tracks.items():
        tracks[name] = values[:, :num_steps].astype(np.float32)
        tracks[name][~valid] = 0.0

    polylines = _crossing() if with_map else Map()
    scene = Scene(
        scene_id=scene_id or f"scene-{seed:04d}-crossing",
        source="synthetic",
        city="nowhere",
        split="train" if with_future else "test",
        origin=np.array(ORIGIN),
        period_s=PERIOD_S,
        num_history=num_history,
        num_future=num_future,
        agent_id=tuple(ids),
        agent_kind=np.array(kinds, np.uint8),
        agent_role=role,
        valid=valid,
        **tracks,
        **polylines.fields(),
    )
    return scene.validate()


def transform_scene(
    scene: Scene, angle: float = 0.0, shift: tuple[float, float] = (0.0, 0.0)
) -> Scene:
    """The scene rotated by `angle` (radians, around `origin`) and shifted by `shift` (metres).

    `origin` is unchanged.
    """
    turn = np.array(angle)

    def move(xy: np.ndarray) -> np.ndarray:
        return (rotate(xy.astype(np.float64), turn) + np.array(shift)).astype(np.float32)

    heading = np.asarray(wrap(scene.heading.astype(np.float64) + angle)).astype(np.float32)
    velocity = rotate(scene.velocity.astype(np.float64), turn).astype(np.float32)
    position = move(scene.position)
    transformed = replace(
        scene,
        position=np.where(scene.valid[..., None], position, np.float32(0)),
        heading=np.where(scene.valid, heading, np.float32(0)),
        velocity=velocity,
        point=move(scene.point),
    )
    return transformed.validate()


def hide(scene: Scene, agent: int, steps: slice) -> Scene:
    """The scene in which one agent is not seen at some steps."""
    arrays = {name: getattr(scene, name).copy() for name in STATES}
    for value in arrays.values():
        value[agent, steps] = 0
    return replace(scene, **arrays).validate()


def varied_scenes() -> list[Scene]:
    """Three scenes of different sizes.

    In the first one, a scored and a context agent are lost early and one is seen once.
    """
    first = make_scene(12)
    first = hide(first, 1, slice(7, 10))
    first = hide(first, 4, slice(8, 10))
    first = hide(first, 5, slice(0, 9))
    return [first, make_scene(5, num_scored=1, seed=1), make_scene(20, num_scored=4, seed=2)]


def agent(scene: Scene, name: str) -> int:
    return scene.agent_id.index(name)


def with_role(scene: Scene, role: AgentRole) -> set[str]:
    """Names of the agents with a role."""
    return {scene.agent_id[index] for index in np.flatnonzero(scene.agent_role == role)}


def named_edges(graph: Any) -> set[tuple[int, int, EdgeKind]]:
    """Edges of a scene or a map, by the ids of their polylines."""
    sources, targets = graph.polyline_id[graph.edge].tolist()
    kinds = map(EdgeKind, graph.edge_kind.tolist())
    return set(zip(sources, targets, kinds, strict=True))


def assert_same_history(left: Scene, right: Scene, roles: bool = True) -> None:
    """All observed content is equal bit by bit; without `roles`, except the roles of agents."""
    names = ["agent_id", "agent_kind", "origin", "polyline_id", "point"]
    if roles:
        names.append("agent_role")
    for name in names:
        assert np.array_equal(getattr(left, name), getattr(right, name)), name
    for name in STATES:
        left_past = getattr(left, name)[:, : left.num_history]
        right_past = getattr(right, name)[:, : right.num_history]
        assert np.array_equal(left_past, right_past), name


def assert_same_steps(left: Scene, right: Scene, name: str, count: int, tolerance: float) -> None:
    """The first steps of an agent are equal in the city frame."""
    left_index = agent(left, name)
    right_index = agent(right, name)
    valid = left.valid[left_index, :count]
    assert np.array_equal(valid, right.valid[right_index, :count]), name
    for field in STATES[:3]:
        difference = getattr(left, field)[left_index, :count][valid]
        difference = difference - getattr(right, field)[right_index, :count][valid]
        if field == "position":
            difference = difference - (right.origin - left.origin)
        assert np.allclose(difference, 0.0, atol=tolerance), (name, field)


def in_city(scene: Scene) -> np.ndarray:
    """Positions float64 [A, T, 2] in the city frame, metres; the origin where invalid."""
    return scene.position + scene.origin


def assert_near(actual: Any, expected: Any, tolerance: float, name: str = "") -> None:
    """No value differs by more than the tolerance."""
    np.testing.assert_allclose(actual, expected, atol=tolerance, rtol=0, err_msg=name)
