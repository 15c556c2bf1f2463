"""Small ScenarioNet data sets."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trajformer.testing.readers import Damage

STEPS = 25
PERIOD_S = 0.1
CORNER = np.array([1200.0, -340.0])
NAMES = ("sd_small_1.pkl", "sd_small_2.pkl")


def track(
    kind: str,
    begin: tuple[float, float],
    velocity: tuple[float, float],
    seen: slice = slice(None),
    **more: Any,
) -> dict[str, Any]:
    """A track at constant velocity (m/s), NaN where it is not seen.

    The recorded velocities are zero.
    """
    time = PERIOD_S * np.arange(STEPS)
    valid = np.zeros(STEPS)
    valid[seen] = 1.0
    position = np.full((STEPS, 3), np.nan)
    position[seen, :2] = CORNER + begin + time[seen, None] * velocity
    position[seen, 2] = 1.5
    state: dict[str, np.ndarray] = {"position": position, "valid": valid}
    state["heading"] = np.full(STEPS, np.arctan2(velocity[1], velocity[0]) + 2 * np.pi)
    state["velocity"] = np.zeros((STEPS, 2))
    state["length"] = np.full((STEPS, 1), 4.5)
    state["width"] = np.full((STEPS, 1), 2.0)
    return {
        "type": kind,
        "state": state | more,
        "metadata": {"type": kind, "object_id": "", "track_length": STEPS},
    }


def line(kind: str, *points: tuple[float, float], **more: Any) -> dict[str, Any]:
    """A map feature."""
    key = "polygon" if kind == "CROSSWALK" else "polyline"
    return {"type": kind, key: np.array(points) + CORNER} | more


def scenario() -> dict[str, Any]:
    """The ego car, a listed car, a late walker and a cone on a small map.

    It has two lanes, other features, and the light of the first lane.
    """
    exchanged = {"length": np.full(STEPS, 2.0), "width": np.full(STEPS, 4.5)}
    tracks = {
        "car": track("VEHICLE", (0.0, 0.0), (10.0, 0.0)),
        "ego": track("VEHICLE", (-20.0, 0.0), (8.0, 0.0), **exchanged),
        "walker": track("PEDESTRIAN", (5.0, 6.0), (0.0, -1.0), slice(7, 20)),
        "cone": track("TRAFFIC_CONE", (9.0, 3.0), (0.0, 0.0)),
    }
    features = {
        "10": line(
            "LANE_SURFACE_STREET",
            (-60.0, 0.0),
            (20.0, 0.0),
            entry_lanes=[],
            exit_lanes=["12", "far"],
        ),
        "11": line("ROAD_LINE_SOLID_SINGLE_WHITE", (-60.0, 2.0), (20.0, 2.0)),
        "12": line(
            "LANE_SURFACE_UNSTRUCTURE",
            (20.0, 0.0),
            (40.0, 0.0),
            entry_lanes=[10],
            left_neighbor=[{"feature_id": 10}],
        ),
        "13": line("CROSSWALK", (18.0, -4.0), (22.0, -4.0), (22.0, 4.0)),
        "14": line("ROAD_EDGE_BOUNDARY", (-60.0, -2.0), (20.0, -2.0)),
        "15": line("LANE_BIKE_LANE", (400.0, 0.0), (500.0, 0.0)),
        "16": line("LANE_FREEWAY", (0.0, 0.0)),
        "17": {"type": "STOP_SIGN", "position": CORNER},
    }
    states = [
        None,
        "LANE_STATE_STOP",
        "TRAFFIC_LIGHT_YELLOW",
        "LANE_STATE_ARROW_GO",
        "TRAFFIC_LIGHT_UNKNOWN",
    ] * 5
    light = {
        "type": "TRAFFIC_LIGHT",
        "state": {"object_state": states},
        "lane": "10",
        "metadata": {},
    }
    targets = {"car": {"track_id": "car"}}
    metadata = {
        "ts": PERIOD_S * np.arange(STEPS),
        "sdc_id": "ego",
        "map": "town",
        "tracks_to_predict": targets,
    }
    lights = {"3": light, "4": light | {"lane": "15"}}
    data = {"id": "small", "version": "1", "length": STEPS, "metadata": metadata, "tracks": tracks}
    return data | {"map_features": features, "dynamic_map_states": lights}


def write(folder: Path, *scenarios: dict[str, Any]) -> None:
    """Write a data set of at most two scenarios in the sub-folder `part_0`."""
    (folder / "part_0").mkdir(parents=True)
    files = dict(zip(NAMES, scenarios, strict=False))
    for name, data in files.items():
        (folder / "part_0" / name).write_bytes(pickle.dumps(data, 4))
    (folder / "dataset_mapping.pkl").write_bytes(pickle.dumps(dict.fromkeys(files, "part_0"), 4))
    summary = {}
    for name, data in files.items():
        times = data["metadata"]["ts"].tolist()
        summary[name] = data["metadata"] | {"ts": times}
    (folder / "dataset_summary.pkl").write_bytes(pickle.dumps(summary, 4))


def entry(
    *keys: str, value: Any = None, change: Callable[[Any], Any] | None = None, drop: bool = False
) -> Damage:
    """Replace, change or delete the value at a path of keys in a file of pickled dicts."""

    def damage(path: Path) -> None:
        data = inner = pickle.loads(path.read_bytes())
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = change(inner[keys[-1]]) if change else value
        if drop:
            del inner[keys[-1]]
        path.write_bytes(pickle.dumps(data, 4))

    return damage
