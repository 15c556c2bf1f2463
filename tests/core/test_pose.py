"""SE(2)-invariant attention: pairwise form, invariance, empty rows, kernel, precision, memory."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from trajformer.core.memory import Memory
from trajformer.core.multihead import recorded_weights
from trajformer.core.pose import MULTIPLES, Frames, PoseAttention, PoseAttentionConfig, PoseKeys
from trajformer.errors import ConfigError

WIDTH, HEADS = 32, 4


def tokens_and_poses(
    count: int = 40, dtype: torch.dtype = torch.float64, reach_m: float = 40.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randn(2, count, WIDTH, generator=generator, dtype=torch.float64)
    xy = reach_m * torch.randn(2, count, 2, generator=generator, dtype=torch.float64)
    heading = math.pi * (2 * torch.rand(2, count, 1, generator=generator, dtype=torch.float64) - 1)
    return tokens.to(dtype), torch.cat([xy, heading], -1).to(dtype)


def moved(pose: Tensor, x: float, y: float, angle: float) -> Tensor:
    cos = math.cos(angle)
    sin = math.sin(angle)
    old_x, old_y = pose[..., 0], pose[..., 1]
    new_x = cos * old_x - sin * old_y + x
    new_y = sin * old_x + cos * old_y + y
    return torch.stack([new_x, new_y, pose[..., 2] + angle], -1)


class Layer(nn.Module):
    """Keys and attention for the same tokens."""

    def __init__(self, config: PoseAttentionConfig = PoseAttentionConfig()) -> None:
        super().__init__()
        self.keys = PoseKeys(WIDTH, HEADS, config)
        self.attention = PoseAttention(WIDTH, HEADS, config)

    def forward(self, tokens: Tensor, pose: Tensor, mask: Tensor | None = None) -> Tensor:
        frames = Frames.of(pose)
        return self.attention(tokens, frames, self.keys(tokens, frames), mask)


def test_recorded_weights_are_those_of_the_output_and_invariant() -> None:
    layer = Layer().double()
    tokens, pose = tokens_and_poses()
    mask = torch.rand(2, 40, 40, generator=torch.Generator().manual_seed(2)) < 0.5
    expected = layer(tokens, pose, mask)
    with recorded_weights(layer) as record:
        assert torch.equal(layer(tokens, pose, mask), expected)
        layer(tokens, moved(pose, 70.0, -30.0, 2.0), mask)
    assert list(record) == ["attention"]
    weights, weights_of_moved = record["attention"]
    assert weights.shape == (2, HEADS, 40, 40)
    assert not weights.requires_grad
    assert not weights.masked_select(~mask[:, None]).any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 40, dtype=torch.float64))
    torch.testing.assert_close(weights, weights_of_moved, atol=1e-9, rtol=1e-6)
    layer(tokens, pose)
    assert len(record["attention"]) == 2


def test_recorded_weights_in_cells_are_those_of_near_tokens() -> None:
    layer = Layer()
    tokens, pose = tokens_and_poses(513, torch.float32)
    near = torch.arange(513) < 500
    pose[:, ~near] += torch.tensor([1000.0, 0.0, 0.0])
    mask = torch.rand(2, 1, 513, generator=torch.Generator().manual_seed(2)) < 0.99
    mask[1, :, 400:] = False  # few enough tokens for a scene without cells
    with recorded_weights(layer) as record:
        layer(tokens, pose, mask)
        layer(tokens[:, near], pose[:, near], mask[..., near])
    weights, weights_alone = record["attention"]
    assert weights.shape == (2, HEADS, 513, 513)
    assert not weights[0][:, near][..., ~near].any()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, HEADS, 513))
    torch.testing.assert_close(weights[:, :, near][..., near], weights_alone, atol=1e-5, rtol=1e-4)


def pairwise(layer: Layer, tokens: Tensor, pose: Tensor, mask: Tensor) -> Tensor:
    """The explicit form, pair by pair, in the frame of the query.

    Points of the plane are complex numbers. B scenes, H heads, L queries, S keys.
    """
    keys, attention = layer.keys, layer.attention
    c = attention.config
    normed = keys.norm(tokens)
    n = 2 * c.vectors + c.points

    def parts(raw: Tensor, scalars: int, size: int) -> tuple[Tensor, Tensor]:
        raw = raw.unflatten(-1, (attention.heads, -1)).transpose(-3, -2)  # [B, H, N, d]
        content, x, y = raw.split([scalars, size, size], -1)
        return content, torch.complex(x, y)

    q, q_plane = parts(attention.query(tokens), c.content, n)
    k, k_plane = parts(keys.key(normed), c.content, n)
    v, v_plane = parts(keys.value(normed), c.values, c.points)
    q_plane = q_plane[..., :, None, :]  # [B, H, L, 1, n]
    k_plane = k_plane[..., None, :, :]  # [B, H, 1, S, n]

    # Relative heading and position of the key as seen from the query, [B, 1, L, S, 1].
    heading = pose[..., 2]
    angle = heading[:, None] - heading[:, :, None]  # [B, L, S]
    turn = torch.polar(torch.ones_like(angle), angle)[:, None, :, :, None]
    position = torch.complex(pose[..., 0], pose[..., 1]) / c.scale_m
    offset = position[:, None] - position[:, :, None]
    back = torch.polar(torch.ones_like(heading), -heading)
    apart = (offset * back[:, :, None])[:, None, :, :, None]

    score = c.side**-0.5 * q @ k.mT
    for multiple in (1, 2):
        some = slice((multiple - 1) * c.vectors, multiple * c.vectors)
        vector = k_plane[..., some] * turn**multiple
        product = (q_plane[..., some].conj() * vector).real.sum(-1)
        score = score + product * c.side**-0.5
    gamma = F.softplus(attention.sharpness)[:, None, None]
    point = k_plane[..., 2 * c.vectors :] * turn + apart
    distance = (q_plane[..., 2 * c.vectors :] - point).abs()
    score = score - gamma / 2 * distance.square().sum(-1)

    weight = score.masked_fill(~mask[:, None], -torch.inf).softmax(-1)  # [B, H, L, S]
    points = v_plane[..., None, :, :] * turn + apart
    mean = (weight[..., None] * points).sum(-2)
    length = (mean.abs().square() + 1e-6).sqrt() - 1e-3
    result = torch.cat([weight @ v, mean.real, mean.imag, length], -1)
    return attention.out(result.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("points", [1, 4])
def test_any_reach_gives_its_finite_sharpness(points: int) -> None:
    config = PoseAttentionConfig(points=points, scale_m=50.0, reach_m=(0.5, 500.0))
    attention = PoseAttention(32, 4, config)
    expected = 1 / (points * (torch.tensor([0.5, 5.0, 50.0, 500.0]) / 50).square())
    torch.testing.assert_close(F.softplus(attention.sharpness), expected, rtol=1e-4, atol=0)


def test_equals_the_pairwise_form() -> None:
    torch.manual_seed(0)
    layer = Layer().double()
    tokens, pose = tokens_and_poses()
    mask = torch.rand(2, 40, 40) > 0.3
    torch.testing.assert_close(
        layer(tokens, pose, mask), pairwise(layer, tokens, pose, mask), atol=1e-10, rtol=0
    )


@pytest.mark.parametrize("shift_m", [20.0, 500.0])
def test_a_moved_and_rotated_scene_gives_the_same_result(shift_m: float) -> None:
    torch.manual_seed(0)
    layer = Layer()
    tokens, pose = tokens_and_poses(dtype=torch.float32)
    result = layer(tokens, pose)
    shifted = layer(tokens, moved(pose, shift_m, -shift_m, 2.0))
    torch.testing.assert_close(shifted, result, atol=2e-3 if shift_m > 100 else 1e-4, rtol=0)


def test_queries_share_a_memory_of_several_parts() -> None:
    torch.manual_seed(0)
    layer = Layer().double()
    tokens, pose = tokens_and_poses()
    frames = Frames.of(pose)
    first = layer.keys(tokens[:, :15], Frames.of(pose[:, :15]))
    second = layer.keys(tokens[:, 15:], Frames.of(pose[:, 15:]))
    query = Frames.of(pose[:, :7])
    expected = layer.attention(tokens[:, :7], query, layer.keys(tokens, frames))
    result = layer.attention(tokens[:, :7], query, Memory.join(first, second))
    torch.testing.assert_close(result, expected, atol=1e-12, rtol=0)


def test_a_query_without_keys_gets_zeros_and_finite_gradients() -> None:
    torch.manual_seed(0)
    layer = Layer()
    tokens, pose = tokens_and_poses(dtype=torch.float32)
    tokens.requires_grad_()
    mask = torch.ones(2, 40, 40, dtype=torch.bool)
    mask[0, 3] = False
    result = layer(tokens, pose, mask)
    assert torch.equal(result[0, 3], torch.zeros(WIDTH))
    result.sum().backward()
    gradients = [tokens.grad, *(parameter.grad for parameter in layer.parameters())]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def two_towns(first: int) -> tuple[Tensor, Tensor]:
    """Tokens and poses; all poses after the first ones are 400 m farther in x direction."""
    tokens, pose = tokens_and_poses(reach_m=12.0)
    pose[:, first:, 0] += 400.0
    return tokens, pose


@pytest.mark.parametrize("masked", ["not", "keys", "pairs"])
def test_many_tokens_attend_to_their_surroundings(
    monkeypatch: pytest.MonkeyPatch, masked: str
) -> None:
    """Two towns far from each other have the results and gradients that they have alone."""
    torch.manual_seed(0)
    layer = Layer().double()
    tokens, pose = two_towns(25)
    mask = None
    if masked != "not":
        rows = 1 if masked == "keys" else 40
        mask = torch.rand(2, rows, 40) > 0.3

    def alone(x: Tensor, town: slice) -> Tensor:
        allowed = None
        if mask is not None:
            allowed = mask[..., town]
            if masked == "pairs":
                allowed = allowed[:, town]
        return layer(x[:, town], pose[:, town], allowed)

    def gradients(x: Tensor, result: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(result.square().sum(), [x, *layer.parameters()])

    x = tokens.clone().requires_grad_()
    monkeypatch.setattr("trajformer.core.memory.MAX_TOKENS", 10)
    near = layer(x, pose, mask)
    near_gradients = gradients(x, near)
    monkeypatch.setattr("trajformer.core.memory.MAX_TOKENS", 1000)
    dense = torch.cat([alone(x, slice(0, 25)), alone(x, slice(25, 40))], 1)
    torch.testing.assert_close(near, dense, atol=1e-9, rtol=0)
    # The gradient of the sharpness sums differences of squares of up to (400 m / scale)^2.
    for actual, expected in zip(near_gradients, gradients(x, dense), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-8)


def test_padding_does_not_limit_the_reach_of_a_small_scene(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two towns of a small scene see each other also in a batch with a scene of many tokens."""
    layer = Layer().double()
    tokens, pose = two_towns(5)
    mask = torch.ones(2, 1, 40, dtype=torch.bool)
    mask[0, :, 9:] = False
    alone = layer(tokens[:1, :9], pose[:1, :9])
    monkeypatch.setattr("trajformer.core.memory.MAX_TOKENS", 10)
    torch.testing.assert_close(layer(tokens, pose, mask)[:1, :9], alone, atol=1e-9, rtol=0)


def test_a_query_far_from_all_tokens_gets_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajformer.core.memory.MAX_TOKENS", 10)
    layer = Layer()
    tokens, pose = tokens_and_poses(dtype=torch.float32, reach_m=12.0)
    memory = layer.keys(tokens, Frames.of(pose))
    query_pose = pose[:, :2].clone()
    query_pose[:, 1, 0] += 900.0
    result = layer.attention(tokens[:, :2], Frames.of(query_pose), memory)
    assert result[:, 0].abs().max() > 0
    assert torch.equal(result[:, 1], torch.zeros(2, WIDTH))


@pytest.mark.parametrize(
    "config",
    [PoseAttentionConfig(), PoseAttentionConfig(content=9, vectors=1, points=3, values=10)],
    ids=["default", "odd"],
)
def test_the_fused_kernel_is_used(config: PoseAttentionConfig) -> None:
    layer = Layer(config)
    tokens, pose = tokens_and_poses(dtype=torch.float32)
    with sdpa_kernel(
        SDPBackend.FLASH_ATTENTION
    ):  # raises an error if the kernel does not support the arguments
        layer(tokens, pose, torch.ones(2, 1, 40, dtype=torch.bool)).sum().backward()


def test_geometry_stays_in_single_precision_under_autocast() -> None:
    torch.manual_seed(0)
    layer = Layer()
    tokens, pose = tokens_and_poses(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        memory = layer.keys(tokens, Frames.of(pose))
        assert memory.key.dtype == memory.value.dtype == torch.float32
        result = layer(tokens, pose)
        turned = layer(tokens, moved(pose, 100.0, 50.0, 1.0))
    torch.testing.assert_close(
        turned, result, atol=2e-2, rtol=2e-2
    )  # the output layer rounds to bfloat16


def test_rounding_far_from_the_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The square of positions follows the first point; in other orders errors are larger."""
    torch.manual_seed(0)
    layer = Layer().requires_grad_(False)
    nn.init.constant_(layer.attention.sharpness, 3.0)
    tokens, pose = tokens_and_poses(200, torch.float32, reach_m=15.0)
    pose[..., :2] += 250.0
    exact = Layer().double().requires_grad_(False)
    exact.load_state_dict(layer.state_dict())
    expected = exact(tokens.double(), pose.double())

    def error() -> float:
        return float((layer(tokens, pose) - expected).square().mean().sqrt())

    used = error()

    def square_last(
        content: Tensor, x: Tensor, y: Tensor, square: Tensor, _: PoseAttentionConfig
    ) -> Tensor:
        return torch.cat([content, x, y, square], -1)

    monkeypatch.setattr("trajformer.core.pose._columns", square_last)
    c = layer.attention.config
    axis = [False] * (MULTIPLES * c.vectors) + [True] * c.points
    layer.attention.is_point = torch.tensor([False] * c.content + axis + axis + [True])
    assert used < 0.8 * error()


def test_geometry_needs_no_matrix_product() -> None:
    """Training allows TF32 in matrix products, too coarse for squares of coordinates.

    The layers of keys and values use one product each.
    """
    layer = Layer().requires_grad_(False)
    tokens, pose = tokens_and_poses(dtype=torch.float32)
    frames = Frames.of(pose)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        layer.keys(tokens, frames)
    products = {
        "aten::mm",
        "aten::mv",
        "aten::addmm",
        "aten::addmv",
        "aten::bmm",
        "aten::baddbmm",
        "aten::dot",
    }
    assert sum(event.count for event in recorded.key_averages() if event.key in products) == 2


@pytest.mark.parametrize("most", [10, 10_000])
def test_memory_is_linear_in_the_number_of_tokens(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tensor of the forward and backward pass has an entry for each pair of tokens.

    The density of tokens is constant.
    """
    monkeypatch.setattr("trajformer.core.memory.MAX_TOKENS", most)
    layer, sizes = Layer(), {}
    for count in (500, 1000, 2000, 4000):
        tokens, pose = tokens_and_poses(count, torch.float32, reach_m=10 * count**0.5)
        saved: list[int] = []

        def note(tensor: Tensor, saved: list[int] = saved) -> Tensor:
            saved.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            layer(tokens, pose)
        sizes[count] = sum(saved)
    assert sizes[2000] < 2.4 * sizes[1000] and sizes[4000] < 2.4 * sizes[2000]


def test_invalid_sizes_name_the_field() -> None:
    with pytest.raises(ConfigError, match="points"):
        PoseAttentionConfig(points=0)
    with pytest.raises(ConfigError, match="reach_m"):
        PoseAttentionConfig(reach_m=(5.0, 3.0))
