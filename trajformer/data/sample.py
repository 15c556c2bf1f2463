"""Sample: the numpy arrays of one scene that go into a batch, after selection and resampling."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

import numpy as np

from trajformer.config import Config
from trajformer.errors import ConfigError, SceneError
from trajformer.scenes.polylines import cut_polylines
from trajformer.scenes.scene import AgentRole, PolylineKind, Scene

_SAME_M = 1.0  # two futures of an agent that stay within this distance count as one
_MOVING_M = 5.0  # an agent with a future end at least this far away is moving
_SCORED, _FOCAL, _DRIVABLE_AREA = map(
    int, (AgentRole.SCORED, AgentRole.FOCAL, PolylineKind.DRIVABLE_AREA)
)  # ints compare faster


Targets = Literal["scored", "focal", "moving", "all"]


class Frame(Enum):
    """The frame of coordinates."""

    SCENE = "scene"  # origin of the scene, axes of the city
    FOCAL = "focal"  # origin and heading of the focal agent at its last observed step
    AGENT = "agent"  # every agent's own pose at its last observed step (Forecast only)


@dataclass(frozen=True)
class BatchConfig(
    Config,
    positive=("max_agents", "map_slack_m"),
    limits={"polyline_length_m": (0.1, 10_000.0), "polyline_points": (2, 1_000)},
):
    """Selection and resampling of scenes for a batch.

    Attributes:
        targets: the predicted agents: the `scored` ones (including the focal one), the `focal` one, or `all` agents seen at the
            last observed step. For training also `moving`: the scored ones, and all agents that are seen at every step including
            the future and end at least 5 m away.
        frame: frame of the batch.
        max_agents: largest number of agents of a scene: all targets, then the agents nearest to a target.
        lost_agents: keep context agents that are not seen in the last observed step.
        agent_radius_m: context agents farther than this from every target are dropped.
        map_radius_m: polylines farther than this from every target are dropped.
        map_slack_m: if given, polylines near any selected agent are kept, targets or not. The radius of an agent that is not
            scored is this many metres plus the way that it covers at its present speed until the horizon, at most
            `map_radius_m`. So slow agents do not need a large map, and the map does not depend on which agents are targets.
        polyline_points: P, points of a resampled polyline.
        polyline_length_m: longer polylines are cut into pieces.
        road_lines: keep road edges and road lines too, not only lanes and crosswalks.
    """

    targets: Targets = "scored"
    frame: Frame = Frame.SCENE
    max_agents: int = 96
    lost_agents: bool = True
    agent_radius_m: float = 80.0
    map_radius_m: float = 80.0
    map_slack_m: float | None = None
    polyline_points: int = 10
    polyline_length_m: float = 20.0
    road_lines: bool = False

    def receives(self, kind: np.ndarray) -> np.ndarray:
        """Whether models receive polylines of these kinds, bool like `kind`; never drivable areas."""
        return kind != _DRIVABLE_AREA if self.road_lines else kind < _DRIVABLE_AREA

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frame is Frame.AGENT:
            raise ConfigError("frame", "AGENT is a frame of forecasts, expected SCENE or FOCAL")


def _is_target(scene: Scene, targets: Targets) -> np.ndarray:
    """Bool [A]."""
    now = scene.num_history - 1
    if targets == "all":
        return scene.valid[:, now]
    if targets == "focal":
        return scene.agent_role == _FOCAL
    scored = scene.agent_role >= _SCORED
    if targets == "scored":
        return scored
    displacement = scene.position[:, -1] - scene.position[:, now]
    return scored | (
        scene.valid.all(1) & (np.hypot(displacement[:, 0], displacement[:, 1]) >= _MOVING_M)
    )


def _select_agents(scene: Scene, config: BatchConfig) -> tuple[np.ndarray, int, np.ndarray]:
    """Indices of the selected agents, targets first; the number of targets; and the pose of each agent."""
    seen = scene.valid[:, : scene.num_history]
    rows, last = np.arange(len(seen)), seen.shape[1] - 1 - seen[:, ::-1].argmax(1)
    pose = np.empty((len(seen), 3), np.float32)  # in the last observed step of each agent
    pose[:, :2], pose[:, 2] = scene.position[rows, last], scene.heading[rows, last]
    present, role = seen.any(1), scene.agent_role
    is_target = _is_target(scene, config.targets) & present
    targets = is_target.nonzero()[0]
    targets = targets[(-role[targets].astype(np.int64)).argsort(kind="stable")]
    others = ((present if config.lost_agents else seen[:, -1]) & ~is_target).nonzero()[0]
    if len(others) and len(targets):
        apart = pose.take(others, 0)[:, None, :2] - pose.take(targets, 0)[:, :2]
        apart *= apart
        distance = (apart[..., 0] + apart[..., 1]).min(1)  # squared, to the nearest target
        near = (distance <= config.agent_radius_m**2).nonzero()[0]
        others = others[near[distance[near].argsort(kind="stable")]]
    others = others[: max(config.max_agents - len(targets), 0)]
    rows = np.concatenate([targets, others])
    return rows, len(targets), pose.take(rows, 0)


def _map_radius(
    scene: Scene, rows: np.ndarray, num_targets: int, config: BatchConfig
) -> np.ndarray:
    """The radius around each of the first agents of `rows` within which polylines are kept."""
    if config.map_slack_m is None:  # only targets need a map
        return np.full(num_targets, config.map_radius_m, np.float32)
    now = scene.num_history - 1
    velocity = scene.velocity[rows, now] * scene.valid[rows, now, None]
    way = np.hypot(velocity[:, 0], velocity[:, 1]) * (scene.num_future * scene.period_s)
    radius = np.where(scene.agent_role[rows] >= _SCORED, np.inf, config.map_slack_m + way)
    return np.minimum(radius, config.map_radius_m).astype(np.float32)


def _select_polylines(
    scene: Scene, pose: np.ndarray, radius: np.ndarray, config: BatchConfig
) -> dict[str, np.ndarray]:
    """Resampled polylines near one of the first agents, of the kinds that `config` names; `pose` is [A, 3]."""
    around = pose[: len(radius), :2]
    piece, owner = cut_polylines(
        scene.point, scene.polyline_offset, config.polyline_points, config.polyline_length_m
    )
    kind = scene.polyline_kind[owner]
    keep = config.receives(kind)
    if len(around) and len(piece):
        some = np.ascontiguousarray(
            piece[:, :: 3 if config.polyline_points > 3 else 1].T
        )  # every third point, [2, points, N]
        apart = some[:, None] - around.T[..., None, None]
        apart *= apart
        near = (apart[0] + apart[1]).min(1) <= (radius * radius)[:, None]  # [agents, pieces]
        keep &= near.any(0)
    kept = keep.nonzero()[0]
    flags = scene.polyline_flags[owner[kept]]
    mask = np.ones(len(kept), np.bool_)
    return {
        "polyline": piece.take(kept, 0),
        "polyline_kind": kind[kept],
        "polyline_flags": flags,
        "polyline_mask": mask,
    }


@dataclass(frozen=True, eq=False)
class Sample:
    """One scene, ready to be padded into a batch; about 10 kB, small enough to be cached."""

    scene_id: str
    agent_id: tuple[str, ...]
    clock: tuple[
        float, int, int, str
    ]  # period_s, H, F and the unit of lengths: equal for all scenes of a batch
    padded: dict[str, np.ndarray]  # arrays with a leading agent, target or polyline axis
    home: np.ndarray  # float32 [3], pose of the batch frame relative to the scene
    frame_pose: np.ndarray  # float64 [3], the same in the city frame


def branched(samples: Sequence[Sample], futures: int) -> Sample:
    """Join samples of scenes with a common past: `target` becomes [S, G, F, 2] and `target_valid` [S, G, F], with G = `futures`.

    A future that stays within a metre of an earlier future of the same agent at all steps is a duplicate and not valid; neither
    are missing futures. Raises SceneError: the observations of two samples differ.
    """
    first = samples[0]
    for other in samples[1:]:
        for name, value in first.padded.items():
            if name not in ("target", "target_valid") and not np.array_equal(
                value, other.padded[name]
            ):
                raise SceneError(
                    f"scene {other.scene_id}: {name}: differs from scene {first.scene_id}, which has the same past"
                )
    target = np.stack([part.padded["target"] for part in samples], 1)
    valid = np.stack([part.padded["target_valid"] for part in samples], 1)
    for later in range(1, len(samples)):
        for earlier in range(later):
            gap = np.hypot(*np.moveaxis(target[:, later] - target[:, earlier], -1, 0)) * (
                valid[:, later] & valid[:, earlier]
            )
            duplicate = (gap.max(-1, initial=0.0) < _SAME_M) & (
                valid[:, later] == valid[:, earlier]
            ).all(-1)
            valid[duplicate, later] = False
    missing = futures - len(samples)
    padded = first.padded | {
        "target": np.pad(target * valid[..., None], ((0, 0), (0, missing), (0, 0), (0, 0))),
        "target_valid": np.pad(valid, ((0, 0), (0, missing), (0, 0))),
    }
    return replace(first, padded=padded)


def samples(scenes: Sequence[Scene], config: BatchConfig) -> list[Sample]:
    """The sample of each scene. All scenes pass one stage before the next one, which uses the processor's caches better.

    Raises SceneError: the config has the focal frame and no focal agent was observed.
    """
    agents = [_select_agents(scene, config) for scene in scenes]
    lines = [
        _select_polylines(scene, pose, _map_radius(scene, rows, count, config), config)
        for scene, (rows, count, pose) in zip(scenes, agents, strict=True)
    ]
    return [_assemble(*each, config) for each in zip(scenes, agents, lines, strict=True)]


def _assemble(
    scene: Scene,
    agents: tuple[np.ndarray, int, np.ndarray],
    lines: dict[str, np.ndarray],
    config: BatchConfig,
) -> Sample:
    rows, num_targets, pose = agents
    steps, targets, future = scene.num_history, rows[:num_targets], (num_targets, scene.num_future)
    known = scene.num_steps > steps
    padded = {
        "agent_kind": scene.agent_kind[rows],
        "agent_role": scene.agent_role[rows],
        "agent_mask": np.ones(len(rows), np.bool_),
        "target_mask": np.ones(num_targets, np.bool_),
        "position": scene.position[:, :steps].take(rows, 0),
        "heading": scene.heading[:, :steps].take(rows, 0),
        "velocity": scene.velocity[:, :steps].take(rows, 0),
        "valid": scene.valid[:, :steps].take(rows, 0),
        "pose": pose,
        "target": scene.position[targets, steps:] if known else np.zeros((*future, 2), np.float32),
        "target_valid": scene.valid[targets, steps:] if known else np.zeros(future, np.bool_),
    } | lines
    home = np.zeros(3, np.float32)
    if config.frame is Frame.FOCAL:
        focal = np.flatnonzero(padded["agent_role"] == _FOCAL)
        if not len(focal):
            raise SceneError(
                f"scene {scene.scene_id}: agent_role: no focal agent was observed, so there is no focal frame"
            )
        home = pose[focal[0]]
    frame_pose = np.concatenate([scene.origin + home[:2], home[2:]])
    ids = tuple([scene.agent_id[row] for row in rows.tolist()])
    clock = (scene.period_s, scene.num_history, scene.num_future, scene.unit)
    return Sample(scene.scene_id, ids, clock, padded, home, frame_pose)
