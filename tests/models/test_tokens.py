"""Selection of the nearest candidates, and distances."""

from __future__ import annotations

import pytest
import torch

from trajformer.data.distances import pairwise_distances
from trajformer.models.tokens import nearest


@pytest.mark.parametrize(
    ("radius_m", "count", "expected"),
    [(5.0, 3, [1, 4, 0]), (3.0, 5, [1, 4]), (0.5, 2, []), (99.0, 9, [1, 4, 0, 2]), (float("inf"), 5, [1, 4, 0, 2])],
)
def test_nearest_within_a_radius(radius_m: float, count: int, expected: list[int]) -> None:
    distance, exists = torch.tensor([4.0, 1.0, 9.0, 2.0, 3.0]), torch.tensor([True, True, True, False, True])
    index, real = nearest(distance, exists, radius_m, count)
    assert index[real].tolist() == expected and len(index) == min(count, 5)


def test_distances_are_exact_far_from_the_origin_and_for_many_points() -> None:
    """For more than 25 points `torch.cdist` multiplies matrices, which at 4 km is a metre off."""
    point = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 40
    far = (point + 4096).float()  # float32 has steps of half a millimetre here
    torch.testing.assert_close(pairwise_distances(far, far).double(), torch.cdist(point, point), atol=2e-3, rtol=0)
