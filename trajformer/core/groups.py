"""Groups of tokens, such as the time steps of one agent, and the inputs of agent-aware attention (Yuan et al. 2021)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Groups(NamedTuple):
    """Groups in a flattened grid of tokens [T, G]: token i belongs to group i mod G.

    With agents over time a group holds all steps of one agent.

    Attributes:
        queries: G in the grid of queries, at most `keys`.
        keys: G in the grid of keys; equal indices denote the same group.
        ungrouped: numbers of last queries and last keys that belong to no group.
    """

    queries: int
    keys: int
    ungrouped: tuple[int, int] = (0, 0)

    @property
    def single(self) -> bool:
        """True if all tokens belong to one group."""
        return self.keys == 1 and not any(self.ungrouped)

    def split(self, x: Tensor, *, keys: bool) -> Tensor:
        """Queries [..., L, d] or keys [..., S, d] by group, [..., G, T, d]; G is the number of query groups."""
        count = self.keys if keys else self.queries
        x = x[..., : x.shape[-2] - self.ungrouped[keys], :].unflatten(-2, (-1, count))  # [..., T, G, d]
        return x.transpose(-3, -2)[..., : self.queries, :, :]

    def pairs(self, x: Tensor) -> Tensor:
        """A view [..., G, Tq, Tk] of the pairs within a group, from all pairs [..., L, S]."""
        x = x[..., : x.shape[-2] - self.ungrouped[0], : x.shape[-1] - self.ungrouped[1]]
        grid = x.unflatten(-1, (-1, self.keys)).unflatten(-3, (-1, self.queries))  # [..., Tq, G, Tk, G of the keys]
        return grid[..., : self.queries].diagonal(dim1=-3, dim2=-1).movedim(-1, -3)


class AgentAware(NamedTuple):
    """Queries and keys that score pairs of tokens within a group (agent-aware attention, section 3.1).

    Attributes:
        query: [..., L, d_k].
        key: [..., S, d_k].
        groups: groups of the queries and keys.
    """

    query: Tensor
    key: Tensor
    groups: Groups
