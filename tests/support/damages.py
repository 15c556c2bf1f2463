"""Named damages of raw files, and the check that a reader refuses them with a reason."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support.hostile import cell, column, read_checked, rows, table, words
from support.raw_folders import FOLDERS

from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.scene import Scene
from trajformer.testing.readers import Damage, change_bytes

Cases = dict[str, tuple[Damage, str]]  # by name: the damage, and a pattern of the expected reason
Files = dict[str, tuple[str, str, Cases]]  # by kind: raw folder, pattern of the file, cases
MAX_GROWTH_MB = 500  # of the memory of a process that reads a damaged file

# the reason for an unusable id of a track
NAME = "agent_id: empty, over 200 characters, or with a newline"


def names_of_cases(files: Files) -> list[tuple[str, str]]:
    """Kind of file and name of the case, for `parametrize`."""
    names = []
    for kind, (_, _, cases) in files.items():
        for case in cases:
            names.append((kind, case))
    return names


def check_refused(files: Files, kind: str, case: str, raw: Path) -> None:
    """Damage all files of a kind in a new raw folder; the reader refuses them with the reason."""
    name, pattern, cases = files[kind]
    damage, reason = cases[case]
    reader = FOLDERS[name](raw)
    for path in raw.rglob(pattern):
        damage(path)
    outcomes, growth_mb = read_checked(reader, raw)
    if name == "sdd":  # other files of the folder are read
        outcomes = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert outcomes
    for outcome in outcomes:
        assert isinstance(outcome, str)
        assert re.search(reason, outcome), outcome
    assert growth_mb < MAX_GROWTH_MB


def check_dropped(files: Files, kind: str, case: str, raw: Path) -> None:
    """Damage all files of a kind in a new raw folder; scenes remain, and the detail is counted."""
    name, pattern, cases = files[kind]
    damage, cause = cases[case]
    reader = FOLDERS[name](raw)
    paths = list(raw.rglob(pattern))
    for path in paths:
        damage(path)
    with collect_dropped() as dropped:
        outcomes, growth_mb = read_checked(reader, raw)
    assert outcomes
    assert all(isinstance(outcome, Scene) for outcome in outcomes), outcomes
    assert {path for path, _ in dropped} == set(paths)
    assert any(re.search(cause, text) for _, text in dropped), dropped
    assert growth_mb < MAX_GROWTH_MB


# ---- damages -----------------------------------------------------------------------------------


def then(first: Damage, second: Damage) -> Damage:
    """Two damages in sequence."""

    def damage(path: Path) -> None:
        first(path)
        second(path)

    return damage


def edited(name: str, value: Any) -> Damage:
    """One cell of a table has another value."""
    return table(cell(name, value))


def constant(name: str, value: Any) -> Damage:
    """All cells of a column have one value."""
    return table(column(name, lambda values: value))


def replaced(name: str, old: str, new: str) -> Damage:
    """A word is replaced in a column."""
    return table(words(name, old, new))


def with_row_many_times(count: int, name: str) -> Damage:
    """Append the last row many times, each with another word in one column."""

    def change(whole: pa.Table) -> pa.Table:
        more = rows(lambda size: np.full(count, size - 1))(whole)
        new_words = pa.array([f"t{index}" for index in range(count)])
        return pa.concat_tables([whole, column(name, lambda values: new_words)(more)])

    return table(change)


def without(name: str) -> Damage:
    return table(lambda whole: whole.drop_columns([name]))


def twice(name: str) -> Damage:
    return table(lambda whole: whole.append_column(name, whole[name]))


def claim_rows(count: int) -> Damage:
    """Change the number of rows in the metadata of a parquet file; the data stay."""

    def varint(value: int, length: int) -> bytes:
        zigzag = value << 1
        digits = [zigzag >> 7 * n & 127 for n in range(length)]
        continued = [digit | 128 for digit in digits[:-1]]
        return bytes([*continued, digits[-1]])

    def change(data: bytes) -> bytes:
        known = pq.read_metadata(pa.BufferReader(data)).num_rows
        length = -(-(known << 1).bit_length() // 7)
        start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        metadata = data[start:]
        assert varint(known, length) in metadata
        return data[:start] + metadata.replace(varint(known, length), varint(count, length), 1)

    return change_bytes(change)


def word(index: int, value: str) -> Damage:
    """One word in the fifth line of a text file is another one."""

    def change(data: bytes) -> bytes:
        lines = data.decode().splitlines()
        row = lines[4].split()
        row[index] = value
        lines[4] = " ".join(row)
        return "\n".join(lines).encode(errors="surrogateescape")

    return change_bytes(change)


def everything_twice(data: bytes) -> bytes:
    return data + data


ROWS_TWICE = table(lambda whole: pa.concat_tables([whole, whole]))
LINES_TWICE = change_bytes(everything_twice)
