"""Reader of drone recordings: inD and files in its layout, highD and SIND.

A recording of inD (also rounD, exiD, uniD and files written like them) is `<n>_tracks.csv` with
`<n>_tracksMeta.csv` and `<n>_recordingMeta.csv`: metres in a frame with y up, degrees
counter-clockwise, and numbers of frames at the frame rate of the recording. In highD, positions are
corners of boxes, y points down, and lanes are markings in the metadata. A recording of SIND is a
folder with `Veh_smoothed_tracks.csv` and `Ped_smoothed_tracks.csv`, in radians and milliseconds.

Maps are Lanelet2 files in degrees: `maps/` or `lanelets/` with `location<id>.osm`, which UTM
coordinates of the recording place; for SIND the one next to the recordings of a city. Colours of
the traffic lights of SIND are not read, because no file relates them to lanes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_prep.readers.ind.maps import highd_lanes, local_lanes, place_maps
from data_prep.readers.ind.metadata import frame_rate, read_recording, read_rows
from data_prep.readers.ind.sind import KINDS, PEDESTRIANS, VEHICLES, is_sind, read_sind
from data_prep.readers.table.conventions import Conventions
from data_prep.readers.table.table_file import TEXT, TableColumns, read_table
from data_prep.readers.track_files import Recorded, TrackFiles, from_frames, with_word
from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.files import open_file
from trajformer.scenes.lanelet2 import read_lanelets
from trajformer.scenes.vector_map import NO_MAP, VectorMap

TRACKS = "_tracks.csv"
MAX_BYTES = 1 << 34  # of tracks, of which the first line is read to tell the layouts apart
_IND = Conventions(
    angle_unit="deg",
    columns={
        "track_id": "trackId",
        "step": "frame",
        "x": "xCenter",
        "y": "yCenter",
        "vx": "xVelocity",
        "vy": "yVelocity",
    },
    kinds=KINDS,
)
_HIGHD = Conventions(
    y_down=True,
    columns={
        "track_id": "id",
        "step": "frame",
        "vx": "xVelocity",
        "vy": "yVelocity",
        "length": "width",  # of the box in the image
        "width": "height",
    },
    kinds=KINDS,
)
_NUMBERS = ("x", "y", "step", "vx", "vy", "heading", "length", "width")


@dataclass(frozen=True)
class Ind(TrackFiles):
    """Reader of inD, rounD, exiD, uniD, highD and SIND.

    Attributes:
        period_s: seconds between steps. Other frame rates are interpolated, unless a step is a
            whole number of frames.
        num_history: observed steps of a window.
        num_future: steps to predict.
        stride: steps between the starts of windows.
        map_radius_m: lanes within this distance of an agent's last observed position are kept.
    """

    name: ClassVar[str] = "ind"
    layout: ClassVar[str] = (
        "RAW/<folder>/<n>_tracks.csv with <n>_tracksMeta.csv and <n>_recordingMeta.csv, "
        f"or RAW/<city>/<recording>/{VEHICLES} and {PEDESTRIANS}"
    )

    def splits(self, raw: Path) -> list[str]:
        """Folders with recordings."""
        names = {path.parent.name for path in raw.glob(f"*/*{TRACKS}")}
        for name in (VEHICLES, PEDESTRIANS):
            names |= {path.parent.parent.name for path in raw.glob(f"*/*/{name}")}
        return sorted(names)

    def recordings(self, raw: Path, split: str) -> Sequence[Path]:
        """Files with tracks; of SIND, the vehicles or, without them, the pedestrians."""
        folder = raw / split
        paths = [path for path in folder.glob(f"*{TRACKS}") if not path.name.startswith(".")]
        sind = {path.parent: path for path in folder.glob(f"*/{PEDESTRIANS}")}
        sind |= {path.parent: path for path in folder.glob(f"*/{VEHICLES}")}
        return sorted([*paths, *sind.values()])

    def files(self, path: Path) -> tuple[Path, ...]:
        """Tracks and metadata, or vehicles and pedestrians."""
        if is_sind(path):
            others = (path.with_name(name) for name in (VEHICLES, PEDESTRIANS))
            return (path, *(other for other in others if other != path and other.exists()))
        return path, _companion(path, "tracks"), _companion(path, "recording")

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file or folder holds metadata, maps, backgrounds or traffic lights."""
        name = path.name.lower()
        if name.startswith((".", "~")):
            return False
        is_meta = name.endswith(("meta.csv", "metas.csv", "_background.png", ".osm"))
        is_folder = path.parent == raw and name in (
            "maps",
            "lanelets",
            "tracksmeta",
            "recordingmeta",
        )
        is_light = name.startswith("traffic") and name.endswith(".csv")
        return is_meta or is_folder or is_light or path.name == PEDESTRIANS

    def recording_name(self, path: Path) -> str:
        """Number of a recording, or the folder of a recording of SIND."""
        return path.parent.name if is_sind(path) else path.name.removesuffix(TRACKS)

    def tracks(self, *files: Path) -> Recorded:
        """The rows of a recording, see `TrackFiles`."""
        if is_sind(files[0]):
            return read_sind(files)
        tracks, tracks_meta, recording_meta = files
        recording = read_recording(recording_meta)
        kinds = {row["id"]: row["class"] for row in read_rows(tracks_meta, "id", "class")}
        conventions = _conventions(_header(tracks))
        columns = _with_kind(tracks, _read(tracks, conventions), kinds)
        if conventions is _HIGHD:
            columns = _centers(columns)
        columns = conventions.convert(columns)
        columns = with_word(columns, "city", recording.get("locationId", "").strip()[:40])
        return from_frames(columns, frame_rate(recording, recording_meta), self.period_s)

    def map_near(self, path: Path, raw: Path, positions: np.ndarray) -> VectorMap:
        """Lanes of the recording's place; none without a map."""
        if is_sind(path):
            maps = sorted(path.parent.parent.glob("*.osm"))
            if not maps:
                return NO_MAP
            lanes = read_lanelets(maps[0]).lanes  # its frame has its zero at latitude 0
            return lanes.near(positions, self.map_radius_m, maps[0])
        meta = _companion(path, "recording")
        recording = read_recording(meta)
        if "upperLaneMarkings" in recording:
            return highd_lanes(meta).near(positions, self.map_radius_m, meta)
        maps = place_maps(raw, recording.get("locationId", ""))
        if not maps:
            return NO_MAP
        lanes = local_lanes(maps[0], meta)
        return lanes.near(positions, self.map_radius_m, maps[0])


def _companion(path: Path, subject: str) -> Path:
    """The metadata of `tracks` or of the `recording`: in the same folder, or in a separate one."""
    number = path.name.removesuffix(TRACKS)
    usual = path.with_name(f"{number}_{subject}Meta.csv")
    folder = path.parent.parent / f"{subject}Meta"
    others = [
        folder / f"{number}_{subject}Meta.csv",
        folder / f"{number}_{subject.rstrip('s')}Meta.csv",
    ]
    for candidate in (usual, *others):
        if candidate.is_file():
            return candidate
    return usual


# ---- tables --------------------------------------------------------------------------------------


def _read(path: Path, conventions: Conventions) -> TableColumns:
    """Columns of a file by their names here."""
    return read_table(path, (*TEXT, *_NUMBERS), conventions.columns)


def _conventions(header: Sequence[str]) -> Conventions:
    """The layout of a file by the names of its columns."""
    if "xCenter" not in header:
        return _HIGHD
    if "XVelocity" not in header:
        return _IND
    velocity = {"vx": "XVelocity", "vy": "YVelocity"}
    return replace(_IND, columns={**_IND.columns, **velocity})


def _centers(columns: TableColumns) -> TableColumns:
    """The columns of highD with the centers of the boxes instead of their upper left corners."""
    number = dict(columns.number)
    number["x"] = number["x"] + number["length"] / 2
    number["y"] = number["y"] + number["width"] / 2
    return replace(columns, number=number)


def _header(path: Path) -> list[str]:
    """Names of the columns of a file."""
    try:
        with open_file(path, MAX_BYTES) as file:
            line = file.readline(1 << 16).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise SceneError(f"{path}: cannot be read: {one_line(error)}") from error
    return [name.strip().strip('"') for name in line.split(",")]


def _with_kind(path: Path, columns: TableColumns, kinds: dict[str, str]) -> TableColumns:
    """The columns with the class of each track; other classes and missing tracks are unknown."""
    unknown = Counter[str]()
    words = []
    for track in columns.word["track_id"]:
        word = kinds.get(track, "").strip().lower()
        if word not in KINDS:
            unknown[f"class: unknown value {one_line(word[:40])!r}"] += 1
            word = ""
        words.append(word)
    report_dropped(path, unknown)
    distinct = sorted(set(words))
    index = np.array([distinct.index(word) for word in words], np.int64)
    code = columns.code | {"kind": index[columns.code["track_id"]]}
    return replace(columns, word=columns.word | {"kind": distinct}, code=code)
