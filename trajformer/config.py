"""Base class of config dataclasses with checked fields, and the entry points of other packages."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from trajformer.errors import ConfigError, TrajformerError

MAX_TEXT = 4_096  # characters
_SMALLEST = {int: 1, float: 1e-12}  # of numbers that must be more than 0
_LARGEST = {int: 10_000, float: 1e6}  # unless the last word of the name is one of these
_LARGEST_BY_NAME = {
    "layers": 200,
    "epochs": 1_000_000,
    "every": 1_000_000,
    "seed": 2**32 - 1,
}  # seeds of NumPy


@dataclass(frozen=True)
class Config:
    """Base class of config dataclasses that checks type and range of all fields, including the items of tuples.

    Numbers are at least 0, and whole numbers at most 10,000. A text that is not empty by default must not be empty. A subclass
    names fields with other ranges as class arguments, in addition to the fields of its base class: `class SizeConfig(Config,
    positive=("width",), shares=("dropout",), limits={"tokens": (1, 1_000_000)})`. Raises ConfigError: a value is not finite,
    outside its range, or of another type than its annotation.
    """

    positive: ClassVar[tuple[str, ...]] = ()  # fields that must be more than 0
    shares: ClassVar[tuple[str, ...]] = ()  # fields that must be at most 1
    limits: ClassVar[dict[str, tuple[float, float]]] = {}  # smallest and largest value

    def __init_subclass__(
        cls,
        positive: tuple[str, ...] = (),
        shares: tuple[str, ...] = (),
        limits: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    ) -> None:
        cls.positive, cls.shares = (*cls.positive, *positive), (*cls.shares, *shares)
        cls.limits = {**cls.limits, **limits}

    def __post_init__(self) -> None:
        kind: Any = type(self)
        hints = _hints(kind)
        for item in fields(self):
            value = getattr(self, item.name)
            if (
                value == "" or (value == () and item.name in self.positive)
            ) and item.default != value:
                raise ConfigError(item.name, "empty")
            if not _fits(value, hints[item.name]):
                raise ConfigError(item.name, type_problem(hints[item.name], value))
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, str) and not isinstance(part, Enum):
                    if "\0" in part or len(part) > MAX_TEXT:
                        raise ConfigError(
                            item.name,
                            f"{part[:40]!r}, expected up to {MAX_TEXT} characters without zero bytes",
                        )
                elif isinstance(part, int | float) and not isinstance(part, bool | Enum):
                    self._check_number(
                        item.name, part, float if "float" in str(hints[item.name]) else int
                    )

    def _check_number(self, name: str, number: float, kind: type[Any]) -> None:
        smallest = _SMALLEST[kind] if name in self.positive else 0
        largest = (
            1
            if name in self.shares
            else _LARGEST_BY_NAME.get(name.rpartition("_")[2], _LARGEST[kind])
        )
        low, high = self.limits.get(name, (smallest, largest))
        if not low <= number <= high:
            raise ConfigError(name, f"{number}, expected {low} to {high}")


_hints = cache(get_type_hints)


def type_problem(kind: Any, value: Any) -> str:
    """Message for a value that has not the type of an annotation."""
    expected = (
        " or ".join(map(str, get_args(kind)))
        if get_origin(kind) is Literal
        else getattr(kind, "__name__", kind)
    )
    return f"expected {expected}, found {reprlib.repr(value)}"


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value has the type of an annotation; `Any` means a config, and a whole number is also a float."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        return value in inner
    if origin is Any:
        return value is None or is_dataclass(value)
    if origin is tuple and isinstance(value, tuple):
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(kinds) == len(value) and all(map(_fits, value, kinds))
    if isinstance(value, bool):
        return origin is bool
    return isinstance(value, int | float if origin is float else origin)


def load_plugins(group: str) -> dict[str, Any]:
    """The entry points of a group by name (TrajformerError: one cannot be imported)."""
    loaded = {}
    for plugin in entry_points(group=group):
        try:
            loaded[plugin.name] = plugin.load()
        except Exception as error:
            package = plugin.dist.name if plugin.dist else "unknown"
            reason = f"{plugin.value} of the package {package} cannot be imported: {type(error).__name__}: {error}"
            raise TrajformerError(f"entry point {plugin.name} of {group}: {reason}") from error
    return loaded
