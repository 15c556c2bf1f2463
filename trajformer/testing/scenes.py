"""Random example scenes for the contract tests, and parts of batches."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trajformer.data.augment_agents import take_agents
from trajformer.data.batch import POLYLINE_FIELDS, SceneBatch
from trajformer.scenes.scene import AgentKind, AgentRole, LaneFlag, PolylineKind, Scene

_PERIOD_S = 0.1
_LANES = 10
_POINTS = 7  # of a lane


def example_scenes(
    num_agents: tuple[int, ...] = (9, 4, 14), num_history: int = 10, num_future: int = 12
) -> list[Scene]:
    """Random scenes with straight lanes and agents on arcs, one scene per number of agents.

    Two or three agents of each scene are targets. The other agents are not seen in all steps.
    """
    return [
        _example_scene(seed, count, num_history, num_future)
        for seed, count in enumerate(num_agents)
    ]


def _example_scene(seed: int, count: int, num_history: int, num_future: int) -> Scene:
    """A scene with `count` agents."""
    rng = np.random.default_rng(seed)
    num_targets = min(3, count - 2)
    roles = np.array([AgentRole.FOCAL, AgentRole.SCORED, AgentRole.CONTEXT], np.uint8)
    role_counts = (1, num_targets - 1, count - num_targets)

    # Agents turn at a constant rate.
    time = _PERIOD_S * (np.arange(num_history + num_future) - num_history + 1)
    rate = rng.uniform(-0.3, 0.3, (count, 1))
    speed = rng.uniform(0.0, 12.0, (count, 1))
    heading = rng.uniform(-np.pi, np.pi, (count, 1)) + rate * time
    direction = np.stack([np.cos(heading), np.sin(heading)], -1)
    velocity = speed[..., None] * direction  # [A, T, 2]
    start = rng.uniform(-25, 25, (count, 1, 2))
    position = start + _PERIOD_S * np.cumsum(velocity, 1)
    heading = (heading + np.pi) % (2 * np.pi) - np.pi

    # The first three agents are seen in all steps, the others in the last observed step.
    valid = rng.random((count, len(time))) > 0.2
    valid[:3] = True
    valid[3:, -num_future - 1] = True
    # Agent 1, a target, is not seen in its third step, and lost before the last observed step.
    valid[1, 2] = False
    valid[1, num_history - 3 : num_history] = False

    angle = rng.uniform(-np.pi, np.pi, _LANES)
    along_lane = np.stack([np.cos(angle), np.sin(angle)], -1)[:, None]  # [M, 1, 2]
    center = rng.uniform(-30, 30, (_LANES, 1, 2))
    point = center + np.linspace(-9, 9, _POINTS)[:, None] * along_lane  # [M, P, 2]
    scene = Scene(
        scene_id=f"example-{seed}",
        source="example",
        split="train",
        city="",
        period_s=_PERIOD_S,
        num_history=num_history,
        num_future=num_future,
        origin=np.zeros(2),
        agent_id=tuple(str(number) for number in range(count)),
        agent_kind=rng.integers(len(AgentKind), size=count).astype(np.uint8),
        agent_role=np.repeat(roles, role_counts),
        valid=valid,
        position=(position * valid[..., None]).astype(np.float32),
        heading=(heading * valid).astype(np.float32),
        velocity=(velocity * valid[..., None]).astype(np.float32),
        polyline_id=np.arange(_LANES),
        polyline_kind=rng.integers(PolylineKind.DRIVABLE_AREA, size=_LANES).astype(np.uint8),
        polyline_flags=rng.integers(max(LaneFlag) * 2, size=_LANES).astype(np.uint8),
        polyline_offset=(np.arange(_LANES + 1) * _POINTS).astype(np.int32),
        point=point.reshape(-1, 2).astype(np.float32),
        edge=np.zeros((2, 0), np.int32),
        edge_kind=np.zeros(0, np.uint8),
    )
    return scene.validate()


def crop(
    batch: SceneBatch,
    scene: int,
    targets: int | None = None,
    agents: int | None = None,
    polylines: int | None = None,
) -> SceneBatch:
    """One scene of a batch without padding, or with its first targets, agents and polylines."""
    observation = batch.observation
    if targets is None:
        targets = int(observation.target_mask[scene].sum())
    if agents is None:
        agents = int(observation.agent_mask[scene].sum())
    if polylines is None:
        polylines = int(observation.polyline_mask[scene].sum())
    return select_rows(batch, scene, torch.arange(agents), targets, torch.arange(polylines))


def select_rows(
    batch: SceneBatch, scene: int, agents: Tensor, targets: int, polylines: Tensor
) -> SceneBatch:
    """One scene with the given agents and polylines (int64 indices).

    The first `targets` agents are its targets.
    """
    only = slice(scene, scene + 1)
    alone = batch.map(lambda value: value[only])
    lanes: dict[str, Any] = {}
    for name in POLYLINE_FIELDS:
        lanes[name] = getattr(alone.observation, name)[:, polylines]
    observation = replace(
        alone.observation,
        scene_id=batch.observation.scene_id[only],
        agent_id=batch.observation.agent_id[only],
        **lanes,
    )
    return take_agents(replace(alone, observation=observation), agents[None], targets)
