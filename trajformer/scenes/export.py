"""Export of one scene to a JSON or npz file."""

import functools
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


def export_scene(scene: Scene, path: Path) -> None:
    """Write all fields of a scene, atomically and without loss, as `scene_to_json` (`.json`) or `scene_to_arrays` (`.npz`).

    Raises SceneError: the scene is not valid. TrajformerError: another ending.
    """
    if path.suffix not in FORMATS:
        raise TrajformerError(f"{path}: must end in {' or '.join(FORMATS)}")
    arrays: dict[str, Any] = scene_to_arrays(scene.validate())
    if path.suffix == ".json":
        write_atomically(path, scene_to_json(scene))
        return
    with atomically(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)  # numpy before 2.1 takes other keywords for arrays


def scene_to_arrays(scene: Scene) -> dict[str, np.ndarray]:
    """The fields of `Scene` by name: texts and numbers as arrays without dimensions, agent ids as an array of text [A]."""
    return {field.name: np.asarray(getattr(scene, field.name)) for field in fields(Scene)}


def scene_to_json(scene: Scene) -> str:
    """A scene as JSON, with one line for each agent, polyline, edge and traffic light.

    Kinds, roles, flags and states are names. Edges and lights refer to polylines by their index in the list, from 0. `position`,
    `heading` and `velocity` of an agent have T entries, zero where `valid` is false. Positions and points are metres relative to
    `origin` (metres, city frame), sizes are length and width in metres, headings radians, velocities metres per second. Numbers
    have the digits that are needed to restore the same float32 (`origin`: float64). Raises ValueError: the scene is not valid.
    """
    numbers = {
        name: _short_floats(getattr(scene, name)) for name in ("position", "heading", "velocity")
    }
    numbers |= {"size": _short_floats(scene.agent_size)} if len(scene.agent_size) else {}
    point, offset = _short_floats(scene.point), scene.polyline_offset.tolist()
    agents = [
        {
            "id": scene.agent_id[i],
            "kind": AgentKind(scene.agent_kind[i]).name,
            "role": AgentRole(scene.agent_role[i]).name,
        }
        | {"valid": scene.valid[i].tolist()}
        | {name: value[i] for name, value in numbers.items()}
        for i in range(scene.num_agents)
    ]
    polylines = [
        {"id": int(scene.polyline_id[m]), "kind": PolylineKind(scene.polyline_kind[m]).name}
        | {"flags": [flag.name for flag in LaneFlag if flag & int(scene.polyline_flags[m])]}
        | {"points": point[offset[m] : offset[m + 1]]}
        for m in range(scene.num_polylines)
    ]
    ends = zip(*scene.edge.tolist(), scene.edge_kind.tolist(), strict=True)
    edges = [{"from": a, "to": b, "kind": EdgeKind(kind).name} for a, b, kind in ends]
    states = [[LightState(state).name for state in row] for row in scene.light_state.tolist()]
    lights = [
        {"lane": lane, "states": row}
        for lane, row in zip(scene.light_lane.tolist(), states, strict=True)
    ]
    names = ("scene_id", "source", "split", "city", "period_s", "num_history", "num_future", "unit")
    head = {name: getattr(scene, name) for name in names} | {"origin": scene.origin.tolist()}
    compact = functools.partial(json.dumps, ensure_ascii=False, allow_nan=False)
    lines = [f' "{name}": {compact(value)}' for name, value in head.items()]
    for name, rows in (
        ("agents", agents),
        ("polylines", polylines),
        ("edges", edges),
        ("lights", lights),
    ):
        lines.append(f' "{name}": [' + ",".join(f"\n  {compact(row)}" for row in rows) + "\n ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _short_floats(values: np.ndarray) -> list[Any]:
    """Numbers with the fewest digits that restore the same float32."""
    short = values.astype("U").astype(np.float64)
    return np.where(short.astype(np.float32) == values, short, values).tolist()
