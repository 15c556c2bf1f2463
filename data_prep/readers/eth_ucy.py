"""Reader of the ETH and UCY pedestrians: text files of five leave-one-out sets.

A scene is a window of consecutive frames, 8 observed and 12 to predict. The protocol scores the
pedestrians with a position in all 20 frames, and uses windows with at least one such pedestrian
(see `recordings`).
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
# Standing pedestrians make shorter steps: 99 % of them, on eth and hotel by a small margin.
DIRECTION_M = 0.2
LAYOUT = Layout(17, 13, 15, "metres", (2, "Pedestrian"))
SHORT_LAYOUT = Layout(4, 2, 3, "metres")  # of Social GAN and Trajectron++: frame, id, x, y
PARTS = ("train", "val", "test")
LAYOUTS = (LAYOUT, SHORT_LAYOUT)
_LIMITS = {
    "stride": (1, 10**9),
    "num_history": (2, 10_000),
    "num_future": (1, 10_000),
    "tempo": (1, 10),
}


@dataclass(frozen=True)
class EthUcy(Config, limits=_LIMITS):
    """Reader of the ETH and UCY pedestrian recordings, cut for leave-one-out evaluation.

    Attributes:
        stride: of the windows of a recording, every `stride`-th is used; published figures use 1.
        num_history: observed frames of a window, 0.4 s apart; published figures use 8.
        num_future: frames to predict; published figures use 12.
        tempo: if not 1, training windows are also cut from recordings replayed this much faster:
            with 2, a step is two frames, with 1.5, positions between frames are interpolated. These
            scenes still have 0.4 s a step, so people are faster in them. They prepare a model for
            recordings in which people walk farther in a frame, such as eth.
    """

    stride: int = 1
    num_history: int = 8
    num_future: int = 12
    tempo: float = 1.0
    name: ClassVar[str] = "eth_ucy"
    layout: ClassVar[str] = (
        "RAW/<set>/<recording>_train.txt, <recording>_val.txt and, of the test scene, "
        "<recording>.txt: splits <set>_train, <set>_val and <set>_test, "
        "sets eth, hotel, univ, zara1 and zara2 (or RAW/<set>/<part>/*.txt); "
        "rows of 17 columns, or of frame, id, x and y"
    )
    published: ClassVar[dict[str, int]] = {
        "eth_test": 253,
        "eth_train": 3283,
        "eth_val": 733,
        "hotel_test": 445,
        "hotel_train": 3118,
        "hotel_val": 688,
        "univ_test": 947,
        "univ_train": 2719,
        "univ_val": 622,
        "zara1_test": 705,
        "zara1_train": 2889,
        "zara1_val": 671,
        "zara2_test": 998,
        "zara2_train": 2681,
        "zara2_val": 590,
    }

    def splits(self, raw: Path) -> list[str]:
        """`<set>_<part>` for every part (test, train, val) with a file in the folder of the set."""
        splits = set()
        for path in raw.glob("[!.]*/[!.]*.txt"):
            splits.add(f"{path.parent.name}_{_part(path)}")
        for path in raw.glob("[!.]*/[!.]*/[!.]*.txt"):
            if path.parent.name in PARTS:
                splits.add(f"{path.parent.parent.name}_{path.parent.name}")
        return sorted(splits)

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Windows of all files of a split, as `window_inputs` lists them."""
        set_name, part = split.rsplit("_", 1)
        files = (raw / set_name).glob("[!.]*.txt")
        paths = [path for path in files if _part(path) == part]
        paths += (raw / set_name / part).glob("[!.]*.txt")
        tempo = self.tempo if part == "train" else 1.0
        return window_inputs(paths, LAYOUTS, self.num_history + self.num_future, self.stride, tempo)

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file belongs to a recording: all recordings are inputs, of their own split."""
        if path.suffix != ".txt":
            return False
        folder = path.parent
        if folder.name in PARTS and folder.parent.parent == raw:
            return True
        return folder.parent == raw

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one window; SceneError also if it has no scored agent."""
        recording = read_recording(item.path, *LAYOUTS)
        first, tempo = window_of(item, recording, self.num_history + self.num_future)
        recording_name = _recording_name(item.path)
        return window_scene(
            recording,
            first,
            (PERIOD_S, self.num_history, self.num_future),
            (f"{recording_name}-{item.part}", self.name, split, recording_name),
            AgentKind.PEDESTRIAN,
            direction=DIRECTION_M,
            tempo=tempo,
        )


def _part(path: Path) -> str:
    """Part of its set that a file belongs to: train or val if its name ends so, else test."""
    for part in ("train", "val"):
        if path.stem.endswith(f"_{part}"):
            return part
    return "test"


def _recording_name(path: Path) -> str:
    """Name of a file without its part."""
    part = _part(path)
    if part == "test":
        return path.stem
    return path.stem.removesuffix(f"_{part}")
