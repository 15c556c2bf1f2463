"""Attention against a plain fp64 reference and against PyTorch's own; masks, empty rows, weights, order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.attention import MultiHeadAttention, attend, attention_weights

WIDTH, HEADS = 32, 4


def reference(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Softmax attention in fp64; zeros where a row of the mask is empty."""
    score = query.double() @ key.double().mT * (scale or query.shape[-1] ** -0.5)
    if mask is not None:
        score = score.masked_fill(~mask, -torch.inf)
    weight = (score - score.amax(-1, keepdim=True)).exp()
    return torch.nan_to_num(weight / weight.sum(-1, keepdim=True)) @ value.double()


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def qkv(d_k: int = 8, d_v: int = 8, batch: tuple[int, ...] = (3, 2), queries: int = 5, keys: int = 7) -> tuple[Tensor, ...]:
    return tokens(*batch, queries, d_k), tokens(*batch, keys, d_k, seed=1), tokens(*batch, keys, d_v, seed=2)


def random_mask(*shape: int) -> Tensor:
    """About a third False, and row 0 empty."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.35
    mask[..., 0, :] = False
    return mask


@pytest.mark.parametrize(("d_k", "d_v"), [(8, 8), (4, 12), (16, 1)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [None, 0.7])
def test_attend_equals_the_reference(d_k: int, d_v: int, masked: bool, scale: float | None) -> None:
    q, k, v = qkv(d_k, d_v)
    mask = random_mask(3, 2, 5, 7) if masked else None
    out = attend(q, k, v, mask, scale=scale)
    assert out.shape == (3, 2, 5, d_v)
    torch.testing.assert_close(out.double(), reference(q, k, v, mask, scale), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [(5, 7), (1, 7), (2, 5, 7), (3, 1, 5, 7), (3, 1, 1, 7), (3, 2, 5, 1)])
def test_masks_broadcast(shape: tuple[int, ...]) -> None:
    q, k, v = qkv()
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(4)) > 0.4
    full = mask.expand(3, 2, 5, 7)
    torch.testing.assert_close(attend(q, k, v, mask), attend(q, k, v, full), atol=1e-6, rtol=0)
    torch.testing.assert_close(attend(q, k, v, mask).double(), reference(q, k, v, full), atol=1e-6, rtol=1e-5)


def test_no_key_at_all_gives_zeros() -> None:
    q, k, v = qkv(keys=0)
    assert torch.equal(attend(q, k, v, torch.zeros(3, 2, 1, 0, dtype=torch.bool)), torch.zeros(3, 2, 5, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_weights", [False, True])
def test_empty_rows_are_exact_zeros_with_finite_gradients(dtype: torch.dtype, with_weights: bool) -> None:
    q, k, v = (x.to(dtype).requires_grad_() for x in qkv())
    mask = random_mask(3, 2, 5, 7)
    mask[1] = False
    out = attention_weights(q, k, mask) @ v if with_weights else attend(q, k, v, mask)
    empty = ~mask.any(-1)
    assert empty.sum() == 14
    assert torch.equal(out[empty], torch.zeros_like(out[empty]))
    assert out.dtype == dtype and out.isfinite().all()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}[dtype]
    torch.testing.assert_close(out.double(), reference(q, k, v, mask), atol=tolerance, rtol=tolerance)
    out.float().square().sum().backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all() and x.grad[0].abs().max() > 0
    assert not q.grad[empty].any()
    assert not any(x.grad[1].any() for x in (q, k, v))


def test_the_kernel_never_sees_an_empty_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every backend survives one, so the CPU's tolerance must not hide it."""
    kernel, seen = F.scaled_dot_product_attention, []

    def watched(*arguments: Tensor, attn_mask: Tensor, **options: float) -> Tensor:
        seen.append(attn_mask)
        return kernel(*arguments, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    attend(*qkv(), random_mask(3, 2, 5, 7))
    assert len(seen) == 1 and seen[0].any(-1).all()


def test_gradients_equal_the_reference() -> None:
    left, right = ([x.clone().requires_grad_() for x in qkv(4, 6)] for _ in range(2))
    mask, direction = random_mask(3, 2, 5, 7), tokens(3, 2, 5, 6, seed=5)
    (attend(*left, mask) * direction).sum().backward()
    q, k, v = (x.double() for x in right)
    filled = (q @ k.mT * 0.5).masked_fill(~mask, -1e9).softmax(-1).masked_fill(~mask, 0.0)
    (filled @ v * direction).sum().backward()
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4)


def test_dropout_is_off_at_zero_and_drops_weights_otherwise() -> None:
    q, k, v = qkv()
    assert torch.equal(attend(q, k, v, dropout=0.0), attend(q, k, v))
    torch.manual_seed(0)
    ones = torch.ones(1, 1, 400, 1)
    dropped = attend(torch.zeros(1, 1, 100, 4), torch.zeros(1, 1, 400, 4), ones, dropout=0.5)
    assert dropped.std() > 0.01
    assert abs(dropped.mean() - 1.0) < 0.02
    layer = MultiHeadAttention(WIDTH, HEADS, dropout=0.5)
    x = tokens(2, 6, WIDTH)
    assert not torch.equal(layer(x, x), layer(x, x))
    layer.eval()
    assert torch.equal(layer(x, x), layer(x, x))


def torch_twin(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """PyTorch's attention with the same weights."""
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    parts = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.weight.copy_(ours.out.weight)
        theirs.out_proj.bias.copy_(ours.out.bias)
    return theirs


def layer_with_biases(**arguments: int) -> MultiHeadAttention:
    torch.manual_seed(0)
    layer = MultiHeadAttention(WIDTH, HEADS, **arguments)
    for part in (layer.query, layer.key, layer.value, layer.out):
        nn.init.normal_(part.bias, std=0.3)
    return layer


def test_equals_torch_multihead_attention() -> None:
    ours = layer_with_biases()
    theirs = torch_twin(ours)
    x, memory, value = (tokens(3, n, WIDTH, seed=s).requires_grad_() for n, s in ((5, 0), (7, 1), (7, 2)))
    real = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    out = ours(x, memory, value, real[:, None])
    expected, weights = theirs(x, memory, value, key_padding_mask=~real, average_attn_weights=False)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.weights(x, memory, mask=real[:, None]), weights, atol=1e-6, rtol=1e-5)
    direction = tokens(3, 5, WIDTH, seed=6)
    left = torch.autograd.grad((out * direction).sum(), [x, memory, value, ours.query.weight, ours.value.weight, ours.out.weight])
    packed = [x, memory, value, theirs.in_proj_weight, theirs.out_proj.weight]
    *first, inner, outer = torch.autograd.grad((expected * direction).sum(), packed)
    right = [*first, inner[:WIDTH], inner[2 * WIDTH :], outer]
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    assert not left[1][~real].any() and not left[2][~real].any()


def test_free_widths_and_no_biases() -> None:
    layer = MultiHeadAttention(10, 3, d_k=4, d_v=7, bias=False)
    assert layer.query.weight.shape == (12, 10) and layer.value.weight.shape == (21, 10) and layer.out.weight.shape == (10, 21)
    assert all(part.bias is None for part in (layer.query, layer.key, layer.value, layer.out))
    x, memory = tokens(2, 5, 10), tokens(2, 6, 10, seed=1)
    heads = [
        reference(x @ layer.query.weight[4 * h : 4 * h + 4].T, memory @ layer.key.weight[4 * h : 4 * h + 4].T, value)
        for h, value in enumerate((memory @ layer.value.weight.T).split(7, -1))
    ]
    expected = torch.cat(heads, -1).float() @ layer.out.weight.T
    torch.testing.assert_close(layer(x, memory), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="heads 3 does not divide width 10"):
        MultiHeadAttention(10, 3)


@pytest.mark.parametrize("masked", [False, True])
def test_weights_reproduce_the_output_and_change_nothing(masked: bool) -> None:
    layer = layer_with_biases()
    x, memory = tokens(2, 5, WIDTH), tokens(2, 7, WIDTH, seed=1)
    mask = random_mask(2, 5, 7) if masked else None
    before = layer(x, memory, mask=mask)
    weights = layer.weights(x, memory, mask=mask)
    assert torch.equal(layer(x, memory, mask=mask), before)
    assert weights.shape == (2, HEADS, 5, 7)
    alive = torch.ones(2, 5, dtype=torch.bool) if mask is None else mask.any(-1)
    torch.testing.assert_close(weights.sum(-1), alive[:, None].expand(-1, HEADS, -1).float(), atol=1e-6, rtol=0)
    if mask is not None:
        assert not weights.masked_select(~mask[:, None]).any()
    value = layer.value(memory).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    again = layer.out((weights @ value).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(again, before, atol=1e-5, rtol=1e-5)


def test_a_row_with_nothing_to_attend_gives_the_bias() -> None:
    layer = layer_with_biases()
    x = tokens(2, 5, WIDTH)
    out = layer(x, x, mask=torch.zeros(2, 1, 5, dtype=torch.bool))
    assert torch.equal(out, layer.out.bias.expand(2, 5, WIDTH))


def test_padding_of_any_value_changes_nothing() -> None:
    layer = layer_with_biases()
    x, memory = tokens(2, 5, WIDTH), tokens(2, 7, WIDTH, seed=1)
    padded = torch.cat([memory, 1e3 * tokens(2, 4, WIDTH, seed=9)], 1)
    real = torch.arange(11) < 7
    torch.testing.assert_close(layer(x, padded, mask=real.expand(2, 1, 11)), layer(x, memory), atol=1e-5, rtol=1e-5)


def test_permutations() -> None:
    layer = layer_with_biases()
    x, memory, mask = tokens(2, 5, WIDTH), tokens(2, 7, WIDTH, seed=1), random_mask(2, 5, 7)
    rows, columns = torch.randperm(5), torch.randperm(7)
    out = layer(x, memory, mask=mask)
    torch.testing.assert_close(layer(x[:, rows], memory, mask=mask[:, rows]), out[:, rows], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(x, memory[:, columns], mask=mask[..., columns]), out, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(layer(x[:, rows], x[:, rows]), layer(x, x)[:, rows], atol=1e-5, rtol=1e-5)
