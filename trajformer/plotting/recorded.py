"""The recorded part of a scene: map, oriented boxes of agents, fading histories and futures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import Collection, LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.patheffects import Normal, Stroke

from trajformer.plotting import style
from trajformer.scenes.geometry import from_frame
from trajformer.scenes.scene import AgentKind, AgentRole, LaneFlag, PolylineKind, Scene

ARROW_SPACING_M, ARROW_SIZE_M, MIN_LANE_WITH_ARROW_M = 30.0, 1.0, 8.0
_MIN_BOX_M = 2.5  # a focal agent shorter than this gets a ring, because its box is hard to see
_MIN_NOSE_M = 1.5
_MANY_TARGETS = 12  # with more targets, recorded futures get thinner lines
_CIRCLE = np.linspace(0, 2 * np.pi, 17)[:-1]
_CORNERS = np.array(
    [(1, 1), (-1, 1), (-1, -1), (1, -1)]
)  # front left, back left, back right, front right


def _add(ax: Axes, artist: Collection, *, autolim: bool = True, **properties: Any) -> None:
    artist.set(**properties)
    ax.add_collection(artist, autolim=autolim)


def draw_map(ax: Axes, scene: Scene) -> Axes:
    """Draw all polylines of a scene, metres relative to its `origin`; without a map nothing is drawn.

    Artists have the gids "drivable", "crosswalks", "lines:<KIND>", "lanes:<KIND>", "lanes:<KIND>:intersection" and
    "lanes:arrows".
    """
    if drivable := _polylines(scene, scene.polyline_kind == PolylineKind.DRIVABLE_AREA):
        areas = PolyCollection(
            drivable, facecolors=style.DRIVABLE_FACE, edgecolors=style.DRIVABLE_EDGE
        )
        _add(ax, areas, linewidth=0.5, gid="drivable", zorder=style.Z_DRIVABLE)
    if crosswalks := _polylines(scene, scene.polyline_kind == PolylineKind.CROSSWALK):
        stripes = PolyCollection(
            crosswalks, facecolors=style.PAPER, edgecolors=style.CROSSWALK, label="crosswalk"
        )
        _add(
            ax,
            stripes,
            linewidth=0.5,
            hatch="/" * 5,
            hatch_linewidth=0.6,
            gid="crosswalks",
            zorder=style.Z_CROSSWALK,
        )
    for kind, (name, color, dashes) in style.ROAD_LINES.items():
        if road := _polylines(scene, scene.polyline_kind == kind):
            drawn = LineCollection(road, colors=color, linewidths=0.7, linestyles=[dashes])
            _add(
                ax,
                drawn,
                gid=f"lines:{kind.name}",
                zorder=style.Z_LANE,
                capstyle="butt",
                label=name,
            )
    inside = (scene.polyline_flags & LaneFlag.INTERSECTION) != 0
    for kind, look in style.LANES.items():
        of_kind, gid = scene.polyline_kind == kind, f"lanes:{kind.name}"
        crossing, lines = _polylines(scene, of_kind & inside), _polylines(scene, of_kind & ~inside)
        for part, color, name, end in (
            (crossing, look.light, "", ":intersection"),
            (lines, look.color, look.name, ""),
        ):
            if part:
                lanes = LineCollection(
                    part, colors=color, linewidths=look.width, linestyles=[look.dashes]
                )
                _add(ax, lanes, gid=gid + end, zorder=style.Z_LANE, capstyle="butt", label=name)
        if chevrons := list(_chevrons(lines)):
            arrows = LineCollection(
                chevrons, colors=look.color, linewidths=0.8, zorder=style.Z_ARROW
            )
            _add(ax, arrows, autolim=False, gid="lanes:arrows", capstyle="round")
    return ax


def _polylines(scene: Scene, selected: np.ndarray) -> list[np.ndarray]:
    """Polylines [P, 2] of a mask [M]."""
    return [scene.polyline(index) for index in np.flatnonzero(selected).tolist()]


def _chevrons(lines: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Small open arrowheads [3, 2] in driving direction, at equal distances along each line of sufficient length."""
    for line in lines:
        arc = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(line, axis=0).T))])
        length = float(arc[-1])
        if length < MIN_LANE_WITH_ARROW_M:
            continue
        count = max(round(length / ARROW_SPACING_M), 1)
        for distance in (np.arange(count) + 0.5) / count * length:
            ends = distance + np.array([ARROW_SIZE_M / 2, -ARROW_SIZE_M / 2])
            tip, back = np.stack([np.interp(ends, arc, line[:, axis]) for axis in (0, 1)], -1)
            along = tip - back
            across = np.array([-along[1], along[0]]) * 0.55
            yield np.stack([back + across, tip, back - across])


class _Look(NamedTuple):
    """Style of one group of agents."""

    name: str
    face: str
    edge: str
    edge_width: float
    nose: str
    zorder: float
    trail: str
    trail_width: float
    trail_zorder: float


_S, _EDGE = style, style.CONTEXT_EDGE
_LOOKS = {
    "context": _Look(
        "other agent", _S.CONTEXT_FACE, _EDGE, 0.4, _EDGE, _S.Z_CONTEXT, "#8A8A8A", 0.8, _S.Z_TRAIL
    ),
    "recorder": _Look(
        "ego vehicle",
        _S.PAPER,
        _S.RECORDER,
        1.1,
        _S.RECORDER,
        _S.Z_CONTEXT + 0.1,
        _S.RECORDER,
        0.9,
        _S.Z_TRAIL,
    ),
    "scored": _Look(
        "scored agent",
        _S.SCORED,
        _S.SCORED_DARK,
        0.5,
        _S.PAPER,
        _S.Z_TARGET,
        _S.SCORED,
        1.5,
        _S.Z_TARGET_TRAIL,
    ),
    "focal": _Look(
        "focal agent",
        _S.FOCAL,
        _S.TRUTH,
        1.0,
        _S.PAPER,
        _S.Z_TARGET + 0.1,
        _S.FOCAL,
        2.0,
        _S.Z_TARGET_TRAIL + 0.1,
    ),
}


def outlines(scene: Scene, agents: list[int]) -> list[np.ndarray]:
    """Outlines [p, 2] of agents at step H - 1, metres: a circle for a pedestrian, otherwise the box."""
    shapes = []
    for pose, kind, size in zip(
        _pose(scene, agents), scene.agent_kind[agents].tolist(), _size(scene, agents), strict=True
    ):
        circle = pose[:2] + size[0] / 2 * np.stack([np.cos(_CIRCLE), np.sin(_CIRCLE)], -1)
        shapes.append(
            circle if kind == AgentKind.PEDESTRIAN else from_frame(_CORNERS * size / 2, pose)
        )
    return shapes


def _size(scene: Scene, agents: list[int]) -> np.ndarray:
    """Length and width [n, 2] of agents in metres: the recorded size, else the size for the kind."""
    usual = np.array(
        [style.AGENT_SIZE_M[AgentKind(kind)] for kind in scene.agent_kind[agents].tolist()]
    )
    usual = usual * style.SCALE[scene.unit]
    return (
        np.where(scene.agent_size[agents] > 0.0, scene.agent_size[agents], usual)
        if len(scene.agent_size)
        else usual
    )


def _pose(scene: Scene, agents: list[int]) -> np.ndarray:
    """Poses [n, 3] of agents at step H - 1."""
    now = scene.num_history - 1
    return np.concatenate(
        [scene.position[agents, now], scene.heading[agents, now, None]], -1
    ).astype(np.float64)


def draw_agents(
    ax: Axes, scene: Scene, colors: Mapping[int, str] | None = None, futures: Sequence[int] = ()
) -> Axes:
    """Draw every agent that is valid at step H - 1, its history, and the recorded future of scored agents and of `futures`.

    `futures` are indices of agents. `colors` by index of the agent replace the color of its group. Artists have the gids
    "boxes:<group>" and "trails:<group>" (groups: "focal", "scored", "recorder" for the recording vehicle, "context"),
    "truth:<track id>" and "focal-ring".
    """
    role, present = scene.agent_role, scene.valid[:, scene.num_history - 1]
    recorder = np.array([name == style.RECORDER_ID for name in scene.agent_id])
    groups = {
        "context": (role == AgentRole.CONTEXT) & ~recorder,
        "recorder": (role == AgentRole.CONTEXT) & recorder,
        "scored": role == AgentRole.SCORED,
        "focal": role == AgentRole.FOCAL,
    }
    for name, members in groups.items():
        if agents := np.flatnonzero(members & present).tolist():
            _draw_trails(ax, scene, agents, name, colors or {})
            _draw_boxes(ax, scene, agents, name, colors or {})
    rank = role.astype(np.int64) + 1
    rank[np.setdiff1d(np.flatnonzero(role == AgentRole.CONTEXT), futures)] = 0
    count = int(np.count_nonzero(rank))
    for agent in np.argsort(-rank, kind="stable")[:count]:
        _draw_truth(ax, scene, agent, many=count > _MANY_TARGETS)
    return ax


def _draw_boxes(
    ax: Axes, scene: Scene, agents: list[int], name: str, colors: Mapping[int, str]
) -> None:
    look = _LOOKS[name]
    agents = sorted(
        agents, key=lambda a: scene.agent_kind[a] in style.FAINT_KINDS
    )  # the legend shows the first one
    kinds, poses = (
        [AgentKind(kind) for kind in scene.agent_kind[agents].tolist()],
        _pose(scene, agents),
    )
    faces = [
        style.FAINT_FACE if name == "context" and kind in style.FAINT_KINDS else look.face
        for kind in kinds
    ]
    faces = [colors.get(agent, face) for agent, face in zip(agents, faces, strict=True)]
    boxes = PolyCollection(
        outlines(scene, agents), facecolors=faces, edgecolor=look.edge, linewidth=look.edge_width
    )
    _add(ax, boxes, gid=f"boxes:{name}", zorder=look.zorder, label=look.name)
    noses = []  # arrowheads [3, 2] inside the front of long boxes, which show the heading
    for pose, (length, width) in zip(poses, _size(scene, agents), strict=True):
        if length >= _MIN_NOSE_M:
            back = length / 2 - min(width * 0.7, length * 0.35)
            noses.append(
                from_frame(
                    np.array([(back, 0.42 * width), (0.45 * length, 0.0), (back, -0.42 * width)]),
                    pose,
                )
            )
    if noses:
        lines = LineCollection(noses, colors=look.nose, linewidths=0.6)
        _add(ax, lines, autolim=False, zorder=look.zorder + 0.05, gid=f"noses:{name}")
    if name == "focal" and _size(scene, agents)[0, 0] < _MIN_BOX_M:
        (ring,) = ax.plot(
            *poses[:1, :2].T, "o", markersize=9.5, markerfacecolor="none", markeredgecolor=look.edge
        )
        ring.set(markeredgewidth=look.edge_width, gid="focal-ring", zorder=look.zorder)


def _draw_trails(
    ax: Axes, scene: Scene, agents: list[int], name: str, colors: Mapping[int, str]
) -> None:
    """Past positions, one line per step, fading with age; a missing step is a gap."""
    look, steps = _LOOKS[name], scene.num_history
    position, valid = scene.position[agents, :steps], scene.valid[agents, :steps]
    both = valid[:, 1:] & valid[:, :-1]
    segments = np.stack([position[:, :-1], position[:, 1:]], 2)[both]
    if len(segments):
        rgba = np.repeat(
            [to_rgba(colors.get(agent, look.trail)) for agent in agents], both.sum(1), 0
        )
        rgba[:, 3] = np.broadcast_to(np.linspace(0.1, 0.95, steps - 1), both.shape)[both]
        trails = LineCollection(
            list(segments), colors=rgba, linewidths=look.trail_width, zorder=look.trail_zorder
        )
        _add(ax, trails, gid=f"trails:{name}", capstyle="butt")


def _draw_truth(ax: Axes, scene: Scene, agent: int, many: bool) -> None:
    """The recorded future, dashed on a white halo, so that it is visible on top of the forecasts."""
    valid, position = (
        scene.valid[agent, scene.num_history :],
        scene.position[agent, scene.num_history :],
    )
    if not valid.any():
        return
    width, size = 0.8, 4.0
    if scene.agent_role[agent] == AgentRole.FOCAL:
        width, size = 1.2, 5.5
    elif many:
        width, size = 0.55, 2.8
    path = np.where(valid[:, None], position, np.nan)
    (line,) = ax.plot(*path.T, color=style.TRUTH, linewidth=width, linestyle=(0, (3.0, 1.5)))
    line.set(gid=f"truth:{scene.agent_id[agent]}", zorder=style.Z_TRUTH, label="recorded future")
    last = int(np.flatnonzero(valid)[-1])
    line.set(
        marker="X",
        markersize=size,
        markeredgecolor=style.PAPER,
        markeredgewidth=0.5,
        markevery=[last],
    )
    line.set_path_effects(
        [Stroke(linewidth=width + 1.2, foreground=style.PAPER, alpha=0.8), Normal()]
    )
