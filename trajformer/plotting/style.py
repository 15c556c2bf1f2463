"""Colors after Okabe and Ito (safe for color-blind readers), line styles, sizes and drawing order.

Different colors also differ in line style, marker, outline or lightness, so that gray prints are readable.
"""

from dataclasses import dataclass

from trajformer.scenes.scene import METRES, PIXELS, AgentKind, PolylineKind

FOCAL, SCORED, RECORDER = "#C04E00", "#4BA3E0", "#007F5C"
FOCAL_DARK, SCORED_DARK = "#8F3A00", "#10486E"
TRUTH, INK, PAPER = "#000000", "#262626", "#FFFFFF"
CONTEXT_EDGE, CONTEXT_FACE, FAINT_FACE = "#6E6E6E", "#BDBDBD", "#E2E2E2"
DRIVABLE_FACE, DRIVABLE_EDGE, CROSSWALK = "#F1F1F1", "#D9D9D9", "#BEBEBE"

FONT_PT, SMALL_PT, LABEL_PT = 9.0, 8.0, 7.5

# drawing order, bottom to top
Z_DRIVABLE, Z_CROSSWALK, Z_LANE, Z_ARROW = 0.5, 0.7, 1.0, 1.1
Z_TRAIL, Z_CONTEXT, Z_TARGET_TRAIL = 2.0, 3.0, 3.5
Z_MODE, Z_FOCAL_MODE, Z_TRUTH, Z_TARGET, Z_LABEL = 5.0, 5.5, 6.0, 7.0, 9.0


@dataclass(frozen=True)
class LaneStyle:
    """Line of a lane kind; inside an intersection it has the color `light`."""

    name: str
    color: str
    light: str
    dashes: str | tuple[float, tuple[float, ...]]
    width: float


LANES = {
    PolylineKind.LANE_VEHICLE: LaneStyle("vehicle lane", "#A6A6A6", "#D2D2D2", "-", 0.7),
    PolylineKind.LANE_BUS: LaneStyle(
        "bus lane", "#D6A63C", "#EFDCB2", (0.0, (7.0, 2.0, 1.5, 2.0)), 0.9
    ),
    PolylineKind.LANE_BIKE: LaneStyle("bike lane", "#86C5AE", "#C9E6DC", (0.0, (1.2, 1.6)), 1.0),
}

ROAD_LINES = {  # lines without a direction: name, color, dashes
    PolylineKind.ROAD_EDGE: ("road edge", "#6E6E6E", "-"),
    PolylineKind.ROAD_LINE: ("road line", "#A6A6A6", (0.0, (5.0, 3.0))),
}

# lengths of pictures in metres are multiplied by it; drone videos of pedestrians have about 20 pixels per metre
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
