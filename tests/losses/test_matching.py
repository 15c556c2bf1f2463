"""The matcher: against brute force and scipy, alone and in batches, and what it says of costs that are no numbers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trajformer.losses.matching import match


def draw(*shape: int, seed: int = 0) -> Tensor:
    return 3.0 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def cheapest(table: np.ndarray) -> float:
    """Smallest total cost of giving each of G targets (or of K predictions, if fewer) its own partner."""
    table = table if table.shape[0] >= table.shape[1] else table.T
    rows, columns = table.shape
    return min(sum(table[r, c] for c, r in enumerate(p)) for p in itertools.permutations(range(rows), columns))


@pytest.mark.parametrize(("predictions", "targets"), [(5, 3), (3, 3), (2, 4), (6, 2), (1, 2)])
def test_match_equals_brute_force_on_ragged_targets(predictions: int, targets: int) -> None:
    cost = draw(20, predictions, targets)
    mask = torch.rand(20, targets, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[0], mask[1] = False, True
    problem, prediction, target = match(cost, mask)
    assert problem.dtype == prediction.dtype == target.dtype == torch.int64
    assert mask[problem, target].all()
    for n in range(20):
        mine = problem == n
        count = min(predictions, int(mask[n].sum()))
        assert mine.sum() == len(prediction[mine].unique()) == len(target[mine].unique()) == count
        total = cost[n, prediction[mine], target[mine]].sum().item()
        assert total == pytest.approx(cheapest(cost[n][:, mask[n]].numpy()) if count else 0.0, abs=1e-5)


def test_one_target_is_the_argmin_and_equals_the_assignment() -> None:
    cost = draw(50, 6, 1)
    mask = torch.arange(50)[:, None] % 3 != 0
    one = match(cost, mask)
    assert one.problem.tolist() == [n for n in range(50) if n % 3]
    assert torch.equal(one.prediction, cost[mask[:, 0], :, 0].argmin(1)) and not one.target.any()
    assert one.prediction.tolist() == [linear_sum_assignment(cost[n].numpy())[0].item() for n in one.problem]
    padded = torch.cat([cost, torch.full_like(cost, torch.nan)], 2)
    several = match(padded, torch.cat([mask, torch.zeros_like(mask)], 1))
    for a, b in zip(one, several, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(0, 6, 1), (0, 6, 3), (4, 6, 0), (4, 6, 1), (4, 6, 3)])
def test_no_target_gives_no_pair(shape: tuple[int, int, int]) -> None:
    pairs = match(torch.zeros(shape), torch.zeros(shape[0], shape[2], dtype=torch.bool))
    assert [part.shape for part in pairs] == [(0,)] * 3
    assert all(part.dtype == torch.int64 for part in pairs)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("targets", [1, 2])
def test_a_cost_that_is_not_finite_is_named(value: float, targets: int) -> None:
    cost, mask = draw(4, 5, targets), torch.ones(4, targets, dtype=torch.bool)
    cost[2, 3, -1] = value
    with pytest.raises(ValueError, match=f"problem 2, prediction 3, target {targets - 1}"):
        match(cost, mask)
    mask[2, -1] = False
    assert len(match(cost, mask).problem) == 4 * targets - 1


def test_layers_and_images_are_matched_as_each_alone() -> None:
    cost, mask = draw(3, 4, 7, 5), torch.rand(4, 5, generator=torch.Generator().manual_seed(2)) > 0.3
    together = match(cost, mask)
    pairs = set(zip(*(part.tolist() for part in together), strict=True))
    alone = set()
    for layer, image in itertools.product(range(3), range(4)):
        problem, prediction, target = match(cost[layer, image], mask[image])
        assert not problem.any()
        alone |= {(4 * layer + image, k, g) for k, g in zip(prediction.tolist(), target.tolist(), strict=True)}
    assert pairs == alone and len(pairs) == len(together.problem) == 3 * mask.sum()


def test_large_problems_equal_scipy_and_random_assignments_are_dearer() -> None:
    cost, chance = draw(4, 100, 20, seed=5), np.random.default_rng(0)
    problem, prediction, target = match(cost, torch.ones(20, dtype=torch.bool))
    for n in range(4):
        mine = problem == n
        total = cost[n, prediction[mine], target[mine]].sum().item()
        rows, columns = linear_sum_assignment(cost[n].double().numpy())
        assert total == pytest.approx(cost[n].double().numpy()[rows, columns].sum(), abs=1e-4)
        others = [cost[n, chance.permutation(100)[:20], np.arange(20)].sum().item() for _ in range(50)]
        assert total < min(others)


def test_the_axes_are_named_where_a_cost_is_not_finite() -> None:
    cost = draw(2, 3, 5, 2)
    cost[1, 2, 4, 1] = math.nan
    with pytest.raises(ValueError, match="layer 1, image 2, query 4, box 1"):
        match(cost, torch.ones(2, dtype=torch.bool), ("layer", "image", "query", "box"))


class Calls(TorchFunctionMode):
    """Names of the tensor methods called that make a device wait for the host."""

    waiting = ("cpu", "numpy", "item", "tolist", "nonzero", "__bool__", "__int__", "__float__", "__array__")

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in self.waiting:
            self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_all_layers_reach_the_host_in_one_copy() -> None:
    cost, mask = draw(6, 4, 7, 5), torch.rand(4, 5, generator=torch.Generator().manual_seed(2)) > 0.3
    with Calls() as calls:
        match(cost, mask)
    assert calls.names == ["cpu", "numpy"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_costs_of_any_precision_are_matched(dtype: torch.dtype) -> None:
    cost = draw(3, 6, 4).to(dtype)
    mask = torch.ones(4, dtype=torch.bool)
    assert torch.equal(match(cost, mask).prediction, match(cost.float(), mask).prediction)
