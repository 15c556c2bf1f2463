"""The released layout of the Argoverse 2 test split, made from scenarios with a future."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.readers.argoverse2.released import FILES

NUM_HISTORY = 50
NUM_FUTURE = 60
FOCAL = 3  # object_category


def write_released(raw: Path, scenarios: list[Path]) -> Path:
    """Write RAW/test without futures and the tables with the futures of scored tracks.

    `scenarios` are parquet files of scenarios with 110 steps, next to their maps. Missing future
    steps are NaN.
    """
    rows: list[dict[str, Any]] = []
    for path in scenarios:
        scenario_id = path.parent.name
        folder = raw / "test" / scenario_id
        folder.mkdir(parents=True)
        map_name = f"log_map_archive_{scenario_id}.json"
        shutil.copy(path.with_name(map_name), folder / map_name)
        table = pq.read_table(path).to_pandas()
        observed = table[table.timestep < NUM_HISTORY]
        pq.write_table(pa.Table.from_pandas(observed), folder / path.name)
        future = table[table.timestep >= NUM_HISTORY]
        for track_id, track in future[future.object_category >= 2].groupby("track_id"):
            position = np.full((2, NUM_FUTURE), np.nan)
            position[:, track.timestep - NUM_HISTORY] = track[["position_x", "position_y"]].T
            row = {"scenario_id": scenario_id, "track_id": track_id}
            row["is_focal_track"] = bool(track.object_category.iloc[0] == FOCAL)
            row["gt_trajectory_x"], row["gt_trajectory_y"] = position.tolist()
            rows.append(row)
    focal = [row for row in rows if row["is_focal_track"]]
    for name, content in zip(FILES, (focal, rows), strict=True):
        pq.write_table(pa.Table.from_pylist(content), raw / name)
    return raw
