"""Columns of live tracks, checked: ids, positions, and further values of a tracker."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import MAX_ORIGIN_M, MAX_SIZE_M, MAX_SPEED_M_S, AgentKind

KIND_NOT_GIVEN = 255
# Labels of autoware_perception_msgs/ObjectClassification, and the names of `AgentKind`.
KINDS = {kind.name.lower(): int(kind) for kind in AgentKind} | {
    "": int(AgentKind.UNKNOWN),
    "car": int(AgentKind.VEHICLE),
    "truck": int(AgentKind.VEHICLE),
    "trailer": int(AgentKind.VEHICLE),
    "motorcycle": int(AgentKind.MOTORCYCLIST),
    "bicycle": int(AgentKind.CYCLIST),
    "animal": int(AgentKind.UNKNOWN),
    "hazard": int(AgentKind.STATIC),
}
_ALIASES = {"track_id": "object_id", "kind": "classification"}  # names of `preprocess table`
REQUIRED = ("object_id", "x", "y")
_LIMITS = {
    "x": MAX_ORIGIN_M,
    "y": MAX_ORIGIN_M,
    "heading": 100.0,
    "vx": MAX_SPEED_M_S,
    "vy": MAX_SPEED_M_S,
    "length": MAX_SIZE_M,
    "width": MAX_SIZE_M,
}
NAMES = (*REQUIRED, "heading", "vx", "vy", "length", "width", "classification")


class TrackColumns(NamedTuple):
    """n tracks at one moment, or n rows of tracks.

    Attributes:
        ids: n ids, of any hashable type.
        position: float64 [n, 2], metres.
        heading: float64 [n], radians in (-pi, pi], NaN if not given.
        velocity: float64 [n, 2], m/s in the frame of the positions, NaN if not given.
        size: float64 [n, 2], length and width in metres, NaN if not given.
        kind: uint8 [n], AgentKind, `KIND_NOT_GIVEN` if not given.
    """

    ids: tuple[Hashable, ...]
    position: np.ndarray
    heading: np.ndarray
    velocity: np.ndarray
    size: np.ndarray
    kind: np.ndarray

    def take(self, rows: np.ndarray) -> TrackColumns:
        """Some rows, int64 [m]."""
        ids = tuple([self.ids[row] for row in rows.tolist()])
        return TrackColumns(ids, *(values[rows] for values in self[1:]))


def read_columns(tracks: Mapping[str, Any] | Any, others: Collection[str] = ()) -> TrackColumns:
    """The columns of a DataFrame or of a mapping from names to sequences.

    `object_id` (or `track_id`), `x` and `y` are required; `heading`, `vx`, `vy`, `length`, `width`
    and `classification` (or `kind`) are optional. `others` are names without a meaning here.
    Raises SceneError: names the column and the track.
    """
    columns: dict[str, Any] = {}
    for name in tracks.keys():  # noqa: SIM118, a DataFrame iterates over columns, too
        target = _ALIASES.get(name, name)
        if target in columns:
            raise SceneError(f"{name}: also given as {target}")
        if target not in NAMES:
            if name in others:
                continue
            raise SceneError(f"{name}: unknown column, expected some of {', '.join(NAMES)}")
        columns[target] = tracks[name]
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        raise SceneError(f"{missing[0]}: missing, expected at least {', '.join(REQUIRED)}")

    ids = tuple(_plain(columns.pop("object_id")))
    words = columns.pop("classification", None)
    number = {}
    for name, limit in _LIMITS.items():
        number[name] = np.full(len(ids), np.nan)
        if name in columns:
            number[name] = _numbers(columns[name], name, limit, ids)
    for name in ("x", "y"):
        _refuse(np.isnan(number[name]), f"{name}: empty or NaN", ids)
    for first, second in (("vx", "vy"), ("length", "width")):
        has_one = np.isnan(number[first]) != np.isnan(number[second])
        _refuse(has_one, f"{first}: one of {first} and {second} is missing", ids)
    heading = number["heading"]
    is_outside = (heading <= -np.pi) | (heading > np.float32(np.pi))
    heading = np.where(is_outside, wrap(heading), heading)
    return TrackColumns(
        ids=ids,
        position=np.stack([number["x"], number["y"]], -1),
        heading=heading,
        velocity=np.stack([number["vx"], number["vy"]], -1),
        size=np.stack([number["length"], number["width"]], -1),
        kind=_kinds(words, ids),
    )


def check_unique(columns: TrackColumns) -> TrackColumns:
    """The columns of one moment (SceneError: a track occurs twice, or an id is not hashable)."""
    try:
        if len(set(columns.ids)) == len(columns.ids):
            return columns
    except TypeError as error:
        raise SceneError(f"object_id: {error}") from error
    seen: set[Hashable] = set()
    for name in columns.ids:
        if name in seen:
            raise SceneError(f"object_id: {name!r} occurs twice in one update")
        seen.add(name)
    return columns


def _plain(values: Any) -> list[Any]:
    """A list of Python values: numpy integers and strings become int and str."""
    return values.tolist() if hasattr(values, "tolist") else list(values)


def _numbers(values: Any, name: str, limit: float, ids: tuple[Hashable, ...]) -> np.ndarray:
    """A column float64 [n] of numbers up to a limit, NaN where empty."""
    try:
        number = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise SceneError(f"{name}: {error}, expected numbers") from error
    if number.shape != (len(ids),):
        raise SceneError(f"{name}: shape {number.shape}, expected ({len(ids)},) as of the ids")
    _refuse(np.abs(number) > limit, f"{name}: infinite or over {limit:g}", ids)
    return number


def _refuse(is_wrong: np.ndarray, problem: str, ids: tuple[Hashable, ...]) -> None:
    """SceneError if any entry is wrong."""
    if is_wrong.any():
        raise SceneError(f"{problem} (track {ids[int(is_wrong.argmax())]!r})")


def _kinds(words: Any, ids: tuple[Hashable, ...]) -> np.ndarray:
    """AgentKind uint8 [n] of names, or of members of `AgentKind`."""
    if words is None:
        return np.full(len(ids), KIND_NOT_GIVEN, np.uint8)
    values = _plain(words)
    if len(values) != len(ids):
        raise SceneError(f"classification: {len(values)} values, expected {len(ids)} as of the ids")
    kinds = []
    for word, name in zip(values, ids, strict=True):
        if isinstance(word, AgentKind):
            kinds.append(int(word))
            continue
        key = word.strip().lower() if isinstance(word, str) else word
        if key is None or key != key:  # NaN of pandas
            key = ""
        if not isinstance(key, str) or key not in KINDS:
            expected = ", ".join(filter(None, KINDS))
            raise SceneError(
                f"classification: {word!r} (track {name!r}), expected one of {expected}"
            )
        kinds.append(KINDS[key])
    return np.array(kinds, np.uint8)
