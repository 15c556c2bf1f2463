"""Paths that vehicles of the training part have driven, as lanes of nuScenes prediction.

The raster has no direction of travel. Vehicles of other recordings show it: their paths are cut
into pieces, and pieces that repeat others are left out. Paths of the scene itself are not used, so
that they do not tell its future, and none of the parts for validation and test.

The files do not name the city of a scene, and cities have overlapping coordinates. Two scenes are
of one city if their drivable areas agree where their rasters overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data_prep.readers.nuscenes.labels import Labels, read_labels
from data_prep.readers.nuscenes.raster import read_meta, read_raster, spaced
from trajformer.errors import SceneError
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import PolylineKind
from trajformer.scenes.vector_map import VectorMap, build_map

SPACING_M = 3.0  # between points of a path
PIECE_POINTS = 12
MIN_LENGTH_M = 8.0  # from the first to the last position of a vehicle
MIN_STEP_M = 1.0  # between positions: a standing vehicle has no direction
REACH_M = 80.0  # of a piece from a vehicle of the scene
_CACHED = 1024  # files; the training part has 475 scenes

MIN_OVERLAP_M = 20  # of two rasters along x and y
MIN_DRIVABLE_M2 = 300  # in the overlap, by one of both
SAME_AREA = 0.93  # share of both in the union; 99 % of larger shares are over .98

NO_PATHS = "driven paths: a file of this scene cannot be used"
COPY_M = 1.8  # a point repeats another one that is nearer
COPY_COS = 0.9  # and has nearly the same direction
COPY_SHARE = 0.6  # of its points: then a piece repeats others


@cached_by_file(2)
def driven_paths(label: Path, raster: Path, meta: Path, training: Path) -> VectorMap:
    """The paths near the vehicles of a scene, as lanes in the frame of the city.

    Arguments are the three files of the scene, and the folder of the label files of the training
    part. Training scenes that cannot be used are reported as dropped. Raises SceneError: a file of
    the scene itself cannot be used.
    """
    labels = read_labels(label)
    area = read_area(raster, meta)
    pieces: list[np.ndarray] = []
    for other in sorted(training.glob("[!.]*.txt")):
        if other.stem == label.stem:
            continue
        try:
            other_raster = raster.with_name(f"{other.stem}.png")
            other_meta = meta.with_name(f"meta_{other.stem}.txt")
            if area.is_same_place(read_area(other_raster, other_meta)):
                pieces += read_paths(other)
        except SceneError:  # reading its own scenes gives the reason
            report_dropped(other, {NO_PATHS: 1})
    lanes = _without_copies(_near(pieces, labels.position))
    heads = [(number, int(PolylineKind.LANE_VEHICLE), 0) for number in range(len(lanes))]
    lengths = [len(lane) for lane in lanes]
    return build_map(heads, lengths, np.concatenate([np.zeros((0, 2)), *lanes]), [])


@dataclass(frozen=True, eq=False)
class Area:
    """The drivable area of a raster, in squares of a metre."""

    is_drivable: np.ndarray  # bool [X, Y]
    corner: np.ndarray  # int64 [2], of the first square, in the frame of the city

    def is_same_place(self, other: Area) -> bool:
        """Whether both agree where they overlap; False if they hardly do."""
        low = np.maximum(self.corner, other.corner)
        high = np.minimum(
            self.corner + self.is_drivable.shape, other.corner + other.is_drivable.shape
        )
        if (high - low < MIN_OVERLAP_M).any():
            return False
        first = self._part(low, high)
        second = other._part(low, high)
        union = (first | second).sum()
        return bool(union >= MIN_DRIVABLE_M2 and (first & second).sum() > SAME_AREA * union)

    def _part(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The squares between two corners."""
        x0, y0 = low - self.corner
        x1, y1 = high - self.corner
        return self.is_drivable[x0:x1, y0:y1]


@cached_by_file(_CACHED)
def read_area(raster: Path, meta: Path) -> Area:
    """The drivable area of a raster; SceneError if a file cannot be used."""
    blue = read_raster(raster)[..., 2]
    x, y, scale = read_meta(meta)
    begin = np.array([x, y])
    corner = np.ceil(begin).astype(np.int64)
    size = (np.array(blue.shape) / scale - (corner - begin)).astype(np.int64)
    row, column = [
        ((np.arange(count) + shift) * scale).astype(np.int64)
        for count, shift in zip(size, corner - begin, strict=True)
    ]
    return Area(blue[np.ix_(row, column)] > 0, corner)


@cached_by_file(_CACHED)
def read_paths(label: Path) -> list[np.ndarray]:
    """The pieces float64 [p, 2] of the paths of all moving vehicles of a label file."""
    labels = read_labels(label)
    pieces: list[np.ndarray] = []
    for agent in np.unique(labels.agent):
        position = _moving(labels, agent)
        if len(position) < 3 or np.hypot(*(position[-1] - position[0])) < MIN_LENGTH_M:
            continue
        path = spaced(position, SPACING_M)
        for start in range(0, max(len(path) - 2, 1), PIECE_POINTS - 1):
            piece = path[start : start + PIECE_POINTS]
            if len(piece) >= 3:
                pieces.append(piece)
    return pieces


def _moving(labels: Labels, agent: int) -> np.ndarray:
    """The positions [n, 2] of a vehicle, without those near the one before."""
    position = labels.position[labels.agent == agent]
    kept = [position[0]]
    for point in position[1:]:
        if np.hypot(*(point - kept[-1])) > MIN_STEP_M:
            kept.append(point)
    return np.array(kept)


def _near(pieces: list[np.ndarray], position: np.ndarray) -> list[np.ndarray]:
    """The pieces with a point within `REACH_M` of a position [n, 2]."""
    near = []
    for piece in pieces:
        offset = piece[:, None] - position
        if (offset**2).sum(-1).min() <= REACH_M**2:
            near.append(piece)
    return near


def _without_copies(pieces: list[np.ndarray]) -> list[np.ndarray]:
    """The pieces that do not repeat others; the longest ones come first."""
    kept: list[np.ndarray] = []
    point = np.zeros((0, 2))
    direction = np.zeros((0, 2))
    for piece in sorted(pieces, key=len, reverse=True):
        along = np.diff(piece, axis=0)
        along /= np.maximum(np.hypot(along[:, 0], along[:, 1]), 1e-6)[:, None]
        along = np.concatenate([along, along[-1:]])
        squared_distance = ((piece[:, None] - point) ** 2).sum(-1)  # [p, points of kept pieces]
        repeats = (squared_distance < COPY_M**2) & (along @ direction.T > COPY_COS)
        if repeats.any(1).mean() > COPY_SHARE:
            continue
        kept.append(piece)
        point = np.concatenate([point, piece])
        direction = np.concatenate([direction, along])
    return kept
