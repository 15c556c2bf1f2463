"""Colors after Okabe and Ito (safe for color-blind readers), line styles, sizes and drawing order.

Different colors also differ in line style, marker, outline or lightness, so that gray prints are
readable.
"""

from dataclasses import dataclass

import matplotlib.style

from trajformer.scenes.scene import METRES, PIXELS, AgentKind, PolylineKind

# Decorator: settings in a file `matplotlibrc` or of the calling program do not change pictures.
fixed_style = matplotlib.style.context("default")

FOCAL = "#C04E00"
FOCAL_DARK = "#8F3A00"
SCORED = "#4BA3E0"
SCORED_DARK = "#10486E"
RECORDER = "#007F5C"
TRUTH = "#000000"
INK = "#262626"
PAPER = "#FFFFFF"
CONTEXT_EDGE = "#6E6E6E"
CONTEXT_FACE = "#BDBDBD"
FAINT_FACE = "#E2E2E2"
DRIVABLE_FACE = "#F1F1F1"
DRIVABLE_EDGE = "#D9D9D9"
CROSSWALK = "#BEBEBE"

# One color per agent or world, after Okabe and Ito, with black for recordings left out. Lightness
# differs by about 5 of 100 or more between any two, so that they differ in gray prints too.
AGENT_COLORS: tuple[str, ...] = (
    "#005FAB",
    FOCAL,
    "#0C9066",
    "#D37DAE",
    "#EAB308",
    "#57B2E8",
    "#521A70",
)
KIND_COLORS = {  # the other kinds are drawn in `OTHER_KIND`
    AgentKind.VEHICLE: "#005FAB",
    AgentKind.BUS: "#521A70",
    AgentKind.PEDESTRIAN: "#EAB308",
    AgentKind.CYCLIST: "#0C9066",
    AgentKind.MOTORCYCLIST: "#D37DAE",
}
OTHER_KIND = "#8A8A8A"

FONT_PT = 9.0
SMALL_PT = 8.0
LABEL_PT = 7.5

# drawing order, bottom to top
Z_DRIVABLE = 0.5
Z_CROSSWALK = 0.7
Z_LANE = 1.0
Z_ARROW = 1.1
Z_TRAIL = 2.0
Z_CONTEXT = 3.0
Z_TARGET_TRAIL = 3.5
Z_MODE = 5.0
Z_FOCAL_MODE = 5.5
Z_TRUTH = 6.0
Z_TARGET = 7.0
Z_LABEL = 9.0


@dataclass(frozen=True)
class LaneStyle:
    """Line of a lane kind; inside an intersection it has the color `light`."""

    name: str
    color: str
    light: str
    dashes: str | tuple[float, tuple[float, ...]]
    width: float


_BUS_DASHES = (0.0, (7.0, 2.0, 1.5, 2.0))
_BIKE_DASHES = (0.0, (1.2, 1.6))
LANES = {
    PolylineKind.LANE_VEHICLE: LaneStyle("vehicle lane", "#A6A6A6", "#D2D2D2", "-", 0.7),
    PolylineKind.LANE_BUS: LaneStyle("bus lane", "#D6A63C", "#EFDCB2", _BUS_DASHES, 0.9),
    PolylineKind.LANE_BIKE: LaneStyle("bike lane", "#86C5AE", "#C9E6DC", _BIKE_DASHES, 1.0),
}

# lines without a direction: name, color, dashes
ROAD_LINES: dict[PolylineKind, tuple[str, str, str | tuple[float, tuple[float, ...]]]] = {
    PolylineKind.ROAD_EDGE: ("road edge", "#6E6E6E", "-"),
    PolylineKind.ROAD_LINE: ("road line", "#A6A6A6", (0.0, (5.0, 3.0))),
}

# lengths of pictures in metres are multiplied by it; drone videos of pedestrians have about 20
# pixels per metre
SCALE = {METRES: 1.0, PIXELS: 20.0}

# length and width in metres of agents without a recorded size; a pedestrian is drawn as a circle
AGENT_SIZE_M = {
    AgentKind.UNKNOWN: (3.6, 1.6),
    AgentKind.VEHICLE: (4.6, 1.9),
    AgentKind.PEDESTRIAN: (0.7, 0.7),
    AgentKind.MOTORCYCLIST: (2.2, 0.8),
    AgentKind.CYCLIST: (1.8, 0.6),
    AgentKind.BUS: (11.0, 2.6),
    AgentKind.STATIC: (0.8, 0.8),
    AgentKind.BACKGROUND: (0.8, 0.8),
    AgentKind.CONSTRUCTION: (0.8, 0.8),
    AgentKind.RIDERLESS_BICYCLE: (1.8, 0.6),
}
FAINT_KINDS = (AgentKind.UNKNOWN, AgentKind.STATIC, AgentKind.BACKGROUND, AgentKind.CONSTRUCTION)
RECORDER_ID = "AV"  # of the recording vehicle in Argoverse
