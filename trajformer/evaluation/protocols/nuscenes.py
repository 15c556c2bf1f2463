"""The nuScenes prediction protocol: 2 s observed at 2 Hz, 6 s to predict, 9,041 targets, metres.

ADE_k and FDE_k are minima over the k most probable modes, each taken separately. MissRateTopK_2_k
is the fraction of targets for which the largest distance over the 12 steps is at least 2 m in all
of these modes. Metrics are means over targets.

`write_challenge` writes forecasts in the format of the challenge. The label files hold no tokens of
instances and samples: `instance` is SCENE-AGENT and `sample` is SCENE-FRAME instead, in the numbers
of the files.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast, check_forecast, track_forecasts_of
from trajformer.evaluation.metrics.displacement import MISS_THRESHOLD_M, Metrics, agent_errors
from trajformer.evaluation.protocols.benchmark import Benchmark
from trajformer.scenes.files import write_atomically

NUM_FUTURE = 12
MAX_MODES = 25
MISS = "MissRateTopK_2"
_FIELDS = {"instance", "sample", "prediction", "probabilities"}  # of an entry of a challenge file
_SUM_TOLERANCE = 1e-3


def challenge_metrics(forecast: Forecast, batch: SceneBatch) -> Metrics:
    """The metrics of the challenge [B, S]; targets with all future steps count.

    With fewer than k modes, all are used.
    """
    target = batch.truth.position
    valid = batch.truth.valid
    errors = agent_errors(forecast, target, valid)
    distance = (forecast.in_batch_frame() - target[:, :, None]).norm(dim=-1)
    largest = distance.amax(-1)  # [B, S, K]
    metrics: dict[str, Tensor] = {}
    for k in (1, 5, 10):
        best = errors.most_probable(k)
        missed = largest.gather(-1, best.mode).amin(-1) >= MISS_THRESHOLD_M
        metrics[f"ADE_{k}"] = best.ade.amin(-1)
        metrics[f"FDE_{k}"] = best.fde.amin(-1)
        metrics[f"{MISS}_{k}"] = missed.double()
    return metrics, valid.all(-1)


BENCHMARK = Benchmark(
    title="nuScenes prediction, official val: 4 steps observed, 12 to predict (0.5 s each), "
    "means over targets, metres",
    split="test",
    num_targets=9041,
    columns=("ADE_5", "ADE_10", "FDE_5", "FDE_10", "FDE_1", f"{MISS}_5", f"{MISS}_10"),
    metrics=challenge_metrics,
    published=(
        ("constant velocity and yaw", "4.61 - 11.21 - 11.21 0.91 -", "nuScenes devkit"),
        ("physics oracle", "3.69 - 9.06 - - 0.88 -", "nuScenes devkit"),
        ("DLow-AF", "2.11 1.78 4.70 3.58 - - -", "Yuan and Kitani 2020"),
        (
            "AgentFormer (corrected)",
            "1.856 1.452 3.889 2.856 - - -",
            "Yuan et al. 2021, their repository",
        ),
        ("Trajectron++", "1.88 1.51 - - 9.52 0.70 0.57", "Salzmann et al. 2020"),
        ("P2T", "1.45 1.16 - - 10.5 0.64 0.46", "Deo and Trivedi 2020"),
        ("GOHOME", "1.42 1.15 - - 6.99 0.57 0.47", "Gilles et al. 2022"),
        ("AutoBot", "1.37 1.03 - - 8.19 0.62 0.44", "Girgis et al. 2022"),
        ("THOMAS", "1.33 1.04 - - 6.71 0.55 0.42", "Gilles et al. 2022"),
        ("PGP", "1.27 0.94 - - 7.17 0.52 0.34", "Deo et al. 2021"),
        ("LAformer", "1.19 0.93 2.31 1.50 6.95 0.48 -", "Liu et al. 2024"),
        ("DeMo", "1.22 0.89 - - 6.60 0.43 0.34", "Zhang et al. 2024"),
    ),
    reference="AgentFormer (corrected)",
    notes=(
        "Other agents: the label files hold only vehicles that are a target at some time; "
        "published models often see all agents.",
        "Map: road edges and dividers traced from AgentFormer's raster; most published models use "
        "the vector map with lanes.",
        "Modes: one model for all k, its k most probable modes; AgentFormer trains one sampler for "
        "each k.",
    ),
)


def write_challenge(
    path: Path, results: Iterable[tuple[SceneBatch, Forecast]]
) -> Iterator[tuple[SceneBatch, Forecast]]:
    """Pass batches and forecasts on; at the end, write the challenge file, atomically.

    Raises the errors of `check_challenge`.
    """
    entries: list[dict[str, Any]] = []
    for batch, forecast in results:
        for track in track_forecasts_of(forecast, batch.observation):
            entries.append(_entry(check_forecast(track)))
        yield batch, forecast
    check_challenge(entries, path)
    write_atomically(path, json.dumps(entries) + "\n")


def _entry(track: TrackForecast) -> dict[str, Any]:
    """The most probable modes of a target, as an entry of a challenge file."""
    recording = track.scene_id.rpartition("-")[0]
    kept = track.probability[:MAX_MODES]
    return {
        "instance": f"{recording}-{track.track_id}",
        "sample": track.scene_id,
        "prediction": track.position[:MAX_MODES].round(3).tolist(),
        "probabilities": (kept / kept.sum()).round(6).tolist(),
    }


def check_challenge(entries: Any, path: Path) -> None:
    """Check the content of a challenge file.

    Raises TrajformerError with file and entry: another structure, a repeated target, more than 25
    modes, another number of steps, numbers that are not finite, probabilities that do not sum to 1,
    or another number of targets.
    """
    if not isinstance(entries, list):
        entries = [entries]
    known: set[tuple[str, str]] = set()
    for number, entry in enumerate(entries):
        where = f"{path}: entry {number}"
        if not isinstance(entry, dict) or entry.keys() != _FIELDS:
            raise TrajformerError(f"{where}: expected the fields {', '.join(sorted(_FIELDS))}")
        name = (entry["instance"], entry["sample"])
        if not all(isinstance(text, str) for text in name) or name in known:
            raise TrajformerError(f"{where}: instance, sample: {name} is not text or occurs twice")
        known.add(name)
        _check_modes(entry, where)
    if len(known) != BENCHMARK.num_targets:
        raise TrajformerError(f"{path}: {len(known)} targets, expected {BENCHMARK.num_targets}")


def _check_modes(entry: dict[str, Any], where: str) -> None:
    try:
        prediction = np.array(entry["prediction"], np.float64)
        probability = np.array(entry["probabilities"], np.float64)
    except (TypeError, ValueError) as error:
        problem = "prediction, probabilities: not arrays of numbers"
        raise TrajformerError(f"{where}: {problem}") from error
    if probability.ndim == 1:
        modes = len(probability)
        fits = 0 < modes <= MAX_MODES and prediction.shape == (modes, NUM_FUTURE, 2)
    else:
        fits = False
    if not fits:
        shapes = f"shapes {prediction.shape} and {probability.shape}"
        expected = f"expected [K, {NUM_FUTURE}, 2] and [K] with K up to {MAX_MODES}"
        raise TrajformerError(f"{where}: prediction, probabilities: {shapes}, {expected}")
    if not np.isfinite(prediction).all():
        raise TrajformerError(f"{where}: prediction: has NaN or infinity")
    total = probability.sum()
    # also refuses NaN
    if not (probability.min() >= 0 and abs(total - 1) < _SUM_TOLERANCE):
        problem = f"a negative one, or a sum of {total:g}, expected 1"
        raise TrajformerError(f"{where}: probabilities: {problem}")
