"""Properties of scenes that a model depends on, and their comparison with its training scenes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from trajformer.errors import ConfigError, TrajformerError, TrajformerWarning
from trajformer.scenes.manifest import MANIFEST
from trajformer.scenes.scene import Scene, is_lane

CLOCK = ("period_s", "num_history", "num_future")
_COMPARED = ("unit", *CLOCK)  # a difference would silently give wrong forecasts
MAX_STEPS = 10_000  # of a history or horizon
# Of a step; a smaller distance from a recorded step is a rounding error of the periods.
ROUNDING = 1e-6
_TYPES = {
    "source": str,
    "split": str,
    "unit": str,
    "period_s": float,
    "num_history": int,
    "num_future": int,
    "has_map": bool,
    "has_lanes": bool,
    "sources": tuple,
}


@dataclass(frozen=True)
class DataSpec:
    """Clock, horizon, unit, map and origin of scenes; None is unknown.

    `sources` has the properties of each data set if a model was trained on several. The clock is
    then the common one, of `common_spec`, and `source` and `split` are unknown.
    """

    source: str | None = None  # the data set
    split: str | None = None
    unit: str | None = None  # of positions: "m", or "px" for recordings without a scale
    period_s: float | None = None
    num_history: int | None = None
    num_future: int | None = None
    has_map: bool | None = None  # at least one scene has a polyline that models receive
    has_lanes: bool | None = None  # some of them are lanes, which have a direction
    sources: tuple[DataSpec, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            expected = _TYPES[field.name]
            if value is not None and type(value) is not expected:
                raise ConfigError(field.name, f"{value!r}, expected {expected.__name__}")

    @classmethod
    def of(cls, scene: Scene) -> DataSpec:
        """The properties of one scene."""
        return cls(
            source=scene.source,
            split=scene.split,
            unit=scene.unit,
            period_s=float(scene.period_s),
            num_history=int(scene.num_history),
            num_future=int(scene.num_future),
            has_map=scene.num_polylines > 0,
            has_lanes=bool(is_lane(scene.polyline_kind).any()),
        )

    @classmethod
    def from_plain(cls, plain: Any) -> DataSpec:
        """The inverse of `to_plain` (TrajformerError: a field is unknown or has another type)."""
        try:
            values = dict(plain)
            if "sources" in values:
                values["sources"] = tuple([cls.from_plain(part) for part in values["sources"]])
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise TrajformerError(f"properties of the training scenes: {error}") from error

    def to_plain(self) -> dict[str, Any]:
        """The known properties by name."""
        plain: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name != "sources":
                plain[field.name] = value
        if self.sources:
            plain["sources"] = [source.to_plain() for source in self.sources]
        return plain

    def contains(self, scene: Scene) -> bool:
        """Whether a scene is from this split of this data set (see `same_split`).

        An unknown data set counts as equal. In ETH/UCY the training part of a set holds the
        recordings of all other sets.
        """
        if any(source.contains(scene) for source in self.sources):
            return True
        if self.split is None or self.source not in (None, scene.source):
            return False
        if same_split(self.split, scene.split):
            return True
        name, _, part = self.split.rpartition("_")
        is_other_set = not scene.split.startswith(name + "_")
        return scene.source == "eth_ucy" and part == "train" and is_other_set


def same_split(first: str, second: str) -> bool:
    """Whether two splits are equal, or one is a part of the other, as `train.val` of `train`."""
    return f"{first}.".startswith(f"{second}.") or f"{second}.".startswith(f"{first}.")


def max_steps(ratio: float, num_history: int, num_future: int) -> tuple[int, int]:
    """The most steps of history and horizon after the period is multiplied by `ratio`.

    The last observed step is kept.
    """
    history = math.floor(min((num_history - 1) / ratio, MAX_STEPS) + ROUNDING)
    future = math.floor(min(num_future / ratio, MAX_STEPS) + ROUNDING)
    return history + 1, future


def common_spec(specs: Sequence[DataSpec]) -> DataSpec:
    """The properties of a training on scenes with these properties.

    Period and history are those of the first source. The horizon is the longest one in seconds,
    rounded up to a step. Raises TrajformerError: the units differ, or a horizon has too many steps.
    """
    first = specs[0]
    longest = 0
    for spec in specs:
        if spec.unit != first.unit:
            names = f"{first.source} has lengths in {first.unit}, {spec.source} in {spec.unit}"
            raise TrajformerError(f"data sets of different units in one training: {names}")
        assert first.period_s and spec.period_s and spec.num_future
        ratio = first.period_s / spec.period_s
        longest = max(longest, math.ceil(spec.num_future / ratio - ROUNDING))
    if longest > MAX_STEPS:
        steps = f"{longest} steps of {first.period_s} s"
        raise TrajformerError(f"the longest horizon has {steps}, expected at most {MAX_STEPS}")
    return replace(
        first,
        source=None,
        split=None,
        num_future=longest,
        has_map=any(spec.has_map for spec in specs),
        has_lanes=any(spec.has_lanes for spec in specs),
        sources=tuple(specs),
    )


def is_source(scenes: DataSpec, expected: DataSpec) -> bool:
    """Whether scenes have the unit and clock of one of several data sets of a training."""
    return any(not differences(scenes, source) for source in expected.sources)


def differences(scenes: DataSpec, expected: DataSpec) -> list[str]:
    """The properties with which scenes do not fit a model; unknown properties are equal."""
    return [name for name in _COMPARED if _differs(name, scenes, expected)]


def check_scenes(
    scenes: DataSpec, expected: DataSpec, root: Path | str, owner: str = "the training scenes have"
) -> None:
    """Compare scenes with the training scenes of a model; unknown properties are equal.

    `owner` is the subject of `expected` in the message. Raises TrajformerError: unit, period,
    history or horizon differ. The message has both values, and the command that converts `root` if
    the scenes are long enough for it.
    """
    different = differences(scenes, expected)
    if not different:
        return
    actual_values = " and ".join(f"{name} {getattr(scenes, name)}" for name in different)
    expected_values = " and ".join(str(getattr(expected, name)) for name in different)
    comparison = f"{actual_values}, but {owner} {expected_values}"
    remedy = _remedy(scenes, expected, different, root)
    raise TrajformerError(f"{root}: split '{scenes.split}': {comparison}; {remedy}")


def _differs(name: str, scenes: DataSpec, expected: DataSpec) -> bool:
    """Whether a property is known on both sides and differs."""
    actual_value = getattr(scenes, name)
    expected_value = getattr(expected, name)
    if actual_value is None or expected_value is None:
        return False
    if name == "period_s":
        return not math.isclose(actual_value, expected_value, rel_tol=1e-6)
    return actual_value != expected_value


def _remedy(scenes: DataSpec, expected: DataSpec, different: list[str], root: Path | str) -> str:
    """What a user can do about scenes that differ from the expected ones."""
    if "unit" in different:
        return f"use data in {expected.unit}, or a model for {scenes.unit}"
    if not Path(root, MANIFEST).is_file():
        return "use a model that was trained on scenes like these"
    if _too_short(scenes, expected):
        return "too short to be converted; prepare longer scenes"
    changed = different
    if "period_s" in different:  # another period changes the numbers of steps, too
        changed = list(CLOCK)
    options = []
    for name in changed:
        value = getattr(expected, name)
        if value is not None and getattr(scenes, name) is not None:
            options.append(f"--{name.replace('_', '-')} {value}")
    return f"convert it: trajformer store resample {root} OUT {' '.join(options)}"


def _too_short(scenes: DataSpec, expected: DataSpec) -> bool:
    if scenes.period_s is None or scenes.num_history is None or scenes.num_future is None:
        return False
    ratio = (expected.period_s or scenes.period_s) / scenes.period_s
    history, future = max_steps(ratio, scenes.num_history, scenes.num_future)
    return history < (expected.num_history or 0) or future < (expected.num_future or 0)


def warn_about_maps(with_map: int, total: int, expected: DataSpec, where: str) -> None:
    """Warn if scenes have no map and the training scenes have maps, and the reverse.

    `with_map` of `total` scenes have a map.
    """
    if expected.has_map and with_map < total:
        without_map = f"{total - with_map} of {total} scenes have no map"
        warn(f"{where}: {without_map}, but the training scenes have maps")
    if expected.has_map is False and with_map > 0:
        some_maps = f"{with_map} of {total} scenes have a map"
        warn(f"{where}: {some_maps}, but the training scenes have none")


def warn_about_lanes(has_lanes: bool, expected: DataSpec, where: str) -> None:
    """Warn if the maps have no lanes and those of the training scenes have, and the reverse."""
    if not expected.has_map or expected.has_lanes in (None, has_lanes):
        return
    if expected.has_lanes:
        warn(f"{where}: the maps have no lanes, but those of the training scenes have")
    else:
        warn(f"{where}: the maps have lanes, but those of the training scenes have none")


def warn(message: str) -> None:
    """Warn the user; the command line prints one line."""
    warnings.warn(message, TrajformerWarning, stacklevel=3)
