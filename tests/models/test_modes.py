"""Selection and scoring of modes against references in plain Python."""

import math
from dataclasses import replace

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
    suppressed = [mode for mode in order if mode not in kept]
    return (kept + suppressed)[:modes]


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
    """For more than 25 points `torch.cdist` multiplies matrices: at 4 km its error is a metre."""
    position = far + 2 * draw(8, 5, count, 3, 2)
    logit = 4 * draw(8, 5, count, seed=1)
    result = endpoint_nms(Forecast(position, logit, Frame.SCENE), modes, radius)
    assert result.position.shape == (8, 5, modes, 3, 2)
    for b, s in np.ndindex(8, 5):
        end = position[b, s, :, -1].double().numpy()
        index = greedy(end, logit[b, s].numpy(), modes, radius)
        assert torch.equal(result.position[b, s], position[b, s, index])
        assert torch.equal(result.logit[b, s], logit[b, s, index])


def test_consensus_prefers_the_mode_with_the_smallest_expected_error() -> None:
    """Two near modes have a probability of .6 together; the third has .4 and a larger error."""
    end = torch.tensor([[0.0, 0.0], [10.0, 0.0], [10.5, 0.0]])
    position = end[None, None, :, None].expand(1, 1, 3, 4, 2).clone()
    forecast = Forecast(position, torch.tensor([[[0.4, 0.35, 0.25]]]).log(), Frame.SCENE)
    assert consensus(forecast, 0.0) is forecast
    out = consensus(forecast, 2.0)
    first = 0.35 * 10 + 0.25 * 10.5
    second = 0.4 * 10 + 0.25 * 0.5
    third = 0.4 * 10.5 + 0.35 * 0.5
    expected = (-torch.tensor([first, second, third]) / 2.0).softmax(-1)
    torch.testing.assert_close(out.probability()[0, 0], expected)
    assert forecast.probability().argmax() == 0 and out.probability().argmax() == 1
    assert out.position is forecast.position


def equally_likely(position: Tensor) -> Forecast:
    return Forecast(position, torch.zeros(position.shape[:3]), Frame.SCENE)


def test_the_first_sample_is_nearest_to_all_and_each_next_one_covers_most_of_the_rest() -> None:
    forecast = coverage(equally_likely(4 * draw(3, 4, 12, 5, 2)))
    end = forecast.position[..., -1, :].double()
    order = forecast.logit.argsort(dim=-1, descending=True, stable=True)
    for b, s in np.ndindex(3, 4):
        distance = torch.cdist(end[b, s], end[b, s])
        first, *others = order[b, s, :5].tolist()
        assert first == distance.mean(1).argmin()
        tie_break = 1.1e-3 * distance.mean(1).max()
        nearest = distance[first]
        for mode in others:
            remaining = torch.minimum(nearest, distance).mean(1)  # after each mode
            assert remaining[mode] <= remaining.min() + tie_break
            nearest = torch.minimum(nearest, distance[mode])
    torch.testing.assert_close(forecast.probability().sum(-1), torch.ones(3, 4))


def test_probabilities_by_hand() -> None:
    """Three samples at one point and one 14.1 m away.

    One of the three represents them, the distant one represents itself.
    """
    x = torch.tensor([0.0, 0.0, 10.0, 0.0])
    position = x[None, None, :, None, None].expand(1, 1, 4, 3, 2)
    far = 200**0.5
    expected = torch.tensor([3 * far + 0.01, 0.01, far + 0.01, 0.01])
    probability = coverage(equally_likely(position)).probability()
    torch.testing.assert_close(probability[0, 0], expected / expected.sum())
    equal = coverage(equally_likely(torch.zeros(1, 1, 4, 3, 2))).probability()
    torch.testing.assert_close(equal, torch.full((1, 1, 4), 0.25))


def test_a_guess_selects_the_first_sample() -> None:
    position = 4 * draw(3, 4, 12, 5, 2)
    scored = coverage(equally_likely(position), guess=position[:, :, 7])
    assert (scored.logit.argmax(-1) == 7).all()


def test_worlds_are_scored_by_the_mean_distance_over_real_targets() -> None:
    position = 4 * draw(2, 3, 8, 5, 2, seed=3)
    real = torch.tensor([[True, True, False], [True, False, False]])
    worlds = coverage(equally_likely(position), real)
    assert worlds.is_joint and worlds.logit.shape == (2, 8)

    # With one target, worlds are its modes; with three equal targets, too.
    one_target = coverage(equally_likely(position[1:, :1])).logit[0, 0]
    torch.testing.assert_close(worlds.logit[1], one_target)
    first = coverage(equally_likely(position[:1])).logit[0, 0]
    equal_targets = position[:1, :1].expand(-1, 3, -1, -1, -1)
    same = coverage(equally_likely(equal_targets), real[:1])
    torch.testing.assert_close(same.logit[0], first)
    assert not torch.allclose(worlds.logit[0], first)

    # Padded targets do not count.
    position[0, 2] += 100.0
    torch.testing.assert_close(coverage(equally_likely(position), real).logit, worlds.logit)


def covered_in_loops(
    end: np.ndarray, probability: np.ndarray, count: int, distance_m: float
) -> list[int]:
    """The `count` modes that cover the most probability."""
    modes = range(len(end))
    uncovered = set(modes)
    chosen: list[int] = []
    for _ in range(count):
        covers: dict[int, set[int]] = {}
        gain: dict[int, float] = {}
        for mode in modes:
            if mode in chosen:
                continue
            near = {j for j in uncovered if math.dist(end[mode], end[j]) < distance_m}
            covers[mode] = near
            gain[mode] = sum(probability[j] for j in near) if uncovered else probability[mode]
        best = max(gain, key=gain.__getitem__)
        chosen.append(best)
        uncovered -= covers[best]
    return chosen


def merged_in_loops(
    position: np.ndarray, probability: np.ndarray, count: int, config: AggregationConfig
) -> tuple[np.ndarray, np.ndarray]:
    """Merged modes [count, F, 2] and probabilities of the modes [K, F, 2] of an agent."""
    end = position[:, -1]
    chosen = covered_in_loops(end, probability, count, config.distance_m)
    mean = position[chosen]
    for _ in range(config.iterations):
        nearest = nearest_in_loops(end, mean)
        for center in range(count):
            members = nearest == center
            if members.any():
                mean[center] = np.average(position[members], 0, probability[members])
    nearest = nearest_in_loops(end, mean)
    mass = [probability[nearest == center].sum() for center in range(count)]
    return mean, np.array(mass)


def nearest_in_loops(end: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """The center [K] nearest to each end [K, 2]."""
    gap = end[:, None] - mean[:, -1]
    return np.linalg.norm(gap, axis=-1).argmin(1)


def mixture(scale: float = 6.0, seed: int = 0, modes: int = 24) -> Forecast:
    generator = torch.Generator().manual_seed(seed)
    position = scale * torch.randn(3, 4, modes, 5, 2, generator=generator)
    spread = torch.rand(position.shape, generator=generator) + 0.1
    logit = 2 * torch.randn(3, 4, modes, generator=generator)
    return Forecast(position, logit, Frame.SCENE, scale=spread)


@pytest.mark.parametrize("scale", [0.5, 3.0, 20.0])
@pytest.mark.parametrize("iterations", [0, 1, 5])
def test_it_equals_the_merged_in_loops(scale: float, iterations: int) -> None:
    forecast = mixture(scale)
    config = AggregationConfig(iterations=iterations)
    result = aggregate(forecast, 6, config)
    assert result.position.shape == (3, 4, 6, 5, 2) and result.logit.shape == (3, 4, 6)
    position = forecast.position.double().numpy()
    probability = forecast.probability().double().numpy()
    for b, s in np.ndindex(3, 4):
        mean, mass = merged_in_loops(position[b, s], probability[b, s], 6, config)
        np.testing.assert_allclose(result.position[b, s], mean, atol=1e-4)
        np.testing.assert_allclose(result.probability()[b, s], mass, atol=1e-5)


def test_scale_is_the_standard_deviation_of_the_merged_mixture() -> None:
    forecast = mixture(3.0)
    assert forecast.scale is not None
    result = aggregate(forecast, 1, AggregationConfig(distance_m=100.0))
    weight = forecast.probability()[..., None, None]
    mean = (weight * forecast.position).sum(2, keepdim=True)
    squares = forecast.scale.square() + forecast.position.square()
    second_moment = (weight * squares).sum(2, keepdim=True)
    deviation = (second_moment - result.position.square()).sqrt()
    torch.testing.assert_close(result.position, mean, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(result.scale, deviation, atol=1e-3, rtol=1e-3)
    assert aggregate(replace(forecast, scale=None), 3).scale is None


@pytest.mark.parametrize("logit", [0.0, -200.0])
def test_equal_modes_and_tiny_probabilities_are_finite(logit: float) -> None:
    position = torch.ones(1, 1, 8, 3, 2)
    logits = torch.full((1, 1, 8), logit)
    logits[..., 5] = 0.0
    result = aggregate(Forecast(position, logits, Frame.SCENE, scale=position), 6)
    assert result.logit.isfinite().all() and torch.equal(result.position, torch.ones(1, 1, 6, 3, 2))
    assert result.scale is not None and result.scale.isfinite().all()
    assert result.probability().sum().item() == pytest.approx(1.0)


def test_autocast_does_not_change_aggregation() -> None:
    """Validation runs under autocast, in which matrix products round 100 m by 50 cm."""
    forecast = mixture(20.0)
    with torch.autocast("cpu", torch.bfloat16):
        result = aggregate(forecast, 6)
    expected = aggregate(forecast, 6)
    for name in ("position", "logit", "scale"):
        assert torch.equal(getattr(result, name), getattr(expected, name)), name


def test_joint_modes_are_not_merged() -> None:
    joint = Forecast(torch.zeros(1, 2, 8, 3, 2), torch.zeros(1, 8), Frame.SCENE)
    with pytest.raises(ValueError, match="the forecast is joint"):
        aggregate(joint, 6)
