"""Several data sets on the command line of `trajformer train`: STORE, STORE:WEIGHT, or fields."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from trajformer.errors import TrajformerError
from trajformer.recipes.yaml_text import parse_yaml

OPTIONS = ("--data.train", "--data.val")


def joined(words: Sequence[str]) -> list[str]:
    """A command line in which repeated options --data.train and --data.val are one list each.

    A value is a store, a store with a weight (`STORE:0.5`), or the fields of a source as a mapping
    (`{store: STORE, split: train, weight: 0.5}`). An option that is given once and names a store
    is left unchanged. Raises TrajformerError: a value cannot be read.
    """
    rest: list[str] = []
    values: dict[str, list[str]] = {}
    position: dict[str, int] = {}  # of the first occurrence of an option in `rest`
    index = 0
    while index < len(words):
        name, has_value, value = words[index].partition("=")
        if name in OPTIONS and (has_value or index + 1 < len(words)):
            if not has_value:
                index += 1
                value = words[index]
            position.setdefault(name, len(rest))
            values.setdefault(name, []).append(value)
        else:
            rest.append(words[index])
        index += 1
    for name in sorted(position, key=lambda option: -position[option]):
        rest.insert(position[name], f"{name}={_option_value(name, values[name])}")
    return rest


def _option_value(name: str, values: list[str]) -> str:
    sources = []
    for value in values:
        if len(values) == 1 and value.startswith("["):
            return value  # the whole list
        sources.append(_source(name.removeprefix("--"), value))
    if len(sources) == 1 and sources[0] == {"store": values[0]}:
        return values[0]
    return json.dumps(sources)


def _source(field: str, value: str) -> dict[str, Any]:
    """The fields of a source; a folder of this whole name is a store, also with a colon in it."""
    if value.startswith("{"):
        fields = parse_yaml(value, field)
        if isinstance(fields, dict):
            return fields
        raise TrajformerError(f"{field}: {value}, expected STORE, STORE:WEIGHT or {{store: ...}}")
    store, colon, weight = value.rpartition(":")
    if colon and store and not Path(value).exists():
        try:
            return {"store": store, "weight": float(weight)}
        except ValueError:
            pass  # a colon in the name of a store, which is missing
    return {"store": value}


def plain_sources(value: Any) -> Any:
    """A parsed --data.train or --data.val as plain values for `from_plain`."""
    if isinstance(value, str) and value.startswith("["):
        value = parse_yaml(value, "list of sources")  # a field of a source has a wrong value
    if isinstance(value, list | tuple):
        return [one.as_dict() if isinstance(one, Namespace) else one for one in value]
    return value
