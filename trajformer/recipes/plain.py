"""Typed configs as plain values and back: the content of YAML recipes and of checkpoints.

A field with `metadata=one_of(CLASSES)` holds an instance of one of several config classes. Its
plain form is the name of the class with the plain form of the instance:
`{"mixture": {"beta": 1.0}}`.
"""

import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from trajformer.config import type_problem
from trajformer.errors import ConfigError, TrajformerError

_CHOICES = "choices"


def one_of(choices: Mapping[str, type[Any]]) -> Mapping[str, Any]:
    """Metadata of a dataclass field that holds an instance of one of several config classes."""
    return {_CHOICES: choices}


def to_plain(value: Any) -> Any:
    """A config as nested dicts, lists, numbers and strings.

    YAML and a safe checkpoint can hold these.
    """
    if is_dataclass(value) and not isinstance(value, type):
        plain = {}
        for item in fields(value):
            plain[item.name] = _field_to_plain(item, getattr(value, item.name))
        return plain
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.name  # as the command line takes it
    if isinstance(value, bool):
        return value
    for kind in (int, float, str):  # not their subclasses, which a safe checkpoint refuses
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Path):
        return str(value)
    return value


def _field_to_plain(item: Field, value: Any) -> Any:
    choices = item.metadata.get(_CHOICES)
    if choices is None or value is None:
        return to_plain(value)
    for name, kind in choices.items():
        if type(value) is kind:
            return {name: to_plain(value)}
    known = ", ".join(choices)
    raise TrajformerError(
        f"{item.name}: {type(value).__name__} is none of the known configs ({known})"
    )


def from_plain(kind: Any, value: Any, where: str = "", default: Any = None) -> Any:
    """The inverse of `to_plain` for a type `kind`, a dataclass for example, checked field by field.

    Nothing is imported by name. `where` is the path of the value in a recipe. Fields that are not
    given have the values of `default`, or the class's own. In a dataclass inside a dataclass they
    have the values of the outer one's default, as on the command line. Raises TrajformerError with
    the field: an unknown one, or a value of the wrong type or outside its range.
    """
    if get_origin(kind) in (Union, UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        options = [option for option in get_args(kind) if option is not type(None)]
        kind = options[0]
        if isinstance(value, list | tuple):
            kind = next((option for option in options if get_origin(option) is tuple), kind)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return _leaf(kind, value, where)
    if isinstance(value, kind):
        return value
    return _dataclass_from_plain(kind, value, where, default)


def _dataclass_from_plain(kind: Any, value: Any, where: str, default: Any) -> Any:
    path_of_value = where or "recipe"
    if not isinstance(value, Mapping):
        expected = f"expected fields of {kind.__name__}"
        raise TrajformerError(f"{path_of_value}: {expected}, found {reprlib.repr(value)}")
    hints = get_type_hints(kind)
    known = {item.name: item for item in fields(kind)}
    unknown = set(value) - known.keys()
    if unknown:
        names = ", ".join(known)
        raise TrajformerError(f"{path_of_value}: unknown field '{min(unknown)}' (known: {names})")

    values = {}
    if isinstance(default, kind):
        values = {name: getattr(default, name) for name in known}
    for name, item in known.items():
        if name not in value and name not in values and _is_required(item):
            raise TrajformerError(f"{path_of_value}: no field '{name}'")

    for name, inner in value.items():
        path = f"{where}.{name}" if where else name
        choices = known[name].metadata.get(_CHOICES)
        if choices is not None:
            required = _is_required(known[name])
            values[name] = _choice_from_plain(choices, inner, path, required)
        else:
            inner_default = values.get(name, _default(known[name]))
            values[name] = from_plain(hints[name], inner, path, inner_default)
    try:
        return kind(**values)
    except ConfigError as error:
        raise TrajformerError(f"{where}.{error}" if where else str(error)) from error


def _is_required(item: Field) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _default(item: Field[Any]) -> Any:
    """The default of a field, None if it is required."""
    if item.default_factory is not MISSING:
        return item.default_factory()
    return None if item.default is MISSING else item.default


def _choice_from_plain(
    choices: Mapping[str, type[Any]], value: Any, where: str, required: bool
) -> Any:
    """The config of a field with `one_of`, None if it is not given and not required."""
    if isinstance(value, tuple(choices.values())):
        return value
    known = ", ".join(choices)
    if value is not None and not isinstance(value, Mapping):
        expected = f"expected one of {known} with its fields"
        raise TrajformerError(f"{where}: {expected}, found {reprlib.repr(value)}")
    given = {name: item for name, item in (value or {}).items() if item is not None}
    if not given and not required:
        return None
    if len(given) != 1:
        names = ", ".join(given) or "none"
        raise TrajformerError(f"{where}: give exactly one of {known}; found {names}")
    [(name, item)] = given.items()
    if name not in choices:
        raise TrajformerError(f"{where}: unknown name '{name}' (known: {known})")
    return from_plain(choices[name], item, f"{where}.{name}")


def schema(kind: type[Any]) -> type[Any]:
    """The dataclass for the command-line parser.

    Every `one_of` field is replaced by a dataclass of optional configs.
    """
    hints = get_type_hints(kind)
    changed: list[tuple[str, Any, Any]] = []
    for item in fields(kind):
        choices = item.metadata.get(_CHOICES)
        if choices is None:
            same = field(default=item.default, default_factory=item.default_factory)
            changed.append((item.name, hints[item.name], same))
            continue
        options = [(name, config | None, field(default=None)) for name, config in choices.items()]
        nested = make_dataclass(f"{kind.__name__}_{item.name}", options, frozen=True)
        default = field() if _is_required(item) else field(default_factory=nested)
        changed.append((item.name, nested, default))
    made = make_dataclass(kind.__name__, changed, frozen=True)
    made.__doc__ = kind.__doc__
    return made


def _leaf(kind: Any, value: Any, where: str) -> Any:
    """A number, text, member of an Enum, literal or tuple of the type `kind`."""
    origin = get_origin(kind)
    if origin is Literal and value in get_args(kind):
        return value
    if origin is tuple and isinstance(value, list | tuple):
        inner = get_args(kind)
        if inner[-1] is Ellipsis:
            inner = inner[:1] * len(value)
        if len(inner) == len(value):
            items = []
            for index, (inner_kind, item) in enumerate(zip(inner, value, strict=True)):
                items.append(from_plain(inner_kind, item, f"{where}[{index}]"))
            return tuple(items)
    if isinstance(kind, type) and issubclass(kind, Enum):
        for member in kind:
            if value in (member, member.name, member.value):
                return member
    if isinstance(kind, type) and _has_type(value, kind):
        return kind(value)
    raise TrajformerError(f"{where}: {type_problem(kind, value)}")


def _has_type(value: Any, kind: type[Any]) -> bool:
    """Whether a value has a type; a whole number is also a float, and a bool is no number."""
    if isinstance(value, bool):
        return kind is bool
    if kind is float and isinstance(value, int):
        return True
    return isinstance(value, kind)
