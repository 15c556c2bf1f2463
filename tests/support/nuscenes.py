"""Parts of the real nuScenes prediction files."""

import tarfile
from collections.abc import Callable
from pathlib import Path


def unpack(
    real_data: Path, out: Path, labels: Callable[[str], bool], maps: Callable[[str], bool]
) -> Path:
    """Write the label files and maps of some scenes in the published layout.

    Functions of a name such as "scene-0001" choose them.
    """
    for archive, chosen in (("label.tar.xz", labels), ("map.tar", maps)):
        with tarfile.open(real_data / "nuscenes_prediction" / archive) as tar:
            for member in tar:
                if chosen(Path(member.name).stem.removeprefix("meta_")):
                    tar.extract(member, out, filter="data")
    return out
