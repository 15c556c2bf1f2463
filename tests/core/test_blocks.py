"""Blocks agree with PyTorch's transformer layers; positions, padding, stacks, axes, position encodings."""

import itertools

import pytest
import torch
from support.tensors import copy_attention, draw, draw_mask, randomize
from torch import nn

from trajformer.core.blocks import BlockConfig, DecoderBlock, EncoderBlock, FeedForward

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
