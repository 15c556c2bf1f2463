"""Attention over the edges of a sparse graph: memory and time grow with the edges, not with the pairs of tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.attention import edge_softmax


class Edges(NamedTuple):
    """Which query attends to which key, in any order: what a mask is to attention.

    Attributes:
        query: int64 [E], from 0 to Q. Q itself is nobody: such an edge counts nowhere, so that lists may have gaps.
        key: int64 [E], from 0 to S - 1.
    """

    query: Tensor
    key: Tensor

    @staticmethod
    def from_neighbors(key: Tensor, real: Tensor, keys: int) -> Edges:
        """Every query's list of keys. Its length is fixed, so that no device must tell how many edges there are.

        Args:
            key: int64 [N, Q, n], from 0 to `keys` - 1; of N graphs, whose queries and whose keys then stand behind one another.
            real: bool [N, Q, n]; which entries of a list are edges.
            keys: of each graph.
        """
        graph = torch.arange(len(key), device=key.device)[:, None, None]
        query = torch.arange(real.shape[:2].numel(), device=key.device).view(*real.shape[:2], 1)
        return Edges(torch.where(real, query, query.numel()).flatten(), (key + graph * keys).flatten())

    def append(self, other: Edges, keys: int) -> Edges:
        """These edges and others of the same queries, whose keys stand behind the first `keys` ones."""
        return Edges(torch.cat([self.query, other.query]), torch.cat([self.key, other.key + keys]))


class GraphAttention(nn.Module):
    """Multi-head graph attention (Veličković et al. 2018, eqs. 1 to 5), without self-loops or an activation of its own.

    Query i gets the sum over its edges of alpha_ij W h_j, heads side by side; alpha_ij is the softmax over the edges of i of
    LeakyReLU(a^T [W h_i || W h_j]), with W and a of each head.

    Args:
        width: D, of queries, keys and output.
        heads: number of heads.
        slope: of the LeakyReLU below zero.

    Raises:
        ValueError: heads does not divide width.
    """

    def __init__(self, width: int, heads: int, *, slope: float = 0.2) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"heads {heads} does not divide width {width}")
        self.heads, self.slope = heads, slope
        self.project = nn.Linear(width, width, bias=False)
        self.query, self.key = (nn.Parameter(torch.empty(heads, width // heads)) for _ in range(2))  # the halves of a
        for weight in self.parameters():
            nn.init.xavier_uniform_(weight)

    def forward(self, query: Tensor, key: Tensor, edges: Edges, position: Tensor | None = None) -> Tensor:
        """Attend from `query` [Q, D] to `key` [S, D] along edges.

        Args:
            position: [E, D], added to the key of each edge before W: how its query sees it.

        Returns:
            [Q, D]; zeros for a query without an edge.
        """
        from torch_geometric.utils import scatter  # here alone: importing it takes seconds

        # a^T W h is a linear map of h: scores need no edge's W h.
        scored, scoring = ((a[..., None] * self.project.weight.unflatten(0, a.shape)).sum(1) for a in (self.query, self.key))
        score = F.pad(F.linear(query, scored), (0, 0, 0, 1)).index_select(0, edges.query)
        score = score + F.linear(key, scoring).index_select(0, edges.key)
        sent = self.project(key).index_select(0, edges.key)
        if position is not None:
            score, sent = score + F.linear(position, scoring), sent + self.project(position)
        weight = edge_softmax(F.leaky_relu(score, self.slope), edges.query, len(query) + 1)
        sent = weight[..., None] * sent.unflatten(-1, (self.heads, -1))
        return scatter(sent, edges.query, dim_size=len(query) + 1)[:-1].flatten(1)
