"""Pictures of the scenes of a store as files: PNG, SVG or PDF."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from tqdm import tqdm

from trajformer.errors import TrajformerError
from trajformer.plotting import style
from trajformer.plotting.choice import ByScene
from trajformer.plotting.scene import DPI, PictureOptions, draw_picture
from trajformer.scenes.files import atomically
from trajformer.scenes.store import SceneStore

SOFTWARE = "trajformer"  # in the pictures of this program
FORMATS = ("png", "svg", "pdf")
_HEAD_BYTES = 2048  # contain the name of the program


def file_name(scene_id: str) -> str:
    """A scene id as a file name without folder and suffix.

    Changed ids get a digest, so that names are unique.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", scene_id).lstrip(".")[:120]
    if safe and safe == scene_id:
        return safe
    digest = hashlib.sha256(scene_id.encode()).hexdigest()[:8]
    return f"{safe or 'scene'}-{digest}"


def save_scene_plots(
    store: SceneStore,
    indices: Sequence[int],
    forecasts: ByScene,
    out: Path,
    *,
    progress: bool = True,
    options: PictureOptions = PictureOptions(),
    suffix: str = "png",
) -> list[Path]:
    """Write one picture per scene, `out/<scene id>.<suffix>`, or one with the scenes in rows.

    Returns the paths. `out` is a folder, created if missing, or a file with the suffix of one of
    the `FORMATS`. Scenes without forecasts are drawn as well. Raises TrajformerError: a forecast
    does not fit its scene. OSError: the folder cannot be written.
    """
    one_file = out.suffix.lstrip(".") in FORMATS
    groups = [list(indices)] if one_file else [[index] for index in indices]
    paths = []
    for group in tqdm(groups, desc="plot", unit="picture", disable=not progress):
        scenes = [store[index] for index in group]
        of_scenes = [forecasts.get(scene.scene_id, ()) for scene in scenes]
        figure = draw_picture(scenes, of_scenes, options)
        path = out
        if not one_file:
            [scene] = scenes
            path = out / f"{file_name(scene.scene_id)}.{suffix}"
        save_figure(figure, path)
        paths.append(path)
    return paths


@style.fixed_style
def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the suffix (PNG by default), and clear it.

    Equal figures give equal bytes. Raises as `atomically`. TrajformerError: the file exists and is
    no picture of this program.
    """
    check_replaceable(path)
    suffix = path.suffix.lstrip(".").lower()
    if suffix not in FORMATS:
        suffix = "png"
    metadata: dict[str, str | None] = {"Software": SOFTWARE}
    if suffix == "svg":  # no date and no random names, so that equal figures give equal bytes
        metadata = {"Date": None, "Creator": SOFTWARE}
    if suffix == "pdf":
        metadata = {"CreationDate": None, "Creator": SOFTWARE}
    with atomically(path) as temporary, matplotlib.rc_context():
        matplotlib.rcParams["svg.hashsalt"] = SOFTWARE
        matplotlib.rcParams["svg.fonttype"] = "none"  # texts can be edited
        matplotlib.rcParams["pdf.fonttype"] = 42
        figure.savefig(temporary, format=suffix, dpi=DPI, metadata=metadata)
    # artists and axes form reference cycles: without this, memory grows until garbage collection
    figure.clear()


def check_replaceable(path: Path) -> None:
    """Raise a TrajformerError if a file exists that is no picture of this program."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        content = file.read(_HEAD_BYTES)
        file.seek(max(path.stat().st_size - _HEAD_BYTES, 0))
        content += file.read()
    if SOFTWARE.encode() not in content:
        raise TrajformerError(f"{path}: exists and is no picture of trajformer, so it is kept")
