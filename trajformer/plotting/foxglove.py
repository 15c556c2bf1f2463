"""Scenes and forecasts as messages of Foxglove, with their JSON schemas, in an MCAP file.

Topics: `/map`, `/agents` and `/forecasts` (foxglove.SceneUpdate), `/poses` (foxglove.PosesInFrame)
and `/tf` (foxglove.FrameTransform). Positions are metres relative to the `origin` of the scene in
the frame "scene"; the transform places it in the frame "city". Names and meanings of fields:
https://docs.foxglove.dev/docs/visualization/message-schemas.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_rgba

from trajformer.evaluation.forecast_file import TrackForecast
from trajformer.plotting import style
from trajformer.plotting.colors import kind_color
from trajformer.plotting.forecasts import AgentForecast, match_forecasts
from trajformer.plotting.recorded import agent_sizes
from trajformer.scenes.files import atomically
from trajformer.scenes.scene import AgentKind, PolylineKind, Scene

SOFTWARE = "trajformer"
PAUSE_S = 1.0  # between two scenes
FRAME = "scene"
CITY = "city"
_HEIGHT_M = 1.6
_PEDESTRIAN_HEIGHT_M = 1.75
_LINE_STRIP = 0
_LINE_LOOP = 1
_DELETE_ALL = 1
_RINGS = (PolylineKind.CROSSWALK, PolylineKind.DRIVABLE_AREA)
_MAP_Z_M = 0.0
_FORECAST_Z_M = 0.3
_MODE_WIDTH_M = 0.25
Message = dict[str, Any]


class Record(NamedTuple):
    """A message of a topic."""

    topic: str
    schema: str
    time_s: float
    content: Message


def write_mcap(path: Path, scenes: Iterable[tuple[Scene, Sequence[TrackForecast]]]) -> int:
    """Write scenes in this order, with a pause of a second, and return their number.

    The metadata "scenes" have the start of each scene in seconds. Raises as `atomically`.
    TrajformerError: a forecast does not fit its scene. ImportError: the package mcap is missing.
    """
    from mcap.writer import Writer

    starts: dict[str, str] = {}
    start_s = 0.0
    with atomically(path) as temporary, temporary.open("wb") as file:
        writer = Writer(file)
        writer.start(profile="", library=SOFTWARE)
        channels: dict[str, int] = {}
        for sequence, (scene, forecasts) in enumerate(scenes):
            matched = match_forecasts(scene, forecasts)
            for record in scene_records(scene, matched):
                if record.topic not in channels:
                    channels[record.topic] = _register(writer, record)
                time_ns = _nanoseconds(start_s + record.time_s)
                content = _with_time(record.content, time_ns)
                data = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
                writer.add_message(channels[record.topic], time_ns, data, time_ns, sequence)
            starts[scene.scene_id] = f"{start_s:.1f}"
            start_s += (scene.num_steps - 1) * scene.period_s + PAUSE_S
        writer.add_metadata("scenes", starts)
        writer.finish()
    return len(starts)


def _register(writer: Any, record: Record) -> int:
    schema = json.dumps(SCHEMAS[record.schema]).encode()
    schema_id = writer.register_schema(record.schema, "jsonschema", schema)
    return int(writer.register_channel(record.topic, "json", schema_id))


def scene_records(scene: Scene, forecasts: Sequence[AgentForecast]) -> Iterator[Record]:
    """The messages of a scene by time; it begins at 0 s. Times are filled in when written."""
    update, poses = "foxglove.SceneUpdate", "foxglove.PosesInFrame"
    yield Record("/tf", "foxglove.FrameTransform", 0.0, _transform(scene))
    yield Record("/map", update, 0.0, _update(_map_entities(scene)))
    yield Record("/forecasts", update, 0.0, _update([]))  # removes earlier forecasts
    for step in range(scene.num_steps):
        time_s = step * scene.period_s
        agents = np.flatnonzero(scene.valid[:, step]).tolist()
        yield Record("/agents", update, time_s, _update(_agent_entities(scene, agents, step)))
        of_agents = [_pose(*_place(scene, agent, step)) for agent in agents]
        yield Record("/poses", poses, time_s, {"frame_id": FRAME, "poses": of_agents})
        if step == scene.num_history - 1:
            entities = [_forecast_entity(scene, forecast) for forecast in forecasts]
            yield Record("/forecasts", update, time_s, _update(entities))


def _transform(scene: Scene) -> Message:
    x, y = scene.origin.tolist()
    return {
        "parent_frame_id": CITY,
        "child_frame_id": FRAME,
        "translation": {"x": x, "y": y, "z": 0.0},
        "rotation": {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0},
    }


def _update(entities: list[Message]) -> Message:
    """The entities of a topic, in place of all earlier ones."""
    return {"deletions": [{"type": _DELETE_ALL, "id": ""}], "entities": entities}


def _entity(name: str, **primitives: list[Message]) -> Message:
    empty: Message = {kind: [] for kind in _PRIMITIVES}
    fixed = {
        "frame_id": FRAME,
        "id": name,
        "lifetime": {"sec": 0, "nsec": 0},
        "frame_locked": True,
        "metadata": [],
    }
    return {**fixed, **empty, **primitives}


def _map_entities(scene: Scene) -> list[Message]:
    """One entity per kind of polyline."""
    entities = []
    for kind in PolylineKind:
        lines = []
        for index in np.flatnonzero(scene.polyline_kind == kind).tolist():
            shape = _LINE_LOOP if kind in _RINGS else _LINE_STRIP
            color = _map_color(kind)
            lines.append(_line(scene.polyline(index), shape, color, 0.12, _MAP_Z_M))
        if lines:
            entities.append(_entity(kind.name.lower(), lines=lines))
    return entities


def _map_color(kind: PolylineKind) -> str:
    if kind in style.LANES:
        return style.LANES[kind].color
    if kind in style.ROAD_LINES:
        return style.ROAD_LINES[kind][1]
    return style.CROSSWALK


def _agent_entities(scene: Scene, agents: list[int], step: int) -> list[Message]:
    """A box with the color of its type, and the id above it, for each agent."""
    entities = []
    for agent, size in zip(agents, agent_sizes(scene, agents).tolist(), strict=True):
        length, width = size
        height = _HEIGHT_M
        if scene.agent_kind[agent] == AgentKind.PEDESTRIAN:
            height = _PEDESTRIAN_HEIGHT_M
        x, y, heading = _place(scene, agent, step)
        cube = {
            "pose": _pose(x, y, heading, height / 2),
            "size": {"x": length, "y": width, "z": height},
            "color": _color(kind_color(scene.agent_kind[agent])),
        }
        name = scene.agent_id[agent]
        text = {
            "pose": _pose(x, y, 0.0, height + 0.5),
            "billboard": True,
            "font_size": 12.0,
            "scale_invariant": True,
            "color": _color(style.INK),
            "text": name,
        }
        entities.append(_entity(name, cubes=[cube], texts=[text]))
    return entities


def _forecast_entity(scene: Scene, forecast: AgentForecast) -> Message:
    """One line per mode, opaque where probable, with the probability at its end."""
    color = kind_color(scene.agent_kind[forecast.agent])
    largest = max(float(forecast.probability.max()), 1e-12)
    lines = []
    texts = []
    for probability, path in zip(forecast.probability.tolist(), forecast.position, strict=True):
        alpha = 0.3 + 0.7 * probability / largest
        lines.append(_line(path, _LINE_STRIP, color, _MODE_WIDTH_M, _FORECAST_Z_M, alpha))
        x, y = path[-1].tolist()
        texts.append(
            {
                "pose": _pose(x, y, 0.0, 1.0),
                "billboard": True,
                "font_size": 11.0,
                "scale_invariant": True,
                "color": _color(color),
                "text": f"{probability:.2f}",
            }
        )
    return _entity(scene.agent_id[forecast.agent], lines=lines, texts=texts)


def _line(
    points: np.ndarray, shape: int, color: str, width: float, z: float, alpha: float = 1.0
) -> Message:
    return {
        "type": shape,
        "pose": _pose(0.0, 0.0, 0.0),
        "thickness": width,
        "scale_invariant": False,
        "points": [{"x": x, "y": y, "z": z} for x, y in np.asarray(points, float).tolist()],
        "color": _color(color, alpha),
        "colors": [],
        "indices": [],
    }


def _place(scene: Scene, agent: int, step: int) -> tuple[float, float, float]:
    x, y = scene.position[agent, step].tolist()
    return x, y, float(scene.heading[agent, step])


def _pose(x: float, y: float, heading: float, z: float = 0.0) -> Message:
    turn = {"x": 0.0, "y": 0.0, "z": float(np.sin(heading / 2)), "w": float(np.cos(heading / 2))}
    return {"position": {"x": x, "y": y, "z": z}, "orientation": turn}


def _color(name: str, alpha: float = 1.0) -> Message:
    return dict(zip("rgba", to_rgba(name, alpha), strict=True))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _with_time(content: Message, time_ns: int) -> Message:
    """The message with its time, also in its entities and deletions."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    timestamp = {"sec": seconds, "nsec": rest}
    if "entities" not in content:
        return {"timestamp": timestamp, **content}
    return {
        name: [{"timestamp": timestamp, **item} for item in content[name]]
        for name in ("deletions", "entities")
    }


def _object(name: str, **properties: Message) -> Message:
    """The schema of an object with required properties."""
    return {
        "title": name,
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }


def _list(items: Message) -> Message:
    return {"type": "array", "items": items}


_NUMBER = {"type": "number"}
_INTEGER = {"type": "integer"}
_TEXT = {"type": "string"}
_YES_NO = {"type": "boolean"}
_TIME = _object("time", sec=_INTEGER, nsec=_INTEGER)
_DURATION = _object("duration", sec=_INTEGER, nsec=_INTEGER)
_VECTOR = _object("foxglove.Vector3", x=_NUMBER, y=_NUMBER, z=_NUMBER)
_POINT = _object("foxglove.Point3", x=_NUMBER, y=_NUMBER, z=_NUMBER)
_TURN = _object("foxglove.Quaternion", x=_NUMBER, y=_NUMBER, z=_NUMBER, w=_NUMBER)
_POSE = _object("foxglove.Pose", position=_VECTOR, orientation=_TURN)
_COLOR = _object("foxglove.Color", r=_NUMBER, g=_NUMBER, b=_NUMBER, a=_NUMBER)
_CUBE = _object("foxglove.CubePrimitive", pose=_POSE, size=_VECTOR, color=_COLOR)
_LINE = _object(
    "foxglove.LinePrimitive",
    type=_INTEGER,
    pose=_POSE,
    thickness=_NUMBER,
    scale_invariant=_YES_NO,
    points=_list(_POINT),
    color=_COLOR,
    colors=_list(_COLOR),
    indices=_list(_INTEGER),
)
_LABEL = _object(
    "foxglove.TextPrimitive",
    pose=_POSE,
    billboard=_YES_NO,
    font_size=_NUMBER,
    scale_invariant=_YES_NO,
    color=_COLOR,
    text=_TEXT,
)
_UNUSED: Message = {"type": "object"}  # primitives that are never written
_PRIMITIVES = {
    "arrows": _UNUSED,
    "cubes": _CUBE,
    "spheres": _UNUSED,
    "cylinders": _UNUSED,
    "lines": _LINE,
    "triangles": _UNUSED,
    "texts": _LABEL,
    "models": _UNUSED,
}
_ENTITY = _object(
    "foxglove.SceneEntity",
    timestamp=_TIME,
    frame_id=_TEXT,
    id=_TEXT,
    lifetime=_DURATION,
    frame_locked=_YES_NO,
    metadata=_list(_object("foxglove.KeyValuePair", key=_TEXT, value=_TEXT)),
    **{kind: _list(schema) for kind, schema in _PRIMITIVES.items()},
)
_DELETION = _object("foxglove.SceneEntityDeletion", timestamp=_TIME, type=_INTEGER, id=_TEXT)
SCHEMAS: dict[str, Message] = {
    "foxglove.SceneUpdate": _object(
        "foxglove.SceneUpdate", deletions=_list(_DELETION), entities=_list(_ENTITY)
    ),
    "foxglove.PosesInFrame": _object(
        "foxglove.PosesInFrame", timestamp=_TIME, frame_id=_TEXT, poses=_list(_POSE)
    ),
    "foxglove.FrameTransform": _object(
        "foxglove.FrameTransform",
        timestamp=_TIME,
        parent_frame_id=_TEXT,
        child_frame_id=_TEXT,
        translation=_VECTOR,
        rotation=_TURN,
    ),
}
