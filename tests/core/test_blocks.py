"""Blocks agree with PyTorch's transformer layers; positions, padding, stacks, axes, position encodings."""

import itertools
import math

import pytest
import torch
from support.tensors import copy_attention, draw, draw_mask, randomize
from torch import Tensor, nn

from trajformer.core.attention import MultiHeadAttention
from trajformer.core.blocks import BlockConfig, Decoder, DecoderBlock, Encoder, EncoderBlock, FeedForward
from trajformer.core.positions import LearnedPosition, sinusoid, sinusoid_image

WIDTH = 16
VARIANTS = [(norm_first, activation) for norm_first in (True, False) for activation in ("relu", "gelu")]


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


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (2, 0)])
@pytest.mark.parametrize("shared", [False, True])  # one mask for all sequences
def test_blocks_take_any_leading_axes(lead: tuple[int, ...], shared: bool) -> None:
    block, x = randomize(DecoderBlock(config())), draw(*lead, 4, WIDTH)
    memory, mask = draw(*lead, 5, WIDTH), draw_mask(*(() if shared else lead), 4, 5, share=0.7)
    out = block(x, memory, memory_mask=mask)
    assert out.shape == x.shape
    for index in itertools.product(*map(range, lead)):
        expected = block(x[index], memory[index], memory_mask=mask if shared else mask[index])
        torch.testing.assert_close(out[index], expected, atol=1e-5, rtol=1e-5)


def test_sinusoid_follows_the_formula() -> None:
    code = sinusoid(torch.tensor([[0.0, 1.0], [7.0, -2.5]]), 6)
    assert code.shape == (2, 2, 6)
    for row, column, position in ((0, 0, 0.0), (0, 1, 1.0), (1, 0, 7.0), (1, 1, -2.5)):
        for channel in range(3):
            angle = position / 10_000.0 ** (2 * channel / 6)
            pair = code[row, column, 2 * channel : 2 * channel + 2].tolist()
            assert pair == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)
    assert sinusoid(torch.zeros(3, dtype=torch.float64), 4).dtype == torch.float64
    with pytest.raises(ValueError, match="width 5 is odd"):
        sinusoid(torch.zeros(3), 5)


def test_sinusoids_of_an_image_are_those_of_the_shares_of_its_height_and_width() -> None:
    mask = torch.zeros(1, 4, 5, dtype=torch.bool)
    mask[0, :2, :4] = True
    row, column = 2 * math.pi * torch.arange(1, 3) / 2, 2 * math.pi * torch.arange(1, 5) / 4
    expected = torch.cat([sinusoid(row, 6)[:, None].expand(2, 4, 6), sinusoid(column, 6).expand(2, 4, 6)], -1)
    torch.testing.assert_close(sinusoid_image(mask, 12)[0, :2, :4], expected, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match="width 6 is not a multiple of four"):
        sinusoid_image(mask, 6)


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
