"""Pickles of plain values equal the result of `pickle`.

Hostile ones give one line, execute nothing and take little memory.
"""

import collections
import copyreg
import encodings.raw_unicode_escape  # noqa: F401 - pickletools imports it for a refused opcode
import functools
import os
import pickle
import pickletools
import random
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.readers.plain_pickle import load_plain_pickle
from trajformer.errors import SceneError
from trajformer.testing.readers import MAX_REASON, random_edit

MAX_BYTES, MAX_UNPACKED = 8 << 20, 4 << 20
FORBIDDEN = (
    "os.",
    "exec",
    "compile",
    "import",
    "subprocess",
    "pickle.find_class",
    "marshal",
    "socket",
    "ctypes",
    "object.__",
)
_events: list[str] | None = None


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _events is not None and event.startswith(FORBIDDEN):
        _events.append(event)


sys.addaudithook(_watch)


def load(path: Path, content: bytes) -> Any:
    """Load a pickle and assert that nothing is executed or imported."""
    global _events
    path.write_bytes(content)
    _events = []
    try:
        return load_plain_pickle(path, MAX_BYTES, MAX_UNPACKED)
    finally:
        events, _events = _events, None
        assert not events


def refuse(path: Path, content: bytes) -> str:
    with pytest.raises(SceneError) as caught:
        load(path, content)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and message.isprintable() and len(message) < MAX_REASON
    return message.removeprefix(f"{path}: ")


def same(left: Any, right: Any) -> bool:
    """Equal values and types; a subclass of dict or set counts as its base."""
    if isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(right, dict):
        if type(left) is not dict or list(left) != list(right):
            return False
        return all(same(left[key], right[key]) for key in right)
    if isinstance(right, list | tuple):
        if type(left) is not type(right) or len(left) != len(right):
            return False
        return all(map(same, left, right))
    return left == right


PLAIN: dict[str, Any] = {
    "containers": {
        "a": [1, -(2**40), 2.5, True, None, "é", b"x"],
        "b": (1, (2, 3), (), (4, 5, 6, 7)),
        "c": {"s", "t"},
        7: {},
    },
    "batches": {
        "list": list(range(3000)),
        "dict": {str(key): key for key in range(3000)},
        "frozen": frozenset("ab"),
    },
    "subclasses": [collections.defaultdict(int, a=1), collections.OrderedDict(b=2)],
    "scalars": [
        np.float64(1.5),
        np.float32(0.5),
        np.int64(-3),
        np.uint8(7),
        np.True_,
        np.str_("né"),
    ],
    "arrays": [
        np.arange(6.0).reshape(2, 3),
        np.arange(6, dtype=np.int32).reshape(2, 3).T,
        np.zeros((0, 3)),
        np.float32(2.5),
    ],
    "other arrays": [
        np.array([True, False]),
        np.array(["ab", "é"]),
        np.array([], "U3"),
        np.array(3.5),
        np.arange(9, dtype="f2"),
    ],
    "shared": [[shared := [1, 2], shared], (array := np.arange(4.0)), array],
}


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("name", PLAIN)
def test_plain_values_equal_those_of_pickle(tmp_path: Path, name: str, protocol: int) -> None:
    assert same(load(tmp_path / "a.pkl", pickle.dumps(PLAIN[name], protocol)), PLAIN[name])


START, STOP = b"\x80\x04", b"."


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def name(module: str, attribute: str) -> bytes:
    return text(module) + text(attribute) + b"\x93"


class Call:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


EVIL = "__import__('os').system('touch evil')"
CALLS: dict[str, tuple[Any, ...]] = {
    "os.system": (os.system, ("touch evil",)),
    "eval": (eval, (EVIL,)),
    "open": (open, ("evil", "w")),
    "getattr": (getattr, ("", "join")),
    "partial": (functools.partial, (os.system, "touch evil")),
    "numpy.fromfile": (np.fromfile, ("/dev/zero",)),
    "numpy.zeros": (np.zeros, (1 << 40,)),
    "reconstructor": (copyreg._reconstructor, (Path, object, None)),  # type: ignore[attr-defined]
    "bytearray": (bytearray, (1 << 33,)),
    "state": (dict, (), {"__class__": 1}),
    "setter": (dict, (), 1, None, None, os.system),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.chdir(tmp_path)
    calls = [Call(*CALLS[case])]
    for value in (calls, {"a": np.array(calls, object)}):
        for protocol in (0, 2, 4, 5):
            reason = refuse(tmp_path / "a.pkl", pickle.dumps(value, protocol))
            assert "not a pickle of plain values" in reason
    assert [path.name for path in tmp_path.iterdir()] == ["a.pkl"]


NO_SIZE = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"  # the end of the state of a dtype
LITTLE_ENDIAN = b"(K\x03" + text("<") + NO_SIZE
BIG_ENDIAN = b"(K\x03" + text(">") + NO_SIZE
NO_ORDER = b"(K\x03" + text("|")


def dtype(code: str = "f8", state: bytes = LITTLE_ENDIAN) -> bytes:
    return name("numpy", "dtype") + text(code) + b"\x89\x88\x87R" + state


def array(shape: bytes, data: bytes, kind: bytes | None = None, core: str = "numpy._core") -> bytes:
    function = name(f"{core}.multiarray", "_reconstruct")
    empty = function + name("numpy", "ndarray") + b"K\x00\x85C\x01b\x87R"
    return empty + array_state(shape, data, kind or dtype())


def array_state(shape: bytes, data: bytes, kind: bytes) -> bytes:
    return b"(K\x01" + shape + kind + b"\x89" + data + b"tb"


def view(data: bytes, shape: bytes, order: bytes) -> bytes:
    return (
        name("numpy._core.numeric", "_frombuffer") + b"(" + data + dtype() + shape + order + b"tR"
    )


def scalar(kind: bytes, data: bytes, core: str = "numpy._core") -> bytes:
    return name(f"{core}.multiarray", "scalar") + kind + data + b"\x86R"


SHAPE = b"K\x01\x85"
DATA = b"C\x08" + bytes(8)
HUGE = b"\x8a\x06" + (1 << 40).to_bytes(6, "little")
VIEW = view(DATA, SHAPE, text("C"))
BAD_DTYPES = ("O", "V8", "c16", "S4", "i8,O", "U0", "U99999", ">f8", "i3", "")
HOSTILE: dict[str, bytes] = {
    "dotted name": name("numpy", "dtype.__class__") + b").",
    "name of a module": name("collections.defaultdict", "__init__") + b").",
    "name in a name": name("os", "system\nnumpy.dtype") + b").",
    "name of a number": b"K\x01K\x02\x93",
    "name of a name": name("numpy", "dtype") + name("numpy", "dtype") + b"\x93",
    "long name": b"X" + (1 << 20).to_bytes(4, "little") + b"a" * (1 << 20) + text("b") + b"\x93",
    "call of a text": text("numpy.dtype") + b")R",
    "call of a type": name("builtins", "dict") + b")R",
    "call of a dict": b"})R",
    "call with a list": name("numpy", "dtype") + b"]R",
    "call without arguments": name("numpy", "dtype") + b")R",
    "dtype of a name": name("numpy", "dtype") + name("builtins", "dict") + b"\x85R",
    **{f"dtype {code}": dtype(code) for code in BAD_DTYPES},
    "dtype of objects": array(
        SHAPE,
        DATA,
        dtype("f8", NO_ORDER + b"NNNK\x08K\x08K?tb") + name("builtins", "dict") + b"\x93",
    ),
    "big-endian": array(SHAPE, DATA, dtype("f8", BIG_ENDIAN)),
    "dtype state": array(SHAPE, DATA, dtype("f8", b"Nb")),
    "state of a dict": b"}}b",
    "state of a name": name("numpy", "dtype") + b"}b",
    "state of a text": text("a") + b"}b",
    "defaults of a function": name("collections", "OrderedDict")
    + b"N}"
    + text("__defaults__")
    + b")s\x86b",
    "dict with a default": name("collections", "defaultdict") + text("a") + b"\x85R",
    "second state": array(SHAPE, DATA) + array_state(SHAPE, DATA, dtype()),
    "huge second state": array(SHAPE, DATA) + array_state(HUGE + b"\x85", DATA, dtype()),
    "array of a list": array(SHAPE, b"]"),
    "array of a name": array(SHAPE, name("builtins", "dict")),
    "array without dtype": array(SHAPE, DATA, text("f8")),
    "huge array": array(HUGE + b"\x85", DATA),
    "huge empty array": array(b"K\x00" + HUGE * 4 + b"t", b"C\x00").replace(
        b"(K\x01K\x00", b"(K\x01(K\x00", 1
    ),
    "many dimensions": array(b"(" + b"K\x01" * 5 + b"t", DATA),
    "negative length": array(b"J\xff\xff\xff\xffJ\xf8\xff\xff\xff\x86", DATA),
    "overflow": array(b"\x8a\x09" + (1 << 64).to_bytes(9, "little") + b"K\x00\x86", DATA),
    "bool length": array(b"\x88\x85", DATA),
    "text length": array(text("1") + b"\x85", DATA),
    "more numbers": VIEW.replace(DATA, b"C\x10" + bytes(16)),
    "state of a view": VIEW + array_state(SHAPE, DATA, dtype()),
    "half a number": array(SHAPE, b"C\x07" + bytes(7)),
    "odd bool": array(SHAPE, b"C\x01\x07", dtype("b1", NO_ORDER + NO_SIZE)),
    "odd character": array(SHAPE, b"C\x04\xff\xff\xff\xff", dtype("U1")),
    "odd scalar": scalar(dtype("U1"), b"C\x04\xff\xff\xff\xff"),
    "scalar of objects": scalar(dtype("O"), b"}"),
    "view of a list": view(b"]\x94", b")", text("C")),
    "odd order": view(DATA, SHAPE, b"}"),
    "tuple as key": b"}(K\x01\x85K\x01u",
    "array as key": b"}" + array(SHAPE, DATA) + b"K\x01s",
    "float in a set": b"\x8f(G" + bytes(8) + b"\x90",
    "key without value": b"}(K\x01u",
    "items of a number": b"K\x01(K\x01e",
    "items of a bytearray": b"\x96" + (3).to_bytes(8, "little") + b"abc(K\x01e",
    "items of an array": array(SHAPE, DATA) + b"K\x00K\x01s",
    "name as key": b"}" + name("numpy", "dtype") + b"Ns",
    "items of a name": name("builtins", "dict") + b"(K\x01K\x02u",
    "another memo": b"j\xff\xff\xff\x7f",
    "no value": b"",
    "a value below a mark": b"K\x01(",
    "protocol 6": b"\x80\x06K\x01",
}


@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
def test_arrays_of_numpy_1_and_2(tmp_path: Path, core: str) -> None:
    number = b"C\x08" + np.float64(1.5).tobytes()
    value = load(tmp_path / "a.pkl", START + array(SHAPE, number, core=core) + STOP)
    assert same(value, np.array([1.5]))
    assert load(tmp_path / "a.pkl", START + scalar(dtype(), number, core) + STOP) == 1.5


@pytest.mark.parametrize("case", HOSTILE)
def test_impossible_values_are_refused(tmp_path: Path, case: str) -> None:
    reason = refuse(tmp_path / "a.pkl", START + HOSTILE[case] + STOP)
    assert "not a pickle of plain values" in reason


PLAIN_TYPES = (
    dict,
    list,
    set,
    frozenset,
    tuple,
    str,
    bytes,
    bytearray,
    int,
    float,
    bool,
    type(None),
)
REFUSED_OPCODES = {
    *("GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"),
    *("EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "BINPUT", "LONG_BINPUT"),
    *("INT", "LONG", "LONG4", "STRING", "NEXT_BUFFER", "POP", "DUP"),
}


def test_every_opcode_without_values_is_refused_or_plain(tmp_path: Path) -> None:
    allowed = set()
    for opcode in pickletools.opcodes:
        for arguments in (bytes(9), b"os\nsystem\n", b"\xff" * 300):
            content = opcode.code.encode("latin-1") + arguments
            for before in (b"", b"((", b"K\x01" * 3, name("numpy", "dtype") + b")"):
                try:
                    value = load(tmp_path / "a.pkl", START + before + content + STOP)
                except SceneError as error:
                    assert str(error).isprintable()
                else:
                    assert type(value) in PLAIN_TYPES
                    allowed.add(opcode.name)
    assert not allowed & REFUSED_OPCODES


MEGABYTE = b"B" + (1 << 20).to_bytes(4, "little") + bytes(1 << 20) + b"\x94"
COPY = array(b"J\x00\x00\x02\x00\x85", b"h\x00")  # of this megabyte
# Integers with equal hashes.
LARGE_KEYS = [((2**61 - 1) << 9 * power).to_bytes(32, "little") for power in range(21)]
BOMBS: dict[str, bytes] = {
    "bytes": b"\x8e" + (1 << 60).to_bytes(8, "little"),
    "bytearray": b"\x96" + (1 << 40).to_bytes(8, "little"),
    "text": b"\x8d" + (1 << 62).to_bytes(8, "little"),
    "frame": b"\x95" + (1 << 62).to_bytes(8, "little") + b"K\x01" * (1 << 20),
    "integer": b"\x8b" + (1 << 30).to_bytes(4, "little"),
    "decimal": b"I" + b"9" * (1 << 20) + b"\n",
    "memo": b"K\x01r\xff\xff\xff\xff",
    "marks": b"(" * (1 << 20),
    "sets": b"\x8f" * (1 << 20),
    "dicts": b"}" * (1 << 20),
    "memos": b"K\x01" + b"\x94" * (1 << 20),
    "deep lists": b"]" * (1 << 20) + b"a" * (1 << 20),
    "keys with equal hashes": b"}("
    + b"".join(b"\x8a\x20" + key + b"N" for key in LARGE_KEYS)
    + b"u",
    "copied arrays": MEGABYTE + COPY * 300,
    "too large": bytes(MAX_BYTES),
}


@pytest.mark.parametrize("case", BOMBS)
def test_bombs_are_refused(tmp_path: Path, case: str) -> None:
    tracemalloc.start()
    try:
        refuse(tmp_path / "a.pkl", START + BOMBS[case] + STOP)
        assert tracemalloc.get_traced_memory()[1] < 4 * MAX_BYTES
    finally:
        tracemalloc.stop()


def test_shared_and_deep_values_cost_their_opcodes(tmp_path: Path) -> None:
    """Lists that print as 2**60 numbers, are nested deeper than the stack of Python, or loop."""
    # Each list has the one before it twice.
    doubled = b"]\x94" + b"".join(b"]\x94(h%ch%ce" % (index, index) for index in range(60))
    assert len(load(tmp_path / "a.pkl", START + doubled + STOP)) == 2
    assert load(tmp_path / "a.pkl", START + b"]" * 10_000 + b"a" * 9_999 + STOP) != []
    itself = load(tmp_path / "a.pkl", START + b"]\x94h\x00a" + STOP)
    assert itself[0] is itself


def test_damaged_pickles_are_refused_or_plain(tmp_path: Path) -> None:
    whole = pickle.dumps({key: value for key, value in PLAIN.items() if key != "batches"}, 4)
    for seed in range(200):
        try:
            load(tmp_path / "a.pkl", random_edit(random.Random(seed))(whole))
        except SceneError as error:
            assert str(error).isprintable() and len(str(error)) < MAX_REASON
