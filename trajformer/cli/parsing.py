"""How a command line is read: help and complaints in a user's words, a complaint always one line."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentError
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any, get_type_hints

import docstring_parser
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace


class Formatter(DefaultHelpFormatter):
    """Help that speaks of kinds of values, not of Python classes."""

    def _expand_help(self, action: Any) -> str:
        names = {"<class 'Path'>": "path", "PositiveInt": "int > 0", "NonNegativeInt": "int >= 0"}
        text = super()._expand_help(action)
        for name, words in names.items():
            text = text.replace(f"type: {name}", f"type: {words}")
        return text


class Parser(ArgumentParser):
    """A parser whose complaints are one line."""

    recipes: Sequence[str] = ()  # files given with --config, to be named in complaints

    def error(self, message: str, *rest: Any) -> None:  # type: ignore[override]
        """Print the complaint and where to read on, and exit with 2; in a part of a recipe, leave that to the whole."""
        if not self.exit_on_error:
            raise ArgumentError(None, message)
        program, line = self.prog or "trajformer", _plain(str(message))
        recipe = f"recipe {', '.join(self.recipes)}; " if self.recipes else ""
        sys.stderr.write(f"{program}: {line} ({recipe}see {program} --help)\n")
        raise SystemExit(2)

    def parse_words(self, words: list[str]) -> Namespace:
        """The values of a command line; exits with 2 where it is malformed."""
        self.recipes = [word for before, word in pairwise(words) if before == "--config"]
        try:
            return self.parse_args(words)
        except UnicodeDecodeError as error:
            self.error(f"not a text file: {error}")
            raise AssertionError from error  # `error` has left already


def new_parser(text: str) -> Parser:
    """A parser with our help, of a command described by `text`."""
    return Parser(description=text, formatter_class=Formatter)


def add_fields(parser: Parser, kind: type[Any]) -> None:
    """An option for every field of a dataclass (`map_radius_m` becomes --map-radius-m), explained by its docstring."""
    help_of = {param.arg_name: param.description for param in docstring_parser.parse(kind.__doc__ or "").params}
    hints = get_type_hints(kind)
    group = parser.add_argument_group(f"options of {kind.__name__}")
    for item in fields(kind):
        option = "--" + item.name.replace("_", "-")
        group.add_argument(option, type=hints[item.name], default=item.default, help=help_of.get(item.name, ""))


def _plain(message: str) -> str:
    """One line that names field and trouble, without jsonargparse's account of how it tried."""
    line = " ".join(message.split())
    line = re.sub(r"Does not validate against any.*?class_path '[^']*': (.*?) - Expected a <class 'NoneType'>.*", r"\1", line)
    return re.sub(r'Parser key "([^"]*)"', r"\1", re.sub(r"<class '([^']*)'>", r"\1", line))
