"""Base of readers of recordings that are XML files: CommonRoad and SUMO."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.readers.track_files import TrackFiles

ALL = "all"  # the split of files directly in RAW
_PATTERN = "[!.]*.xml"


@dataclass(frozen=True)
class XmlFiles(TrackFiles):
    """Base of readers of `RAW/<split>/*.xml` and `RAW/*.xml`; each file is a recording."""

    def splits(self, raw: Path) -> list[str]:
        """Folders with files, and "all" for files in the raw folder."""
        names = {path.parent.name for path in raw.glob(f"*/{_PATTERN}")}
        if any(raw.glob(_PATTERN)):
            names.add(ALL)
        return sorted(names)

    def recordings(self, raw: Path, split: str) -> Sequence[Path]:
        """Files of a split."""
        paths = {*(raw / split).glob(_PATTERN)}
        if split == ALL:
            paths |= {*raw.glob(_PATTERN)}
        return sorted(path for path in paths if not path.is_dir())

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file belongs to a recording: all files are inputs."""
        return False
