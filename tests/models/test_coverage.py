"""`coverage` scores equally likely samples: the most probable ones cover all others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tensors import draw
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.models.modes import coverage


def equally_likely(position: Tensor) -> Forecast:
    return Forecast(position, torch.zeros(position.shape[:3]), Frame.SCENE)


def pick(position: Tensor, index: Tensor) -> Tensor:
    """Mode `index` [B, S] of each agent."""
    return position.gather(2, index[..., None, None, None].expand(*index.shape, 1, *position.shape[3:])).squeeze(2)


def by_probability(forecast: Forecast) -> Tensor:
    return forecast.logit.argsort(dim=-1, descending=True, stable=True)


def test_the_first_sample_is_nearest_to_all_and_each_next_one_covers_most_of_the_rest() -> None:
    forecast = coverage(equally_likely(4 * draw(3, 4, 12, 5, 2)))
    end, order = forecast.position[..., -1, :].double(), by_probability(forecast)
    for b, s in np.ndindex(3, 4):
        distance = torch.cdist(end[b, s], end[b, s])
        assert order[b, s, 0] == distance.mean(1).argmin()
        chosen = [int(order[b, s, 0])]
        for mode in order[b, s, 1:5].tolist():
            remaining = torch.stack([distance[[*chosen, k]].amin(0).mean() for k in range(12)])
            assert remaining[mode] <= remaining.min() + 1.1e-3 * distance.mean(1).max()  # the tie-break
            chosen.append(mode)
    torch.testing.assert_close(forecast.probability().sum(-1), torch.ones(3, 4))


def test_probabilities_by_hand() -> None:
    """Three samples at one point and one 14.1 m away: one of the three represents them, the distant one itself."""
    position = torch.tensor([0.0, 0.0, 10.0, 0.0])[None, None, :, None, None].expand(1, 1, 4, 3, 2)
    far = 200**0.5
    expected = torch.tensor([3 * far + 0.01, 0.01, far + 0.01, 0.01])
    torch.testing.assert_close(coverage(equally_likely(position)).probability()[0, 0], expected / expected.sum())
    equal = coverage(equally_likely(torch.zeros(1, 1, 4, 3, 2))).probability()
    torch.testing.assert_close(equal, torch.full((1, 1, 4), 0.25))


def test_a_guess_selects_the_first_sample() -> None:
    position = 4 * draw(2, 3, 8, 5, 2, seed=3)
    forecast = equally_likely(position)
    plain = coverage(forecast)
    order = by_probability(plain)
    torch.testing.assert_close(coverage(forecast, guess=pick(position, order[..., 0])).logit, plain.logit)
    for first in (order[..., -1], order[..., 1]):
        scored = coverage(forecast, guess=pick(position, first) + 1e-3)
        assert torch.equal(scored.logit.argmax(-1), first)
        torch.testing.assert_close(scored.logit.amax(-1), plain.logit.amax(-1))
        distance = torch.cdist(position[..., -1, :], position[..., -1, :])
        second = by_probability(scored)[..., 1]
        for b, s in np.ndindex(2, 3):
            remaining = [distance[b, s][[int(first[b, s]), k]].amin(0).mean().item() for k in range(8)]
            assert remaining[int(second[b, s])] == pytest.approx(min(remaining), abs=1e-2)
    real = torch.tensor([[True, True, False], [True, False, False]])
    worlds = coverage(forecast, real, pick(position, torch.tensor([[6, 6, 0], [2, 5, 5]])))
    assert worlds.logit.argmax(-1).tolist() == [6, 2]


def test_worlds_are_scored_by_the_mean_distance_over_real_targets() -> None:
    position, real = 4 * draw(2, 3, 8, 5, 2, seed=3), torch.tensor([[True, True, False], [True, False, False]])
    worlds = coverage(equally_likely(position), real)
    assert worlds.is_joint and worlds.logit.shape == (2, 8)
    torch.testing.assert_close(worlds.logit[1], coverage(equally_likely(position[1:, :1])).logit[0, 0])
    first = coverage(equally_likely(position[:1])).logit[0, 0]
    same = coverage(equally_likely(position[:1, :1].expand(-1, 3, -1, -1, -1)), real[:1])
    torch.testing.assert_close(same.logit[0], first)
    assert not torch.allclose(worlds.logit[0], first)
    position[0, 2] += 100.0
    torch.testing.assert_close(coverage(equally_likely(position), real).logit, worlds.logit)


def test_rounding_rarely_changes_probabilities() -> None:
    """Two samples may cover each other equally well: without a tie-break, rounding would change half of these agents."""
    position = 3 * draw(60, 5, 8, 3, 2)
    rounded = position * (1 + 1e-6 * draw(*position.shape, seed=1))
    first, second = (coverage(equally_likely(xy)).probability() for xy in (position, rounded))
    assert ((first - second).abs().amax(-1) > 1e-3).float().mean() < 0.02
