"""Blocks agree with PyTorch's transformer layers; positions, padding, stacks, axes, position encodings."""

import math

import pytest
import torch
from support.tensors import copy_attention, draw, draw_mask
from torch import Tensor, nn

from trajformer.core.attention import MultiHeadAttention
from trajformer.core.blocks import BlockConfig, Decoder, DecoderBlock, Encoder, EncoderBlock, FeedForward, apply_along_axis
from trajformer.core.positions import LearnedPosition, sinusoid, sinusoid_2d

WIDTH = 16
VARIANTS = [(norm_first, activation) for norm_first in (True, False) for activation in ("relu", "gelu")]


def config(norm_first: bool = True, activation: str = "relu", **changes: float) -> BlockConfig:
    sizes = {"width": WIDTH, "heads": 4, "feedforward": 24, "dropout": 0.0} | changes
    return BlockConfig(norm_first=norm_first, activation=activation, **sizes)


def randomize(module: nn.Module) -> nn.Module:
    """Change all weights, so that no norm is the identity and no bias is zero."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return module


def copy_rest(feedforward: FeedForward, norms: list[nn.Module], target: nn.Module) -> None:
    target.linear1.load_state_dict(feedforward[0].state_dict())
    target.linear2.load_state_dict(feedforward[3].state_dict())
    for number, norm in enumerate(norms, 1):
        getattr(target, f"norm{number}").load_state_dict(norm.state_dict())


@pytest.mark.parametrize(("norm_first", "activation"), VARIANTS)
def test_encoder_block_equals_torch(norm_first: bool, activation: str) -> None:
    block = randomize(EncoderBlock(config(norm_first, activation, norm_eps=1e-3)))
    options = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": norm_first}
    torch_block = nn.TransformerEncoderLayer(WIDTH, 4, 24, layer_norm_eps=1e-3, **options)
    copy_attention(block.attention.sublayer, torch_block.self_attn)
    copy_rest(block.feedforward.sublayer, [block.attention.norm, block.feedforward.norm], torch_block)
    x, real = draw(3, 6, WIDTH), torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
    expected = torch_block(x, src_key_padding_mask=~real)
    torch.testing.assert_close(block(x, real[:, None])[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("norm_first", "activation"), VARIANTS)
def test_decoder_block_equals_torch(norm_first: bool, activation: str) -> None:
    block = randomize(DecoderBlock(config(norm_first, activation)))
    options = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": norm_first}
    torch_block = nn.TransformerDecoderLayer(WIDTH, 4, 24, **options)
    copy_attention(block.self_attention.sublayer, torch_block.self_attn)
    copy_attention(block.cross_attention.sublayer, torch_block.multihead_attn)
    norms = [block.self_attention.norm, block.cross_attention.norm, block.feedforward.norm]
    copy_rest(block.feedforward.sublayer, norms, torch_block)
    x, memory = draw(3, 5, WIDTH), draw(3, 7, WIDTH, seed=1)
    real, causal = torch.arange(7) < torch.tensor([7, 4, 1])[:, None], torch.ones(5, 5, dtype=torch.bool).tril()
    expected = torch_block(x, memory, tgt_mask=~causal, memory_key_padding_mask=~real)
    torch.testing.assert_close(block(x, memory, mask=causal, memory_mask=real[:, None]), expected, atol=1e-5, rtol=1e-5)


def record_inputs(attention: MultiHeadAttention) -> list[tuple[Tensor, ...]]:
    """Collects the arguments (query, key, value) of each call."""
    calls: list[tuple[Tensor, ...]] = []
    attention.register_forward_pre_hook(lambda module, arguments: calls.append(arguments[:3]))
    return calls


@pytest.mark.parametrize("norm_first", [True, False])
def test_positions_are_added_to_queries_and_keys_only(norm_first: bool) -> None:
    x, memory = draw(2, 5, WIDTH), draw(2, 7, WIDTH, seed=1)
    position, memory_position = draw(5, WIDTH, seed=2), draw(7, WIDTH, seed=3)
    encoder, decoder = (randomize(kind(config(norm_first))) for kind in (EncoderBlock, DecoderBlock))
    for attention, run in (
        (encoder.attention, lambda: encoder(x, position=position)),
        (decoder.self_attention, lambda: decoder(x, memory, position=position, memory_position=memory_position)),
    ):
        calls = record_inputs(attention.sublayer)
        run()
        [(query, key, value)] = calls
        assert torch.equal(value, attention.norm(x) if norm_first else x)
        assert torch.equal(query, value + position) and torch.equal(key, query)
    calls = record_inputs(decoder.cross_attention.sublayer)
    out = decoder(x, memory, position=position, memory_position=memory_position)
    [(_, key, value)] = calls
    assert torch.equal(key, memory + memory_position) and torch.equal(value, memory)
    assert (out - decoder(x, memory, memory_position=memory_position)).abs().max() > 1e-3
    assert (out - decoder(x, memory, position=position)).abs().max() > 1e-3


@pytest.mark.parametrize("norm_first", [True, False])
def test_stacks_apply_their_layers_in_order(norm_first: bool) -> None:
    encoder, decoder = randomize(Encoder(config(norm_first), 3)), randomize(Decoder(config(norm_first), 3))
    x, memory = draw(2, 5, WIDTH), draw(2, 7, WIDTH, seed=1)
    assert isinstance(encoder.norm, nn.LayerNorm if norm_first else nn.Identity)
    state = x
    for layer in encoder.layers:
        state = layer(state)
    assert torch.equal(encoder(x), encoder.norm(state))
    outputs, state = decoder(x, memory), x
    for layer, output in zip(decoder.layers, outputs, strict=True):
        state = layer(state, memory)
        assert torch.equal(output, decoder.norm(state))
    assert torch.equal(Encoder(config(norm_first), 0)(x), x)


def test_dropout_acts_in_training_only() -> None:
    block, x = EncoderBlock(config(dropout=0.5)), draw(2, 5, WIDTH)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


@pytest.mark.parametrize("axis", [0, 1, 2, -2, -4])
@pytest.mark.parametrize("masked", [False, True])
def test_apply_along_axis_equals_loops(axis: int, masked: bool) -> None:
    block, x = randomize(EncoderBlock(config())), draw(2, 3, 4, WIDTH)
    mask = draw_mask(2, 3, 4, share=0.7) if masked else None
    out = apply_along_axis(axis, block, x, mask)
    assert out.shape == x.shape
    inputs, results = x.movedim(axis, 2), out.movedim(axis, 2)
    keys = None if mask is None else mask.movedim(axis % 4, 2)
    for i in range(inputs.shape[0]):
        for j in range(inputs.shape[1]):
            expected = block(inputs[i, j], None if keys is None else keys[i, j][None])
            torch.testing.assert_close(results[i, j], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("axis", [3, -1])
def test_the_feature_axis_is_refused(axis: int) -> None:
    with pytest.raises(ValueError, match="features"):
        apply_along_axis(axis, lambda x, mask: x, draw(2, 3, 4, WIDTH))


def test_sinusoid_follows_the_formula() -> None:
    code = sinusoid(torch.tensor([[0.0, 1.0], [7.0, -2.5]]), 6, temperature=100.0)
    assert code.shape == (2, 2, 6)
    for row, column, position in ((0, 0, 0.0), (0, 1, 1.0), (1, 0, 7.0), (1, 1, -2.5)):
        for channel in range(3):
            angle = position / 100.0 ** (2 * channel / 6)
            pair = code[row, column, 2 * channel : 2 * channel + 2].tolist()
            assert pair == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)
    assert sinusoid(torch.zeros(3, dtype=torch.float64), 4).dtype == torch.float64
    with pytest.raises(ValueError, match="width 5 is odd"):
        sinusoid(torch.zeros(3), 5)


def test_sinusoid_2d_concatenates_both_coordinates() -> None:
    position = draw(3, 5, 2)
    expected = torch.cat([sinusoid(position[..., 0], 6), sinusoid(position[..., 1], 6)], -1)
    assert torch.equal(sinusoid_2d(position, 12), expected)
    with pytest.raises(ValueError, match="width 6 is not a multiple of four"):
        sinusoid_2d(position, 6)


def test_learned_positions_and_their_limits() -> None:
    line, plane = LearnedPosition((7,), 8), LearnedPosition((3, 4), 8)
    assert line().shape == (7, 8) and torch.equal(line(5), line.tables[0][:5])
    grid = plane(2, 4)
    assert grid.shape == (2, 4, 8) and plane().shape == (3, 4, 8)
    for row in range(2):
        for column in range(4):
            assert torch.equal(grid[row, column], torch.cat([plane.tables[0][row], plane.tables[1][column]]))
    with pytest.raises(ValueError, match="8 positions requested, 7 learned"):
        line(8)
    with pytest.raises(ValueError, match="5 positions requested, 4 learned"):
        plane(3, 5)
    with pytest.raises(ValueError, match="2 axes do not divide width 7"):
        LearnedPosition((3, 4), 7)
