"""Damages of tables, JSON and text files, and reading in a process with limited memory."""

import json
import pickle
import random
import re
import resource
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import torch
import yaml
from pyarrow import feather

from data_prep.readers.waymo.tfrecord import frame_record, list_records, read_record
from trajformer.scenes import wire
from trajformer.testing.readers import (
    WORDS,
    Damage,
    Outcome,
    change_bytes,
    check_messages,
    random_edit,
    read_all,
)

MEMORY_BYTES = 8 << 30  # address space of the process
Change = Callable[[pa.Table], pa.Table]
ODD_NUMBERS = [
    0.0,
    -1.0,
    0.5,
    1e9,
    1e300,
    -1e300,
    5e-324,
    2.0**31,
    2.0**53,
    2.0**63,
    float("nan"),
    float("inf"),
    None,
]
ODD_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.int8(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.bool_(),
    pa.binary(),
    pa.date32(),
    pa.decimal128(20, 3),
    pa.timestamp("ns"),
    pa.dictionary(pa.int16(), pa.string()),
    pa.null(),
    pa.list_(pa.float64()),
]
ODD_JSON = [
    None,
    True,
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
    [{"x": 1.0, "y": 2.0}],
]


# ---- text and JSON -------------------------------------------------------------------------------


def text(pattern: str, new: str, count: int = 0) -> Damage:
    """Replace a regular expression; surrogates in `new` stand for bytes that are not UTF-8."""

    replacement = new.encode(errors="surrogateescape")

    def change(data: bytes) -> bytes:
        changed, number = re.subn(pattern.encode(), replacement, data, count=count)
        assert number, pattern
        return changed

    return change_bytes(change)


def prefix(content: str) -> Damage:
    return change_bytes(lambda data: content.encode() + data)


def encoded(name: str) -> Damage:
    return change_bytes(lambda data: data.decode().encode(name))


def json_value(*keys: Any, value: Any = None, drop: bool = False) -> Damage:
    """Replace or delete the value at a path of keys; the key 0 of an object is its first key."""

    def damage(path: Path) -> None:
        document = inner = json.loads(path.read_text())
        *parents, last = keys
        for key in parents:
            if key == 0 and isinstance(inner, dict):
                key = next(iter(inner))
            inner = inner[key]
        if drop:
            del inner[last]
        else:
            inner[last] = value
        path.write_text(json.dumps(document))

    return damage


# ---- tables --------------------------------------------------------------------------------------


def table(change: Change, **options: Any) -> Damage:
    """Change the table in a csv (all cells are text), feather or parquet file."""

    def damage(path: Path) -> None:
        changed = change(_read(path))
        if path.suffix == ".csv":
            # csv has no lists
            kinds = enumerate(changed.schema.types)
            flat = [index for index, kind in kinds if not pa.types.is_list(kind)]
            pa_csv.write_csv(changed.select(flat), path)
        elif path.suffix == ".parquet":
            pq.write_table(changed, path, **options)
        else:  # `write_feather` refuses two columns of one name
            ipc_options = pa.ipc.IpcWriteOptions(**options)
            with (
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_file(sink, changed.schema, options=ipc_options) as writer,
            ):
                writer.write_table(changed)

    return damage


def _read(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.read_table(path)
    if path.suffix in (".feather", ".arrow"):
        return feather.read_table(path, memory_map=False)
    with pa_csv.open_csv(path) as head:
        kinds = dict.fromkeys(head.schema.names, pa.string())
    return pa_csv.read_csv(path, convert_options=pa_csv.ConvertOptions(column_types=kinds))


def column(name: str, change: Callable[[pa.ChunkedArray], Any]) -> Change:
    """Replace a column by an array of the same length, or by one repeated value."""

    def replace(whole: pa.Table) -> pa.Table:
        values = change(whole[name])
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            values = pa.array([values] * len(whole))
        return whole.set_column(whole.column_names.index(name), name, values)

    return replace


def cell(name: str, value: Any, row: int = 7) -> Change:
    def change(old: pa.ChunkedArray) -> pa.Array:
        values = old.to_pylist()
        values[row] = value
        kind = pa.float64() if isinstance(value, float) else old.type
        return pa.array(values, kind)

    return column(name, change)


def words(name: str, old: str, new: str) -> Change:
    return column(name, lambda values: pc.replace_substring(values, old, new))


def rows(index: Callable[[int], np.ndarray]) -> Change:
    """Take rows by their numbers, as a function of the number of rows."""
    return lambda whole: whole.take(pa.array(np.asarray(index(len(whole)), np.int64)))


# ---- random damage -------------------------------------------------------------------------------


def random_table(rng: random.Random) -> Damage:
    """One to three random changes of rows, columns, types and cells."""
    seeds = [rng.getrandbits(32) for _ in range(rng.randint(1, 3))]

    def change(whole: pa.Table) -> pa.Table:
        for seed in seeds:
            if whole.num_columns:
                whole = _change_table(whole, random.Random(seed))
        return whole

    return table(change)


_TABLE_CHANGES = (
    "drop",
    "rename",
    "double",
    "exchange",
    "type",
    "type",
    "rows",
    "cells",
    "cells",
    "cells",
)


def _change_table(whole: pa.Table, rng: random.Random) -> pa.Table:
    names = whole.column_names
    index = rng.randrange(len(names))
    other = rng.randrange(len(names))
    values = whole.column(index)
    match rng.choice(_TABLE_CHANGES):
        case "drop":
            return whole.remove_column(index)
        case "rename":
            names[index] = names[index].upper()
            return whole.rename_columns(names)
        case "double":
            return whole.append_column(names[index], whole.column(other))
        case "exchange":
            return whole.set_column(index, names[index], whole.column(other))
        case "type":
            return whole.set_column(index, names[index], _cast(values, rng.choice(ODD_TYPES)))
        case "rows":
            return whole.take(pa.array(_random_rows(len(whole), rng), pa.int64()))
    try:
        return whole.set_column(index, names[index], _with_odd_cells(values, rng))
    except (pa.ArrowException, TypeError):  # a column of an odd type
        return whole


def _random_rows(size: int, rng: random.Random) -> list[int]:
    """Rows with repetitions: in any order, sorted, or each once."""
    order: list[int] = []
    if size:
        order = [rng.randrange(size) for _ in range(rng.randrange(2 * size))]
    return rng.choice([order, sorted(order), sorted(set(order))])


def _with_odd_cells(values: pa.ChunkedArray, rng: random.Random) -> pa.Array:
    """One cell, some or all of them have an odd value."""
    size = len(values)
    start = rng.randrange(size) if size else 0
    if pa.types.is_string(values.type):
        kind = pa.string()
        odd = rng.choice(WORDS)
    else:
        kind = pa.float64()
        odd = rng.choice(ODD_NUMBERS)
    stop = min(size, start + rng.choice([1, 1, 9, 9999]))
    changed = values.to_pylist()
    changed[start:stop] = [odd] * (stop - start)
    return pa.array(changed, kind)


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return pa.array([[1.0]] * len(values), kind)
    try:
        return pc.cast(values, kind, safe=False)
    except (pa.ArrowException, ValueError):
        return pa.nulls(len(values), kind)


def random_json(rng: random.Random) -> Damage:
    """Replace, drop or double an entry of a JSON document at any depth."""

    def damage(path: Path) -> None:
        document = json.loads(path.read_text())
        if document:
            _change_entry(document, rng, ODD_JSON)
            path.write_text(json.dumps(document))

    return damage


def random_pickle(rng: random.Random) -> Damage:
    """Replace, drop or double an entry of a pickle at any depth."""
    arrays = [np.zeros(0), np.full(25, np.nan), np.zeros((25, 3), bool), np.array(["x"] * 25)]
    odd = [*ODD_JSON, {"a"}, 10**17, float("nan"), *arrays]

    def damage(path: Path) -> None:
        document = pickle.loads(path.read_bytes())
        _change_entry(document, rng, odd)
        path.write_bytes(pickle.dumps(document, rng.choice([3, 4, 5, 5])))

    return damage


def _change_entry(document: Any, rng: random.Random, odd: list[Any]) -> None:
    """Change an entry at a random depth of at most 5."""
    parent = document
    key = next(iter(document))
    inner = document
    for _ in range(rng.randint(1, 5)):
        keys = _keys(inner)
        if not keys:
            break
        parent = inner
        key = rng.choice(keys)
        inner = parent[key]
    kind = rng.choice(["replace", "replace", "drop", "double"])
    if kind == "drop":
        del parent[key]
    elif kind == "double" and isinstance(parent, list):
        parent.append(inner)
    else:
        parent[key] = rng.choice(odd)


def _keys(value: Any) -> list[Any]:
    """Keys of an object, positions in a list; a plain value has none."""
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, list):
        return list(range(len(value)))
    return []


def random_yaml(rng: random.Random) -> Damage:
    def damage(path: Path) -> None:
        path.write_text(json.dumps(yaml.safe_load(path.read_text())))
        random_json(rng)(path)
        path.write_text(yaml.safe_dump(json.loads(path.read_text())))

    return damage


def random_checkpoint(rng: random.Random) -> Damage:
    """Replace an entry of the recipe, or change a tensor."""

    def damage(path: Path) -> None:
        raw = torch.load(path, weights_only=True)
        recipe = path.with_suffix(".json")
        if "loops" in raw and rng.random() < 0.7:  # the state of a training
            head, weights = raw.pop("trajformer"), raw.pop("state_dict")
            _change_entry(raw, rng, [*ODD_JSON, torch.ones(3), torch.ones(()).long()])
            raw |= {"trajformer": head, "state_dict": weights}
        elif rng.random() < 0.7:
            recipe.write_text(json.dumps(raw["trajformer"]))
            random_json(rng)(recipe)
            raw["trajformer"] = json.loads(recipe.read_text())
            recipe.unlink()
        else:
            name = rng.choice(sorted(raw["state_dict"]))
            odd = [torch.ones(1), torch.ones(2, 2).bool(), torch.ones(0), None]
            raw["state_dict"][rng.choice([name, name[:-1]])] = rng.choice(odd)
        torch.save(raw, path)

    return damage


def random_tfrecord(rng: random.Random) -> Damage:
    """Change fields of a record, at any depth, with correct checksums."""

    def damage(path: Path) -> None:
        contents = [read_record(path, offset) for offset in list_records(path)]
        number = rng.randrange(len(contents))
        contents[number] = _change_message(contents[number], rng)
        path.write_bytes(b"".join(map(frame_record, contents)))

    return damage


def _change_message(content: bytes, rng: random.Random) -> bytes:
    """A protocol buffer with one changed field; changes of bytes if it is no message."""
    try:
        fields = wire.read_fields(content, 0, len(content))
    except wire.WireError:
        fields = []
    if not fields:
        return random_edit(rng)(content)
    spans = [0, *(field[3] for field in fields)]
    parts = [content[a:b] for a, b in pairwise(spans)]
    index = rng.randrange(len(parts))
    number, kind, value, end = fields[index]
    match rng.choice(["inner", "inner", "inner", "drop", "repeat", "order", "value", "number"]):
        case "inner" if kind == wire.BYTES:
            parts[index] = wire.write_bytes(number, _change_message(content[value:end], rng))
        case "drop":
            parts[index : index + rng.choice([1, 1, 3, 100])] = []
        case "repeat":
            parts[index] *= rng.choice([2, 3, 1000])
        case "order":
            rng.shuffle(parts)
        case "number":
            other = rng.choice([1, 2, 3, 5, 8, 11, 17, 1000, 2**29 - 1])
            parts[index] = wire.write_bytes(other, content[value:end])
        case _:
            parts[index] = _odd_field(number, rng)
    return b"".join(parts)


def _odd_field(number: int, rng: random.Random) -> bytes:
    """A field with an odd value of any type; lengths and wire types may be wrong."""
    odd = rng.choice([value for value in ODD_NUMBERS if value is not None])
    whole = rng.choice([0, -1, 2, 12, 255, 2**31 - 1, 2**53, 2**63 - 1, -(2**63)])
    choices = [
        wire.write_number(number, whole),
        wire.write_double(number, odd),
        wire.write_float(number, np.float32(np.clip(odd, -3e38, 3e38))),
        wire.write_bytes(number, bytes(rng.choice([0, 1, 8, 5000]))),
        wire.write_varint(number << 3 | 2) + wire.write_varint(rng.choice([2**31, 2**63, 500])),
        wire.write_varint(number << 3 | rng.choice([3, 4, 6, 7])),
        b"\xff" * rng.choice([1, 9, 10, 11]),
    ]
    return rng.choice(choices)


STRUCTURED: dict[str, Callable[[random.Random], Damage]] = {
    ".parquet": random_table,
    ".feather": random_table,
    ".arrow": random_table,
    ".csv": random_table,
    ".json": random_json,
    ".geojson": random_json,
    ".pkl": random_pickle,
    ".yaml": random_yaml,
    ".ckpt": random_checkpoint,
    ".tfrecord": random_tfrecord,
}


def random_damage(suffix: str, rng: random.Random) -> Damage:
    """Random change of the bytes, the table or the document in the file."""
    if suffix in STRUCTURED and rng.random() < 0.6:
        return STRUCTURED[suffix](rng)
    return change_bytes(random_edit(rng))


# ---- a process with limited memory ---------------------------------------------------------------


def limit_process() -> None:
    """Limit the memory of this process and make warnings errors."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    warnings.simplefilter("error", RuntimeWarning)


def read_checked(reader: Any, raw: Path) -> tuple[list[Outcome], float]:
    """Read all inputs of a raw folder and check the messages of the refused ones.

    Returns:
        a scene or a message for each input, and the growth of the peak memory in MB.
    """
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = memory_mb("VmRSS")
    outcomes: dict[str, Outcome] = {}
    for split in reader.splits(raw):
        outcomes |= read_all(reader, raw, split)
    check_messages(outcomes, raw)
    return list(outcomes.values()), memory_mb("VmHWM") - before


def memory_mb(name: str) -> float:
    """A value of this process, for example "VmRSS", the memory in use."""
    status = Path("/proc/self/status").read_text()
    match = re.search(rf"{name}:\s+(\d+) kB", status)
    assert match
    return int(match[1]) / 1024
