"""Key/value caches and recorded attention weights."""

import pytest
import torch
from support.tensors import weights_of

from trajformer.core.attention import KVCache, MultiHeadAttention, recorded_weights
from trajformer.core.blocks import BlockConfig, Decoder, DecoderCache, Encoder

BLOCK = BlockConfig(16, 2, 16)


def test_a_cache_appends_and_a_fixed_cache_is_filled_once() -> None:
    parts = [torch.randn(3, 2, 1, 4) for _ in range(4)]
    growing, fixed = KVCache(), KVCache(fixed=True)
    growing.update(lambda: (parts[0], parts[1]))
    key, value = growing.update(lambda: (parts[2], parts[3]))
    assert torch.equal(key, torch.cat([parts[0], parts[2]], -2)) and torch.equal(value, torch.cat([parts[1], parts[3]], -2))
    fixed.update(lambda: (parts[0], parts[1]))
    key, value = fixed.update(lambda: pytest.fail("computed again"))
    assert key is parts[0] and value is parts[1]
    growing.select(torch.tensor([2, 2]))
    assert growing.key is not None and torch.equal(growing.key[0], torch.cat([parts[0], parts[2]], -2)[2])
    KVCache().select(torch.tensor([0]))  # an empty cache has no rows to select


def test_a_decoder_cache_counts_tokens_and_selects_rows() -> None:
    torch.manual_seed(0)
    decoder, cache = Decoder(BLOCK, 2).eval(), DecoderCache(2)
    memory = torch.randn(3, 5, 16)
    assert cache.length == 0
    for length in (1, 2, 3):
        decoder(torch.randn(3, 1, 16), memory, cache=cache)
        assert cache.length == length
    self_cache, cross_cache = cache.layers[1]
    before = cross_cache.key
    cache.select(torch.tensor([1, 0, 2]), memory=False)
    assert cross_cache.key is before and cross_cache.key.shape == (3, 2, 5, 8) and self_cache.key.shape == (3, 2, 3, 8)
    cache.select(torch.tensor([2]))
    assert torch.equal(cross_cache.key, before[2:])


def test_recorded_weights_do_not_change_the_output() -> None:
    torch.manual_seed(0)
    encoder = Encoder(BLOCK, 2).eval()
    x, real = torch.randn(2, 5, 16), torch.tensor([[True] * 5, [True, True, True, False, False]])[:, None]
    expected = encoder(x, real)
    with recorded_weights(encoder) as record:
        assert torch.equal(encoder(x, real), expected)
    assert list(record) == ["layers.0.attention.sublayer", "layers.1.attention.sublayer"]
    for (weights,) in record.values():
        assert weights.shape == (2, 2, 5, 5) and not weights.requires_grad and not weights[1, ..., 3:].any()
    layer: MultiHeadAttention = encoder.layers[0].attention.sublayer
    inputs = encoder.layers[0].attention.pre(x)
    assert torch.equal(record["layers.0.attention.sublayer"][0], weights_of(layer, inputs, inputs, mask=real))
    encoder(x, real)
    assert [len(calls) for calls in record.values()] == [1, 1], "later calls are not recorded"


@pytest.mark.parametrize("cached", [False, True])
def test_weights_of_each_decoding_step_are_recorded(cached: bool) -> None:
    decoder, cache = Decoder(BLOCK, 1).eval(), DecoderCache(1) if cached else None
    x, memory = torch.randn(2, 2, 16), torch.randn(2, 5, 16)
    with recorded_weights(decoder) as record:
        decoder(x[:, :1], memory, cache=cache)
        decoder(x[:, 1:], memory, cache=cache)
    assert [weights.shape[-1] for weights in record["layers.0.self_attention.sublayer"]] == ([1, 2] if cached else [1, 1])
