"""Groups of tokens whose pairs are scored by a term of their own (agent-aware attention, Yuan et al. 2021, section 3.1)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Groups(NamedTuple):
    """Which tokens belong together: those of a grid [T, G], row after row, token i to group i mod G (agents over time).

    Attributes:
        queries, keys: G of the queries and of the keys, queries <= keys; group g of the one is group g of the other.
        ungrouped: how many of the last queries and of the last keys belong to no group.
    """

    queries: int
    keys: int
    ungrouped: tuple[int, int] = (0, 0)

    @property
    def single(self) -> bool:
        """All tokens are of one group."""
        return self.keys == 1 and not any(self.ungrouped)

    def split(self, x: Tensor, *, keys: bool) -> Tensor:
        """Queries [..., L, d] or keys [..., S, d] by group [..., G, T, d]; G is that of the queries."""
        count = self.keys if keys else self.queries
        x = x[..., : x.shape[-2] - self.ungrouped[keys], :].unflatten(-2, (-1, count))
        return x.transpose(-3, -2)[..., : self.queries, :, :]

    def pairs(self, x: Tensor) -> Tensor:
        """Pairs of one group [..., G, Tq, Tk], a view of all pairs [..., L, S]."""
        x = x[..., : x.shape[-2] - self.ungrouped[0], : x.shape[-1] - self.ungrouped[1]]
        grid = x.unflatten(-1, (-1, self.keys)).unflatten(-3, (-1, self.queries))  # [..., Tq, G, Tk, G of the keys]
        return grid[..., : self.queries].diagonal(dim1=-3, dim2=-1).movedim(-1, -3)


class AgentAware(NamedTuple):
    """The second score term: pairs of one group are scored by these queries and keys.

    Attributes:
        query: [..., L, d_k].
        key: [..., S, d_k].
        groups: which pairs.
    """

    query: Tensor
    key: Tensor
    groups: Groups
