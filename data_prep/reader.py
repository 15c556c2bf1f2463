"""The interface of a data set.

A `Reader` lists the scenes of a raw folder and reads each scene with a pure function.
"""

from collections.abc import Generator
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from trajformer.scenes.scene import Scene


class Input(NamedTuple):
    """One scene to read."""

    path: Path
    part: str = ""  # selects one scene of a file that holds several: a window or a scene id
    # Digest of the content, for files that users edit: a changed stamp makes a shard outdated.
    stamp: str = ""
    # Why the input is not read: a file without a role, or one that the reader cannot list.
    problem: str = ""

    def name(self, raw: Path) -> str:
        """Name relative to the raw folder, so that a store does not depend on its location."""
        name = self.path.relative_to(raw).as_posix()
        return f"{name}#{self.part}" if self.part else name

    def __str__(self) -> str:
        return f"{self.path}#{self.part}" if self.part else str(self.path)


class Reader(Protocol):
    """A frozen dataclass with the options of a data set as fields.

    A changed repr makes a shard outdated. Readers with options are a `Config`, which checks them.
    """

    name: ClassVar[str]  # of the data set, `Scene.source`
    layout: ClassVar[str]  # expected files, for messages: "RAW/<split>/data/<sequence>.csv"
    # Number of scenes of the complete data set by split, as far as known.
    published: ClassVar[dict[str, int]]

    def splits(self, raw: Path) -> list[str]:
        """Splits of the raw folder, sorted; empty if the folder has another layout."""

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """All scenes, grouped by file, in an order that depends on names and contents only.

        A file with an unreadable list of scenes is one input without a part; `read` raises the
        error.
        """

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one scene.

        Raises SceneError: the scene cannot be used; the message names file and field.

        A usable scene that may be wrong causes a `TrajformerWarning`
        (`trajformer.scenes.spec.warn`), and the engine lists the message with the scene. Warnings
        must not depend on the scenes that were read before: those about a cached file are repeated
        for each of its scenes.
        """


@runtime_checkable
class WithCompanions(Protocol):
    """A reader that knows all files of its data set: the engine lists the others as not used."""

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file or folder is no input, but belongs to the inputs: a map, a calibration."""


class StagedReader:
    """Base of readers that pause between stages.

    Many scenes can pass through the same stage in turn.
    """

    def stages(self, item: Input, split: str, raw: Path) -> Generator[None, None, Scene]:
        """`Reader.read` as a generator that pauses after each stage and returns the scene."""
        raise NotImplementedError

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one scene, see `Reader.read`."""
        stages = self.stages(item, split, raw)
        while True:
            try:
                next(stages)
            except StopIteration as end:
                return end.value
