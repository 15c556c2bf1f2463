"""Metadata of recordings in the layout of inD: csv files with a row per track or recording."""

import csv
import io
from pathlib import Path

import numpy as np

from data_prep.readers.raw_file import read_file
from trajformer.errors import SceneError, one_line
from trajformer.scenes.parsed_file import cached_by_file

MAX_BYTES = 64 << 20
MAX_RATE = 1_000.0  # frames per second


def read_rows(path: Path, *names: str) -> list[dict[str, str]]:
    """Rows of a file of metadata; the column trackId of inD and id of highD are both `id`.

    SceneError without one of the columns `names`.
    """
    try:
        # A damaged byte affects its own row.
        text = read_file(path, MAX_BYTES).decode("utf-8-sig", "replace")
        rows = []
        for row in csv.DictReader(io.StringIO(text)):
            plain = {(key or "").strip(): value or "" for key, value in row.items() if key}
            if "trackId" in plain:
                plain["id"] = plain["trackId"]
            rows.append(plain)
    except (OSError, ValueError, csv.Error) as error:
        raise SceneError(f"{path}: cannot be read: {one_line(error)}") from error
    for name in names:
        if not rows or name not in rows[0]:
            raise SceneError(f"{path}: {name}: no such column, or no rows")
    return rows


@cached_by_file(16)
def read_recording(path: Path) -> dict[str, str]:
    """The only row of the metadata of a recording."""
    return read_rows(path, "frameRate")[0]


def number_of(row: dict[str, str], name: str, path: Path) -> float:
    """A number of a row; SceneError if it is none."""
    try:
        value = float(row[name])
    except (KeyError, ValueError):
        value = np.nan
    if not abs(value) < 1e9:
        raise SceneError(f"{path}: {name}: {row.get(name, '')[:40]!r}, expected a number")
    return value


def frame_rate(recording: dict[str, str], path: Path) -> float:
    """Frames per second of a recording."""
    rate = number_of(recording, "frameRate", path)
    if not 0 < rate <= MAX_RATE:
        raise SceneError(
            f"{path}: frameRate: {rate:g}, expected up to {MAX_RATE:g} frames a second"
        )
    return rate
