"""Artificial scenes of any size, to trace, check and time models."""

import numpy as np

from trajformer.scenes.scene import AgentKind, AgentRole, PolylineKind, Scene
from trajformer.scenes.spec import DataSpec

_POINTS = 11  # of a lane
_LANE_M = 20.0  # its length, so that it stays one piece
_AREA_M2 = 150.0  # of a lane, as in a dense city


def example_scene(spec: DataSpec, num_agents: int, num_lanes: int, seed: int = 0) -> Scene:
    """A scene with straight lanes, and agents at constant velocity on lanes.

    Half of the agents are targets (`scored`); some steps are not seen, and the second agent is lost
    before the present.

    Args:
        spec: clock and horizon.
        num_agents: A, at least 1.
        num_lanes: M, each shorter than a piece of a lane in usual recipes.
        seed: of random numbers.
    """
    assert spec.period_s is not None
    assert spec.num_history is not None and spec.num_future is not None
    history = spec.num_history
    rng = np.random.default_rng(seed)
    side = np.sqrt(_AREA_M2 * max(num_lanes, 10))
    lane_center = rng.uniform(-side / 2, side / 2, (num_lanes, 1, 2))
    lane_angle = rng.choice(4, num_lanes) * np.pi / 2 + rng.normal(0, 0.1, num_lanes)
    direction = np.stack([np.cos(lane_angle), np.sin(lane_angle)], -1)[:, None]
    along = np.linspace(-_LANE_M / 2, _LANE_M / 2, _POINTS)[:, None]
    point = lane_center + along * direction  # [M, P, 2]

    start = rng.uniform(-side / 2, side / 2, (num_agents, 1, 2))
    heading = rng.uniform(-np.pi, np.pi, num_agents)
    if num_lanes:
        lane = rng.integers(num_lanes, size=num_agents)
        start = lane_center[lane]
        heading = (lane_angle[lane] + np.pi) % (2 * np.pi) - np.pi
    speed = rng.choice([0.0, 3.0, 8.0, 13.0], (num_agents, 1))
    velocity = speed * np.stack([np.cos(heading), np.sin(heading)], -1)  # [A, 2]
    time = spec.period_s * (np.arange(history) - history + 1)
    position = start + velocity[:, None] * time[:, None]  # [A, H, 2]

    valid = rng.random((num_agents, history)) > 0.1
    valid[:, -1] = True
    if num_agents > 1:
        valid[1, -1] = False
        valid[1, -2] = True
    role = np.full(num_agents, AgentRole.CONTEXT, np.uint8)
    role[: (num_agents + 1) // 2] = AgentRole.SCORED
    kind = rng.choice([AgentKind.VEHICLE, AgentKind.PEDESTRIAN], num_agents)
    return Scene(
        scene_id=f"example-{seed}",
        source="example",
        split="",
        city="",
        period_s=spec.period_s,
        num_history=history,
        num_future=spec.num_future,
        origin=np.zeros(2),
        agent_id=tuple(str(number) for number in range(num_agents)),
        agent_kind=kind.astype(np.uint8),
        agent_role=role,
        position=(position * valid[..., None]).astype(np.float32),
        heading=(heading[:, None] * valid).astype(np.float32),
        velocity=(velocity[:, None] * valid[..., None]).astype(np.float32),
        valid=valid,
        polyline_id=np.arange(num_lanes),
        polyline_kind=np.full(num_lanes, PolylineKind.LANE_VEHICLE, np.uint8),
        polyline_flags=np.zeros(num_lanes, np.uint8),
        polyline_offset=np.arange(num_lanes + 1, dtype=np.int32) * _POINTS,
        point=point.reshape(-1, 2).astype(np.float32),
        edge=np.zeros((2, 0), np.int32),
        edge_kind=np.zeros(0, np.uint8),
        unit=spec.unit or "m",
    )
