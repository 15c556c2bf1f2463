"""Label files of nuScenes prediction: one row for each vehicle and frame."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.readers import columns
from data_prep.readers.text_rows import NumberColumn, TextRows
from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import MAX_EXTENT_M, AgentKind

NUM_COLUMNS = 18
KIND_COLUMN = 2
_KINDS = {
    "Car": AgentKind.VEHICLE,
    "Truck": AgentKind.VEHICLE,
    "Construction": AgentKind.VEHICLE,
    "Emergency": AgentKind.VEHICLE,
    "Bus": AgentKind.BUS,
}
_FRAME = NumberColumn("frame", 0, 1e6)
_ID = NumberColumn("id", 1, 1e6)
_X = NumberColumn("x", 13, MAX_EXTENT_M, "metres")
_Y = NumberColumn("y", 15, MAX_EXTENT_M, "metres")
_YAW = NumberColumn("yaw", 16, 100.0, "radians")
_TARGET = NumberColumn("target", 17, 1)


@dataclass(frozen=True, eq=False)
class Labels:
    """The R rows of a label file, sorted by frame."""

    path: Path
    frame: np.ndarray  # int64 [R]
    agent: np.ndarray  # int64 [R]
    kind: np.ndarray  # int64 [R], AgentKind
    position: np.ndarray  # float64 [R, 2], metres in the frame of the city
    yaw: np.ndarray  # float64 [R], radians
    target: np.ndarray  # int64 [R], 1 for an official target

    def target_frames(self) -> list[int]:
        """Frames with an official target (SceneError: no frame has one)."""
        frames = np.unique(self.frame[self.target == 1]).tolist()
        if not frames:
            raise SceneError(f"{self.path}: column 17 (target): no row is a target")
        return frames


@cached_by_file(4)
def read_labels(path: Path) -> Labels:
    """Parse a label file; a SceneError names the file, the line and the column."""
    rows = TextRows(path, NUM_COLUMNS)
    frame = rows.numbers(_FRAME).astype(np.int64)
    agent = rows.numbers(_ID).astype(np.int64)
    position = np.stack([rows.numbers(_X), rows.numbers(_Y)], -1)
    yaw = rows.numbers(_YAW)
    target = rows.numbers(_TARGET).astype(np.int64)
    rows.check.drop_repeated(
        np.stack([frame, agent]),
        np.column_stack([position, yaw, target]),
        "column 1 (id): twice in a frame",
        lambda row: (
            f"line {rows.line[row]}, column 1 (id): {agent[row]} is twice in frame {frame[row]}"
        ),
    )
    kept = np.flatnonzero(rows.check.finish())
    words = rows.column(KIND_COLUMN)
    kept_words = [words[row] for row in kept.tolist()]
    kinds = columns.translate_types(kept_words, _KINDS, f"column {KIND_COLUMN} (kind)", path)
    kind = np.array(kinds, np.int64)
    order = np.lexsort((agent[kept], frame[kept]))
    sorted_rows = kept[order]
    labels = Labels(
        path=path,
        frame=frame[sorted_rows],
        agent=agent[sorted_rows],
        kind=kind[order],
        position=position[sorted_rows],
        yaw=wrap(yaw)[sorted_rows],
        target=target[sorted_rows],
    )
    gaps = np.diff(np.unique(labels.frame))
    if len(gaps) and np.median(gaps) != 1:
        raise SceneError(
            f"{path}: column 0 (frame): frames are {np.median(gaps):g} apart, "
            "expected 1, a frame every 0.5 s"
        )
    return labels
