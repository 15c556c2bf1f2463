"""Reader of VCI DUT and CITR (Yang et al. 2019): pedestrians and vehicles from above.

A clip has a file of pedestrians with velocities, and one of vehicles with heading and speed. Both
are filtered positions in metres at the frame rate of the video, which no file states: 23.98 frames
per second in DUT, 29.97 in CITR. The steps are interpolated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from data_prep.readers.table.conventions import Conventions
from data_prep.readers.table.table_file import NUMBERS, TEXT, TableColumns, read_table
from data_prep.readers.track_files import (
    Recorded,
    TrackFiles,
    concatenate,
    from_frames,
    with_velocity,
    with_word,
)

PEDESTRIANS = "_traj_ped_filtered.csv"
VEHICLES = "_traj_veh_filtered.csv"
_COLUMNS = {"track_id": "id", "step": "frame", "x": "x_est", "y": "y_est"}
_PEDESTRIANS = Conventions(columns={**_COLUMNS, "vx": "vx_est", "vy": "vy_est"})
# The speed is read as if it was a width, which the files lack.
_VEHICLES = Conventions(columns={**_COLUMNS, "heading": "psi_est", "width": "vel_est"})


@dataclass(frozen=True)
class Vci(TrackFiles, positive=("frame_rate",)):
    """Reader of VCI DUT and CITR.

    Attributes:
        period_s: seconds between steps.
        num_history: observed steps of a window.
        num_future: steps to predict.
        stride: steps between the starts of windows.
        map_radius_m: without effect, because the recordings have no lanes.
        frame_rate: frames per second: 23.98 for DUT, 29.97 for CITR.
    """

    frame_rate: float = 23.98
    name: ClassVar[str] = "vci"
    layout: ClassVar[str] = f"RAW/<split>/<clip>{PEDESTRIANS} and <clip>{VEHICLES}"

    def splits(self, raw: Path) -> list[str]:
        """Folders with clips."""
        names = set()
        for ending in (PEDESTRIANS, VEHICLES):
            names |= {path.parent.name for path in raw.glob(f"*/[!.]*{ending}")}
        return sorted(names)

    def recordings(self, raw: Path, split: str) -> Sequence[Path]:
        """Pedestrians of each clip, or vehicles of a clip without pedestrians."""
        by_clip = {}
        for ending in (VEHICLES, PEDESTRIANS):
            for path in (raw / split).glob(f"[!.]*{ending}"):
                by_clip[self.recording_name(path)] = path
        return [by_clip[clip] for clip in sorted(by_clip)]

    def files(self, path: Path) -> tuple[Path, ...]:
        """Pedestrians and, if there are any, vehicles."""
        vehicles = path.with_name(self.recording_name(path) + VEHICLES)
        if path == vehicles or not vehicles.exists():
            return (path,)
        return path, vehicles

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file holds the vehicles of a clip."""
        return path.name.endswith(VEHICLES)

    def recording_name(self, path: Path) -> str:
        """Name of the clip."""
        return path.name.removesuffix(PEDESTRIANS).removesuffix(VEHICLES)

    def tracks(self, *files: Path) -> Recorded:
        """The rows of a clip, see `TrackFiles`."""
        return from_frames(
            concatenate([_read(path) for path in files]), self.frame_rate, self.period_s
        )


def _read(path: Path) -> TableColumns:
    """The rows of a file; both files of a clip number their tracks from 0."""
    is_vehicle = path.name.endswith(VEHICLES)
    conventions = _VEHICLES if is_vehicle else _PEDESTRIANS
    columns = read_table(path, (*TEXT, *NUMBERS), conventions.columns)
    number = dict(columns.number)
    prefix, kind = "ped", "pedestrian"
    if is_vehicle:
        number = with_velocity(number, number.pop("width"))
        prefix, kind = "veh", "vehicle"
    ids = [f"{prefix}_{track}" if track else "" for track in columns.word["track_id"]]
    word = columns.word | {"track_id": ids}
    return with_word(replace(columns, number=number, word=word), "kind", kind)
