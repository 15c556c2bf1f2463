"""Small raw files in the official layouts of Argoverse 1 and 2, made in code."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Columns = dict[str, np.ndarray]
# position of the Argoverse 1 sequences, metres in the city frame
CITY_XY = np.array([2500.0, 1200.0])


@dataclass
class Track:
    """An agent of a data set.

    Its positions [n, 2] are in the city frame, at consecutive steps from `start`.
    """

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
    time_s = 0.1 * np.arange(steps)[:, None]
    return origin + np.array(start) + time_s * np.array(velocity)


def argoverse1_tracks(steps: int = 50, seed: int = 0) -> list[Track]:
    """AGENT, AV, parked cars on and off the lanes, a noisy track, and others.

    The others start late or end early.
    """
    noise = np.random.default_rng(seed).normal(0.0, 0.1, (steps, 2))
    tracks: list[Track] = []

    def add(name: str, kind: str, positions: np.ndarray, start: int = 0) -> None:
        tracks.append(Track(name, kind, positions, start))

    add("00-agent", "AGENT", straight(steps, (0.0, 0.0), (10.0, 0.0)))
    add("01-av", "AV", straight(steps, (-20.0, 0.0), (9.0, 0.0)))
    add("02-parked", "OTHERS", straight(steps, (-5.0, 20.5), (0.0, 0.0)))
    add("03-off-lane", "OTHERS", straight(steps, (5.0, -40.0), (0.0, 0.0)))
    add("04-noisy", "OTHERS", straight(steps, (0.0, 10.0), (0.0, -8.0)) + noise)
    add("05-leaves", "OTHERS", straight(9, (3.0, 30.0), (-6.0, 0.0)), start=2)
    if steps > 20:
        late = straight(32, (9.0, 9.0), (3.0, 4.0)) + noise[:32]
        add("06-at-18", "OTHERS", late, start=18)
        add("07-at-25", "OTHERS", late[:25] + 5.0, start=25)
    return tracks


def argoverse1_rows(tracks: list[Track], city: str = "PIT") -> list[list[str]]:
    """Rows of the csv file, at irregular timestamps, sorted by time."""
    count = max(track.start + len(track.positions) for track in tracks)
    times = 315971499.0 + np.cumsum(0.05 + 0.1 * (np.arange(count) % 2))
    rows = []
    for track in tracks:
        for step, (x, y) in enumerate(track.positions.tolist(), track.start):
            time = f"{times[step]:.3f}"
            rows.append([time, track.name, track.kind, repr(x), repr(y), city])
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


_APPROACH = Lane(
    11,
    [(-50, 0), (-20, 0), (-20, 0), (0, 0)],
    {"l_neighbor_id": "13"},
    successors=(12, 77),
)
_INTERSECTION = Lane(
    12,
    [(0, 0), (30, 0)],
    {"turn_direction": "LEFT", "is_intersection": "True"},
    predecessors=(11,),
)
_OPPOSITE = Lane(
    13,
    [(0, 20), (-50, 20)],
    {"r_neighbor_id": "11", "has_traffic_control": "True", "turn_direction": "RIGHT"},
)
_PASSES_BY = Lane(14, [(-5000, -60), (5000, -60)])  # both ends are far away
_DISTANT = Lane(15, [(0, 300), (50, 300)], successors=(11,))
ARGOVERSE1_LANES = [_APPROACH, _INTERSECTION, _OPPOSITE, _PASSES_BY, _DISTANT]
_DEFAULT_TAGS = {
    "has_traffic_control": "False",
    "turn_direction": "NONE",
    "is_intersection": "False",
    "l_neighbor_id": "None",
    "r_neighbor_id": "None",
}


def write_argoverse1_map(folder: Path, city: str = "PIT", lanes: list[Lane] | None = None) -> Path:
    """Write a vector map into folder, which by convention is RAW/map_files."""
    if lanes is None:
        lanes = ARGOVERSE1_LANES
    nodes: list[str] = []
    ways = []
    for lane in lanes:
        refs = []
        for point in lane.points:
            refs.append(len(nodes))
            x, y = CITY_XY + point
            nodes.append(f'<node id="{len(nodes)}" x="{x}" y="{y}" />')
        ways.append(_way(lane, refs))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"pruned_argoverse_{city}_10314_vector_map.xml"
    body = "\n".join(nodes + ways)
    path.write_text(f"<ArgoverseVectorMap>\n{body}\n</ArgoverseVectorMap>\n")
    return path


def _way(lane: Lane, refs: list[int]) -> str:
    tags = list((_DEFAULT_TAGS | lane.tags).items())
    tags += [("predecessor", str(number)) for number in lane.predecessors]
    tags += [("successor", str(number)) for number in lane.successors]
    body = "".join(f'<tag k="{name}" v="{value}" />' for name, value in tags)
    body += "".join(f'<nd ref="{ref}" />' for ref in refs)
    return f'<way lane_id="{lane.id}">{body}</way>'


def argoverse1_folder(
    raw: Path, sequences: int = 3, splits: tuple[str, ...] = ("train", "test_obs")
) -> Path:
    """Write a raw folder with a map and some sequences per split.

    `test_obs` contains only observed steps.
    """
    write_argoverse1_map(raw / "map_files")
    for split in splits:
        steps = 20 if split == "test_obs" else 50
        for number in range(1, sequences + 1):
            rows = argoverse1_rows(argoverse1_tracks(steps, seed=number))
            write_argoverse1(raw / split / "data" / f"{number}.csv", rows)
    return raw


def argoverse2_columns(steps: int = 110, seed: int = 0) -> dict[str, np.ndarray]:
    """Columns of a scenario.

    The tracks are the ego vehicle, a focal, a scored and an unscored one, and a fragment.
    """
    rng = np.random.default_rng(seed)
    parts = [
        _track_columns(rng, "AV", "vehicle", 1, range(steps)),
        _track_columns(rng, "9", "vehicle", 3, range(steps)),
        _track_columns(rng, "10", "bus", 2, range(3, steps)),
        _track_columns(rng, "b", "pedestrian", 1, range(40, steps)),
        _track_columns(rng, "a", "riderless_bicycle", 0, range(45, 48)),
    ]
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    constants: dict[str, Any] = {
        "scenario_id": "s-1",
        "start_timestamp": 0.0,
        "end_timestamp": 1.1e10,
        "num_timestamps": 110,
        "focal_track_id": "9",
        "city": "austin",
    }
    for name, value in constants.items():
        table[name] = np.full(len(table["timestep"]), value)
    return table


def _track_columns(
    rng: np.random.Generator, name: str, kind: str, category: int, steps: range
) -> Columns:
    count = len(steps)
    step = np.array(steps)
    return {
        "observed": step < 50,
        "timestep": step,
        "position_x": 1000.0 + 0.5 * step + steps.start,
        "position_y": np.full(count, -700.0 + steps.start),
        "heading": rng.uniform(-0.2, 0.2, count),
        "velocity_x": rng.normal(5, 1, count),
        "velocity_y": rng.normal(0, 1, count),
        "track_id": np.full(count, name),
        "object_type": np.full(count, kind),
        "object_category": np.full(count, category),
    }


Point = tuple[float, float]


def _line(*points: Point) -> list[dict[str, float]]:
    return [{"x": 1000.0 + x, "y": -700.0 + y, "z": 0.0} for x, y in points]


def _lane(
    number: int, kind: str, left: list[Point], right: list[Point], **links: Any
) -> dict[str, Any]:
    """A lane with its left boundary as centerline, without neighbors unless given."""
    lane = {
        "id": number,
        "lane_type": kind,
        "is_intersection": number == 2,
        "left_lane_boundary": _line(*left),
        "right_lane_boundary": _line(*right),
        "left_lane_mark_type": "NONE",
        "right_lane_mark_type": "NONE",
        "centerline": _line(*left),
        "successors": [],
        "predecessors": [],
        "left_neighbor_id": None,
        "right_neighbor_id": None,
    }
    return lane | links


def argoverse2_map() -> dict[str, Any]:
    """A map of two consecutive lanes, a bike lane on the left, a crosswalk and a drivable area."""
    left = [(0, 2), (9, 2)]
    right = [(0, -2), (3, -2), (9, -2)]
    first = _lane(1, "VEHICLE", left, right, successors=[2, 99], left_neighbor_id=3)
    left = [(9, 2), (12, 2), (12, 8)]
    right = [(9, -2), (16, -2), (16, 8)]
    second = _lane(2, "BUS", left, right, predecessors=[1])
    bike_lane = _lane(3, "BIKE", [(0, 4), (9, 4)], [(0, 2), (9, 2)], right_neighbor_id=1)
    near = _line((9, -3), (9, 3))
    far = _line((12, -3), (12, 3))
    area = _line((-5, -5), (20, -5), (20, 9), (-5, 9))
    return {
        "lane_segments": {"1": first, "2": second, "3": bike_lane},
        "pedestrian_crossings": {"5": {"id": 5, "edge1": near, "edge2": far}},
        "drivable_areas": {"6": {"id": 6, "area_boundary": area}},
    }


def write_argoverse2(
    raw: Path,
    columns: Columns | None = None,
    archive: dict[str, Any] | None = None,
    split: str = "val",
    uuid: str = "s-1",
) -> Path:
    """Write one scenario below RAW/<split>/<uuid>/ and return the path of its parquet file."""
    if columns is None:
        columns = argoverse2_columns()
    if archive is None:
        archive = argoverse2_map()
    folder = raw / split / uuid
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"scenario_{uuid}.parquet"
    pq.write_table(pa.table(columns), path)
    (folder / f"log_map_archive_{uuid}.json").write_text(json.dumps(archive))
    return path
