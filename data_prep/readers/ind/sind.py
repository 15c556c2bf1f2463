"""Recordings of SIND: a folder with a file of vehicles and a file of pedestrians."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data_prep.readers.table.conventions import Conventions
from data_prep.readers.table.table_file import NUMBERS, TEXT, TableColumns, read_table
from data_prep.readers.track_files import Recorded, concatenate, with_word
from trajformer.errors import one_line
from trajformer.scenes.dropped import report_dropped

VEHICLES = "Veh_smoothed_tracks.csv"
PEDESTRIANS = "Ped_smoothed_tracks.csv"
KINDS = {  # of SIND, inD and highD
    "car": "vehicle",
    "van": "vehicle",
    "truck": "vehicle",
    "trailer": "vehicle",
    "truck_bus": "vehicle",
    "bus": "bus",
    "motorcycle": "motorcyclist",
    "bicycle": "cyclist",
    "tricycle": "cyclist",
    "pedestrian": "pedestrian",
}
_SIND = Conventions(
    columns={"timestamp": "timestamp_ms", "kind": "agent_type", "heading": "yaw_rad"},
    optional=("heading",),  # pedestrians have none
    kinds=KINDS,
)


def is_sind(path: Path) -> bool:
    """Whether a file holds tracks of SIND."""
    return path.name in (VEHICLES, PEDESTRIANS)


def read_sind(files: Sequence[Path]) -> Recorded:
    """The rows of the vehicles and pedestrians of a recording."""
    parts = [_read(path) for path in files]
    together = concatenate(parts)
    number = dict(together.number)
    number["timestamp"] = number["timestamp"] / 1000.0
    city = files[0].parent.parent.name
    return Recorded(with_word(replace(together, number=number), "city", city))


def _read(path: Path) -> TableColumns:
    """The rows of a file; words that are no kind of SIND are counted as unknown."""
    requested = (*TEXT, *NUMBERS)
    columns = read_table(path, requested, _SIND.columns, _SIND.optional)
    columns = _SIND.convert(columns)
    if "kind" not in columns.word:
        return columns
    known = set(KINDS.values())
    causes = {}
    words = []
    for word in columns.word["kind"]:
        if word not in known:
            causes[f"agent_type: unknown value {one_line(word[:40])!r}"] = 1
            word = ""
        words.append(word)
    report_dropped(path, causes)
    return replace(columns, word=columns.word | {"kind": words})
