"""SE(2)-invariant attention between tokens with poses, on the fused kernel.

Every token has a pose in the plane. The result for a token depends on the content of all tokens and on their poses relative to
its own pose, never on the frame in which the poses are given. A score between tokens i and j is

    c_i . c_j + sum_m q_m^T R(m a) k_m - gamma / 2 sum_p |q_p - R(a) k_p - s t|^2

with the content c, vectors q_m and k_m for the multiples m = 1, 2 of the relative heading a, and points q_p and k_p, all
linear in the tokens and in the frame of their token; t is the relative position and s a scale. The products of contents and
vectors are also divided by the square root of the length of a query. A head attends to tokens that are near the points of the
query: gamma, one learned number per head, sets how near. Moved to the common frame of all poses, the score is one dot product
(the square of the query's points is the same for a whole row of scores and is left out), so one call of `attend` computes it,
with memory linear in the number of tokens. The values contain points, too: their means are returned in the frame of the query,
with their lengths.

If a scene has more than `MOST_TOKENS` tokens, without padding, they attend to the tokens within `FAR_M` of their cell of a grid.
So time is linear at constant density, too.

Geometry is computed in float32, also under autocast: squares of coordinates do not fit half precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.core.attention import attend
from trajformer.core.blocks import BlockConfig, FeedForward, Residual
from trajformer.errors import ConfigError

MULTIPLES = 2  # of the relative heading
MOST_TOKENS = 512  # with more, a token attends only to the tokens within FAR_M of its cell
FAR_M = 80.0
_CELL_M = 150.0  # side of a cell
_EPSILON = 1e-6  # keeps the gradient of a length of zero finite
_KERNEL_WIDTH = 8  # the fused kernel of a CPU needs head widths that are multiples of it, equal for queries and values


@dataclass(frozen=True)
class PoseAttentionConfig(Config, positive=("content", "vectors", "points", "values", "scale_m")):
    """Sizes of a head.

    Attributes:
        content: numbers of the content product.
        vectors: vectors for each multiple of the relative heading.
        points: points of queries, keys and values.
        values: numbers of the content that is returned.
        scale_m: unit of length; positions are divided by it.
        reach_m: distance in metres between the points of query and key at which the score falls by 1/2 before training, of the
            first and the last head; heads between them are in geometric progression.
    """

    content: int = 15
    vectors: int = 2
    points: int = 4
    values: int = 24
    scale_m: float = 10.0
    reach_m: tuple[float, float] = (3.0, 50.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.reach_m[0] <= self.reach_m[1]:
            raise ConfigError(
                "reach_m", f"{self.reach_m}, expected two positive distances in ascending order"
            )

    @property
    def side(self) -> int:
        """Numbers of a query or key of one head."""
        return self.content + 2 * (MULTIPLES * self.vectors + self.points)

    @property
    def padded(self) -> int:
        """Numbers of a query, key or value of one head as the kernel needs them."""
        longest = max(self.side + 1, self.values + 2 * self.points)
        return -(-longest // _KERNEL_WIDTH) * _KERNEL_WIDTH


def _precise(x: Tensor) -> Tensor:
    """x in float32, or float64 if it is."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class Frames:
    """Poses of tokens in the form that attention needs.

    Positions should be near the origin (subtract a centre of the scene first): single precision resolves .1 mm up to 1 km.

    Args:
        position: float32 [..., N, 2], metres.
        direction: float32 [..., N, 2], cosine and sine of the heading.
    """

    def __init__(self, position: Tensor, direction: Tensor) -> None:
        self.position, self.direction = position, direction
        self._every: dict[
            tuple[PoseAttentionConfig, int], Tensor
        ] = {}  # [..., N, heads, 6, columns]
        self._spread: dict[tuple[PoseAttentionConfig, int, int], tuple[Tensor, ...]] = {}

    @classmethod
    def of(cls, pose: Tensor) -> Frames:
        """Frames of poses [..., N, 3]: x, y in metres, heading in radians."""
        pose = _precise(pose)
        return cls(pose[..., :2], torch.stack([pose[..., 2].cos(), pose[..., 2].sin()], -1))

    def map(self, change: Callable[[Tensor], Tensor]) -> Frames:
        """Frames with all tensors [..., N, *] changed in the same way, for example selected along N."""
        changed = Frames(change(self.position), change(self.direction))
        changed._every = {sizes: change(every) for sizes, every in self._every.items()}
        return changed

    def spread(self, config: PoseAttentionConfig, heads: int, count: int) -> tuple[Tensor, ...]:
        """Six tensors [..., N, heads, count]: cosine, sine, x and y of the token, and x and y of the outer origin in its frame.

        The columns are the vectors for each multiple of the heading, then the points; `count` takes the last ones.
        Lengths are divided by `scale_m`, and zero for vectors. Computed once, since many layers use the same frames. All heads
        have equal values; without an axis to broadcast, products take half the time.
        """
        if (config, heads) not in self._every:
            (cos, sin), (x, y) = (
                part.split(1, -1) for part in (self.direction, self.position / config.scale_m)
            )
            turns = cos, cos * cos - sin * sin, cos, sin, 2 * sin * cos, sin
            places, zero = (x, y, -x * cos - y * sin, x * sin - y * cos), torch.zeros_like(x)
            parts = [*turns, *(part for place in places for part in (zero, place))]
            vectors, points = config.vectors, config.points
            counts = 2 * (vectors, vectors, points) + len(places) * (MULTIPLES * vectors, points)
            columns = torch.cat(
                [part.expand(*part.shape[:-1], n) for part, n in zip(parts, counts, strict=True)],
                -1,
            )
            every = columns.unflatten(-1, (6, -1)).unsqueeze(-3)
            self._every[config, heads] = every.expand(*x.shape[:-1], heads, -1, -1).contiguous()
        if (config, heads, count) not in self._spread:
            self._spread[config, heads, count] = self._every[config, heads][..., -count:].unbind(-2)
        return self._spread[config, heads, count]


class Memory:
    """Keys and values of tokens in the outer frame, which several queries can share.

    Args:
        key: float32 [..., heads, S, d].
        value: float32 [..., heads, S, d].
        position: float32 [..., S, 2], metres.
    """

    def __init__(self, key: Tensor, value: Tensor, position: Tensor) -> None:
        self.key, self.value, self.position = key, value, position
        self._near: dict[tuple[int, ...], tuple[Tensor, Tensor, Tensor]] = {}

    @classmethod
    def join(cls, *parts: Memory) -> Memory:
        """The tokens of all parts in a row."""
        return cls(
            *(
                torch.cat([getattr(part, name) for part in parts], -2)
                for name in ("key", "value", "position")
            )
        )

    def near(self, scene: int, cell: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Indices [n], keys and values [1, heads, n, d] of the tokens within `FAR_M` of a cell of a grid of `_CELL_M`.

        They are selected once, since several layers use the same memory.
        """
        if (scene, *cell) not in self._near:
            corner = _CELL_M * torch.tensor(
                cell, dtype=self.position.dtype, device=self.position.device
            )
            position = self.position[scene]
            gap = position - torch.minimum(torch.maximum(position, corner), corner + _CELL_M)
            index = (gap.square().sum(-1) <= FAR_M**2).nonzero()[:, 0]
            key, value = (
                x[scene : scene + 1].index_select(-2, index) for x in (self.key, self.value)
            )
            self._near[scene, *cell] = index, key, value
        return self._near[scene, *cell]


class PoseKeys(nn.Module):
    """Keys and values of tokens with poses, for any number of `PoseAttention` modules of the same sizes.

    Args:
        width: D.
        heads: number of heads.
        config: sizes of a head.
    """

    def __init__(
        self, width: int, heads: int, config: PoseAttentionConfig = PoseAttentionConfig()
    ) -> None:
        super().__init__()
        self.heads, self.config = heads, config
        self.norm = nn.LayerNorm(width)
        self.key = nn.Linear(width, heads * config.side)
        self.value = nn.Linear(width, heads * (config.values + 2 * config.points))
        factors = [0.0] * MULTIPLES * config.vectors + [-0.5] * config.points
        self.register_buffer("of_points", torch.tensor(factors), persistent=False)

    of_points: Tensor  # [vectors and points], factors of their squares in a score

    def forward(self, tokens: Tensor, frames: Frames) -> Memory:
        """The memory of tokens [..., S, D]."""
        c, tokens = self.config, self.norm(tokens)
        content, x, y = _place(self.key(tokens), frames, c, self.heads, c.content, c.vectors)
        # A sum, not a matrix product, which may be computed in TF32 or bfloat16.
        square = (torch.addcmul(x * x, y, y) * self.of_points).sum(-1, keepdim=True)
        key = torch.cat([content, x, y, square], -1)
        value = torch.cat(_place(self.value(tokens), frames, c, self.heads, c.values, 0), -1)
        return Memory(_heads_first(key, c), _heads_first(value, c), frames.position)


class PoseAttention(nn.Module):
    """Multi-head attention of tokens with poses to a memory; see the text of the module. Arguments as for `PoseKeys`."""

    def __init__(
        self, width: int, heads: int, config: PoseAttentionConfig = PoseAttentionConfig()
    ) -> None:
        super().__init__()
        c = self.config = config
        self.heads = heads
        self.query = nn.Linear(width, heads * c.side)
        self.out = nn.Linear(heads * (c.values + 3 * c.points), width)
        nn.init.zeros_(self.out.bias)
        axis = [False] * MULTIPLES * c.vectors + [True] * c.points
        self.register_buffer(
            "is_point", torch.tensor([False] * c.content + axis + axis + [True]), persistent=False
        )
        first, last = (math.log10(metres / c.scale_m) for metres in c.reach_m)
        reach = torch.logspace(first, last, heads)
        gamma = 1 / (c.points * reach.square())  # softplus(sharpness)
        self.sharpness = nn.Parameter(gamma + (-torch.expm1(-gamma)).log())

    is_point: Tensor  # bool [side + 1], numbers of a query that gamma multiplies

    def forward(
        self, tokens: Tensor, frames: Frames, memory: Memory, mask: Tensor | None = None
    ) -> Tensor:
        """Attend from tokens [..., L, D] to a memory of S tokens.

        Args:
            tokens: the queries.
            frames: their poses.
            memory: of a `PoseKeys`; its poses are in the same outer frame.
            mask: bool, broadcastable to [..., L, S]; True = may attend.

        Returns:
            [..., L, D]; for a query that may attend to nothing, the output layer of zeros.
        """
        c = self.config
        content, x, y = _place(self.query(tokens), frames, c, self.heads, c.content, c.vectors)
        unit = c.padded**0.5  # `attend` divides scores by it
        gamma = unit * F.softplus(_precise(self.sharpness))[:, None]  # [heads, 1]
        gain = torch.where(self.is_point, gamma, unit * c.side**-0.5)
        query = torch.cat([content, x, y, torch.ones_like(x[..., :1])], -1) * gain
        with torch.autocast(query.device.type, enabled=False):
            query = _heads_first(query, c)
            alive: Tensor | None
            if memory.key.shape[-2] > MOST_TOKENS and query.ndim == 4:
                mean, alive = _attend_near(query, frames.position, memory, mask)
            else:
                mean = attend(
                    query, memory.key, memory.value, None if mask is None else mask.unsqueeze(-3)
                )
                alive = None if mask is None else mask.any(-1)
            mean = mean.transpose(-3, -2)
        seen, x, y, _ = mean.split_with_sizes(
            [c.values, c.points, c.points, c.padded - c.values - 2 * c.points], -1
        )
        return self.out(torch.cat([seen, *_own_points(x, y, frames, c, alive)], -1).flatten(-2))


def _attend_near(
    query: Tensor, position: Tensor, memory: Memory, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention in cells: the time grows with the area of a scene, not with its square.

    Args:
        query: [B, heads, L, d].
        position: [B, L, 2] of the queries.
        memory: of S tokens.
        mask: as for `attend`, without the axis of heads.

    Returns:
        [B, heads, L, d], and bool [B, L]: a query had a token to attend to.
    """
    scenes, tokens = query.shape[0], memory.key.shape[-2]
    mean, alive = (
        torch.zeros_like(query),
        torch.zeros(position.shape[:-1], dtype=torch.bool, device=query.device),
    )
    for b in range(scenes):
        allowed = None if mask is None else mask.expand(scenes, -1, tokens)[b]
        if (
            allowed is not None and allowed.any(0).sum() <= MOST_TOKENS
        ):  # few tokens and padding: as if the scene were alone
            mean[b] = attend(
                query[b : b + 1],
                memory.key[b : b + 1],
                memory.value[b : b + 1],
                allowed[None, None],
            )[0]
            alive[b] = allowed.any(-1)
            continue
        place = (position[b] / _CELL_M).floor().long()
        number, order = (place[:, 0] * (1 << 32) + place[:, 1]).sort()  # one number for each cell
        counts = number.unique_consecutive(return_counts=True)[1]
        cells = place[order[counts.cumsum(0) - counts]].tolist()
        for cell, rows in zip(cells, order.split(counts.tolist()), strict=True):
            index, key, value = memory.near(b, cell)
            if len(index):
                pairs = (
                    None
                    if allowed is None
                    else allowed[rows if len(allowed) > 1 else slice(None)].index_select(1, index)
                )
                if pairs is not None and pairs.all():
                    pairs = None
                mean[b, :, rows] = attend(
                    query[b : b + 1].index_select(-2, rows), key, value, pairs
                )[0]
                alive[b, rows] = True if pairs is None else pairs.any(-1)
    return mean, alive


def _place(
    raw: Tensor, frames: Frames, config: PoseAttentionConfig, heads: int, scalars: int, vectors: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Projections [..., N, heads * (scalars + 2 n)] as scalars, x and y [..., N, heads, n] of vectors, then points, all of
    them turned, and points moved, into the outer frame."""
    n = MULTIPLES * vectors + config.points
    cos, sin, left, top = frames.spread(config, heads, n)[:4]
    rest, x, y = _precise(raw).unflatten(-1, (heads, -1)).split_with_sizes([scalars, n, n], -1)
    turned = (
        torch.addcmul(torch.addcmul(left, x, cos), y, sin, value=-1),
        torch.addcmul(torch.addcmul(top, x, sin), y, cos),
    )
    return rest, *turned


def _own_points(
    x: Tensor, y: Tensor, frames: Frames, config: PoseAttentionConfig, alive: Tensor | None
) -> tuple[Tensor, ...]:
    """Mean points [..., L, heads, points] in the frame of the query: x, y and length; zero where bool `alive` is False."""
    cos, sin, _, _, ahead, aside = frames.spread(config, x.shape[-2], config.points)
    x, y = (
        torch.addcmul(torch.addcmul(ahead, x, cos), y, sin),
        torch.addcmul(torch.addcmul(aside, y, cos), x, sin, value=-1),
    )
    if alive is not None:
        x, y = (value * alive[..., None, None] for value in (x, y))
    return x, y, (torch.addcmul(x * x, y, y) + _EPSILON).sqrt() - _EPSILON**0.5


def _heads_first(x: Tensor, config: PoseAttentionConfig) -> Tensor:
    """[..., N, heads, d] to [..., heads, N, padded]."""
    short = config.padded - x.shape[-1]
    return (F.pad(x, (0, short)) if short else x).transpose(-3, -2)


class PoseBlock(nn.Module):
    """Pre-norm block: pose attention to a memory, attention among the modes of a token if `modes`, then feed-forward.

    Args:
        config: width, heads, feed-forward and dropout.
        attention: sizes of a head.
        modes: queries are modes of the same target, which attend to each other.
    """

    def __init__(
        self, config: BlockConfig, attention: PoseAttentionConfig, *, modes: bool = False
    ) -> None:
        super().__init__()
        self.cross = Residual(config, PoseAttention(config.width, config.heads, attention))
        self.among = Residual(config, config.attention()) if modes else None
        self.feedforward = Residual(config, FeedForward(config))

    def forward(
        self, x: Tensor, frames: Frames, memory: Memory, mask: Tensor | None = None
    ) -> Tensor:
        """[..., L, D] to the same shape; with `modes` [..., N, K, D], frames [..., N * K] and a mask for all K modes."""
        query = self.cross.pre(x)
        flat = query.flatten(-3, -2) if self.among is not None else query
        x = self.cross.post(x, self.cross.sublayer(flat, frames, memory, mask).view(x.shape))
        if self.among is not None:
            query = self.among.pre(x)
            x = self.among.post(x, self.among.sublayer(query, query))
        return self.feedforward(x)
