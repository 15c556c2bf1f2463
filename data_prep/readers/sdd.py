"""Reader of Stanford Drone: tracks in pixels of the images of a drone, 8 + 12 steps at 2.5 Hz.

Three layouts are read, in one folder if several are present. A parquet file with the columns split,
scene, agent, step (0 to 19), x and y holds the usual split into scenes that all have 20 steps. A
text file `<split>/<scene>.txt` has rows `frame id x y`; its scenes are windows of 20 consecutive
annotated frames (see `recordings`). The raw annotations, `<split>/<scene>/<video>/annotations.txt`,
have boxes at every frame and types of agents (see `sdd_annotations`).

The size of a pixel differs between the locations, and the files do not state it. So positions stay
in pixels, and the scene records this unit. The first two layouts name no types of agents. As in the
benchmark, all count as pedestrians; some are cyclists.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from data_prep.reader import Input
from data_prep.readers import columns
from data_prep.readers.raw_file import list_parts
from data_prep.readers.recordings import (
    Layout,
    Recording,
    read_recording,
    window_inputs,
    window_of,
    window_scene,
)
from data_prep.readers.row_check import RowCheck
from data_prep.readers.sdd_annotations import NAME as BOXES
from data_prep.readers.sdd_annotations import read_annotations
from trajformer.config import Config
from trajformer.errors import SceneError
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import MAX_EXTENT_M, PIXELS, AgentKind, Scene

PERIOD_S = 0.4
NUM_HISTORY = 8
NUM_FUTURE = 12
DIRECTION_PX = 4.0  # shorter displacements have no direction; the median step is 10 pixels long
LAYOUT = Layout(4, 2, 3, "pixels")
_STEPS = NUM_HISTORY + NUM_FUTURE
_MAX_NUMBER = 1 << 30  # of a scene or an agent
_BOUNDS = columns.ParquetBounds(file_bytes=64 << 20, num_bytes=64 << 20, rows=4_000_000)
_LIMITS = {"scene": 1e9, "agent": 1e9, "step": 1e9, "x": MAX_EXTENT_M, "y": MAX_EXTENT_M}


@dataclass(frozen=True)
class Sdd(Config, limits={"stride": (1, 10**9), "val_scenes": (0, 10**9)}):
    """Reader of the Stanford Drone tracks.

    Attributes:
        stride: of the windows of a text file, every `stride`-th is used.
        val_scenes: this number of last scenes of the training part of the parquet file become the
            split val, which the benchmark lacks.
    """

    stride: int = 1
    val_scenes: int = 0
    name: ClassVar[str] = "sdd"
    layout: ClassVar[str] = (
        "RAW/*.parquet with columns split, scene, agent, step, x, y, "
        "or RAW/<split>/<scene>.txt with frame id x y, "
        f"or RAW/<split>/<scene>/<video>/{BOXES}"
    )
    published: ClassVar[dict[str, int]] = {"train": 6_097, "test": 1_951}

    def splits(self, raw: Path) -> list[str]:
        """Splits of the parquet file, and folders with text files.

        A parquet file that cannot be read counts as one with the published splits.
        """
        names = {path.parent.name for path in raw.glob("[!.]*/[!.]*.txt")}
        names |= {path.parents[2].name for path in raw.glob(f"[!.]*/*/*/{BOXES}")}
        for path in raw.glob("[!.]*.parquet"):
            try:
                names |= set(read_tracks(path).splits)
            except SceneError:
                names |= set(self.published)
            if self.val_scenes:
                names.add("val")
        return sorted(names)

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Scenes of the parquet file by number, then windows of the text files by first frame."""
        files = sorted(raw.glob("[!.]*.parquet"))
        scenes = list_parts(files, lambda path: self._scenes(read_tracks(path), split))
        texts = (raw / split).glob("[!.]*.txt")
        boxes = sorted((raw / split).glob(f"*/*/{BOXES}"))
        windows = window_inputs(texts, (LAYOUT,), _STEPS, self.stride)
        return scenes + windows + list_parts(boxes, self._windows)

    def _windows(self, path: Path) -> list[int]:
        """First frames of the windows of a file of boxes."""
        frames = read_annotations(path).first_frames(_STEPS)
        return frames[:: self.stride].tolist()

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file belongs to a scene: all recordings are inputs."""
        return False

    def _scenes(self, tracks: SddTracks, split: str) -> list[int]:
        """Numbers of the scenes of a split."""
        if not self.val_scenes or split not in ("train", "val"):
            return tracks.scenes(split)
        scenes = tracks.scenes("train")
        if split == "val":
            return scenes[-self.val_scenes :]
        return scenes[: -self.val_scenes]

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one scene; SceneError also if it has no scored agent."""
        if item.path.suffix == ".parquet":
            if not item.part:  # the file could not be listed
                columns.check_opens(item.path)
            source_split = "train" if self.val_scenes and split == "val" else split
            recording = read_tracks(item.path).recording(source_split, item)
            first = 0
            name = f"{split}-{item.part}"
            location = ""
        elif item.path.name == BOXES:
            recording = read_annotations(item.path)
            first, _ = window_of(item, recording, _STEPS)
            location = f"{item.path.parents[1].name}_{item.path.parent.name}"
            name = f"{location}-{first}"
        else:
            recording = read_recording(item.path, LAYOUT)
            first, _ = window_of(item, recording, _STEPS)
            location = item.path.stem
            name = f"{location}-{first}"
        return window_scene(
            recording,
            first,
            (PERIOD_S, NUM_HISTORY, NUM_FUTURE),
            (name, self.name, split, location),
            AgentKind.PEDESTRIAN,
            direction=DIRECTION_PX,
            unit=PIXELS,
        )


class SddTracks(NamedTuple):
    """The R rows of a parquet file, sorted by split, scene, step and agent."""

    path: Path
    splits: list[str]
    split: np.ndarray  # int64 [R], index into `splits`
    scene: np.ndarray  # int64 [R]
    agent: np.ndarray  # int64 [R]
    step: np.ndarray  # int64 [R]
    position: np.ndarray  # float64 [R, 2], pixels

    def scenes(self, split: str) -> list[int]:
        """Numbers of the scenes of a split."""
        return np.unique(self.scene[self._rows(split)]).tolist()

    def _rows(self, split: str) -> slice:
        """Rows of a split; none if the file does not have it."""
        if split not in self.splits:
            return slice(0, 0)
        code = self.splits.index(split)
        return columns.rows_between(self.split, code, code + 1)

    def recording(self, split: str, item: Input) -> Recording:
        """The rows of one scene."""
        part = self._rows(split)
        number = int(item.part or -1)
        in_part = columns.rows_between(self.scene[part], number, number + 1)
        rows = slice(part.start + in_part.start, part.start + in_part.stop)
        agents, agent = np.unique(self.agent[rows], return_inverse=True)
        agent_id = tuple(str(number) for number in agents.tolist())
        step = self.step[rows]
        return Recording(self.path, agent_id, step, agent, self.position[rows], interval=1)


@cached_by_file(2)
def read_tracks(path: Path) -> SddTracks:
    """Read and check a parquet file; a SceneError names the file and the column."""
    # Scenes are listed in the first process, which must not end with a broken file.
    if multiprocessing.parent_process() is None:
        columns.check_opens(path)
    table = columns.read_parquet(path, _LIMITS, ["split"], _BOUNDS)
    check = RowCheck(path, len(table["split"]))
    text = columns.usable_text(table, ["split"], check)
    values = columns.usable_numbers(table, _LIMITS, check)
    scene = columns.usable_whole_numbers(values["scene"], _MAX_NUMBER, "scene", check)
    agent = columns.usable_whole_numbers(values["agent"], _MAX_NUMBER, "agent", check)
    step = columns.usable_whole_numbers(values["step"], _STEPS - 1, "step", check)
    position = np.stack([values["x"], values["y"]], -1)
    splits, _, split = columns.groups(text["split"])
    check.drop_repeated(
        np.stack([split, scene, step, agent]),
        position,
        "agent: twice in a step",
        lambda row: f"agent: {agent[row]} is twice in step {step[row]} of scene {scene[row]}",
    )
    rows = np.flatnonzero(check.finish())
    order = rows[np.lexsort((agent[rows], step[rows], scene[rows], split[rows]))]
    return SddTracks(
        path=path,
        splits=splits,
        split=split[order],
        scene=scene[order],
        agent=agent[order],
        step=step[order],
        position=position[order],
    )
