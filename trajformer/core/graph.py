"""Attention over the edges of a sparse graph; memory and time are linear in the number of edges."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.attention import edge_softmax


class Edges(NamedTuple):
    """Pairs of query and key that attend, in any order."""

    query: Tensor  # int64 [E], from 0 to Q; an edge with query Q is padding and is ignored
    key: Tensor  # int64 [E], from 0 to S - 1

    @staticmethod
    def from_neighbors(key: Tensor, real: Tensor, keys: int) -> Edges:
        """Edges from padded lists of neighbors.

        The number of edges is fixed, so that a GPU is not synchronized.

        Args:
            key: int64 [N, Q, n], from 0 to `keys` - 1, for N graphs; queries and keys of all graphs
                are concatenated.
            real: bool [N, Q, n], False = padding.
            keys: number of keys of each graph.
        """
        first_key = keys * torch.arange(len(key), device=key.device)[:, None, None]
        num_queries = real.shape[:2].numel()
        query = torch.arange(num_queries, device=key.device).view(*real.shape[:2], 1)
        query = torch.where(real, query, num_queries)
        return Edges(query.flatten(), (key + first_key).flatten())

    def concat(self, other: Edges, keys: int) -> Edges:
        """These edges and other edges of the same queries.

        The keys of the other edges come after the first `keys` keys.
        """
        query = torch.cat([self.query, other.query])
        key = torch.cat([self.key, other.key + keys])
        return Edges(query, key)


class GraphAttention(nn.Module):
    """Multi-head graph attention (Veličković et al. 2018, eqs. 1 to 5).

    The output of query i is the sum over its edges of alpha_ij W h_j, with the heads concatenated.
    alpha_ij is the softmax over the edges of i of LeakyReLU(a^T [W h_i || W h_j]); W and a are
    separate for each head. There are no self-loops and no output activation.

    Args:
        width: D of queries, keys and output.
        heads: number of heads.
        slope: negative slope of the LeakyReLU.

    Raises:
        ValueError: heads does not divide width.
    """

    def __init__(self, width: int, heads: int, *, slope: float = 0.2) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"heads {heads} does not divide width {width}")
        self.heads = heads
        self.slope = slope
        self.project = nn.Linear(width, width, bias=False)
        # The halves of a.
        self.query = nn.Parameter(torch.empty(heads, width // heads))
        self.key = nn.Parameter(torch.empty(heads, width // heads))
        for weight in self.parameters():
            nn.init.xavier_uniform_(weight)

    def forward(
        self, query: Tensor, key: Tensor, edges: Edges, position: Tensor | None = None
    ) -> Tensor:
        """Attend from `query` [Q, D] to `key` [S, D] along edges.

        `position` [E, D] is added to the key of each edge before W: the key's position relative to
        the query. Returns [Q, D], zeros for a query without an edge.
        """
        from torch_geometric.utils import scatter  # slow to import

        # a^T W h is a linear map of h, so scores are computed per token and not per edge. A last
        # row of queries takes the padding.
        num_rows = len(query) + 1
        query_map = self._score_map(self.query)
        key_map = self._score_map(self.key)
        query_score = F.pad(F.linear(query, query_map), (0, 0, 0, 1))  # [Q + 1, heads]
        key_score = F.linear(key, key_map)
        score = query_score.index_select(0, edges.query) + key_score.index_select(0, edges.key)
        message = self.project(key).index_select(0, edges.key)  # [E, D]
        if position is not None:
            score = score + F.linear(position, key_map)
            message = message + self.project(position)
        weight = edge_softmax(F.leaky_relu(score, self.slope), edges.query, num_rows)
        message = weight[..., None] * message.unflatten(-1, (self.heads, -1))
        return scatter(message, edges.query, dim_size=num_rows)[:-1].flatten(1)

    def _score_map(self, half: Tensor) -> Tensor:
        """a^T W [heads, D] for one half of a, [heads, D / heads]."""
        weight = self.project.weight.unflatten(0, half.shape)
        return (half[..., None] * weight).sum(1)
