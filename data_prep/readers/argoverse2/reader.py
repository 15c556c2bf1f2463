"""Reader of Argoverse 2 motion forecasting: a parquet file and a map for each scenario.

A scenario has 50 observed steps, then 60 to predict. Only the rows of a file are used, not its
metadata: test files with 50 steps still declare 110 timestamps. Some files store `timestep` as a
float. The futures of the test split are in separate files (`released`).
"""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from data_prep.reader import Input, StagedReader
from data_prep.readers import columns
from data_prep.readers.argoverse2.map import read_map
from data_prep.readers.argoverse2.released import FILES, released_stamp, with_future
from data_prep.readers.row_check import RowCheck
from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.plausibility import check_recorded
from trajformer.scenes.scene import MAX_ORIGIN_M, MAX_SPEED_M_S, AgentKind, AgentRole, Scene

PERIOD_S = 0.1
NUM_HISTORY = 50
NUM_FUTURE = 60
EGO_ID = "AV"
_KINDS = {kind.name.lower(): int(kind) for kind in AgentKind}
_ROLES = np.array(  # by `object_category`: fragment, unscored, scored, focal
    [AgentRole.CONTEXT, AgentRole.CONTEXT, AgentRole.SCORED, AgentRole.FOCAL], np.uint8
)
_ROLES_NEEDED = 2  # all rows of tracks of this category and above must be usable
# Limits are about a hundred times the usual size.
MAX_TRACKS = 5_000
_BOUNDS = columns.ParquetBounds(file_bytes=16 << 20, num_bytes=64 << 20, rows=200_000)
_TEXT = ["track_id", "object_type", "city"]
_OPTIONAL = ("object_type", "city")
_LIMITS = {  # largest absolute values
    "timestep": 1e15,
    "object_category": 1e15,
    "position_x": MAX_ORIGIN_M,
    "position_y": MAX_ORIGIN_M,
    "heading": 2 * np.pi,
    "velocity_x": MAX_SPEED_M_S,
    "velocity_y": MAX_SPEED_M_S,
}


@dataclass(frozen=True)
class Argoverse2(StagedReader):
    """Reader of Argoverse 2 motion forecasting; scenes keep the complete map of the scenario.

    Scenes of the test split have a future if the raw folder has the released files with it.
    """

    name: ClassVar[str] = "argoverse2"
    layout: ClassVar[str] = (
        "RAW/<split>/<uuid>/scenario_<uuid>.parquet and log_map_archive_<uuid>.json"
    )
    published: ClassVar[dict[str, int]] = {"train": 199_908, "val": 24_988, "test": 24_984}

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders of a raw folder with at least one scenario."""
        folders = raw.iterdir()
        return sorted(
            folder.name for folder in folders if next(folder.glob("*/scenario_*.parquet"), None)
        )

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """The expected scenario file of each folder of the split, by uuid."""
        folders = sorted(path for path in (raw / split).iterdir() if path.is_dir())
        stamp = released_stamp(raw, split)
        inputs = []
        for folder in folders:
            inputs.append(Input(folder / f"scenario_{folder.name}.parquet", stamp=stamp))
        return inputs

    def belongs(self, raw: Path, path: Path) -> bool:
        """Whether a file is the map of a scenario, or belongs to the folder.

        Such files have the futures of the test split, or the arguments of `trajformer synthesize`.
        """
        is_of_folder = path.parent == raw and path.name in (*FILES, "arguments.json")
        return is_of_folder or path.name == f"log_map_archive_{path.parent.name}.json"

    def stages(self, item: Input, split: str, raw: Path) -> Generator[None, None, Scene]:
        """Read one scenario in stages, see `Reader.read`."""
        path = item.path
        scene_id = path.stem.removeprefix("scenario_")
        table = columns.read_parquet(path, _LIMITS, _TEXT, _BOUNDS, _OPTIONAL)
        yield

        number, table = _usable_rows(table, path)
        step, num_steps = _steps(number["timestep"], path)
        agent_id, first_row, agent = columns.groups(table["track_id"])
        columns.check_count(len(agent_id), MAX_TRACKS, "tracks", path)
        cell, valid = columns.cells(agent_id, agent, step, num_steps, f"{path}: timestep")
        types = ["unknown"] * len(agent_id)
        if "object_type" in table:
            types = columns.values_at(table["object_type"], first_row)
        kind = columns.translate_types(types, _KINDS, "object_type", path)
        category = columns.whole_numbers(
            number["object_category"][first_row], len(_ROLES) - 1, f"{path}: object_category"
        )
        role = _ROLES[category]

        xy = np.stack([number["position_x"], number["position_y"]], -1, dtype=np.float64)
        central_agent, central_step = _center(agent_id, role, valid, path)
        center = xy[(cell == central_agent * num_steps + central_step).argmax()]
        heading = number["heading"]
        if np.abs(heading).max() > np.pi:
            heading = wrap(heading)
        velocity = np.stack([number["velocity_x"], number["velocity_y"]], -1, dtype=np.float32)
        agents = columns.Agents(
            agent_id,
            np.array(kind, np.uint8),
            role,
            columns.fill(valid, cell, xy),
            columns.fill(valid, cell, heading.astype(np.float32)),
            columns.fill(valid, cell, velocity),
            valid,
        )
        city = ""
        if "city" in table:
            city = columns.only_value(table, "city", path)
        del table, number  # many scenes wait here: the generator must not hold their tables
        yield

        lanes = read_map(path.with_name(f"log_map_archive_{scene_id}.json"))
        name = (scene_id, self.name, split, city)
        clock = (PERIOD_S, NUM_HISTORY, NUM_FUTURE)
        scene = agents.scene(name, clock, center, lanes)
        check_recorded(scene, heading=True, velocity=True, where=path)
        return with_future(scene, raw)


def _usable_rows(
    table: dict[str, pa.Array], path: Path
) -> tuple[dict[str, np.ndarray], dict[str, columns.Column]]:
    """Columns of numbers, float64 [n], and of text, without the rows that cannot be used.

    SceneError: they are many, or one of them is a row of a focal or scored track.
    """
    check = RowCheck(path, len(table["track_id"]))
    text = columns.usable_text(table, [name for name in _TEXT if name in table], check)
    number = columns.usable_numbers(table, _LIMITS, check)
    maximum = NUM_HISTORY + NUM_FUTURE - 1
    step = columns.usable_whole_numbers(number["timestep"], maximum, "timestep", check)
    agent_id, _, agent = columns.groups(text["track_id"])
    values = [number[name] for name in _LIMITS]
    columns.drop_repeated_steps(agent_id, agent, step, values, "timestep", check)
    if not check.is_usable.all():
        is_target = number["object_category"] >= _ROLES_NEEDED
        check.need(np.isin(agent, agent[is_target]))
    rows = check.finish()
    return columns.take_rows(number, rows), columns.take_rows(text, rows)


def _steps(timestep: np.ndarray, path: Path) -> tuple[np.ndarray, int]:
    """Step of each row, int64 [n], and the number of steps T."""
    step = columns.whole_numbers(timestep, NUM_HISTORY + NUM_FUTURE - 1, f"{path}: timestep")
    last_step = int(step.max())
    if step.min() == last_step:
        raise SceneError(f"{path}: timestep: one step only")
    num_steps = NUM_HISTORY if last_step < NUM_HISTORY else NUM_HISTORY + NUM_FUTURE
    return step, num_steps


def _center(
    agent_id: list[str], role: np.ndarray, valid: np.ndarray, path: Path
) -> tuple[int, int]:
    """Agent and step of the position around which the scene lies.

    It is the last observed position of the focal agent, else of the ego vehicle, else of the first
    agent. SceneError if no agent has an observed step.
    """
    observed = valid[:, :NUM_HISTORY]
    is_observed = observed.any(1)
    if not is_observed.any():
        raise SceneError(f"{path}: timestep: no track has an observed step")
    rank = 2 * (role == int(AgentRole.FOCAL))
    if EGO_ID in agent_id:
        rank[agent_id.index(EGO_ID)] += 1
    agent = int(np.where(is_observed, rank, -1).argmax())
    last_step = int(observed[agent].nonzero()[0][-1])
    return agent, last_step
