"""Types of options, options of dataclasses, and their help texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from trajformer.cli.parsing import (
    NonNegativeInt,
    Parser,
    PositiveFloat,
    UnitInterval,
    add_fields,
    new_parser,
)
from trajformer.errors import TrajformerError


@dataclass
class Options:
    """Options of all types.

    Args:
        ratio: 5% of it.
        folder: where.
        unit: of lengths.
        is_fast: without detours.

    There is no line for `top_speed`.
    """

    ratio: float = 0.5
    folder: Path = Path("here")
    unit: Literal["m", "px"] = "m"
    is_fast: bool = False
    top_speed: float = 2.0


@dataclass
class Optional:
    """An option that may be absent."""

    limit: int | None = None


def parser() -> Parser:
    made = new_parser("Text.")
    made.prog = "program"
    made.add_argument("--count", type=NonNegativeInt, default=0, help="number")
    made.add_argument("--gap", type=PositiveFloat, help="metres")
    made.add_argument("--share", type=UnitInterval, nargs="+", default=[], help="parts")
    add_fields(made, Options)
    return made


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        ("--count 3", "count", 3),
        ("--count=0", "count", 0),
        ("--gap 1e-3", "gap", 0.001),
        ("--gap inf", "gap", float("inf")),
        ("--share 0 1 .5", "share", [0.0, 1.0, 0.5]),
        ("--ratio -0.5", "ratio", -0.5),
        ("--ratio=-1e-3", "ratio", -0.001),
        ("--folder a=b:c", "folder", Path("a=b:c")),
        ("--folder null", "folder", Path("null")),
        ("--folder [1,2]", "folder", Path("[1,2]")),
        ("--fold x", "folder", Path("x")),  # the start of a name
        ("--unit px", "unit", "px"),
        ("--is-fast", "is_fast", True),
        ("--is-fast true", "is_fast", True),
        ("--is-fast=False", "is_fast", False),
    ],
)
def test_values(words: str, name: str, value: Any) -> None:
    parsed = getattr(parser().parse_words(words.split()), name)
    assert parsed == value
    assert type(parsed) is type(value) or isinstance(value, Path)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--count -1", "argument --count: '-1', expected int >= 0"),
        ("--count 1.0", "argument --count: '1.0', expected int >= 0"),
        ("--count null", "argument --count: 'null', expected int >= 0"),
        ("--count " + "9" * 5000, "expected int >= 0"),
        ("--gap 0", "argument --gap: '0', expected float > 0"),
        ("--gap nan", "argument --gap: 'nan', expected float > 0"),
        ("--share 0 1.1", "argument --share: '1.1', expected 0 to 1"),
        ("--ratio ten", "argument --ratio: invalid float value: 'ten'"),
        ("--ratio -1e-3", "argument --ratio: expected one argument"),
        ("--folder=", "argument --folder: an empty path"),
        ("--folder=--", "argument --folder: '--' is not a value"),
        ("--unit km", "argument --unit: invalid choice: 'km'"),
        ("--is-fast yes", "argument --is-fast: 'yes', expected true or false"),
        ("--is_fast", "unrecognized arguments: --is_fast"),
        ("more", "unrecognized arguments: more"),
    ],
)
def test_malformed_words(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parser().parse_words(words.split())
    assert stop.value.code == 2
    line = capsys.readouterr().err
    assert reason in line
    assert line.startswith("program: ")
    assert line.endswith("(see program --help)\n")
    assert line.count("\n") == 1


def test_help_has_types_and_defaults() -> None:
    text = " ".join(parser().format_help().split())
    for part in (
        "--count COUNT number (type: int >= 0, default: 0)",
        "--gap GAP metres (type: float > 0)",
        "--share SHARE [SHARE ...] parts (type: 0 to 1)",
        "--ratio RATIO 5% of it. (type: float, default: 0.5)",
        "--folder FOLDER where. (type: path, default: here)",
        "--unit {m,px} of lengths. (default: m)",
        "--is-fast [{true,false}] without detours. (type: bool, default: False)",
        "--top-speed TOP_SPEED top speed (type: float, default: 2.0)",
    ):
        assert part in text


def test_a_field_of_another_type_is_refused() -> None:
    with pytest.raises(TrajformerError, match=r"Optional.limit: int . None, expected bool"):
        add_fields(new_parser("Text."), Optional)
