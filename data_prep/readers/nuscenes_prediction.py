"""Reader of nuScenes prediction in AgentFormer's text layout, 4 + 12 steps at 2 Hz, raster maps.

A scene of the store is one sample time of a nuScenes scene: all vehicles seen in the four steps up
to this time, with the official targets of the time as scored agents. So the targets of one time
share one encoding of their surroundings. A row with a one in its last column is an official target
(an instance and a sample of the challenge); its 12 future steps are recorded. The files hold only
vehicles that are a target at some time: no pedestrians, no other vehicles and not the ego vehicle.

The map is a raster of 3 pixels per metre, cropped 75 m around the tracks: rows are x, columns are
y. Blue is the drivable area, green the dividers of roads and red the dividers of lanes. Borders of
the drivable area become polylines of the kind ROAD_EDGE, dividers polylines of the kind ROAD_LINE;
both have no direction.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from data_prep.reader import Input
from data_prep.readers import columns
from data_prep.readers.raw_file import list_parts, read_file
from data_prep.readers.text_rows import NumberColumn, TextRows
from trajformer.config import Config
from trajformer.errors import SceneError, one_line
from trajformer.scenes.geometry import wrap
from trajformer.scenes.kinematics import difference_velocity
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.plausibility import check_recorded
from trajformer.scenes.scene import MAX_EXTENT_M, AgentKind, AgentRole, PolylineKind, Scene
from trajformer.scenes.vector_map import VectorMap, build_map

PERIOD_S = 0.5
NUM_HISTORY = 4
NUM_FUTURE = 12
NUM_COLUMNS = 18
KIND_COLUMN = 2
_KINDS = {
    "Car": AgentKind.VEHICLE,
    "Truck": AgentKind.VEHICLE,
    "Construction": AgentKind.VEHICLE,
    "Emergency": AgentKind.VEHICLE,
    "Bus": AgentKind.BUS,
}
_FRAME = NumberColumn("frame", 0, 1e6)
_ID = NumberColumn("id", 1, 1e6)
_X = NumberColumn("x", 13, MAX_EXTENT_M, "metres")
_Y = NumberColumn("y", 15, MAX_EXTENT_M, "metres")
_YAW = NumberColumn("yaw", 16, 100.0, "radians")
_TARGET = NumberColumn("target", 17, 1)
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
        """Folders with label files.

        train, val and test are the official splits train, train_val and val.
        """
        return sorted({path.parent.name for path in raw.glob("label/[!.]*/[!.]*.txt")})

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """Sample times with a target, by file and frame; the frame is the part of the input."""
        return list_parts(
            sorted((raw / "label" / split).glob("[!.]*.txt")),
            lambda path: read_labels(path).target_frames(),
        )

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a folder holds the maps."""
        return path.name == "map_0.1"

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one sample time; SceneError also if the future of a target is incomplete."""
        labels = read_labels(item.path)
        name = item.path.stem
        if not item.part:
            labels.target_frames()
            raise SceneError(f"{item.path}: the input names no frame")

        # Rows of the sample time and of the steps around it become arrays [A, T].
        now = int(item.part)
        last = NUM_HISTORY - 1  # the last observed step
        first_frame = now - last
        rows = columns.rows_between(labels.frame, first_frame, now + NUM_FUTURE + 1)
        instance, agent = np.unique(labels.agent[rows], return_inverse=True)
        instance_id = [str(number) for number in instance.tolist()]
        step = labels.frame[rows] - first_frame
        num_steps = NUM_HISTORY + NUM_FUTURE
        cell, valid = columns.cells(instance_id, agent, step, num_steps, str(item))

        # Agents that appear only in the future would leak it.
        observed = np.flatnonzero(valid[:, :NUM_HISTORY].any(1))

        def grid(values: np.ndarray) -> np.ndarray:
            return columns.fill(valid, cell, values[rows])[observed]

        position = grid(labels.position)
        heading = grid(labels.yaw)
        kind = grid(labels.kind)
        target = grid(labels.target)
        agent_id = [instance_id[index] for index in observed]
        valid = valid[observed]
        scored = target[:, last] == 1
        incomplete = scored & ~valid[:, last:].all(1)
        if incomplete.any():
            index = incomplete.argmax()
            steps = int(valid[index, NUM_HISTORY:].sum())
            raise SceneError(
                f"{item}: target {agent_id[index]} has {steps} of {NUM_FUTURE} future steps"
            )

        last_position = position[:, last]
        folder = raw / "map_0.1"
        raster = folder / f"{name}.png"
        lines, corners = trace_map(raster, folder / f"meta_{name}.txt")
        outside = ((last_position < corners[0]) | (last_position > corners[1])).any(1) & scored
        if outside.any():
            outside_id = agent_id[outside.argmax()]
            raise SceneError(
                f"{item}: target {outside_id} is outside the raster map_0.1/{name}.png; "
                "get the raster and the meta file of this scene"
            )
        lines = lines.near(last_position[scored], self.map_radius_m, raster)
        velocity = difference_velocity(position, valid, NUM_HISTORY, PERIOD_S)
        center = last_position[scored].mean(0)
        role = np.where(scored, int(AgentRole.SCORED), int(AgentRole.CONTEXT)).astype(np.uint8)
        agents = columns.Agents(
            agent_id=agent_id,
            kind=kind.max(1).astype(np.uint8),  # invalid steps are zero
            role=role,
            position=position,
            heading=heading,
            velocity=velocity,
            valid=valid,
        )
        clock = (PERIOD_S, NUM_HISTORY, NUM_FUTURE)
        scene = agents.scene((f"{name}-{now}", self.name, split, name), clock, center, lines)
        check_recorded(scene, heading=True, where=item)
        return scene


# ---- labels --------------------------------------------------------------------------------------


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
    rows = TextRows(path, NUM_COLUMNS)
    frame = rows.numbers(_FRAME).astype(np.int64)
    agent = rows.numbers(_ID).astype(np.int64)
    position = np.stack([rows.numbers(_X), rows.numbers(_Y)], -1)
    yaw = rows.numbers(_YAW)
    target = rows.numbers(_TARGET).astype(np.int64)
    rows.check.drop_repeated(
        np.stack([frame, agent]),
        np.column_stack([position, yaw, target]),
        "column 1 (id): twice in a frame",
        lambda row: (
            f"line {rows.line[row]}, column 1 (id): {agent[row]} is twice in frame {frame[row]}"
        ),
    )
    kept = np.flatnonzero(rows.check.finish())
    words = rows.column(KIND_COLUMN)
    kept_words = [words[row] for row in kept.tolist()]
    kinds = columns.translate_types(kept_words, _KINDS, f"column {KIND_COLUMN} (kind)", path)
    kind = np.array(kinds, np.int64)
    order = np.lexsort((agent[kept], frame[kept]))
    sorted_rows = kept[order]
    labels = Labels(
        path=path,
        frame=frame[sorted_rows],
        agent=agent[sorted_rows],
        kind=kind[order],
        position=position[sorted_rows],
        yaw=wrap(yaw)[sorted_rows],
        target=target[sorted_rows],
    )
    gaps = np.diff(np.unique(labels.frame))
    if len(gaps) and np.median(gaps) != 1:
        raise SceneError(
            f"{path}: column 0 (frame): frames are {np.median(gaps):g} apart, "
            "expected 1, a frame every 0.5 s"
        )
    return labels


# ---- maps ----------------------------------------------------------------------------------------


@cached_by_file(4)
def trace_map(raster: Path, meta: Path) -> tuple[VectorMap, np.ndarray]:
    """The polylines of a raster in the city frame; SceneError if a file cannot be used.

    Returns also the first and the last corner of the raster, float64 [2, 2].
    """
    pixels = _read_raster(raster)
    x, y, scale = _read_meta(meta)
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


def _read_raster(path: Path) -> np.ndarray:
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


def _read_meta(path: Path) -> tuple[float, float, float]:
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
