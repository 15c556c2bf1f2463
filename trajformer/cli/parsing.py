"""Command-line parser with one-line error messages, and options that several commands have.

It is the parser of the standard library. `trajformer train`, whose options are the fields of a
recipe, has another one in `recipe_parsing`.
"""

import math
import textwrap
from argparse import (
    SUPPRESS,
    Action,
    ArgumentParser,
    ArgumentTypeError,
    HelpFormatter,
    Namespace,
    RawDescriptionHelpFormatter,
)
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

from trajformer.errors import TrajformerError, one_line
from trajformer.scenes.notices import write_line

Accelerator = Literal["auto", "cpu", "gpu"]
Kind = type[int] | type[float]
WIDTH = 78  # of descriptions, in characters
EMPTY_PATH = "an empty path (an unset variable?)"
BOOLEANS = {"true": True, "false": False}
FIELD_TYPES = (bool, int, float, str, Path)  # of a field that becomes an option, and Literal


class Number:
    """The type of an option: a number from `minimum` to `maximum`, by a name for help texts."""

    def __init__(self, name: str, kind: Kind, minimum: float, maximum: float = math.inf) -> None:
        self.__name__ = name  # where argparse looks for the name of a type
        self.kind = kind
        self.minimum = minimum
        self.maximum = maximum

    def __call__(self, text: str) -> float:
        """The number in a word of a command line (ArgumentTypeError: it is none of these)."""
        try:
            number = self.kind(text)
        except ValueError:
            number = math.nan  # which is not in any range
        if not self.minimum <= number <= self.maximum:
            raise ArgumentTypeError(f"{text!r}, expected {self.__name__}")
        return number


SMALLEST = math.ulp(0.0)  # of all numbers above 0
PositiveInt = Number("int > 0", int, 1)
NonNegativeInt = Number("int >= 0", int, 0)
PositiveFloat = Number("float > 0", float, SMALLEST)
NonNegativeFloat = Number("float >= 0", float, 0)
UnitInterval = Number("0 to 1", float, 0, 1)
# Whole numbers with a maximum: each adds a process, a scene or a row in memory.
Workers = Number("1 to 256", int, 1, 256)
BatchSize = Number("1 to 4096", int, 1, 4096)
Beam = Number("1 to 100", int, 1, 100)


def _path(text: str) -> Path:
    if not text:
        raise ArgumentTypeError(EMPTY_PATH)
    return Path(text)


def _boolean(text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise ArgumentTypeError(f"{text!r}, expected true or false")
    return BOOLEANS[text.lower()]


class Formatter(HelpFormatter):
    """Help texts that end with the type and the default of an option: `(type: int, default: 10)`.

    Flags without a value, and defaults that say nothing, have none.
    """

    def _get_help_string(self, action: Action) -> str:
        details = []
        if action.required and action.nargs != "*":  # argparse calls these required
            details.append("required")
        if action.type is not None:
            kind: Any = action.type
            name = "path" if kind is Path else kind.__name__
            details.append(f"type: {name}")
        if action.option_strings and action.nargs != 0 and action.default not in (None, "", []):
            details.append("default: %(default)s")
        text = action.help or ""
        return f"{text} ({', '.join(details)})" if details else text


class Parser(ArgumentParser):
    """A parser with one-line error messages. A path is not empty, and a bool is true or false."""

    def __init__(self, text: str, formatter: type[HelpFormatter] = Formatter) -> None:
        super().__init__(description=text, formatter_class=formatter)
        self.register("type", Path, _path)
        self.register("type", bool, _boolean)

    def parse_words(self, words: list[str]) -> Namespace:
        """The values of a command line; exits with status 2 if it is malformed."""
        for word in words:
            option, _, value = word.partition("=")
            # Python 3.11 would take it for no value, although the option needs one.
            if value == "--" and option.startswith("--"):
                self.error(f"argument {option}: '--' is not a value")
        return self.parse_args(words)

    def error(self, message: str) -> NoReturn:
        """Print the option and the reason in one line, and exit with status 2."""
        refuse(self.prog, message)


def refuse(program: str, message: str, context: str = "") -> NoReturn:
    """Print why a command line is malformed and where to look, and exit with status 2."""
    write_line(f"{program}: {one_line(message)} ({context}see {program} --help)")
    raise SystemExit(2)


def new_parser(text: str) -> Parser:
    """A parser of a command with this description."""
    return Parser(text)


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
    parser = Parser(description, OverviewFormatter)
    parser.add_argument(
        dest, choices=tuple(summaries), metavar=dest.upper(), help="one of the names above"
    )
    return parser


def add_variant(parser: ArgumentParser, dest: str, variant: str) -> None:
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
    Raises TrajformerError: a field has a type for which there is no option.
    """
    import docstring_parser

    documented = docstring_parser.parse(kind.__doc__ or "").params
    # argparse would take a percent sign for the name of a value
    help_of = {one.arg_name: (one.description or "").replace("%", "%%") for one in documented}
    types = get_type_hints(kind)
    group = parser.add_argument_group(f"options of {kind.__name__}")
    for item in fields(kind):
        value_type = types[item.name]
        values: dict[str, Any] = {"type": value_type}
        if get_origin(value_type) is Literal:
            values = {"choices": get_args(value_type)}
        elif value_type is bool:
            values |= {"nargs": "?", "const": True, "metavar": "{true,false}"}
        elif value_type not in FIELD_TYPES:
            where = f"{kind.__name__}.{item.name}"
            raise TrajformerError(
                f"{where}: {value_type}, expected bool, int, float, str, Path or Literal"
            )
        group.add_argument(
            "--" + item.name.replace("_", "-"),
            default=item.default,
            help=help_of.get(item.name) or item.name.replace("_", " "),
            **values,
        )
