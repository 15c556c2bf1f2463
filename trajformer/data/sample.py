"""Sample: the numpy arrays of one scene that go into a batch, after selection and cutting."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, NamedTuple

import numpy as np

from trajformer.config import Config
from trajformer.errors import ConfigError, SceneError
from trajformer.scenes.geometry import on_grid
from trajformer.scenes.polylines import cut_polylines
from trajformer.scenes.scene import SHORT_LOSS_S, AgentRole, PolylineKind, Scene
from trajformer.scenes.vector_map import VectorMap

_SAME_M = 1.0  # two futures of an agent that stay within this distance count as one
_MOVING_M = 5.0  # an agent with a future end at least this far away is moving
ROUNDING_S = 1e-4  # of multiples of a period
MAX_PAIRS = 20_000  # of an agent and a piece whose distances are computed at a time
_ROUNDING_M = 1e-3  # of distances
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
    positive=("map_slack_m",),
    limits={"polyline_length_m": (0.1, 10_000.0), "polyline_points": (2, 1_000)},
):
    """Selection of agents and polylines of scenes for a batch.

    A batch holds the targets and all agents that are present: seen in the last second of the
    history. So what a model knows of an agent's surroundings depends on the scene only, not on the
    agents that are asked for or on their roles.

    Attributes:
        targets: the predicted agents: the `scored` ones (including the focal one), the `focal` one,
            or `all` agents that are present. For training also `moving`: the scored ones, and all
            agents that are seen at every step including the future and end at least 5 m away.
        frame: frame of the batch.
        map_radius_m: polylines farther than this from every agent that is present are dropped.
        map_slack_m: if given, the radius of an agent is this many metres plus the distance that it
            covers at its present speed until the horizon, at most `map_radius_m`, because slow
            agents do not need a large map.
        polyline_points: P, points of a piece of a polyline.
        polyline_length_m: longer polylines are cut into pieces.
        road_lines: keep road edges and road lines too, not only lanes and crosswalks.
    """

    targets: Targets = "scored"
    frame: Frame = Frame.SCENE
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


class MapPieces(NamedTuple):
    """The polylines of a map, cut into N pieces with P points; drivable areas too."""

    point: np.ndarray  # float32 [N, P, 2], metres in the frame of the scene
    owner: np.ndarray  # int64 [N], the polyline of each piece; its pieces are in order
    kind: np.ndarray  # uint8 [N], PolylineKind
    flags: np.ndarray  # uint8 [N], LaneFlag
    light: np.ndarray  # uint8 [N], see `Observation.polyline_light`

    def take(self, kept: np.ndarray) -> dict[str, np.ndarray]:
        """Some pieces, as the arrays of a sample."""
        return {
            "polyline": self.point.take(kept, 0),
            "polyline_kind": self.kind[kept],
            "polyline_flags": self.flags[kept],
            "polyline_light": self.light[kept],
            "polyline_mask": np.ones(len(kept), np.bool_),
        }


def cut_map(lanes: Scene | VectorMap, point: np.ndarray, config: BatchConfig) -> MapPieces:
    """All polylines of a map in pieces; `point` float32 [P, 2] are its points in some frame."""
    piece, owner = cut_polylines(
        point, lanes.polyline_offset, config.polyline_points, config.polyline_length_m
    )
    light = np.zeros(len(lanes.polyline_kind), np.uint8)
    if isinstance(lanes, Scene) and len(lanes.light_lane):
        light[lanes.light_lane] = 1 + lanes.light_state[:, lanes.num_history - 1]
    return MapPieces(
        point=piece,
        owner=owner,
        kind=lanes.polyline_kind[owner],
        flags=lanes.polyline_flags[owner],
        light=light[owner],
    )


def sample_near(scene: Scene, pieces: MapPieces, config: BatchConfig) -> tuple[Sample, np.ndarray]:
    """The sample of a scene with a map that was cut before, and the pieces that it has, int64 [m].

    The map of the scene is ignored. Raises SceneError as `samples`.
    """
    agents = _select_agents(scene, config)
    kept = _near(scene, agents, pieces, config)
    return _assemble(scene, agents, pieces.take(kept), config), kept


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


class Sources(NamedTuple):
    """The agents and parts of polylines of a scene that its sample consists of, in their order.

    A polyline is cut into parts of equal length.
    """

    agent: np.ndarray  # int64 [A], indices in the scene; targets come first
    polyline: np.ndarray  # int64 [M], indices in the scene
    part: np.ndarray  # int64 [M], 0 to parts - 1
    parts: np.ndarray  # int64 [M], number of parts of the polyline


def sources(scene: Scene, config: BatchConfig) -> Sources:
    """The origin of the agents and pieces of polylines of `samples`."""
    agents = _select_agents(scene, config)
    pieces = cut_map(scene, scene.point, config)
    kept = _near(scene, agents, pieces, config)
    counts = np.bincount(pieces.owner, minlength=scene.num_polylines)
    first = counts.cumsum() - counts
    polyline = pieces.owner[kept]
    return Sources(agents.rows, polyline, kept - first[polyline], counts[polyline])


# ---- selection -------------------------------------------------------------------------------


class _Agents(NamedTuple):
    """The selected agents of a scene, targets first."""

    rows: np.ndarray  # int64 [n], indices in the scene
    num_targets: int
    pose: np.ndarray  # float32 [n, 3], extrapolated to the present
    velocity: np.ndarray  # float32 [n, 2], m/s, in the last observed step of each agent
    age: np.ndarray  # float32 [n], seconds since that step
    is_present: np.ndarray  # bool [n]


def _select_agents(scene: Scene, config: BatchConfig) -> _Agents:
    observed = scene.valid[:, : scene.num_history]
    num_agents, num_history = observed.shape
    steps_ago = observed[:, ::-1].argmax(1)  # of the last observed step
    last = num_history - 1 - steps_ago
    age = (steps_ago * scene.period_s).astype(np.float32)
    rows = np.arange(num_agents)
    velocity = scene.velocity[rows, last]
    pose = np.empty((num_agents, 3), np.float32)
    moved = on_grid(velocity * age[:, None])  # positions stay on the grid of scenes
    pose[:, :2] = scene.position[rows, last] + moved
    pose[:, 2] = scene.heading[rows, last]

    is_observed = observed.any(1)
    is_present = is_observed & (age <= SHORT_LOSS_S + ROUNDING_S)
    is_target = _is_target(scene, config.targets, is_present) & is_observed
    targets = is_target.nonzero()[0]
    importance = scene.agent_role[targets].astype(np.int64)  # the focal agent comes first
    targets = targets[(-importance).argsort(kind="stable")]
    context = (is_present & ~is_target).nonzero()[0]
    rows = np.concatenate([targets, context])
    return _Agents(
        rows=rows,
        num_targets=len(targets),
        pose=pose.take(rows, 0),
        velocity=velocity.take(rows, 0),
        age=age.take(rows),
        is_present=is_present.take(rows),
    )


def _is_target(scene: Scene, targets: Targets, is_present: np.ndarray) -> np.ndarray:
    """Bool [A]."""
    now = scene.num_history - 1
    if targets == "all":
        return is_present
    if targets == "focal":
        return scene.agent_role == _FOCAL
    is_scored = scene.agent_role >= _SCORED
    if targets == "scored":
        return is_scored
    displacement = scene.position[:, -1] - scene.position[:, now]
    is_moving = np.hypot(displacement[:, 0], displacement[:, 1]) >= _MOVING_M
    return is_scored | (scene.valid.all(1) & is_moving)


def _select_polylines(scene: Scene, agents: _Agents, config: BatchConfig) -> dict[str, np.ndarray]:
    """Pieces of the polylines near an agent, of the kinds that `config` names."""
    pieces = cut_map(scene, scene.point, config)
    return pieces.take(_near(scene, agents, pieces, config))


def _near(scene: Scene, agents: _Agents, pieces: MapPieces, config: BatchConfig) -> np.ndarray:
    """Indices of the pieces near an agent, of the kinds that `config` names."""
    radius = _map_radius(scene, agents, config)
    center = agents.pose[agents.is_present, :2]
    is_kept = config.receives(pieces.kind)
    if len(center) > 0 and len(pieces.kind) > 0:
        every = 3 if config.polyline_points > 3 else 1  # every third point suffices
        point = np.ascontiguousarray(pieces.point[:, ::every].T)  # [2, points, N]
        if len(center) * len(pieces.kind) <= MAX_PAIRS:
            is_kept &= _is_near(point, center, radius)
        else:
            is_kept &= _is_near_one_of_many(point, center, radius)
    return is_kept.nonzero()[0]


def _is_near(point: np.ndarray, center: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Whether a point of a piece is within the radius of an agent, bool [N].

    Points are [2, points, N], centers [n, 2] and radii [n].
    """
    offset = point[:, None] - center.T[..., None, None]
    offset *= offset
    squared_distance = (offset[0] + offset[1]).min(1)  # [agents, N]
    is_near: np.ndarray = (squared_distance <= (radius * radius)[:, None]).any(0)
    return is_near


def _is_near_one_of_many(point: np.ndarray, center: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """The same result as `_is_near`, in less time for many agents and pieces.

    The distance to the middle of a piece decides for most pieces.
    """
    middle = point.mean(1)  # [2, N]
    reach = np.sqrt(((point - middle[:, None]) ** 2).sum(0)).max(0) + _ROUNDING_M  # [N]
    num_agents = len(center)
    num_pieces = point.shape[2]
    gap = np.full(num_pieces, np.inf, np.float32)  # beyond the radius of the nearest agent
    num_blocks = min(num_agents, 1 + num_agents * num_pieces // MAX_PAIRS)
    for agents in np.array_split(np.arange(num_agents), num_blocks):
        np.minimum(gap, _gaps(middle, center[agents], radius[agents]).min(0), out=gap)
    is_near = gap <= -reach

    # For other pieces, the points count, but only for agents whose circle may reach them.
    open_ones = np.flatnonzero(~is_near & (gap <= reach))
    for chunk in np.array_split(open_ones, 1 + len(open_ones) * num_agents // MAX_PAIRS):
        agent, column = (_gaps(middle[:, chunk], center, radius) <= reach[chunk]).nonzero()
        piece = chunk[column]
        offset = point[:, :, piece] - center[agent].T[:, None]  # [2, points, pairs]
        offset *= offset
        squared_distance = (offset[0] + offset[1]).min(0)
        is_near[piece[squared_distance <= (radius * radius)[agent]]] = True
    return is_near


def _gaps(middle: np.ndarray, center: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Distances beyond the radii [n] between centers [n, 2] and middles [2, N]: [n, N]."""
    distance = (middle[0] - center[:, :1]) ** 2
    offset = middle[1] - center[:, 1:]
    offset *= offset
    distance += offset
    np.sqrt(distance, out=distance)
    distance -= radius[:, None]
    return distance


def _map_radius(scene: Scene, agents: _Agents, config: BatchConfig) -> np.ndarray:
    """The radius [n] around each present agent within which polylines are kept."""
    velocity = agents.velocity[agents.is_present]
    if config.map_slack_m is None:
        return np.full(len(velocity), config.map_radius_m, np.float32)
    horizon_s = scene.num_future * scene.period_s
    distance = np.hypot(velocity[:, 0], velocity[:, 1]) * horizon_s
    radius = config.map_slack_m + distance
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
        "age": agents.age,
        "agent_size": np.zeros((len(rows), 2), np.float32),
    }
    if len(scene.agent_size):
        padded["agent_size"] = scene.agent_size[rows]
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


# first steps and last steps that were not recorded
_HISTORY_FIELDS = ("position", "heading", "velocity", "valid")
_FUTURE_FIELDS = ("target", "target_valid")


def extended(sample: Sample, num_history: int, num_future: int) -> Sample:
    """The sample with at least these numbers of steps.

    The added first steps of the history and last steps of the horizon are not valid, and zero.
    """
    period_s, history, future, unit = sample.clock
    before = max(num_history - history, 0)
    after = max(num_future - future, 0)
    if before == 0 and after == 0:
        return sample
    padded = dict(sample.padded)
    for name, steps in [(name, (before, 0)) for name in _HISTORY_FIELDS] + [
        (name, (0, after)) for name in _FUTURE_FIELDS
    ]:
        value = padded[name]
        padding = [(0, 0)] * value.ndim
        padding[1] = steps
        padded[name] = np.pad(value, padding)
    return replace(sample, padded=padded, clock=(period_s, history + before, future + after, unit))


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
