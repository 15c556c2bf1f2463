"""Forecasts of other programs as a CSV file: one row per future step of a mode.

| column | content |
| --- | --- |
| `scene_id`, `track_id` | ids as in the raw files, text |
| `mode` | number of the mode within its track |
| `probability` | of the mode, the same in all its rows |
| `step` | 1 is the first step after the last observed one, F the last |
| `x`, `y` | metres in the city frame |

Rows may have any order, and other columns are ignored.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from trajformer.config import MAX_TEXT
from trajformer.errors import TrajformerError
from trajformer.scenes.files import open_file
from trajformer.scenes.spec import MAX_STEPS

TEXT = ("scene_id", "track_id")
NUMBERS = ("mode", "probability", "step", "x", "y")
COLUMNS = (*TEXT, *NUMBERS)
MAX_BYTES = 4 << 30  # 50 million rows take about 6 GB of memory
MAX_MODE = 1e9
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())


class ModeRow(NamedTuple):
    """One mode of one track.

    Attributes:
        scene_id, track_id: ids.
        probability: of the mode.
        position: float64 [F, 2], metres in the city frame.
        problem: why the mode cannot be used; empty if it can.
    """

    scene_id: str
    track_id: str
    probability: float
    position: np.ndarray
    problem: str = ""


def read_mode_rows(path: Path) -> Iterator[ModeRow]:
    """The modes of a CSV file, sorted by track and mode; tracks in the order of the file.

    A mode that is given n times yields n rows. Values may be NaN, and steps may be missing
    (`ModeRow.problem`). Raises TrajformerError: a column is missing or is no number, a step or mode
    is no whole number, or a mode has several probabilities. OSError or ArrowException: the file
    cannot be read.
    """
    table = _read(path)
    scene = table.column("scene_id").combine_chunks()
    track = table.column("track_id").combine_chunks()
    value = {}
    for name in NUMBERS:
        column = table.column(name).combine_chunks().fill_null(np.nan)
        value[name] = column.to_numpy(zero_copy_only=False)
    step = _whole(value["step"], "step", 1, MAX_STEPS)
    mode = _whole(value["mode"], "mode", 0, MAX_MODE)
    point = np.stack([value["x"], value["y"]], -1)

    # The n-th row of a step belongs to the n-th copy of its mode.
    key = _track_keys(scene, track)
    order = np.lexsort((step, mode, key))
    group = _starts(key[order], mode[order], step[order])
    copy = np.empty(len(order), np.int64)
    copy[order] = np.arange(len(order)) - np.repeat(group, np.diff([*group, len(order)]))
    order = np.lexsort((step, copy, mode, key))
    begin = _starts(key[order], mode[order], copy[order])
    end = np.append(begin[1:], len(order))

    scene_ids = scene.dictionary.to_pylist()
    track_ids = track.dictionary.to_pylist()
    scene_code = scene.indices.to_numpy(zero_copy_only=False)
    track_code = track.indices.to_numpy(zero_copy_only=False)
    for first, last in zip(begin.tolist(), end.tolist(), strict=True):
        rows = order[first:last]
        row = rows[0]
        scene_id = scene_ids[scene_code[row]]
        track_id = track_ids[track_code[row]]
        probability = value["probability"][rows]
        if not np.array_equal(probability, probability[:1].repeat(len(rows)), equal_nan=True):
            where = f"mode {mode[row]} of track {track_id!r} in scene {scene_id!r}"
            found = f"{np.nanmin(probability):g} to {np.nanmax(probability):g}"
            raise TrajformerError(f"probability: {found} in {where}, expected one value per mode")
        problem = _missing_step(step[rows], int(mode[row]))
        yield ModeRow(scene_id, track_id, float(probability[0]), point[rows], problem)


def _read(path: Path) -> pa.Table:
    """The columns of the file, with text as dictionaries."""
    with open_file(path, MAX_BYTES) as file:
        header = file.readline(MAX_TEXT).decode("utf-8-sig")
        names = [name.strip('"') for name in header.strip().split(",")]
        missing = [name for name in COLUMNS if name not in names]
        if missing:
            columns = f"no column {', '.join(missing)}"
            raise TrajformerError(f"{columns}; expected a header with {', '.join(COLUMNS)}")
        repeated = [name for name in COLUMNS if names.count(name) > 1]
        if repeated:
            raise TrajformerError(f"two columns {', '.join(repeated)}")
        file.seek(0)
        kinds = dict.fromkeys(TEXT, _DICTIONARY) | dict.fromkeys(NUMBERS, pa.float64())
        options = pa_csv.ConvertOptions(column_types=kinds, include_columns=list(COLUMNS))
        table = pa_csv.read_csv(file, convert_options=options).unify_dictionaries()
    if not len(table):
        raise TrajformerError("no rows")
    return table


def _whole(values: np.ndarray, name: str, lowest: float, highest: float) -> np.ndarray:
    """Values as int64 (TrajformerError: one is no whole number within the limits)."""
    is_valid = (values >= lowest) & (values <= highest) & (np.floor(values) == values)
    wrong = np.flatnonzero(~is_valid)
    if len(wrong):
        row = int(wrong[0])
        expected = f"expected whole numbers of {lowest:g} to {highest:g}"
        if name == "step":
            expected += ", where 1 is the first step after the last observed one"
        raise TrajformerError(f"{name}: {values[row]:g} in row {row + 2}, {expected}")
    return values.astype(np.int64)


def _track_keys(scene: pa.DictionaryArray, track: pa.DictionaryArray) -> np.ndarray:
    """A number for each row, equal for rows of one track, rising with its first row."""
    scene_code = scene.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    track_code = track.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pair = scene_code * len(track.dictionary) + track_code
    _, first_row, number = np.unique(pair, return_index=True, return_inverse=True)
    rank = np.empty(len(first_row), np.int64)
    rank[np.argsort(first_row)] = np.arange(len(first_row))
    return rank[number]


def _starts(*columns: np.ndarray) -> np.ndarray:
    """Indices of the rows that differ from the row before in one of the sorted columns."""
    is_start = np.ones(len(columns[0]), bool)
    is_start[1:] = False
    for column in columns:
        is_start[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(is_start)


def _missing_step(step: np.ndarray, mode: int) -> str:
    """The first missing step of sorted steps, as a text that is empty without any."""
    expected = np.arange(1, len(step) + 1)
    if np.array_equal(step, expected):
        return ""
    first = int(expected[step != expected][0])
    return f"mode {mode} has no step {first}"
