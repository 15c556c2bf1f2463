"""Base class of config dataclasses with checked fields, and the entry points of other packages."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from importlib.metadata import entry_points
from numbers import Integral, Real
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from trajformer.errors import ConfigError, TrajformerError

MAX_TEXT = 4_096  # characters
_MIN_POSITIVE = {int: 1, float: 1e-12}  # of fields that must be more than 0
_MAX_NUMBER = {int: 10_000, float: 1e6}
# Fields that end in one of these words have another maximum.
_MAX_BY_LAST_WORD = {
    "layers": 200,
    "epochs": 1_000_000,
    "every": 1_000_000,
    "seed": 2**32 - 1,  # seeds of NumPy
}


@dataclass(frozen=True)
class Config:
    """Base class of config dataclasses that checks type and range of all fields.

    Numbers are at least 0, and whole numbers at most 10,000. A text that is not empty by default
    must not be empty. All items of a tuple are checked. A subclass names fields with other ranges
    as class arguments, in addition to the fields of its base class::

        class SizeConfig(
            Config, positive=("width",), fractions=("dropout",), limits={"tokens": (1, 1_000_000)}
        )

    Raises ConfigError: a value is not finite, outside its range, or of another type than its
    annotation.
    """

    positive: ClassVar[tuple[str, ...]] = ()  # fields that must be more than 0
    fractions: ClassVar[tuple[str, ...]] = ()  # fields that must be at most 1
    limits: ClassVar[dict[str, tuple[float, float]]] = {}  # minimum and maximum of a field

    def __init_subclass__(
        cls,
        positive: tuple[str, ...] = (),
        fractions: tuple[str, ...] = (),
        limits: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    ) -> None:
        cls.positive = cls.positive + positive
        cls.fractions = cls.fractions + fractions
        cls.limits = {**cls.limits, **limits}

    def __post_init__(self) -> None:
        config_class: Any = type(self)
        hints = _type_hints(config_class)
        for field in fields(self):
            name = field.name
            value = _plain_number(getattr(self, name))
            object.__setattr__(self, name, value)
            may_be_empty = field.default == value
            if value == "" and not may_be_empty:
                raise ConfigError(name, "empty")
            if value == () and name in self.positive and not may_be_empty:
                raise ConfigError(name, "empty")
            if not _has_type(value, hints[name]):
                raise ConfigError(name, type_problem(hints[name], value))
            if isinstance(value, tuple):
                for item in value:
                    self._check_item(name, item, hints[name])
            else:
                self._check_item(name, value, hints[name])

    def _check_item(self, name: str, item: Any, hint: Any) -> None:
        """Check the length of a text and the range of a number; other values have no range."""
        if isinstance(item, bool | Enum):
            return
        if isinstance(item, str):
            if "\0" in item or len(item) > MAX_TEXT:
                expected = f"expected up to {MAX_TEXT} characters without zero bytes"
                raise ConfigError(name, f"{item[:40]!r}, {expected}")
        elif isinstance(item, int | float):
            minimum, maximum = self._range(name, hint)
            if not minimum <= item <= maximum:  # also for NaN
                raise ConfigError(name, f"{item}, expected {minimum} to {maximum}")

    def _range(self, name: str, hint: Any) -> tuple[float, float]:
        """The minimum and the maximum of a field with numbers."""
        if name in self.limits:
            return self.limits[name]
        kind: type[Any] = int
        if "float" in str(hint):
            kind = float
        minimum: float = 0
        if name in self.positive:
            minimum = _MIN_POSITIVE[kind]
        if name in self.fractions:
            return minimum, 1
        last_word = name.rpartition("_")[2]
        return minimum, _MAX_BY_LAST_WORD.get(last_word, _MAX_NUMBER[kind])


def _plain_number(value: Any) -> Any:
    """A number of NumPy as a plain one; other values unchanged."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return value


@cache
def _type_hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def type_problem(hint: Any, value: Any) -> str:
    """Message for a value that does not have the type of an annotation."""
    if get_origin(hint) is Literal:
        expected = " or ".join(str(choice) for choice in get_args(hint))
    else:
        expected = getattr(hint, "__name__", hint)
    return f"expected {expected}, found {reprlib.repr(value)}"


def _has_type(value: Any, hint: Any) -> bool:
    """Whether a value has the type of an annotation.

    `Any` means a config or None, and a whole number is also a float.
    """
    origin = get_origin(hint) or hint
    arguments = get_args(hint)
    if origin in (Union, UnionType):
        return any(_has_type(value, option) for option in arguments)
    if origin is Literal:
        return value in arguments
    if origin is Any:
        return value is None or is_dataclass(value)
    if origin is tuple and isinstance(value, tuple):
        item_hints = arguments
        if arguments[-1] is Ellipsis:
            item_hints = arguments[:1] * len(value)
        return len(item_hints) == len(value) and all(map(_has_type, value, item_hints))
    if isinstance(value, bool):
        return origin is bool
    if origin is float:
        return isinstance(value, int | float)
    return isinstance(value, origin)


def load_plugins(group: str) -> dict[str, Any]:
    """The entry points of a group by name (TrajformerError: one cannot be imported)."""
    loaded = {}
    for plugin in entry_points(group=group):
        try:
            loaded[plugin.name] = plugin.load()
        except Exception as error:
            package = plugin.dist.name if plugin.dist else "unknown"
            cause = f"{type(error).__name__}: {error}"
            raise TrajformerError(
                f"entry point {plugin.name} of {group}: {plugin.value} of the package {package} "
                f"cannot be imported: {cause}"
            ) from error
    return loaded
