"""Forecasts on disk: the parquet columns of the Argoverse 2 challenge, one row per mode.

Positions are metres in the city frame (float64); scene and track ids are exactly as in the raw
files. Within a track, rows are sorted by falling probability, and the probabilities sum to 1.
Tracks of one scene may be written in any order.

The package av2, which scores the challenge, keeps one probability vector per scene, from its
last track. A file is right for a submission if it has one track per scene, or if mode k of all
tracks is one joint future (`trajformer predict --submission single` or `multi`, see `submission`).
`write_forecasts` warns about other files.
"""

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trajformer.config import MAX_TEXT
from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_csv import MAX_BYTES, read_mode_rows
from trajformer.scenes.files import atomically, check_parquet, open_file
from trajformer.scenes.spec import DataSpec, warn

# a row group: about 6 MB of Argoverse 2 forecasts, the largest amount in memory
TRACKS_PER_GROUP = 1024
FREE_BYTES = 1 << 23  # to write a row group, in addition to its size
ROUNDING = 1e-12  # of a sum of normalized probabilities
SUM_TOLERANCE = 1e-2  # a softmax in half precision has a smaller error
MAX_MODES = 1000  # of a track
ROW_BYTES = 1000  # of a row that was read, without its positions
VALUE_BYTES = 16  # of a coordinate, while positions are joined
_ROWS_PER_BATCH = 8192
_AV2_SOURCES = (None, "argoverse2")  # scenes whose forecasts may be scored with av2
_TEXT = ("scenario_id", "track_id")
_TRAJECTORY = ("predicted_trajectory_x", "predicted_trajectory_y")
_PARQUET_MARK = b"PAR1"
_METADATA_KEY = b"trajformer"  # of the properties of the scenes; files of other programs have none
COLUMNS = (*_TEXT, "probability", *_TRAJECTORY)
_SCHEMA = pa.schema(
    [
        pa.field("scenario_id", pa.string()),
        pa.field("track_id", pa.string()),
        pa.field("probability", pa.float64()),
        pa.field("predicted_trajectory_x", pa.list_(pa.float64())),
        pa.field("predicted_trajectory_y", pa.list_(pa.float64())),
    ]
)


@dataclass(frozen=True, eq=False)
class TrackForecast:
    """The K possible futures of one track.

    Attributes:
        scene_id, track_id: ids as in the raw files.
        probability: float64 [K], not negative, sums to 1.
        position: float64 [K, F, 2], metres in the city frame, one entry per future step of the
            scene.
    """

    scene_id: str
    track_id: str
    probability: np.ndarray
    position: np.ndarray


def track_forecasts_of(forecast: Forecast, observation: Observation) -> Iterator[TrackForecast]:
    """The modes of each target of a batch, in the order of scenes and targets."""
    position = forecast.in_city_frame(observation)
    probability = forecast.probability().detach().double().cpu().numpy()
    for b, s in observation.target_mask.nonzero().tolist():
        scene_id = observation.scene_id[b]
        track_id = observation.agent_id[b][s]
        yield TrackForecast(scene_id, track_id, probability[b, s], position[b, s])


def check_forecast(forecast: TrackForecast) -> TrackForecast:
    """The forecast with modes by falling probability (ties keep their order), normalized, float64.

    Raises TrajformerError: an empty id, wrong shapes, NaN or infinity, or wrong probabilities.
    """
    probability = np.asarray(forecast.probability, np.float64)
    position = np.asarray(forecast.position, np.float64)
    where = f"forecast of track {forecast.track_id!r} in scene {forecast.scene_id!r}"
    if not forecast.scene_id or not forecast.track_id:
        raise TrajformerError(f"{where}: an id is empty")
    if probability.ndim != 1 or not len(probability):
        shape = f"shape {probability.shape}, expected [K] with K >= 1"
        raise TrajformerError(f"{where}: probability has {shape}")
    modes = len(probability)
    if position.ndim != 3 or position.shape[::2] != (modes, 2) or not position.shape[1]:
        shape = f"shape {position.shape}, expected [{modes}, F, 2] with F >= 1"
        raise TrajformerError(f"{where}: position has {shape}")
    if not np.isfinite(position).all() or not np.isfinite(probability).all():
        raise TrajformerError(f"{where}: has NaN or infinity")
    total = probability.sum()
    if (probability < 0).any() or abs(total - 1) > SUM_TOLERANCE:
        problem = f"probabilities {probability.tolist()} sum to {total:.4g}, expected 1"
        raise TrajformerError(f"{where}: {problem}")
    order = np.argsort(-probability, kind="stable")
    normalized = probability[order]
    if abs(total - 1) > ROUNDING:  # checking twice changes nothing
        normalized = normalized / total
    return TrackForecast(forecast.scene_id, forecast.track_id, normalized, position[order])


def _group(forecasts: Sequence[TrackForecast]) -> pa.RecordBatch:
    """A row group: one row per mode."""
    modes = [len(forecast.probability) for forecast in forecasts]
    steps = [forecast.position.shape[1] for forecast in forecasts]
    scene_id = np.array([forecast.scene_id for forecast in forecasts], object)
    track_id = np.array([forecast.track_id for forecast in forecasts], object)
    probability = np.concatenate([forecast.probability for forecast in forecasts])
    point = np.concatenate([forecast.position.reshape(-1, 2) for forecast in forecasts])
    offset = pa.array(np.cumsum([0, *np.repeat(steps, modes)]), pa.int32())
    columns = [
        pa.array(np.repeat(scene_id, modes), pa.string()),
        pa.array(np.repeat(track_id, modes), pa.string()),
        pa.array(probability),
    ]
    for axis in (0, 1):
        values = pa.array(np.ascontiguousarray(point[:, axis]))
        columns.append(pa.ListArray.from_arrays(offset, values))
    return pa.record_batch(columns, schema=_SCHEMA)


def write_forecasts(
    path: Path | str, forecasts: Iterable[TrackForecast], scenes: DataSpec = DataSpec()
) -> int:
    """Write forecasts as they come, atomically, and return the number of tracks.

    `scenes` are the properties of the scenes, for `read_spec`. Warns if av2 would score tracks of
    Argoverse 2 scenes with the probabilities of other tracks. Raises TrajformerError: a forecast is
    malformed (`check_forecast`) or given twice. OSError: the folder cannot be written.
    """
    source = iter(forecasts)
    written = set[tuple[str, str]]()
    probabilities = _SceneProbabilities()
    schema = _SCHEMA.with_metadata({_METADATA_KEY: json.dumps(scenes.to_plain())})
    with (
        atomically(Path(path)) as temporary,
        pa.OSFile(os.fsencode(temporary), "wb") as file,
        pq.ParquetWriter(file, schema, compression="snappy") as writer,
    ):
        while True:
            group = [check_forecast(one) for one in itertools.islice(source, TRACKS_PER_GROUP)]
            if not group:
                break
            for forecast in group:
                key = (forecast.scene_id, forecast.track_id)
                if key in written:
                    name = f"track {forecast.track_id!r} of scene {forecast.scene_id!r}"
                    raise TrajformerError(f"{name} is forecast twice")
                written.add(key)
                probabilities.add(forecast)
            batch = _group(group)
            # a MemoryError here: without memory, pyarrow ends the process
            np.empty(FREE_BYTES + 3 * batch.nbytes, np.uint8)
            writer.write_batch(batch)
    if scenes.source in _AV2_SOURCES:
        probabilities.warn_if_av2_differs(path)
    return len(written)


class _SceneProbabilities:
    """Finds scenes for which one probability vector is not enough."""

    def __init__(self) -> None:
        self.first_of: dict[str, np.ndarray] = {}  # the vector of a scene's first track
        self.different: set[str] = set()

    def add(self, forecast: TrackForecast) -> None:
        """Compare a track, with modes by falling probability, with the first one of its scene."""
        present = forecast.probability
        first = self.first_of.setdefault(forecast.scene_id, present)
        if first is present:
            return
        # av2 sorts the modes of each track, so equal probabilities have no defined order
        has_ties = bool((np.diff(present) == 0).any())
        if has_ties or not np.array_equal(first, present):
            self.different.add(forecast.scene_id)

    def warn_if_av2_differs(self, path: Path | str) -> None:
        """Warn if scenes have tracks with different probabilities."""
        if self.different:
            count = f"{len(self.different)} of {len(self.first_of)} scenes"
            reason = f"the tracks of {count} have different probabilities"
            effect = "av2 would use the ones of one track for all"
            remedy = "for a submission, use `trajformer predict --submission single` or multi"
            warn(f"{path}: {reason}, and {effect}; {remedy}")


class Modes(NamedTuple):
    """The modes of one track as they are in a file, in the order of its rows."""

    probability: list[float]
    position: list[np.ndarray]  # [F, 2] each, metres in the city frame
    problems: Sequence[str] = ()  # why modes cannot be used


AllModes = dict[tuple[str, str], Modes]  # by scene id and track id


def read_forecasts(path: Path | str) -> dict[str, list[TrackForecast]]:
    """All forecasts of a file with the columns of the challenge by scene id, in order.

    Raises TrajformerError: the errors of `read_modes`, trajectories of unequal length within a
    track, or probabilities that do not sum to 1.
    """
    path = Path(path)
    scenes: dict[str, list[TrackForecast]] = {}
    for (scene_id, track_id), modes in read_modes(path).items():
        try:
            forecast = forecast_of(scene_id, track_id, modes)
        except TrajformerError as error:
            raise TrajformerError(f"{path}: {error}") from error
        scenes.setdefault(scene_id, []).append(forecast)
    return scenes


def forecast_of(scene_id: str, track_id: str, modes: Modes) -> TrackForecast:
    """The checked forecast of a track (TrajformerError: it is malformed)."""
    track = f"track {track_id!r} of scene {scene_id!r}"
    if modes.problems:
        raise TrajformerError(f"{track}: {modes.problems[0]}")
    if len(modes.position) > MAX_MODES:
        count = f"{len(modes.position)} modes, expected at most {MAX_MODES}"
        raise TrajformerError(f"{track}: {count}")
    lengths = sorted({len(position) for position in modes.position})
    if len(lengths) > 1:
        steps = f"its trajectories have {lengths[0]} to {lengths[-1]} steps"
        raise TrajformerError(f"{track}: {steps}, expected one length")
    weights = np.array(modes.probability)
    return check_forecast(TrackForecast(scene_id, track_id, weights, np.array(modes.position)))


def read_modes(path: Path | str) -> AllModes:
    """The rows of a file, unchecked, by scene and track.

    It has the columns of the challenge, or is a CSV file (`forecast_csv`) with this suffix. Raises
    TrajformerError: no such file, cut short, another kind of file, a column missing or with a wrong
    type, or an empty cell of a parquet file.
    """
    path = Path(path)
    if not path.exists():
        raise TrajformerError(f"{path}: no such file; make one with `trajformer predict`")
    if not path.is_file():
        raise TrajformerError(f"{path}: a folder, pipe or device, expected a file")
    kind = "parquet"
    if is_csv(path):
        kind = "CSV"
    try:
        if kind == "CSV":
            return _read_csv(path)
        return _read(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = f"(cut short or damaged): {' '.join(str(error).split())}"
        raise TrajformerError(f"{path}: not a readable {kind} file {reason}") from error
    except TrajformerError as error:
        raise TrajformerError(f"{path}: {error}") from error


def _read(path: Path) -> AllModes:
    tracks: AllModes = {}
    file_of_any_name = pa.OSFile(os.fsencode(path))
    _check_columns(pq.read_schema(file_of_any_name))
    # Text as a dictionary: a repeated long id does not expand.
    with pq.ParquetFile(file_of_any_name, read_dictionary=list(_TEXT)) as file:
        check_parquet(path, file.metadata, ROW_BYTES, VALUE_BYTES)
        for batch in file.iter_batches(batch_size=_ROWS_PER_BATCH, columns=list(COLUMNS)):
            for scene_id, track_id, probability, position in _rows(batch):
                modes = tracks.setdefault((scene_id, track_id), Modes([], []))
                modes.probability.append(probability)
                modes.position.append(position)
    return tracks


def _read_csv(path: Path) -> AllModes:
    tracks: AllModes = {}
    for row in read_mode_rows(path):
        modes = tracks.setdefault((row.scene_id, row.track_id), Modes([], [], []))
        modes.probability.append(row.probability)
        modes.position.append(row.position)
        if row.problem and not modes.problems:
            tracks[row.scene_id, row.track_id] = modes._replace(problems=[row.problem])
    return tracks


def is_csv(path: Path) -> bool:
    """Whether a forecast file is read as CSV: by its suffix, and if it is not in fact parquet."""
    if path.suffix.lower() != ".csv":
        return False
    with open_file(path, MAX_BYTES) as file:
        return file.read(len(_PARQUET_MARK)) != _PARQUET_MARK


def read_spec(path: Path) -> DataSpec:
    """Properties of the scenes of a readable forecast file (TrajformerError: damaged).

    They are unknown if another program wrote the file.
    """
    if is_csv(path):
        return DataSpec()
    metadata = pq.read_schema(pa.OSFile(os.fsencode(path))).metadata or {}
    try:
        return DataSpec.from_plain(json.loads(metadata.get(_METADATA_KEY, b"{}")))
    except (ValueError, TrajformerError) as error:
        raise TrajformerError(f"{path}: damaged properties of the scenes: {error}") from error


def _check_columns(schema: pa.Schema) -> None:
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise TrajformerError(f"not a forecast file: no column {', '.join(missing)}")
    repeated = [name for name in COLUMNS if schema.names.count(name) > 1]
    if repeated:
        raise TrajformerError(f"not a forecast file: two columns {', '.join(repeated)}")
    for name in COLUMNS:
        kind = schema.field(name).type
        if name in _TEXT:
            expected, matches = "text", _is_text(kind)
        elif name in _TRAJECTORY:
            expected, matches = "lists of floats", _is_list_of_floats(kind)
        else:
            expected, matches = "floats", pa.types.is_floating(kind)
        if not matches:
            raise TrajformerError(f"column {name} holds {kind}, expected {expected}")


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list_of_floats(kind: pa.DataType) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    is_list = any(test(kind) for test in tests)
    return is_list and bool(pa.types.is_floating(kind.value_type))


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, str, float, np.ndarray]]:
    """Scene id, track id, probability and positions [F, 2] of each row."""
    empty = [name for name in COLUMNS if batch.column(name).null_count]
    if empty:
        raise TrajformerError(f"column {empty[0]} has an empty cell")
    for name in _TEXT:
        longest = pc.max(pc.binary_length(batch.column(name).dictionary)).as_py() or 0
        if longest > MAX_TEXT:
            raise TrajformerError(f"column {name} has an id of {longest} bytes")
    scene_id = batch.column("scenario_id").to_pylist()
    track_id = batch.column("track_id").to_pylist()
    probability = batch.column("probability").to_pylist()
    x, length_x = _flatten(batch.column("predicted_trajectory_x"))
    y, length_y = _flatten(batch.column("predicted_trajectory_y"))
    unequal = np.flatnonzero(length_x != length_y)
    if len(unequal):
        row = unequal[0]
        where = f"track {track_id[row]!r} of scene {scene_id[row]!r}"
        raise TrajformerError(f"{where}: {length_x[row]} values of x but {length_y[row]} of y")
    points = np.stack([x, y], -1).astype(np.float64)
    pieces = np.split(points, np.cumsum(length_x)[:-1])
    return zip(scene_id, track_id, probability, pieces, strict=True)


def _flatten(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """All values of a column of lists, and the length of each list."""
    values = column.flatten().to_numpy(zero_copy_only=False)
    return values, pc.list_value_length(column).to_numpy()
