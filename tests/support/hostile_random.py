"""Random damage to files: strategies of functions that damage a file, whatever it holds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from support.hostile import Damage, then

PLACE = st.integers(0, 1 << 20)  # modulo the number of places
WORDS = [
    "",
    "nan",
    "inf",
    "-inf",
    "1e300",
    "-1e300",
    "1e400",
    "0x1",
    "1,5",
    "None",
    "null",
    "\0",
    "\x1b[2J",
    "../../x",
    "é\u2028\U0001f600",
]
WORDS += [
    "-1",
    "2147483648",
    "9223372036854775808",
    "9" * 400,
    '"',
    "'",
    "<",
    ">",
    "&lt;",
    "&x;",
    "]]>",
    "x" * 9_000,
    " ",
    "\t",
    "\r",
    "\n",
]
ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    1e300,
    2**63,
    10**30,
    "",
    "x",
    "1",
    [],
    {},
    [None],
    [[]],
    {"x": 1.0},
    [{"x": 1.0, "y": 2.0, "z": 0.0}],
]


# ---- bytes ---------------------------------------------------------------------------------------------------------


def edit(kind: str, first: int, second: int, count: int, value: int, at_end: bool) -> Callable[[bytes], bytes]:
    """One edit of a file's bytes; `at_end` keeps to the last 4 kB, where tables say what they hold."""

    def change(whole: bytes) -> bytes:
        size = len(whole)
        if not size:
            return whole
        a, b = (size - 1 - first % min(size, 4096) if at_end else first * 7919 % size), second * 7919 % size
        part = whole[b : b + count]
        bit = bytes([whole[a] ^ 1 << value % 8])
        made = {
            "cut": whole[:a],
            "flip": whole[:a] + bit + whole[a + 1 :],
            "set": whole[:a] + bytes([value]) + whole[a + 1 :],
            "zero": whole[:a] + bytes(len(whole[a : a + count])) + whole[a + count :],
            "fill": whole[:a] + bytes([value]) * len(whole[a : a + count]) + whole[a + count :],
            "drop": whole[:a] + whole[a + count :],
            "copy": whole[:a] + part + whole[a + len(part) :],
            "insert": whole[:a] + part + whole[a:],
        }
        return made[kind]

    return change


def bytes_damaged() -> st.SearchStrategy[Damage]:
    """One to four edits."""
    kinds = st.sampled_from(["flip", "set", "zero", "fill", "drop", "copy", "insert", "cut"])
    sizes = st.sampled_from([1, 2, 4, 8, 64, 512, 4096, 65536])
    edits = st.builds(edit, kinds, PLACE, PLACE, sizes, st.integers(0, 255), st.booleans())

    def damage(changes: list[Callable[[bytes], bytes]]) -> Damage:
        def apply(path: Path) -> None:
            whole = path.read_bytes()
            for change in changes:
                whole = change(whole)
            path.write_bytes(whole)

        return apply

    return st.lists(edits, min_size=1, max_size=4).map(damage)


# ---- JSON and words --------------------------------------------------------------------------------------------------


def json_damaged() -> st.SearchStrategy[Damage]:
    """One to three entries, at any depth, replaced by something else, dropped, or doubled."""

    def change(steps: list[int], kind: str, odd: Any) -> Damage:
        def apply(path: Path) -> None:
            whole = json.loads(path.read_text())
            inner = whole
            keys: list[Any] = []
            for step in steps:
                keys = list(inner) if isinstance(inner, dict) else list(range(len(inner))) if isinstance(inner, list) else []
                if not keys:
                    return
                parent, key = inner, keys[step % len(keys)]
                inner = parent[key]
            if kind == "drop":
                del parent[key]
            elif kind == "double" and isinstance(parent, list):
                parent.append(inner)
            else:
                parent[key] = odd
            path.write_text(json.dumps(whole))

        return apply

    one = st.builds(
        change, st.lists(PLACE, min_size=1, max_size=5), st.sampled_from(["put", "put", "drop", "double"]), st.sampled_from(ODD)
    )
    return st.lists(one, min_size=1, max_size=3).map(lambda damages: then(*damages))


def words_damaged() -> st.SearchStrategy[Damage]:
    """One to three words or lines of a text replaced, dropped, doubled or exchanged."""

    def change(pattern: str, place: int, other: int, kind: str, word: str) -> Damage:
        def apply(path: Path) -> None:
            parts = re.split(f"({pattern})", path.read_bytes().decode(errors="surrogateescape"))
            if len(parts) < 3:
                return
            a, b = (index % ((len(parts) + 1) // 2) * 2 for index in (place, other))
            if kind == "exchange":
                parts[a], parts[b] = parts[b], parts[a]
            else:
                parts[a] = {"put": word, "drop": "", "double": parts[a] + parts[1] + parts[a]}[kind]
            path.write_bytes("".join(parts).encode(errors="surrogateescape"))

        return apply

    patterns = st.sampled_from([r"[\s,]", r"\n", r'[\s="<>/,]'])
    kinds = st.sampled_from(["put", "put", "put", "drop", "double", "exchange"])
    one = st.builds(change, patterns, PLACE, PLACE, kinds, st.sampled_from(WORDS))
    return st.lists(one, min_size=1, max_size=3).map(lambda damages: then(*damages))
