"""Typed configs as plain values and back: the content of YAML recipes and of checkpoints.

A field with `metadata=one_of(CLASSES)` holds an instance of one of several config classes. Its plain form is the name of the
class with the plain form of the instance: `{"mixture": {"beta": 1.0}}`.
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
    """Metadata of a dataclass field that holds an instance of one of several config classes, by name."""
    return {_CHOICES: choices}


def to_plain(value: Any) -> Any:
    """A config as nested dicts, lists, numbers and strings, which YAML and a safe checkpoint can hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            item.name: _field_to_plain(item, getattr(value, item.name)) for item in fields(value)
        }
    if isinstance(value, dict):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, Enum):
        return value.name  # as the command line takes it
    for kind in (int, float, str):  # not their subclasses, which a safe checkpoint refuses
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind(value)
    return str(value) if isinstance(value, Path) else value


def _field_to_plain(item: Field, value: Any) -> Any:
    choices = item.metadata.get(_CHOICES)
    if choices is None or value is None:
        return to_plain(value)
    names = [name for name, kind in choices.items() if type(value) is kind]
    if not names:
        raise TrajformerError(
            f"{item.name}: {type(value).__name__} is none of the known configs ({', '.join(choices)})"
        )
    return {names[0]: to_plain(value)}


def from_plain(kind: Any, value: Any, where: str = "", default: Any = None) -> Any:
    """The inverse of `to_plain` for a type `kind`, a dataclass for example, checked field by field; nothing is imported by name.

    `where` is the path of the value in a recipe. Fields that are not given have the values of `default`, or the class's own. In a
    dataclass inside a dataclass they have the values of the outer one's default, as on the command line. Raises TrajformerError
    with the field: an unknown one, or a value of the wrong type or outside its range.
    """
    if get_origin(kind) in (Union, UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        kind = next(option for option in get_args(kind) if option is not type(None))
    if isinstance(kind, type) and is_dataclass(kind):
        return (
            value if isinstance(value, kind) else _dataclass_from_plain(kind, value, where, default)
        )
    return _leaf(kind, value, where)


def _dataclass_from_plain(kind: Any, value: Any, where: str, default: Any) -> Any:
    if not isinstance(value, Mapping):
        raise TrajformerError(
            f"{where or 'recipe'}: expected fields of {kind.__name__}, found {reprlib.repr(value)}"
        )
    hints, known = get_type_hints(kind), {item.name: item for item in fields(kind)}
    if unknown := set(value) - known.keys():
        raise TrajformerError(
            f"{where or 'recipe'}: unknown field '{min(unknown)}' (known: {', '.join(known)})"
        )
    values = {name: getattr(default, name) for name in known} if isinstance(default, kind) else {}
    if missing := [
        name
        for name, item in known.items()
        if name not in value and name not in values and _is_required(item)
    ]:
        raise TrajformerError(f"{where or 'recipe'}: no field '{missing[0]}'")
    for name, item in value.items():
        path = f"{where}.{name}" if where else name
        choices = known[name].metadata.get(_CHOICES)
        if choices is None:
            values[name] = from_plain(
                hints[name], item, path, values.get(name, _default(known[name]))
            )
        else:
            values[name] = _choice_from_plain(
                choices, item, path, required=_is_required(known[name])
            )
    try:
        return kind(**values)
    except ConfigError as error:
        raise TrajformerError(f"{where}.{error}" if where else str(error)) from error


def _default(item: Field[Any]) -> Any:
    """The default of a field, None if it is required."""
    if item.default_factory is not MISSING:
        return item.default_factory()
    return None if item.default is MISSING else item.default


def _choice_from_plain(
    choices: Mapping[str, type[Any]], value: Any, where: str, required: bool
) -> Any:
    if isinstance(value, tuple(choices.values())):
        return value
    if value is not None and not isinstance(value, Mapping):
        raise TrajformerError(
            f"{where}: expected one of {', '.join(choices)} with its fields, found {reprlib.repr(value)}"
        )
    given = {name: item for name, item in (value or {}).items() if item is not None}
    if not given and not required:
        return None
    if len(given) != 1:
        raise TrajformerError(
            f"{where}: give exactly one of {', '.join(choices)}; found {', '.join(given) or 'none'}"
        )
    [(name, item)] = given.items()
    if name not in choices:
        raise TrajformerError(f"{where}: unknown name '{name}' (known: {', '.join(choices)})")
    return from_plain(choices[name], item, f"{where}.{name}")


def schema(kind: type[Any]) -> type[Any]:
    """The dataclass with every `one_of` field replaced by a dataclass of optional configs, for the command-line parser."""
    hints, changed = get_type_hints(kind), []
    for item in fields(kind):
        choices = item.metadata.get(_CHOICES)
        if choices is None:
            changed.append(
                (
                    item.name,
                    hints[item.name],
                    field(default=item.default, default_factory=item.default_factory),
                )
            )
            continue
        options = [(name, config | None, field(default=None)) for name, config in choices.items()]
        nested = make_dataclass(f"{kind.__name__}_{item.name}", options, frozen=True)
        default = field() if _is_required(item) else field(default_factory=nested)
        changed.append((item.name, nested, default))
    made = make_dataclass(kind.__name__, changed, frozen=True)
    made.__doc__ = kind.__doc__
    return made


def _is_required(item: Field) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _leaf(kind: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, list | tuple):
        inner = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(inner) == len(value):
            return tuple(
                from_plain(of, item, f"{where}[{i}]")
                for i, (of, item) in enumerate(zip(inner, value, strict=True))
            )
    if origin is Literal and value in get_args(kind):
        return value
    if isinstance(kind, type) and issubclass(kind, Enum):
        for member in kind:
            if value in (member, member.name, member.value):
                return member
    number = kind is float and isinstance(value, int) and not isinstance(value, bool)
    if isinstance(kind, type) and (
        number or (isinstance(value, kind) and not (kind is int and isinstance(value, bool)))
    ):
        return kind(value)
    raise TrajformerError(f"{where}: {type_problem(kind, value)}")
