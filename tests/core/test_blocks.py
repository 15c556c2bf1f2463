"""Blocks against PyTorch's transformer layers with the same weights; positions, padding, stacks, axes, encodings."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from trajformer.core.attention import MultiHeadAttention
from trajformer.core.axes import apply_along_axis
from trajformer.core.blocks import BlockConfig, Decoder, DecoderBlock, Encoder, EncoderBlock, FeedForward
from trajformer.core.positions import LearnedPosition, sinusoid, sinusoid_2d

WIDTH = 16
SHAPES = [(norm_first, activation) for norm_first in (True, False) for activation in ("relu", "gelu")]


def tokens(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def config(norm_first: bool = True, activation: str = "relu", **changes: float) -> BlockConfig:
    sizes = {"width": WIDTH, "heads": 4, "feedforward": 24, "dropout": 0.0} | changes
    return BlockConfig(norm_first=norm_first, activation=activation, **sizes)


def randomise(module: nn.Module) -> nn.Module:
    """Weights without zeros and ones, so that a swapped norm or bias shows."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return module


def copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.data.copy_(torch.cat([part.weight for part in parts]))
    theirs.in_proj_bias.data.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(ours.out.state_dict())


def copy_feedforward(ours: FeedForward, theirs: nn.Module) -> None:
    theirs.linear1.load_state_dict(ours[0].state_dict())
    theirs.linear2.load_state_dict(ours[3].state_dict())


@pytest.mark.parametrize(("norm_first", "activation"), SHAPES)
def test_encoder_block_equals_torch(norm_first: bool, activation: str) -> None:
    ours = randomise(EncoderBlock(config(norm_first, activation, norm_eps=1e-3)))
    arguments = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": norm_first}
    theirs = nn.TransformerEncoderLayer(WIDTH, 4, 24, layer_norm_eps=1e-3, **arguments)
    copy_attention(ours.attention.sublayer, theirs.self_attn)
    copy_feedforward(ours.feedforward.sublayer, theirs)
    theirs.norm1.load_state_dict(ours.attention.norm.state_dict())
    theirs.norm2.load_state_dict(ours.feedforward.norm.state_dict())
    x, real = tokens(3, 6, WIDTH), torch.arange(6) < torch.tensor([6, 4, 1])[:, None]
    expected = theirs(x, src_key_padding_mask=~real)
    torch.testing.assert_close(ours(x, real[:, None])[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("norm_first", "activation"), SHAPES)
def test_decoder_block_equals_torch(norm_first: bool, activation: str) -> None:
    ours = randomise(DecoderBlock(config(norm_first, activation)))
    theirs = nn.TransformerDecoderLayer(WIDTH, 4, 24, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first)
    copy_attention(ours.self_attention.sublayer, theirs.self_attn)
    copy_attention(ours.cross_attention.sublayer, theirs.multihead_attn)
    copy_feedforward(ours.feedforward.sublayer, theirs)
    for norm, part in (("norm1", ours.self_attention), ("norm2", ours.cross_attention), ("norm3", ours.feedforward)):
        getattr(theirs, norm).load_state_dict(part.norm.state_dict())
    x, memory = tokens(3, 5, WIDTH), tokens(3, 7, WIDTH, seed=1)
    real, causal = torch.arange(7) < torch.tensor([7, 4, 1])[:, None], torch.ones(5, 5, dtype=torch.bool).tril()
    expected = theirs(x, memory, tgt_mask=~causal, memory_key_padding_mask=~real)
    out = ours(x, memory, mask=causal, memory_mask=real[:, None])
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)


def record(attention: MultiHeadAttention) -> list[tuple[Tensor, ...]]:
    """Collects the arguments (query, key, value) of every call."""
    calls: list[tuple[Tensor, ...]] = []
    attention.register_forward_pre_hook(lambda module, arguments: calls.append(arguments[:3]))
    return calls


@pytest.mark.parametrize("norm_first", [True, False])
def test_positions_go_to_queries_and_keys_only(norm_first: bool) -> None:
    x, memory = tokens(2, 5, WIDTH), tokens(2, 7, WIDTH, seed=1)
    place, there = tokens(5, WIDTH, seed=2), tokens(7, WIDTH, seed=3)
    block = randomise(EncoderBlock(config(norm_first)))
    calls = record(block.attention.sublayer)
    block(x, position=place)
    [(query, key, value)] = calls
    assert torch.equal(value, block.attention.norm(x) if norm_first else x)
    assert torch.equal(query, value + place) and torch.equal(key, query)

    block = randomise(DecoderBlock(config(norm_first)))
    inner, cross = record(block.self_attention.sublayer), record(block.cross_attention.sublayer)
    block(x, memory, position=place, memory_position=there)
    [(query, key, value)] = inner
    assert torch.equal(value, block.self_attention.norm(x) if norm_first else x)
    assert torch.equal(query, value + place) and torch.equal(key, query)
    [(_, key, value)] = cross
    assert torch.equal(key, memory + there) and torch.equal(value, memory)
    placed = block(x, memory, position=place, memory_position=there)
    assert (placed - block(x, memory, memory_position=there)).abs().max() > 1e-3
    assert (placed - block(x, memory, position=place)).abs().max() > 1e-3


@pytest.mark.parametrize("norm_first", [True, False])
def test_padding_tokens_do_not_touch_real_ones(norm_first: bool) -> None:
    encoder, decoder = randomise(Encoder(config(norm_first), 3)), randomise(Decoder(config(norm_first), 2))
    x, queries = tokens(2, 6, WIDTH), tokens(2, 4, WIDTH, seed=1)
    padded = torch.cat([x, 100 * tokens(2, 3, WIDTH, seed=2)], 1)
    keys = (torch.arange(9) < 6).expand(2, 1, 9)
    memory = encoder(padded, keys)
    torch.testing.assert_close(memory[:, :6], encoder(x), atol=1e-5, rtol=1e-5)
    for a, b in zip(decoder(queries, memory, memory_mask=keys), decoder(queries, encoder(x)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm_first", [True, False])
def test_stacks_are_their_layers_one_after_the_other(norm_first: bool) -> None:
    encoder, decoder = randomise(Encoder(config(norm_first), 3)), randomise(Decoder(config(norm_first), 3))
    x, memory = tokens(2, 5, WIDTH), tokens(2, 7, WIDTH, seed=1)
    assert isinstance(encoder.norm, nn.LayerNorm if norm_first else nn.Identity)
    state = x
    for layer in encoder.layers:
        state = layer(state)
    assert torch.equal(encoder(x), encoder.norm(state))
    outputs, state = decoder(x, memory), x
    assert len(outputs) == 3
    for layer, output in zip(decoder.layers, outputs, strict=True):
        state = layer(state, memory)
        assert torch.equal(output, decoder.norm(state))
    assert torch.equal(Encoder(config(norm_first), 0)(x), x)


def test_dropout_acts_in_training_alone() -> None:
    block, x = EncoderBlock(config(dropout=0.5)), tokens(2, 5, WIDTH)
    assert not torch.equal(block(x), block(x))
    block.eval()
    assert torch.equal(block(x), block(x))


@pytest.mark.parametrize("axis", [0, 1, 2, -2, -4])
@pytest.mark.parametrize("masked", [False, True])
def test_along_equals_loops(axis: int, masked: bool) -> None:
    block = randomise(EncoderBlock(config()))
    x = tokens(2, 3, 4, WIDTH)
    mask = torch.rand(2, 3, 4, generator=torch.Generator().manual_seed(5)) > 0.3 if masked else None
    out = apply_along_axis(axis, block, x, mask)
    assert out.shape == x.shape
    fibres, results = x.movedim(axis, 2), out.movedim(axis, 2)
    keys = None if mask is None else mask.movedim(axis % 4, 2)
    for i in range(fibres.shape[0]):
        for j in range(fibres.shape[1]):
            expected = block(fibres[i, j], None if keys is None else keys[i, j][None])
            torch.testing.assert_close(results[i, j], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("axis", [3, -1])
def test_the_features_are_no_axis(axis: int) -> None:
    with pytest.raises(ValueError, match="features"):
        apply_along_axis(axis, lambda x, mask: x, tokens(2, 3, 4, WIDTH))


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


def test_sinusoid_2d_is_one_half_a_coordinate() -> None:
    position = tokens(3, 5, 2)
    code = sinusoid_2d(position, 12)
    assert code.shape == (3, 5, 12)
    assert torch.equal(code, torch.cat([sinusoid(position[..., 0], 6), sinusoid(position[..., 1], 6)], -1))
    for width in (5, 6):
        with pytest.raises(ValueError, match=f"width {width} "):
            sinusoid_2d(position, width)


def test_learned_positions_and_their_limits() -> None:
    line, plane = LearnedPosition((7,), 8), LearnedPosition((3, 4), 8)
    assert line().shape == (7, 8) and torch.equal(line(5), line()[:5]) and torch.equal(line(5), line.tables[0][:5])
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
