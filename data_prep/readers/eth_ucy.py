"""ETH/UCY pedestrians: `RAW/<set>/<recording>[_train|_val].txt`, five leave-one-out sets, to `Scene`.

A scene is a window of consecutive frames, 8 observed and 12 to predict. The protocol scores the pedestrians with a
position in all 20 frames, and uses windows with at least one such pedestrian (see `recordings`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from data_prep.reader import Input
from data_prep.readers.recordings import (
    Layout,
    read_recording,
    window_inputs,
    window_of,
    window_scene,
)
from trajformer.config import Config
from trajformer.scenes.scene import AgentKind, Scene

PERIOD_S = 0.4
DIRECTION_M = (
    0.2  # standing pedestrians: 99 % of the steps are shorter, on eth and hotel by a small margin
)
LAYOUT = Layout(17, 13, 15, "metres", (2, "Pedestrian"))
_PARTS = ("test", "train", "val")
_WINDOWS = {
    "eth": (253, 3283, 733),
    "hotel": (445, 3118, 688),
    "univ": (947, 2719, 622),
    "zara1": (705, 2889, 671),
    "zara2": (998, 2681, 590),
}


@dataclass(frozen=True)
class EthUcy(
    Config,
    limits={
        "stride": (1, 10**9),
        "num_history": (2, 10_000),
        "num_future": (1, 10_000),
        "tempo": (1, 10),
    },
):
    """Reader of the ETH and UCY pedestrian recordings, cut for leave-one-out evaluation.

    Attributes:
        stride: of the windows of a recording, every `stride`-th is used; published figures use 1.
        num_history: observed frames of a window, 0.4 s apart; published figures use 8.
        num_future: frames to predict; published figures use 12.
        tempo: if not 1, training windows are also cut from recordings replayed this much faster: with 2, a step is two frames,
            with 1.5, positions between frames are interpolated. These scenes still have 0.4 s a step, so people are faster in
            them. They prepare a model for recordings in which people walk farther in a frame, such as eth.
    """

    stride: int = 1
    num_history: int = 8
    num_future: int = 12
    tempo: float = 1.0
    name: ClassVar[str] = "eth_ucy"
    layout: ClassVar[str] = (
        "RAW/<set>/<recording>_train.txt, <recording>_val.txt and, of the test scene, <recording>.txt: "
        "splits <set>_train, <set>_val and <set>_test, sets eth, hotel, univ, zara1 and zara2"
    )
    published: ClassVar[dict[str, int]] = {
        f"{name}_{part}": count
        for name, counts in _WINDOWS.items()
        for part, count in zip(_PARTS, counts, strict=True)
    }

    def splits(self, raw: Path) -> list[str]:
        """`<set>_<part>` for every part (test, train, val) with a file in the folder of the set."""
        return sorted(
            {
                f"{path.parent.name}_{_name_and_part(path)[1]}"
                for path in raw.glob("[!.]*/[!.]*.txt")
            }
        )

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Windows of all files of a split, as `window_inputs` lists them."""
        name, part = split.rsplit("_", 1)
        paths = [path for path in (raw / name).glob("[!.]*.txt") if _name_and_part(path)[1] == part]
        tempo = self.tempo if part == "train" else 1.0
        return window_inputs(paths, LAYOUT, self.num_history + self.num_future, self.stride, tempo)

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window; SceneError also if it has no scored agent."""
        recording = read_recording(item.path, LAYOUT)
        first, tempo = window_of(item, recording, self.num_history + self.num_future)
        name = _name_and_part(item.path)[0]
        names, clock = (
            (f"{name}-{item.part}", self.name, split, name),
            (PERIOD_S, self.num_history, self.num_future),
        )
        return window_scene(
            recording, first, clock, names, AgentKind.PEDESTRIAN, direction=DIRECTION_M, tempo=tempo
        )


def _name_and_part(path: Path) -> tuple[str, str]:
    """Name of the recording, and the part of its set that a file belongs to: train or val by the end of its name, else test."""
    name, _, part = path.stem.rpartition("_")
    return (name, part) if part in ("train", "val") else (path.stem, "test")
