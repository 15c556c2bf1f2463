"""Errors that a user can act on, printed as one line by the command line, and range checks of configs."""

import math
from dataclasses import dataclass, fields
from typing import ClassVar


class TrajformerError(Exception):
    """An incorrect option or a broken input; the message names the file and the field."""


class SceneError(TrajformerError):
    """One scene cannot be used; `preprocess` counts it, lists it and continues with the others."""


class StoreError(TrajformerError):
    """A store is missing, truncated, or has another schema version."""


class CheckpointError(TrajformerError):
    """A file is not a checkpoint of this project, or does not fit its model."""


class TrajformerWarning(UserWarning):
    """Usable input that is probably a mistake; the command line prints it as one line."""


class ConfigError(TrajformerError):
    """A field of a config has a value outside its range.

    Attributes:
        field: name of the field.
        reason: its value and the allowed range.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason = field, reason


@dataclass(frozen=True)
class Config:
    """Base class of config dataclasses that checks the range of all numbers, tuples of numbers included.

    A subclass names its fields as class arguments, `class SizeConfig(Config, positive=("width",), shares=("dropout",))`, in
    addition to the fields of its base class.

    Raises:
        ConfigError: a value is not finite or outside its range.
    """

    positive: ClassVar[tuple[str, ...]] = ()  # fields that must be more than 0; all others must be at least 0
    shares: ClassVar[tuple[str, ...]] = ()  # fields that must be at most 1

    def __init_subclass__(cls, positive: tuple[str, ...] = (), shares: tuple[str, ...] = ()) -> None:
        cls.positive, cls.shares = (*cls.positive, *positive), (*cls.shares, *shares)

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, bool) or not isinstance(number, int | float):
                    continue
                if not math.isfinite(number) or number < 0 or (item.name in self.positive and number == 0):
                    limit = "more than 0" if item.name in self.positive else "at least 0"
                    raise ConfigError(item.name, f"{value}, expected {limit}")
                if item.name in self.shares and number > 1:
                    raise ConfigError(item.name, f"{value}, expected at most 1")
