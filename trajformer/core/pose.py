"""SE(2)-invariant attention between tokens with poses, on the fused kernel.

Every token has a pose in the plane. The result for a token depends on the content of all tokens and
on their poses relative to its own pose, never on the frame in which the poses are given. A score
between tokens i and j is

    c_i . c_j + sum_m q_m^T R(m a) k_m - gamma / 2 sum_p |q_p - R(a) k_p - s t|^2

with the content c, vectors q_m and k_m for the multiples m = 1, 2 of the relative heading a, and
points q_p and k_p, all linear in the tokens and in the frame of their token; t is the relative
position and s a scale. The products of contents and vectors are also divided by the square root of
the length of a query. A head attends to tokens that are near the points of the query: gamma, one
learned number per head, sets how near.

Moved to the common frame of all poses, the score is one dot product (the square of the query's
points is the same for a whole row of scores and is left out), so one call of `attend` computes it,
with memory linear in the number of tokens. The values contain points, too: their means are returned
in the frame of the query, with their lengths.

Large scenes attend to near tokens only (`memory.py`), so time is linear at constant density, too.

Geometry is computed in float32, also under autocast: squares of coordinates do not fit half
precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.core.blocks import BlockConfig, FeedForward, Residual
from trajformer.core.memory import Memory, attend_memory, memory_weights
from trajformer.core.multihead import RecordedLayer
from trajformer.errors import ConfigError

MULTIPLES = 2  # of the relative heading
_EPSILON = 1e-6  # keeps the gradient of a length of zero finite
# The fused kernel of a CPU needs head widths that are multiples of 8, equal for queries and values.
_KERNEL_WIDTH = 8


@dataclass(frozen=True)
class PoseAttentionConfig(Config, positive=("content", "vectors", "points", "values", "scale_m")):
    """Sizes of a head.

    Attributes:
        content: numbers of the content product.
        vectors: vectors for each multiple of the relative heading.
        points: points of queries, keys and values.
        values: numbers of the content that is returned.
        scale_m: unit of length; positions are divided by it.
        reach_m: distance in metres between the points of query and key at which the score falls by
            1/2 before training, of the first and the last head; heads between them are in geometric
            progression.
    """

    content: int = 15
    vectors: int = 2
    points: int = 4
    values: int = 24
    scale_m: float = 10.0
    reach_m: tuple[float, float] = (3.0, 50.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        first, last = self.reach_m
        if not 0 < first <= last:
            expected = "expected two positive distances in ascending order"
            raise ConfigError("reach_m", f"{self.reach_m}, {expected}")

    @property
    def side(self) -> int:
        """Numbers of a query or key of one head."""
        return self.content + 2 * (MULTIPLES * self.vectors + self.points)

    @property
    def padded(self) -> int:
        """Numbers of a query, key or value of one head as the kernel needs them."""
        longest = max(self.side + 1, self.values + 2 * self.points)
        return math.ceil(longest / _KERNEL_WIDTH) * _KERNEL_WIDTH


class Frames:
    """Poses of tokens in the form that attention needs.

    Positions should be near the origin (subtract the center of a scene first): single precision
    resolves .1 mm up to 1 km.

    Args:
        position: float32 [..., N, 2], metres.
        direction: float32 [..., N, 2], cosine and sine of the heading.
    """

    def __init__(self, position: Tensor, direction: Tensor) -> None:
        self.position = position
        self.direction = direction
        # Computed once, since many layers use the same frames.
        self._geometry: dict[tuple[PoseAttentionConfig, int], Tensor] = {}
        self._columns: dict[tuple[PoseAttentionConfig, int, int], tuple[Tensor, ...]] = {}

    @classmethod
    def of(cls, pose: Tensor) -> Frames:
        """Frames of poses [..., N, 3]: x, y in metres, heading in radians."""
        pose = _precise(pose)
        heading = pose[..., 2]
        return cls(pose[..., :2], torch.stack([heading.cos(), heading.sin()], -1))

    def map(self, change: Callable[[Tensor], Tensor]) -> Frames:
        """Frames with all tensors [..., N, *] changed in the same way, such as selected along N."""
        changed = Frames(change(self.position), change(self.direction))
        changed._geometry = {sizes: change(part) for sizes, part in self._geometry.items()}
        return changed

    def columns(self, config: PoseAttentionConfig, heads: int, count: int) -> tuple[Tensor, ...]:
        """The transforms between the frame of each token and the common frame, by column.

        The columns of a head are the vectors for each multiple of the heading, then the points;
        `count` takes the last ones.

        Returns:
            six tensors [..., N, heads, count]: cosine and sine of the rotation of a column; x and y
            of the token in the common frame; x and y of the common origin in the frame of the
            token. Lengths are divided by `scale_m`, and zero for vectors.
        """
        if (config, heads) not in self._geometry:
            self._geometry[config, heads] = self._compute_geometry(config, heads)
        if (config, heads, count) not in self._columns:
            last = self._geometry[config, heads][..., -count:]
            self._columns[config, heads, count] = last.unbind(-2)
        return self._columns[config, heads, count]

    def _compute_geometry(self, config: PoseAttentionConfig, heads: int) -> Tensor:
        """The result of `columns` for all columns, [..., N, heads, 6, columns].

        All heads have equal values, but products without an axis to broadcast take half the time.
        """
        cos, sin = self.direction.split(1, -1)  # [..., N, 1]
        x, y = (self.position / config.scale_m).split(1, -1)
        zero = torch.zeros_like(x)
        lead = x.shape[:-1]
        parts = []
        # The value for vectors of the heading, for vectors of twice the heading, and for points.
        for once, twice, point in (
            (cos, cos * cos - sin * sin, cos),
            (sin, 2 * sin * cos, sin),
            (zero, zero, x),
            (zero, zero, y),
            (zero, zero, -x * cos - y * sin),
            (zero, zero, x * sin - y * cos),
        ):
            parts.append(once.expand(*lead, config.vectors))
            parts.append(twice.expand(*lead, config.vectors))
            parts.append(point.expand(*lead, config.points))
        geometry = torch.cat(parts, -1).unflatten(-1, (6, -1)).unsqueeze(-3)
        return geometry.expand(*lead, heads, -1, -1).contiguous()


def _precise(x: Tensor) -> Tensor:
    """x in float32, or float64 if it is."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


class PoseKeys(nn.Module):
    """Keys and values of tokens with poses, for any number of `PoseAttention` modules.

    The modules have the same arguments.

    Args:
        width: D.
        heads: number of heads.
        config: sizes of a head.
    """

    def __init__(
        self, width: int, heads: int, config: PoseAttentionConfig = PoseAttentionConfig()
    ) -> None:
        super().__init__()
        self.heads = heads
        self.config = config
        self.norm = nn.LayerNorm(width)
        self.key = nn.Linear(width, heads * config.side)
        self.value = nn.Linear(width, heads * (config.values + 2 * config.points))

    def forward(self, tokens: Tensor, frames: Frames) -> Memory:
        """The memory of tokens [..., S, D]."""
        c = self.config
        tokens = self.norm(tokens)
        content, x, y = _to_common_frame(
            self.key(tokens), frames, c, self.heads, c.content, c.vectors
        )
        # A sum, not a matrix product, which may be computed in TF32 or bfloat16; in float64, since
        # it is large far from the origin, and its rounding changes scores between near tokens.
        point_x = x[..., -c.points :].double()
        point_y = y[..., -c.points :].double()
        squared = torch.addcmul(point_x * point_x, point_y, point_y).sum(-1, keepdim=True)
        key = _columns(content, x, y, (-0.5 * squared).to(x.dtype), c)
        value_parts = _to_common_frame(self.value(tokens), frames, c, self.heads, c.values, 0)
        value = torch.cat(value_parts, -1)
        return Memory(_heads_first(key, c), _heads_first(value, c), frames.position)


class PoseAttention(RecordedLayer):
    """Multi-head attention of tokens with poses to a memory; see the text of the module.

    Arguments as for `PoseKeys`.
    """

    def __init__(
        self, width: int, heads: int, config: PoseAttentionConfig = PoseAttentionConfig()
    ) -> None:
        super().__init__()
        c = config
        self.heads = heads
        self.config = config
        self.query = nn.Linear(width, heads * c.side)
        self.out = nn.Linear(heads * (c.values + 3 * c.points), width)
        nn.init.zeros_(self.out.bias)
        # The square and the points are the last columns (`_columns`).
        is_point = torch.arange(c.side + 1) >= c.side - 2 * c.points
        self.register_buffer("is_point", is_point, persistent=False)
        first, last = c.reach_m
        reach = torch.logspace(math.log10(first / c.scale_m), math.log10(last / c.scale_m), heads)
        gamma = 1 / (c.points * reach.square())
        inverse_softplus = gamma + (-torch.expm1(-gamma)).log()
        self.sharpness = nn.Parameter(inverse_softplus)  # gamma is softplus(sharpness)

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
        content, x, y = _to_common_frame(
            self.query(tokens), frames, c, self.heads, c.content, c.vectors
        )
        # `attend` divides scores by `unit`. Points have the factor gamma, other numbers that of
        # usual attention.
        unit = c.padded**0.5
        gamma = unit * F.softplus(_precise(self.sharpness))[:, None]  # [heads, 1]
        gain = torch.where(self.is_point, gamma, unit * c.side**-0.5)
        query = _columns(content, x, y, torch.ones_like(x[..., :1]), c) * gain
        query = _heads_first(query, c)
        with torch.autocast(query.device.type, enabled=False):
            mean, has_keys = attend_memory(query, frames.position, memory, mask)
            if self.recorded is not None:
                weights = memory_weights(query, frames.position, memory, mask)
                self.recorded(weights.detach())
        mean = mean.transpose(-3, -2)[..., : c.values + 2 * c.points]  # without padding
        content, x, y = mean.split_with_sizes([c.values, c.points, c.points], -1)
        points = _to_query_frame(x, y, frames, c, has_keys)
        return self.out(torch.cat([content, *points], -1).flatten(-2))


def _to_common_frame(
    raw: Tensor, frames: Frames, config: PoseAttentionConfig, heads: int, scalars: int, vectors: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate vectors and points, and move points, from the frames of tokens to the common frame.

    Args:
        raw: projections [..., N, heads * (scalars + 2 n)] of tokens; n is the number of vectors for
            all multiples of the heading, and of points.
        frames: of the tokens.
        config: sizes of a head.
        heads: number of heads.
        scalars: numbers that do not depend on the frame.
        vectors: for each multiple of the heading.

    Returns:
        scalars [..., N, heads, scalars], and x and y [..., N, heads, n].
    """
    n = MULTIPLES * vectors + config.points
    cos, sin, token_x, token_y, _, _ = frames.columns(config, heads, n)
    by_head = _precise(raw).unflatten(-1, (heads, -1))
    rest, x, y = by_head.split_with_sizes([scalars, n, n], -1)
    common_x = torch.addcmul(torch.addcmul(token_x, x, cos), y, sin, value=-1)
    common_y = torch.addcmul(torch.addcmul(token_y, x, sin), y, cos)
    return rest, common_x, common_y


def _to_query_frame(
    x: Tensor, y: Tensor, frames: Frames, config: PoseAttentionConfig, has_keys: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean points in the frame of the query, from x and y [..., L, heads, points].

    Returns x, y and length of the same shape; zero where `has_keys`, bool [..., L], is False.
    """
    cos, sin, _, _, origin_x, origin_y = frames.columns(config, x.shape[-2], config.points)
    query_x = torch.addcmul(torch.addcmul(origin_x, x, cos), y, sin)
    query_y = torch.addcmul(torch.addcmul(origin_y, y, cos), x, sin, value=-1)
    if has_keys is not None:
        query_x = query_x * has_keys[..., None, None]
        query_y = query_y * has_keys[..., None, None]
    squared = torch.addcmul(query_x * query_x, query_y, query_y)
    length = (squared + _EPSILON).sqrt() - _EPSILON**0.5
    return query_x, query_y, length


def _columns(
    content: Tensor, x: Tensor, y: Tensor, square: Tensor, config: PoseAttentionConfig
) -> Tensor:
    """The numbers of a query or key, in an order that keeps partial sums of a score small.

    Far from the origin, products of points are large, and the square has the opposite sign. So it
    follows the first point, and smaller numbers come first. Another order doubles the effect of
    rounding on a forecast.
    """
    sizes = [x.shape[-1] - config.points, 1, config.points - 1]
    vector_x, first_x, other_x = x.split_with_sizes(sizes, -1)
    vector_y, first_y, other_y = y.split_with_sizes(sizes, -1)
    return torch.cat([content, vector_x, vector_y, first_x, first_y, square, other_x, other_y], -1)


def _heads_first(x: Tensor, config: PoseAttentionConfig) -> Tensor:
    """[..., N, heads, d] to [..., heads, N, padded]."""
    missing = config.padded - x.shape[-1]
    if missing:
        x = F.pad(x, (0, missing))
    return x.transpose(-3, -2)


class PoseBlock(nn.Module):
    """Pre-norm block of pose attention to a memory and a feed-forward layer.

    With `modes`, the modes of a token attend to each other between the two.

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
        """[..., L, D] to the same shape.

        With `modes` x is [..., N, K, D], and frames [..., N * K] and mask are for all K modes.
        """
        query = self.cross.pre(x)
        if self.among is not None:
            query = query.flatten(-3, -2)  # [..., N * K, D]
        branch = self.cross.sublayer(query, frames, memory, mask)
        x = self.cross.post(x, branch.view(x.shape))
        if self.among is not None:
            query = self.among.pre(x)
            x = self.among.post(x, self.among.sublayer(query, query))
        return self.feedforward(x)
