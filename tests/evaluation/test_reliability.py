"""The expected calibration error and its interval equal plain numpy."""

import numpy as np
import pandas as pd
import pytest

from trajformer.evaluation.bootstrap import RESAMPLES, SEED
from trajformer.evaluation.metrics.calibration import expected_calibration_error, reliability
from trajformer.evaluation.reliability import calibration_error


def agents(shift: float, num_scenes: int = 60) -> pd.DataFrame:
    """Two agents per scene; the share of nearest modes is the probability plus `shift`."""
    rng = np.random.default_rng(4)
    probability = rng.uniform(0.1, 0.9, 2 * num_scenes)
    is_nearest = rng.random(2 * num_scenes) < probability + shift
    return pd.DataFrame(
        {
            "scenario_id": np.arange(num_scenes).repeat(2).astype(str),
            "top_probability": probability,
            "top_is_nearest": is_nearest.astype(float),
        }
    )


def error_of(probability: np.ndarray, is_nearest: np.ndarray) -> float:
    """The error by the definition with bins."""
    nearest = np.where(is_nearest == 1.0, 0, 1)
    return expected_calibration_error(reliability(probability[:, None], nearest))


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_the_interval_is_a_basic_bootstrap_over_scenes(shift: float) -> None:
    table = agents(shift)
    probability = table.top_probability.to_numpy()
    is_nearest = table.top_is_nearest.to_numpy()
    scenes = np.unique(table.scenario_id)
    rows_of = [np.flatnonzero(table.scenario_id == name) for name in scenes]
    rng = np.random.default_rng(SEED)
    errors = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(len(scenes), size=len(scenes))
        rows = np.concatenate([rows_of[number] for number in drawn])
        errors.append(error_of(probability[rows], is_nearest[rows]))
    error = error_of(probability, is_nearest)
    smallest, largest = np.percentile(errors, [2.5, 97.5])
    estimate = calibration_error(table)
    assert estimate.mean == pytest.approx(error, rel=1e-9)
    assert estimate.low == pytest.approx(max(2 * error - largest, 0.0), abs=1e-9)
    assert estimate.high == pytest.approx(max(2 * error - smallest, error), abs=1e-9)
    assert estimate.low <= estimate.mean <= estimate.high


def test_a_calibrated_forecast_has_0_in_its_interval_and_another_has_not() -> None:
    assert calibration_error(agents(0.0, 400)).low < 0.02
    assert calibration_error(agents(0.3, 400)).low > 0.1


def test_one_scene_has_no_interval() -> None:
    table = agents(0.0).head(2)
    assert np.isnan(calibration_error(table)[1:]).all()
