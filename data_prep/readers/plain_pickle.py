"""Reading pickles of plain values and numpy arrays from untrusted sources.

A file is read in two passes. `_check_opcodes` decodes the opcodes without making values: it refuses
opcodes that plain values do not need, counts the memory, and allows only keys that are cheap to
hash. Then a `pickle.Unpickler` makes the values. Its `find_class` imports nothing: the names in a
file select one of a few functions below, and other names are refused.
"""

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep.readers.raw_file import read_file
from trajformer.errors import UNREADABLE, SceneError, one_line
from trajformer.scenes.files import SIZE_SCALE

OPCODE_BYTES = 150  # memory of a value, with its entries in a container and in the memo
SET_BYTES = 250
MAX_KEY_BITS = 64  # longer integers can be chosen to have equal hashes, which makes dicts slow
MAX_DIMENSIONS = 4
_DTYPE = re.compile(r"b1|[iu][1248]|f[248]|U[1-9]\d{0,3}")


def load_plain_pickle(path: Path, max_bytes: int, max_unpacked: int) -> Any:
    """The plain content of a pickle file of protocol 4 or 5.

    It may have dicts and sets with texts or integers as keys, lists, tuples, texts, bytes, numbers,
    None, and numpy arrays of booleans, numbers or text. Arrays are read-only and may be of a
    subclass of `np.ndarray`. A list may contain itself, or another one many times: do not visit or
    print values recursively. `max_bytes` limits the size of the file, `max_unpacked` the estimated
    bytes of memory. Raises SceneError: the file is unreadable, damaged, too large, or contains
    anything else; the message names the file.
    """
    try:
        data = read_file(path, max_bytes)
        budget = _Budget(int(max_unpacked * SIZE_SCALE.get()))
        _check_opcodes(data, budget)
        return _PlainUnpickler(data, budget).load()
    except UNREADABLE as error:
        reason = "damaged" if isinstance(error, LookupError) else one_line(error)
        raise SceneError(f"{path}: not a pickle of plain values and arrays: {reason}") from error


class _Budget:
    """The memory that a pickle may use."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.left = max_bytes

    def spend(self, size: int) -> None:
        """Count bytes; ValueError if none are left."""
        self.left -= size
        if self.left < 0:
            raise ValueError(f"more than {self.max_bytes / 1e6:g} MB unpacked")


# ---- first pass ----------------------------------------------------------------------------------

# Kinds of values on the stack: the names in `pickletools`, and these two. A call makes an "any".
_NAME = "name"
_LONG_INT = "long integer"
# Keys of dicts and sets. A call returns no tuple: the hash of deep tuples overflows the stack.
_KEYS = ("str", "int", "any")
_DICTS = ("dict", "any")
# Kinds of the first operand of an opcode.
_TARGETS = {
    "STACK_GLOBAL": ("str",),
    "REDUCE": (_NAME,),
    "BUILD": ("any",),
    "APPEND": ("list",),
    "APPENDS": ("list",),
    "ADDITEMS": ("set",),
    "SETITEM": _DICTS,
    "SETITEMS": _DICTS,
}
_ALLOWED = {
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET"),
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_SET", "FROZENSET"),
    *_TARGETS,
}


def _check_opcodes(data: bytes, budget: _Budget) -> None:
    """Follow the stack of a pickle with the kinds of its values.

    Raises ValueError, TypeError or LookupError: the pickle is damaged, has an opcode that is not
    allowed, or uses a value where its kind is not allowed.
    """
    stack: list[str] = []
    marks: list[int] = []  # sizes of the stack when a list of operands began
    memo: list[str] = []
    argument: Any
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name not in _ALLOWED:
            raise ValueError(f"opcode {name} is not allowed")
        if name == "PROTO" and argument not in (4, 5):
            raise ValueError(f"pickle protocol {argument}, expected 4 or 5")
        budget.spend(SET_BYTES if name in ("EMPTY_SET", "FROZENSET") else OPCODE_BYTES)
        if name == "MARK":
            marks.append(len(stack))
        elif name == "MEMOIZE":
            memo.append(stack[-1])
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        else:
            _check_operands(name, _pop_operands(stack, marks, opcode))
            stack += _results(opcode, argument)


def _results(opcode: pickletools.OpcodeInfo, argument: Any) -> list[str]:
    """The kinds of the values that an opcode makes."""
    if opcode.name == "STACK_GLOBAL":
        return [_NAME]
    if opcode.name == "LONG1" and argument.bit_length() > MAX_KEY_BITS:
        return [_LONG_INT]
    return [kind.name for kind in opcode.stack_after]


def _pop_operands(stack: list[str], marks: list[int], opcode: pickletools.OpcodeInfo) -> list[str]:
    """Remove the operands of an opcode: a fixed number of values, or those above the last mark."""
    end = len(stack)
    count = len(opcode.stack_before)
    if pickletools.markobject in opcode.stack_before:
        end = marks.pop()
        count = opcode.stack_before.index(pickletools.markobject)
    begin = end - count
    if begin < (marks[-1] if marks else 0):
        raise LookupError
    operands = stack[begin:]
    del stack[begin:]
    return operands


def _check_operands(name: str, operands: list[str]) -> None:
    """TypeError for a target or a key of a kind that is not allowed."""
    if name in _TARGETS and operands[0] not in _TARGETS[name]:
        raise TypeError(f"opcode {name} of a {operands[0]} is not allowed")
    keys: list[str] = []
    if name in ("SETITEM", "SETITEMS"):
        keys = operands[1::2]
    elif name == "ADDITEMS":
        keys = operands[1:]
    elif name == "FROZENSET":
        keys = operands
    for kind in keys:
        if kind not in _KEYS:
            raise TypeError(f"a key of type {kind}, expected text")


# ---- second pass ---------------------------------------------------------------------------------


class _Dtype:
    """A dtype of booleans, numbers or text, because `np.dtype` trusts the state in a pickle."""

    def __init__(self, code: Any, *options: Any) -> None:
        if type(code) is not str:
            raise TypeError(f"the dtype {type(code).__name__} is not allowed")
        if not _DTYPE.fullmatch(code):
            raise ValueError(f"the dtype {code[:20]} is not allowed")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        if type(state) is not tuple or len(state) != 8:
            raise ValueError("a damaged state of a dtype")
        if type(state[1]) is not str or state[1] not in "<|":
            raise ValueError("numbers in another byte order than little-endian")


class _Array(np.ndarray):
    """An array of protocol 4, which is empty until the pickle sets its state, once."""

    unpickler: "_PlainUnpickler"

    def __setstate__(self, state: Any) -> None:
        unpickler = self.__dict__.pop("unpickler")
        if type(state) is not tuple or len(state) != 5:
            raise ValueError("a damaged state of an array")
        _, shape, dtype, is_fortran, data = state
        checked = unpickler.array(data, dtype, shape)
        checked_state: Any = (1, shape, checked.dtype, is_fortran is True, data)
        super().__setstate__(checked_state)
        self.flags.writeable = False


class _PlainUnpickler(pickle.Unpickler):
    """Unpickler with an allow-list of names."""

    # Arguments of calls only: a text cannot be called.
    types: ClassVar[set[str]] = {
        "numpy.ndarray",
        *(f"builtins.{name}" for name in ("int", "float", "list", "dict", "set")),
    }

    def __init__(self, data: bytes, budget: _Budget) -> None:
        super().__init__(io.BytesIO(data))
        self.budget = budget
        self.functions: dict[str, Callable[..., Any]] = {
            "numpy.dtype": _Dtype,
            "numpy._core.multiarray._reconstruct": self.empty_array,
            "numpy._core.multiarray.scalar": self.scalar,
            "numpy._core.numeric._frombuffer": self.array,
            "collections.defaultdict": self.empty_dict,
            "collections.OrderedDict": self.empty_dict,
        }

    def find_class(self, module_name: str, global_name: str) -> Any:
        """The function or type of a name; ValueError for a name that is not allowed."""
        name = f"{module_name[:80]}.{global_name[:80]}"
        name = name.replace("numpy.core.", "numpy._core.")  # numpy 1
        if name in self.types:
            return name
        if name not in self.functions:
            raise ValueError(f"the name {name} is not allowed")
        return self.functions[name]

    def empty_dict(self, default: Any = None) -> dict[Any, Any]:
        """A dict without entries and without its default."""
        if default is not None and default not in self.types:
            raise ValueError("a dict with another default than a type")
        return {}

    def empty_array(self, *options: Any) -> _Array:
        """An array of protocol 4 without its content."""
        array = np.empty(0).view(_Array)
        array.flags.writeable = False
        array.unpickler = self
        return array

    def scalar(self, dtype: Any, data: Any) -> Any:
        """A number or text of numpy as a Python value."""
        return self.array(data, dtype, ()).item()

    def array(self, data: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
        """A read-only array that shares the bytes."""
        if type(data) not in (bytes, bytearray) or type(dtype) is not _Dtype:
            raise TypeError("an array without bytes and dtype")
        if type(shape) is not tuple or len(shape) > MAX_DIMENSIONS:
            raise ValueError(f"an array without a shape of at most {MAX_DIMENSIONS} dimensions")
        if any(type(length) is not int or length < 0 for length in shape):
            raise ValueError("an array with a length below 0")
        kind = dtype.dtype
        if math.prod(shape) * kind.itemsize != len(data):
            raise ValueError(f"{len(data)} bytes for an array of {kind} and shape {shape}")
        self.budget.spend(len(data))  # numpy may copy them
        _check_content(data, kind)
        array: np.ndarray = np.ndarray(shape, kind, data, order=order)
        array.flags.writeable = False
        return array


def _check_content(data: bytes | bytearray, dtype: np.dtype) -> None:
    """ValueError for booleans above 1 and for characters that do not exist."""
    if dtype.kind == "b":
        values = np.frombuffer(data, np.uint8)
        limit = 1
    elif dtype.kind == "U":
        values = np.frombuffer(data, np.uint32)
        limit = 0x10FFFF
    else:
        return
    if values.max(initial=0) > limit:
        raise ValueError(f"impossible values in an array of {dtype}")
