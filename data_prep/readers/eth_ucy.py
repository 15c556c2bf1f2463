"""ETH/UCY pedestrians: `RAW/<set>/<recording>[_train|_val].txt`, five leave-one-out sets, to `Scene`.

A scene is a window of consecutive frames, 8 observed and 12 to predict. The protocol scores the pedestrians who are
there in all 20, and windows count that have at least one of them. So **who is SCORED depends on the future**: the role
says what to predict and score, and must never be an input of a model. Everybody else seen in the 8 observed frames is
CONTEXT; who appears later is left out. Files hold positions only: for velocity and heading see `_motion`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_prep.reader import Input
from data_prep.readers.eth_ucy_file import read_recording
from data_prep.readers.vector_map import build_map
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

PERIOD_S = 0.4
DIRECTION_M = 0.2  # 99 % of the steps of people who stand are shorter than that, on eth and hotel not by much
_PARTS = ("test", "train", "val")
_WINDOWS = {
    "eth": (253, 3283, 733),
    "hotel": (445, 3118, 688),
    "univ": (947, 2719, 622),
    "zara1": (705, 2889, 671),
    "zara2": (998, 2681, 590),
}
_NO_MAP = build_map([], [], np.zeros((0, 2)), [])


@dataclass(frozen=True)
class EthUcy:
    """Reader of the ETH and UCY pedestrian recordings, cut for leave-one-out evaluation.

    Attributes:
        stride: every so many of a recording's windows is taken; published figures use 1.
        num_history: observed frames of a window, 0.4 s apart; published figures use 8.
        num_future: frames to predict; published figures use 12.
    """

    stride: int = 1
    num_history: int = 8
    num_future: int = 12
    name: ClassVar[str] = "eth_ucy"
    layout: ClassVar[str] = (
        "RAW/<set>/<recording>_train.txt, <recording>_val.txt and, of the test scene, <recording>.txt: "
        "splits <set>_train, <set>_val and <set>_test, sets eth, hotel, univ, zara1 and zara2"
    )
    published: ClassVar[dict[str, int]] = {
        f"{name}_{part}": count for name, counts in _WINDOWS.items() for part, count in zip(_PARTS, counts, strict=True)
    }

    def __post_init__(self) -> None:
        for name, smallest in (("stride", 1), ("num_history", 2), ("num_future", 1)):
            if getattr(self, name) < smallest:
                raise TrajformerError(f"{self.name}: {name} must be at least {smallest}, not {getattr(self, name)}")

    @property
    def num_steps(self) -> int:
        """Frames of a window."""
        return self.num_history + self.num_future

    def splits(self, raw: Path) -> list[str]:
        """`<set>_<part>` for every part (test, train, val) of which a set's folder has a file."""
        return sorted({f"{path.parent.name}_{_part(path)}" for path in raw.glob("[!.]*/[!.]*.txt")})

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """The windows of a split's files, by file name and first frame, which is the input's part."""
        name, part = split.rsplit("_", 1)
        windows: list[Input] = []
        for path in sorted(path for path in (raw / name).glob("[!.]*.txt") if _part(path) == part):
            try:
                frames = read_recording(path).first_frames(self.num_steps)
                windows += [Input(path, str(frame)) for frame in frames[:: self.stride].tolist()]
            except SceneError:
                windows.append(Input(path))
        return windows

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """One window.

        Raises:
            SceneError: names the file and the line and column that cannot be used, or the window that nobody is scored in.
        """
        recording = read_recording(item.path)
        if not item.part:  # the file could not be listed
            recording.first_frames(self.num_steps)
            raise SceneError(f"{item.path}: no window named, its first frame is missing")
        first = int(item.part)
        agent, step, xy = recording.window(first, self.num_steps)
        present, row = np.unique(agent, return_inverse=True)
        valid, position = np.zeros((len(present), self.num_steps), bool), np.zeros((len(present), self.num_steps, 2))
        valid[row, step], position[row, step] = True, xy
        seen = valid[:, : self.num_history].any(1)
        present, valid, position = present[seen], valid[seen], position[seen]
        scored = valid.all(1)
        if not scored.any():
            raise SceneError(f"{item}: no pedestrian is there in all {self.num_steps} frames")
        velocity, heading = _motion(position, valid, self.num_history)
        here = self.num_history - 1
        origin = position[valid[:, here], here].mean(0)  # of all who are there, not of the scored ones only
        return Scene(
            scene_id=f"{_recording_name(item.path)}-{first}",
            source=self.name,
            split=split,
            city=_recording_name(item.path),
            period_s=PERIOD_S,
            num_history=self.num_history,
            num_future=self.num_future,
            origin=origin,
            agent_id=tuple(recording.agent_id[index] for index in present),
            agent_kind=np.full(len(present), AgentKind.PEDESTRIAN, np.uint8),
            agent_role=np.where(scored, AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8),
            position=np.where(valid[..., None], position - origin, 0.0).astype(np.float32),
            heading=heading.astype(np.float32),
            velocity=velocity.astype(np.float32),
            valid=valid,
            **_NO_MAP.scene_fields(origin),
        )


def _part(path: Path) -> str:
    """The part of its set that a file belongs to: train, val, or test if its name ends with neither."""
    return next((part for part in ("train", "val") if path.stem.endswith(f"_{part}")), "test")


def _recording_name(path: Path) -> str:
    return path.stem.removesuffix("_train").removesuffix("_val")


def _motion(position: np.ndarray, valid: np.ndarray, num_history: int) -> tuple[np.ndarray, np.ndarray]:
    """Velocity [A, T, 2] and heading [A, T] at every valid step from the steps up to it.

    Velocity is the displacement since the step before, divided by the time. It is the best of the estimates tried on
    the UCY recordings, which were smoothed; on eth and hotel longer means are better. Over the five test scenes constant
    velocity from it ends 1.15 m off, from means over more steps or a fit 1.12 to 1.23 m. Heading is the direction from
    the latest position at least 0.2 m away, so who stops keeps the direction in which they came; 0 where there is none.

    A track's first step shares the estimates of its second one, but never across the end of the history.

    Args:
        position: float64 [A, T, 2], metres, zero where not valid.
        valid: bool [A, T]; every pedestrian has an observed step.
        num_history: H.
    """
    rows, steps = np.arange(len(valid))[:, None], np.arange(valid.shape[1])
    latest = np.maximum.accumulate(np.where(valid, steps, -1), axis=1)
    before = np.concatenate([np.full_like(rows, -1), latest[:, :-1]], axis=1)
    moved = valid & (before >= 0)
    travel, time = position - position[rows, before], (steps - before) * PERIOD_S
    velocity = np.where(moved[..., None], travel / time[..., None], 0.0)
    away = position[:, :, None] - position[:, None]  # [A, T, S, 2], from step s to step t
    far = np.hypot(away[..., 0], away[..., 1]) >= DIRECTION_M
    far &= valid[:, :, None] & valid[:, None] & (steps < steps[:, None])
    chosen = len(steps) - 1 - far[..., ::-1].argmax(-1)
    direction = away[rows, steps, chosen]
    heading = np.where(far.any(-1), np.arctan2(direction[..., 1], direction[..., 0]), 0.0)
    first, second = valid.argmax(1), moved.argmax(1)
    alone = ~moved[:, :num_history].any(1)
    second = np.where(alone, first, second)
    row = rows[:, 0]
    velocity[row, first], heading[row, first] = velocity[row, second], heading[row, second]
    return velocity, heading
