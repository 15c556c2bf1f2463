"""Raw annotations of Stanford Drone: a box in pixels for every agent and frame of a video.

Rows of `annotations.txt` are `id xmin ymin xmax ymax frame lost occluded generated "label"`. The
videos have about 30 frames per second, so that every twelfth frame is a step of 0.4 s, as in the
benchmark. Rows that are marked as lost, outside the view, have no position.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from data_prep.readers import columns
from data_prep.readers.csv_rows import read_rows, utf8
from data_prep.readers.recordings import Recording
from data_prep.readers.row_check import RowCheck
from trajformer.errors import SceneError, one_line
from trajformer.scenes.files import read_file
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import MAX_EXTENT_M, AgentKind

NAME = "annotations.txt"
FRAMES_PER_STEP = 12
MAX_BYTES = 1 << 30
MAX_ROWS = 20_000_000
_MAX_NUMBER = 1 << 30
_BOX = ("xmin", "ymin", "xmax", "ymax")
_LIMITS = {"id": 1e9, "frame": 1e9, "lost": 1.0} | dict.fromkeys(_BOX, MAX_EXTENT_M)
_NAMES = ("id", *_BOX, "frame", "lost", "occluded", "generated", "label")
_READING = pa_csv.ReadOptions(use_threads=False, column_names=list(_NAMES))
_KINDS = {
    "Pedestrian": AgentKind.PEDESTRIAN,
    "Skater": AgentKind.PEDESTRIAN,
    "Biker": AgentKind.CYCLIST,
    "Cart": AgentKind.VEHICLE,
    "Car": AgentKind.VEHICLE,
    "Bus": AgentKind.BUS,
}


@cached_by_file(4)
def read_annotations(path: Path) -> Recording:
    """The middles of the boxes at every twelfth frame; a SceneError names the file and column."""
    table, num_lost = _read(path)
    check = RowCheck(path, len(table))
    check.lose(num_lost, "another number of columns, expected 10")
    values = columns.usable_numbers(table, _LIMITS, check)
    agent_number = columns.usable_whole_numbers(values["id"], _MAX_NUMBER, "id", check)
    frame = columns.usable_whole_numbers(values["frame"], _MAX_NUMBER, "frame", check)
    center_x = (values["xmin"] + values["xmax"]) / 2
    center_y = (values["ymin"] + values["ymax"]) / 2
    position = np.stack([center_x, center_y], -1)
    check.drop_repeated(
        np.stack([frame, agent_number]),
        position,
        "id: twice in a frame",
        lambda row: f"id: {agent_number[row]} is twice in frame {frame[row]}",
    )
    is_step = (frame % FRAMES_PER_STEP == 0) & (values["lost"] == 0)
    rows = np.flatnonzero(check.finish() & is_step)
    if not len(rows):
        raise SceneError(f"{path}: frame: no agent in a multiple of {FRAMES_PER_STEP}")
    number, first, agent = np.unique(agent_number[rows], return_index=True, return_inverse=True)
    labels = columns.values_at(table["label"], rows[first])
    kinds = columns.translate_types(labels, _KINDS, "label", path)
    order = np.lexsort((agent, frame[rows]))
    return Recording(
        path=path,
        agent_id=tuple(map(str, number.tolist())),
        frame=frame[rows][order],
        agent=agent[order],
        position=position[rows][order],
        interval=FRAMES_PER_STEP,
        kind=np.array(kinds, np.uint8),
    )


def _read(path: Path) -> tuple[pa.Table, int]:
    """Columns by name, and the number of rows with another number of columns."""
    words = dict.fromkeys((*_LIMITS, "label"), columns.DICTIONARY)
    try:
        data = utf8(read_file(path, MAX_BYTES))
        if not data.strip():
            raise ValueError("no rows")
        types = words | dict.fromkeys(_LIMITS, pa.float64())
        try:
            table, num_lost = read_rows(data, types, _READING, delimiter=" ")
        except pa.ArrowInvalid:  # text in a column of numbers
            table, num_lost = read_rows(data, words, _READING, delimiter=" ")
            for index, name in enumerate(_LIMITS):
                table = table.set_column(index, name, columns.numbers_of_words(table[name]))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SceneError(f"{path}: not annotations of boxes: {one_line(error)}") from error
    columns.check_count(len(table), MAX_ROWS, "rows", path)
    return table, num_lost
