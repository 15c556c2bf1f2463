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
from data_prep.columns import groups, text
from data_prep.reader import Input
from trajformer.errors import SceneError
from trajformer.scene import AgentKind, AgentRole, Scene

PERIOD_S = 0.1
NUM_HISTORY, NUM_FUTURE = 50, 60
EGO_ID = "AV"
_KINDS = {kind.name.lower(): kind for kind in AgentKind}
_ROLES = np.array([AgentRole.CONTEXT, AgentRole.CONTEXT, AgentRole.SCORED, AgentRole.FOCAL], np.uint8)
_TEXT = ("track_id", "object_type", "scenario_id", "city")
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
        row = np.full((len(agent_id), num_steps), -1)
        row[agent, step] = np.arange(len(agent))
        valid = row >= 0
        if valid.sum() != len(agent):
            raise SceneError(f"{path}: timestep: a track has two rows with the same one")
        kind, role = _kinds(table, first, path), _roles(table, first, path)
        xy = _columns(table, ("position_x", "position_y"), path)
        origin = xy[_origin_row(agent_id, role, row[:, :NUM_HISTORY], path)].copy()
        position, heading = np.zeros((*row.shape, 2), np.float32), np.zeros(row.shape, np.float32)
        velocity = np.zeros_like(position)
        position[agent, step] = xy - origin
        heading[agent, step] = _columns(table, ("heading",), path)[:, 0]
        velocity[agent, step] = _columns(table, ("velocity_x", "velocity_y"), path)
        return Scene(
            scene_id=table["scenario_id"][0].as_py(),
            source=self.name,
            split=split,
            city=table["city"][0].as_py(),
            period_s=PERIOD_S,
            num_history=NUM_HISTORY,
            num_future=NUM_FUTURE,
            origin=origin,
            agent_id=tuple(agent_id.tolist()),
            agent_kind=kind,
            agent_role=role,
            position=position,
            heading=heading,
            velocity=velocity,
            valid=valid,
            **read_map(path.with_name(f"log_map_archive_{path.stem[len('scenario_') :]}.json")).scene_fields(origin),
        )


def _read_parquet(path: Path) -> pa.Table:
    try:
        with pq.ParquetFile(path, read_dictionary=list(_TEXT)) as file:
            present = set(file.schema_arrow.names)
            if missing := [name for name in _COLUMNS if name not in present]:
                raise KeyError(missing[0].encode())
            table = file.read(_COLUMNS, use_threads=False)
    except KeyError as error:  # pyarrow raises it with bytes for a missing `read_dictionary` column
        raise SceneError(f"{path}: {error.args[0].decode()}: no such column") from error
    except (pa.ArrowException, OSError) as error:
        raise SceneError(f"{path}: not a readable parquet file: {error}") from error
    if not len(table):
        raise SceneError(f"{path}: track_id: no rows, so no agent")
    for name in _COLUMNS:
        if table[name].null_count:
            raise SceneError(f"{path}: {name}: empty in {table[name].null_count} rows")
    for name in _TEXT:
        if not pa.types.is_dictionary(table[name].type):
            raise SceneError(f"{path}: {name}: type {table[name].type}, expected text")
    return table


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


def _columns(table: pa.Table, names: tuple[str, ...], path: Path) -> np.ndarray:
    """Columns as float64 [n, len(names)], finite."""
    return np.stack([_numbers(table, name, path) for name in names], -1)


def _kinds(table: pa.Table, first: np.ndarray, path: Path) -> np.ndarray:
    names = text(table["object_type"])[first].tolist()
    if unknown := sorted(set(names) - set(_KINDS)):
        raise SceneError(f"{path}: object_type: unknown value {unknown[0]!r}")
    return np.array([_KINDS[name] for name in names], np.uint8)


def _roles(table: pa.Table, first: np.ndarray, path: Path) -> np.ndarray:
    category = _numbers(table, "object_category", path)[first]
    if not np.isin(category, range(len(_ROLES))).all():
        raise SceneError(f"{path}: object_category: {category.min():g} to {category.max():g}, expected 0 to 3")
    return _ROLES[category.astype(np.int64)]


def _origin_row(agent_id: np.ndarray, role: np.ndarray, observed: np.ndarray, path: Path) -> int:
    """Row of the focal track's last observed step, else of the ego vehicle's, else of the first track that has one.

    `observed` [A, H] is the row number of each observed step, -1 where there is none.
    """
    rank = np.where(role == AgentRole.FOCAL, 2, 0) + (agent_id == EGO_ID)
    rank = np.where((observed >= 0).any(1), rank, -1)
    chosen = int(rank.argmax())
    if rank[chosen] < 0:
        raise SceneError(f"{path}: timestep: no track has an observed step")
    return int(observed[chosen][observed[chosen] >= 0][-1])
