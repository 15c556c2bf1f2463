"""Command-line parser with one-line error messages, and options that several commands have."""

import re
import textwrap
from argparse import SUPPRESS, ArgumentError, RawDescriptionHelpFormatter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_type_hints

import docstring_parser
import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, get_loader, set_loader
from jsonargparse.typing import restricted_number_type

from trajformer.errors import TrajformerError, one_line
from trajformer.recipes.yaml_text import parse_yaml
from trajformer.scenes.notices import write_line

Accelerator = Literal["auto", "cpu", "gpu"]
# Whole numbers with a maximum: each adds a process, a scene or a row in memory.
Workers = restricted_number_type("1 to 256", int, [(">", 0), ("<=", 256)])
BatchSize = restricted_number_type("1 to 4096", int, [(">", 0), ("<=", 4096)])
Beam = restricted_number_type("1 to 100", int, [(">", 0), ("<=", 100)])
TYPE_NAMES = {  # in help texts, instead of Python classes
    "<class 'Path'>": "path",
    "ClosedUnitInterval": "0 to 1",
    "PositiveInt": "int > 0",
    "PositiveFloat": "float > 0",
    "NonNegativeInt": "int >= 0",
    "NonNegativeFloat": "float >= 0",
}
ERROR_REWRITES = (  # regular expressions and replacements, in this order
    # jsonargparse lists all types that it tried for a field; the reason is enough.
    (
        r"Does not validate against any.*?class_path '[^']*': (.*?) - Expected"
        r" a <class 'NoneType'>.*",
        r"\1",
    ),
    (
        r"Does not validate against any.*?Expected a typing.Literal\[([^\]]*)\]"
        r".* Given value: (.*)",
        r"\2, expected one of \1",
    ),
    (r"<class '([^']*)'>", r"\1"),
    (r'Parser key "([^"]*)"', r"\1"),
)

WIDTH = 78  # of descriptions, in characters

_load_yaml = get_loader("yaml")


def _load_safely(text: str) -> Any:
    """Load a YAML text that follows the rules of `parse_yaml`."""
    parse_yaml(text, "value")
    return _load_yaml(text)


# for recipes and values on the command line
set_loader("yaml", _load_safely, (yaml.YAMLError, TrajformerError))


class Formatter(DefaultHelpFormatter):
    """Help texts that name types of values instead of Python classes."""

    def _expand_help(self, action: Any) -> str:
        text = super()._expand_help(action)
        for name, words in TYPE_NAMES.items():
            text = text.replace(f"type: {name}", f"type: {words}")
        text = re.sub(r", default: null\)", ")", text)
        text = re.sub(r" ?\(default: (null|False|\[\])\)", "", text)
        if action.nargs == "*":  # jsonargparse calls every positional argument required
            text = text.replace("(required, ", "(").replace(" (required)", "")
        return text


class Parser(ArgumentParser):
    """A parser with one-line error messages."""

    def parse_words(self, words: list[str]) -> Namespace:
        """The values of a command line; exits with status 2 if it is malformed."""
        try:
            args = self.parse_args(words)
        except UnicodeDecodeError as error:
            self.error(f"not a text file: {error}")
        paths = [value for value in args.values() if isinstance(value, Path)]
        if "" in words and Path() in paths:
            self.error("an empty path (an unset variable?)")
        return args

    def error(self, message: str, *rest: Any) -> NoReturn:
        """Print the field and the reason in one line, and exit with status 2.

        The parser of a part of a recipe raises an ArgumentError for the main parser instead.
        """
        if not self.exit_on_error:
            raise ArgumentError(None, message)
        line = " ".join(str(message).split())
        for pattern, replacement in ERROR_REWRITES:
            line = re.sub(pattern, replacement, line)
        write_line(f"{self.prog}: {one_line(line)} ({self.hint()})")
        raise SystemExit(2)

    def hint(self) -> str:
        """The end of error messages."""
        return f"see {self.prog} --help"


def new_parser(text: str) -> Parser:
    """A parser of a command with this description."""
    return Parser(description=text, formatter_class=Formatter)


class OverviewFormatter(Formatter, RawDescriptionHelpFormatter):
    """Help texts with a description in lines."""


def new_overview(text: str, dest: str, summaries: Mapping[str, str]) -> Parser:
    """The parser of a command without one of its variants: it prints the list of variants.

    `dest` is the name of the argument that selects a variant, and `summaries` has one line for
    each.
    """
    width = max(map(len, summaries)) + 2
    lines = [f"  {name:<{width}}{summary}" for name, summary in summaries.items()]
    description = "\n".join([textwrap.fill(text, WIDTH), "", *lines])
    parser = Parser(description=description, formatter_class=OverviewFormatter)
    parser.add_argument(
        dest, choices=tuple(summaries), metavar=dest.upper(), help="one of the names above"
    )
    return parser


def add_variant(parser: Parser, dest: str, variant: str) -> None:
    """Add the variant of a command to the parsed values. The first word has selected it."""
    parser.add_argument(f"--{dest}", choices=(variant,), default=variant, help=SUPPRESS)


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
        "--overwrite",
        action="store_true",
        help="replace output files that this command wrote before",
    )


def add_workers(parser: Parser) -> None:
    """Add the option --workers of commands with several processes."""
    parser.add_argument(
        "--workers", type=Workers, default=2, help="number of local processes, up to four per core"
    )


def add_fields(parser: Parser, kind: type[Any]) -> None:
    """Add an option for each field of a dataclass, with help from its docstring.

    The option of `map_radius_m` is --map-radius-m. That of a bool may have no value, which is true.
    """
    documented = docstring_parser.parse(kind.__doc__ or "").params
    help_of = {param.arg_name: param.description for param in documented}
    types = get_type_hints(kind)
    group = parser.add_argument_group(f"options of {kind.__name__}")
    for item in fields(kind):
        flag: dict[str, Any] = {}
        if types[item.name] is bool:
            flag = {"nargs": "?", "const": True}
        group.add_argument(
            "--" + item.name.replace("_", "-"),
            type=types[item.name],
            default=item.default,
            help=help_of.get(item.name, ""),
            **flag,
        )
