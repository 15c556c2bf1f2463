"""Sample: one scene, chosen and resampled, with what goes into a batch and nothing else (numpy)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np

from trajformer.errors import SceneError
from trajformer.polylines import resample
from trajformer.scene import AgentRole, PolylineKind, Scene


class Frame(Enum):
    """In which frame coordinates are given."""

    SCENE = "scene"  # origin of the scene, axes of the city
    FOCAL = "focal"  # origin and heading of the focal agent at its last observed step
    AGENT = "agent"  # every agent's own pose at its last observed step (Forecast only)


@dataclass(frozen=True)
class BatchConfig:
    """How scenes become tensors.

    Attributes:
        targets: predict the `scored` agents (focal included), the `focal` one, or `all` seen at the last observed step.
        frame: coordinates of the batch.
        max_agents: agents kept in a scene: all targets, then those nearest to a target up to this number.
        agent_radius_m: context agents farther than this from every target are dropped.
        map_radius_m: polylines farther than this from every target are dropped.
        polyline_points: P, points of a resampled polyline.
        polyline_length_m: longer polylines are cut.
    """

    targets: Literal["scored", "focal", "all"] = "scored"
    frame: Frame = Frame.SCENE
    max_agents: int = 96
    agent_radius_m: float = 80.0
    map_radius_m: float = 80.0
    polyline_points: int = 10
    polyline_length_m: float = 20.0


def _reference_pose(scene: Scene, rows: np.ndarray) -> np.ndarray:
    """Float32 [rows, 3]: position and heading at the last observed step of each agent."""
    observed = scene.valid[rows, : scene.num_history]
    last = scene.num_history - 1 - observed[:, ::-1].argmax(1)
    return np.concatenate([scene.position[rows, last], scene.heading[rows, last, None]], 1)


def _choose_agents(scene: Scene, config: BatchConfig) -> tuple[np.ndarray, int]:
    """Indices of the agents kept, targets first, and how many of them are targets."""
    seen = scene.valid[:, : scene.num_history]
    present = seen.any(1)
    role = scene.agent_role
    wanted = {"scored": role >= AgentRole.SCORED, "focal": role == AgentRole.FOCAL, "all": seen[:, -1]}[config.targets]
    targets = np.flatnonzero(wanted & present)
    targets = targets[np.argsort(-role[targets].astype(np.int64), kind="stable")]
    others = np.setdiff1d(np.flatnonzero(present), targets)
    if len(others) and len(targets):
        here, there = _reference_pose(scene, others)[:, :2], _reference_pose(scene, targets)[:, :2]
        distance = np.linalg.norm(here[:, None] - there[None], axis=-1).min(1)
        near = np.flatnonzero(distance <= config.agent_radius_m)
        others = others[near[np.argsort(distance[near], kind="stable")]]
    others = others[: max(config.max_agents - len(targets), 0)]
    return np.concatenate([targets, others]), len(targets)


def _choose_polylines(scene: Scene, around: np.ndarray, config: BatchConfig) -> dict[str, np.ndarray]:
    """Resampled lanes and crosswalks within reach of a target (drivable-area rings stay on disk)."""
    piece, owner = resample(scene.point, scene.polyline_offset, config.polyline_points, config.polyline_length_m)
    keep = scene.polyline_kind[owner] != PolylineKind.DRIVABLE_AREA
    if len(around) and len(piece):
        distance = np.linalg.norm(piece[:, None, ::3] - around[None, :, None], axis=-1).min((1, 2))
        keep &= distance <= config.map_radius_m
    piece, owner = piece[keep], owner[keep]
    kind, flags = scene.polyline_kind[owner].astype(np.int64), scene.polyline_flags[owner].astype(np.int64)
    mask = np.ones(len(piece), np.bool_)
    return {"polyline": piece, "polyline_kind": kind, "polyline_flags": flags, "polyline_mask": mask}


@dataclass(frozen=True, eq=False)
class Sample:
    """One scene, chosen and resampled, ready to be padded into a batch; small and worth keeping in memory."""

    scene_id: str
    agent_id: tuple[str, ...]
    clock: tuple[float, int, int]  # period_s, H, F: equal for all scenes of a batch
    padded: dict[str, np.ndarray]  # arrays with a leading agent, target or polyline axis
    home: np.ndarray  # float32 [3], pose of the batch frame relative to the scene
    frame_pose: np.ndarray  # float64 [3], the same in the city frame


def sample(scene: Scene, config: BatchConfig) -> Sample:
    """Choose what of a scene goes into a batch.

    Raises:
        SceneError: a focal frame is wanted and no focal agent was seen.
    """
    rows, num_targets = _choose_agents(scene, config)
    history, pose = slice(0, scene.num_history), _reference_pose(scene, rows)
    future, known = (num_targets, scene.num_future), scene.num_steps > scene.num_history
    rest = slice(scene.num_history, scene.num_steps)
    padded = {
        "agent_kind": scene.agent_kind[rows].astype(np.int64),
        "agent_role": scene.agent_role[rows].astype(np.int64),
        "agent_mask": np.ones(len(rows), np.bool_),
        "target_mask": np.ones(num_targets, np.bool_),
        "position": scene.position[rows, history],
        "heading": scene.heading[rows, history],
        "velocity": scene.velocity[rows, history],
        "valid": scene.valid[rows, history],
        "pose": pose,
        "target": scene.position[rows[:num_targets], rest] if known else np.zeros((*future, 2), np.float32),
        "target_valid": scene.valid[rows[:num_targets], rest] if known else np.zeros(future, np.bool_),
    } | _choose_polylines(scene, pose[:num_targets, :2], config)
    home = np.zeros(3, np.float32)
    if config.frame is Frame.FOCAL:
        focal = np.flatnonzero(padded["agent_role"] == AgentRole.FOCAL)
        if not len(focal):
            raise SceneError(f"scene {scene.scene_id}: agent_role: no focal agent was seen, so there is no focal frame")
        home = pose[focal[0]]
    frame_pose = np.concatenate([scene.origin + home[:2], home[2:]])
    ids = tuple(scene.agent_id[row] for row in rows)
    clock = (scene.period_s, scene.num_history, scene.num_future)
    return Sample(scene.scene_id, ids, clock, padded, home, frame_pose)
