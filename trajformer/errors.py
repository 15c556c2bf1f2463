"""Errors that a user can act on; the command line prints each as one line.

Text from files never reaches a terminal unchanged: `one_line` and `escape` make it harmless.
"""

import csv
import pickle
import re
import signal
import struct
import zipfile
import zlib

MAX_MESSAGE = 1_000  # characters of a line
MAX_WORD = 250  # characters; no usual path is longer
HANGUP = getattr(signal, "SIGHUP", signal.SIGTERM)  # end of a terminal; Windows has none
TERMINATION_SIGNALS = (signal.SIGTERM, HANGUP)
# What parsers of files raise for damaged content.
UNREADABLE = (
    OSError, ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, RuntimeError,
    SyntaxError, TypeError, ValueError, csv.Error, pickle.UnpicklingError, struct.error,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
# Control characters but tab and line feed, line separators, changes of the direction of text,
# lone surrogates (names of files that are not UTF-8).
_UNPRINTABLE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP was received, as at the end of a cluster job or a connection.

    The command line ends with status 143 instead of 130.
    """


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
        self.field = field
        self.reason = reason


def escape(text: str) -> str:
    """Text without characters that control a terminal: the escape character becomes `\\x1b`."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shorten(text: str, length: int) -> str:
    """Leave out the middle of a long text."""
    if len(text) <= length:
        return text
    return f"{text[: length * 2 // 3]} ... {text[-length // 4 :]}"


def one_line(message: object, length: int = MAX_MESSAGE) -> str:
    """A message or an error as one line of limited length, without control characters."""
    text = str(getattr(message, "strerror", None) or message)
    words = [shorten(word, MAX_WORD) for word in text.split()]
    return shorten(escape(" ".join(words)), length)
