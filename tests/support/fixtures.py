"""Small raw files in the official layouts of Argoverse 1 and 2, made in code."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Columns = dict[str, np.ndarray]
CITY_XY = np.array(
    [2500.0, 1200.0]
)  # position of the Argoverse 1 sequences, metres in the city frame


@dataclass
class Track:
    """An agent of a data set: positions [n, 2] in the city frame at consecutive steps from `start`."""

    name: str
    kind: str
    positions: np.ndarray
    start: int = 0
    heading: float = 0.0


def straight(
    steps: int,
    start: tuple[float, float],
    velocity: tuple[float, float],
    origin: np.ndarray = CITY_XY,
) -> np.ndarray:
    """Positions [steps, 2] at constant velocity (m/s), 0.1 s apart, in the city frame."""
    return origin + np.array(start) + 0.1 * np.arange(steps)[:, None] * np.array(velocity)


def argoverse1_tracks(steps: int = 50, seed: int = 0) -> list[Track]:
    """AGENT, AV, parked cars on and off the lanes, a noisy track, and tracks that start late or end early."""
    noise = np.random.default_rng(seed).normal(0.0, 0.1, (steps, 2))
    tracks = [
        Track("00-agent", "AGENT", straight(steps, (0.0, 0.0), (10.0, 0.0))),
        Track("01-av", "AV", straight(steps, (-20.0, 0.0), (9.0, 0.0))),
        Track("02-parked", "OTHERS", straight(steps, (-5.0, 20.5), (0.0, 0.0))),
        Track("03-off-lane", "OTHERS", straight(steps, (5.0, -40.0), (0.0, 0.0))),
        Track("04-noisy", "OTHERS", straight(steps, (0.0, 10.0), (0.0, -8.0)) + noise),
        Track("05-leaves", "OTHERS", straight(9, (3.0, 30.0), (-6.0, 0.0)), start=2),
    ]
    if steps > 20:
        late = straight(32, (9.0, 9.0), (3.0, 4.0)) + noise[:32]
        tracks += [
            Track("06-at-18", "OTHERS", late, start=18),
            Track("07-at-25", "OTHERS", late[:25] + 5.0, start=25),
        ]
    return tracks


def argoverse1_rows(tracks: list[Track], city: str = "PIT") -> list[list[str]]:
    """Rows of the csv file, at irregular timestamps, sorted by time."""
    count = max(track.start + len(track.positions) for track in tracks)
    times = 315971499.0 + np.cumsum(0.05 + 0.1 * (np.arange(count) % 2))
    rows = [
        [
            f"{times[track.start + i]:.3f}",
            track.name,
            track.kind,
            repr(float(x)),
            repr(float(y)),
            city,
        ]
        for track in tracks
        for i, (x, y) in enumerate(track.positions)
    ]
    return sorted(rows, key=lambda row: row[0])


def write_argoverse1(
    path: Path, rows: list[list[str]], header: str = "TIMESTAMP,TRACK_ID,OBJECT_TYPE,X,Y,CITY_NAME"
) -> Path:
    """Write one sequence, by convention RAW/<split>/data/<sequence>.csv."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    return path


@dataclass
class Lane:
    """A lane of an Argoverse 1 map."""

    id: int
    points: list[tuple[float, float]]
    tags: dict[str, str] = field(default_factory=dict)
    successors: tuple[int, ...] = ()
    predecessors: tuple[int, ...] = ()


ARGOVERSE1_LANES = [
    Lane(11, [(-50, 0), (-20, 0), (-20, 0), (0, 0)], {"l_neighbor_id": "13"}, successors=(12, 77)),
    Lane(
        12,
        [(0, 0), (30, 0)],
        {"turn_direction": "LEFT", "is_intersection": "True"},
        predecessors=(11,),
    ),
    Lane(
        13,
        [(0, 20), (-50, 20)],
        {"r_neighbor_id": "11", "has_traffic_control": "True", "turn_direction": "RIGHT"},
    ),
    Lane(14, [(-5000, -60), (5000, -60)]),  # passes by, with both ends far away
    Lane(15, [(0, 300), (50, 300)], successors=(11,)),
]


def write_argoverse1_map(folder: Path, city: str = "PIT", lanes: list[Lane] | None = None) -> Path:
    """Write a vector map into folder, which by convention is RAW/map_files."""
    nodes, ways = [], []
    for lane in ARGOVERSE1_LANES if lanes is None else lanes:
        refs = range(len(nodes), len(nodes) + len(lane.points))
        for ref, (x, y) in zip(refs, lane.points, strict=True):
            nodes.append(f'<node id="{ref}" x="{x + CITY_XY[0]}" y="{y + CITY_XY[1]}" />')
        defaults = {
            "has_traffic_control": "False",
            "turn_direction": "NONE",
            "is_intersection": "False",
        }
        tags = [
            *(defaults | {"l_neighbor_id": "None", "r_neighbor_id": "None"} | lane.tags).items()
        ]
        tags += [("predecessor", str(i)) for i in lane.predecessors] + [
            ("successor", str(i)) for i in lane.successors
        ]
        body = "".join(f'<tag k="{k}" v="{v}" />' for k, v in tags) + "".join(
            f'<nd ref="{ref}" />' for ref in refs
        )
        ways.append(f'<way lane_id="{lane.id}">{body}</way>')
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"pruned_argoverse_{city}_10314_vector_map.xml"
    path.write_text(
        "<ArgoverseVectorMap>\n" + "\n".join(nodes + ways) + "\n</ArgoverseVectorMap>\n"
    )
    return path


def argoverse1_folder(
    raw: Path, sequences: int = 3, splits: tuple[str, ...] = ("train", "test_obs")
) -> Path:
    """Write a raw folder with a map and some sequences per split; `test_obs` contains only observed steps."""
    write_argoverse1_map(raw / "map_files")
    for split in splits:
        for number in range(1, sequences + 1):
            rows = argoverse1_rows(
                argoverse1_tracks(20 if split == "test_obs" else 50, seed=number)
            )
            write_argoverse1(raw / split / "data" / f"{number}.csv", rows)
    return raw


def argoverse2_columns(steps: int = 110, seed: int = 0) -> dict[str, np.ndarray]:
    """Columns of a scenario: the ego vehicle, a focal, a scored and an unscored track and a fragment."""
    rng = np.random.default_rng(seed)
    parts: list[dict[str, np.ndarray]] = []
    tracks = [
        ("AV", "vehicle", 1, 0),
        ("9", "vehicle", 3, 0),
        ("10", "bus", 2, 3),
        ("b", "pedestrian", 1, 40),
    ]
    for name, kind, category, start in [*tracks, ("a", "riderless_bicycle", 0, 45)]:
        step = np.arange(start, steps if category else 48)
        columns = {
            "observed": step < 50,
            "timestep": step,
            "position_x": 1000.0 + 0.5 * step + start,
        }
        columns |= {
            "position_y": -700.0 + start + 0.0 * step,
            "heading": rng.uniform(-3.1, 3.1, len(step)),
        }
        columns |= {
            "velocity_x": rng.normal(5, 1, len(step)),
            "velocity_y": rng.normal(0, 1, len(step)),
        }
        columns |= {"track_id": np.full(len(step), name), "object_type": np.full(len(step), kind)}
        parts.append(columns | {"object_category": np.full(len(step), category)})
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    count = len(table["timestep"])
    constants: dict[str, Any] = {
        "scenario_id": "s-1",
        "start_timestamp": 0.0,
        "end_timestamp": 1.1e10,
    }
    constants |= {"num_timestamps": 110, "focal_track_id": "9", "city": "austin"}
    return table | {name: np.full(count, value) for name, value in constants.items()}


def argoverse2_map() -> dict[str, Any]:
    """A map of two consecutive lanes, a bike lane on the left, a crosswalk and a drivable area."""

    def line(*points: tuple[float, float]) -> list[dict[str, float]]:
        return [{"x": 1000.0 + x, "y": -700.0 + y, "z": 0.0} for x, y in points]

    def lane(number: int, kind: str, left: Any, right: Any, **links: Any) -> dict[str, Any]:
        marks = {"left_lane_mark_type": "NONE", "right_lane_mark_type": "NONE", "centerline": left}
        none = {
            "successors": [],
            "predecessors": [],
            "left_neighbor_id": None,
            "right_neighbor_id": None,
        }
        own = {"id": number, "lane_type": kind, "is_intersection": number == 2}
        return (
            own | {"left_lane_boundary": left, "right_lane_boundary": right} | marks | none | links
        )

    lanes = [
        lane(
            1,
            "VEHICLE",
            line((0, 2), (9, 2)),
            line((0, -2), (3, -2), (9, -2)),
            successors=[2, 99],
            left_neighbor_id=3,
        ),
        lane(
            2,
            "BUS",
            line((9, 2), (12, 2), (12, 8)),
            line((9, -2), (16, -2), (16, 8)),
            predecessors=[1],
        ),
        lane(3, "BIKE", line((0, 4), (9, 4)), line((0, 2), (9, 2)), right_neighbor_id=1),
    ]
    crossing = {"id": 5, "edge1": line((9, -3), (9, 3)), "edge2": line((12, -3), (12, 3))}
    area = {"id": 6, "area_boundary": line((-5, -5), (20, -5), (20, 9), (-5, 9))}
    segments = {str(value["id"]): value for value in lanes}
    return {
        "lane_segments": segments,
        "pedestrian_crossings": {"5": crossing},
        "drivable_areas": {"6": area},
    }


def write_argoverse2(
    raw: Path,
    columns: Columns | None = None,
    archive: dict[str, Any] | None = None,
    split: str = "val",
    uuid: str = "s-1",
) -> Path:
    """Write one scenario below RAW/<split>/<uuid>/ and return the path of its parquet file."""
    folder = raw / split / uuid
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"scenario_{uuid}.parquet"
    pq.write_table(pa.table(argoverse2_columns() if columns is None else columns), path)
    (folder / f"log_map_archive_{uuid}.json").write_text(
        json.dumps(argoverse2_map() if archive is None else archive)
    )
    return path
