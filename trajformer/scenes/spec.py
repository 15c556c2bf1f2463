"""Properties of scenes that a model depends on: clock, horizon, unit and map; and their comparison with its training scenes."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trajformer.errors import ConfigError, TrajformerError, TrajformerWarning
from trajformer.scenes.manifest import MANIFEST
from trajformer.scenes.scene import Scene

CLOCK = ("period_s", "num_history", "num_future")
_COMPARED = ("unit", *CLOCK)  # a difference would silently give wrong forecasts
MAX_STEPS = 10_000  # of a history or horizon
ROUNDING = (
    1e-6  # of a step; a smaller distance from a recorded step is a rounding error of the periods
)
_TYPES = {
    "source": str,
    "split": str,
    "unit": str,
    "period_s": float,
    "num_history": int,
    "num_future": int,
    "has_map": bool,
}


@dataclass(frozen=True)
class DataSpec:
    """Clock, horizon, unit, map and origin of scenes. None is unknown, as in checkpoints of earlier versions."""

    source: str | None = None  # the data set
    split: str | None = None
    unit: str | None = None  # of positions: "m", or "px" for recordings without a scale
    period_s: float | None = None
    num_history: int | None = None
    num_future: int | None = None
    has_map: bool | None = None  # at least one scene has a polyline that models receive

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and type(value) is not _TYPES[item.name]:
                raise ConfigError(item.name, f"{value!r}, expected {_TYPES[item.name].__name__}")

    @classmethod
    def of(cls, scene: Scene) -> DataSpec:
        """The properties of one scene."""
        clock = float(scene.period_s), int(scene.num_history), int(scene.num_future)
        return cls(scene.source, scene.split, scene.unit, *clock, has_map=scene.num_polylines > 0)

    @classmethod
    def from_plain(cls, plain: Any) -> DataSpec:
        """The inverse of `to_plain` (TrajformerError: a field is unknown or has another type)."""
        try:
            return cls(**plain)
        except TypeError as error:
            raise TrajformerError(f"properties of the training scenes: {error}") from error

    def to_plain(self) -> dict[str, Any]:
        """The known properties by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def contains(self, scene: Scene) -> bool:
        """Whether a scene is from this split of this data set (see `same_split`); an unknown data set counts as equal.

        In ETH/UCY the training part of a set holds the recordings of all other sets.
        """
        if self.split is None or self.source not in (None, scene.source):
            return False
        name, _, part = self.split.rpartition("_")
        other_set = (
            scene.source == "eth_ucy" and part == "train" and not scene.split.startswith(name + "_")
        )
        return other_set or same_split(self.split, scene.split)


def same_split(first: str, second: str) -> bool:
    """Whether two splits are equal, or one is a part of the other, as `train.val` is of `train`."""
    return f"{first}.".startswith(f"{second}.") or f"{second}.".startswith(f"{first}.")


def longest(ratio: float, num_history: int, num_future: int) -> tuple[int, int]:
    """The most steps of history and horizon after a change of the period by a factor; the last observed step is kept."""
    history, future = (
        math.floor(min(steps / ratio, MAX_STEPS) + ROUNDING)
        for steps in (num_history - 1, num_future)
    )
    return history + 1, future


def check_scenes(
    scenes: DataSpec, expected: DataSpec, root: Path | str, owner: str = "the training scenes have"
) -> None:
    """Compare scenes with the training scenes of a model; unknown properties are equal. `owner` is the subject of `expected`.

    Raises TrajformerError: unit, period, history or horizon differ; has both values and the command that converts `root`, if the
    scenes are long enough for it.
    """
    pairs = {name: (getattr(scenes, name), getattr(expected, name)) for name in _COMPARED}
    known = {name: pair for name, pair in pairs.items() if None not in pair}
    differ = {
        n: (a, b)
        for n, (a, b) in known.items()
        if not (math.isclose(a, b, rel_tol=1e-6) if n == "period_s" else a == b)
    }
    if not differ:
        return
    values = " and ".join(f"{name} {value}" for name, (value, _) in differ.items())
    others = " and ".join(str(other) for _, other in differ.values())
    if "unit" in differ:
        remedy = f"use data in {expected.unit}, or a model for {scenes.unit}"
    elif not Path(root, MANIFEST).is_file():
        remedy = "use a model that was trained on scenes like these"
    elif _too_short(scenes, expected):
        remedy = "too short to be converted; prepare longer scenes"
    else:  # another period changes the numbers of steps, too
        changed = {
            name: other
            for name, (_, other) in (known if "period_s" in differ else differ).items()
            if name != "unit"
        }
        options = " ".join(f"--{name.replace('_', '-')} {other}" for name, other in changed.items())
        remedy = f"convert it: trajformer store resample {root} OUT {options}"
    raise TrajformerError(
        f"{root}: split '{scenes.split}': {values}, but {owner} {others}; {remedy}"
    )


def _too_short(scenes: DataSpec, expected: DataSpec) -> bool:
    if scenes.period_s is None or scenes.num_history is None or scenes.num_future is None:
        return False
    ratio = (expected.period_s or scenes.period_s) / scenes.period_s
    history, future = longest(ratio, scenes.num_history, scenes.num_future)
    return history < (expected.num_history or 0) or future < (expected.num_future or 0)


def warn_about_maps(with_map: int, total: int, expected: DataSpec, where: str) -> None:
    """Warn with the number of scenes without a map if the training scenes have maps, and the reverse."""
    if expected.has_map and with_map < total:
        warn(
            f"{where}: {total - with_map} of {total} scenes have no map, but the training scenes have maps"
        )
    if expected.has_map is False and with_map:
        warn(f"{where}: {with_map} of {total} scenes have a map, but the training scenes have none")


def warn(message: str) -> None:
    """Warn the user; the command line prints one line."""
    warnings.warn(message, TrajformerWarning, stacklevel=3)
