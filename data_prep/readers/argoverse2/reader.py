"""Argoverse 2 motion forecasting, `RAW/<split>/<uuid>/scenario_<uuid>.parquet` and a map in the same folder, to `Scene`.

A scenario has 50 observed steps, then 60 to predict. Only the rows of a file are used, not its metadata: test files with
50 steps still declare 110 timestamps. Some files store `timestep` as a float.
"""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from data_prep.reader import Input, StagedReader
from data_prep.readers import columns
from data_prep.readers.argoverse2.map import read_map
from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import MAX_ORIGIN_M, MAX_SPEED_M_S, AgentKind, AgentRole, Scene

PERIOD_S = 0.1
NUM_HISTORY, NUM_FUTURE = 50, 60
EGO_ID = "AV"
_KINDS = {kind.name.lower(): int(kind) for kind in AgentKind}
_ROLES = np.array(
    [AgentRole.CONTEXT, AgentRole.CONTEXT, AgentRole.SCORED, AgentRole.FOCAL], np.uint8
)
MAX_TRACKS = 5_000
# Sizes of about a hundred times the usual one. The codecs, as published, expand at most 21 times, also if the metadata is wrong.
_BOUNDS = columns.ParquetBounds(
    file_bytes=16 << 20, num_bytes=64 << 20, rows=200_000, codecs=("SNAPPY", "UNCOMPRESSED")
)
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


@dataclass(frozen=True)
class Argoverse2(StagedReader):
    """Reader of Argoverse 2 motion forecasting; scenes keep the complete map of the scenario."""

    name: ClassVar[str] = "argoverse2"
    layout: ClassVar[str] = (
        "RAW/<split>/<uuid>/scenario_<uuid>.parquet and log_map_archive_<uuid>.json"
    )
    published: ClassVar[dict[str, int]] = {"train": 199_908, "val": 24_988, "test": 24_984}

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders of a raw folder with at least one scenario."""
        return sorted(
            path.name for path in raw.iterdir() if next(path.glob("*/scenario_*.parquet"), None)
        )

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """The expected scenario file of each folder of the split, by uuid."""
        folders = sorted(path for path in (raw / split).iterdir() if path.is_dir())
        return [Input(folder / f"scenario_{folder.name}.parquet") for folder in folders]

    def stages(self, item: Input, split: str, raw: Path) -> Generator[None, None, Scene]:
        """Read one scenario in stages, see `Reader.read`."""
        path = item.path
        scene_id = path.stem.removeprefix("scenario_")
        table = columns.read_parquet(path, _LIMITS, _TEXT, _BOUNDS)
        yield
        number = columns.numbers_within(table, _LIMITS, path)
        step = columns.whole_numbers(
            number["timestep"], NUM_HISTORY + NUM_FUTURE - 1, f"{path}: timestep"
        )
        last_step = int(step.max())
        if step.min() == last_step:
            raise SceneError(f"{path}: timestep: one step only")
        agent_id, first, agent = columns.groups(table["track_id"])
        columns.check_count(len(agent_id), MAX_TRACKS, "tracks", path)
        num_steps = NUM_HISTORY if last_step < NUM_HISTORY else NUM_HISTORY + NUM_FUTURE
        cell, valid = columns.cells(agent_id, agent, step, num_steps, f"{path}: timestep")
        kind = columns.translate(
            columns.values_at(table["object_type"], first), _KINDS, "object_type", path
        )
        category = columns.whole_numbers(
            number["object_category"][first], len(_ROLES) - 1, f"{path}: object_category"
        )
        role, observed = _ROLES[category], valid[:, :NUM_HISTORY]
        seen = observed.any(1)
        if not seen.any():
            raise SceneError(f"{path}: timestep: no track has an observed step")
        # the origin is the last observed position of the focal agent, else of the ego vehicle, else of the first agent
        rank = 2 * (role == int(AgentRole.FOCAL))
        if EGO_ID in agent_id:
            rank[agent_id.index(EGO_ID)] += 1
        chosen = int(np.where(seen, rank, -1).argmax())
        row = (cell == chosen * num_steps + observed[chosen].nonzero()[0][-1]).argmax()
        x, y, heading = number["position_x"], number["position_y"], number["heading"]
        origin = np.array([x[row], y[row]])
        heading = heading if np.abs(heading).max() <= np.pi else wrap(heading)
        position = np.stack([x - origin[0], y - origin[1]], -1, dtype=np.float32)
        velocity = np.stack([number["velocity_x"], number["velocity_y"]], -1, dtype=np.float32)
        rows = position, heading.astype(np.float32), velocity
        position, heading, velocity = (columns.fill(valid, cell, values) for values in rows)
        agents = columns.Agents(
            agent_id, np.array(kind, np.uint8), role, position, heading, velocity, valid
        )
        city = columns.only_value(table, "city", path)
        del table, number
        yield
        lanes = read_map(path.with_name(f"log_map_archive_{scene_id}.json"))
        return agents.scene(
            (scene_id, self.name, split, city), (PERIOD_S, NUM_HISTORY, NUM_FUTURE), origin, lanes
        )
