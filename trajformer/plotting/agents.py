"""The agents of a scene: oriented boxes at one step, fading histories, and what really came after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.patheffects import Normal, Stroke

from trajformer.plotting import style
from trajformer.scenes.geometry import from_frame
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

_SMALL_M = 2.5  # a focal agent shorter than this gets a ring, its box would not be found
_SHORTEST_WITH_NOSE_M = 1.5
_MANY = 12  # targets; the recorded futures of more are drawn finer
_CIRCLE = np.linspace(0, 2 * np.pi, 17)[:-1]


@dataclass(frozen=True)
class _Look:
    """How one group of agents is drawn; `faint` replaces the face of kinds that seldom matter."""

    name: str
    face: str
    edge: str
    edge_width: float
    trail: str
    trail_width: float
    zorder: float
    trail_zorder: float
    nose: str
    faint: str | None = None


_C = style
_LOOKS = {
    "context": _Look(
        "other agent", _C.CONTEXT_FACE, _C.CONTEXT_EDGE, 0.4, "#8A8A8A", 0.8, _C.Z_CONTEXT, _C.Z_TRAIL, _C.CONTEXT_EDGE,
        faint=_C.FAINT_FACE,
    ),
    "recorder": _Look(
        "ego vehicle", _C.PAPER, _C.RECORDER, 1.1, _C.RECORDER, 0.9, _C.Z_CONTEXT + 0.1, _C.Z_TRAIL, _C.RECORDER
    ),
    "scored": _Look(
        "scored agent", _C.SCORED, _C.SCORED_DARK, 0.5, _C.SCORED, 1.5, _C.Z_TARGET, _C.Z_TARGET_TRAIL, _C.PAPER
    ),
    "focal": _Look(
        "focal agent", _C.FOCAL, _C.TRUTH, 1.0, _C.FOCAL, 2.0, _C.Z_TARGET + 0.1, _C.Z_TARGET_TRAIL + 0.1, _C.PAPER
    ),
}  # fmt: skip


def box_corners(pose: np.ndarray, length: float, width: float) -> np.ndarray:
    """Corners [..., 4, 2] of a box at pose [..., 3] (x, y, heading): front left, back left, back right, front right."""
    corners = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)]) * np.array([length, width]) / 2
    return from_frame(corners, pose[..., None, :])


def outline(pose: np.ndarray, kind: AgentKind) -> np.ndarray:
    """Outline [p, 2] of an agent at pose [3], metres: a circle for a pedestrian, else the box of its kind."""
    length, width = style.AGENT_SIZE_M[kind]
    if kind == AgentKind.PEDESTRIAN:
        return pose[:2] + length / 2 * np.stack([np.cos(_CIRCLE), np.sin(_CIRCLE)], -1)
    return box_corners(pose, length, width)


def outlines(scene: Scene, step: int) -> list[np.ndarray]:
    """Outlines [p, 2] of all agents that are there at a step, metres."""
    there = np.flatnonzero(scene.valid[:, step])
    pose = np.concatenate([scene.position[there, step], scene.heading[there, step, None]], -1).astype(np.float64)
    return [outline(p, AgentKind(int(k))) for p, k in zip(pose, scene.agent_kind[there], strict=True)]


def agent_group(scene: Scene, agent: int) -> str:
    """Group that decides an agent's colour: "focal", "scored", "recorder" (the recording vehicle) or "context"."""
    if scene.agent_role[agent] != AgentRole.CONTEXT:
        return "focal" if scene.agent_role[agent] == AgentRole.FOCAL else "scored"
    return "recorder" if scene.agent_id[agent] == style.RECORDER_ID else "context"


def draw_agents(
    ax: Axes,
    scene: Scene,
    *,
    step: int | None = None,
    with_truth: bool = True,
    colours: Mapping[int, str] | None = None,
) -> Axes:
    """Draw every agent that is there at one step, its history up to it and, for targets, the true future after it.

    Args:
        ax: where to draw, metres relative to the scene's `origin`.
        step: the step of the boxes, 0 to T - 1; the last observed one (H - 1) when None.
        with_truth: draw the recorded steps after `step` of focal and scored agents, where there are any.
        colours: of single agents, by their number in the scene, instead of those of their group.

    Artists carry gids: "boxes:<group>", "trails:<group>" (see `agent_group`), "truth:<track id>", "focal-ring".
    """
    now = scene.num_history - 1 if step is None else step
    groups: dict[str, list[int]] = {name: [] for name in _LOOKS}
    for agent in np.flatnonzero(scene.valid[:, now]).tolist():
        groups[agent_group(scene, agent)].append(agent)
    for name, agents in groups.items():
        if agents:
            _draw_group(ax, scene, name, agents, now, colours or {})
    if with_truth:
        for agent in np.argsort(-scene.agent_role.astype(np.int64), kind="stable")[: (scene.agent_role > 0).sum()]:
            _draw_truth(ax, scene, agent, now)
    return ax


def _draw_group(ax: Axes, scene: Scene, name: str, agents: list[int], now: int, colours: Mapping[int, str]) -> None:
    look = _LOOKS[name]
    _draw_trails(ax, scene, agents, now, look, colours, f"trails:{name}")
    agents = sorted(agents, key=lambda a: scene.agent_kind[a] in style.FAINT_KINDS)  # a legend shows the first
    kinds = [AgentKind(kind) for kind in scene.agent_kind[agents].tolist()]
    pose = np.concatenate([scene.position[agents, now], scene.heading[agents, now, None]], -1).astype(np.float64)
    faces = [look.faint if look.faint and kind in style.FAINT_KINDS else look.face for kind in kinds]
    faces = [colours.get(agent, face) for agent, face in zip(agents, faces, strict=True)]
    boxes = PolyCollection([outline(p, k) for p, k in zip(pose, kinds, strict=True)], facecolors=faces)
    boxes.set(edgecolor=look.edge, linewidth=look.edge_width, gid=f"boxes:{name}", zorder=look.zorder, label=look.name)
    ax.add_collection(boxes, autolim=True)
    sizes = [style.AGENT_SIZE_M[kind] for kind in kinds]
    noses = [_nose(p, *size) for p, size, kind in zip(pose, sizes, kinds, strict=True) if _has_nose(kind)]
    if noses:
        lines = LineCollection(noses, colors=look.nose, linewidths=0.6, zorder=look.zorder + 0.05, gid=f"noses:{name}")
        ax.add_collection(lines, autolim=False)
    if name == "focal" and sizes[0][0] < _SMALL_M:
        x, y = pose[0, :2].tolist()
        (ring,) = ax.plot([x], [y], "o", markersize=9.5, markerfacecolor="none", markeredgecolor=look.edge)
        ring.set(markeredgewidth=look.edge_width, gid="focal-ring", zorder=look.zorder)


def _has_nose(kind: AgentKind) -> bool:
    return style.AGENT_SIZE_M[kind][0] >= _SHORTEST_WITH_NOSE_M


def _nose(pose: np.ndarray, length: float, width: float) -> np.ndarray:
    """An arrowhead [3, 2] inside the front of a box, which shows its heading."""
    back = length / 2 - min(width * 0.7, length * 0.35)
    points = np.array([(back, 0.42 * width), (0.45 * length, 0.0), (back, -0.42 * width)])
    return from_frame(points, pose)


def _draw_trails(ax: Axes, scene: Scene, agents: list[int], now: int, look: _Look, colours: Mapping[int, str], gid: str) -> None:
    """Where the agents came from, one line a step, fading with age; a missing step is a gap."""
    position, valid = scene.position[agents, : now + 1], scene.valid[agents, : now + 1]
    both = valid[:, 1:] & valid[:, :-1]
    segments = np.stack([position[:, :-1], position[:, 1:]], 2)[both]
    if not len(segments):
        return
    age = np.broadcast_to(np.linspace(0.1, 0.95, now), both.shape)[both]
    rgba = np.repeat([to_rgba(colours.get(agent, look.trail)) for agent in agents], both.sum(1), 0)
    rgba[:, 3] = age
    trails = LineCollection(list(segments), colors=rgba, linewidths=look.trail_width, zorder=look.trail_zorder)
    trails.set(gid=gid, capstyle="butt")
    ax.add_collection(trails, autolim=True)


def _draw_truth(ax: Axes, scene: Scene, agent: int, now: int) -> None:
    """The recorded future, dashed on a white halo so that it stays visible on top of the forecasts."""
    after = max(now + 1, scene.num_history)
    known = np.flatnonzero(scene.valid[agent, after:])
    if not len(known):
        return
    path = np.where(scene.valid[agent, after:, None], scene.position[agent, after:], np.nan)
    focal, many = scene.agent_role[agent] == AgentRole.FOCAL, (scene.agent_role != AgentRole.CONTEXT).sum() > _MANY
    width, size = (1.2, 5.5) if focal else (0.55, 2.8) if many else (0.8, 4.0)
    (line,) = ax.plot(path[:, 0], path[:, 1], color=style.TRUTH, linewidth=width, linestyle=(0, (3.0, 1.5)))
    line.set(gid=f"truth:{scene.agent_id[agent]}", zorder=style.Z_TRUTH, label="recorded future")
    line.set(marker="X", markersize=size, markeredgecolor=style.PAPER, markeredgewidth=0.5)
    line.set(markevery=[int(known[-1])])
    line.set_path_effects([Stroke(linewidth=width + 1.2, foreground=style.PAPER, alpha=0.8), Normal()])
