"""Selection and scoring of modes against references in plain Python: end-point suppression, consensus, coverage, aggregation."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.tensors import draw
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.models.modes import AggregationConfig, aggregate, consensus, coverage, endpoint_nms


def greedy(end: np.ndarray, probability: np.ndarray, modes: int, radius: float) -> list[int]:
    """End-point suppression in plain Python."""
    order = np.argsort(-probability, kind="stable").tolist()
    kept: list[int] = []
    for mode in order:
        if all(math.dist(end[mode], end[other]) >= radius for other in kept):
            kept.append(mode)
    return [*kept, *(mode for mode in order if mode not in kept)][:modes]


@pytest.mark.parametrize(
    ("count", "modes", "radius", "far"),
    [
        (6, 6, 1.0, 0),
        (12, 6, 1.5, 0),
        (36, 6, 1.0, 0),
        (10, 4, 0.0, 0),
        (8, 8, 100.0, 0),
        (30, 6, 1.5, 4096),
    ],
)
def test_suppression_equals_a_greedy_reference(
    count: int, modes: int, radius: float, far: float
) -> None:
    """For more than 25 points `torch.cdist` multiplies matrices, which at 4 km has errors of a metre."""
    forecast = Forecast(
        far + 2 * draw(8, 5, count, 3, 2), 4 * draw(8, 5, count, seed=1), Frame.SCENE
    )
    result = endpoint_nms(forecast, modes, radius)
    assert result.position.shape == (8, 5, modes, 3, 2)
    for b, s in np.ndindex(8, 5):
        index = greedy(
            forecast.position[b, s, :, -1].double().numpy(),
            forecast.logit[b, s].numpy(),
            modes,
            radius,
        )
        assert torch.equal(result.position[b, s], forecast.position[b, s, index])
        assert torch.equal(result.logit[b, s], forecast.logit[b, s, index])


def test_consensus_prefers_the_mode_with_the_smallest_expected_error() -> None:
    """Two modes near each other share a probability of 0.6; the third mode has 0.4 and a larger expected error."""
    end = torch.tensor([[0.0, 0.0], [10.0, 0.0], [10.5, 0.0]])
    position = end[None, None, :, None].expand(1, 1, 3, 4, 2).clone()
    forecast = Forecast(position, torch.tensor([[[0.4, 0.35, 0.25]]]).log(), Frame.SCENE)
    assert consensus(forecast, 0.0) is forecast
    out = consensus(forecast, 2.0)
    expected = torch.tensor(
        [0.35 * 10 + 0.25 * 10.5, 0.4 * 10 + 0.25 * 0.5, 0.4 * 10.5 + 0.35 * 0.5]
    )
    torch.testing.assert_close(out.probability()[0, 0], (-expected / 2.0).softmax(-1))
    assert forecast.probability().argmax() == 0 and out.probability().argmax() == 1
    assert out.position is forecast.position


def equally_likely(position: Tensor) -> Forecast:
    return Forecast(position, torch.zeros(position.shape[:3]), Frame.SCENE)


def test_the_first_sample_is_nearest_to_all_and_each_next_one_covers_most_of_the_rest() -> None:
    forecast = coverage(equally_likely(4 * draw(3, 4, 12, 5, 2)))
    end, order = (
        forecast.position[..., -1, :].double(),
        forecast.logit.argsort(dim=-1, descending=True, stable=True),
    )
    for b, s in np.ndindex(3, 4):
        distance = torch.cdist(end[b, s], end[b, s])
        assert order[b, s, 0] == distance.mean(1).argmin()
        chosen = [int(order[b, s, 0])]
        for mode in order[b, s, 1:5].tolist():
            remaining = torch.stack([distance[[*chosen, k]].amin(0).mean() for k in range(12)])
            assert (
                remaining[mode] <= remaining.min() + 1.1e-3 * distance.mean(1).max()
            )  # the tie-break
            chosen.append(mode)
    torch.testing.assert_close(forecast.probability().sum(-1), torch.ones(3, 4))


def test_probabilities_by_hand() -> None:
    """Three samples at one point and one 14.1 m away: one of the three represents them, the distant one itself."""
    position = torch.tensor([0.0, 0.0, 10.0, 0.0])[None, None, :, None, None].expand(1, 1, 4, 3, 2)
    far = 200**0.5
    expected = torch.tensor([3 * far + 0.01, 0.01, far + 0.01, 0.01])
    torch.testing.assert_close(
        coverage(equally_likely(position)).probability()[0, 0], expected / expected.sum()
    )
    equal = coverage(equally_likely(torch.zeros(1, 1, 4, 3, 2))).probability()
    torch.testing.assert_close(equal, torch.full((1, 1, 4), 0.25))


def test_worlds_are_scored_by_the_mean_distance_over_real_targets() -> None:
    position, real = (
        4 * draw(2, 3, 8, 5, 2, seed=3),
        torch.tensor([[True, True, False], [True, False, False]]),
    )
    worlds = coverage(equally_likely(position), real)
    assert worlds.is_joint and worlds.logit.shape == (2, 8)
    torch.testing.assert_close(
        worlds.logit[1], coverage(equally_likely(position[1:, :1])).logit[0, 0]
    )
    first = coverage(equally_likely(position[:1])).logit[0, 0]
    same = coverage(equally_likely(position[:1, :1].expand(-1, 3, -1, -1, -1)), real[:1])
    torch.testing.assert_close(same.logit[0], first)
    assert not torch.allclose(worlds.logit[0], first)
    position[0, 2] += 100.0
    torch.testing.assert_close(coverage(equally_likely(position), real).logit, worlds.logit)


def merged_in_loops(
    position: np.ndarray, probability: np.ndarray, count: int, config: AggregationConfig
) -> Any:
    """The aggregation of the modes [K, F, 2] of an agent, in loops."""
    end, modes = position[:, -1], range(len(position))
    uncovered, chosen = set(modes), []
    for _ in range(count):
        covers = {
            i: {j for j in uncovered if math.dist(end[i], end[j]) < config.distance_m}
            for i in modes
            if i not in chosen
        }
        gain = {
            i: sum(probability[j] for j in covers[i]) if uncovered else probability[i]
            for i in covers
        }
        chosen.append(max(gain, key=lambda i: gain[i]))
        uncovered -= covers[chosen[-1]]
    mean = [position[i] for i in chosen]
    for step in range(config.iterations + 1):
        nearest = [min(range(count), key=lambda c: math.dist(end[j], mean[c][-1])) for j in modes]
        groups = [[j for j in modes if nearest[j] == c] for c in range(count)]
        if step < config.iterations:
            mean = [
                np.average(position[g], 0, probability[g]) if g else m
                for g, m in zip(groups, mean, strict=True)
            ]
    return np.stack(mean), np.array([sum(probability[j] for j in g) for g in groups])


def mixture(scale: float = 6.0, seed: int = 0, modes: int = 24) -> Forecast:
    generator = torch.Generator().manual_seed(seed)
    position = scale * torch.randn(3, 4, modes, 5, 2, generator=generator)
    spread = torch.rand(position.shape, generator=generator) + 0.1
    return Forecast(
        position, 2 * torch.randn(3, 4, modes, generator=generator), Frame.SCENE, scale=spread
    )


@pytest.mark.parametrize("scale", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("iterations", [0, 1, 5])
def test_it_equals_the_merged_in_loops(scale: float, iterations: int) -> None:
    forecast, config = mixture(scale), AggregationConfig(iterations=iterations)
    result = aggregate(forecast, 6, config)
    assert result.position.shape == (3, 4, 6, 5, 2) and result.logit.shape == (3, 4, 6)
    for b, s in np.ndindex(3, 4):
        probability = forecast.probability()[b, s].double().numpy()
        mean, mass = merged_in_loops(
            forecast.position[b, s].double().numpy(), probability, 6, config
        )
        np.testing.assert_allclose(result.position[b, s], mean, atol=1e-4)
        np.testing.assert_allclose(result.probability()[b, s], mass, atol=1e-5)


def test_scale_is_the_standard_deviation_of_the_merged_mixture() -> None:
    forecast, config = mixture(3.0), AggregationConfig(distance_m=100.0)
    result = aggregate(forecast, 1, config)
    weight = forecast.probability()[..., None, None]
    second = (weight * (forecast.scale.square() + forecast.position.square())).sum(2, keepdim=True)
    torch.testing.assert_close(
        result.position, (weight * forecast.position).sum(2, keepdim=True), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(
        result.scale, (second - result.position.square()).sqrt(), atol=1e-3, rtol=1e-3
    )
    assert aggregate(replace(forecast, scale=None), 3).scale is None


@pytest.mark.parametrize("logit", [0.0, -200.0])
def test_equal_modes_and_tiny_probabilities_are_finite(logit: float) -> None:
    position = torch.ones(1, 1, 8, 3, 2)
    logits = torch.full((1, 1, 8), logit).index_fill(2, torch.tensor([5]), 0.0)
    result = aggregate(Forecast(position, logits, Frame.SCENE, scale=position), 6)
    assert result.logit.isfinite().all() and torch.equal(result.position, torch.ones(1, 1, 6, 3, 2))
    assert result.scale.isfinite().all() and result.probability().sum().item() == pytest.approx(1.0)


def test_autocast_does_not_change_aggregation() -> None:
    """Validation runs under autocast, in which matrix products round a position at 100 m by 50 cm."""
    forecast = mixture(20.0)
    with torch.autocast("cpu", torch.bfloat16):
        result = aggregate(forecast, 6)
    expected = aggregate(forecast, 6)
    for name in ("position", "logit", "scale"):
        assert torch.equal(getattr(result, name), getattr(expected, name)), name
