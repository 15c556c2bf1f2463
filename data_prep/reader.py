"""What makes a data set: `Reader`, a listing of scenes and a pure function from one of them to `Scene`."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, runtime_checkable

from trajformer.scenes.scene import Scene

Stages: TypeAlias = Generator[None, None, Scene]


class Input(NamedTuple):
    """One scene to be read.

    Attributes:
        path: its file.
        part: where a file holds several scenes, which of them: a window, a scene id.
        stamp: where files are edited, a digest of their content: shards made from another content are made anew.
    """

    path: Path
    part: str = ""
    stamp: str = ""

    def name(self, raw: Path) -> str:
        """Its name below the raw folder, so that a store does not depend on where that lies."""
        return self.path.relative_to(raw).as_posix() + (f"#{self.part}" if self.part else "")

    def __str__(self) -> str:
        return f"{self.path}#{self.part}" if self.part else str(self.path)


class Reader(Protocol):
    """A frozen dataclass whose fields are its options: its repr decides which shards must be made anew."""

    name: ClassVar[str]  # of the data set, `Scene.source`
    layout: ClassVar[str]  # the expected files, for messages: "RAW/<split>/data/<sequence>.csv"
    published: ClassVar[dict[str, int]]  # scenes of the complete data set by split, as far as known

    def splits(self, raw: Path) -> list[str]:
        """Splits found in the raw folder, sorted; empty when its layout is not this data set's."""

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """All scenes, those of one file one after the other, in an order that depends on names and contents only.

        A file that cannot be listed is one input without a part: `read` says what is wrong with it.
        """

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one scene; raises SceneError, naming file and field, when it cannot be used."""


@runtime_checkable
class StagedReader(Protocol):
    """A reader that can pause on its way to a scene, so that many go through the same stage in turn (`reading`)."""

    def stages(self, item: Input, split: str, raw: Path) -> Stages:
        """As `Reader.read`, which is `finish` of this, with a pause after each stage."""


def finish(stages: Stages) -> Scene:
    """The scene at the end of all stages."""
    try:
        while True:
            next(stages)
    except StopIteration as end:
        return end.value
