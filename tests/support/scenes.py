"""Small synthetic scenes: a crossing with all kinds of lanes, crosswalks, drivable area and all kinds of agents."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from trajformer.scenes.geometry import rotate, wrap
from trajformer.scenes.scene import AgentKind, AgentRole, EdgeKind, LaneFlag, PolylineKind, Scene

PERIOD_S = 0.1
ORIGIN = (1234.5, -6789.25)  # metres in the city frame, exact in float32 and float64
ARM_M, CROSSING_M = 60.0, 9.0
_KINDS = (
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
)
_SPEED_M_S = {
    AgentKind.VEHICLE: 9.0,
    AgentKind.BUS: 6.0,
    AgentKind.MOTORCYCLIST: 10.0,
    AgentKind.CYCLIST: 5.0,
    AgentKind.PEDESTRIAN: 1.3,
}
# (lateral offset to the right, kind) of the lanes of one arm in driving direction
_LANES = ((1.75, PolylineKind.LANE_VEHICLE), (5.25, PolylineKind.LANE_BUS), (7.8, PolylineKind.LANE_BIKE))


@dataclass
class _Map:
    """Collected polylines and edges."""

    points: list[np.ndarray]
    kinds: list[int]
    flags: list[int]
    edges: list[tuple[int, int, int]]

    def add(self, points: np.ndarray, kind: PolylineKind, flags: LaneFlag = LaneFlag.NONE) -> int:
        self.points.append(np.asarray(points, np.float32))
        self.kinds.append(kind)
        self.flags.append(flags)
        return len(self.kinds) - 1

    def join(self, a: int, b: int, kind: EdgeKind, back: EdgeKind) -> None:
        self.edges += [(a, b, kind), (b, a, back)]


def _line(start: tuple[float, float], end: tuple[float, float], count: int = 7) -> np.ndarray:
    return np.linspace(start, end, count)


def _road(sink: _Map, heading: float) -> None:
    """One driving direction through the crossing: approach, crossing and exit of each lane, and a crosswalk."""
    turn = np.array(heading)
    previous: tuple[int, ...] | None = None
    for side, kind in _LANES:
        pieces = [(-ARM_M, -CROSSING_M), (-CROSSING_M, CROSSING_M), (CROSSING_M, ARM_M)]
        flags = [LaneFlag.TRAFFIC_CONTROL, LaneFlag.INTERSECTION, LaneFlag.NONE]
        lines = [rotate(_line((a, -side), (b, -side)), turn) for a, b in pieces]
        ids = tuple(sink.add(line, kind, flag) for line, flag in zip(lines, flags, strict=True))
        for a, b in pairwise(ids):
            sink.join(a, b, EdgeKind.SUCCESSOR, EdgeKind.PREDECESSOR)
        for left, right in zip(previous or (), ids, strict=False):
            sink.join(left, right, EdgeKind.RIGHT, EdgeKind.LEFT)
        previous = ids
    near, far = -CROSSING_M - 4.0, -CROSSING_M - 1.0
    ring = np.array([(near, -9.0), (far, -9.0), (far, 9.0), (near, 9.0), (near, -9.0)])
    sink.add(rotate(ring, turn), PolylineKind.CROSSWALK)


def _crossing() -> _Map:
    sink = _Map([], [], [], [])
    for quarter in range(4):
        _road(sink, quarter * math.pi / 2)
    w, a = CROSSING_M, ARM_M
    corner = [(a, -w), (a, w), (w, w), (w, a), (-w, a), (-w, w), (-a, w), (-a, -w), (-w, -w), (-w, -a), (w, -a), (w, -w)]
    sink.add(np.array([*corner, corner[0]]), PolylineKind.DRIVABLE_AREA)
    return sink


def _motion(rng: np.random.Generator, kind: AgentKind, number: int, time_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position [T, 2] and heading [T] of one agent: along a lane of its arm, the first one turning left."""
    speed = _SPEED_M_S.get(kind, 0.0)
    arm = np.array((number % 4) * math.pi / 2)
    side = 1.75 if number == 0 else (8.2 if speed < 6.0 else 5.25 if kind == AgentKind.BUS else 1.75)
    start = -9.0 if number == 0 else -15.0 - 9.0 * (number // 4) + float(rng.uniform(-4.0, 4.0))
    rate = 0.22 if number == 0 else float(rng.uniform(-0.02, 0.02)) * (speed > 0)
    heading = rate * np.maximum(time_s, 0.0)
    step = speed * np.gradient(time_s)[:, None] * np.stack([np.cos(heading), np.sin(heading)], -1)
    path = np.cumsum(step, 0)
    path += np.array([start, -side]) - path[np.argmin(np.abs(time_s))]
    return rotate(path, arm), np.asarray(wrap(heading + arm))


def _roles(num_agents: int, num_scored: int) -> np.ndarray:
    role = np.full(num_agents, AgentRole.CONTEXT, np.uint8)
    role[: num_scored + 1] = AgentRole.SCORED
    role[0] = AgentRole.FOCAL
    return role


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

    Agent 0 is focal (a vehicle turning left, always valid), agents 1 to `num_scored` are scored (always valid), the
    last of several agents is the recording vehicle "AV", and some context agents are missing at some steps. From 12
    agents on, all kinds occur. Without a future T = H (a test file); without a map there is no polyline.
    """
    rng = np.random.default_rng(seed)
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
    valid[num_scored + 1 : -1] = rng.random((max(num_agents - num_scored - 2, 0), len(time_s))) > 0.1
    valid = valid[:, steps]
    tracks = {"position": position, "heading": np.stack([h for _, h in motion]), "velocity": velocity}
    arrays = {name: value[:, steps].astype(np.float32) for name, value in tracks.items()}
    for value in arrays.values():
        value[~valid] = 0.0
    return Scene(
        scene_id=scene_id or f"scene-{seed:04d}-crossing",
        source="synthetic",
        split="train" if with_future else "test",
        city="nowhere",
        period_s=PERIOD_S,
        num_history=num_history,
        num_future=num_future,
        origin=np.array(ORIGIN),
        agent_id=tuple(ids),
        agent_kind=np.array(kinds, np.uint8),
        agent_role=_roles(num_agents, num_scored),
        valid=valid,
        **arrays,
        **_map_fields(_crossing() if with_map else _Map([], [], [], [])),
    ).validate()


def _map_fields(source: _Map) -> dict[str, np.ndarray]:
    edges = np.array(source.edges, np.int32).reshape(-1, 3)
    return {
        "polyline_id": np.arange(len(source.kinds), dtype=np.int64) + 500,
        "polyline_kind": np.array(source.kinds, np.uint8),
        "polyline_flags": np.array(source.flags, np.uint8),
        "polyline_offset": np.cumsum([0, *map(len, source.points)]).astype(np.int32),
        "point": np.concatenate([np.zeros((0, 2), np.float32), *source.points]),
        "edge": np.ascontiguousarray(edges[:, :2].T),
        "edge_kind": edges[:, 2].astype(np.uint8),
    }


def transform_scene(scene: Scene, angle: float = 0.0, shift: tuple[float, float] = (0.0, 0.0)) -> Scene:
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
    arrays = {name: getattr(scene, name).copy() for name in ("position", "heading", "velocity", "valid")}
    for value in arrays.values():
        value[agent, steps] = 0
    return replace(scene, **arrays).validate()


def varied_scenes() -> list[Scene]:
    """Three scenes of different sizes; in the first one, a scored and a context agent are lost early and one is seen once."""
    first = hide(hide(make_scene(12), 1, slice(7, 10)), 4, slice(8, 10))
    return [hide(first, 5, slice(0, 9)), make_scene(5, num_scored=1, seed=1), make_scene(20, num_scored=4, seed=2)]
