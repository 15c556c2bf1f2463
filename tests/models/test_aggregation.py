"""Merging modes: by hand, against a plain reference agent by agent, and what it must leave alone."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.models.wayformer.aggregation import AggregationConfig, aggregate


def ends(x: list[float], probability: list[float]) -> Forecast:
    """One agent whose modes end at these places on the x axis, after a step half the way."""
    position = torch.zeros(1, 1, len(x), 2, 2)
    position[0, 0, :, 0, 0], position[0, 0, :, 1, 0] = torch.tensor(x) / 2, torch.tensor(x)
    return Forecast(position, torch.tensor(probability).log()[None, None], Frame.SCENE)


def merged(forecast: Forecast) -> list[tuple[float, float]]:
    """(end, probability) of every mode, rounded."""
    end, probability = forecast.position[0, 0, :, -1, 0], forecast.probability()[0, 0]
    return [(round(e, 4), round(p, 4)) for e, p in zip(end.tolist(), probability.tolist(), strict=True)]


def reference(
    position: np.ndarray, probability: np.ndarray, count: int, config: AggregationConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Modes [K, F, 2] of one agent, one after the other."""
    end, modes = position[:, -1], range(len(position))
    bare, chosen = set(modes), []
    for _ in range(count):
        covers = {i: {j for j in bare if math.dist(end[i], end[j]) < config.distance_m} for i in modes if i not in chosen}
        worth = {i: sum(probability[j] for j in covers[i]) if bare else probability[i] for i in covers}
        chosen.append(max(worth, key=lambda i: worth[i]))
        bare -= covers[chosen[-1]]
    mean = [position[i] for i in chosen]
    for step in range(config.iterations + 1):
        own = [min(range(count), key=lambda c: math.dist(end[j], mean[c][-1])) for j in modes]
        groups = [[j for j in modes if own[j] == c] for c in range(count)]
        if step < config.iterations:
            mean = [np.average(position[g], 0, probability[g]) if g else m for g, m in zip(groups, mean, strict=True)]
    return np.stack(mean), np.array([sum(probability[j] for j in g) for g in groups])


def random(scale: float = 6.0, seed: int = 0, modes: int = 24) -> Forecast:
    generator = torch.Generator().manual_seed(seed)
    position = scale * torch.randn(3, 4, modes, 5, 2, generator=generator)
    spread = torch.rand(position.shape, generator=generator) + 0.1
    return Forecast(position, 2 * torch.randn(3, 4, modes, generator=generator), Frame.SCENE, scale=spread)


def test_two_crowds_and_a_straggler_by_hand() -> None:
    forecast = ends([0.0, 1.0, 2.0, 10.0, 11.0, 30.0], [0.1, 0.2, 0.1, 0.3, 0.2, 0.1])
    assert merged(aggregate(forecast, 3)) == [(10.4, 0.5), (1.0, 0.4), (30.0, 0.1)]
    middle = aggregate(forecast, 3).position[0, 0, :, 0, 0].tolist()
    assert middle == pytest.approx([5.2, 0.5, 15.0])


def test_the_most_probable_mode_need_not_be_a_centre() -> None:
    forecast = ends([0.0, 5.0, 7.0, 9.0], [0.31, 0.23, 0.23, 0.23])
    assert merged(aggregate(forecast, 1, AggregationConfig(iterations=0)))[0] == (7.0, 1.0)


def test_where_a_few_cover_everything_the_most_probable_of_the_rest_fill_up() -> None:
    forecast = ends([0.0, 0.5, 1.0, 1.5], [0.1, 0.4, 0.2, 0.3])
    found = merged(aggregate(forecast, 3, AggregationConfig(iterations=0)))
    assert [end for end, _ in found] == [0.5, 0.0, 1.5] or [end for end, _ in found] == [0.0, 0.5, 1.5]
    assert sum(p for _, p in found) == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("scale", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("iterations", [0, 1, 5])
def test_it_equals_the_plain_reference(scale: float, iterations: int) -> None:
    forecast, config = random(scale), AggregationConfig(iterations=iterations)
    found = aggregate(forecast, 6, config)
    assert found.position.shape == (3, 4, 6, 5, 2) and found.logit.shape == (3, 4, 6)
    for b, s in np.ndindex(3, 4):
        probability = forecast.probability()[b, s].double().numpy()
        mean, mass = reference(forecast.position[b, s].double().numpy(), probability, 6, config)
        np.testing.assert_allclose(found.position[b, s], mean, atol=1e-4)
        np.testing.assert_allclose(found.probability()[b, s], mass, atol=1e-5)


def test_a_spread_is_that_of_the_merged_mixture() -> None:
    forecast, config = random(3.0), AggregationConfig(distance_m=100.0)
    found = aggregate(forecast, 1, config)
    weight = forecast.probability()[..., None, None]
    second = (weight * (forecast.scale.square() + forecast.position.square())).sum(2, keepdim=True)
    torch.testing.assert_close(found.position, (weight * forecast.position).sum(2, keepdim=True), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.scale, (second - found.position.square()).sqrt(), atol=1e-3, rtol=1e-3)
    assert aggregate(replace(forecast, scale=None), 3).scale is None


def test_modes_that_differ_are_left_alone() -> None:
    forecast = random(1000.0, modes=6)
    found = aggregate(forecast, 6)
    order = forecast.logit.argsort(-1, descending=True)
    expected = forecast.select(order)
    torch.testing.assert_close(found.position, expected.position, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(found.scale, expected.scale, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found.probability(), expected.probability())


@pytest.mark.parametrize("logit", [0.0, -200.0])
def test_equal_modes_and_vanishing_ones_are_finite(logit: float) -> None:
    position = torch.ones(1, 1, 8, 3, 2)
    logits = torch.full((1, 1, 8), logit).index_fill(2, torch.tensor([5]), 0.0)
    found = aggregate(Forecast(position, logits, Frame.SCENE, scale=position), 6)
    assert found.logit.isfinite().all() and torch.equal(found.position, torch.ones(1, 1, 6, 3, 2))
    assert found.scale.isfinite().all() and found.probability().sum().item() == pytest.approx(1.0)


def test_half_precision_moves_no_mode() -> None:
    """Validation runs under autocast, where a product of matrices rounds a place at 100 m to 50 cm."""
    forecast = random(20.0)
    with torch.autocast("cpu", torch.bfloat16):
        found = aggregate(forecast, 6)
    expected = aggregate(forecast, 6)
    for name in ("position", "logit", "scale"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def test_agents_do_not_touch_each_other_and_poses_stay() -> None:
    forecast = replace(random(), frame=Frame.AGENT, pose=torch.randn(3, 4, 3))
    found, alone = aggregate(forecast, 6), aggregate(one(forecast, 1, 2), 6)
    torch.testing.assert_close(found.position[1:2, 2:3], alone.position)
    assert found.frame is Frame.AGENT and found.pose is forecast.pose


def one(forecast: Forecast, b: int, s: int) -> Forecast:
    parts: dict[str, Tensor] = {n: getattr(forecast, n)[b : b + 1, s : s + 1] for n in ("position", "logit", "scale", "pose")}
    return replace(forecast, **parts)


def test_worlds_do_not_mix() -> None:
    with pytest.raises(ValueError, match="joint"):
        aggregate(Forecast(torch.zeros(1, 2, 8, 3, 2), torch.zeros(1, 8), Frame.SCENE), 6)
