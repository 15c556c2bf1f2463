"""Scene: one scenario as ragged numpy arrays, the record that readers produce and stores contain.

Letters: A agents, T steps (H history, then F future), M polylines, P points of all polylines, E edges, N lights.
Units: metres, seconds, radians in (-pi, pi] counter-clockwise from +x. All arrays except `origin` are relative to `origin`, so
that float32 is accurate to well under a millimetre. Recordings without a known scale have pixels in place of metres
(`Scene.unit`); values of fields and options that are documented in metres are then in pixels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import IntEnum, IntFlag

import numpy as np

from trajformer.errors import SceneError

MAX_EXTENT_M = 50_000.0  # from the origin; a file beyond these limits is broken
MAX_ORIGIN_M = 1e8  # of the origin in the city frame, over twice the Earth's circumference; float64 resolves 15 nm
MAX_SPEED_M_S = 10_000.0
MAX_SIZE_M = 1_000.0
UNITS = METRES, PIXELS = ("m", "px")
MAX_NAME_LENGTH = 200  # bytes of a file name without its ending; characters of other names


class AgentKind(IntEnum):
    """Type of an agent, named as in Argoverse 2; UNKNOWN if the source has no type."""

    UNKNOWN = 0
    VEHICLE = 1
    PEDESTRIAN = 2
    MOTORCYCLIST = 3
    CYCLIST = 4
    BUS = 5
    STATIC = 6
    BACKGROUND = 7
    CONSTRUCTION = 8
    RIDERLESS_BICYCLE = 9


class AgentRole(IntEnum):
    """CONTEXT agents are input only, SCORED agents are also predicted and scored, FOCAL is the main scored agent."""

    CONTEXT = 0
    SCORED = 1
    FOCAL = 2


class PolylineKind(IntEnum):
    """Type of a polyline. Lanes are directed centrelines; CROSSWALK and DRIVABLE_AREA are closed rings.

    ROAD_EDGE is a border of the drivable area and ROAD_LINE a line between lanes, both without a direction.
    """

    LANE_VEHICLE = 0
    LANE_BUS = 1
    LANE_BIKE = 2
    CROSSWALK = 3
    DRIVABLE_AREA = 4
    ROAD_EDGE = 5
    ROAD_LINE = 6


class LaneFlag(IntFlag):
    """Attributes of a lane, combined by bitwise or."""

    NONE = 0
    INTERSECTION = 1
    TRAFFIC_CONTROL = 2
    TURN_LEFT = 4
    TURN_RIGHT = 8


class EdgeKind(IntEnum):
    """Edge (a, b, kind): b is the kind of a, for example b is the successor of a."""

    SUCCESSOR = 0
    PREDECESSOR = 1
    LEFT = 2
    RIGHT = 3


class LightState(IntEnum):
    """State of a traffic light at a step."""

    UNKNOWN = 0
    RED = 1
    YELLOW = 2
    GREEN = 3


@dataclass(frozen=True, eq=False)
class Scene:
    """One scenario.

    `num_history` is H; `num_future` is F, the horizon to be predicted. T = H + F, or H if the future is
    unknown (a test file). Entries with `valid` False are zero. The input of a model is limited to the first H steps.
    """

    scene_id: str
    source: str
    split: str
    city: str
    period_s: float
    num_history: int
    num_future: int
    origin: np.ndarray  # float64 [2], city frame
    agent_id: tuple[str, ...]  # A ids as in the raw file
    agent_kind: np.ndarray  # uint8 [A], AgentKind
    agent_role: np.ndarray  # uint8 [A], AgentRole
    position: np.ndarray  # float32 [A, T, 2]
    heading: np.ndarray  # float32 [A, T]
    velocity: np.ndarray  # float32 [A, T, 2], metres per second
    valid: np.ndarray  # bool [A, T]
    polyline_id: np.ndarray  # int64 [M], id in the raw file, unique within a kind
    polyline_kind: np.ndarray  # uint8 [M], PolylineKind
    polyline_flags: np.ndarray  # uint8 [M], LaneFlag
    polyline_offset: np.ndarray  # int32 [M + 1], polyline m has point[offset[m]:offset[m + 1]]
    point: np.ndarray  # float32 [P, 2]
    edge: np.ndarray  # int32 [2, E], indices of polylines
    edge_kind: np.ndarray  # uint8 [E], EdgeKind
    # optional, without rows if the source has none
    agent_size: np.ndarray = field(
        default_factory=lambda: np.zeros((0, 2), np.float32)
    )  # [A, 2], length and width in metres
    light_lane: np.ndarray = field(
        default_factory=lambda: np.zeros(0, np.int32)
    )  # [N], index of the lane of a traffic light
    light_state: np.ndarray = field(
        default_factory=lambda: np.zeros((0, 0), np.uint8)
    )  # [N, T], LightState
    unit: str = METRES  # of all lengths, one of UNITS

    @property
    def num_agents(self) -> int:
        """A, the number of agents."""
        return len(self.agent_id)

    @property
    def num_steps(self) -> int:
        """T, the number of recorded steps."""
        return int(self.position.shape[1])

    @property
    def num_polylines(self) -> int:
        """M, the number of polylines."""
        return len(self.polyline_kind)

    def polyline(self, index: int) -> np.ndarray:
        """Points [p, 2] of one polyline, metres relative to `origin`."""
        return self.point[self.polyline_offset[index] : self.polyline_offset[index + 1]]

    def validate(self) -> Scene:
        """Check every shape, dtype and value, and return the scene (SceneError: names the scene and an invalid field)."""
        self._check_arrays()
        for name in ("scene_id", "source", "split"):  # used as names of files and folders
            value = getattr(self, name)
            usable = (
                _FILE_NAME.fullmatch(value)
                and value.isprintable()
                and len(value.encode()) <= MAX_NAME_LENGTH
            )
            self._require(bool(usable), name, f"not usable as a file name: {value[:40]!r}")
        usable = len(self.city) <= MAX_NAME_LENGTH and _is_text(self.city)
        self._require(usable, "city", f"not usable as a name: {self.city[:40]!r}")
        self._require(
            self.unit in UNITS, "unit", f"{self.unit!r}, expected one of {', '.join(UNITS)}"
        )
        self._require(0.0 < self.period_s < 60.0, "period_s", f"{self.period_s} s")
        self._check_agents()
        self._check_map()
        return self

    def _require(self, holds: bool | np.bool_, field: str, problem: str) -> None:
        if not holds:
            raise SceneError(
                f"scene {repr(self.scene_id[:MAX_NAME_LENGTH])[1:-1]}: {field}: {problem}"
            )

    def _check_arrays(self) -> None:
        sizes = {"A": self.num_agents, "M": self.num_polylines, "M1": self.num_polylines + 1}
        sizes |= {"T": self.num_steps if self.position.ndim == 3 else -1, "2": 2}
        for name, (dtype, shape) in ARRAY_FIELDS.items():
            value = getattr(self, name)
            if value.dtype != dtype or value.ndim != len(shape):
                self._require(
                    False,
                    name,
                    f"{value.dtype} of {value.ndim} dimensions, expected {dtype} {shape}",
                )
            if name in OPTIONAL_FIELDS and not len(value):
                continue
            for length, letter in zip(value.shape, shape, strict=True):
                if length != sizes.setdefault(letter, length):
                    self._require(False, name, f"shape {value.shape}, expected {shape}")
            if name in _MAX_VALUES and value.size:
                largest, problem = _MAX_VALUES[name]
                if (
                    not (value if dtype.kind == "u" else np.abs(value)).max() <= largest
                ):  # False for NaN
                    self._require(
                        False, name, problem if np.isfinite(value).all() else "has NaN or infinity"
                    )

    def _check_agents(self) -> None:
        ids, steps = self.agent_id, (self.num_history, self.num_history + self.num_future)
        self._require(len(ids) > 0, "agent_id", "the scene has no agent")
        self._require(len(set(ids)) == len(ids), "agent_id", "an id occurs twice")
        usable = "" not in ids and max(map(len, ids)) <= MAX_NAME_LENGTH and _is_text("".join(ids))
        problem = f"empty, over {MAX_NAME_LENGTH} characters, or with a newline or other control character"
        self._require(usable, "agent_id", problem)
        self._require(
            self.num_history >= 2, "num_history", f"{self.num_history} observed steps, at least 2"
        )
        self._require(
            self.num_future >= 1, "num_future", f"{self.num_future} steps to predict, at least 1"
        )
        if self.num_steps not in steps:  # the text is expensive
            self._require(False, "position", f"{self.num_steps} steps, expected one of {steps}")
        focal = np.count_nonzero(self.agent_role == int(AgentRole.FOCAL))
        self._require(focal <= 1, "agent_role", "more than one focal agent")
        self._require(
            self.valid[:, : self.num_history].any(), "valid", "no agent has an observed step"
        )
        hidden = np.flatnonzero(~self.valid)
        for name in ("position", "heading", "velocity"):
            values = getattr(self, name).reshape(self.valid.size, -1).take(hidden, 0)
            self._require(not values.any(), name, "not zero where invalid")

    def _check_map(self) -> None:
        offset, ids = self.polyline_offset, self.polyline_id.tolist()
        covered = offset[0] == 0 and offset[-1] == len(self.point)
        self._require(covered, "polyline_offset", "does not begin at 0 and end at P")
        self._require(
            not ids or (offset[1:] - offset[:-1]).min() >= 2,
            "polyline_offset",
            "a polyline has fewer than 2 points",
        )
        unique = len(set(ids)) == len(ids) or len(
            set(zip(ids, self.polyline_kind.tolist(), strict=True))
        ) == len(ids)
        self._require(unique, "polyline_id", "an id occurs twice within a kind")
        for name in ("edge", "light_lane"):
            index = getattr(self, name)
            exist = not index.size or (index.min() >= 0 and index.max() < self.num_polylines)
            self._require(exist, name, "names a polyline that does not exist")
        self._require(
            len(self.light_lane) == len(self.light_state),
            "light_state",
            "rows differ from light_lane",
        )


ARRAY_FIELDS: dict[str, tuple[np.dtype, tuple[str, ...]]] = {
    name: (np.dtype(kind), tuple(shape.split()))
    for kind, shapes in {
        np.float64: {"origin": "2"},
        np.float32: {
            "position": "A T 2",
            "heading": "A T",
            "velocity": "A T 2",
            "point": "P 2",
            "agent_size": "A 2",
        },
        np.bool_: {"valid": "A T"},
        np.uint8: {
            "agent_kind": "A",
            "agent_role": "A",
            "polyline_kind": "M",
            "polyline_flags": "M",
            "edge_kind": "E",
        }
        | {"light_state": "N T"},
        np.int32: {"polyline_offset": "M1", "edge": "2 E", "light_lane": "N"},
        np.int64: {"polyline_id": "M"},
    }.items()
    for name, shape in shapes.items()
}
OPTIONAL_FIELDS = ("agent_size", "light_lane", "light_state")
_FAR = f"farther than {MAX_EXTENT_M / 1000:g} km from the origin"
_MAX_VALUES: dict[str, tuple[float, str]] = {
    "origin": (MAX_ORIGIN_M, f"farther than {MAX_ORIGIN_M:g} m from zero"),
    "agent_kind": (int(max(AgentKind)), "unknown kind"),
    "agent_role": (int(max(AgentRole)), "unknown role"),
    "position": (MAX_EXTENT_M, _FAR),
    "heading": (float(np.float32(np.pi)), "not within -pi to pi"),
    "velocity": (MAX_SPEED_M_S, f"faster than {MAX_SPEED_M_S:g} m/s"),
    "polyline_kind": (int(max(PolylineKind)), "unknown kind"),
    "polyline_flags": (int(sum(LaneFlag)), "unknown flag"),
    "point": (MAX_EXTENT_M, _FAR),
    "edge_kind": (int(max(EdgeKind)), "unknown kind"),
    "agent_size": (MAX_SIZE_M, f"larger than {MAX_SIZE_M:g} m"),
    "light_state": (int(max(LightState)), "unknown state"),
}
_FILE_NAME = re.compile(r"(?!\.)[^/\\]+")
_CONTROL_CHARACTERS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
)  # also line separators and lone surrogates


def _is_text(value: str) -> bool:
    return value.isprintable() or not _CONTROL_CHARACTERS.search(value)


def scenes_equal(left: Scene, right: Scene) -> bool:
    """True if all fields have equal values and types."""
    pairs = [(getattr(left, field.name), getattr(right, field.name)) for field in fields(Scene)]
    return all(
        a.dtype == b.dtype and np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        for a, b in pairs
    )
