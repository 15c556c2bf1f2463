"""Argoverse 2 motion forecasting, `RAW/<split>/<uuid>/scenario_<uuid>.parquet` with its map beside it, to `Scene`.

50 observed steps, then 60 to predict. A file is trusted for its rows only: test files with 50 steps still declare
110 timestamps, and some store `timestep` as a float.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.argoverse2_map import read_map
from data_prep.columns import groups, values_at
from data_prep.reader import Input
from trajformer.errors import SceneError
from trajformer.scene import AgentKind, AgentRole, Scene

PERIOD_S = 0.1
NUM_HISTORY, NUM_FUTURE = 50, 60
EGO_ID = "AV"
_KINDS = {kind.name.lower(): int(kind) for kind in AgentKind}
_FOCAL = int(AgentRole.FOCAL)
_ROLES = np.array([AgentRole.CONTEXT, AgentRole.CONTEXT, AgentRole.SCORED, AgentRole.FOCAL], np.uint8)
MAX_ROWS, MAX_BYTES = 500_000, 256 << 20  # of a scenario, unpacked; a hundred times the usual
_TEXT = ["track_id", "object_type", "city"]
_NUMBERS = ("timestep", "object_category", "position_x", "position_y", "heading", "velocity_x", "velocity_y")
_COLUMNS = [*_TEXT, *_NUMBERS]


@dataclass(frozen=True)
class Argoverse2:
    """Reader of Argoverse 2 motion forecasting; the map file of a scenario is kept whole."""

    name: ClassVar[str] = "argoverse2"
    layout: ClassVar[str] = "RAW/<split>/<uuid>/scenario_<uuid>.parquet with log_map_archive_<uuid>.json beside it"
    published: ClassVar[dict[str, int]] = {"train": 199_908, "val": 24_988, "test": 24_984}

    def splits(self, raw: Path) -> list[str]:
        """Names of the splits in a raw folder: its sub-folders with at least one scenario."""
        return sorted(path.name for path in raw.iterdir() if next(path.glob("*/scenario_*.parquet"), None))

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """The scenario file that each folder of the split should hold, by uuid."""
        folders = sorted(path for path in (raw / split).iterdir() if path.is_dir())
        return [Input(folder / f"scenario_{folder.name}.parquet") for folder in folders]

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """One scenario.

        Raises:
            SceneError: names the file and the column, or the map file and its entry, that cannot be used.
        """
        path = item.path
        table = _read_parquet(path)
        step = _steps(table, path)
        agent_id, first, agent = groups(table["track_id"])
        num_steps = NUM_HISTORY if step.max() < NUM_HISTORY else NUM_HISTORY + NUM_FUTURE
        shape = len(agent_id), num_steps
        cell = agent * num_steps + step  # of [A, T], one after the other
        row = np.full(shape, -1)
        row.reshape(-1)[cell] = np.arange(len(cell))
        valid = row >= 0
        if valid.sum() != len(cell):
            raise SceneError(f"{path}: timestep: a track has two rows with the same one")
        kind, role = _kinds(table, first, path), _roles(table, first, path)
        xy = _pair(table, "position_x", "position_y", path)
        ego = agent_id.index(EGO_ID) if EGO_ID in agent_id else -1
        origin = xy[_origin_row(ego, role, row[:, :NUM_HISTORY], path)].copy()
        return Scene(
            scene_id=path.stem.removeprefix("scenario_"),
            source=self.name,
            split=split,
            city=values_at(table["city"], first[:1])[0],
            period_s=PERIOD_S,
            num_history=NUM_HISTORY,
            num_future=NUM_FUTURE,
            origin=origin,
            agent_id=tuple(agent_id),
            agent_kind=kind,
            agent_role=role,
            position=_fill(shape, cell, xy - origin),
            heading=_fill(shape, cell, _numbers(table, "heading", path)),
            velocity=_fill(shape, cell, _pair(table, "velocity_x", "velocity_y", path)),
            valid=valid,
            **read_map(path.with_name(f"log_map_archive_{path.stem[len('scenario_') :]}.json")).scene_fields(origin),
        )


def _read_parquet(path: Path) -> pa.Table:
    # Text stays a dictionary while it is read: quick to group, and a short file cannot unpack to endless text.
    try:
        with pq.ParquetFile(pa.BufferReader(path.read_bytes()), pre_buffer=False, read_dictionary=_TEXT) as file:
            _check_size(file.metadata, path)
            table = file.read(_COLUMNS, use_threads=False)
    except KeyError as error:  # pyarrow raises it with bytes for a missing `read_dictionary` column
        raise SceneError(f"{path}: {error.args[0].decode()}: no such column") from error
    except (pa.ArrowException, OSError) as error:
        raise SceneError(f"{path}: not a readable parquet file: {error}") from error
    for name in _COLUMNS:
        if name not in table.column_names:
            raise SceneError(f"{path}: {name}: no such column")
        if table[name].null_count:
            raise SceneError(f"{path}: {name}: empty in {table[name].null_count} rows")
    for name in _TEXT:
        if not pa.types.is_dictionary(table[name].type):
            raise SceneError(f"{path}: {name}: type {table[name].type}, expected text")
    return table


def _check_size(metadata: pq.FileMetaData, path: Path) -> None:
    rows, groups = metadata.num_rows, range(metadata.num_row_groups)
    if not rows:
        raise SceneError(f"{path}: track_id: no rows, so no agent")
    if rows > MAX_ROWS or sum(metadata.row_group(index).total_byte_size for index in groups) > MAX_BYTES:
        raise SceneError(f"{path}: track_id: {rows} rows, far too much for one scenario")


def _numbers(table: pa.Table, name: str, path: Path) -> np.ndarray:
    """A column as float64, finite."""
    try:
        values = table[name].to_numpy().astype(np.float64)
    except (ValueError, TypeError) as error:
        raise SceneError(f"{path}: {name}: type {table[name].type}, expected a number") from error
    if not np.isfinite(values).all():
        raise SceneError(f"{path}: {name}: NaN or infinity")
    return values


def _steps(table: pa.Table, path: Path) -> np.ndarray:
    values = _numbers(table, "timestep", path)
    step = values.astype(np.int64)
    last = NUM_HISTORY + NUM_FUTURE - 1
    if (step != values).any() or step.min() < 0 or step.max() > last:
        raise SceneError(f"{path}: timestep: {values.min():g} to {values.max():g}, expected whole numbers 0 to {last}")
    if step.min() == step.max():
        raise SceneError(f"{path}: timestep: one step only")
    return step


def _pair(table: pa.Table, first: str, second: str, path: Path) -> np.ndarray:
    """Two columns as float64 [n, 2], finite."""
    pair = np.empty((len(table), 2))
    pair[:, 0], pair[:, 1] = _numbers(table, first, path), _numbers(table, second, path)
    return pair


def _fill(shape: tuple[int, int], cell: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Float32 array [A, T] or [A, T, 2] with values [n] or [n, 2] at the cells [n], zero elsewhere."""
    packed = np.ascontiguousarray(values, np.float32).view(np.int64 if values.ndim == 2 else np.int32)
    out = np.zeros(shape[0] * shape[1], packed.dtype)  # a pair moves as one integer: many times faster
    out[cell] = packed.reshape(-1)
    return out.view(np.float32).reshape(*shape, *values.shape[1:])


def _kinds(table: pa.Table, first: np.ndarray, path: Path) -> np.ndarray:
    names = values_at(table["object_type"], first)
    if unknown := sorted(set(names) - set(_KINDS)):
        raise SceneError(f"{path}: object_type: unknown value {unknown[0]!r}")
    return np.array([_KINDS[name] for name in names], np.uint8)


def _roles(table: pa.Table, first: np.ndarray, path: Path) -> np.ndarray:
    category = _numbers(table, "object_category", path)[first]
    if category.min() < 0 or category.max() >= len(_ROLES) or (category % 1).any():
        raise SceneError(f"{path}: object_category: {category.min():g} to {category.max():g}, expected 0 to 3")
    return _ROLES[category.astype(np.int64)]


def _origin_row(ego: int, role: np.ndarray, observed: np.ndarray, path: Path) -> int:
    """Row of the focal track's last observed step, else of the ego vehicle's, else of the first track that has one.

    `observed` [A, H] is the row number of each observed step, -1 where there is none.
    """
    rank = (role == _FOCAL) * 2
    if ego >= 0:
        rank[ego] += 1
    rank[~(observed >= 0).any(1)] = -1
    chosen = int(rank.argmax())
    if rank[chosen] < 0:
        raise SceneError(f"{path}: timestep: no track has an observed step")
    return int(observed[chosen][observed[chosen] >= 0][-1])
