"""Command-line parser with one-line error messages."""

import re
import sys
from argparse import ArgumentError
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import docstring_parser
import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, get_loader, set_loader

from trajformer.errors import TrajformerError
from trajformer.recipes.yaml_text import parse_yaml

_load_yaml = get_loader("yaml")


def _load_safely(text: str) -> Any:
    parse_yaml(text, "value")
    return _load_yaml(text)


set_loader(
    "yaml", _load_safely, (yaml.YAMLError, TrajformerError)
)  # for recipes and values on the command line
Accelerator = Literal["auto", "cpu", "gpu"]


class Formatter(DefaultHelpFormatter):
    """Help texts that name types of values instead of Python classes."""

    def _expand_help(self, action: Any) -> str:
        names = {"<class 'Path'>": "path", "ClosedUnitInterval": "0 to 1"}
        names |= {f"Positive{kind}": f"{kind.lower()} > 0" for kind in ("Int", "Float")}
        names |= {f"NonNegative{kind}": f"{kind.lower()} >= 0" for kind in ("Int", "Float")}
        text = super()._expand_help(action)
        for name, words in names.items():
            text = text.replace(f"type: {name}", f"type: {words}")
        if action.nargs == "*":  # jsonargparse calls every positional argument required
            text = text.replace("(required, ", "(").replace(" (required)", "")
        return text


class Parser(ArgumentParser):
    """A parser with one-line error messages."""

    recipes: Sequence[str] = ()  # values of --config, named in error messages

    def error(self, message: str, *rest: Any) -> None:  # type: ignore[override]
        """Print the message and exit with status 2. The parser of a part of a recipe raises an error for the main parser."""
        if not self.exit_on_error:
            raise ArgumentError(None, message)
        # One line with the field and the reason, without the list of types that jsonargparse tried.
        line, pattern = (
            " ".join(str(message).split()),
            r"Does not validate against any.*?class_path '[^']*': (.*?) - Expected",
        )
        line = re.sub(pattern + r" a <class 'NoneType'>.*", r"\1", line)
        choices = r"Does not validate against any.*?Expected a typing.Literal\[([^\]]*)\].* Given value: (.*)"
        line = re.sub(choices, r"\2, expected one of \1", line)
        line = re.sub(r'Parser key "([^"]*)"', r"\1", re.sub(r"<class '([^']*)'>", r"\1", line))
        program = self.prog or "trajformer"
        recipe = f"recipe {', '.join(self.recipes)}; " if self.recipes else ""
        sys.stderr.write(f"{program}: {line} ({recipe}see {program} --help)\n")
        raise SystemExit(2)

    def parse_words(self, words: list[str]) -> Namespace:
        """The values of a command line; exits with status 2 if it is malformed."""
        self.recipes = [
            word for before, word in pairwise(words) if before == "--config" and "\n" not in word
        ]
        try:
            args = self.parse_args(words)
            if "" in words and Path() in [
                value for value in args.values() if isinstance(value, Path)
            ]:
                self.error("an empty path (an unset variable?)")
            return args
        except UnicodeDecodeError as error:
            self.error(f"not a text file: {error}")
            raise AssertionError from error  # `self.error` has raised already


def new_parser(text: str) -> Parser:
    """A parser of a command with this description."""
    return Parser(description=text, formatter_class=Formatter)


def add_accelerator(parser: Parser) -> None:
    """Add the option --accelerator."""
    parser.add_argument(
        "--accelerator",
        choices=get_args(Accelerator),
        default="auto",
        help="auto: a GPU if there is one",
    )


def add_overwrite(parser: Parser) -> None:
    """Add the option --overwrite of commands with output files."""
    parser.add_argument(
        "--overwrite", action="store_true", help="replace existing output files of the same kind"
    )


def add_fields(parser: Parser, kind: type[Any]) -> None:
    """Add an option for each field of a dataclass (--map-radius-m for `map_radius_m`) with help from its docstring."""
    help_of = {
        param.arg_name: param.description
        for param in docstring_parser.parse(kind.__doc__ or "").params
    }
    hints = get_type_hints(kind)
    group = parser.add_argument_group(f"options of {kind.__name__}")
    for item in fields(kind):
        option = "--" + item.name.replace("_", "-")
        group.add_argument(
            option, type=hints[item.name], default=item.default, help=help_of.get(item.name, "")
        )
