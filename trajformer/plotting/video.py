"""Frames as an animated GIF, or as MP4 or WebM if the package av has an encoder."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image

from trajformer.plotting import style
from trajformer.plotting.animation import FRAME_S, draw_frames, frame_times
from trajformer.plotting.files import SOFTWARE, check_replaceable
from trajformer.plotting.scene import Content, PictureOptions
from trajformer.scenes.files import atomically

ANIMATED = ("gif", "mp4", "webm")
_CODECS = {"mp4": "libx264", "webm": "libvpx-vp9"}
_QUALITY = {"mp4": "23", "webm": "34"}  # constant rate factor
_COLORS = 128
_PRESENT_MS = 700  # the last observed step is shown longer
_END_MS = 1500


def has_encoder(suffix: str) -> bool:
    """Whether animations of this format can be written here."""
    if suffix == "gif":
        return True
    try:
        import av
    except ImportError:
        return False
    try:
        av.codec.Codec(_CODECS[suffix], "w")
    except ValueError:  # the superclass of all errors of unknown codecs
        return False
    return True


def save_animation(content: Content, path: Path, options: PictureOptions) -> None:
    """Write the frames of a scene (`draw_frames`) in the format of the suffix.

    Equal scenes give equal GIF files. Raises as `atomically`. TrajformerError: the file exists and
    was not written by this program.
    """
    check_replaceable(path)
    frames = draw_frames(content, options)
    times = frame_times(content.scene)
    with atomically(path) as temporary:
        if path.suffix == ".gif":
            _write_gif(temporary, frames, times)
        else:
            _write_video(temporary, frames, path.suffix.lstrip("."), times)


def _write_gif(path: Path, frames: Iterator[np.ndarray], times: np.ndarray) -> None:
    pictures = list(frames)
    palette = _palette(pictures[-1])  # the last frame has most of the colors
    table = _nearest_colors(palette)
    images = []
    for picture in pictures:
        parts = picture.astype(np.int64) >> 3  # five bits of each color
        index = (parts[..., 0] << 10) | (parts[..., 1] << 5) | parts[..., 2]
        image = Image.fromarray(table[index])
        image = image.convert("P")
        image.putpalette(palette.ravel().tolist())
        images.append(image)
    duration = [round(FRAME_S * 1000)] * len(images)
    duration[int(np.abs(times).argmin())] = _PRESENT_MS
    duration[-1] = _END_MS
    images[0].save(
        path,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=duration,
        loop=0,
        comment=SOFTWARE.encode(),
    )


def _palette(picture: np.ndarray) -> np.ndarray:
    """Colors uint8 [n, 3] for all frames: colors of agents, and the most frequent mixtures."""
    exact = (style.PAPER, style.INK, style.SCORED, style.CONTEXT_FACE, *style.AGENT_COLORS)
    of_agents = np.array([to_rgb(color) for color in exact]) * 255
    mixtures = Image.fromarray(picture).quantize(_COLORS - len(exact)).getpalette()
    both = np.concatenate([of_agents.round(), np.array(mixtures).reshape(-1, 3)])
    return both[:_COLORS].astype(np.uint8)


def _nearest_colors(palette: np.ndarray) -> np.ndarray:
    """For each color of five bits per part, uint8 [32768], the nearest entry of a palette."""
    entries = palette.astype(np.int64)
    bits = np.arange(32)
    red, green, blue = np.meshgrid(bits, bits, bits, indexing="ij")
    colors = np.stack([red, green, blue], -1).reshape(-1, 3) * 255 // 31
    distance = ((colors[:, None] - entries) ** 2).sum(-1)
    return distance.argmin(1).astype(np.uint8)


def _write_video(path: Path, frames: Iterator[np.ndarray], suffix: str, times: np.ndarray) -> None:
    import av

    container: Any
    with av.open(str(path), "w", format=suffix) as container:
        container.metadata["comment"] = SOFTWARE
        stream = container.add_stream(_CODECS[suffix], rate=Fraction(round(1 / FRAME_S)))
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": _QUALITY[suffix], "b": "0"}
        for number, picture in enumerate(frames):
            if number == 0:
                stream.height, stream.width = picture.shape[:2]
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
