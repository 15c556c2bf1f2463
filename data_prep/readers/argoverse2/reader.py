"""Argoverse 2 motion forecasting, `RAW/<split>/<uuid>/scenario_<uuid>.parquet` and a map in the same folder, to `Scene`.

A scenario has 50 observed steps, then 60 to predict. Only the rows of a file are used, not its metadata: test files with
50 steps still declare 110 timestamps. Some files store `timestep` as a float.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.reader import Input, StagedReader
from data_prep.readers.argoverse2.map import read_map
from data_prep.readers.columns import groups, is_number, is_text, numbers, values_at
from data_prep.readers.raw_file import one_line, read_file
from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import MAX_ORIGIN_M, MAX_SPEED_M_S, AgentKind, AgentRole, Scene

PERIOD_S = 0.1
NUM_HISTORY, NUM_FUTURE = 50, 60
EGO_ID = "AV"
_KINDS = {kind.name.lower(): int(kind) for kind in AgentKind}
_FOCAL = int(AgentRole.FOCAL)
_ROLES = np.array([AgentRole.CONTEXT, AgentRole.CONTEXT, AgentRole.SCORED, AgentRole.FOCAL], np.uint8)
MAX_FILE_BYTES, MAX_BYTES = 16 << 20, 64 << 20  # compressed and uncompressed: about a hundred times the usual size
MAX_ROWS, MAX_TRACKS = 200_000, 5_000
_TEXT = ["track_id", "object_type", "city"]
_LIMITS = {  # largest absolute values
    "timestep": 1e15,
    "object_category": 1e15,
    "position_x": MAX_ORIGIN_M,
    "position_y": MAX_ORIGIN_M,
    "heading": 2 * np.pi,
    "velocity_x": MAX_SPEED_M_S,
    "velocity_y": MAX_SPEED_M_S,
}
_COLUMNS = [*_TEXT, *_LIMITS]
_CODECS = ("SNAPPY", "UNCOMPRESSED")  # as published; they expand at most 21 times, also if the metadata is wrong


@dataclass(frozen=True)
class Argoverse2(StagedReader):
    """Reader of Argoverse 2 motion forecasting; scenes keep the complete map of the scenario."""

    name: ClassVar[str] = "argoverse2"
    layout: ClassVar[str] = "RAW/<split>/<uuid>/scenario_<uuid>.parquet and log_map_archive_<uuid>.json"
    published: ClassVar[dict[str, int]] = {"train": 199_908, "val": 24_988, "test": 24_984}

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders of a raw folder with at least one scenario."""
        return sorted(path.name for path in raw.iterdir() if next(path.glob("*/scenario_*.parquet"), None))

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """The expected scenario file of each folder of the split, by uuid."""
        folders = sorted(path for path in (raw / split).iterdir() if path.is_dir())
        return [Input(folder / f"scenario_{folder.name}.parquet") for folder in folders]

    def stages(self, item: Input, split: str, raw: Path) -> Generator[None, None, Scene]:
        """Read one scenario in stages.

        Raises:
            SceneError: names the file and the column, or the map file and the entry, that cannot be used.
        """
        path = item.path
        scene_id = path.stem.removeprefix("scenario_")
        table = _read_parquet(path)
        yield
        number = _numbers(table, path)
        step = _steps(number["timestep"], path)
        agent_id, first, agent = groups(table["track_id"])
        if len(agent_id) > MAX_TRACKS:
            raise SceneError(f"{path}: track_id: {len(agent_id)} tracks, far too many for one scenario")
        num_steps = NUM_HISTORY if step.max() < NUM_HISTORY else NUM_HISTORY + NUM_FUTURE
        shape = len(agent_id), num_steps
        cell = agent * num_steps + step  # index into the flat [A, T]
        count = np.bincount(cell, minlength=shape[0] * shape[1])
        if count.max() > 1:
            raise SceneError(f"{path}: timestep: a track has two rows with the same one")
        valid = count.astype(bool).reshape(shape)
        kind, role = _kinds(table, first, path), _roles(number["object_category"][first], path)
        ego = agent_id.index(EGO_ID) if EGO_ID in agent_id else -1
        origin_agent, origin_step = _origin_cell(ego, role, valid[:, :NUM_HISTORY], path)
        row = (cell == origin_agent * num_steps + origin_step).argmax()
        x, y, heading = number["position_x"], number["position_y"], number["heading"]
        origin = np.array([x[row], y[row]])
        tracks = {
            "position": _fill(shape, cell, x - origin[0], y - origin[1]),
            "heading": _fill(shape, cell, heading if np.abs(heading).max() <= np.pi else wrap(heading)),
            "velocity": _fill(shape, cell, number["velocity_x"], number["velocity_y"]),
        }
        city = _city(table, path)
        del table, number
        yield
        lanes = read_map(path.with_name(f"log_map_archive_{scene_id}.json"))
        return Scene(
            scene_id=scene_id,
            source=self.name,
            split=split,
            city=city,
            period_s=PERIOD_S,
            num_history=NUM_HISTORY,
            num_future=NUM_FUTURE,
            origin=origin,
            agent_id=tuple(agent_id),
            agent_kind=kind,
            agent_role=role,
            valid=valid,
            **tracks,
            **lanes.scene_fields(origin),
        )


def _read_parquet(path: Path) -> dict[str, pa.Array]:
    # Text is read as a dictionary: grouping is fast, and a small file cannot expand to a large amount of text.
    try:
        data = pa.BufferReader(read_file(path, MAX_FILE_BYTES))
        with pq.ParquetFile(data, pre_buffer=False, read_dictionary=_TEXT) as file:
            _check_size(file.metadata, path)
            _check_columns(file.schema_arrow, file.metadata, path)
            table = file.read(_COLUMNS, use_threads=False)
        for name in _TEXT:  # numbers need no such check
            table.column(name).validate(full=True)
    except KeyError as error:  # pyarrow raises it with bytes for a missing `read_dictionary` column
        raise SceneError(f"{path}: {error.args[0].decode()}: no such column") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SceneError(f"{path}: not a readable parquet file: {one_line(error)}") from error
    [batch] = table.combine_chunks().to_batches()
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, column in columns.items():
        kind = column.type
        if not (is_number(kind) if name in _LIMITS else is_text(kind)):
            raise SceneError(f"{path}: {name}: type {kind}, expected {'a number' if name in _LIMITS else 'text'}")
        if column.null_count:
            raise SceneError(f"{path}: {name}: empty in {column.null_count} rows")
    return columns


def _check_size(metadata: pq.FileMetaData, path: Path) -> None:
    """Check the declared size before the file is decompressed."""
    if not metadata.num_rows:
        raise SceneError(f"{path}: track_id: no rows, so no agent")
    parts = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    rows, size = sum(part.num_rows for part in parts), sum(part.total_byte_size for part in parts)
    if rows != metadata.num_rows:
        raise SceneError(f"{path}: not a readable parquet file: {metadata.num_rows} rows, its parts have {rows}")
    if rows > MAX_ROWS or size > MAX_BYTES:
        raise SceneError(f"{path}: track_id: {rows} rows, {size} bytes uncompressed, far too much for one scenario")


def _check_columns(schema: pa.Schema, metadata: pq.FileMetaData, path: Path) -> None:
    """Check that each column exists once, has one value per row (lists may expand to any size) and uses a published codec."""
    names, kinds = schema.names, schema.types  # `metadata.schema` would keep memory until the next garbage collection
    nested = {name for name, kind in zip(names, kinds, strict=True) if pa.types.is_nested(kind)}
    for name in _COLUMNS:
        if name in nested:
            raise SceneError(f"{path}: {name}: not one value a row")
        if names.count(name) != 1:
            raise SceneError(f"{path}: {name}: {'two columns of this name' if name in names else 'no such column'}")
    for part in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(part.column, range(part.num_columns)):
            if column.compression not in _CODECS and (name := column.path_in_schema) in _COLUMNS:
                raise SceneError(f"{path}: {name}: compressed with {column.compression}, expected {' or '.join(_CODECS)}")


def _numbers(table: dict[str, pa.Array], path: Path) -> dict[str, np.ndarray]:
    """Numeric columns as float64 [n], finite and within their limits."""
    matrix = np.array([numbers(table[name]) for name in _LIMITS], np.float64)
    extremes = zip(_LIMITS.items(), matrix.min(1).tolist(), matrix.max(1).tolist(), strict=True)
    for (name, limit), low, high in extremes:
        if not (low >= -limit and high <= limit):  # also refuses NaN
            largest = high if high >= -low else low
            problem = f"{abs(largest):g}, expected at most {limit:g} either way" if np.isfinite(largest) else "NaN or infinity"
            raise SceneError(f"{path}: {name}: {problem}")
    return dict(zip(_LIMITS, matrix, strict=True))


def _city(table: dict[str, pa.Array], path: Path) -> str:
    cities = table["city"].dictionary.to_pylist()
    if len(cities) != 1 and len(cities := groups(table["city"])[0]) != 1:  # a dictionary may hold unused words
        raise SceneError(f"{path}: city: {len(cities)} cities in one scenario")
    return cities[0]


def _steps(values: np.ndarray, path: Path) -> np.ndarray:
    step = values.astype(np.int64)
    first, last, end = step.min(), step.max(), NUM_HISTORY + NUM_FUTURE - 1
    if first < 0 or last > end or (step != values).any():
        raise SceneError(f"{path}: timestep: {values.min():g} to {values.max():g}, expected whole numbers 0 to {end}")
    if first == last:
        raise SceneError(f"{path}: timestep: one step only")
    return step


def _fill(shape: tuple[int, int], cell: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """Float32 array [A, T] (or [A, T, 2] for two columns) with values [n] at the cells [n], zero elsewhere."""
    columns = np.stack(values, -1, dtype=np.float32) if len(values) > 1 else values[0].astype(np.float32)
    packed = columns.view(np.int64 if len(values) > 1 else np.int32)
    out = np.zeros(shape[0] * shape[1], packed.dtype)  # a pair is copied as one integer, which is many times faster
    out[cell] = packed.reshape(-1)
    return out.view(np.float32).reshape(*shape, *columns.shape[1:])


def _kinds(table: dict[str, pa.Array], first: np.ndarray, path: Path) -> np.ndarray:
    names = values_at(table["object_type"], first)
    if unknown := sorted(set(names) - set(_KINDS)):
        raise SceneError(f"{path}: object_type: unknown value {unknown[0][:40]!r}")
    return np.array([_KINDS[name] for name in names], np.uint8)


def _roles(category: np.ndarray, path: Path) -> np.ndarray:
    if category.min() < 0 or category.max() >= len(_ROLES) or (category % 1).any():
        raise SceneError(f"{path}: object_category: {category.min():g} to {category.max():g}, expected 0 to 3")
    return _ROLES[category.astype(np.int64)]


def _origin_cell(ego: int, role: np.ndarray, observed: np.ndarray, path: Path) -> tuple[int, int]:
    """Agent and last observed step of the origin: of the focal agent, else the ego vehicle, else the first observed agent.

    `observed` is bool [A, H].
    """
    rank = (role == _FOCAL) * 2
    if ego >= 0:
        rank[ego] += 1
    rank[~observed.any(1)] = -1
    chosen = int(rank.argmax())
    if rank[chosen] < 0:
        raise SceneError(f"{path}: timestep: no track has an observed step")
    return chosen, int(observed[chosen].nonzero()[0][-1])
