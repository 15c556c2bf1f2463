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

ARROW_SPACING_M = 30.0
ARROW_SIZE_M = 1.0
MIN_LANE_WITH_ARROW_M = 8.0
_MIN_BOX_M = 2.5  # a focal agent shorter than this gets a ring, because its box is hard to see
_MIN_NOSE_M = 1.5
_MIN_WIDTH_PT = 3.0  # of a drawn box
_MIN_CIRCLE_PT = 4.5  # of a drawn pedestrian
_MANY_TARGETS = 12  # with more targets, recorded futures get thinner lines
_CIRCLE = np.linspace(0, 2 * np.pi, 17)[:-1]
# front left, back left, back right, front right, in half lengths and half widths
_CORNERS = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)])


def _add(ax: Axes, artist: Collection, *, autolim: bool = True, **properties: Any) -> None:
    artist.set(**properties)
    ax.add_collection(artist, autolim=autolim)


def draw_map(ax: Axes, scene: Scene) -> Axes:
    """Draw all polylines of a scene, metres relative to its `origin`.

    Artists have the gids "drivable", "crosswalks", "lines:<KIND>", "lanes:<KIND>",
    "lanes:<KIND>:intersection" and "lanes:arrows". Without a map nothing is drawn.
    """
    _draw_areas(ax, scene)
    _draw_road_lines(ax, scene)
    for kind, look in style.LANES.items():
        _draw_lanes(ax, scene, kind, look)
    return ax


def _draw_areas(ax: Axes, scene: Scene) -> None:
    drivable = _polylines(scene, scene.polyline_kind == PolylineKind.DRIVABLE_AREA)
    if drivable:
        areas = PolyCollection(drivable, facecolors=style.DRIVABLE_FACE)
        areas.set(edgecolors=style.DRIVABLE_EDGE, linewidth=0.5)
        _add(ax, areas, gid="drivable", zorder=style.Z_DRIVABLE)
    crosswalks = _polylines(scene, scene.polyline_kind == PolylineKind.CROSSWALK)
    if crosswalks:
        stripes = PolyCollection(crosswalks, facecolors=style.PAPER, label="crosswalk")
        stripes.set(edgecolors=style.CROSSWALK, linewidth=0.5)
        stripes.set(hatch="/" * 5, hatch_linewidth=0.6)
        _add(ax, stripes, gid="crosswalks", zorder=style.Z_CROSSWALK)


def _draw_road_lines(ax: Axes, scene: Scene) -> None:
    for kind, (name, color, dashes) in style.ROAD_LINES.items():
        lines = _polylines(scene, scene.polyline_kind == kind)
        if lines:
            drawn = LineCollection(lines, colors=color, linewidths=0.7, linestyles=[dashes])
            drawn.set(capstyle="butt", label=name)
            _add(ax, drawn, gid=f"lines:{kind.name}", zorder=style.Z_LANE)


def _draw_lanes(ax: Axes, scene: Scene, kind: PolylineKind, look: style.LaneStyle) -> None:
    """Lanes of a kind: lighter inside of intersections, with arrows outside."""
    of_kind = scene.polyline_kind == kind
    inside = (scene.polyline_flags & LaneFlag.INTERSECTION) != 0
    gid = f"lanes:{kind.name}"
    crossing = _polylines(scene, of_kind & inside)
    if crossing:
        light = _lane_lines(crossing, look, look.light)
        _add(ax, light, gid=f"{gid}:intersection", zorder=style.Z_LANE, label="")
    lanes = _polylines(scene, of_kind & ~inside)
    if lanes:
        lines = _lane_lines(lanes, look, look.color)
        _add(ax, lines, gid=gid, zorder=style.Z_LANE, label=look.name)
    chevrons = list(_chevrons(lanes))
    if chevrons:
        arrows = LineCollection(chevrons, colors=look.color, linewidths=0.8)
        arrows.set(capstyle="round", zorder=style.Z_ARROW)
        _add(ax, arrows, autolim=False, gid="lanes:arrows")


def _lane_lines(lines: list[np.ndarray], look: style.LaneStyle, color: str) -> LineCollection:
    drawn = LineCollection(lines, colors=color, linewidths=look.width, linestyles=[look.dashes])
    drawn.set(capstyle="butt")
    return drawn


def _polylines(scene: Scene, selected: np.ndarray) -> list[np.ndarray]:
    """Polylines [P, 2] of a mask [M]."""
    return [scene.polyline(index) for index in np.flatnonzero(selected).tolist()]


def _chevrons(lines: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Small open arrowheads [3, 2] in driving direction.

    They are at equal distances along each line of sufficient length.
    """
    for line in lines:
        x, y = line.T
        steps = np.hypot(np.diff(x), np.diff(y))
        arc = np.concatenate([[0.0], np.cumsum(steps)])
        length = float(arc[-1])
        if length < MIN_LANE_WITH_ARROW_M:
            continue
        count = max(round(length / ARROW_SPACING_M), 1)
        for distance in (np.arange(count) + 0.5) / count * length:
            # the arrow is on the line, half of it before and half behind the distance
            ends = distance + np.array([ARROW_SIZE_M / 2, -ARROW_SIZE_M / 2])
            tip, back = np.stack([np.interp(ends, arc, x), np.interp(ends, arc, y)], -1)
            along = tip - back
            across = np.array([-along[1], along[0]]) * 0.55
            yield np.stack([back + across, tip, back - across])


class Look(NamedTuple):
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


_LOOKS = {
    "context": Look(
        name="other agent",
        face=style.CONTEXT_FACE,
        edge=style.CONTEXT_EDGE,
        edge_width=0.4,
        nose=style.CONTEXT_EDGE,
        zorder=style.Z_CONTEXT,
        trail="#8A8A8A",
        trail_width=0.8,
        trail_zorder=style.Z_TRAIL,
    ),
    "recorder": Look(
        name="ego vehicle",
        face=style.PAPER,
        edge=style.RECORDER,
        edge_width=1.1,
        nose=style.RECORDER,
        zorder=style.Z_CONTEXT + 0.1,
        trail=style.RECORDER,
        trail_width=0.9,
        trail_zorder=style.Z_TRAIL,
    ),
    "scored": Look(
        name="scored agent",
        face=style.SCORED,
        edge=style.SCORED_DARK,
        edge_width=0.5,
        nose=style.PAPER,
        zorder=style.Z_TARGET,
        trail=style.SCORED,
        trail_width=1.5,
        trail_zorder=style.Z_TARGET_TRAIL,
    ),
    "focal": Look(
        name="focal agent",
        face=style.FOCAL,
        edge=style.TRUTH,
        edge_width=1.0,
        nose=style.PAPER,
        zorder=style.Z_TARGET + 0.1,
        trail=style.FOCAL,
        trail_width=2.0,
        trail_zorder=style.Z_TARGET_TRAIL + 0.1,
    ),
}


_FUTURE_COLORS = {
    AgentRole.CONTEXT: style.TRUTH,
    AgentRole.SCORED: style.SCORED_DARK,
    AgentRole.FOCAL: style.TRUTH,
}


def outlines(scene: Scene, agents: list[int], ax: Axes | None = None) -> list[np.ndarray]:
    """Outlines [p, 2] of agents when last observed, metres: a circle for a pedestrian, or the box.

    With `ax`, agents that would be too small to see in its limits are enlarged.
    """
    kinds = scene.agent_kind[agents].tolist()
    sizes = shown_sizes(scene, agents, ax)
    return shapes(kinds, last_poses(scene, agents), sizes)


def shapes(kinds: Sequence[int], poses: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Outlines [p, 2] of agents with kinds, poses [n, 3] and sizes [n, 2] (length, width)."""
    drawn = []
    for kind, pose, size in zip(kinds, poses, sizes, strict=True):
        if kind == AgentKind.PEDESTRIAN:
            circle = np.stack([np.cos(_CIRCLE), np.sin(_CIRCLE)], -1)
            drawn.append(pose[:2] + size[0] / 2 * circle)
        else:
            drawn.append(from_frame(_CORNERS * size / 2, pose))
    return drawn


def agent_sizes(scene: Scene, agents: list[int]) -> np.ndarray:
    """Length and width [n, 2] of agents in metres: the recorded size, else the size of the kind."""
    kinds = scene.agent_kind[agents].tolist()
    usual = np.array([style.AGENT_SIZE_M[AgentKind(kind)] for kind in kinds]).reshape(-1, 2)
    usual = usual * style.SCALE[scene.unit]
    if not len(scene.agent_size):
        return usual
    recorded = scene.agent_size[agents]
    return np.where(recorded > 0.0, recorded, usual)


def shown_sizes(scene: Scene, agents: list[int], ax: Axes | None) -> np.ndarray:
    """Sizes [n, 2] as drawn: too small agents are enlarged, with the same ratio of the sides."""
    sizes = agent_sizes(scene, agents)
    if ax is None:
        return sizes
    is_pedestrian = scene.agent_kind[agents] == AgentKind.PEDESTRIAN
    smallest = np.where(is_pedestrian, _MIN_CIRCLE_PT, _MIN_WIDTH_PT) * _point(ax)
    factor = np.maximum(smallest / sizes[:, 1], 1.0)
    return sizes * factor[:, None]


def _point(ax: Axes) -> float:
    """The length of a point (1/72 inch) in data units, at the current limits of `ax`."""
    figure = ax.get_figure(root=True)
    assert figure is not None, "agents need an Axes with a figure"
    ax.apply_aspect()  # matplotlib delays this until it draws
    pixels = abs(float(np.diff(ax.transData.transform([(0.0, 0.0), (1.0, 0.0)])[:, 0])[0]))
    return figure.dpi / 72.0 / max(pixels, 1e-12)


def last_poses(scene: Scene, agents: list[int]) -> np.ndarray:
    """Poses float64 [n, 3] of agents in their last observed step, H - 1 if they are present."""
    seen = scene.valid[agents, : scene.num_history]
    last = scene.num_history - 1 - seen[:, ::-1].argmax(1)
    position = scene.position[agents, last]
    heading = scene.heading[agents, last, None]
    return np.concatenate([position, heading], -1).astype(np.float64)


def draw_agents(
    ax: Axes,
    scene: Scene,
    colors: Mapping[int, str] | None = None,
    futures: Sequence[int] = (),
    future_colors: Mapping[int, str] | None = None,
) -> Axes:
    """Draw every agent that is valid at step H - 1, its history, and recorded futures.

    Scored agents and the agents `futures` (indices) have recorded futures. Agents of
    `futures` that were observed only earlier are drawn hollow where they were last seen. `colors`
    and `future_colors` by index of the agent replace the color of its group. Agents that would be
    too small to see are enlarged. Artists have the gids "boxes:<group>" and "trails:<group>"
    (groups: "focal", "scored", "recorder" for the recording vehicle, "context"), "boxes:lost",
    "truth:<track id>" and "focal-ring".
    """
    colors = colors or {}
    now = scene.num_history - 1
    present = scene.valid[:, now]
    for name, members in groups(scene).items():
        agents = np.flatnonzero(members & present).tolist()
        if agents:
            _draw_trails(ax, scene, agents, _LOOKS[name], colors, f"trails:{name}")
            _draw_boxes(ax, scene, agents, name, colors)
    seen_earlier = scene.valid[:, :now].any(1) & ~present
    lost = [agent for agent in sorted(set(futures)) if seen_earlier[agent]]
    if lost:
        _draw_lost(ax, scene, lost, colors)
    _draw_truths(ax, scene, futures, future_colors or {})
    return ax


def groups(scene: Scene) -> dict[str, np.ndarray]:
    """Masks [A] of the agents with the same look, the most important last."""
    role = scene.agent_role
    recorder = np.array([name == style.RECORDER_ID for name in scene.agent_id])
    return {
        "context": (role == AgentRole.CONTEXT) & ~recorder,
        "recorder": (role == AgentRole.CONTEXT) & recorder,
        "scored": role == AgentRole.SCORED,
        "focal": role == AgentRole.FOCAL,
    }


def face_colors(
    scene: Scene, agents: list[int], name: str, colors: Mapping[int, str]
) -> tuple[list[str], Look]:
    """Face colors of agents of a group, and the look of the group."""
    look = _LOOKS[name]
    faces = []
    for agent in agents:
        faint = name == "context" and scene.agent_kind[agent] in style.FAINT_KINDS
        face = style.FAINT_FACE if faint else look.face
        faces.append(colors.get(agent, face))
    return faces, look


def _draw_boxes(
    ax: Axes, scene: Scene, agents: list[int], name: str, colors: Mapping[int, str]
) -> None:
    # the legend shows the first box, so the faint ones are last
    agents = sorted(agents, key=lambda agent: scene.agent_kind[agent] in style.FAINT_KINDS)
    faces, look = face_colors(scene, agents, name, colors)
    boxes = PolyCollection(outlines(scene, agents, ax), facecolors=faces)
    boxes.set(edgecolor=look.edge, linewidth=look.edge_width)
    _add(ax, boxes, gid=f"boxes:{name}", zorder=look.zorder, label=look.name)
    poses = last_poses(scene, agents)
    sizes = shown_sizes(scene, agents, ax)
    lines = LineCollection(list(noses(poses, sizes)), colors=look.nose, linewidths=0.6)
    _add(ax, lines, autolim=False, zorder=look.zorder + 0.05, gid=f"noses:{name}")
    if name == "focal" and sizes[0, 0] < _MIN_BOX_M:
        x, y = poses[:1, :2].T
        (ring,) = ax.plot(x, y, "o", markersize=9.5)
        ring.set(markerfacecolor="none", markeredgecolor=look.edge)
        ring.set(markeredgewidth=look.edge_width, gid="focal-ring", zorder=look.zorder)


def _draw_lost(ax: Axes, scene: Scene, agents: list[int], colors: Mapping[int, str]) -> None:
    """Agents that are not seen at present: hollow boxes, and their history in the same color."""
    edges = [colors.get(agent, style.CONTEXT_EDGE) for agent in agents]
    boxes = PolyCollection(outlines(scene, agents, ax), facecolors="none", edgecolors=edges)
    boxes.set(linewidth=0.9, linestyle=(0, (2.0, 1.2)), label="seen until shortly before")
    _add(ax, boxes, gid="boxes:lost", zorder=style.Z_TARGET)
    _draw_trails(ax, scene, agents, _LOOKS["context"], colors, "trails:lost")


def noses(poses: np.ndarray, sizes: np.ndarray) -> Iterator[np.ndarray]:
    """Arrowheads [3, 2] inside the front of long boxes, which show the heading."""
    for pose, (length, width) in zip(poses, sizes, strict=True):
        if length >= _MIN_NOSE_M:
            tip = 0.45 * length
            back = length / 2 - min(width * 0.7, length * 0.35)
            side = 0.42 * width
            yield from_frame(np.array([(back, side), (tip, 0.0), (back, -side)]), pose)


def _draw_trails(
    ax: Axes,
    scene: Scene,
    agents: list[int],
    look: Look,
    colors: Mapping[int, str],
    gid: str,
) -> None:
    """Past positions, one line per step, fading with age; a missing step is a gap."""
    steps = scene.num_history
    position = scene.position[agents, :steps]
    valid = scene.valid[agents, :steps]
    both = valid[:, 1:] & valid[:, :-1]
    segments = np.stack([position[:, :-1], position[:, 1:]], 2)[both]
    if not len(segments):
        return
    of_agent = [to_rgba(colors.get(agent, look.trail)) for agent in agents]
    rgba = np.repeat(of_agent, both.sum(1), 0)
    opacity = np.broadcast_to(np.linspace(0.1, 0.95, steps - 1), both.shape)
    rgba[:, 3] = opacity[both]
    trails = LineCollection(list(segments), colors=rgba, linewidths=look.trail_width)
    trails.set(capstyle="butt", zorder=look.trail_zorder)
    _add(ax, trails, gid=gid)


def _draw_truths(ax: Axes, scene: Scene, futures: Sequence[int], colors: Mapping[int, str]) -> None:
    """Recorded futures of scored agents and of `futures`, the focal agent first."""
    role = scene.agent_role
    rank = role.astype(np.int64) + 1
    context = np.flatnonzero(role == AgentRole.CONTEXT)
    rank[np.setdiff1d(context, futures)] = 0
    count = int(np.count_nonzero(rank))
    drawn = np.argsort(-rank, kind="stable")[:count]
    for agent in drawn.tolist():
        color = colors.get(agent, _FUTURE_COLORS[role[agent]])
        _draw_truth(ax, scene, agent, color, many=count > _MANY_TARGETS)


def _draw_truth(ax: Axes, scene: Scene, agent: int, color: str, many: bool) -> None:
    """The recorded future, dashed on a white halo, so that it is visible on top of forecasts."""
    valid = scene.valid[agent, scene.num_history :]
    position = scene.position[agent, scene.num_history :]
    # a path inside the box of a standing agent is no line, and its marker would cover the box
    present = last_poses(scene, [agent])[0, :2]
    distance = np.linalg.norm(position - present, axis=-1)
    stands = (distance[valid] < agent_sizes(scene, [agent])[0, 0] / 2).all()
    if not valid.any() or (many and stands):
        return
    width, size = 0.9, 4.2
    if scene.agent_role[agent] == AgentRole.FOCAL:
        width, size = 1.2, 5.5
    elif many:
        width, size = 0.7, 3.2
    # The line begins at the present: at 2.5 Hz the first step is far from the agent.
    present_step = scene.num_history - 1
    is_recorded = scene.valid[agent, present_step:]
    x, y = np.where(is_recorded[:, None], scene.position[agent, present_step:], np.nan).T
    (line,) = ax.plot(x, y, color=color, linewidth=width, linestyle=(0, (3.0, 1.5)))
    line.set(gid=f"truth:{scene.agent_id[agent]}", zorder=style.Z_TRUTH, label="recorded future")
    last = int(np.flatnonzero(is_recorded)[-1])
    line.set(marker="X", markersize=size, markevery=[last])
    line.set(markeredgecolor=style.PAPER, markeredgewidth=0.5)
    halo = Stroke(linewidth=width + 1.2, foreground=style.PAPER, alpha=0.8)
    line.set_path_effects([halo, Normal()])
