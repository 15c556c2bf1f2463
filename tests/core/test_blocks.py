"""Blocks agree with PyTorch's transformer layers, for any leading axes; dropout by random bytes."""

import itertools

import pytest
import torch
from support.tensors import copy_attention, draw, draw_mask, randomize
from torch import nn

from trajformer.core.blocks import (
    BlockConfig,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    SqueezeConfig,
)
from trajformer.core.dropout import Dropout

WIDTH = 16
VARIANTS = [
    (norm_first, activation) for norm_first in (True, False) for activation in ("relu", "gelu")
]


def config(norm_first: bool = True, activation: str = "relu", **changes: float) -> BlockConfig:
    sizes = {"width": WIDTH, "heads": 4, "feedforward": 24, "dropout": 0.0} | changes
    return BlockConfig(norm_first=norm_first, activation=activation, **sizes)


def copy_rest(feedforward: FeedForward, norms: list[nn.Module], target: nn.Module) -> None:
    target.linear1.load_state_dict(feedforward[0].state_dict())
    target.linear2.load_state_dict(feedforward[3].state_dict())
    for number, norm in enumerate(norms, 1):
        getattr(target, f"norm{number}").load_state_dict(norm.state_dict())


@pytest.mark.parametrize(("norm_first", "activation"), VARIANTS)
def test_encoder_block_equals_torch(norm_first: bool, activation: str) -> None:
    block = randomize(EncoderBlock(config(norm_first, activation, norm_eps=1e-3)))
    options = {
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": norm_first,
    }
    torch_block = nn.TransformerEncoderLayer(WIDTH, 4, 24, layer_norm_eps=1e-3, **options)
    copy_attention(block.attention.sublayer, torch_block.self_attn)
    copy_rest(
        block.feedforward.sublayer, [block.attention.norm, block.feedforward.norm], torch_block
    )
    x = draw(3, 6, WIDTH)
    real = torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
    expected = torch_block(x, src_key_padding_mask=~real)
    torch.testing.assert_close(block(x, real[:, None])[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layers", [0, 1, 2])
@pytest.mark.parametrize(
    ("changes", "rows"),
    [({}, 1), ({}, 6), ({"norm_first": False}, 6), ({"squeeze": SqueezeConfig()}, 1)],
)
def test_a_single_token_of_an_encoder_equals_the_whole(
    layers: int, changes: dict, rows: int
) -> None:
    encoder = randomize(Encoder(config(**changes), layers))
    whole, alone = (draw(2, 3, 6, WIDTH).requires_grad_() for _ in range(2))
    alone.data.copy_(whole.data)
    mask = draw_mask(2, 3, rows, 6)
    mask[0, 0] = False
    for index in (0, -1, 2):
        expected, out = encoder(whole, mask)[..., index, :], encoder.token(alone, index, mask)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
        expected.square().sum().backward()
        out.square().sum().backward()
    torch.testing.assert_close(alone.grad, whole.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("norm_first", "activation"), VARIANTS)
def test_decoder_block_equals_torch(norm_first: bool, activation: str) -> None:
    block = randomize(DecoderBlock(config(norm_first, activation)))
    options = {
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": norm_first,
    }
    torch_block = nn.TransformerDecoderLayer(WIDTH, 4, 24, **options)
    copy_attention(block.self_attention.sublayer, torch_block.self_attn)
    copy_attention(block.cross_attention.sublayer, torch_block.multihead_attn)
    norms = [block.self_attention.norm, block.cross_attention.norm, block.feedforward.norm]
    copy_rest(block.feedforward.sublayer, norms, torch_block)
    x = draw(3, 5, WIDTH)
    memory = draw(3, 7, WIDTH, seed=1)
    real = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    out = block(x, memory, mask=causal, memory_mask=real[:, None])
    expected = torch_block(x, memory, tgt_mask=~causal, memory_key_padding_mask=~real)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (2, 0)])
@pytest.mark.parametrize("shared", [False, True])  # one mask for all sequences
def test_blocks_take_any_leading_axes(lead: tuple[int, ...], shared: bool) -> None:
    block = randomize(DecoderBlock(config()))
    x = draw(*lead, 4, WIDTH)
    memory = draw(*lead, 5, WIDTH)
    mask_lead = () if shared else lead
    mask = draw_mask(*mask_lead, 4, 5, share=0.7)
    out = block(x, memory, memory_mask=mask)
    assert out.shape == x.shape
    for index in itertools.product(*map(range, lead)):
        expected = block(x[index], memory[index], memory_mask=mask if shared else mask[index])
        torch.testing.assert_close(out[index], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("p", [1 / 256, 0.1, 0.3, 0.75, 254 / 256])
def test_dropout_drops_with_its_probability_and_keeps_the_mean(p: float) -> None:
    torch.manual_seed(0)
    layer = Dropout(p)
    x = torch.ones(1000, 257)
    out = layer(x)
    assert layer.eval()(x) is x
    dropped = out == 0
    expected = round(p * 256) / 256
    assert dropped.float().mean().item() == pytest.approx(expected, abs=4e-3)
    assert out.mean().item() == pytest.approx(1, abs=1e-2 if p < 0.9 else 1e-1)
    assert len(out.unique()) == 2
    # The bytes of one random number must be independent.
    both_neighbors = dropped[:, 1:] & dropped[:, :-1]
    assert both_neighbors.float().mean().item() == pytest.approx(expected**2, abs=5e-3)


@pytest.mark.parametrize("shape", [(20, 7), (3,), (0, 4)])
def test_the_gradient_has_the_same_mask(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, requires_grad=True)
    out = Dropout(0.3)(x)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())


def test_dropout_follows_the_seed_and_its_limits() -> None:
    x, outputs = torch.ones(64), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outputs.append(Dropout(0.5)(x))
    assert torch.equal(outputs[0], outputs[1]) and not torch.equal(outputs[0], outputs[2])
    assert Dropout(0.0)(x) is x and not Dropout(1.0)(x).any()
    assert Dropout(0.5)(x.bfloat16()).dtype == torch.bfloat16
