"""nuScenes prediction in AgentFormer's text layout, with raster maps: 4 + 12 steps at 2 Hz, to `Scene`.

A scene of the store is one sample time of a nuScenes scene: all vehicles seen in the four steps up to this time, with the
official targets of the time as scored agents. So the targets of one time share one encoding of their surroundings. A row with a
one in its last column is an official target (an instance and a sample of the challenge); its 12 future steps are recorded.
The files hold only vehicles that are a target at some time: no pedestrians, no other vehicles and not the ego vehicle.

The map is a raster of 3 pixels per metre, cropped 75 m around the tracks: rows are x, columns are y. Blue is the drivable area,
green the dividers of roads and red the dividers of lanes. Borders of the drivable area become polylines of the kind ROAD_EDGE,
dividers polylines of the kind ROAD_LINE; both have no direction.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep.reader import Input
from data_prep.readers import columns
from data_prep.readers.kinematics import difference_velocity
from data_prep.readers.raw_file import cached_by_file, list_parts, one_line, read_file
from data_prep.readers.recordings import Column, numbers, read_rows
from data_prep.readers.vector_map import VectorMap, build_map
from trajformer.config import Config
from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import MAX_EXTENT_M, AgentKind, AgentRole, PolylineKind, Scene

PERIOD_S, NUM_HISTORY, NUM_FUTURE = 0.5, 4, 12
_STEPS = NUM_HISTORY + NUM_FUTURE
NUM_COLUMNS, KIND_COLUMN = 18, 2
_KINDS = dict.fromkeys(("Car", "Truck", "Construction", "Emergency"), AgentKind.VEHICLE) | {
    "Bus": AgentKind.BUS
}
_X, _Y = Column("x", 13, MAX_EXTENT_M, "metres"), Column("y", 15, MAX_EXTENT_M, "metres")
_COLUMNS = (
    Column("frame", 0, 1e6),
    Column("id", 1, 1e6),
    _X,
    _Y,
    Column("yaw", 16, 100.0, "radians"),
    Column("target", 17, 1),
)
MAX_MAP_BYTES, MAX_SIDE = 4 << 20, 4_000  # pixels; three times the largest raster
SPACING_M = 2.0  # between points of a polyline
PIECE_POINTS = 20  # longer lines are cut, so that scenes keep only the part near their agents
_META = (
    Column("x", 0, MAX_EXTENT_M, "metres"),
    Column("y", 0, MAX_EXTENT_M, "metres"),
    Column("scale", 0, 100.0, "pixels"),
)
STROKE_M = 2.0  # dividers are strokes of 1 m; the sides of their outline are at most this far apart


@dataclass(frozen=True)
class NuscenesPrediction(Config, limits={"map_radius_m": (0, np.inf)}):
    """Reader of the nuScenes prediction benchmark.

    Attributes:
        map_radius_m: polylines within this distance of a scored agent are kept.
    """

    map_radius_m: float = 80.0
    name: ClassVar[str] = "nuscenes_prediction"
    layout: ClassVar[str] = (
        "RAW/label/<split>/<scene>.txt, RAW/map_0.1/<scene>.png and RAW/map_0.1/meta_<scene>.txt"
    )
    published: ClassVar[dict[str, int]] = {"train": 10_822, "val": 3_790, "test": 3_076}

    def splits(self, raw: Path) -> list[str]:
        """Folders with label files: train, val and test are the official splits train, train_val and val."""
        return sorted({path.parent.name for path in raw.glob("label/[!.]*/[!.]*.txt")})

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Sample times with a target, by file and frame; the frame is the part of the input."""
        return list_parts(
            sorted((raw / "label" / split).glob("[!.]*.txt")),
            lambda path: read_labels(path).target_frames(),
        )

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one sample time; SceneError also if the future of a target is incomplete."""
        labels, name = read_labels(item.path), item.path.stem
        if not item.part:
            labels.target_frames()
            raise SceneError(f"{item.path}: the input names no frame")
        now, last = int(item.part), NUM_HISTORY - 1
        begin, end = np.searchsorted(labels.frame, (now - last, now + NUM_FUTURE + 1)).tolist()
        rows = slice(begin, end)
        present, agent = np.unique(labels.agent[rows], return_inverse=True)
        agent_id = [str(number) for number in present.tolist()]
        cell, valid = columns.cells(
            agent_id, agent, labels.frame[rows] - (now - last), _STEPS, str(item)
        )
        grids = (
            columns.fill(valid, cell, values[rows])
            for values in (labels.position, labels.yaw, labels.kind, labels.target)
        )
        seen = valid[:, :NUM_HISTORY].any(1)
        position, heading, kind, target = (grid[seen] for grid in grids)
        valid, scored = valid[seen], target[:, last] == 1
        if (short := scored & ~valid[:, last:].all(1)).any():
            known = int(valid[short][0, NUM_HISTORY:].sum())
            raise SceneError(
                f"{item}: target {present[seen][short][0]} has {known} of {NUM_FUTURE} future steps"
            )
        velocity = difference_velocity(position, valid, NUM_HISTORY, PERIOD_S)
        origin = position[scored, last].mean(0)
        folder = raw / "map_0.1"
        lines, corners = trace_map(folder / f"{name}.png", folder / f"meta_{name}.txt")
        outside = scored & (
            (position[:, last] < corners[0]) | (position[:, last] > corners[1])
        ).any(1)
        if outside.any():
            problem = f"target {present[seen][outside][0]} is outside the raster map_0.1/{name}.png"
            raise SceneError(f"{item}: {problem}; get the raster and the meta file of this scene")
        lines = lines.near(position[scored, last], self.map_radius_m)
        role = np.where(scored, int(AgentRole.SCORED), int(AgentRole.CONTEXT)).astype(np.uint8)
        ids = [agent_id[index] for index in np.flatnonzero(seen)]
        agents = columns.Agents(
            ids, kind.max(1).astype(np.uint8), role, position - origin, heading, velocity, valid
        )
        clock = PERIOD_S, NUM_HISTORY, NUM_FUTURE
        return agents.scene((f"{name}-{now}", self.name, split, name), clock, origin, lines)


# ---- labels --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Labels:
    """The R rows of a label file, sorted by frame."""

    path: Path
    frame: np.ndarray  # int64 [R]
    agent: np.ndarray  # int64 [R]
    kind: np.ndarray  # int64 [R], AgentKind
    position: np.ndarray  # float64 [R, 2], metres in the frame of the city
    yaw: np.ndarray  # float64 [R], radians
    target: np.ndarray  # int64 [R], 1 for an official target

    def target_frames(self) -> list[int]:
        """Frames with an official target (SceneError: no frame has one)."""
        frames = np.unique(self.frame[self.target == 1]).tolist()
        if not frames:
            raise SceneError(f"{self.path}: column 17 (target): no row is a target")
        return frames


@cached_by_file(4)
def read_labels(path: Path) -> Labels:
    """Parse a label file; a SceneError names the file, the line and the column."""
    rows = read_rows(path, NUM_COLUMNS)
    for number, row in rows:
        if row[KIND_COLUMN] not in _KINDS:
            known = ", ".join(_KINDS)
            raise SceneError(
                f"{path}: line {number}, column {KIND_COLUMN} (kind): {row[KIND_COLUMN][:40]!r}, expected {known}"
            )
    frame, agent, x, y, yaw, target = (numbers(path, rows, column) for column in _COLUMNS)
    order = np.lexsort((agent, frame))
    kind = np.array([_KINDS[row[KIND_COLUMN]] for _, row in rows], np.int64)
    frame, agent, target, kind = (
        values.astype(np.int64)[order] for values in (frame, agent, target, kind)
    )
    labels = Labels(path, frame, agent, kind, np.stack([x, y], -1)[order], wrap(yaw)[order], target)
    apart = np.diff(np.unique(labels.frame))
    if len(apart) and np.median(apart) != 1:
        raise SceneError(
            f"{path}: column 0 (frame): frames are {np.median(apart):g} apart, expected 1, a frame every 0.5 s"
        )
    return labels


# ---- maps ----------------------------------------------------------------------------------------------------------


@cached_by_file(4)
def trace_map(raster: Path, meta: Path) -> tuple[VectorMap, np.ndarray]:
    """The polylines of a raster, and its first and last corner float64 [2, 2], in the city frame (SceneError: unusable files)."""
    pixels, (x, y, scale) = _read_raster(raster), _read_meta(meta)
    lines: list[np.ndarray] = []
    kinds: list[PolylineKind] = []
    for channel in range(3):
        kind = PolylineKind.ROAD_EDGE if channel == 2 else PolylineKind.ROAD_LINE
        for line in _trace(pixels[..., channel], kind, scale):
            for start in range(0, len(line) - 1, PIECE_POINTS - 1):
                lines.append(line[start : start + PIECE_POINTS])
                kinds.append(kind)
    point = np.concatenate([np.zeros((0, 2)), *lines]) + np.array([x, y])
    heads = [(number, int(kind), 0) for number, kind in enumerate(kinds)]
    size = np.array([(0, 0), pixels.shape[:2]]) / scale
    return build_map(heads, [len(line) for line in lines], point, []), size + np.array([x, y])


def _trace(mask: np.ndarray, kind: PolylineKind, scale: float) -> Iterator[np.ndarray]:
    """Borders of the drivable area, or middles of dividers: polylines [p, 2] in metres from the corner of the raster.

    The mask is averaged over 2 x 2 pixels, so that lines at any angle are smooth. Dividers are padded, so that the outline of
    each one is closed; borders end at the edge of the raster.
    """
    from contourpy import LineType, contour_generator  # part of matplotlib

    on = (mask > 0).astype(np.float32)
    if not on.any():
        return
    edge = kind == PolylineKind.ROAD_EDGE
    on = np.pad(on, [(0, size % 2) for size in on.shape], "edge")
    mean = (on[::2, ::2] + on[1::2, ::2] + on[::2, 1::2] + on[1::2, 1::2]) / 4
    mean = mean if edge else np.pad(mean, 1)
    offset = 0.5 if edge else -1.5  # pixels; the center of the first pixel is at 0
    contours: Any = contour_generator(z=mean, line_type=LineType.Separate)
    for outline in contours.lines(0.5 if edge else 0.3):
        outline = (2 * outline[:, ::-1] + offset) / scale  # columns are y
        yield spaced(outline if edge else middle_of_stroke(outline), SPACING_M)


def spaced(line: np.ndarray, spacing: float) -> np.ndarray:
    """The polyline [p, 2] with points at equal distances of about `spacing`, at least two points."""
    arc = np.concatenate([[0.0], np.hypot(*np.diff(line, axis=0).T).cumsum()])
    at = np.linspace(0.0, arc[-1], max(round(arc[-1] / spacing), 1) + 1)
    return np.stack([np.interp(at, arc, line[:, axis]) for axis in (0, 1)], -1)


def middle_of_stroke(outline: np.ndarray) -> np.ndarray:
    """The middle line [p, 2] of a thin stroke, given its closed outline in metres.

    The outline is folded at the point that brings its two sides closest together, and the sides are averaged. Where strokes
    cross, the sides stay more than `STROKE_M` apart: then the outline itself is returned.
    """
    ring = spaced(outline, 1.0)[:-1]
    half = len(ring) // 2
    if half < 2:
        return outline
    ahead = np.arange(half)[:, None] + np.arange(half + 1)  # [folds, points of a side]
    back = np.arange(half)[:, None] - np.arange(half + 1)
    left, right = ring[ahead % len(ring)], ring[back % len(ring)]
    gap = np.hypot(*(left - right).transpose(2, 0, 1)).mean(1)
    fold = int(gap.argmin())
    return (left[fold] + right[fold]) / 2 if gap[fold] <= STROKE_M else outline


def _read_raster(path: Path) -> np.ndarray:
    """RGB values uint8 [rows, columns, 3] of a PNG file."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(BytesIO(read_file(path, MAX_MAP_BYTES)), formats=["PNG"]) as image:
            if max(image.size) > MAX_SIDE:
                raise SceneError(
                    f"{path}: {image.width} x {image.height} pixels, expected at most {MAX_SIDE} either way"
                )
            return np.array(image.convert("RGB"))
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, EOFError) as error:
        raise SceneError(f"{path}: not a readable PNG image: {one_line(error)}") from error


def _read_meta(path: Path) -> tuple[float, float, float]:
    """x and y of the first pixel in metres, and pixels per metre."""
    rows = read_rows(path, 1)
    if len(rows) != 3:
        raise SceneError(
            f"{path}: {len(rows)} lines, expected x and y of the origin and pixels per metre"
        )
    x, y, scale = (
        float(numbers(path, [row], column)[0]) for row, column in zip(rows, _META, strict=True)
    )
    if scale <= 0:
        raise SceneError(
            f"{path}: line 3, column 0 (scale): {scale:g}, expected more than 0 pixels per metre"
        )
    return x, y, scale
