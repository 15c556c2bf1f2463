"""Files of the INTERPRET challenge: one row per car and frame, six paths in columns."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from trajformer.errors import TrajformerError
from trajformer.evaluation.protocols.interaction import (
    NUM_FUTURE,
    NUM_HISTORY,
    PERIOD_MS,
    K,
    Outcome,
    target_rows,
)
from trajformer.scenes.files import atomically

_FRAMES = np.arange(NUM_HISTORY + 1, NUM_HISTORY + NUM_FUTURE + 1)  # 11 to 40
_NUMBERS = ("case_id", "frame_id", "timestamp_ms", "track_to_predict", "interesting_agent")


def write_challenge_file(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write `<location>_sub.csv` with all cars that have 40 steps, and check it."""
    parts = []
    for outcome in outcomes:
        complete = np.isin(outcome.row, target_rows(outcome.scene, "HPNet"))
        for car in np.flatnonzero(complete):
            parts.append(_columns(outcome, int(car)))
    if not parts:
        raise TrajformerError(f"{path}: no car with all {NUM_HISTORY + NUM_FUTURE} steps to write")
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    with atomically(path) as temporary:
        options = pa_csv.WriteOptions(quoting_style="none")
        pa_csv.write_csv(pa.table(columns), temporary, options)
        check_challenge_file(temporary)


def _columns(outcome: Outcome, car: int) -> dict[str, np.ndarray]:
    """The rows of a car by column."""
    scene, row, paths = outcome
    case = float(scene.scene_id.rsplit("-", 1)[1])
    columns = {
        "case_id": np.full(NUM_FUTURE, case),
        "track_id": np.full(NUM_FUTURE, scene.agent_id[row[car]]),
        "frame_id": _FRAMES,
        "timestamp_ms": _FRAMES * PERIOD_MS,
        "track_to_predict": np.ones(NUM_FUTURE),
        "interesting_agent": np.zeros(NUM_FUTURE),
    }
    position = paths.position[car] + scene.origin  # [K, F, 2]
    for mode in range(len(position)):
        columns[f"x{mode + 1}"] = position[mode, :, 0].round(4)
        columns[f"y{mode + 1}"] = position[mode, :, 1].round(4)
        columns[f"psi_rad{mode + 1}"] = paths.heading[car, mode].round(4)
    return columns


def check_challenge_file(path: Path) -> int:
    """Check a file of the challenge; returns the number of forecast tracks.

    Raises TrajformerError with file and column: a column is missing or has another type, a value is
    not finite, or a track does not have one row for each of the frames 11 to 40.
    """

    def require(holds: bool | np.bool_, column: str, expected: str) -> None:
        if not holds:
            raise TrajformerError(f"{path}: {column}: expected {expected}")

    table = _read(path)
    names = [*_NUMBERS, *_mode_columns(table.column_names)]
    for name in (*names, "track_id"):
        require(table.column_names.count(name) == 1, name, "one column of this name")
    number = {}
    for name in names:
        kind = table[name].type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        require(is_number, name, f"numbers, not {kind}")
        number[name] = table[name].to_numpy().astype(np.float64)
        require(np.isfinite(number[name]).all(), name, "finite numbers without empty cells")
    for name in ("track_to_predict", "interesting_agent"):
        require(np.isin(number[name], (0, 1)).all(), name, "0 or 1")
    frame = number["frame_id"]
    on_time = number["timestamp_ms"] == PERIOD_MS * frame
    require(on_time.all(), "timestamp_ms", f"{PERIOD_MS} * frame_id")

    # a track is a track id in a case
    track_id = np.asarray(table["track_id"].combine_chunks().dictionary_encode().indices)
    keys = np.stack([number["case_id"], track_id])
    tracks, owner = np.unique(keys, axis=1, return_inverse=True)
    num_tracks = int(tracks.shape[1])
    complete = len(frame) == num_tracks * NUM_FUTURE and len(frame) > 0
    if complete:
        order = np.lexsort((frame, owner))
        complete = bool((frame[order].reshape(-1, NUM_FUTURE) == _FRAMES).all())
    require(complete, "frame_id", "one row for each of the frames 11 to 40 of each track")
    return num_tracks


def _read(path: Path) -> pa.Table:
    options = pa_csv.ConvertOptions(column_types={"track_id": pa.string()})
    try:
        return pa_csv.read_csv(path, convert_options=options)
    except (pa.ArrowException, OSError) as error:
        raise TrajformerError(f"{path}: not a readable csv file: {error}") from error


def _mode_columns(names: Sequence[str]) -> list[str]:
    """The columns x, y and psi_rad of all modes up to the largest one that is named, at least 1."""
    largest = 1
    for name in names:
        match = re.fullmatch(f"(?:x|y|psi_rad)([1-{K}])", name)
        if match:
            largest = max(largest, int(match[1]))
    columns = []
    for mode in range(1, largest + 1):
        columns += [f"x{mode}", f"y{mode}", f"psi_rad{mode}"]
    return columns
