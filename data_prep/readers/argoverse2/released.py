"""The released futures of the Argoverse 2 test split, which are in separate files.

The evaluation server has closed, and its ground truth is public. The scenarios of the test split
have observed steps only; the bucket of the data set has two tables next to the splits:

    motion-forecasting/
        train/ val/ test/
        av2_mf_focal_test_annotations.parquet   focal tracks
        av2_mf_multi_test_annotations.parquet   all scored tracks

Columns, one row per track: `scenario_id`, `track_id` (text), `is_focal_track` (bool),
`gt_trajectory_x` and `gt_trajectory_y`: lists of the 60 future positions, metres in the city frame.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.readers import columns
from data_prep.readers.raw_file import open_file
from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import report_dropped
from trajformer.scenes.files import check_parquet
from trajformer.scenes.kinematics import difference_velocity
from trajformer.scenes.parsed_file import cached_by_file
from trajformer.scenes.scene import MAX_ORIGIN_M, AgentRole, Scene

SPLIT = "test"
# If a track is in both tables, the first one is used: it tells which track is focal.
FILES = ("av2_mf_focal_test_annotations.parquet", "av2_mf_multi_test_annotations.parquet")
MAX_BYTES = 1 << 30  # of a table; the focal one has 24 MB
MIN_MOTION_M_S = 1.0  # slower agents keep their heading
_TEXT = ("scenario_id", "track_id")
_FOCAL = "is_focal_track"
_TRAJECTORY = ("gt_trajectory_x", "gt_trajectory_y")


class ReleasedTable(NamedTuple):
    """The recorded futures of N tracks.

    Attributes:
        rows: indices of the rows of each scene, by scene id.
        track_id: N ids.
        is_focal: bool [N].
        position: float64 [N, F, 2], metres in the city frame, NaN where not recorded.
    """

    rows: dict[str, list[int]]
    track_id: Sequence[str]
    is_focal: np.ndarray
    position: np.ndarray


def released_files(raw: Path, split: str) -> list[Path]:
    """The tables with futures of a split of a raw folder, in the order of their use."""
    if split != SPLIT:
        return []
    return [path for path in (raw / name for name in FILES) if path.exists()]


def released_stamp(raw: Path, split: str) -> str:
    """A digest of the tables with futures of a split, empty without tables.

    An unreadable table has no digest; `with_future` raises its error.
    """
    digests = []
    for path in released_files(raw, split):
        try:
            digests.append(_digest(path).hex())
        except SceneError:
            digests.append("unreadable")
    return " ".join(digests)


@cached_by_file(4)
def _digest(path: Path) -> bytes:
    try:
        with open_file(path, MAX_BYTES) as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise SceneError(f"{path}: {one_line(error)}") from error


def with_future(scene: Scene, raw: Path) -> Scene:
    """A scene with observed steps only, with the released futures of its tracks.

    Tracks with a future are scored. Velocities are differences of positions; the heading of an
    agent in motion is its direction, and slower agents keep their heading. A scene without
    released futures is unchanged. Raises SceneError: a table cannot be used.
    """
    if scene.num_steps > scene.num_history:
        return scene
    agent_of = {track_id: index for index, track_id in enumerate(scene.agent_id)}
    futures: dict[int, np.ndarray] = {}
    role = scene.agent_role.copy()
    for path in released_files(raw, scene.split):
        table = read_released(path, scene.num_future)
        unknown = 0
        for row in table.rows.get(scene.scene_id, []):
            agent = agent_of.get(table.track_id[row])
            if agent is None:
                unknown += 1
                continue
            futures.setdefault(agent, table.position[row])
            if table.is_focal[row]:
                role[role == int(AgentRole.FOCAL)] = int(AgentRole.SCORED)
                role[agent] = int(AgentRole.FOCAL)
            role[agent] = max(role[agent], int(AgentRole.SCORED))
        if unknown:
            report_dropped(path, {"track_id: a track that is not in its scenario": unknown})
    if not futures:
        return scene
    return _extended(replace(scene, agent_role=role), futures)


def _extended(scene: Scene, futures: dict[int, np.ndarray]) -> Scene:
    """The scene with future steps; `futures` are positions [F, 2] in the city frame by agent."""
    history = scene.num_history
    num_steps = history + scene.num_future
    num_agents = len(scene.agent_id)
    valid = np.zeros((num_agents, num_steps), np.bool_)
    position = np.zeros((num_agents, num_steps, 2), np.float32)
    velocity = np.zeros((num_agents, num_steps, 2), np.float32)
    heading = np.zeros((num_agents, num_steps), np.float32)
    valid[:, :history] = scene.valid
    position[:, :history] = scene.position
    velocity[:, :history] = scene.velocity
    heading[:, :history] = scene.heading
    for agent, future in futures.items():
        is_recorded = np.isfinite(future).all(-1)
        valid[agent, history:] = is_recorded
        position[agent, history:][is_recorded] = future[is_recorded] - scene.origin

    derived = difference_velocity(position.astype(np.float64), valid, history, scene.period_s)
    velocity[:, history:] = derived[:, history:]
    for step in range(history, num_steps):
        moves = np.hypot(velocity[:, step, 0], velocity[:, step, 1]) >= MIN_MOTION_M_S
        direction = np.arctan2(velocity[:, step, 1], velocity[:, step, 0])
        kept = np.where(valid[:, step - 1], heading[:, step - 1], direction)
        heading[:, step] = np.where(moves, direction, kept)
    heading[~valid] = 0.0
    return replace(scene, valid=valid, position=position, velocity=velocity, heading=heading)


@cached_by_file(4)
def read_released(path: Path, num_future: int) -> ReleasedTable:
    """A table of futures of `num_future` steps (SceneError: it cannot be used)."""
    import pyarrow.parquet as pq

    try:
        with open_file(path, MAX_BYTES) as file, pq.ParquetFile(file) as parquet:
            names = (*_TEXT, _FOCAL, *_TRAJECTORY)
            columns.check_names(parquet.schema_arrow.names, names, path)
            check_parquet(path, parquet.metadata)
            table = parquet.read(list(names), use_threads=False)
        table.validate(full=True)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        remedy = "download it again, or remove it"
        reason = f"not a readable parquet file: {one_line(error)}; {remedy}"
        raise SceneError(f"{path}: {reason}") from error
    _check_types(table, path)
    axes = []
    for name in _TRAJECTORY:
        axes.append(_lists(table.column(name), num_future, f"{path}: {name}"))
    rows: dict[str, list[int]] = {}
    for row, scene_id in enumerate(table.column("scenario_id").to_pylist()):
        rows.setdefault(scene_id, []).append(row)
    is_focal = np.array(table.column(_FOCAL).to_pylist(), np.bool_)
    track_id = table.column("track_id").to_pylist()
    return ReleasedTable(rows, track_id, is_focal, np.stack(axes, -1))


def _check_types(table: pa.Table, path: Path) -> None:
    """SceneError if a column has another type or empty cells."""
    columns.check_types(table, (), _TEXT, path)
    kind = table.column(_FOCAL).type
    if not pa.types.is_boolean(kind):
        raise SceneError(f"{path}: {_FOCAL}: type {kind}, expected true or false")
    for name in (_FOCAL, *_TRAJECTORY):
        if table.column(name).null_count:
            raise SceneError(f"{path}: {name}: empty in {table.column(name).null_count} rows")


def _lists(column: pa.ChunkedArray, length: int, where: str) -> np.ndarray:
    """A column of lists of numbers as float64 [N, length]; a SceneError starts with `where`."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_floating(kind.value_type):
        raise SceneError(f"{where}: type {kind}, expected lists of numbers")
    lengths = set(pc.list_value_length(column).to_pylist())
    if lengths - {length}:
        shown = f"{min(lengths)} to {max(lengths)}"
        raise SceneError(f"{where}: lists of {shown} values, expected {length}")
    values = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    values = values.astype(np.float64).reshape(-1, length)
    largest = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    if largest > MAX_ORIGIN_M:
        raise SceneError(f"{where}: {largest:g}, expected at most {MAX_ORIGIN_M:g} either way")
    return values
