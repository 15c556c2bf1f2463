"""The agents of a scene: oriented boxes at one step, fading histories and recorded futures."""

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

_MIN_BOX_M = 2.5  # a focal agent shorter than this gets a ring, because its box is hard to see
_MIN_NOSE_M = 1.5
_MANY_TARGETS = 12  # with more targets, recorded futures get thinner lines
_CIRCLE = np.linspace(0, 2 * np.pi, 17)[:-1]


@dataclass(frozen=True)
class _Look:
    """Style of one group of agents; `faint_face` replaces the face of kinds that seldom matter."""

    name: str
    face: str
    edge: str
    edge_width: float
    trail: str
    trail_width: float
    zorder: float
    trail_zorder: float
    nose: str
    faint_face: str | None = None


_S = style
_Z, _Z_TRAIL = _S.Z_TARGET, _S.Z_TARGET_TRAIL
_LOOKS = {
    "context": _Look(
        "other agent", _S.CONTEXT_FACE, _S.CONTEXT_EDGE, 0.4, "#8A8A8A", 0.8, _S.Z_CONTEXT, _S.Z_TRAIL, _S.CONTEXT_EDGE,
        _S.FAINT_FACE,
    ),
    "recorder": _Look("ego vehicle", _S.PAPER, _S.RECORDER, 1.1, _S.RECORDER, 0.9, _S.Z_CONTEXT + 0.1, _S.Z_TRAIL, _S.RECORDER),
    "scored": _Look("scored agent", _S.SCORED, _S.SCORED_DARK, 0.5, _S.SCORED, 1.5, _Z, _Z_TRAIL, _S.PAPER),
    "focal": _Look("focal agent", _S.FOCAL, _S.TRUTH, 1.0, _S.FOCAL, 2.0, _Z + 0.1, _Z_TRAIL + 0.1, _S.PAPER),
}  # fmt: skip


def box_corners(pose: np.ndarray, length: float, width: float) -> np.ndarray:
    """Corners [..., 4, 2] of a box at pose [..., 3] (x, y, heading): front left, back left, back right, front right."""
    corners = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)]) * np.array([length, width]) / 2
    return from_frame(corners, pose[..., None, :])


def outline(pose: np.ndarray, kind: AgentKind) -> np.ndarray:
    """Outline [p, 2] of an agent at pose [3], metres: a circle for a pedestrian, otherwise the box of its kind."""
    length, width = style.AGENT_SIZE_M[kind]
    if kind == AgentKind.PEDESTRIAN:
        return pose[:2] + length / 2 * np.stack([np.cos(_CIRCLE), np.sin(_CIRCLE)], -1)
    return box_corners(pose, length, width)


def outlines(scene: Scene, agents: list[int]) -> list[np.ndarray]:
    """Outlines [p, 2] of agents at step H - 1, metres."""
    return [outline(p, AgentKind(int(k))) for p, k in zip(_pose(scene, agents), scene.agent_kind[agents], strict=True)]


def _pose(scene: Scene, agents: list[int]) -> np.ndarray:
    """Poses [n, 3] of agents at step H - 1."""
    now = scene.num_history - 1
    return np.concatenate([scene.position[agents, now], scene.heading[agents, now, None]], -1).astype(np.float64)


def agent_group(scene: Scene, agent: int) -> str:
    """Group that decides the color of an agent: "focal", "scored", "recorder" (the recording vehicle) or "context"."""
    if scene.agent_role[agent] != AgentRole.CONTEXT:
        return "focal" if scene.agent_role[agent] == AgentRole.FOCAL else "scored"
    return "recorder" if scene.agent_id[agent] == style.RECORDER_ID else "context"


def draw_agents(ax: Axes, scene: Scene, colors: Mapping[int, str] | None = None) -> Axes:
    """Draw every agent that is valid at step H - 1, its history, and for targets the recorded future.

    Args:
        ax: where to draw, metres relative to the scene's `origin`.
        scene: the agents.
        colors: by index of the agent, instead of the group's color.

    Artists have the gids "boxes:<group>", "trails:<group>" (see `agent_group`), "truth:<track id>" and "focal-ring".
    """
    now = scene.num_history - 1
    groups: dict[str, list[int]] = {name: [] for name in _LOOKS}
    for agent in np.flatnonzero(scene.valid[:, now]).tolist():
        groups[agent_group(scene, agent)].append(agent)
    for name, agents in groups.items():
        if agents:
            _draw_group(ax, scene, name, agents, colors or {})
    by_role = np.argsort(-scene.agent_role.astype(np.int64), kind="stable")
    for agent in by_role[: (scene.agent_role > 0).sum()]:
        _draw_truth(ax, scene, agent)
    return ax


def _draw_group(ax: Axes, scene: Scene, name: str, agents: list[int], colors: Mapping[int, str]) -> None:
    look = _LOOKS[name]
    _draw_trails(ax, scene, agents, look, colors, f"trails:{name}")
    agents = sorted(agents, key=lambda a: scene.agent_kind[a] in style.FAINT_KINDS)  # the legend shows the first one
    kinds = [AgentKind(kind) for kind in scene.agent_kind[agents].tolist()]
    poses = _pose(scene, agents)
    faces = [look.faint_face if look.faint_face and kind in style.FAINT_KINDS else look.face for kind in kinds]
    faces = [colors.get(agent, face) for agent, face in zip(agents, faces, strict=True)]
    boxes = PolyCollection(outlines(scene, agents), facecolors=faces)
    boxes.set(edgecolor=look.edge, linewidth=look.edge_width, gid=f"boxes:{name}", zorder=look.zorder, label=look.name)
    ax.add_collection(boxes, autolim=True)
    sizes = [style.AGENT_SIZE_M[kind] for kind in kinds]
    noses = [_nose(pose, *size) for pose, size in zip(poses, sizes, strict=True) if size[0] >= _MIN_NOSE_M]
    if noses:
        lines = LineCollection(noses, colors=look.nose, linewidths=0.6, zorder=look.zorder + 0.05, gid=f"noses:{name}")
        ax.add_collection(lines, autolim=False)
    if name == "focal" and sizes[0][0] < _MIN_BOX_M:
        x, y = poses[0, :2].tolist()
        (ring,) = ax.plot([x], [y], "o", markersize=9.5, markerfacecolor="none", markeredgecolor=look.edge)
        ring.set(markeredgewidth=look.edge_width, gid="focal-ring", zorder=look.zorder)


def _nose(pose: np.ndarray, length: float, width: float) -> np.ndarray:
    """An arrowhead [3, 2] inside the front of a box; it shows the heading."""
    back = length / 2 - min(width * 0.7, length * 0.35)
    points = np.array([(back, 0.42 * width), (0.45 * length, 0.0), (back, -0.42 * width)])
    return from_frame(points, pose)


def _draw_trails(ax: Axes, scene: Scene, agents: list[int], look: _Look, colors: Mapping[int, str], gid: str) -> None:
    """Past positions, one line per step, fading with age; a missing step is a gap."""
    position, valid = scene.position[agents, : scene.num_history], scene.valid[agents, : scene.num_history]
    both = valid[:, 1:] & valid[:, :-1]
    segments = np.stack([position[:, :-1], position[:, 1:]], 2)[both]
    if not len(segments):
        return
    alpha = np.broadcast_to(np.linspace(0.1, 0.95, scene.num_history - 1), both.shape)[both]
    rgba = np.repeat([to_rgba(colors.get(agent, look.trail)) for agent in agents], both.sum(1), 0)
    rgba[:, 3] = alpha
    trails = LineCollection(list(segments), colors=rgba, linewidths=look.trail_width, zorder=look.trail_zorder)
    trails.set(gid=gid, capstyle="butt")
    ax.add_collection(trails, autolim=True)


def _draw_truth(ax: Axes, scene: Scene, agent: int) -> None:
    """The recorded future, dashed on a white halo, so that it is visible on top of the forecasts."""
    valid, position = scene.valid[agent, scene.num_history :], scene.position[agent, scene.num_history :]
    if not valid.any():
        return
    path, last = np.where(valid[:, None], position, np.nan), int(np.flatnonzero(valid)[-1])
    if scene.agent_role[agent] == AgentRole.FOCAL:
        width, size = 1.2, 5.5
    elif (scene.agent_role != AgentRole.CONTEXT).sum() > _MANY_TARGETS:
        width, size = 0.55, 2.8
    else:
        width, size = 0.8, 4.0
    (line,) = ax.plot(path[:, 0], path[:, 1], color=style.TRUTH, linewidth=width, linestyle=(0, (3.0, 1.5)))
    line.set(gid=f"truth:{scene.agent_id[agent]}", zorder=style.Z_TRUTH, label="recorded future")
    line.set(marker="X", markersize=size, markeredgecolor=style.PAPER, markeredgewidth=0.5, markevery=[last])
    line.set_path_effects([Stroke(linewidth=width + 1.2, foreground=style.PAPER, alpha=0.8), Normal()])
