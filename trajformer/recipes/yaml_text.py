"""YAML without the parts that hide mistakes or expand to any size.

Duplicate keys, aliases, foreign tags and octal numbers are errors.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from trajformer.errors import TrajformerError

MAX_BYTES = 50_000  # over ten times the largest recipe; the parser needs half a second


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise _problem("aliases are not supported", self.peek_event())
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        values = super().construct_mapping(node, deep)
        if len(values) < len(node.value):
            keys = [str(key.value) for key, _ in node.value]
            repeated = next((key for key in keys if keys.count(key) > 1), "a key")
            raise _problem(f"{repeated[:40]} occurs twice in this block", node)
        return values

    def construct_yaml_int(self, node: Any) -> int:
        if re.match(r"[-+]?0[0-7_]|.*:", node.value):
            raise _problem(f"{node.value[:40]} is not a decimal number", node)
        value: int = super().construct_yaml_int(node)
        if abs(value) >= 2**64:  # Python refuses to print the largest ones
            raise _problem("a whole number of more than 64 bits", node)
        return value

    def construct_yaml_float(self, node: Any) -> float:
        if ":" in node.value:
            raise _problem(f"{node.value[:40]} is not a decimal number", node)
        value: float = super().construct_yaml_float(node)
        return value


def _problem(text: str, position: Any) -> yaml.MarkedYAMLError:
    """An error at the position of an event or node."""
    return yaml.MarkedYAMLError(problem=text, problem_mark=position.start_mark)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
_Loader.add_implicit_resolver(  # 1e-3, which YAML 1.1 takes for text
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+"), list("-+0123456789")
)


def parse_yaml(text: str, where: str | Path) -> Any:
    """The plain values of a YAML text of up to `MAX_BYTES` characters.

    Raises TrajformerError: the text cannot be used; the message starts with `where`.
    """
    try:
        if len(text) > MAX_BYTES:
            raise ValueError(f"{len(text)} characters, expected at most {MAX_BYTES}")
        return yaml.load(text, _Loader)  # a subclass of the safe loader
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        reason = str(error)
        if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
            reason = f"line {error.problem_mark.line + 1}: {error.problem}"
        line = " ".join(reason.split())
        raise TrajformerError(f"{where}: not readable as YAML: {line}") from error


def read_yaml(path: Path) -> Any:
    """The plain values of a YAML file.

    Raises TrajformerError: as `parse_yaml`, or the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TrajformerError(f"{path}: not a text file: {reason}") from error
    return parse_yaml(text, path)
