"""Reading pickles of plain values and numpy arrays from untrusted sources. Nothing that a file names is imported or called.

`pickletools` decodes the opcodes of protocols 4 and 5; `_Machine` turns them into values. The names in a file select one of a few
functions below; other names and opcodes are refused. Memory and time are proportional to the size of the file and limited: an
opcode makes at most one small object, arrays share the bytes of the file, and no step is recursive.
"""

import math
import pickletools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.readers.raw_file import one_line, read_file
from trajformer.errors import SceneError
from trajformer.scenes.files import SIZE_SCALE

OPCODE_BYTES, SET_BYTES = (
    150,
    250,
)  # memory of a value, with its entries in a container and in the memo
MAX_KEY_BITS = 64  # longer integers can be chosen to have equal hashes, which makes dicts slow
MAX_DIMENSIONS = 4
_DTYPE = re.compile(r"b1|[iu][1248]|f[248]|U[1-9]\d{0,3}")
_LARGEST = {
    "b": (np.uint8, 1),
    "U": (np.uint32, 0x10FFFF),
}  # of the integers that encode a boolean and a character


def load_plain_pickle(path: Path, max_bytes: int, max_unpacked: int) -> Any:
    """The plain content of a pickle file of protocol 4 or 5.

    It may have dicts and sets with texts or integers as keys, lists, tuples, texts, bytes, numbers, None, and numpy arrays of
    booleans, numbers or text. A list may contain itself, or another one many times: do not visit or print values recursively.
    `max_bytes` limits the size of the file, `max_unpacked` the estimated bytes of memory. Raises SceneError: the file is
    unreadable, damaged, too large, or contains anything else; the message names the file.
    """
    try:
        return _Machine(int(max_unpacked * SIZE_SCALE.get())).run(read_file(path, max_bytes))
    except (OSError, ValueError, TypeError, LookupError, OverflowError) as error:
        reason = "damaged" if isinstance(error, LookupError) else one_line(error)
        raise SceneError(f"{path}: not a pickle of plain values and arrays: {reason}") from error


class _Name(str):
    """A known name in a pickle, `module.name`, which is never imported."""

    __slots__ = ()


class _Machine:
    """The stack and the memo of a pickle."""

    def __init__(self, max_unpacked: int) -> None:
        self.max_unpacked = self.left = max_unpacked  # bytes
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stacks below the marks
        self.memo: list[Any] = []

    def run(self, data: bytes) -> Any:
        """The value of a pickle."""
        for opcode, argument, _ in pickletools.genops(data):
            self.spend(OPCODE_BYTES)
            name = opcode.name
            if name in _LITERALS:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name in _OPCODES:
                _OPCODES[name](self, argument)
            elif name != "STOP":
                raise ValueError(f"opcode {name} is not allowed")
        return self.stack.pop()

    def spend(self, size: int) -> None:
        """Count memory in bytes."""
        self.left -= size
        if self.left < 0:
            raise ValueError(f"more than {self.max_unpacked / 1e6:g} MB unpacked")

    def mark(self) -> None:
        """Begin a list of values."""
        self.below.append(self.stack)
        self.stack = []

    def pop_marked(self) -> list[Any]:
        """The values above the last mark."""
        values, self.stack = self.stack, self.below.pop()
        return values

    def push(self, value: Any) -> None:
        """Add a value to the stack, which `pop_marked` replaces."""
        self.stack.append(value)

    def pop(self, count: int) -> list[Any]:
        """The last values."""
        values = self.stack[-count:]
        del self.stack[-count:]
        if len(values) < count:
            raise LookupError
        return values

    def add(self, kind: type, items: list[Any]) -> None:
        """Add items, or keys and values in turn, to the container on the stack."""
        target: Any = self.stack[-1]
        found = type(target)
        if found is not kind:
            raise TypeError(f"items of a {kind.__name__} for a {found.__name__}")
        if kind is list:
            target.extend(items)
        elif kind is set:
            target.update(map(_key, items))
        else:
            target.update(zip(map(_key, items[::2]), items[1::2], strict=True))

    def new_set(self, items: Iterable[Any] = ()) -> None:
        """Push a set."""
        self.spend(SET_BYTES)
        self.stack.append(set(map(_key, items)))

    def check_protocol(self, number: int) -> None:
        """ValueError for a protocol with other opcodes."""
        if number not in (4, 5):
            raise ValueError(f"pickle protocol {number}, expected 4 or 5")

    def name(self) -> None:
        """Replace module and name by a known name."""
        parts = self.pop(2)
        if any(type(part) is not str for part in parts):
            raise TypeError("a name that is not text")
        full = ".".join(part[:80] for part in parts)
        full = full.replace("numpy.core.", "numpy._core.")  # numpy 1
        if full not in _TYPES and full not in _FUNCTIONS:
            raise ValueError(f"the name {full} is not allowed")
        self.stack.append(_Name(full))

    def call(self) -> None:
        """Replace a known name and its arguments by a value."""
        name, arguments = self.pop(2)
        if type(name) is not _Name or name not in _FUNCTIONS or type(arguments) is not tuple:
            raise ValueError(
                f"a call of {name if type(name) is _Name else type(name).__name__} is not allowed"
            )
        self.stack.append(_FUNCTIONS[name](self, *arguments))

    def set_state(self) -> None:
        """Check the byte order of the dtype on the stack, or fill the empty array there."""
        [state] = self.pop(1)
        target: Any = self.stack[-1]
        found = type(target)
        if isinstance(target, np.dtype) and type(state) is tuple and len(state) == 8:
            if type(state[1]) is not str or state[1] not in "<|":
                raise ValueError("numbers in another byte order than little-endian")
        elif (
            found is np.ndarray and target.base is None and type(state) is tuple and len(state) == 5
        ):
            _, shape, dtype, fortran, data = state
            self.array(data, dtype, shape)
            target.__setstate__((1, shape, dtype, fortran is True, bytes(data)))
        else:
            raise ValueError(f"a state of {found.__name__} is not allowed")

    def array(self, data: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
        """An array that shares the bytes."""
        if (
            type(data) not in (bytes, bytearray)
            or not isinstance(dtype, np.dtype)
            or type(shape) is not tuple
        ):
            raise TypeError("an array without bytes, dtype and shape")
        if len(shape) > MAX_DIMENSIONS or any(
            type(length) is not int or length < 0 for length in shape
        ):
            raise ValueError(
                f"an array of {len(shape)} dimensions, expected at most {MAX_DIMENSIONS} with lengths from 0"
            )
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"{len(data)} bytes for an array of {dtype} and shape {shape}")
        self.spend(len(data))  # numpy may copy them
        kind, largest = _LARGEST.get(dtype.kind, (np.uint8, 255))
        if data and np.frombuffer(data, kind).max() > largest:
            raise ValueError(f"impossible values in an array of {dtype}")
        return np.ndarray(shape, dtype, data, order=order)


def _key(value: Any) -> Any:
    if type(value) is not str and not (type(value) is int and value.bit_length() <= MAX_KEY_BITS):
        raise TypeError(f"a key of type {type(value).__name__}, expected text")
    return value


def _dtype(_: _Machine, code: Any, *options: Any) -> np.dtype:
    if type(code) is not str or not _DTYPE.fullmatch(code):
        raise ValueError(
            f"the dtype {code[:20] if type(code) is str else type(code).__name__} is not allowed"
        )
    return np.dtype(code)


_TYPES = {
    "numpy.ndarray",
    *(f"builtins.{name}" for name in ("int", "float", "list", "dict", "set")),
}  # only as arguments
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "numpy.dtype": _dtype,
    "numpy._core.multiarray._reconstruct": lambda machine, *options: np.empty(0),
    "numpy._core.multiarray.scalar": lambda machine, dtype, data: machine.array(
        data, dtype, ()
    ).item(),
    "numpy._core.numeric._frombuffer": _Machine.array,
    "collections.defaultdict": lambda machine, *factory: {},
    "collections.OrderedDict": lambda machine: {},
}
_LITERALS = {
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINFLOAT",
    "SHORT_BINBYTES",
    "BINBYTES",
    "BINBYTES8",
    "BYTEARRAY8",
}
_LITERALS |= {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_OPCODES: dict[str, Callable[[_Machine, Any], Any]] = {
    "PROTO": _Machine.check_protocol,
    "FRAME": lambda machine, size: None,
    "MARK": lambda machine, _: machine.mark(),
    "MEMOIZE": lambda machine, _: machine.memo.append(machine.stack[-1]),
    "BINGET": lambda machine, index: machine.push(machine.memo[index]),
    "LONG_BINGET": lambda machine, index: machine.push(machine.memo[index]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_SET": lambda machine, _: machine.new_set(),
    "FROZENSET": lambda machine, _: machine.new_set(machine.pop_marked()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_marked())),
    "TUPLE1": lambda machine, _: machine.push(tuple(machine.pop(1))),
    "TUPLE2": lambda machine, _: machine.push(tuple(machine.pop(2))),
    "TUPLE3": lambda machine, _: machine.push(tuple(machine.pop(3))),
    "APPEND": lambda machine, _: machine.add(list, machine.pop(1)),
    "APPENDS": lambda machine, _: machine.add(list, machine.pop_marked()),
    "ADDITEMS": lambda machine, _: machine.add(set, machine.pop_marked()),
    "SETITEM": lambda machine, _: machine.add(dict, machine.pop(2)),
    "SETITEMS": lambda machine, _: machine.add(dict, machine.pop_marked()),
    "STACK_GLOBAL": lambda machine, _: machine.name(),
    "REDUCE": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.set_state(),
}
