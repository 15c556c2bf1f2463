"""Calibration: closed forms, torchmetrics, and plain Python on real recordings."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from trajformer.evaluation.metrics.calibration import (
    brier_score,
    brier_term,
    end_errors,
    expected_calibration_error,
    near_any_mode,
    near_most_probable,
    nearest_mode,
    reliability,
)
from trajformer.scenes.scene import Scene


def test_the_nearest_mode_and_missing_values() -> None:
    error = np.array([[3.0, 1.0, 1.0], [np.nan, 5.0, np.nan], [np.nan, np.nan, np.nan]])
    assert nearest_mode(error).tolist() == [1, 1, -1]
    any_mode = near_any_mode(error, (1.0, 2.0, 6.0))
    np.testing.assert_array_equal(any_mode, [[1, 1, 1], [0, 0, 1], [np.nan] * 3])
    probability = np.array([[0.5, 0.3, 0.2], [np.nan, 1.0, np.nan], [0.2, 0.3, 0.5]])
    most_probable = near_most_probable(error, probability, (1.0, 3.0, 5.0))
    np.testing.assert_array_equal(most_probable, [[0, 1, 1], [0, 0, 1], [np.nan] * 3])


def test_an_agent_without_a_last_step_has_no_error() -> None:
    modes = np.zeros((2, 3, 4, 2))
    modes[:, 1, -1] = [3.0, 4.0]
    valid = np.ones((2, 4), bool)
    valid[1, -1] = False
    error = end_errors(modes, np.zeros((2, 4, 2)), valid)
    np.testing.assert_array_equal(error, [[0, 5, 0], [np.nan] * 3])


def test_brier_terms() -> None:
    probability = np.array([[0.7, 0.2, 0.1], [0.25, 0.75, np.nan], [1.0, 0.0, 0.0]])
    nearest = np.array([1, 1, -1])
    np.testing.assert_allclose(brier_term(probability, nearest), [0.64, 0.0625, np.nan])
    np.testing.assert_allclose(brier_score(probability, nearest), [1.14, 0.125, np.nan])
    uniform = np.full((1, 6), 1 / 6)
    np.testing.assert_allclose(brier_score(uniform, np.array([4])), 1 - 1 / 6)


def test_a_diagram_of_five_agents() -> None:
    """0.6 belongs to the bin from 0.5 to 0.6; the last agent does not count."""
    probability = np.array([[0.6, 0.4], [0.55, 0.45], [0.1, 0.9], [1.0, 0.0], [0.3, 0.7]])
    nearest = np.array([0, 1, 1, 1, -1])
    diagram = reliability(probability, nearest)
    assert diagram.agents.tolist() == [0, 0, 0, 0, 0, 2, 0, 0, 1, 1]
    np.testing.assert_allclose(diagram.probability[[5, 8, 9]], [0.575, 0.9, 1.0])
    np.testing.assert_allclose(diagram.share_right[[5, 8, 9]], [0.5, 1.0, 0.0])
    assert np.isnan(diagram.share_right[[0, 4, 6, 7]]).all()
    expected = (2 * 0.075 + 0.1 + 1.0) / 4
    assert expected_calibration_error(diagram) == pytest.approx(expected)


def test_without_agents_the_error_is_nan() -> None:
    diagram = reliability(np.zeros((3, 6)), np.full(3, -1))
    assert diagram.agents.sum() == 0
    assert math.isnan(expected_calibration_error(diagram))


def test_calibrated_and_overconfident_probabilities() -> None:
    rng = np.random.default_rng(0)
    probability = rng.dirichlet(np.ones(3), 20_000)
    cumulative = probability.cumsum(1)
    nearest = (rng.random((20_000, 1)) > cumulative).sum(1)
    calibrated = expected_calibration_error(reliability(probability, nearest))
    assert calibrated < 0.02
    sharper = probability**3
    sharper /= sharper.sum(1, keepdims=True)
    assert expected_calibration_error(reliability(sharper, nearest)) > 0.15


def forecasts(scene: Scene) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Modes around the recorded futures of a scene, and random probabilities."""
    rng = np.random.default_rng(len(scene.agent_id))
    truth = scene.position[:, scene.num_history :].astype(np.float64)
    valid = scene.valid[:, scene.num_history :]
    noise = rng.normal(size=(len(truth), 6, truth.shape[1], 2)).cumsum(2) / 3
    probability = rng.dirichlet(np.ones(6), len(truth))
    return truth[:, None] + noise, truth, valid, probability


def test_real_scenes_equal_plain_python_and_torchmetrics(argoverse2_scenes: list[Scene]) -> None:
    for scene in argoverse2_scenes:
        modes, truth, valid, probability = forecasts(scene)
        error = end_errors(modes, truth, valid)
        nearest = nearest_mode(error)
        expected: list[dict[str, Any]] = []
        for agent in np.flatnonzero(valid[:, -1]):
            ends = [math.dist(mode[-1], truth[agent, -1]) for mode in modes[agent]]
            best = ends.index(min(ends))
            top = int(probability[agent].argmax())
            p = probability[agent]
            score = sum((p[k] - (k == best)) ** 2 for k in range(6))
            near = [min(ends) <= limit for limit in (1, 2, 3)]
            near_top = [ends[top] <= limit for limit in (1, 2, 3)]
            row = {"right": best == top, "confidence": p[top], "term": (1 - p[best]) ** 2}
            expected.append({**row, "score": score, "near": near, "near_top": near_top})

        known = valid[:, -1]
        columns = {name: np.array([row[name] for row in expected]) for name in expected[0]}
        np.testing.assert_allclose(brier_term(probability, nearest)[known], columns["term"])
        np.testing.assert_allclose(brier_score(probability, nearest)[known], columns["score"])
        np.testing.assert_array_equal(near_any_mode(error)[known], columns["near"])
        actual = near_most_probable(error, probability)
        np.testing.assert_array_equal(actual[known], columns["near_top"])
        assert np.isnan(actual[~known]).all()
        reference = binary_calibration_error(
            torch.from_numpy(columns["confidence"]),
            torch.from_numpy(columns["right"]).long(),
            n_bins=10,
        )
        result = expected_calibration_error(reliability(probability, nearest))
        assert result == pytest.approx(float(reference), abs=1e-6)
