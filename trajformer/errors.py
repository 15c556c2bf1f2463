"""Errors that a user can act on, printed as one line by the command line, and range checks of configs."""

import math
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, ClassVar


class TrajformerError(Exception):
    """An incorrect option or a broken input; the message names the file and the field."""


class SceneError(TrajformerError):
    """One scene cannot be used; `preprocess` counts it, lists it and continues with the others."""


class StoreError(TrajformerError):
    """A store is missing, truncated, or has another schema version."""


class CheckpointError(TrajformerError):
    """A file is not a checkpoint of this project, or does not fit its model."""


class ConfigError(TrajformerError):
    """A field of a config has a value outside its range.

    Attributes:
        field: name of the field.
        reason: its value and the allowed range.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason = field, reason


def check_numbers(config: Any, positive: Collection[str] = (), shares: Collection[str] = ()) -> None:
    """Check the range of all numbers of a config dataclass, tuples of numbers included; for its `__post_init__`.

    Args:
        config: the dataclass instance.
        positive: fields that must be more than 0; all others must be at least 0.
        shares: fields that must be at most 1.

    Raises:
        ConfigError: a value is not finite or outside its range.
    """
    for item in fields(config):
        value = getattr(config, item.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if not math.isfinite(number) or number < 0 or (item.name in positive and number == 0):
                limit = "more than 0" if item.name in positive else "at least 0"
                raise ConfigError(item.name, f"{value}, expected {limit}")
            if item.name in shares and number > 1:
                raise ConfigError(item.name, f"{value}, expected at most 1")


@dataclass(frozen=True)
class Config:
    """Base class of config dataclasses that checks the range of all numbers (see `check_numbers`).

    A subclass names its fields as class arguments, `class SizeConfig(Config, positive=("width",), shares=("dropout",))`, in
    addition to the fields of its base class.
    """

    positive: ClassVar[tuple[str, ...]] = ()
    shares: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, positive: tuple[str, ...] = (), shares: tuple[str, ...] = ()) -> None:
        cls.positive, cls.shares = (*cls.positive, *positive), (*cls.shares, *shares)

    def __post_init__(self) -> None:
        check_numbers(self, self.positive, self.shares)
