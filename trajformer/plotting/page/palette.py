"""Colors of the page: the colors of pictures (`style.py`), and counterparts for a dark ground."""

from typing import Any

from trajformer.plotting import style
from trajformer.scenes.scene import PolylineKind

# Forecast files next to each other; `FILE_DASHES` also tell them apart.
FILES_LIGHT = tuple(style.AGENT_COLORS[index] for index in (1, 0, 2, 6))
FILES_DARK = ("#FF9A4D", "#56B4E9", "#2FC79A", "#C79BE0")
FILE_DASHES = ((), (7.0, 4.0), (2.0, 3.0), (9.0, 3.0, 2.0, 3.0))
# counterparts of `style.AGENT_COLORS`
CROWD_DARK = ("#4DA3E6", "#FF8A3D", "#2FC79A", "#E79AC4", "#F0B93A", "#8ACDF5", "#B58BD6")


def _lanes(dark: bool) -> dict[int, dict[str, Any]]:
    """Name, color, color inside of intersections, width (pixels) and dashes by kind."""
    on_dark = {
        PolylineKind.LANE_VEHICLE: ("#5D6570", "#434A54"),
        PolylineKind.LANE_BUS: ("#A5812F", "#655228"),
        PolylineKind.LANE_BIKE: ("#4F9279", "#35594C"),
    }
    lanes = {}
    for kind, look in style.LANES.items():
        color, light = look.color, look.light
        if dark:
            color, light = on_dark[kind]
        dashes: tuple[float, ...] = ()
        if not isinstance(look.dashes, str):
            dashes = look.dashes[1]
        lanes[int(kind)] = {
            "name": look.name,
            "color": color,
            "light": light,
            "width": look.width * 1.5,
            "dashes": dashes,
        }
    return lanes


LIGHT: dict[str, Any] = {
    "paper": style.PAPER,
    "ink": style.INK,
    "focal": style.FOCAL,
    "focalEdge": style.FOCAL_DARK,
    "scored": style.SCORED,
    "scoredEdge": style.SCORED_DARK,
    "recorder": style.RECORDER,
    "recorderEdge": "#00573F",
    "truth": style.TRUTH,
    "context": style.CONTEXT_FACE,
    "contextEdge": style.CONTEXT_EDGE,
    "faint": style.FAINT_FACE,
    "drivable": style.DRIVABLE_FACE,
    "drivableEdge": style.DRIVABLE_EDGE,
    "crosswalk": style.CROSSWALK,
    "roadEdge": style.ROAD_LINES[PolylineKind.ROAD_EDGE][1],
    "roadLine": style.ROAD_LINES[PolylineKind.ROAD_LINE][1],
    "lights": ("#8A8A8A", "#C8102E", "#C79100", "#00805A"),
    "attention": ("#F0B8DC", "#8A0F6B"),  # the smallest and the largest share
    "files": FILES_LIGHT,
    "crowd": style.AGENT_COLORS,
    "lanes": _lanes(dark=False),
}

DARK: dict[str, Any] = {
    "paper": "#14171C",
    "ink": "#E8EAED",
    "focal": "#FF9A4D",
    "focalEdge": "#FFD0A8",
    "scored": "#4BA3E0",
    "scoredEdge": "#A9D6F7",
    "recorder": "#2FC79A",
    "recorderEdge": "#A6EBD3",
    "truth": "#FFFFFF",
    "context": "#6B737E",
    "contextEdge": "#9AA3AE",
    "faint": "#3A4049",
    "drivable": "#1F242B",
    "drivableEdge": "#343B45",
    "crosswalk": "#4A525D",
    "roadEdge": "#8A929C",
    "roadLine": "#5D6570",
    "lights": ("#8A8A8A", "#FF5A6E", "#FFC83D", "#2FC79A"),
    "attention": ("#6E3A60", "#FF9BE0"),
    "files": FILES_DARK,
    "crowd": CROWD_DARK,
    "lanes": _lanes(dark=True),
}
