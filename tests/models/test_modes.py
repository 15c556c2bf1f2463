"""End-point suppression against a plain greedy reference, and consensus scores by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.models.modes import consensus, endpoint_nms


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ends(x: list[float], probability: list[float]) -> Forecast:
    """One agent with modes that end at these positions on the x axis."""
    position = torch.zeros(1, 1, len(x), 3, 2)
    position[0, 0, :, -1, 0] = torch.tensor(x)
    return Forecast(position, torch.tensor(probability).log()[None, None], Frame.SCENE)


def chosen(forecast: Forecast) -> list[float]:
    return forecast.position[0, 0, :, -1, 0].tolist()


@pytest.mark.parametrize(
    ("x", "probability", "modes", "expected"),
    [
        ([0.0, 5.0, 9.0], [0.2, 0.5, 0.3], 3, [5.0, 9.0, 0.0]),  # ordered by probability
        ([0.0, 1.0, 9.0], [0.5, 0.3, 0.2], 2, [0.0, 9.0]),  # a mode near a better one is suppressed
        ([0.0, 1.0, 9.0], [0.5, 0.3, 0.2], 3, [0.0, 9.0, 1.0]),  # and added at the end
        ([0.0, 1.5, 3.0], [0.3, 0.4, 0.2], 2, [1.5, 0.0]),  # the middle mode suppresses both others
        ([0.0, 1.5, 3.0], [0.5, 0.3, 0.2], 2, [0.0, 3.0]),  # a suppressed mode suppresses no other mode
        ([0.0, 2.0, 9.0], [0.5, 0.3, 0.2], 2, [0.0, 2.0]),  # a distance equal to the radius is enough
        ([0.0, 0.1, 0.2, 0.3], [0.1, 0.2, 0.3, 0.4], 3, [0.3, 0.2, 0.1]),
        (
            [0.0, 5.0, 9.0, 14.0],
            [1 - 6e-12, 1e-12, 2e-12, 3e-12],
            4,
            [0.0, 14.0, 9.0, 5.0],
        ),  # small probabilities keep their order
        ([0.0, 1.0, 9.0, 1.1], [1 - 6e-12, 2e-12, 1e-12, 3e-12], 4, [0.0, 9.0, 1.1, 1.0]),
        ([0.0, 7.0], [0.5, 0.5], 1, [0.0]),  # the first of equally probable modes
    ],
)
def test_suppression_by_hand(x: list[float], probability: list[float], modes: int, expected: list[float]) -> None:
    assert chosen(endpoint_nms(ends(x, probability), modes, 2.0)) == pytest.approx(expected)


def greedy(end: np.ndarray, probability: np.ndarray, modes: int, radius: float) -> list[int]:
    """End-point suppression in plain Python."""
    order = np.argsort(-probability, kind="stable").tolist()
    kept: list[int] = []
    for mode in order:
        if all(math.dist(end[mode], end[other]) >= radius for other in kept):
            kept.append(mode)
    return [*kept, *(mode for mode in order if mode not in kept)][:modes]


@pytest.mark.parametrize(("count", "modes", "radius"), [(6, 6, 1.0), (12, 6, 1.5), (36, 6, 1.0), (10, 4, 0.0), (8, 8, 100.0)])
def test_suppression_equals_a_greedy_reference(count: int, modes: int, radius: float) -> None:
    forecast = Forecast(2 * draw(8, 5, count, 3, 2), 4 * draw(8, 5, count, seed=1), Frame.SCENE)
    result = endpoint_nms(forecast, modes, radius)
    assert result.position.shape == (8, 5, modes, 3, 2)
    for b, s in np.ndindex(8, 5):
        index = greedy(forecast.position[b, s, :, -1].numpy(), forecast.logit[b, s].numpy(), modes, radius)
        assert torch.equal(result.position[b, s], forecast.position[b, s, index])
        assert torch.equal(result.logit[b, s], forecast.logit[b, s, index])


def test_suppression_of_many_modes_is_exact_far_from_the_origin() -> None:
    """For more than 25 points `torch.cdist` multiplies matrices, which at 4 km has errors of a metre."""
    forecast = Forecast(4096 + 4 * draw(8, 5, 30, 3, 2), 4 * draw(8, 5, 30, seed=1), Frame.SCENE)
    result = endpoint_nms(forecast, 6, 1.5)
    for b, s in np.ndindex(8, 5):
        index = greedy(forecast.position[b, s, :, -1].double().numpy(), forecast.logit[b, s].numpy(), 6, 1.5)
        assert torch.equal(result.position[b, s], forecast.position[b, s, index])


def test_selected_modes_receive_gradients() -> None:
    position = draw(1, 1, 4, 3, 2).requires_grad_()
    logit = torch.tensor([[[0.0, 3.0, 1.0, 2.0]]], requires_grad=True)
    result = endpoint_nms(Forecast(position, logit, Frame.SCENE), 2, 0.0)
    (result.position.sum() + result.logit.sum()).backward()
    assert logit.grad.tolist() == [[[0.0, 1.0, 0.0, 1.0]]]
    assert torch.equal(position.grad[0, 0].amax((-1, -2)), torch.tensor([0.0, 1.0, 0.0, 1.0]))


def test_consensus_prefers_the_mode_with_the_smallest_expected_error() -> None:
    """Two modes near each other share a probability of 0.6; the third mode has 0.4 and a larger expected error."""
    end = torch.tensor([[0.0, 0.0], [10.0, 0.0], [10.5, 0.0]])
    position = end[None, None, :, None].expand(1, 1, 3, 4, 2).clone()
    forecast = Forecast(position, torch.tensor([[[0.4, 0.35, 0.25]]]).log(), Frame.SCENE)
    assert consensus(forecast, 0.0) is forecast
    out = consensus(forecast, 2.0)
    expected = torch.tensor([0.35 * 10 + 0.25 * 10.5, 0.4 * 10 + 0.25 * 0.5, 0.4 * 10.5 + 0.35 * 0.5])
    torch.testing.assert_close(out.probability()[0, 0], (-expected / 2.0).softmax(-1))
    assert forecast.probability().argmax() == 0 and out.probability().argmax() == 1
    assert out.position is forecast.position
