"""Groups of tokens whose pairs are scored by a term of their own (agent-aware attention, Yuan et al. 2021, section 3.1)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Groups(NamedTuple):
    """Which tokens belong together: those of a grid [T, G], row after row, token i to group i mod G (agents over time).

    Attributes:
        queries, keys: G of the queries and of the keys, queries <= keys; group g of the one is group g of the other.
        apart: how many of the last queries and of the last keys belong to no group.
    """

    queries: int
    keys: int
    apart: tuple[int, int] = (0, 0)

    @property
    def single(self) -> bool:
        """All tokens are of one group."""
        return self.keys == 1 and not any(self.apart)

    def same(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """Bool [L, S] of so many queries and keys: are both of one group?"""
        rows = torch.arange(queries - self.apart[0], device=device) % self.queries
        columns = torch.arange(keys - self.apart[1], device=device) % self.keys
        same = rows[:, None] == columns
        return F.pad(same, (0, self.apart[1], 0, self.apart[0]), value=False) if any(self.apart) else same

    def split(self, x: Tensor, *, keys: bool) -> Tensor:
        """Queries [..., L, d] or keys [..., S, d] by group [..., G, T, d]; G is that of the queries."""
        count = self.keys if keys else self.queries
        x = x[..., : x.shape[-2] - self.apart[keys], :].unflatten(-2, (-1, count))
        return x.transpose(-3, -2)[..., : self.queries, :, :]

    def split_mask(self, mask: Tensor) -> Tensor:
        """Bool [..., L, S], expanded, to pairs of one group [..., G, Tq, Tk]."""
        mask = mask[..., : mask.shape[-2] - self.apart[0], : mask.shape[-1] - self.apart[1]]
        grid = mask.unflatten(-1, (-1, self.keys)).unflatten(-3, (-1, self.queries))  # [..., Tq, G, Tk, G of the keys]
        return grid[..., : self.queries].diagonal(dim1=-3, dim2=-1).movedim(-1, -3)

    def join(self, x: Tensor) -> Tensor:
        """[..., G, T, d] back to queries [..., L, d], zero for those of no group."""
        return F.pad(x.transpose(-3, -2).flatten(-3, -2), (0, 0, 0, self.apart[0]))


class Own(NamedTuple):
    """The second score term: pairs of one group are scored by these queries and keys.

    Attributes:
        query: [..., L, d_k].
        key: [..., S, d_k].
        groups: which pairs.
    """

    query: Tensor
    key: Tensor
    groups: Groups


class OneTerm(NamedTuple):
    """Attention with two terms as one with a single term, see `one_term`; the output is out[..., :-1] + out[..., -1:] * part.

    Attributes:
        query: [..., L, d_k + 1].
        key: [..., S + 1, d_k + 1].
        value: [..., S + 1, d_v + 1].
        mask: bool, broadcastable to [..., L, S + 1].
        part: [..., L, d_v].
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor
    part: Tensor


def one_term(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, own: Own) -> OneTerm:
    """Attention with a second term, rewritten for a kernel that knows one.

    Pairs of one group are few, T x T for each: they are attended to by themselves. One more key stands for them among the
    keys of other groups: its score is the logarithm of their summed exponentials, and an additional channel of the values
    tells how much weight it got. So the kernel never writes L x S scores down. Arguments as for `attend`.
    """
    groups, shape = own.groups, (query.shape[-2], key.shape[-2])
    mask = torch.ones(shape, dtype=torch.bool, device=query.device) if mask is None else mask.expand(*mask.shape[:-2], *shape)
    inside = groups.split_mask(mask)
    score = (groups.split(own.query, keys=False) * scale) @ groups.split(own.key, keys=True).mT
    score = score.masked_fill(~inside, torch.finfo(score.dtype).min)
    total = score.logsumexp(-1, keepdim=True)
    part = (score - total).exp() @ groups.split(value, keys=True)
    some = inside.any(-1, keepdim=True)
    stands = groups.join(total.masked_fill(~some, 0.0)).to(query.dtype) / scale
    key, value = F.pad(key, (0, 1, 0, 1)), F.pad(value, (0, 1, 0, 1))
    key[..., -1, -1] = value[..., -1, -1] = 1.0
    others = torch.cat([mask & ~groups.same(*shape, query.device), groups.join(some)], -1)
    return OneTerm(torch.cat([query, stands], -1), key, value, others, groups.join(part).to(query.dtype))
