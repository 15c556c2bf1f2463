"""Overlap of agents as oriented boxes: predicted and recorded paths of a scene.

A box has the length and the width of its agent, its center at the position and its axis along the
heading. Two boxes overlap if they have an inner point in common, so that boxes that only touch do
not overlap (separating axis theorem; Gottschalk et al. 1996, "OBBTree", section 5). The time
between two steps is not checked.

Sizes are recorded ones. Where a scene has none, the sizes of `ASSUMED_SIZE_M` are used, and
`Overlaps.assumed` is True. Pairs that already overlap in the last observed step are not counted:
riders and their vehicles, trailers, noise of parked cars, assumed sizes that are too large.

Agents without a forecast take part if their recorded paths are given in all worlds. A single agent
has no answer (`Overlaps.known` is False).

Example, for worlds [N, K, F, 2] of the agents `rows` of a scene, relative to `scene.origin`. World
k is the joint future k of all agents; for the most probable modes, K is 1:

    predicted = overlaps(scene, rows, worlds)
    future = slice(scene.num_history, None)
    recorded = overlaps(
        scene, rows, scene.position[rows, None, future], scene.valid[rows, None, future]
    )
    predicted.overlap[predicted.known].mean(), predicted.assumed.mean()
"""

from typing import NamedTuple

import numpy as np

from trajformer.scenes.scene import METRES, AgentKind, Scene

# Length and width in metres: rounded means of the annotations of Argoverse 2 Sensor (three logs).
ASSUMED_SIZE_M: dict[AgentKind, tuple[float, float]] = {
    AgentKind.UNKNOWN: (4.5, 1.9),  # as a vehicle: data sets without types have vehicles
    AgentKind.VEHICLE: (4.5, 1.9),
    AgentKind.PEDESTRIAN: (0.7, 0.7),
    AgentKind.MOTORCYCLIST: (1.8, 0.6),
    AgentKind.CYCLIST: (1.7, 0.6),
    AgentKind.BUS: (11.0, 2.9),
    AgentKind.STATIC: (0.4, 0.4),
    AgentKind.BACKGROUND: (0.4, 0.4),
    AgentKind.CONSTRUCTION: (0.3, 0.3),
    AgentKind.RIDERLESS_BICYCLE: (1.7, 0.6),
}
TURNING_M = 0.2  # an agent that moves less within two steps keeps its heading
_PAIRS = 1 << 20  # pairs of boxes in memory


class Overlaps(NamedTuple):
    """Overlaps of N agents of a scene in K worlds."""

    overlap: np.ndarray  # bool [N, K], the agent overlaps with another one at any known step
    known: np.ndarray  # bool [N, K], the agent and another one have a known step
    assumed: np.ndarray  # bool [N], the size of the agent is assumed


def agent_sizes(scene: Scene, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Length and width float64 [N, 2] in metres of agents, and bool [N]: sizes that are assumed.

    Sizes of zero are unknown. Scenes in pixels have no sizes: those without a recorded size are
    NaN, and such agents overlap with none.
    """
    default = np.array([ASSUMED_SIZE_M[AgentKind(kind)] for kind in scene.agent_kind[rows]])
    default = default.reshape(-1, 2)
    if scene.unit != METRES:
        default = np.full_like(default, np.nan)
    if not len(scene.agent_size):
        return default, np.ones(len(default), bool)
    recorded = scene.agent_size[rows].astype(np.float64)
    assumed = ~(recorded > 0).all(-1)
    return np.where(assumed[:, None], default, recorded), assumed


def overlaps(
    scene: Scene, rows: np.ndarray, position: np.ndarray, valid: np.ndarray | None = None
) -> Overlaps:
    """Overlaps of the paths of N agents with each other, see the text of this module.

    Headings follow the paths; the first one is the last observed heading. The direction of a path
    over less than 0.2 m keeps the earlier heading.

    Args:
        scene: gives types, sizes and last observed poses.
        rows: int64 [N], the agents.
        position: [N, K, F, 2], metres relative to `scene.origin`. NaN counts as unknown.
        valid: bool [N, K, F] or broadcastable, steps that are known; all steps by default.
    """
    position = np.asarray(position, np.float64)
    known = np.asarray(np.isfinite(position).all(-1))
    if valid is not None:
        known = known & valid
    position = np.where(known[..., None], position, np.nan)
    size, assumed = agent_sizes(scene, rows)

    observed = scene.valid[rows, : scene.num_history]
    step = scene.num_history - 1 - observed[:, ::-1].argmax(1)
    start = scene.position[rows, None, step].astype(np.float64)[:, 0]
    start_heading = scene.heading[rows, step].astype(np.float64)
    is_present = observed[:, -1]

    num_worlds = position.shape[1]
    at_start = np.broadcast_to(start[:, None], (len(rows), num_worlds, 2))
    heading = path_headings(position, at_start, start_heading[:, None])
    now = np.where(is_present[:, None], start, np.nan)[:, None, None]
    present_pairs = overlapping_pairs(now, start_heading[:, None, None], size)
    pairs = overlapping_pairs(position, heading, size)
    pairs &= ~present_pairs

    has_path = known.any(-1)  # [N, K]
    has_other = has_path.sum(0) - has_path > 0
    return Overlaps(np.asarray(pairs.any(1)), has_path & has_other, assumed)


def overlapping_pairs(position: np.ndarray, heading: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Pairs of boxes that overlap at any step, bool [N, N, K], symmetric, without self-overlaps.

    Args:
        position: float64 [N, K, F, 2], centers in metres; NaN is unknown and overlaps with nothing.
        heading: [N, K, F], radians.
        size: [N, 2], length and width in metres.
    """
    count, num_worlds, num_steps = position.shape[:3]
    result = np.zeros((count, count, num_worlds), bool)
    first, second = np.triu_indices(count, 1)
    reach = np.hypot(size[:, 0], size[:, 1]) / 2  # radius of the circle around a box
    pairs_at_once = max(_PAIRS // max(num_worlds * num_steps, 1), 1)
    for begin in range(0, len(first), pairs_at_once):
        one = first[begin : begin + pairs_at_once]
        other = second[begin : begin + pairs_at_once]
        offset = position[one] - position[other]
        limit = (reach[one] + reach[other]) ** 2
        square = offset[..., 0] ** 2 + offset[..., 1] ** 2
        pair, world, step = np.nonzero(square < limit[:, None, None])
        left = one[pair]
        right = other[pair]
        hit = boxes_overlap(
            offset[pair, world, step],
            heading[left, world, step],
            size[left],
            heading[right, world, step],
            size[right],
        )
        result[left[hit], right[hit], world[hit]] = True
        result[right[hit], left[hit], world[hit]] = True
    return result


def boxes_overlap(
    offset: np.ndarray,
    heading: np.ndarray,
    size: np.ndarray,
    other_heading: np.ndarray,
    other_size: np.ndarray,
) -> np.ndarray:
    """Whether pairs of boxes have an inner point in common, bool [...].

    Two rectangles are disjoint if and only if one of their four axes separates them.

    Args:
        offset: [..., 2], metres, from the center of the other box to the center of the box.
        heading: [...], radians.
        size: [..., 2], length and width in metres.
        other_heading: [...], radians.
        other_size: [..., 2], length and width in metres.
    """
    half = np.asarray(size) / 2
    other_half = np.asarray(other_size) / 2
    turn = heading - other_heading
    cos = np.abs(np.cos(turn))
    sin = np.abs(np.sin(turn))
    overlap = np.ones(np.broadcast(offset[..., 0], turn).shape, bool)
    sides = ((heading, half, other_half), (other_heading, other_half, half))
    for axis, across, projected in sides:
        along = offset[..., 0] * np.cos(axis) + offset[..., 1] * np.sin(axis)
        aside = offset[..., 1] * np.cos(axis) - offset[..., 0] * np.sin(axis)
        length = across[..., 0] + projected[..., 0] * cos + projected[..., 1] * sin
        width = across[..., 1] + projected[..., 0] * sin + projected[..., 1] * cos
        overlap &= (np.abs(along) < length) & (np.abs(aside) < width)
    return overlap


def path_headings(path: np.ndarray, position: np.ndarray, heading: np.ndarray) -> np.ndarray:
    """Heading [..., F] along paths [..., F, 2] that begin at `position` [..., 2].

    It is the direction from the step before to the step after. Where this is shorter than 0.2 m,
    or unknown (NaN), the earlier heading is kept, at first `heading` [...].
    """
    before = np.broadcast_to(position[..., None, :], (*path.shape[:-2], 1, 2))
    points = np.concatenate([before, path, path[..., -1:, :]], -2)
    chord = points[..., 2:, :] - points[..., :-2, :]
    angle = np.arctan2(chord[..., 1], chord[..., 0])
    # each step has the angle of the latest step that moves, at first the heading before the path
    first = np.broadcast_to(heading[..., None], (*angle.shape[:-1], 1))
    candidates = np.concatenate([first, angle], -1)  # [..., 1 + F]
    moves = np.hypot(chord[..., 0], chord[..., 1]) >= TURNING_M
    step = np.arange(1, angle.shape[-1] + 1)
    latest = np.maximum.accumulate(np.where(moves, step, 0), -1)
    return np.take_along_axis(candidates, latest, -1)
