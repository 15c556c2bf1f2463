"""Attention to a memory of tokens with positions, to near tokens only if there are many.

If a scene has more than `MAX_TOKENS` tokens, without padding, a query attends to the tokens within
`FAR_M` of its cell of a grid (`cells.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trajformer.core.attention import attend, attention_weights
from trajformer.core.cells import CELL_M, FAR_M, CellGroup, Cells

MAX_TOKENS = 512  # with more, a token attends only to the tokens within FAR_M of its cell


class Memory:
    """Keys and values of tokens in the common frame, which several queries can share.

    Args:
        key: float32 [..., heads, S, d].
        value: float32 [..., heads, S, d].
        position: float32 [..., S, 2], metres.
        like: a memory of tokens at the same positions: cells are computed once for both.
    """

    def __init__(
        self, key: Tensor, value: Tensor, position: Tensor, like: Memory | None = None
    ) -> None:
        self.key = key
        self.value = value
        self.position = position
        self._cells: list[_CellsOf] = [] if like is None else like._cells
        # Selected once, since several layers use the same memory.
        self._selected: dict[int, tuple[CellGroup, Tensor, Tensor]] = {}

    @classmethod
    def join(cls, *parts: Memory, like: Memory | None = None) -> Memory:
        """The tokens of all parts in a row; `like` is a join of parts at the same positions."""
        # Tokens come first in memory, so that selecting one copies one piece.
        key = torch.cat([part.key.transpose(-3, -2) for part in parts], -3).transpose(-3, -2)
        value = torch.cat([part.value.transpose(-3, -2) for part in parts], -3).transpose(-3, -2)
        if like is not None:
            return cls(key, value, like.position, like)
        return cls(key, value, torch.cat([part.position for part in parts], -2))

    def ordered(self, order: Tensor) -> Memory:
        """The tokens in another order, int64 [..., S]."""
        index = order[..., None, :, None].expand_as(self.key)
        position = self.position.gather(-2, order[..., None].expand_as(self.position))
        return Memory(self.key.gather(-2, index), self.value.gather(-2, index), position)

    def cells(self, scene: int, position: Tensor, mask: Tensor | None) -> Cells:
        """The cells of queries of a scene.

        Args:
            scene: index in the batch.
            position: [B, L, 2] of the queries.
            mask: bool [L or 1, S] of the scene, or None.
        """
        for known in self._cells:
            if known.scene == scene and known.position is position and _is_same(known.mask, mask):
                return known.cells
        exists = None if mask is None else mask.any(0)
        cells = Cells.of(position[scene].detach(), self.position[scene].detach(), exists)
        self._cells.append(_CellsOf(scene, position, mask, cells))
        return cells

    def select(self, scene: int, group: CellGroup) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens of C cells, [C, heads, s, d]."""
        known = self._selected.get(id(group.tokens))
        if known is None:
            key = _select(self.key[scene], group.tokens)
            value = _select(self.value[scene], group.tokens)
            # The group is kept too, so that no other one gets its id.
            known = (group, key, value)
            self._selected[id(group.tokens)] = known
        return known[1], known[2]


class _CellsOf(NamedTuple):
    """Cells, and the arguments of `Memory.cells` that they are of."""

    scene: int
    position: Tensor
    mask: Tensor | None
    cells: Cells


def _is_same(first: Tensor | None, second: Tensor | None) -> bool:
    """Whether two masks are equal; None allows everything."""
    if first is None or second is None:
        return first is second
    return torch.equal(first, second)


def _select(x: Tensor, index: Tensor) -> Tensor:
    """Tokens [C, n] of x [heads, N, d] as [C, heads, n, d]."""
    chosen = x.transpose(0, 1).index_select(0, index.flatten())
    return chosen.unflatten(0, index.shape).transpose(1, 2)


def attend_memory(
    query: Tensor, position: Tensor, memory: Memory, mask: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Attention to all tokens, or to near tokens if there are many.

    Args:
        query: [..., heads, L, d].
        position: [..., L, 2] of the queries.
        memory: of S tokens.
        mask: bool, broadcastable to [..., L, S].

    Returns:
        [..., heads, L, d], and bool [..., L], True = the query had a token to attend to; None if
        all of them had one.
    """
    if torch.compiler.is_exporting() and query.ndim == 4:
        mask = _near_mask(position, memory, mask)
    elif _is_in_cells(query, memory):
        return _attend_near(query, position, memory, mask)
    if mask is None:
        return attend(query, memory.key, memory.value), None
    mean = attend(query, memory.key, memory.value, mask.unsqueeze(-3))
    return mean, mask.any(-1)


def memory_weights(query: Tensor, position: Tensor, memory: Memory, mask: Tensor | None) -> Tensor:
    """The weights [..., heads, L, S] of `attend_memory`; in cells, far tokens have zero."""
    if not _is_in_cells(query, memory):
        allowed = None if mask is None else mask.unsqueeze(-3)
        return attention_weights(query, memory.key, allowed)
    scenes = range(len(query))
    return torch.stack([_scene_weights(query, position, memory, mask, scene) for scene in scenes])


def _is_in_cells(query: Tensor, memory: Memory) -> bool:
    """True if queries attend to near tokens only, as far as padding does not make the number."""
    return memory.key.shape[-2] > MAX_TOKENS and query.ndim == 4


def _near_mask(position: Tensor, memory: Memory, mask: Tensor | None) -> Tensor:
    """The pairs of tokens that `_attend_near` relates, bool [B, L, S].

    Sizes of cells depend on the values of positions, so an exported graph cannot have cells. It
    computes all pairs and leaves out the distant ones.

    Args:
        position: [B, L, 2] of the queries.
        memory: of S tokens.
        mask: bool, broadcastable to [B, L, S].
    """
    key_position = memory.position[:, None]  # [B, 1, S, 2]
    if mask is None:
        mask = torch.ones_like(key_position[..., 0], dtype=torch.bool)
    low = CELL_M * (position[:, :, None] / CELL_M).floor()  # [B, L, 1, 2]
    nearest = torch.minimum(torch.maximum(key_position, low), low + CELL_M)
    squared_distance = (key_position - nearest).square().sum(-1)
    is_small = mask.any(1, keepdim=True).sum(-1, keepdim=True) <= MAX_TOKENS  # [B, 1, 1]
    return mask & ((squared_distance <= FAR_M**2) | is_small)


def _attend_near(
    query: Tensor, position: Tensor, memory: Memory, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`_attend` in cells: the time grows with the area of a scene, not with its square."""
    means = []
    has_keys = []
    for scene in range(len(query)):
        allowed = _of_scene(mask, scene, query, memory)
        if _is_small(allowed):
            # Few tokens and padding: the same result as for the scene alone.
            one = slice(scene, scene + 1)
            means.append(attend(query[one], memory.key[one], memory.value[one], allowed)[0])
            assert allowed is not None
            has_keys.append(allowed.any(-1).expand(query.shape[-2]))
            continue
        cells = memory.cells(scene, position, allowed)
        found = [attend(*part) for part in _parts(query, memory, allowed, cells, scene)]
        means.append(_by_query(found, cells).transpose(0, 1))
        has_keys.append(cells.has_near)
        if allowed is not None and len(allowed) > 1:
            masks = [part.mask for part in _parts(query, memory, allowed, cells, scene)]
            found = [mask.any(-1)[..., None] for mask in masks if mask is not None]
            has_keys[-1] = _by_query(found, cells)[:, 0, 0]
    if len(means) == 1:
        return means[0][None], has_keys[0][None]
    return torch.stack(means), torch.stack(has_keys)


def _of_scene(mask: Tensor | None, scene: int, query: Tensor, memory: Memory) -> Tensor | None:
    """The mask of a scene, bool [L or 1, S], or None if all pairs are allowed."""
    if mask is None:
        return None
    return mask.expand(len(query), -1, memory.key.shape[-2])[scene]


def _is_small(allowed: Tensor | None) -> bool:
    """Whether a scene has few tokens and padding."""
    return allowed is not None and bool(allowed.any(0).sum() <= MAX_TOKENS)


class _Part(NamedTuple):
    """The arguments of `attend` for C cells with l queries and s tokens."""

    query: Tensor  # [C, heads, l, d]
    key: Tensor  # [C, heads, s, d]
    value: Tensor  # [C, heads, s, d]
    mask: Tensor | None  # bool [C, 1, l or 1, s], or None if all pairs are allowed


def _parts(
    query: Tensor, memory: Memory, allowed: Tensor | None, cells: Cells, scene: int
) -> Iterator[_Part]:
    """The queries of each group of cells of a scene, and the tokens to which they may attend."""
    for group in cells.groups:
        mask = group.is_token
        if mask is not None:
            mask = mask[:, None, None]
        if allowed is not None and len(allowed) > 1:
            pairs = allowed[group.rows[:, :, None], group.tokens[:, None]][:, None]
            mask = pairs if mask is None else pairs & mask
        yield _Part(_select(query[scene], group.rows), *memory.select(scene, group), mask)


def _by_query(found: list[Tensor], cells: Cells) -> Tensor:
    """Results [C, heads, l, d] of all groups, as [L, heads, d]: zero if no token is near."""
    rows = [result.transpose(1, 2).flatten(0, 1) for result in found]
    rows.append(rows[0].new_zeros(1, *rows[0].shape[1:]))
    return torch.cat(rows).index_select(0, cells.slot)


def _scene_weights(
    query: Tensor, position: Tensor, memory: Memory, mask: Tensor | None, scene: int
) -> Tensor:
    """The weights [heads, L, S] of a scene in cells; far tokens have zero."""
    allowed = _of_scene(mask, scene, query, memory)
    if _is_small(allowed):
        return attention_weights(query[scene], memory.key[scene], allowed)
    weights = query.new_zeros(*query.shape[1:-1], memory.key.shape[-2])
    cells = memory.cells(scene, position, allowed)
    for group, part in zip(cells.groups, _parts(query, memory, allowed, cells, scene), strict=True):
        near = attention_weights(part.query, part.key, part.mask)  # [C, heads, l, s]
        for cell, count in enumerate(group.num_rows):
            to_all = near.new_zeros(*weights.shape[:1], count, weights.shape[-1])
            # Padding repeats a token and has the weight zero.
            to_all.index_add_(-1, group.tokens[cell], near[cell, :, :count])
            weights[:, group.rows[cell, :count]] = to_all
    return weights
