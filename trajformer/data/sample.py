"""Sample: the numpy arrays of one scene that go into a batch, after selection and cutting."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, NamedTuple

import numpy as np

from trajformer.config import Config
from trajformer.errors import ConfigError, SceneError
from trajformer.scenes.polylines import cut_polylines
from trajformer.scenes.scene import AgentRole, PolylineKind, Scene

_SAME_M = 1.0  # two futures of an agent that stay within this distance count as one
_MOVING_M = 5.0  # an agent with a future end at least this far away is moving
# ints compare faster than enums
_SCORED = int(AgentRole.SCORED)
_FOCAL = int(AgentRole.FOCAL)
_DRIVABLE_AREA = int(PolylineKind.DRIVABLE_AREA)

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
    """Selection of agents and polylines of scenes for a batch.

    Attributes:
        targets: the predicted agents: the `scored` ones (including the focal one), the `focal` one,
            or `all` agents seen at the last observed step. For training also `moving`: the scored
            ones, and all agents that are seen at every step including the future and end at least
            5 m away.
        frame: frame of the batch.
        max_agents: largest number of agents of a scene: all targets, then the agents nearest to a
            target.
        lost_agents: keep context agents that are not seen in the last observed step.
        agent_radius_m: context agents farther than this from every target are dropped.
        map_radius_m: polylines farther than this from every target are dropped.
        map_slack_m: if given, polylines near any selected agent are kept, targets or not. The
            radius of an agent that is not scored is this many metres plus the distance that it
            covers at its present speed until the horizon, at most `map_radius_m`. So slow agents do
            not need a large map, and the map does not depend on which agents are targets.
        polyline_points: P, points of a piece of a polyline.
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.frame is Frame.AGENT:
            raise ConfigError("frame", "AGENT is a frame of forecasts, expected SCENE or FOCAL")

    def receives(self, kind: np.ndarray) -> np.ndarray:
        """Whether models receive polylines of these kinds, bool like `kind`; no drivable areas."""
        if self.road_lines:
            return kind != _DRIVABLE_AREA
        return kind < _DRIVABLE_AREA


@dataclass(frozen=True, eq=False)
class Sample:
    """One scene, ready to be padded into a batch; about 10 kB, small enough to be cached."""

    scene_id: str
    agent_id: tuple[str, ...]
    # period_s, H, F and the unit of lengths: equal for all scenes of a batch
    clock: tuple[float, int, int, str]
    padded: dict[str, np.ndarray]  # arrays with a leading agent, target or polyline axis
    home: np.ndarray  # float32 [3], pose of the batch frame relative to the scene
    frame_pose: np.ndarray  # float64 [3], the same in the city frame


def samples(scenes: Sequence[Scene], config: BatchConfig) -> list[Sample]:
    """The sample of each scene.

    All scenes pass one stage before the next one, which uses the processor's caches better. Raises
    SceneError: the config has the focal frame and no focal agent was observed.
    """
    agents = [_select_agents(scene, config) for scene in scenes]
    polylines = []
    for scene, selected in zip(scenes, agents, strict=True):
        polylines.append(_select_polylines(scene, selected, config))
    assembled = []
    for scene, selected, lines in zip(scenes, agents, polylines, strict=True):
        assembled.append(_assemble(scene, selected, lines, config))
    return assembled


# ---- selection -------------------------------------------------------------------------------


class _Agents(NamedTuple):
    """The selected agents of a scene, targets first."""

    rows: np.ndarray  # int64 [n], indices in the scene
    num_targets: int
    pose: np.ndarray  # float32 [n, 3], in the last observed step of each agent


def _select_agents(scene: Scene, config: BatchConfig) -> _Agents:
    observed = scene.valid[:, : scene.num_history]
    num_agents, num_history = observed.shape
    last = num_history - 1 - observed[:, ::-1].argmax(1)  # the last observed step
    rows = np.arange(num_agents)
    pose = np.empty((num_agents, 3), np.float32)
    pose[:, :2] = scene.position[rows, last]
    pose[:, 2] = scene.heading[rows, last]

    is_observed = observed.any(1)
    is_target = _is_target(scene, config.targets) & is_observed
    targets = is_target.nonzero()[0]
    importance = scene.agent_role[targets].astype(np.int64)  # the focal agent comes first
    targets = targets[(-importance).argsort(kind="stable")]

    is_candidate = is_observed if config.lost_agents else observed[:, -1]
    context = (is_candidate & ~is_target).nonzero()[0]
    if len(context) > 0 and len(targets) > 0:
        context = _nearest(context, targets, pose, config.agent_radius_m)
    context = context[: max(config.max_agents - len(targets), 0)]
    rows = np.concatenate([targets, context])
    return _Agents(rows, len(targets), pose.take(rows, 0))


def _is_target(scene: Scene, targets: Targets) -> np.ndarray:
    """Bool [A]."""
    now = scene.num_history - 1
    if targets == "all":
        return scene.valid[:, now]
    if targets == "focal":
        return scene.agent_role == _FOCAL
    is_scored = scene.agent_role >= _SCORED
    if targets == "scored":
        return is_scored
    displacement = scene.position[:, -1] - scene.position[:, now]
    is_moving = np.hypot(displacement[:, 0], displacement[:, 1]) >= _MOVING_M
    return is_scored | (scene.valid.all(1) & is_moving)


def _nearest(
    context: np.ndarray, targets: np.ndarray, pose: np.ndarray, radius_m: float
) -> np.ndarray:
    """The agents of `context` within a radius around a target, nearest first."""
    offset = pose.take(context, 0)[:, None, :2] - pose.take(targets, 0)[:, :2]
    offset *= offset
    squared_distance = (offset[..., 0] + offset[..., 1]).min(1)  # to the nearest target
    near = (squared_distance <= radius_m**2).nonzero()[0]
    return context[near[squared_distance[near].argsort(kind="stable")]]


def _select_polylines(scene: Scene, agents: _Agents, config: BatchConfig) -> dict[str, np.ndarray]:
    """Pieces of the polylines near an agent, of the kinds that `config` names."""
    radius = _map_radius(scene, agents, config)
    center = agents.pose[: len(radius), :2]
    piece, owner = cut_polylines(
        scene.point, scene.polyline_offset, config.polyline_points, config.polyline_length_m
    )
    kind = scene.polyline_kind[owner]
    is_kept = config.receives(kind)
    if len(center) > 0 and len(piece) > 0:
        every = 3 if config.polyline_points > 3 else 1  # every third point suffices
        point = np.ascontiguousarray(piece[:, ::every].T)  # [2, points, N]
        offset = point[:, None] - center.T[..., None, None]
        offset *= offset
        squared_distance = (offset[0] + offset[1]).min(1)  # [agents, N]
        is_near = squared_distance <= (radius * radius)[:, None]
        is_kept &= is_near.any(0)
    kept = is_kept.nonzero()[0]
    return {
        "polyline": piece.take(kept, 0),
        "polyline_kind": kind[kept],
        "polyline_flags": scene.polyline_flags[owner[kept]],
        "polyline_mask": np.ones(len(kept), np.bool_),
    }


def _map_radius(scene: Scene, agents: _Agents, config: BatchConfig) -> np.ndarray:
    """The radius around each of the first agents within which polylines are kept."""
    if config.map_slack_m is None:  # only targets need a map
        return np.full(agents.num_targets, config.map_radius_m, np.float32)
    rows = agents.rows
    now = scene.num_history - 1
    velocity = scene.velocity[rows, now] * scene.valid[rows, now, None]
    horizon_s = scene.num_future * scene.period_s
    distance = np.hypot(velocity[:, 0], velocity[:, 1]) * horizon_s
    is_scored = scene.agent_role[rows] >= _SCORED
    radius = np.where(is_scored, np.inf, config.map_slack_m + distance)
    return np.minimum(radius, config.map_radius_m).astype(np.float32)


def _assemble(
    scene: Scene, agents: _Agents, polylines: dict[str, np.ndarray], config: BatchConfig
) -> Sample:
    rows = agents.rows
    num_history = scene.num_history
    padded = {
        "agent_kind": scene.agent_kind[rows],
        "agent_role": scene.agent_role[rows],
        "agent_mask": np.ones(len(rows), np.bool_),
        "target_mask": np.ones(agents.num_targets, np.bool_),
        "position": scene.position[:, :num_history].take(rows, 0),
        "heading": scene.heading[:, :num_history].take(rows, 0),
        "velocity": scene.velocity[:, :num_history].take(rows, 0),
        "valid": scene.valid[:, :num_history].take(rows, 0),
        "pose": agents.pose,
    }
    targets = rows[: agents.num_targets]
    if scene.num_steps > num_history:
        padded["target"] = scene.position[targets, num_history:]
        padded["target_valid"] = scene.valid[targets, num_history:]
    else:  # the future is unknown
        padded["target"] = np.zeros((len(targets), scene.num_future, 2), np.float32)
        padded["target_valid"] = np.zeros((len(targets), scene.num_future), np.bool_)
    padded |= polylines

    home = np.zeros(3, np.float32)
    if config.frame is Frame.FOCAL:
        focal = np.flatnonzero(padded["agent_role"] == _FOCAL)
        if len(focal) == 0:
            reason = "no focal agent was observed, so there is no focal frame"
            raise SceneError(f"scene {scene.scene_id}: agent_role: {reason}")
        home = agents.pose[focal[0]]
    return Sample(
        scene_id=scene.scene_id,
        agent_id=tuple([scene.agent_id[row] for row in rows.tolist()]),
        clock=(scene.period_s, scene.num_history, scene.num_future, scene.unit),
        padded=padded,
        home=home,
        frame_pose=np.concatenate([scene.origin + home[:2], home[2:]]),
    )


# ---- several futures of one past -------------------------------------------------------------


def branched(samples: Sequence[Sample], futures: int) -> Sample:
    """Join samples of scenes with a common past.

    `target` becomes [S, G, F, 2] and `target_valid` [S, G, F], with G = `futures`. A future that
    stays within a metre of an earlier future of the same agent at all steps is a duplicate and not
    valid; neither are missing futures. Raises SceneError: the observations of two samples differ.
    """
    first = samples[0]
    for other in samples[1:]:
        _check_same_past(first, other)
    target = np.stack([sample.padded["target"] for sample in samples], 1)
    valid = np.stack([sample.padded["target_valid"] for sample in samples], 1)
    for later in range(1, len(samples)):
        for earlier in range(later):
            valid[_is_same(target, valid, later, earlier), later] = False
    target = target * valid[..., None]
    missing = futures - len(samples)
    padded = dict(first.padded)
    padded["target"] = np.pad(target, ((0, 0), (0, missing), (0, 0), (0, 0)))
    padded["target_valid"] = np.pad(valid, ((0, 0), (0, missing), (0, 0)))
    return replace(first, padded=padded)


def _check_same_past(first: Sample, other: Sample) -> None:
    for name, value in first.padded.items():
        if name in ("target", "target_valid"):
            continue
        if not np.array_equal(value, other.padded[name]):
            reason = f"differs from scene {first.scene_id}, which has the same past"
            raise SceneError(f"scene {other.scene_id}: {name}: {reason}")


def _is_same(target: np.ndarray, valid: np.ndarray, first: int, second: int) -> np.ndarray:
    """Whether two futures of an agent are equal, bool [S]; arguments as in `branched`."""
    offset = target[:, first] - target[:, second]
    both_valid = valid[:, first] & valid[:, second]
    distance = np.hypot(offset[..., 0], offset[..., 1]) * both_valid  # [S, F]
    is_near = distance.max(-1, initial=0.0) < _SAME_M
    same_steps = (valid[:, first] == valid[:, second]).all(-1)
    return is_near & same_steps
