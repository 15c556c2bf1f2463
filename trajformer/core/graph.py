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
        """Edges from padded lists of neighbors; the number of edges is fixed, so that a GPU is not synchronized.

        `key` is int64 [N, Q, n], from 0 to `keys` - 1, for N graphs of `keys` keys each; queries and keys of all graphs are
        concatenated. `real` is bool [N, Q, n], False = padding.
        """
        graph = torch.arange(len(key), device=key.device)[:, None, None]
        query = torch.arange(real.shape[:2].numel(), device=key.device).view(*real.shape[:2], 1)
        return Edges(
            torch.where(real, query, query.numel()).flatten(), (key + graph * keys).flatten()
        )

    def concat(self, other: Edges, keys: int) -> Edges:
        """These edges and other edges of the same queries, with keys that come after the first `keys` keys."""
        return Edges(torch.cat([self.query, other.query]), torch.cat([self.key, other.key + keys]))


class GraphAttention(nn.Module):
    """Multi-head graph attention (Veličković et al. 2018, eqs. 1 to 5), without self-loops and output activation.

    The output of query i is the sum over its edges of alpha_ij W h_j, with the heads concatenated. alpha_ij is the softmax over
    the edges of i of LeakyReLU(a^T [W h_i || W h_j]); W and a are separate for each head. `width` is D of queries, keys and
    output, `slope` the negative slope of the LeakyReLU. Raises ValueError: heads does not divide width.
    """

    def __init__(self, width: int, heads: int, *, slope: float = 0.2) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"heads {heads} does not divide width {width}")
        self.heads, self.slope = heads, slope
        self.project = nn.Linear(width, width, bias=False)
        self.query, self.key = (
            nn.Parameter(torch.empty(heads, width // heads)) for _ in range(2)
        )  # the halves of a
        for weight in self.parameters():
            nn.init.xavier_uniform_(weight)

    def forward(
        self, query: Tensor, key: Tensor, edges: Edges, position: Tensor | None = None
    ) -> Tensor:
        """Attend from `query` [Q, D] to `key` [S, D] along edges: [Q, D], zeros for a query without an edge.

        `position` [E, D] is added to the key of each edge before W: the key's position relative to the query.
        """
        from torch_geometric.utils import scatter  # slow to import

        # a^T W h is a linear map of h, so scores are computed per token and not per edge.
        query_map, key_map = (
            (a[..., None] * self.project.weight.unflatten(0, a.shape)).sum(1)
            for a in (self.query, self.key)
        )
        score = F.pad(F.linear(query, query_map), (0, 0, 0, 1)).index_select(0, edges.query)
        score = score + F.linear(key, key_map).index_select(0, edges.key)
        message = self.project(key).index_select(0, edges.key)
        if position is not None:
            score, message = score + F.linear(position, key_map), message + self.project(position)
        weight = edge_softmax(F.leaky_relu(score, self.slope), edges.query, len(query) + 1)
        message = weight[..., None] * message.unflatten(-1, (self.heads, -1))
        return scatter(message, edges.query, dim_size=len(query) + 1)[:-1].flatten(1)
