"""Reader of INTERACTION (Zhan et al. 2019): recordings and multi-agent cases at 10 Hz.

A scene is a case of 10 + 30 steps, or a window of a recording with any number of steps. Vehicles
have a recorded heading. Pedestrians and cyclists, which the files do not tell apart, have none, so
it is estimated from their displacement.

SCORED are the vehicles seen in the last observed step. Unlike the focal agent `farthest`, this does
not depend on the future.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from data_prep.reader import Input
from data_prep.readers.columns import Agents
from data_prep.readers.interaction.tracks import (
    PEDESTRIANS,
    PERIOD_S,
    RECORDING,
    WindowTracks,
    read_tracks,
)
from data_prep.readers.raw_file import list_parts
from trajformer.config import Config
from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.kinematics import estimate_motion
from trajformer.scenes.lanelet2 import read_lanelets
from trajformer.scenes.plausibility import check_recorded
from trajformer.scenes.scene import AgentRole, Scene

RECORDINGS = "recorded_trackfiles"  # the folder, and the split of its windows
CASE_HISTORY = 10
CASE_FUTURE = 30
_CASE_FILES = ("*_train.csv", "*_val.csv")
_LIMITS = {
    "num_history": (2, 10_000),
    "num_future": (1, 10_000),
    "stride": (1, 10**9),
    "max_windows": (0, 10**9),
}


@dataclass(frozen=True)
class Interaction(Config, limits=_LIMITS | {"map_radius_m": (0, np.inf)}):
    """Reader of INTERACTION.

    Attributes:
        num_history: observed steps of a window, 0.1 s apart. Cases are listed only for 10 + 30
            steps.
        num_future: steps to predict.
        stride: steps between the starts of windows of a recording.
        max_windows: largest number of windows of a location, evenly spread over its recordings; 0
            uses all windows. Two of the locations have 63 % of the recorded time, so a limit
            balances them.
        focal: `moving` = the scored vehicle with the longest observed travel; `farthest` = the one
            with the longest travel in the complete scene, which uses the future like published data
            sets; `none` = no vehicle.
        map_radius_m: lanes within this distance of a scored vehicle in the last observed step are
            kept.
    """

    num_history: int = CASE_HISTORY
    num_future: int = CASE_FUTURE
    stride: int = 10
    max_windows: int = 0
    focal: Literal["none", "moving", "farthest"] = "none"
    map_radius_m: float = 100.0
    name: ClassVar[str] = "interaction"
    layout: ClassVar[str] = (
        f"RAW/{RECORDINGS}/<location>/vehicle_tracks_<n>.csv, "
        "RAW/<split>/<location>_train.csv or <location>_val.csv, "
        "and RAW/maps/<location>.osm_xy"
    )
    published: ClassVar[dict[str, int]] = {}  # depends on the options

    def splits(self, raw: Path) -> list[str]:
        """The folder of the recordings, and the folders with cases if the options ask for them."""
        splits = set()
        if next((raw / RECORDINGS).glob(f"*/{RECORDING}*.csv"), None):
            splits.add(RECORDINGS)
        if (self.num_history, self.num_future) == (CASE_HISTORY, CASE_FUTURE):
            for pattern in _CASE_FILES:
                splits |= {path.parent.name for path in raw.glob(f"*/{pattern}")}
        return sorted(splits)

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Windows by location, recording and first frame, or cases by location and number.

        Windows without a vehicle in the last observed and in the last step are left out.
        """
        if split != RECORDINGS:
            files: list[Path] = []
            for pattern in _CASE_FILES:
                files += (raw / split).glob(pattern)
            return list_parts(sorted(files), self._parts)
        inputs = []
        for folder in sorted((raw / RECORDINGS).glob("*")):
            windows = list_parts(sorted(folder.glob(f"{RECORDING}*.csv")), self._parts)
            count = len(windows)
            if self.max_windows:
                count = min(count, self.max_windows)
            inputs += [windows[index * len(windows) // count] for index in range(count)]
        return inputs

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file holds maps, or the pedestrians of a recording of vehicles."""
        if path.parent == raw:
            return path.name == "maps"
        vehicles = path.name.replace(PEDESTRIANS, RECORDING, 1)
        return path.name.startswith(PEDESTRIANS) and path.with_name(vehicles).is_file()

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window or case.

        SceneError also if no vehicle is seen at its last observed step.
        """
        history = self.num_history
        file = read_tracks(item.path)
        if not item.part:
            raise SceneError(
                f"{item.path}: frame_id: no window of {history} + {self.num_future} steps "
                "with a vehicle in the last ones; choose shorter windows"
            )
        tracks = file.window(item, history + self.num_future)
        position = tracks.position
        valid = tracks.valid
        scored = valid[:, history - 1] & tracks.is_vehicle
        if not scored.any():
            raise SceneError(
                f"{item}: agent_type: no vehicle in the last observed step, "
                "so there is nothing to predict"
            )
        role = self._roles(tracks, scored)
        last_position = position[scored, history - 1]
        center = last_position.mean(0)

        location, name = _location_and_name(item, file.has_cases)
        map_file = raw / "maps" / f"{location}.osm_xy"
        if not map_file.is_file():
            raise SceneError(
                f"{map_file}: no such file, expected the map of the location in metres"
            )
        lanes = read_lanelets(map_file).lanes.near(last_position, self.map_radius_m, map_file)

        # Agents that appear only in the future would leak it.
        observed = np.flatnonzero(valid[:, :history].any(1))
        heading = _heading(tracks, history)
        agents = Agents(
            agent_id=[tracks.agent_id[index] for index in observed.tolist()],
            kind=tracks.kind[observed],
            role=role[observed],
            position=position[observed],
            heading=heading[observed],
            velocity=tracks.velocity[observed],
            valid=valid[observed],
        )
        clock = (PERIOD_S, history, self.num_future)
        scene = agents.scene((name, self.name, split, location), clock, center, lanes)
        check_recorded(scene, heading=True, velocity=True, where=item)
        size = np.nan_to_num(tracks.size[observed])
        return replace(scene, agent_size=size.astype(np.float32))

    def _parts(self, path: Path) -> Sequence[int | str]:
        """The cases or windows of a file; no name if there are none."""
        return read_tracks(path).parts(self.num_history, self.num_future, self.stride) or [""]

    def _roles(self, tracks: WindowTracks, scored: np.ndarray) -> np.ndarray:
        """AgentRole [A], from the scored agents, bool [A]."""
        role = np.where(scored, AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8)
        if self.focal == "none":
            return role
        steps = slice(self.num_history) if self.focal == "moving" else slice(None)
        travel = _travel(tracks.position[:, steps], tracks.valid[:, steps])
        role[np.where(scored, travel, -1.0).argmax()] = AgentRole.FOCAL
        return role


def _location_and_name(item: Input, has_cases: bool) -> tuple[str, str]:
    """Location of an input and id of its scene."""
    if has_cases:
        location = item.path.stem.rpartition("_")[0]
        return location, f"{location}-{item.part}"
    location = item.path.parent.name
    recording = item.path.stem.removeprefix(RECORDING)
    return location, f"{location}-{recording}-{item.part}"


def _heading(tracks: WindowTracks, num_history: int) -> np.ndarray:
    """Heading [A, T] in radians: the recorded one, or an estimate for pedestrians and cyclists."""
    heading = tracks.heading.copy()
    walkers = np.flatnonzero(~tracks.is_vehicle)
    walker_position = tracks.position[walkers]
    walker_valid = tracks.valid[walkers]
    _, estimate, _ = estimate_motion(walker_position, walker_valid, num_history, PERIOD_S)
    heading[walkers] = estimate
    return wrap(heading) * tracks.valid


def _travel(position: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Distance [A] in metres between the first and the last known position."""
    rows = np.arange(len(valid))
    first = valid.argmax(1)
    last = valid.shape[1] - 1 - valid[:, ::-1].argmax(1)
    offset = position[rows, last] - position[rows, first]
    return np.hypot(offset[:, 0], offset[:, 1])
