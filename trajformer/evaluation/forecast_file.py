"""Forecasts on disk: the parquet columns of the Argoverse 2 motion forecasting challenge, one row per mode.

Positions are metres in the city frame (float64); scene and track ids are exactly as in the raw files. Within a
track, rows are sorted by falling probability, and the probabilities sum to 1. Tracks of one scene may be written in any order.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trajformer.data.batch import Observation
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.scenes.files import atomically
from trajformer.scenes.spec import DataSpec

TRACKS_PER_GROUP = (
    1024  # a row group: about 6 MB of Argoverse 2 forecasts, the largest amount in memory
)
FREE_BYTES = 1 << 23  # to write a row group, in addition to its size
SUM_TOLERANCE = 1e-2  # a softmax in half precision has a smaller error
_TEXT = ("scenario_id", "track_id")
_TRAJECTORY = ("predicted_trajectory_x", "predicted_trajectory_y")
_METADATA_KEY = b"trajformer"  # of the properties of the scenes; files of other programs have none
COLUMNS = (*_TEXT, "probability", *_TRAJECTORY)
_SCHEMA = pa.schema(
    [pa.field(name, pa.string()) for name in _TEXT]
    + [pa.field("probability", pa.float64())]
    + [pa.field(name, pa.list_(pa.float64())) for name in _TRAJECTORY]
)


@dataclass(frozen=True, eq=False)
class TrackForecast:
    """The K possible futures of one track."""

    scene_id: str
    track_id: str
    probability: np.ndarray  # float64 [K], not negative, sums to 1
    position: (
        np.ndarray
    )  # float64 [K, F, 2], metres in the city frame, one entry per future step of the scene


def track_forecasts_of(forecast: Forecast, observation: Observation) -> Iterator[TrackForecast]:
    """The modes of each target of a batch, in the order of scenes and targets."""
    position, probability = (
        forecast.in_city_frame(observation),
        forecast.probability().detach().double().cpu().numpy(),
    )
    for b, s in observation.target_mask.nonzero().tolist():
        yield TrackForecast(
            observation.scene_id[b], observation.agent_id[b][s], probability[b, s], position[b, s]
        )


def check_forecast(forecast: TrackForecast) -> TrackForecast:
    """The forecast with modes by falling probability (ties keep their order), normalised, float64 (TrajformerError: wrong)."""
    probability = np.asarray(forecast.probability, np.float64)
    position = np.asarray(forecast.position, np.float64)
    where = f"forecast of track {forecast.track_id!r} in scene {forecast.scene_id!r}"
    if not forecast.scene_id or not forecast.track_id:
        raise TrajformerError(f"{where}: an id is empty")
    if probability.ndim != 1 or not len(probability):
        raise TrajformerError(
            f"{where}: probability has shape {probability.shape}, expected [K] with K >= 1"
        )
    if (
        position.ndim != 3
        or position.shape[0] != len(probability)
        or position.shape[2] != 2
        or not position.shape[1]
    ):
        shape = f"[{len(probability)}, F, 2] with F >= 1"
        raise TrajformerError(f"{where}: position has shape {position.shape}, expected {shape}")
    if not np.isfinite(position).all() or not np.isfinite(probability).all():
        raise TrajformerError(f"{where}: has NaN or infinity")
    total = probability.sum()
    if (probability < 0).any() or abs(total - 1) > SUM_TOLERANCE:
        raise TrajformerError(
            f"{where}: probabilities {probability.tolist()} sum to {total:.4g}, expected 1"
        )
    order = np.argsort(-probability, kind="stable")
    return TrackForecast(
        forecast.scene_id, forecast.track_id, probability[order] / total, position[order]
    )


def _group(forecasts: list[TrackForecast]) -> pa.RecordBatch:
    modes = [len(f.probability) for f in forecasts]
    columns = [
        pa.array(np.repeat(np.array([f.scene_id for f in forecasts], object), modes), pa.string()),
        pa.array(np.repeat(np.array([f.track_id for f in forecasts], object), modes), pa.string()),
        pa.array(np.concatenate([f.probability for f in forecasts])),
    ]
    offsets = pa.array(
        np.cumsum([0, *np.repeat([f.position.shape[1] for f in forecasts], modes)]), pa.int32()
    )
    xy = np.concatenate([f.position.reshape(-1, 2) for f in forecasts])
    columns += [
        pa.ListArray.from_arrays(offsets, pa.array(np.ascontiguousarray(values))) for values in xy.T
    ]
    return pa.record_batch(columns, schema=_SCHEMA)


def write_forecasts(
    path: Path | str, forecasts: Iterable[TrackForecast], scenes: DataSpec = DataSpec()
) -> int:
    """Write forecasts as they come, atomically, and return the number of tracks; `scenes` is for `read_spec`.

    Raises TrajformerError: a forecast is malformed (`check_forecast`) or given twice. OSError: the folder cannot be written.
    """
    source, written = iter(forecasts), set[tuple[str, str]]()
    schema = _SCHEMA.with_metadata({_METADATA_KEY: json.dumps(scenes.to_plain())})
    with (
        atomically(Path(path)) as temporary,
        pq.ParquetWriter(str(temporary), schema, compression="snappy") as writer,
    ):
        while group := list(map(check_forecast, itertools.islice(source, TRACKS_PER_GROUP))):
            for forecast in group:
                if (forecast.scene_id, forecast.track_id) in written:
                    raise TrajformerError(
                        f"track {forecast.track_id!r} of scene {forecast.scene_id!r} is forecast twice"
                    )
                written.add((forecast.scene_id, forecast.track_id))
            batch = _group(group)
            np.empty(
                FREE_BYTES + 3 * batch.nbytes, np.uint8
            )  # a MemoryError: without memory, pyarrow ends the process
            writer.write_batch(batch)
    return len(written)


def read_forecasts(path: Path | str) -> dict[str, list[TrackForecast]]:
    """All forecasts of a file with the columns of the challenge by scene id, in order of appearance.

    Raises TrajformerError: no such file, cut short, not parquet, a column missing or with a wrong type, a NaN or an empty cell,
    trajectories of unequal length within a track, or probabilities that do not sum to 1.
    """
    path = Path(path)
    if not path.is_file():
        raise TrajformerError(f"{path}: no such file; make one with `trajformer predict`")
    tracks: dict[tuple[str, str], list[list[Any]]] = {}
    try:
        with pq.ParquetFile(path) as file:
            _check_columns(file.schema_arrow)
            for batch in file.iter_batches(batch_size=8192, columns=list(COLUMNS)):
                for scene_id, track_id, *mode in _rows(batch):
                    tracks.setdefault((scene_id, track_id), []).append(mode)
        scenes: dict[str, list[TrackForecast]] = {}
        for (scene_id, track_id), modes in tracks.items():
            lengths = sorted({len(position) for _, position in modes})
            if len(lengths) > 1:
                steps = f"its trajectories have {lengths[0]} to {lengths[-1]} steps"
                raise TrajformerError(
                    f"track {track_id!r} of scene {scene_id!r}: {steps}, expected one length"
                )
            probability, position = (np.array(values) for values in zip(*modes, strict=True))
            track = check_forecast(TrackForecast(scene_id, track_id, probability, position))
            scenes.setdefault(scene_id, []).append(track)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise TrajformerError(
            f"{path}: not a readable parquet file (cut short or damaged): {reason}"
        ) from error
    except TrajformerError as error:
        raise TrajformerError(f"{path}: {error}") from error
    return scenes


def read_spec(path: Path) -> DataSpec:
    """Properties of the scenes of a readable forecast file, unknown if another program wrote it (TrajformerError: damaged)."""
    metadata = pq.read_schema(path).metadata or {}
    try:
        return DataSpec.from_plain(json.loads(metadata.get(_METADATA_KEY, b"{}")))
    except (ValueError, TrajformerError) as error:
        raise TrajformerError(f"{path}: damaged properties of the scenes: {error}") from error


def _check_columns(schema: pa.Schema) -> None:
    if missing := [name for name in COLUMNS if name not in schema.names]:
        raise TrajformerError(f"not a forecast file: no column {', '.join(missing)}")
    if twice := [name for name in COLUMNS if schema.names.count(name) > 1]:
        raise TrajformerError(f"not a forecast file: two columns {', '.join(twice)}")
    is_list = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    for name in COLUMNS:
        kind = schema.field(name).type
        if name in _TEXT:
            inner, expected = kind.value_type if pa.types.is_dictionary(kind) else kind, "text"
            matches = pa.types.is_string(inner) or pa.types.is_large_string(inner)
        elif name in _TRAJECTORY:
            expected, matches = (
                "lists of floats",
                any(check(kind) for check in is_list) and pa.types.is_floating(kind.value_type),
            )
        else:
            expected, matches = "floats", pa.types.is_floating(kind)
        if not matches:
            raise TrajformerError(f"column {name} holds {kind}, expected {expected}")


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str, str, float, np.ndarray]]:
    """Scene id, track id, probability and positions [F, 2] of each row."""
    if empty := [name for name in COLUMNS if batch.column(name).null_count]:
        raise TrajformerError(f"column {empty[0]} has an empty cell")
    length_x, length_y = (
        pc.list_value_length(batch.column(name)).to_numpy() for name in _TRAJECTORY
    )
    scene_id, track_id, probability = (batch.column(name).to_pylist() for name in COLUMNS[:3])
    for row in np.flatnonzero(length_x != length_y)[:1]:
        where = f"track {track_id[row]!r} of scene {scene_id[row]!r}"
        raise TrajformerError(f"{where}: {length_x[row]} values of x but {length_y[row]} of y")
    xy = np.stack(
        [batch.column(name).flatten().to_numpy(zero_copy_only=False) for name in _TRAJECTORY], -1
    )
    pieces = np.split(xy.astype(np.float64), np.cumsum(length_x)[:-1])
    return zip(scene_id, track_id, probability, pieces, strict=True)
