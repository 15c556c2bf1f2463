"""Typed configs as plain values, and back: what YAML and safe checkpoints can hold."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from trajformer.errors import TrajformerError


def to_plain(value: Any) -> Any:
    """A config as nested dicts, lists, numbers and strings, as YAML and a safe checkpoint can hold it."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
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


def from_plain(kind: Any, value: Any, where: str = "config") -> Any:
    """The inverse of `to_plain` for a dataclass `kind`, checked field by field; nothing is imported by name.

    Raises:
        TrajformerError: an unknown field or a value of the wrong type; names the field.
    """
    if get_origin(kind) in (Union, UnionType):
        if value is None and type(None) in get_args(kind):
            return None
        kind = next(option for option in get_args(kind) if option is not type(None))
    if isinstance(kind, type) and is_dataclass(kind):
        if not isinstance(value, dict):
            raise TrajformerError(f"{where}: expected fields of {kind.__name__}, found {value!r}")
        hints, known = get_type_hints(kind), [f.name for f in fields(kind)]
        if unknown := set(value) - set(known):
            raise TrajformerError(f"{where}: unknown field '{sorted(unknown)[0]}' (known: {', '.join(known)})")
        if missing := [f.name for f in fields(kind) if f.name not in value and _is_required(f)]:
            raise TrajformerError(f"{where}: no field '{missing[0]}'")
        return kind(**{name: from_plain(hints[name], item, f"{where}.{name}") for name, item in value.items()})
    return _leaf(kind, value, where)


def _is_required(item: Field) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _leaf(kind: Any, value: Any, where: str) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, list | tuple):
        inner = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(inner) == len(value):
            return tuple(from_plain(of, item, f"{where}[{i}]") for i, (of, item) in enumerate(zip(inner, value, strict=True)))
    if origin is Literal and value in get_args(kind):
        return value
    if isinstance(kind, type) and issubclass(kind, Enum):
        for member in kind:
            if value in (member.name, member.value):
                return member
    number = kind is float and isinstance(value, int) and not isinstance(value, bool)
    if isinstance(kind, type) and (number or (isinstance(value, kind) and not (kind is int and isinstance(value, bool)))):
        return kind(value)
    raise TrajformerError(f"{where}: expected {kind}, found {value!r}")
