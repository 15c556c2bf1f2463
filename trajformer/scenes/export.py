"""Export of one scene to a JSON or npz file."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from trajformer.errors import TrajformerError
from trajformer.scenes.files import atomically, write_atomically
from trajformer.scenes.scene import (
    AgentKind,
    AgentRole,
    EdgeKind,
    LaneFlag,
    LightState,
    PolylineKind,
    Scene,
)

FORMATS = (".json", ".npz")
_HEAD_FIELDS = (
    "scene_id",
    "source",
    "split",
    "city",
    "period_s",
    "num_history",
    "num_future",
    "unit",
)


def export_scene(scene: Scene, path: Path) -> None:
    """Write all fields of a scene to a `.json` or `.npz` file, atomically and without loss.

    The content is that of `scene_to_json` or `scene_to_arrays`. Raises SceneError: the scene is not
    valid. TrajformerError: another ending.
    """
    if path.suffix not in FORMATS:
        raise TrajformerError(f"{path}: must end in {' or '.join(FORMATS)}")
    scene.validate()
    if path.suffix == ".json":
        write_atomically(path, scene_to_json(scene))
        return
    arrays: dict[str, Any] = scene_to_arrays(scene)
    with atomically(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # numpy before 2.1 takes other keywords for arrays


def scene_to_arrays(scene: Scene) -> dict[str, np.ndarray]:
    """The fields of `Scene` by name.

    Texts and numbers are arrays without dimensions, agent ids an array of text [A].
    """
    return {field.name: np.asarray(getattr(scene, field.name)) for field in fields(Scene)}


def scene_to_json(scene: Scene) -> str:
    """A scene as JSON, with one line for each agent, polyline, edge and traffic light.

    Kinds, roles, flags and states are names. Edges and lights refer to polylines by their index in
    the list, from 0. `position`, `heading` and `velocity` of an agent have T entries, zero where
    `valid` is false. Positions and points are metres relative to `origin` (metres, city frame),
    sizes are length and width in metres, headings radians, velocities metres per second. Numbers
    have the digits that are needed to restore the same float32 (`origin`: float64). Raises
    ValueError: the scene is not valid.
    """
    lines = []
    for name in _HEAD_FIELDS:
        lines.append(f' "{name}": {_compact(getattr(scene, name))}')
    lines.append(f' "origin": {_compact(scene.origin.tolist())}')
    rows = {
        "agents": _agents(scene),
        "polylines": _polylines(scene),
        "edges": _edges(scene),
        "lights": _lights(scene),
    }
    for name, items in rows.items():
        item_lines = [f"\n  {_compact(item)}" for item in items]
        lines.append(f' "{name}": [' + ",".join(item_lines) + "\n ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _agents(scene: Scene) -> list[dict[str, Any]]:
    motion = {
        "position": _short_floats(scene.position),
        "heading": _short_floats(scene.heading),
        "velocity": _short_floats(scene.velocity),
    }
    if len(scene.agent_size) > 0:
        motion["size"] = _short_floats(scene.agent_size)
    agents = []
    for i in range(scene.num_agents):
        agent = {
            "id": scene.agent_id[i],
            "kind": AgentKind(scene.agent_kind[i]).name,
            "role": AgentRole(scene.agent_role[i]).name,
            "valid": scene.valid[i].tolist(),
        }
        for name, values in motion.items():
            agent[name] = values[i]
        agents.append(agent)
    return agents


def _polylines(scene: Scene) -> list[dict[str, Any]]:
    point = _short_floats(scene.point)
    offset = scene.polyline_offset.tolist()
    polylines = []
    for m in range(scene.num_polylines):
        flags = int(scene.polyline_flags[m])
        polyline = {
            "id": int(scene.polyline_id[m]),
            "kind": PolylineKind(scene.polyline_kind[m]).name,
            "flags": [flag.name for flag in LaneFlag if flag & flags],
            "points": point[offset[m] : offset[m + 1]],
        }
        polylines.append(polyline)
    return polylines


def _edges(scene: Scene) -> list[dict[str, Any]]:
    edges = []
    for start, end, kind in zip(*scene.edge.tolist(), scene.edge_kind.tolist(), strict=True):
        edges.append({"from": start, "to": end, "kind": EdgeKind(kind).name})
    return edges


def _lights(scene: Scene) -> list[dict[str, Any]]:
    lights = []
    for lane, states in zip(scene.light_lane.tolist(), scene.light_state.tolist(), strict=True):
        lights.append({"lane": lane, "states": [LightState(state).name for state in states]})
    return lights


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _short_floats(values: np.ndarray) -> list[Any]:
    """Numbers with the fewest digits that restore the same float32."""
    short = values.astype("U").astype(np.float64)
    return np.where(short.astype(np.float32) == values, short, values).tolist()
