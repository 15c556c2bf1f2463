"""A small INTERACTION folder.

A map of three lanelets, two recordings with a pedestrian, and two cases.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

LOCATION = "DR_TEST_Intersection"
CORNER = np.array([1000.0, 950.0])
# columns from track_id to width, without the timestamp
Row = tuple[str, int, str, float, float, float, float, str, str, str]
_NAMES = [
    "track_id",
    "frame_id",
    "timestamp_ms",
    "agent_type",
    "x",
    "y",
    "vx",
    "vy",
    "psi_rad",
    "length",
    "width",
]

# Two consecutive lanes, and a left neighbor of the first one. Every second way is stored against
# the traffic.
_WAYS = {
    10: [(0, 2), (20, 2), (50, 2)],
    11: [(50, -2), (0, -2)],
    12: [(90, 2), (50, 2)],
    13: [(50, -2), (90, -2)],
    14: [(50, 6), (0, 6)],
}
_LANELETS = {  # left way, right way, rules
    100: (10, 11, (500,)),
    101: (12, 13, ()),
    102: (14, 10, (500, 501)),
}


def write_map(path: Path) -> Path:
    """Write RAW/maps/<location>.osm_xy."""
    points = {point for way in _WAYS.values() for point in way}
    node_ids = {point: 1000 + index for index, point in enumerate(sorted(points))}
    parts = []
    for (x, y), number in node_ids.items():
        parts.append(f'<node id="{number}" x="{x + CORNER[0]}" y="{y + CORNER[1]}" />')
    for number, way in _WAYS.items():
        nodes = "".join(f'<nd ref="{node_ids[point]}" />' for point in way)
        parts.append(f'<way id="{number}">{nodes}<tag k="type" v="line_thin" /></way>')
    for number, (left, right, rules) in _LANELETS.items():
        members = [("left", "way", left), ("right", "way", right)]
        members += [("regulatory_element", "relation", rule) for rule in rules]
        parts.append(_relation(number, members, type="lanelet", subtype="road", one_way="yes"))
    rule = "regulatory_element"
    parts.append(_relation(500, [], type=rule, subtype="speed_limit", sign_type="25mph"))
    lanelets = [("yield", "relation", 102), ("right_of_way", "relation", 100)]
    parts.append(_relation(501, lanelets, type=rule, subtype="right_of_way"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("<osm_xy>\n" + "\n".join(parts) + "\n</osm_xy>\n")
    return path


def _relation(number: int, members: Iterable[tuple[str, str, int]], **tags: str) -> str:
    body = ""
    for role, kind, ref in members:
        body += f'<member ref="{ref}" role="{role}" type="{kind}" />'
    for name, value in tags.items():
        body += f'<tag k="{name}" v="{value}" />'
    return f'<relation id="{number}">{body}</relation>'


def car(
    name: str, begin: tuple[float, float], speed: float, frames: Iterable[int], heading: float = 0.0
) -> list[Row]:
    """Rows of a car with constant velocity that is at `begin` in frame 0; 4.5 m x 1.8 m."""
    velocity = speed * np.array([np.cos(heading), np.sin(heading)])
    size = (f"{heading:.4f}", "4.5", "1.8")
    rows: list[Row] = []
    for frame in frames:
        x, y = CORNER + begin + 0.1 * frame * velocity
        rows.append((name, frame, "car", x, y, *velocity, *size))
    return rows


def walker(name: str, begin: tuple[float, float], frames: Iterable[int]) -> list[Row]:
    """Rows of a pedestrian or cyclist that moves along +y with 1.5 m/s.

    Heading and size are empty.
    """
    x, y = CORNER + begin
    rows: list[Row] = []
    for frame in frames:
        motion = (x, y + 0.15 * frame, 0.0, 1.5)
        rows.append((name, frame, "pedestrian/bicycle", *motion, "", "", ""))
    return rows


def traffic(last: int) -> list[Row]:
    """A car in all frames 1 to `last`, and three others.

    One leaves 5 frames earlier, one comes in frame 8, and one is unseen at first.
    """
    return [
        *car("1", (0.0, 0.0), 8.0, range(1, last + 1)),
        *car("2", (40.0, 4.0), 3.0, range(1, last - 4), heading=3.0),
        *car("10", (20.0, 0.5), 5.0, range(8, last + 1)),
        *car("4", (60.0, 0.0), 6.0, range(20, last + 1)),
    ]


def write_recording(path: Path, rows: list[Row], columns: int = 11) -> Path:
    """Write RAW/recorded_trackfiles/<location>/vehicle_tracks_<n>.csv.

    Files of pedestrians have 8 columns.
    """
    return _write(path, [_cells(row)[:columns] for row in rows], _NAMES[:columns])


def write_cases(path: Path, cases: dict[int, list[Row]]) -> Path:
    """Write RAW/<split>/<location>_<split>.csv."""
    lines = []
    for number, rows in cases.items():
        lines += [[f"{number}.0", *_cells(row)] for row in rows]
    return _write(path, lines, ["case_id", *_NAMES])


def _cells(row: Row) -> list[str]:
    name, frame, kind, *motion = row
    cells = [name, str(frame), str(100 * frame), kind]
    for value in motion:
        cells.append(value if isinstance(value, str) else f"{value:.3f}")
    return cells


def _write(path: Path, lines: list[list[str]], names: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [",".join(cells) for cells in [names, *lines]]
    path.write_text("\n".join(rows) + "\n")
    return path


def folder(raw: Path) -> Path:
    """Write all files.

    Windows of 10 + 30 steps begin in the frames 1, 11 and 21 of the recording.
    """
    write_map(raw / "maps" / f"{LOCATION}.osm_xy")
    recordings = raw / "recorded_trackfiles" / LOCATION
    write_recording(recordings / "vehicle_tracks_000.csv", traffic(60))
    seen = walker("P1", (5.0, 9.0), range(3, 50))
    write_recording(recordings / "pedestrian_tracks_000.csv", seen, columns=8)
    with_walker = traffic(40) + walker("P7", (5.0, 9.0), range(2, 41))
    write_cases(raw / "val" / f"{LOCATION}_val.csv", {3: with_walker, 1: traffic(40)})
    return raw
