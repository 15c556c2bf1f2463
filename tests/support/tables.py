"""Tables of tracks and lanes files, as users write them; and known scenes as such files."""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from support.scenes import make_scene

from data_prep.readers.table.reader import Table
from trajformer.scenes.scene import AgentKind, AgentRole, EdgeKind, LaneFlag, PolylineKind, Scene

SMALL = Table(num_history=5, num_future=5, stride=2)
LANE_KINDS = {
    "vehicle": PolylineKind.LANE_VEHICLE,
    "bus": PolylineKind.LANE_BUS,
    "bike": PolylineKind.LANE_BIKE,
    "crosswalk": PolylineKind.CROSSWALK,
    "drivable_area": PolylineKind.DRIVABLE_AREA,
}


def track(
    name: str, steps: Iterable[int], start: tuple[float, float] = (0.0, 0.0), **cells: Any
) -> pd.DataFrame:
    """Rows of a track that moves at (5, 1) m/s at 10 Hz, with more cells."""
    step = np.array(list(steps))
    columns = {"track_id": name, "step": step}
    columns |= {"x": start[0] + 0.5 * step, "y": start[1] + 0.1 * step}
    return pd.DataFrame(columns | cells, index=range(len(step)))


def frame(*tracks: pd.DataFrame) -> pd.DataFrame:
    return pd.concat(tracks, ignore_index=True)


def two_tracks(steps: int = 10, **cells: Any) -> pd.DataFrame:
    return frame(track("a", range(steps), **cells), track("b", range(steps), (0.0, 4.0), **cells))


def write(path: Path, table: pd.DataFrame) -> Path:
    """Write a table in the format of the suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False)
    return path


def read(raw: Path, table: pd.DataFrame, reader: Table = SMALL, name: str = "drive.csv") -> Scene:
    """Write a table of one scene below RAW/val and read it."""
    path = write(raw / "val" / name, table)
    [item] = reader.inputs(raw, "val")
    assert item[:2] == (path, "")
    return reader.read(item, "val", raw).validate()


def read_all(raw: Path, reader: Table = SMALL, split: str = "val") -> dict[str, Scene]:
    scenes = [reader.read(item, split, raw).validate() for item in reader.inputs(raw, split)]
    assert len({scene.scene_id for scene in scenes}) == len(scenes)
    return {scene.scene_id: scene for scene in scenes}


def known_scene(with_future: bool = True) -> Scene:
    """A scene of a table: agents with all kinds and roles, and all of a map.

    Its numbers survive a change of origin.
    """
    scene = make_scene(12, num_history=5, num_future=5, with_future=with_future)
    position = _on_grid(scene.position)
    # The origin of a table's scene is the focal agent's last observed position, in whole metres.
    shift = np.round(position[0, 4] + scene.origin) - scene.origin
    shift = shift.astype(np.float32)
    moved = replace(
        scene,
        source="table",
        split="val",
        scene_id="drive",
        position=np.where(scene.valid[..., None], position - shift, np.float32(0)),
        point=_on_grid(scene.point) - shift,
        origin=scene.origin + shift.astype(np.float64),
    )
    return with_sorted_edges(moved).validate()


def _on_grid(values: np.ndarray) -> np.ndarray:
    return np.round(values * 64) / np.float32(64)


def with_sorted_edges(scene: Scene) -> Scene:
    order = np.lexsort((scene.edge_kind, scene.edge[1], scene.edge[0]))
    return replace(
        scene, edge=np.ascontiguousarray(scene.edge[:, order]), edge_kind=scene.edge_kind[order]
    )


def table_of(scene: Scene) -> pd.DataFrame:
    """A scene's tracks as a table with every column but `timestamp` and `scene_id`."""
    agent, step = np.nonzero(scene.valid)
    xy = scene.position[agent, step] + scene.origin
    velocity = scene.velocity[agent, step].astype(np.float64)
    columns = {"track_id": np.array(scene.agent_id)[agent], "step": step}
    columns |= {"x": xy[:, 0], "y": xy[:, 1]}
    columns["heading"] = scene.heading[agent, step].astype(np.float64)
    columns |= {"vx": velocity[:, 0], "vy": velocity[:, 1]}
    columns["kind"] = [AgentKind(kind).name.lower() for kind in scene.agent_kind[agent]]
    columns["role"] = [AgentRole(role).name.lower() for role in scene.agent_role[agent]]
    return pd.DataFrame(columns | {"city": scene.city})


def lanes_of(scene: Scene) -> dict[str, Any]:
    """A scene's map as plain lanes JSON."""
    name_of = {kind: name for name, kind in LANE_KINDS.items()}
    lanes = []
    for index, number in enumerate(scene.polyline_id.tolist()):
        flags = LaneFlag(int(scene.polyline_flags[index]))
        lane: dict[str, Any] = {
            "id": number,
            "kind": name_of[PolylineKind(int(scene.polyline_kind[index]))],
            "points": (scene.polyline(index) + scene.origin).tolist(),
            "intersection": bool(flags & LaneFlag.INTERSECTION),
            "traffic_control": bool(flags & LaneFlag.TRAFFIC_CONTROL),
            "turn": "none",
        }
        if flags & LaneFlag.TURN_LEFT:
            lane["turn"] = "left"
        elif flags & LaneFlag.TURN_RIGHT:
            lane["turn"] = "right"
        lane["successors"] = _linked(scene, index, EdgeKind.SUCCESSOR)
        lane["predecessors"] = _linked(scene, index, EdgeKind.PREDECESSOR)
        for name, kind in (("left", EdgeKind.LEFT), ("right", EdgeKind.RIGHT)):
            for other in _linked(scene, index, kind):
                lane[name] = other
        lanes.append(lane)
    return {"lanes": lanes}


def _linked(scene: Scene, index: int, kind: EdgeKind) -> list[int]:
    """Ids of the lanes that a lane is linked to."""
    is_link = (scene.edge[0] == index) & (scene.edge_kind == kind)
    return scene.polyline_id[scene.edge[1, is_link]].tolist()


def geojson_of(lanes: dict[str, Any]) -> dict[str, Any]:
    """The same lanes as GeoJSON: lanes are LineStrings, rings are Polygons."""
    features = []
    for lane in lanes["lanes"]:
        is_ring = lane.get("kind", "vehicle") in ("crosswalk", "drivable_area")
        geometry = {"type": "LineString", "coordinates": lane["points"]}
        if is_ring:
            geometry = {"type": "Polygon", "coordinates": [lane["points"]]}
        properties = {name: value for name, value in lane.items() if name != "points"}
        features.append({"type": "Feature", "geometry": geometry, "properties": properties})
    return {"type": "FeatureCollection", "features": features}


def write_lanes(path: Path, *lanes: dict[str, Any], geojson: bool = False) -> Path:
    """Write lanes in the plain format, or as GeoJSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"lanes": list(lanes)}
    path.write_text(json.dumps(geojson_of(document) if geojson else document))
    return path
