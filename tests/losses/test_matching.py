"""The matcher against brute force and scipy, for single and batched problems, and its errors."""

import itertools
import math

import numpy as np
import pytest
import torch
from support.tensors import draw

from trajformer.losses.matching import match, match_layers


def smallest_total(table: np.ndarray) -> float:
    """Smallest total cost of a one-to-one assignment of K predictions and G targets."""
    table = table if table.shape[0] >= table.shape[1] else table.T
    rows, columns = table.shape
    return min(
        sum(table[r, c] for c, r in enumerate(p))
        for p in itertools.permutations(range(rows), columns)
    )


@pytest.mark.parametrize(("predictions", "targets"), [(5, 3), (3, 3), (2, 4), (6, 2), (1, 2)])
def test_equals_brute_force_with_masked_targets(predictions: int, targets: int) -> None:
    cost = draw(20, predictions, targets)
    mask = torch.rand(20, targets, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[0], mask[1] = False, True
    problem, prediction, target = match(cost, mask)
    assert problem.dtype == prediction.dtype == target.dtype == torch.int64
    assert mask[problem, target].all()
    for n in range(20):
        here = problem == n
        count = min(predictions, int(mask[n].sum()))
        assert here.sum() == len(prediction[here].unique()) == len(target[here].unique()) == count
        total = cost[n, prediction[here], target[here]].sum().item()
        assert total == pytest.approx(
            smallest_total(cost[n][:, mask[n]].numpy()) if count else 0.0, abs=1e-5
        )


def test_a_single_target_is_matched_by_argmin() -> None:
    cost = draw(2, 50, 6, 1)
    mask = torch.arange(50)[:, None] % 3 != 0
    for single, costs in zip(match_layers(cost, mask), cost, strict=True):
        assert torch.equal(single.problem, torch.arange(50)) and not single.target.any()
        assigned = match(costs, mask)
        assert assigned.problem.tolist() == [n for n in range(50) if n % 3]
        assert torch.equal(single.prediction[assigned.problem], assigned.prediction)


@pytest.mark.parametrize("shape", [(0, 6, 1), (0, 6, 3), (4, 6, 0), (4, 6, 1), (4, 6, 3)])
def test_without_targets_there_are_no_pairs(shape: tuple[int, int, int]) -> None:
    pairs = match(torch.zeros(shape), torch.zeros(shape[0], shape[2], dtype=torch.bool))
    assert all(part.shape == (0,) and part.dtype == torch.int64 for part in pairs)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("targets", [1, 2])
def test_the_error_for_a_cost_that_is_not_finite_gives_its_index(
    value: float, targets: int
) -> None:
    cost, mask = draw(4, 5, targets), torch.ones(4, targets, dtype=torch.bool)
    cost[2, 3, -1] = value
    with pytest.raises(ValueError, match=f"problem 2, prediction 3, target {targets - 1}"):
        match(cost, mask)
    with pytest.raises(ValueError, match=f"layer 1, image 0, query 3, box {targets - 1}"):
        match(
            cost.unflatten(0, (2, 2)), mask.unflatten(0, (2, 2)), ("layer", "image", "query", "box")
        )
    mask[2, -1] = False
    assert len(match(cost, mask).problem) == 4 * targets - 1
