"""The matcher against brute force and scipy, for single and batched problems, and its errors."""

import itertools
import math

import numpy as np
import pytest
import torch
from support.tensors import draw

from trajformer.losses.matching import match, match_layers


def smallest_total(cost: np.ndarray) -> float:
    """Smallest total cost [K, G] of a one-to-one assignment of K predictions and G targets."""
    if cost.shape[0] < cost.shape[1]:
        cost = cost.T
    rows, columns = cost.shape
    best = math.inf
    for permutation in itertools.permutations(range(rows), columns):
        best = min(best, float(cost[list(permutation), range(columns)].sum()))
    return best


@pytest.mark.parametrize(("predictions", "targets"), [(5, 3), (3, 3), (2, 4), (6, 2), (1, 2)])
def test_equals_brute_force_with_masked_targets(predictions: int, targets: int) -> None:
    cost = draw(20, predictions, targets)
    mask = torch.rand(20, targets, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[0] = False
    mask[1] = True
    problem, prediction, target = match(cost, mask)
    assert problem.dtype == prediction.dtype == target.dtype == torch.int64
    assert mask[problem, target].all()
    for n in range(20):
        matched_predictions = prediction[problem == n]
        matched_targets = target[problem == n]
        count = min(predictions, int(mask[n].sum()))
        assert len(matched_predictions) == count
        assert len(matched_predictions.unique()) == len(matched_targets.unique()) == count
        total = cost[n, matched_predictions, matched_targets].sum().item()
        expected = smallest_total(cost[n][:, mask[n]].numpy())
        assert total == pytest.approx(expected, abs=1e-5)


def test_a_single_target_is_matched_by_argmin() -> None:
    cost = draw(2, 50, 6, 1)
    mask = torch.arange(50)[:, None] % 3 != 0
    for layer, layer_cost in zip(match_layers(cost, mask), cost, strict=True):
        assert torch.equal(layer.problem, torch.arange(50))
        assert not layer.target.any()
        assigned = match(layer_cost, mask)
        assert torch.equal(assigned.problem, mask[:, 0].nonzero()[:, 0])
        assert torch.equal(layer.prediction[assigned.problem], assigned.prediction)


@pytest.mark.parametrize("shape", [(0, 6, 1), (0, 6, 3), (4, 6, 0), (4, 6, 1), (4, 6, 3)])
def test_without_targets_there_are_no_pairs(shape: tuple[int, int, int]) -> None:
    pairs = match(torch.zeros(shape), torch.zeros(shape[0], shape[2], dtype=torch.bool))
    assert all(part.shape == (0,) and part.dtype == torch.int64 for part in pairs)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("targets", [1, 2])
def test_the_error_for_a_cost_that_is_not_finite_gives_its_index(
    value: float, targets: int
) -> None:
    cost = draw(4, 5, targets)
    mask = torch.ones(4, targets, dtype=torch.bool)
    cost[2, 3, -1] = value
    with pytest.raises(ValueError, match=f"problem 2, prediction 3, target {targets - 1}"):
        match(cost, mask)

    layers = cost.unflatten(0, (2, 2))
    layer_mask = mask.unflatten(0, (2, 2))
    axes = ("layer", "image", "query", "box")
    with pytest.raises(ValueError, match=f"layer 1, image 0, query 3, box {targets - 1}"):
        match(layers, layer_mask, axes)

    mask[2, -1] = False
    assert len(match(cost, mask).problem) == 4 * targets - 1
