"""Cells: every query has all near tokens once, for any sizes of cells."""

import pytest
import torch
from torch import Tensor

from trajformer.core.cells import CELL_M, FAR_M, Cells


def near_tokens(position: Tensor, token_position: Tensor) -> Tensor:
    """Bool [L, S], by the distance between a token and the cell of a query."""
    low = CELL_M * (position / CELL_M).floor()[:, None]
    nearest = token_position.maximum(low).minimum(low + CELL_M)
    return (token_position - nearest).square().sum(-1) <= FAR_M**2


@pytest.mark.parametrize("reach_m", [5.0, 300.0, 3000.0])
@pytest.mark.parametrize("masked", [False, True])
def test_cells_have_the_near_tokens_of_their_queries(reach_m: float, masked: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    position = reach_m * torch.randn(300, 2, generator=generator)
    token_position = reach_m * torch.randn(600, 2, generator=generator)
    exists = torch.rand(600, generator=generator) < 0.5 if masked else None
    expected = near_tokens(position, token_position)
    if exists is not None:
        expected &= exists

    cells = Cells.of(position, token_position, exists)
    found = torch.zeros(300, 600, dtype=torch.long)
    places = []
    for group in cells.groups:
        assert len(group.rows) == len(group.tokens) == len(group.num_rows)
        for cell, count in enumerate(group.num_rows):
            tokens = group.tokens[cell]
            if group.is_token is not None:
                tokens = tokens[group.is_token[cell]]
            found[group.rows[cell, :count, None], tokens] += 1
        places.append(group.rows.flatten())
    assert torch.equal(found, expected.long())
    assert torch.equal(cells.has_near, expected.any(1))

    # The result of a query is found at its slot.
    query = torch.cat([*places, torch.tensor([-1])])[cells.slot]
    index = torch.arange(300)
    assert torch.equal(query, torch.where(cells.has_near, index, -1))
