"""Scene: one scenario as ragged numpy arrays, the record that readers produce and stores contain.

Letters: A agents, T steps (H history, then F future), M polylines, P points of all polylines,
E edges, N traffic lights. Units: metres, seconds, radians in (-pi, pi] counter-clockwise from +x.
All positions are relative to `origin`, in whole metres; those of the history and the map are
multiples of `geometry.GRID_M`, so that float32 is exact up to 1 km. Recordings without a known
scale have pixels in place of metres (`Scene.unit`); values of fields and options that are
documented in metres are then in pixels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from enum import IntEnum, IntFlag
from importlib import import_module
from typing import Any

import numpy as np

import trajformer
from trajformer.errors import SceneError

# A file beyond these limits is broken.
MAX_EXTENT_M = 50_000.0  # from the origin
MAX_ORIGIN_M = 1e8  # over twice the Earth's circumference; float64 resolves 15 nm there
MAX_SPEED_M_S = 10_000.0
MAX_SIZE_M = 1_000.0
# An agent that was last seen at most this long before the present is still in the scene: trackers
# lose agents behind others for some steps.
SHORT_LOSS_S = 1.0
MAX_NAME_LENGTH = 200  # bytes of a file name without its ending; characters of other names

METRES = "m"
PIXELS = "px"
UNITS = (METRES, PIXELS)


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
    """Role of an agent in the benchmark.

    CONTEXT agents are input only, SCORED agents are also predicted and scored, and FOCAL is the
    main scored agent.
    """

    CONTEXT = 0
    SCORED = 1
    FOCAL = 2


class PolylineKind(IntEnum):
    """Type of a polyline.

    Lanes are directed centrelines. CROSSWALK and DRIVABLE_AREA are closed rings. ROAD_EDGE is a
    border of the drivable area and ROAD_LINE a line between lanes, both without a direction.
    """

    LANE_VEHICLE = 0
    LANE_BUS = 1
    LANE_BIKE = 2
    CROSSWALK = 3
    DRIVABLE_AREA = 4
    ROAD_EDGE = 5
    ROAD_LINE = 6


def is_lane(kind: np.ndarray) -> np.ndarray:
    """Whether polylines of these kinds are lanes, bool like `kind`."""
    return kind < int(PolylineKind.CROSSWALK)


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

    `num_history` is H; `num_future` is F, the horizon to be predicted. T = H + F, or H if the
    future is unknown (a test file). Entries with `valid` False are zero. The input of a model is
    limited to the first H steps.
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
    # Optional fields have no rows if the source has no such values.
    agent_size: np.ndarray = field(  # float32 [A, 2], length and width in metres
        default_factory=lambda: np.zeros((0, 2), np.float32)
    )
    light_lane: np.ndarray = field(  # int32 [N], index of the lane of a traffic light
        default_factory=lambda: np.zeros(0, np.int32)
    )
    light_state: np.ndarray = field(  # uint8 [N, T], LightState
        default_factory=lambda: np.zeros((0, 0), np.uint8)
    )
    unit: str = METRES  # of all lengths, one of UNITS

    @classmethod
    def from_tracks(
        cls,
        frame: Any,
        lanes: Any = None,
        now: float | None = None,
        *,
        period_s: float = 0.1,
        num_history: int = 50,
        num_future: int = 60,
    ) -> Scene:
        """The scene of recorded or live tracks at one moment: observed steps only.

        Args:
            frame: DataFrame with one row for each track and moment, as for `preprocess table`:
                `track_id`, `x`, `y` and `timestamp` (seconds) or `step`; optionally `heading`,
                `vx`, `vy`, `length`, `width` and `kind`. Other timestamps than those of the clock
                are interpolated.
            lanes: file, GeoJSON document, arrays or scene, see `lane_files.as_vector_map`.
            now: the present in seconds, by default the last timestamp; later rows are ignored.
            period_s: seconds between two steps, as in `model.trained_on`.
            num_history: H.
            num_future: F.

        Raises SceneError: a column or a value cannot be used.
        """
        # The module imports this one.
        tracks = import_module("trajformer.scenes.tracks")
        scene: Scene = tracks.scene_from_tracks(
            frame,
            lanes,
            now,
            period_s=period_s,
            num_history=num_history,
            num_future=num_future,
        )
        return scene

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

    def _repr_html_(self) -> str:
        """The scene in a notebook: a page that plays it (`trajformer.scene_html`)."""
        # by the lazy name of the root package: this package imports no other one
        return trajformer.scene_html(self)

    def validate(self) -> Scene:
        """Check every shape, dtype and value, and return the scene.

        Raises SceneError: names the scene and an invalid field.
        """
        self._check_arrays()
        self._check_names()
        self._check_clock()
        self._check_agents()
        self._check_motion()
        self._check_map()
        return self

    def _error(self, field_name: str, problem: str) -> SceneError:
        scene_id = repr(self.scene_id[:MAX_NAME_LENGTH])[1:-1]
        return SceneError(f"scene {scene_id}: {field_name}: {problem}")

    def _check_arrays(self) -> None:
        """Check dtypes, shapes and largest values of all arrays."""
        # The other letters get the length of the first array that has them.
        lengths = {"2": 2, "A": self.num_agents, "M": self.num_polylines}
        lengths["M1"] = self.num_polylines + 1
        for name, (dtype, shape) in ARRAY_FIELDS.items():
            value = getattr(self, name)
            if value.dtype != dtype or value.ndim != len(shape):
                actual = f"{value.dtype} of {value.ndim} dimensions"
                raise self._error(name, f"{actual}, expected {dtype} {shape}")
            if name in OPTIONAL_FIELDS and len(value) == 0:
                continue
            for length, letter in zip(value.shape, shape, strict=True):
                if length != lengths.setdefault(letter, length):
                    raise self._error(name, f"shape {value.shape}, expected {shape}")
            if name in _MAX_VALUES and value.size > 0:
                self._check_values(name, value)

    def _check_values(self, name: str, value: np.ndarray) -> None:
        maximum, problem = _MAX_VALUES[name]
        magnitude = value
        if value.dtype.kind != "u":
            magnitude = np.abs(value)
        if magnitude.max() <= maximum:  # False for NaN
            return
        if not np.isfinite(value).all():
            problem = "has NaN or infinity"
        raise self._error(name, problem)

    def _check_names(self) -> None:
        for name in ("scene_id", "source", "split"):
            value = getattr(self, name)
            if not _is_file_name(value):
                raise self._error(name, f"not usable as a file name: {value[:40]!r}")
        if len(self.city) > MAX_NAME_LENGTH or not _is_text(self.city):
            raise self._error("city", f"not usable as a name: {self.city[:40]!r}")
        if self.unit not in UNITS:
            raise self._error("unit", f"{self.unit!r}, expected one of {', '.join(UNITS)}")

    def _check_clock(self) -> None:
        if not 0.0 < self.period_s < 60.0:
            raise self._error("period_s", f"{self.period_s} s")

    def _check_agents(self) -> None:
        ids = self.agent_id
        if not ids:
            raise self._error("agent_id", "the scene has no agent")
        if len(set(ids)) < len(ids):
            raise self._error("agent_id", "an id occurs twice")
        longest = max(len(name) for name in ids)
        if "" in ids or longest > MAX_NAME_LENGTH or not _is_text("".join(ids)):
            problem = f"empty, over {MAX_NAME_LENGTH} characters, or with a newline"
            raise self._error("agent_id", f"{problem} or other control character")
        if not self.num_history >= 2:  # also for NaN
            raise self._error("num_history", f"{self.num_history} observed steps, at least 2")
        if not self.num_future >= 1:
            raise self._error("num_future", f"{self.num_future} steps to predict, at least 1")
        possible_steps = (self.num_history, self.num_history + self.num_future)
        if self.num_steps not in possible_steps:
            problem = f"{self.num_steps} steps, expected one of {possible_steps}"
            raise self._error("position", problem)
        num_focal = np.count_nonzero(self.agent_role == int(AgentRole.FOCAL))
        if num_focal > 1:
            raise self._error("agent_role", "more than one focal agent")

    def _check_motion(self) -> None:
        """Check that an agent is observed, and that invalid entries are zero."""
        if not self.valid[:, : self.num_history].any():
            raise self._error("valid", "no agent has an observed step")
        invalid = np.flatnonzero(~self.valid)
        for name in ("position", "heading", "velocity"):
            values = getattr(self, name).reshape(self.valid.size, -1)
            if values.take(invalid, 0).any():
                raise self._error(name, "not zero where invalid")

    def _check_map(self) -> None:
        offset = self.polyline_offset
        if offset[0] != 0 or offset[-1] != len(self.point):
            raise self._error("polyline_offset", "does not begin at 0 and end at P")
        if self.num_polylines > 0 and (offset[1:] - offset[:-1]).min() < 2:
            raise self._error("polyline_offset", "a polyline has fewer than 2 points")
        if not self._has_unique_polylines():
            raise self._error("polyline_id", "an id occurs twice within a kind")
        for name in ("edge", "light_lane"):
            index = getattr(self, name)
            if index.size > 0 and (index.min() < 0 or index.max() >= self.num_polylines):
                raise self._error(name, "names a polyline that does not exist")
        if len(self.light_lane) != len(self.light_state):
            raise self._error("light_state", "rows differ from light_lane")

    def _has_unique_polylines(self) -> bool:
        """True if no two polylines have the same id and kind."""
        ids = self.polyline_id.tolist()
        if len(set(ids)) == len(ids):  # the usual and faster case
            return True
        kinds = self.polyline_kind.tolist()
        return len(set(zip(ids, kinds, strict=True))) == len(ids)


def _array(kind: type[np.generic], shape: str) -> tuple[np.dtype, tuple[str, ...]]:
    return np.dtype(kind), tuple(shape.split())


# dtype and shape of each array; M1 is M + 1
ARRAY_FIELDS: dict[str, tuple[np.dtype, tuple[str, ...]]] = {
    "origin": _array(np.float64, "2"),
    "position": _array(np.float32, "A T 2"),
    "heading": _array(np.float32, "A T"),
    "velocity": _array(np.float32, "A T 2"),
    "point": _array(np.float32, "P 2"),
    "agent_size": _array(np.float32, "A 2"),
    "valid": _array(np.bool_, "A T"),
    "agent_kind": _array(np.uint8, "A"),
    "agent_role": _array(np.uint8, "A"),
    "polyline_kind": _array(np.uint8, "M"),
    "polyline_flags": _array(np.uint8, "M"),
    "edge_kind": _array(np.uint8, "E"),
    "light_state": _array(np.uint8, "N T"),
    "polyline_offset": _array(np.int32, "M1"),
    "edge": _array(np.int32, "2 E"),
    "light_lane": _array(np.int32, "N"),
    "polyline_id": _array(np.int64, "M"),
}
OPTIONAL_FIELDS = ("agent_size", "light_lane", "light_state")
_FAR = f"farther than {MAX_EXTENT_M / 1000:g} km from the origin"
# largest absolute value, and the problem of a larger one
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
# also line separators and lone surrogates
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def _is_file_name(value: str) -> bool:
    if not _FILE_NAME.fullmatch(value) or not value.isprintable():
        return False
    return len(value.encode()) <= MAX_NAME_LENGTH


def _is_text(value: str) -> bool:
    return value.isprintable() or not _CONTROL_CHARACTERS.search(value)


def scenes_equal(left: Scene, right: Scene) -> bool:
    """True if all fields have equal values and types."""
    for item in fields(Scene):
        a = getattr(left, item.name)
        b = getattr(right, item.name)
        if isinstance(a, np.ndarray):
            if a.dtype != b.dtype or not np.array_equal(a, b):
                return False
        elif a != b:
            return False
    return True
