"""Aggregation of modes: by hand, against a reference in plain Python, and properties."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.models.modes import AggregationConfig, aggregate


def ends(x: list[float], probability: list[float]) -> Forecast:
    """An agent with two steps per mode; modes end at these positions on the x axis, the first step is half of it."""
    position = torch.zeros(1, 1, len(x), 2, 2)
    position[0, 0, :, 0, 0], position[0, 0, :, 1, 0] = torch.tensor(x) / 2, torch.tensor(x)
    return Forecast(position, torch.tensor(probability).log()[None, None], Frame.SCENE)


def merged(forecast: Forecast) -> list[tuple[float, float]]:
    """Rounded (end, probability) of the modes."""
    end, probability = forecast.position[0, 0, :, -1, 0], forecast.probability()[0, 0]
    return [(round(e, 4), round(p, 4)) for e, p in zip(end.tolist(), probability.tolist(), strict=True)]


def reference(
    position: np.ndarray, probability: np.ndarray, count: int, config: AggregationConfig
) -> tuple[np.ndarray, np.ndarray]:
    """The aggregation of the modes [K, F, 2] of an agent, in loops."""
    end, modes = position[:, -1], range(len(position))
    uncovered, chosen = set(modes), []
    for _ in range(count):
        covers = {i: {j for j in uncovered if math.dist(end[i], end[j]) < config.distance_m} for i in modes if i not in chosen}
        gain = {i: sum(probability[j] for j in covers[i]) if uncovered else probability[i] for i in covers}
        chosen.append(max(gain, key=lambda i: gain[i]))
        uncovered -= covers[chosen[-1]]
    mean = [position[i] for i in chosen]
    for step in range(config.iterations + 1):
        nearest = [min(range(count), key=lambda c: math.dist(end[j], mean[c][-1])) for j in modes]
        groups = [[j for j in modes if nearest[j] == c] for c in range(count)]
        if step < config.iterations:
            mean = [np.average(position[g], 0, probability[g]) if g else m for g, m in zip(groups, mean, strict=True)]
    return np.stack(mean), np.array([sum(probability[j] for j in g) for g in groups])


def random(scale: float = 6.0, seed: int = 0, modes: int = 24) -> Forecast:
    generator = torch.Generator().manual_seed(seed)
    position = scale * torch.randn(3, 4, modes, 5, 2, generator=generator)
    spread = torch.rand(position.shape, generator=generator) + 0.1
    return Forecast(position, 2 * torch.randn(3, 4, modes, generator=generator), Frame.SCENE, scale=spread)


def test_two_clusters_and_a_single_mode_by_hand() -> None:
    forecast = ends([0.0, 1.0, 2.0, 10.0, 11.0, 30.0], [0.1, 0.2, 0.1, 0.3, 0.2, 0.1])
    assert merged(aggregate(forecast, 3)) == [(10.4, 0.5), (1.0, 0.4), (30.0, 0.1)]
    middle = aggregate(forecast, 3).position[0, 0, :, 0, 0].tolist()
    assert middle == pytest.approx([5.2, 0.5, 15.0])


def test_a_center_covers_the_most_probability_not_the_most_probable_mode() -> None:
    forecast = ends([0.0, 5.0, 7.0, 9.0], [0.31, 0.23, 0.23, 0.23])
    assert merged(aggregate(forecast, 1, AggregationConfig(iterations=0)))[0] == (7.0, 1.0)


def test_if_few_centers_cover_all_modes_the_most_probable_others_are_added() -> None:
    forecast = ends([0.0, 0.5, 1.0, 1.5], [0.1, 0.4, 0.2, 0.3])
    result = merged(aggregate(forecast, 3, AggregationConfig(iterations=0)))
    assert [end for end, _ in result] == [0.5, 0.0, 1.5] or [end for end, _ in result] == [0.0, 0.5, 1.5]
    assert sum(p for _, p in result) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("scale", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("iterations", [0, 1, 5])
def test_it_equals_the_reference(scale: float, iterations: int) -> None:
    forecast, config = random(scale), AggregationConfig(iterations=iterations)
    result = aggregate(forecast, 6, config)
    assert result.position.shape == (3, 4, 6, 5, 2) and result.logit.shape == (3, 4, 6)
    for b, s in np.ndindex(3, 4):
        probability = forecast.probability()[b, s].double().numpy()
        mean, mass = reference(forecast.position[b, s].double().numpy(), probability, 6, config)
        np.testing.assert_allclose(result.position[b, s], mean, atol=1e-4)
        np.testing.assert_allclose(result.probability()[b, s], mass, atol=1e-5)


def test_scale_is_the_standard_deviation_of_the_merged_mixture() -> None:
    forecast, config = random(3.0), AggregationConfig(distance_m=100.0)
    result = aggregate(forecast, 1, config)
    weight = forecast.probability()[..., None, None]
    second = (weight * (forecast.scale.square() + forecast.position.square())).sum(2, keepdim=True)
    torch.testing.assert_close(result.position, (weight * forecast.position).sum(2, keepdim=True), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(result.scale, (second - result.position.square()).sqrt(), atol=1e-3, rtol=1e-3)
    assert aggregate(replace(forecast, scale=None), 3).scale is None


def test_distant_modes_do_not_change() -> None:
    forecast = random(1000.0, modes=6)
    result = aggregate(forecast, 6)
    order = forecast.logit.argsort(-1, descending=True)
    expected = forecast.select(order)
    torch.testing.assert_close(result.position, expected.position, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(result.scale, expected.scale, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(result.probability(), expected.probability())


@pytest.mark.parametrize("logit", [0.0, -200.0])
def test_equal_modes_and_tiny_probabilities_are_finite(logit: float) -> None:
    position = torch.ones(1, 1, 8, 3, 2)
    logits = torch.full((1, 1, 8), logit).index_fill(2, torch.tensor([5]), 0.0)
    result = aggregate(Forecast(position, logits, Frame.SCENE, scale=position), 6)
    assert result.logit.isfinite().all() and torch.equal(result.position, torch.ones(1, 1, 6, 3, 2))
    assert result.scale.isfinite().all() and result.probability().sum().item() == pytest.approx(1.0)


def test_autocast_does_not_change_results() -> None:
    """Validation runs under autocast, in which matrix products round a position at 100 m by 50 cm."""
    forecast = random(20.0)
    with torch.autocast("cpu", torch.bfloat16):
        result = aggregate(forecast, 6)
    expected = aggregate(forecast, 6)
    for name in ("position", "logit", "scale"):
        assert torch.equal(getattr(result, name), getattr(expected, name)), name


def test_agents_are_independent_and_keep_their_frame() -> None:
    forecast = replace(random(), frame=Frame.AGENT, pose=torch.randn(3, 4, 3))
    parts = {name: getattr(forecast, name)[1:2, 2:3] for name in ("position", "logit", "scale", "pose")}
    result, alone = aggregate(forecast, 6), aggregate(replace(forecast, **parts), 6)
    torch.testing.assert_close(result.position[1:2, 2:3], alone.position)
    assert result.frame is Frame.AGENT and result.pose is forecast.pose


def test_joint_forecasts_are_refused() -> None:
    with pytest.raises(ValueError, match="joint"):
        aggregate(Forecast(torch.zeros(1, 2, 8, 3, 2), torch.zeros(1, 8), Frame.SCENE), 6)
