"""Intervals of means over agents equal a bootstrap in plain numpy, and known variances."""

import numpy as np
import pytest

from trajformer.evaluation.bootstrap import RESAMPLES, SEED, SceneSums


def plain_bootstrap(values: np.ndarray, scene: np.ndarray) -> tuple[float, float]:
    """The interval of the mean of values [agents]: draw scenes, then join their agents."""
    rng = np.random.default_rng(SEED)
    agents = [values[scene == name] for name in np.unique(scene)]
    means = []
    for _ in range(RESAMPLES):
        drawn = [agents[index] for index in rng.integers(len(agents), size=len(agents))]
        means.append(np.concatenate(drawn).mean())
    low, high = np.percentile(means, [2.5, 97.5])
    return low, high


def test_intervals_equal_a_bootstrap_in_plain_numpy() -> None:
    rng = np.random.default_rng(3)
    scene = rng.integers(40, size=150).astype(str)
    values = rng.gamma(1.0, 2.0, (150, 2))
    estimates = SceneSums.of(values, scene).estimates()
    for column, estimate in enumerate(estimates):
        assert estimate.mean == pytest.approx(values[:, column].mean(), rel=1e-12)
        expected = plain_bootstrap(values[:, column], scene)
        assert (estimate.low, estimate.high) == pytest.approx(expected, rel=1e-9)


def test_the_interval_of_a_difference_has_the_width_of_its_variance() -> None:
    """Against the normal approximation; errors of scenes vary far more than the difference."""
    rng = np.random.default_rng(0)
    gap_of_scene = rng.normal(-0.1, 0.4, 400)
    scene = np.arange(400).repeat(2)
    [estimate] = SceneSums.of(gap_of_scene.repeat(2)[:, None], scene).estimates()
    half = 1.96 * gap_of_scene.std() / 400**0.5
    assert estimate.low == pytest.approx(gap_of_scene.mean() - half, abs=0.004)
    assert estimate.high == pytest.approx(gap_of_scene.mean() + half, abs=0.004)


def test_agents_without_a_value_do_not_count() -> None:
    values = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan]])
    sums = SceneSums.of(values, np.array(["a", "b", "b"]))
    first, second = sums.estimates()
    assert first.mean == 2.0
    assert first.low == 1.0
    assert np.isnan(second).all()


def test_one_scene_has_no_interval() -> None:
    [estimate] = SceneSums.of(np.array([[1.0], [2.0]]), np.array(["a", "a"])).estimates()
    assert estimate.mean == 1.5
    assert np.isnan([estimate.low, estimate.high]).all()
