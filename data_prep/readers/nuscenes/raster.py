"""Rasters of nuScenes prediction, traced to polylines.

Rows are x, columns are y. Blue is the drivable area, green the dividers of roads and red the
dividers of lanes.
"""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.readers.raw_file import read_file
from data_prep.readers.text_rows import NumberColumn, TextRows
from trajformer.errors import SceneError, one_line
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import MAX_EXTENT_M, PolylineKind
from trajformer.scenes.vector_map import VectorMap, build_map

MAX_MAP_BYTES = 4 << 20  # three times the largest raster, as the next one
MAX_SIDE = 4_000  # pixels
SPACING_M = 2.0  # between points of a polyline
PIECE_POINTS = 20  # longer lines are cut, so that scenes keep only the part near their agents
STROKE_M = 2.0  # dividers are strokes of 1 m; the sides of their outline are at most this far apart
_META = (  # the lines of a meta file
    NumberColumn("x", 0, MAX_EXTENT_M, "metres"),
    NumberColumn("y", 0, MAX_EXTENT_M, "metres"),
    NumberColumn("scale", 0, 100.0, "pixels"),
)


@cached_by_file(4)
def trace_map(raster: Path, meta: Path) -> tuple[VectorMap, np.ndarray]:
    """The polylines of a raster in the city frame; SceneError if a file cannot be used.

    Returns also the first and the last corner of the raster, float64 [2, 2].
    """
    pixels = read_raster(raster)
    x, y, scale = read_meta(meta)
    red, green, blue = np.moveaxis(pixels, -1, 0)
    lines: list[np.ndarray] = []  # metres from the corner of the raster
    kinds: list[PolylineKind] = []
    for line in (*_trace_dividers(red, scale), *_trace_dividers(green, scale)):
        for piece in _pieces(line):
            lines.append(piece)
            kinds.append(PolylineKind.ROAD_LINE)
    for line in _trace_borders(blue, scale):
        for piece in _pieces(line):
            lines.append(piece)
            kinds.append(PolylineKind.ROAD_EDGE)
    corner = np.array([x, y])
    point = np.concatenate([np.zeros((0, 2)), *lines]) + corner
    heads = [(number, int(kind), 0) for number, kind in enumerate(kinds)]
    lengths = [len(line) for line in lines]
    size = np.array([(0, 0), pixels.shape[:2]]) / scale
    return build_map(heads, lengths, point, []), size + corner


def _trace_borders(mask: np.ndarray, scale: float) -> Iterator[np.ndarray]:
    """Borders of the drivable area: polylines [p, 2] in metres from the corner of the raster.

    They end at the edge of the raster. `scale` is in pixels per metre.
    """
    for outline in _contours(_half_size(mask), 0.5):
        pixels = 2 * outline + 0.5  # the center of the first pixel is at 0
        yield spaced(pixels / scale, SPACING_M)


def _trace_dividers(mask: np.ndarray, scale: float) -> Iterator[np.ndarray]:
    """Middle lines of the strokes of a mask, as in `_trace_borders`."""
    padded = np.pad(_half_size(mask), 1)  # closes the outlines at the edge of the raster
    for outline in _contours(padded, 0.3):
        pixels = 2 * outline - 1.5  # the padding moves the center of the first pixel to 2
        yield spaced(middle_of_stroke(pixels / scale), SPACING_M)


def _half_size(mask: np.ndarray) -> np.ndarray:
    """Means float32 of 2 x 2 pixels of a mask, so that contours at any angle are smooth."""
    on = (mask > 0).astype(np.float32)
    on = np.pad(on, [(0, size % 2) for size in on.shape], "edge")
    return (on[::2, ::2] + on[1::2, ::2] + on[::2, 1::2] + on[1::2, 1::2]) / 4


def _contours(values: np.ndarray, level: float) -> list[np.ndarray]:
    """Contours of a grid: polylines [p, 2] of row and column."""
    from contourpy import LineType, contour_generator  # part of matplotlib

    if not values.any():
        return []
    generator: Any = contour_generator(z=values, line_type=LineType.Separate)
    return [outline[:, ::-1] for outline in generator.lines(level)]


def _pieces(line: np.ndarray) -> Iterator[np.ndarray]:
    """The line in pieces of at most `PIECE_POINTS` points, each of which begins where one ends."""
    for start in range(0, len(line) - 1, PIECE_POINTS - 1):
        yield line[start : start + PIECE_POINTS]


def spaced(line: np.ndarray, spacing: float) -> np.ndarray:
    """The polyline [p, 2] with at least two points, at equal distances of about `spacing`."""
    step = np.diff(line, axis=0)
    arc = np.append(0.0, np.hypot(step[:, 0], step[:, 1]).cumsum())
    count = max(round(arc[-1] / spacing), 1) + 1
    distance = np.linspace(0.0, arc[-1], count)
    x = np.interp(distance, arc, line[:, 0])
    y = np.interp(distance, arc, line[:, 1])
    return np.stack([x, y], -1)


def middle_of_stroke(outline: np.ndarray) -> np.ndarray:
    """The middle line [p, 2] of a thin stroke, given its closed outline in metres.

    The outline is folded at the point that brings its two sides closest together, and the sides are
    averaged. Where strokes cross, the sides stay more than `STROKE_M` apart: then the outline
    itself is returned.
    """
    ring = spaced(outline, 1.0)[:-1]
    half = len(ring) // 2
    if half < 2:
        return outline
    fold = np.arange(half)[:, None]
    side = np.arange(half + 1)
    left = ring[(fold + side) % len(ring)]  # [folds, points of a side, 2]
    right = ring[(fold - side) % len(ring)]
    offset = left - right
    gap = np.hypot(offset[..., 0], offset[..., 1]).mean(1)
    best = int(gap.argmin())
    if gap[best] > STROKE_M:
        return outline
    return (left[best] + right[best]) / 2


def read_raster(path: Path) -> np.ndarray:
    """RGB values uint8 [rows, columns, 3] of a PNG file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(BytesIO(read_file(path, MAX_MAP_BYTES)), formats=["PNG"]) as image:
            if max(image.size) > MAX_SIDE:
                size = f"{image.width} x {image.height} pixels"
                raise SceneError(f"{path}: {size}, expected at most {MAX_SIDE} either way")
            return np.array(image.convert("RGB"))
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, EOFError) as error:
        raise SceneError(f"{path}: not a readable PNG image: {one_line(error)}") from error


def read_meta(path: Path) -> tuple[float, float, float]:
    """x and y of the first pixel in metres, and pixels per metre."""
    rows = TextRows(path, 1)
    if len(rows.words) != 3:
        raise SceneError(
            f"{path}: {len(rows.words)} lines, expected x and y of the origin and pixels per metre"
        )
    values = []
    for row, column in enumerate(_META):
        values.append(rows.number(row, column))
    x, y, scale = values
    if scale <= 0:
        raise SceneError(
            f"{path}: line 3, column 0 (scale): {scale:g}, expected more than 0 pixels per metre"
        )
    return x, y, scale
