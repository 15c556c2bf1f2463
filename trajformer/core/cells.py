"""Cells of a grid: the near tokens of many queries, for all cells of a scene together.

A query attends to the tokens within `FAR_M` of its cell. Many cells have few queries and tokens,
so that a call for each would cost more than its arithmetic. `Cells` joins cells of similar sizes
in groups, which are padded to their largest cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

FAR_M = 80.0
CELL_M = 150.0  # side of a cell
# Pairs of a query and a token. A cell with more is its own group: padding would cost more than a
# call.
_MAX_PADDED_PAIRS = 16_384
_MIN_ROWS, _MIN_TOKENS = 8, 64  # smaller cells are joined


class CellGroup(NamedTuple):
    """C cells, padded to l queries and s tokens."""

    rows: Tensor  # int64 [C, l], indices of the queries; the last one is repeated as padding
    tokens: Tensor  # int64 [C, s], indices of the near tokens, padded in the same way
    is_token: Tensor | None  # bool [C, s], False = padding; None if there is no padding
    num_rows: tuple[int, ...]  # C numbers of queries without padding


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of L queries that have a near token.

    Attributes:
        groups: cells of similar sizes.
        slot: int64 [L], the place of each query in the rows of all groups, one group after
            another; the place after the last one if no token is near.
        has_near: bool [L], whether a token is near.
    """

    groups: tuple[CellGroup, ...]
    slot: Tensor
    has_near: Tensor

    @classmethod
    def of(cls, position: Tensor, token_position: Tensor, exists: Tensor | None = None) -> Cells:
        """The cells of queries.

        Args:
            position: [L, 2] of the queries, metres.
            token_position: [S, 2].
            exists: bool [S], False = the token is left out.
        """
        device = position.device
        count = len(position)
        cell = (position / CELL_M).floor().long()
        number, order = (cell[:, 0] * (1 << 32) + cell[:, 1]).sort()  # one number for each cell
        num_rows = number.unique_consecutive(return_counts=True)[1]
        first_row = num_rows.cumsum(0) - num_rows
        is_near = _is_near(cell[order[first_row]], token_position)  # [C, S]
        if exists is not None:
            is_near &= exists
        num_tokens = is_near.sum(1)
        token = is_near.nonzero()[:, 1]
        first_token = num_tokens.cumsum(0) - num_tokens

        groups = []
        rows_of, tokens_of = num_rows.tolist(), num_tokens.tolist()
        begin = [0] * len(rows_of)  # of each cell in the rows of all groups
        total = 0
        for members in _similar(rows_of, tokens_of):
            index = torch.tensor(members, device=device)
            sizes = tuple([rows_of[member] for member in members])
            width = max(tokens_of[member] for member in members)
            rows, _ = _padded(order, first_row[index], num_rows[index], max(sizes))
            tokens, is_token = _padded(token, first_token[index], num_tokens[index], width)
            has_padding = len(members) > 1
            groups.append(CellGroup(rows, tokens, is_token if has_padding else None, sizes))
            for member in members:
                begin[member] = total
                total += rows.shape[1]

        def of_rows(values: Tensor) -> Tensor:
            """Values [C] of the cells for each sorted query, [L]."""
            return values.repeat_interleave(num_rows, output_size=count)

        rank = torch.arange(count, device=device) - of_rows(first_row)
        has_near = of_rows(num_tokens > 0)
        slot = torch.where(has_near, of_rows(torch.tensor(begin, device=device)) + rank, total)
        back = torch.empty_like(order)
        back[order] = torch.arange(count, device=device)
        return cls(tuple(groups), slot[back], has_near[back])


def _is_near(cell: Tensor, position: Tensor) -> Tensor:
    """Whether tokens [S, 2] are within `FAR_M` of cells, int64 [C, 2] columns and rows: [C, S]."""
    squared = []
    for axis in range(2):
        # Many cells share a column or a row.
        index, of_cell = cell[:, axis].unique(return_inverse=True)
        low = CELL_M * index.to(position.dtype)[:, None]
        value = position[:, axis]
        nearest = torch.minimum(torch.maximum(value, low), low + CELL_M)
        squared.append((value - nearest).square().index_select(0, of_cell))
    return squared[0].add_(squared[1]) <= FAR_M**2


def _similar(num_rows: list[int], num_tokens: list[int]) -> list[list[int]]:
    """Indices of cells by group; cells without tokens are left out."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for cell, (rows, tokens) in enumerate(zip(num_rows, num_tokens, strict=True)):
        if tokens == 0:
            continue
        key: tuple[int, ...] = (cell,)
        if rows * tokens <= _MAX_PADDED_PAIRS:
            # Numbers within a group differ by less than the factor 2.
            key = (max(rows, _MIN_ROWS).bit_length(), max(tokens, _MIN_TOKENS).bit_length())
        groups.setdefault(key, []).append(cell)
    return list(groups.values())


def _padded(items: Tensor, first: Tensor, number: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Ranges of `items` as rows [C, width], and bool [C, width], False = padding.

    Ranges begin at `first` [C] and have `number` [C] items, at most `width` of them; the last item
    is repeated as padding.
    """
    column = torch.arange(width, device=items.device)
    is_item = column < number[:, None]
    offset = torch.minimum(column, number[:, None] - 1)
    return items[first[:, None] + offset], is_item
