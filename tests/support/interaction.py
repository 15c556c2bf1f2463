"""A small INTERACTION folder: a map of three lanelets, two recordings with a pedestrian, and two cases."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

LOCATION = "DR_TEST_Intersection"
CORNER = np.array([1000.0, 950.0])
Row = tuple[
    str, int, str, float, float, float, float, str, str, str
]  # from track_id to width, without the timestamp

# Two consecutive lanes, and a left neighbor of the first one. Every second way is stored against the traffic.
_LINES = {10: [(0, 2), (20, 2), (50, 2)], 11: [(50, -2), (0, -2)], 12: [(90, 2), (50, 2)]}
_LINES |= {13: [(50, -2), (90, -2)], 14: [(50, 6), (0, 6)]}
_LANELETS = {
    100: (10, 11, (500,)),
    101: (12, 13, ()),
    102: (14, 10, (500, 501)),
}  # left, right, rules
_RULES = {
    500: ([], {"subtype": "speed_limit", "sign_type": "25mph"}),
    501: ([("yield", 102), ("right_of_way", 100)], {"subtype": "right_of_way"}),
}


def write_map(path: Path) -> Path:
    """Write RAW/maps/<location>.osm_xy."""
    node = {
        point: 1000 + index
        for index, point in enumerate(sorted({p for line in _LINES.values() for p in line}))
    }
    parts = [
        f'<node id="{i}" x="{x + CORNER[0]}" y="{y + CORNER[1]}" />' for (x, y), i in node.items()
    ]
    for way, line in _LINES.items():
        refs = "".join(f'<nd ref="{node[point]}" />' for point in line)
        parts.append(f'<way id="{way}">{refs}<tag k="type" v="line_thin" /></way>')
    for lanelet, (left, right, rules) in _LANELETS.items():
        members = [
            ("left", "way", left),
            ("right", "way", right),
            *(("regulatory_element", "relation", rule) for rule in rules),
        ]
        parts.append(
            _relation(lanelet, members, {"type": "lanelet", "subtype": "road", "one_way": "yes"})
        )
    for rule, (others, tags) in _RULES.items():
        members = [(role, "relation", other) for role, other in others]
        parts.append(_relation(rule, members, {"type": "regulatory_element"} | tags))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("<osm_xy>\n" + "\n".join(parts) + "\n</osm_xy>\n")
    return path


def _relation(number: int, members: Iterable[tuple[str, str, int]], tags: dict[str, str]) -> str:
    body = "".join(
        f'<member ref="{ref}" role="{role}" type="{kind}" />' for role, kind, ref in members
    )
    return (
        f'<relation id="{number}">{body}'
        + "".join(f'<tag k="{k}" v="{v}" />' for k, v in tags.items())
        + "</relation>"
    )


def car(
    name: str, begin: tuple[float, float], speed: float, frames: Iterable[int], heading: float = 0.0
) -> list[Row]:
    """Rows of a car with constant velocity that is at `begin` in frame 0; 4.5 m x 1.8 m."""
    vx, vy = speed * np.cos(heading), speed * np.sin(heading)
    start = CORNER + begin
    box = (f"{heading:.4f}", "4.5", "1.8")
    return [
        (name, f, "car", start[0] + 0.1 * f * vx, start[1] + 0.1 * f * vy, vx, vy, *box)
        for f in frames
    ]


def walker(name: str, begin: tuple[float, float], frames: Iterable[int]) -> list[Row]:
    """Rows of a pedestrian or cyclist that moves along +y with 1.5 m/s; heading and size are empty."""
    x, y = CORNER + begin
    return [(name, f, "pedestrian/bicycle", x, y + 0.15 * f, 0.0, 1.5, "", "", "") for f in frames]


def traffic(last: int) -> list[Row]:
    """A car in all frames 1 to `last`, one that leaves 5 frames earlier, one that comes in frame 8, and one unseen at first."""
    rows = car("1", (0.0, 0.0), 8.0, range(1, last + 1)) + car(
        "2", (40.0, 4.0), 3.0, range(1, last - 4), heading=3.0
    )
    return (
        rows
        + car("10", (20.0, 0.5), 5.0, range(8, last + 1))
        + car("4", (60.0, 0.0), 6.0, range(20, last + 1))
    )


def write_recording(path: Path, rows: list[Row], columns: int = 11) -> Path:
    """Write RAW/recorded_trackfiles/<location>/vehicle_tracks_<n>.csv, or pedestrian tracks with 8 columns."""
    return _write(path, [_cells(row)[:columns] for row in rows], _NAMES[:columns])


def write_cases(path: Path, cases: dict[int, list[Row]]) -> Path:
    """Write RAW/<split>/<location>_<split>.csv."""
    lines = [[f"{number}.0", *_cells(row)] for number, rows in cases.items() for row in rows]
    return _write(path, lines, ["case_id", *_NAMES])


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


def _cells(row: Row) -> list[str]:
    name, frame, kind, *motion = row
    return [
        name,
        str(frame),
        str(100 * frame),
        kind,
        *(v if isinstance(v, str) else f"{v:.3f}" for v in motion),
    ]


def _write(path: Path, lines: list[list[str]], names: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(",".join(line) for line in [names, *lines]) + "\n")
    return path


def folder(raw: Path) -> Path:
    """Write everything: windows of 10 + 30 steps begin in the frames 1, 11 and 21 of the recording."""
    recordings = raw / "recorded_trackfiles" / LOCATION
    write_map(raw / "maps" / f"{LOCATION}.osm_xy")
    write_recording(recordings / "vehicle_tracks_000.csv", traffic(60))
    write_recording(
        recordings / "pedestrian_tracks_000.csv", walker("P1", (5.0, 9.0), range(3, 50)), columns=8
    )
    cases = {3: traffic(40) + walker("P7", (5.0, 9.0), range(2, 41)), 1: traffic(40)}
    write_cases(raw / "val" / f"{LOCATION}_val.csv", cases)
    return raw
