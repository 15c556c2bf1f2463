"""Scenes of a raw folder by index, read when they are needed and not stored."""

import warnings
from pathlib import Path

import numpy as np

from data_prep.reader import Input, Reader
from trajformer.errors import SceneError, TrajformerError, TrajformerWarning
from trajformer.scenes.dropped import collect_dropped
from trajformer.scenes.plausibility import MAX_SPEED_M_S, check_units
from trajformer.scenes.scene import METRES, Scene


class RawScenes:
    """The scenes of one split of a raw folder, as a `SceneStore` has them.

    `scenes[i]` reads input i with the checks of `trajformer preprocess`, and raises a SceneError if
    it would be skipped there. `scenes_of_raw` makes one.

    Attributes:
        root: the raw folder.
        split: name of the split.
        unit: of the positions of the scene that was read last.
        warnings: each warning of the reader once, in order.
        skipped: the reason for each input that could not be read, by its name.
    """

    def __init__(self, reader: Reader, raw: Path, split: str) -> None:
        self.root = raw
        self.split = split
        self.unit = METRES
        self.warnings: dict[str, None] = {}
        self.skipped: dict[str, str] = {}
        self._reader = reader
        self._inputs = reader.inputs(raw, split)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, index: int, /) -> Scene:
        item = self._inputs[index]
        try:
            scene = self._read(item)
        except SceneError as error:
            self.skipped[item.name(self.root)] = str(error)
            raise
        self.unit = scene.unit
        return scene

    @property
    def num_skipped(self) -> int:
        """Number of inputs that could not be read so far."""
        return len(self.skipped)

    def _read(self, item: Input) -> Scene:
        """Read and check one input."""
        if item.problem:
            raise SceneError(f"{item}: {item.problem}")
        with (
            warnings.catch_warnings(record=True) as caught,
            collect_dropped() as dropped,
            np.errstate(all="ignore"),  # the checks of a reader report damaged numbers
        ):
            warnings.simplefilter("always", TrajformerWarning)
            scene = self._reader.read(item, self.split, self.root)
        for warning in caught:
            self.warnings.setdefault(str(warning.message))
        for (path, cause), count in dropped.items():
            self.warnings.setdefault(f"{path}: {count} dropped: {cause}")
        scene.validate()
        try:
            check_units(scene, MAX_SPEED_M_S)
        except SceneError as error:
            raise SceneError(f"{item}: {error}") from error
        return scene


def scenes_of_raw(reader: Reader, raw: Path, split: str) -> RawScenes:
    """The scenes of a split of a raw folder.

    Raises TrajformerError: the folder does not exist, or has no such split.
    """
    if not raw.is_dir():
        raise TrajformerError(f"{raw}: no such folder; expected {reader.layout}")
    splits = reader.splits(raw)
    if split not in splits:
        present = f"it has {', '.join(splits)}"
        if not splits:
            present = f"expected {reader.layout}"
        raise TrajformerError(f"{raw}: no split '{split}' of {reader.name}; {present}")
    return RawScenes(reader, raw, split)
