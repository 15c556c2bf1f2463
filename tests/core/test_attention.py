"""Attention agrees with a reference in float64 and with PyTorch; masks, empty rows, weights."""

import pytest
import torch
from support.tensors import copy_attention, draw, draw_mask, weights_of
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.core.attention import attend, attention_weights, useful_mask
from trajformer.core.blocks import BlockConfig, Encoder
from trajformer.core.multihead import MultiHeadAttention, recorded_weights
from trajformer.errors import TrajformerWarning

WIDTH, HEADS = 32, 4


def reference(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax attention in float64; zeros if a row of the mask is empty."""
    score = query.double() @ key.double().mT * query.shape[-1] ** -0.5
    if mask is not None:
        score = score.masked_fill(~mask, -torch.inf)
    weight = (score - score.amax(-1, keepdim=True)).exp()
    return torch.nan_to_num(weight / weight.sum(-1, keepdim=True)) @ value.double()


def qkv(d_k: int = 8, d_v: int = 8, keys: int = 7) -> tuple[Tensor, ...]:
    query = draw(3, 2, 5, d_k)
    key = draw(3, 2, keys, d_k, seed=1)
    value = draw(3, 2, keys, d_v, seed=2)
    return query, key, value


def mask_with_empty_row(*shape: int) -> Tensor:
    mask = draw_mask(*shape)
    mask[..., 0, :] = False
    return mask


MASK_SHAPES = [
    None,
    (5, 7),
    (1, 7),
    (2, 5, 7),
    (3, 1, 5, 7),
    (3, 1, 1, 7),
    (3, 2, 5, 1),
    (3, 2, 5, 7),
]


@pytest.mark.parametrize("shape", MASK_SHAPES)
@pytest.mark.parametrize(("d_k", "d_v"), [(8, 8), (4, 12), (16, 1)])
def test_attend_equals_the_reference(shape: tuple[int, ...] | None, d_k: int, d_v: int) -> None:
    q, k, v = qkv(d_k, d_v)
    mask = mask_with_empty_row(*shape) if shape else None
    out = attend(q, k, v, mask)
    assert out.shape == (3, 2, 5, d_v)
    torch.testing.assert_close(out.double(), reference(q, k, v, mask), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [None, (5, 7), (2, 4, 5, 7), (2, 1, 1, 7), (3, 1, 4, 1, 7)])
def test_more_than_four_axes_equal_the_reference(shape: tuple[int, ...] | None) -> None:
    q, k, v = draw(3, 2, 4, 5, 8), draw(3, 2, 4, 7, 8, seed=1), draw(3, 1, 1, 7, 6, seed=2)
    mask = mask_with_empty_row(*shape) if shape else None
    out = attend(q, k, v, mask)
    torch.testing.assert_close(out.double(), reference(q, k, v, mask), atol=1e-6, rtol=1e-5)


def test_weights_without_a_mask_equal_the_reference() -> None:
    q, k, v = qkv()
    out = attention_weights(q, k) @ v
    torch.testing.assert_close(out.double(), reference(q, k, v), atol=1e-6, rtol=1e-5)


def test_no_keys_give_zeros() -> None:
    mask = torch.zeros(3, 2, 1, 0, dtype=torch.bool)
    assert torch.equal(attend(*qkv(keys=0), mask), torch.zeros(3, 2, 5, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_weights", [False, True])
def test_empty_rows_are_exact_zeros_with_finite_gradients(
    dtype: torch.dtype, with_weights: bool
) -> None:
    q, k, v = (x.to(dtype).requires_grad_() for x in qkv())
    mask = mask_with_empty_row(3, 2, 5, 7)
    mask[1] = False
    out = attention_weights(q, k, mask) @ v if with_weights else attend(q, k, v, mask)
    empty = ~mask.any(-1)
    assert torch.equal(out[empty], torch.zeros_like(out[empty]))
    assert out.dtype == dtype and out.isfinite().all()
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}[dtype]
    torch.testing.assert_close(
        out.double(), reference(q, k, v, mask), atol=tolerance, rtol=tolerance
    )
    out.float().square().sum().backward()
    for x in (q, k, v):
        assert x.grad.isfinite().all() and x.grad[0].abs().max() > 0
    assert not q.grad[empty].any()
    assert not any(x.grad[1].any() for x in (q, k, v))


def test_the_kernel_never_gets_an_empty_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output cannot show it: some backends give NaN for an empty row, but a CPU gives zeros."""
    kernel, masks = F.scaled_dot_product_attention, []

    def recording_kernel(*arguments: Tensor, attn_mask: Tensor, **options: float) -> Tensor:
        masks.append(attn_mask)
        return kernel(*arguments, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recording_kernel)
    attend(*qkv(), mask_with_empty_row(3, 2, 5, 7))
    assert len(masks) == 1 and masks[0].any(-1).all()


def test_a_mask_that_allows_everything_is_left_out_where_looking_is_free() -> None:
    mask = torch.ones(2, 1, 5, dtype=torch.bool)
    assert useful_mask(mask) is None
    other_device = mask.to("meta")  # a GPU would have to wait for the answer
    assert useful_mask(other_device) is other_device
    mask[1, 0, 2] = False
    assert useful_mask(mask) is mask


def test_dropout_drops_weights_in_training_only() -> None:
    q, k, v = qkv()
    assert torch.equal(attend(q, k, v, dropout=0.0), attend(q, k, v))
    torch.manual_seed(0)
    query = torch.zeros(1, 1, 100, 4)
    key = torch.zeros(1, 1, 400, 4)
    dropped = attend(query, key, torch.ones(1, 1, 400, 1), dropout=0.5)
    assert dropped.std() > 0.01
    assert abs(dropped.mean() - 1.0) < 0.02
    layer = MultiHeadAttention(WIDTH, HEADS, dropout=0.5)
    x = draw(2, 6, WIDTH)
    assert not torch.equal(layer(x, x), layer(x, x))
    layer.eval()
    assert torch.equal(layer(x, x), layer(x, x))


@pytest.fixture
def layer() -> MultiHeadAttention:
    torch.manual_seed(0)
    layer = MultiHeadAttention(WIDTH, HEADS)
    for part in (layer.query, layer.key, layer.value, layer.out):
        nn.init.normal_(part.bias, std=0.3)
    return layer


def test_equals_torch_multihead_attention(layer: MultiHeadAttention) -> None:
    torch_layer = copy_attention(layer, nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    x = draw(3, 5, WIDTH).requires_grad_()
    memory = draw(3, 7, WIDTH, seed=1).requires_grad_()
    value = draw(3, 7, WIDTH, seed=2).requires_grad_()
    real = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    out = layer(x, memory, value, real[:, None])
    expected, weights = torch_layer(
        x, memory, value, key_padding_mask=~real, average_attn_weights=False
    )
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=0)
    recorded = weights_of(layer, x, memory, mask=real[:, None])
    torch.testing.assert_close(recorded, weights, atol=1e-6, rtol=1e-5)
    direction = draw(3, 5, WIDTH, seed=6)
    inputs = [x, memory, value, layer.query.weight, layer.value.weight, layer.out.weight]
    gradients = torch.autograd.grad((out * direction).sum(), inputs)
    packed = [x, memory, value, torch_layer.in_proj_weight, torch_layer.out_proj.weight]
    *first, d_in, d_out = torch.autograd.grad((expected * direction).sum(), packed)
    d_query, _, d_value = d_in.chunk(3)
    for a, b in zip(gradients, [*first, d_query, d_value, d_out], strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    assert not gradients[1][~real].any() and not gradients[2][~real].any()


def test_free_widths_and_no_biases() -> None:
    layer = MultiHeadAttention(10, 3, d_k=4, d_v=7, bias=False)
    assert all(part.bias is None for part in (layer.query, layer.key, layer.value, layer.out))
    x, memory = draw(2, 5, 10), draw(2, 6, 10, seed=1)
    queries = (x @ layer.query.weight.T).split(4, -1)
    keys = (memory @ layer.key.weight.T).split(4, -1)
    values = (memory @ layer.value.weight.T).split(7, -1)
    heads = [reference(q, k, v) for q, k, v in zip(queries, keys, values, strict=True)]
    expected = torch.cat(heads, -1).float() @ layer.out.weight.T
    torch.testing.assert_close(layer(x, memory), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="heads 3 does not divide width 10"):
        MultiHeadAttention(10, 3)


BLOCK = BlockConfig(16, 2, 16)


def test_recorded_weights_do_not_change_the_output() -> None:
    torch.manual_seed(0)
    encoder = Encoder(BLOCK, 2).eval()
    x = torch.randn(2, 5, 16)
    real = torch.ones(2, 1, 5, dtype=torch.bool)
    real[1, :, 3:] = False
    expected = encoder(x, real)
    with recorded_weights(encoder) as record:
        assert torch.equal(encoder(x, real), expected)
    assert list(record) == ["layers.0.attention.sublayer", "layers.1.attention.sublayer"]
    for (weights,) in record.values():
        assert weights.shape == (2, 2, 5, 5)
        assert not weights.requires_grad
        assert not weights[1, ..., 3:].any()
    layer: MultiHeadAttention = encoder.layers[0].attention.sublayer
    inputs = encoder.layers[0].attention.pre(x)
    [weights] = record["layers.0.attention.sublayer"]
    assert torch.equal(weights, weights_of(layer, inputs, inputs, mask=real))
    encoder(x, real)
    assert [len(calls) for calls in record.values()] == [1, 1], "later calls are not recorded"


def test_a_model_without_recorded_layers_gives_a_warning() -> None:
    with (
        pytest.warns(TrajformerWarning, match="Linear has no MultiHeadAttention"),
        recorded_weights(torch.nn.Linear(2, 2)) as record,
    ):
        pass
    assert record == {}
