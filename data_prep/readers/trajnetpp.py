"""Reader of TrajNet++ (Kothari et al. 2021): pedestrians at 2.5 Hz, 9 + 12 steps, as ndjson.

A file has lines `{"scene": {id, p, s, e, fps, tag}}`, each with a primary pedestrian `p` from frame
`s` to `e`, and `{"track": {f, p, x, y}}` in metres. The primary pedestrian is focal, because the
benchmark scores it alone. Other pedestrians are context.

Files of one folder may have different frame rates (wildtrack: 2 Hz). A split has one clock, so
scenes of another rate than 2.5 Hz are a separate split, `<folder>_2hz`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np

from data_prep.reader import Input
from data_prep.readers.raw_file import list_parts, read_file
from data_prep.readers.recordings import Recording, window_scene
from data_prep.readers.row_check import RowCheck
from trajformer.config import Config
from trajformer.errors import SceneError, one_line
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import MAX_EXTENT_M, AgentKind, AgentRole, Scene

ALL = "all"  # the split of files directly in RAW
FRAME_RATE = 2.5
NUM_HISTORY = 9
NUM_FUTURE = 12
DIRECTION_M = 0.2  # shorter displacements have no direction
MAX_BYTES = 256 << 20  # a hundred times the largest file
MAX_FRAME = 1 << 40
_LAST = NUM_HISTORY + NUM_FUTURE - 1


class _Track(msgspec.Struct, gc=False):
    """A position in metres of the pedestrian `p` in the frame `f`."""

    f: int
    p: int
    x: float
    y: float
    prediction_number: int | None = None


class _SceneLine(msgspec.Struct, gc=False):
    """A scene of the primary pedestrian `p` from frame `s` to frame `e`."""

    id: int
    p: int
    s: int
    e: int
    fps: float = FRAME_RATE


class _Line(msgspec.Struct, gc=False):
    scene: _SceneLine | None = None
    track: _Track | None = None


@dataclass(frozen=True)
class TrajnetFile:
    """The tracks of a file, and its scenes by id."""

    recording: Recording
    scenes: dict[int, _SceneLine]

    def frame_rates(self) -> set[float]:
        """Frame rates of the scenes."""
        return {scene.fps for scene in self.scenes.values()}


@dataclass(frozen=True)
class Trajnetpp(Config):
    """Reader of TrajNet++ pedestrians."""

    name: ClassVar[str] = "trajnetpp"
    layout: ClassVar[str] = "RAW/<split>/<recording>.ndjson, or RAW/<recording>.ndjson"
    published: ClassVar[dict[str, int]] = {}  # differs between the releases

    def splits(self, raw: Path) -> list[str]:
        """Folders with files, and a split for each other frame rate; "all" for files in RAW."""
        names = set()
        for path in raw.rglob("[!.]*.ndjson"):
            folder = _folder(raw, path)
            if folder is None:
                continue
            names |= {_split_name(folder, rate) for rate in _frame_rates(path) or {FRAME_RATE}}
        return sorted(names)

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Scenes by file and id."""
        paths = []
        for path in sorted(raw.rglob("[!.]*.ndjson")):
            folder = _folder(raw, path)
            if folder is None:
                continue
            rates = _frame_rates(path)
            is_lost = not rates and split.startswith(folder)  # each of its splits has this error
            if is_lost or split in {_split_name(folder, rate) for rate in rates}:
                paths.append(path)

        def parts(path: Path) -> Iterable[int]:
            folder = _folder(raw, path) or ALL
            scenes = read_trajnet(path).scenes.values()
            return [scene.id for scene in scenes if _split_name(folder, scene.fps) == split]

        return list_parts(paths, parts)

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file belongs to a scene: all files are inputs."""
        return False

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one scene; SceneError if its primary pedestrian has not all 21 positions."""
        file = read_trajnet(item.path)
        line = file.scenes.get(int(item.part or -1))
        if line is None:
            raise SceneError(f"{item.path}: scene: there is no scene {item.part!r}")
        interval, rest = divmod(line.e - line.s, _LAST)
        if rest or interval < 1:
            raise SceneError(f"{item}: e: not {_LAST} equal steps after s")
        scene = window_scene(
            replace(file.recording, interval=interval),
            line.s,
            (1 / line.fps, NUM_HISTORY, NUM_FUTURE),
            (f"{item.path.stem}-{line.id}", self.name, split, item.path.stem),
            AgentKind.PEDESTRIAN,
            direction=DIRECTION_M,
        )
        is_primary = np.array([name == str(line.p) for name in scene.agent_id])
        if not scene.valid[is_primary].all(1).any():
            raise SceneError(f"{item}: p: pedestrian {line.p} is not in all {_LAST + 1} frames")
        role = np.where(is_primary, AgentRole.FOCAL, AgentRole.CONTEXT)
        return replace(scene, agent_role=role.astype(np.uint8))


def _folder(raw: Path, path: Path) -> str | None:
    """Folder of a file, which is its split; None for a file at another depth."""
    parts = path.relative_to(raw).parts
    if len(parts) == 1:
        return ALL
    return parts[0] if len(parts) == 2 else None


def _split_name(folder: str, frame_rate: float) -> str:
    return folder if frame_rate == FRAME_RATE else f"{folder}_{frame_rate:g}hz"


def _frame_rates(path: Path) -> set[float]:
    """Frame rates of a file; none for a file that cannot be read."""
    try:
        return read_trajnet(path).frame_rates()
    except SceneError:
        return set()


@cached_by_file(8)
def read_trajnet(path: Path) -> TrajnetFile:
    """Read and check a file; a SceneError names the file and the line."""
    try:
        lines = read_file(path, MAX_BYTES).split(b"\n")
    except OSError as error:
        raise SceneError(f"{path}: cannot be read: {one_line(error)}") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not numbered:
        raise SceneError(f"{path}: track: no rows")
    check = RowCheck(path, len(numbered))
    decode = msgspec.json.Decoder(_Line).decode
    problems: dict[int, str] = {}
    scenes: dict[int, _SceneLine] = {}
    tracks = np.zeros((len(numbered), 4))
    is_track = np.zeros(len(numbered), bool)
    for row, (_, line) in enumerate(numbered):
        try:
            entry = decode(line)
            problem = _problem(entry, scenes)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            problem = one_line(error)
        if problem:
            problems[row] = problem
        elif entry.scene is not None:
            scenes[entry.scene.id] = entry.scene
        elif entry.track is not None and entry.track.prediction_number is None:
            track = entry.track
            tracks[row] = (track.f, track.p, track.x, track.y)
            is_track[row] = True

    is_wrong = np.zeros(len(numbered), bool)
    is_wrong[list(problems)] = True
    check.drop(
        is_wrong,
        "no scene and no track",
        lambda row: f"line {numbered[row][0]}: {problems.get(row, '')[:200]}",
    )
    if not scenes:
        raise SceneError(f"{path}: scene: no rows")
    return TrajnetFile(_recording(path, tracks, is_track, check), scenes)


def _problem(entry: _Line, scenes: dict[int, _SceneLine]) -> str:
    """Why a line cannot be used; "" if it can."""
    if entry.scene is not None:
        scene = entry.scene
        if scene.id in scenes:
            return f"scene: id: {scene.id} is used twice"
        if not 0 <= scene.id < MAX_FRAME or not 0 <= scene.p < MAX_FRAME:
            return "scene: id or p: expected a whole number from 0"
        if not -MAX_FRAME < scene.s < scene.e < MAX_FRAME:
            return "scene: e: not after s"
        if not 0.1 <= scene.fps <= 100:
            return f"scene: fps: {scene.fps:g}, expected .1 to 100"
        return ""
    if entry.track is None:
        return "neither a scene nor a track"
    track = entry.track
    if not abs(track.f) < MAX_FRAME or not 0 <= track.p < MAX_FRAME:
        return "track: f or p: expected a whole number"
    position = max(abs(track.x), abs(track.y))
    if not (math.isfinite(position) and position <= MAX_EXTENT_M):
        return f"track: x or y: expected metres up to {MAX_EXTENT_M:g}"
    return ""


def _recording(path: Path, tracks: np.ndarray, is_track: np.ndarray, check: RowCheck) -> Recording:
    """The rows of tracks, float64 [R, 4] with frame, pedestrian, x and y, where `is_track`."""
    # Each other line has a separate key.
    other = np.where(is_track, 0, np.arange(1, len(tracks) + 1))
    check.drop_repeated(
        np.stack([tracks[:, 0], tracks[:, 1], other]).astype(np.int64),
        tracks[:, 2:],
        "track: twice in a frame",
        lambda row: (
            f"track: pedestrian {tracks[row, 1]:.0f} is twice in frame {tracks[row, 0]:.0f}"
        ),
    )
    rows = tracks[check.finish() & is_track]
    if not len(rows):
        raise SceneError(f"{path}: track: no rows")
    number, agent = np.unique(rows[:, 1].astype(np.int64), return_inverse=True)
    frame = rows[:, 0].astype(np.int64)
    order = np.lexsort((agent, frame))
    return Recording(
        path=path,
        agent_id=tuple(map(str, number.tolist())),
        frame=frame[order],
        agent=agent[order],
        position=rows[order, 2:],
        interval=1,
    )
