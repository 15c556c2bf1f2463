"""What attention keeps between steps and what it tells on request; dropout by bytes; schedules of the learning rate."""

from __future__ import annotations

import pytest
import torch

from trajformer.core.attention import MultiHeadAttention
from trajformer.core.blocks import BlockConfig, Decoder, Encoder
from trajformer.core.cache import DecoderCache, KVCache
from trajformer.core.dropout import Dropout
from trajformer.core.record import recorded_weights
from trajformer.recipes.recipe import OptimConfig
from trajformer.training.optim import build_optimizer, rate_factor


def test_a_growing_cache_appends_and_a_fixed_one_is_filled_once() -> None:
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
    KVCache().select(torch.tensor([0]))  # nothing to select yet


def test_a_decoder_cache_counts_tokens_and_can_leave_the_memory_alone() -> None:
    torch.manual_seed(0)
    decoder, cache = Decoder(BlockConfig(16, 2, 16), 2).eval(), DecoderCache(2)
    memory = torch.randn(3, 5, 16)
    assert cache.length == 0
    for length in (1, 2, 3):
        decoder(torch.randn(3, 1, 16), memory, cache=cache)
        assert cache.length == length
    own, cross = cache.layers[1]
    before = cross.key
    cache.select(torch.tensor([1, 0, 2]), memory=False)
    assert cross.key is before and cross.key.shape == (3, 2, 5, 8) and own.key.shape == (3, 2, 3, 8)
    cache.select(torch.tensor([2]))
    assert cross.key.shape[0] == 1 and torch.equal(cross.key[0], before[2])


@pytest.mark.parametrize("cached", [False, True])
def test_weights_on_record_change_no_output_and_are_those_that_were_used(cached: bool) -> None:
    torch.manual_seed(0)
    encoder, decoder = Encoder(BlockConfig(16, 2, 16), 2).eval(), Decoder(BlockConfig(16, 2, 16), 1).eval()
    x, real = torch.randn(2, 5, 16), torch.tensor([[True] * 5, [True, True, True, False, False]])[:, None]
    plain = encoder(x, real)
    with recorded_weights(encoder) as record:
        assert torch.equal(encoder(x, real), plain)
    assert list(record) == ["layers.0.attention.sublayer", "layers.1.attention.sublayer"]
    for (weights,) in record.values():
        assert weights.shape == (2, 2, 5, 5) and not weights.requires_grad and not weights[1, ..., 3:].any()
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 5))
    layer: MultiHeadAttention = encoder.layers[0].attention.sublayer
    seen = encoder.layers[0].attention.pre(x)
    values = layer._split(layer.value(seen))
    rebuilt = layer.out((record["layers.0.attention.sublayer"][0] @ values).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(rebuilt, layer(seen, seen, mask=real), atol=1e-6, rtol=1e-5)
    cache = DecoderCache(1) if cached else None
    with recorded_weights(decoder) as record:
        decoder(x[:, :1], plain, cache=cache)
        decoder(x[:, 1:2], plain, cache=cache)
    assert [weights.shape[-1] for weights in record["layers.0.self_attention.sublayer"]] == ([1, 2] if cached else [1, 1])
    assert not any(module._forward_hooks for module in [*encoder.modules(), *decoder.modules()])


def test_hooks_are_gone_after_an_error() -> None:
    encoder = Encoder(BlockConfig(16, 2, 16), 1)
    with pytest.raises(RuntimeError), recorded_weights(encoder):
        encoder(torch.randn(2, 5, 7))
    assert not any(module._forward_hooks for module in encoder.modules())


@pytest.mark.parametrize("p", [1 / 256, 0.1, 0.3, 0.75, 254 / 256])
@pytest.mark.parametrize("shape", [(1000, 257), (3,), (0, 4)])
def test_dropout_drops_the_share_it_should_and_keeps_the_mean(p: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, x = Dropout(p), torch.ones(shape, requires_grad=True)
    out = layer(x)
    assert out.shape == x.shape and layer.eval()(x) is x
    if x.numel() > 1000:
        dropped = round(p * 256) / 256
        assert (out == 0).float().mean().item() == pytest.approx(dropped, abs=4e-3)
        assert out.mean().item() == pytest.approx(1, abs=1e-2 if p < 0.9 else 1e-1) and len(out.detach().unique()) == 2
        neighbours = ((out[:, 1:] == 0) & (out[:, :-1] == 0)).float().mean().item()
        assert neighbours == pytest.approx(dropped**2, abs=5e-3), "bytes of one draw must be independent"
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())


def test_dropout_follows_the_seed_and_its_limits() -> None:
    x = torch.ones(64)
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(Dropout(0.5)(x))
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert Dropout(0.0)(x) is x and not Dropout(1.0)(x).any()
    assert Dropout(0.5)(x.bfloat16()).dtype == torch.bfloat16


def test_schedules_follow_their_formulas() -> None:
    for schedule, wanted in (
        ("inverse_sqrt", {0: 0.01, 99: 1.0, 100: (100 / 101) ** 0.5, 399: 0.5}),
        ("drop", {0: 0.01, 99: 1.0, 799: 1.0, 800: 0.1, 999: 0.1}),
        ("cosine", {0: 0.01, 99: 1.0, 550: 0.5, 1000: 0.0}),
        ("linear", {0: 0.01, 99: 1.0, 100: 1.0, 550: 0.5, 1000: 0.0}),
    ):
        config = OptimConfig(schedule=schedule, warmup=0.1, drop=0.8)  # type: ignore[arg-type]
        assert {step: rate_factor(step, 1000, config) for step in wanted} == pytest.approx(wanted, abs=1e-9)


def test_a_group_may_learn_more_slowly() -> None:
    layers = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    groups = [{"params": list(layers[0].parameters())}, {"params": list(layers[1].parameters()), "lr": 0.1}]
    optimizer, schedule = build_optimizer(groups, OptimConfig(learning_rate=1e-3, warmup=0.0), 10)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1e-3, 1e-4])
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[1]["lr"] == pytest.approx(optimizer.param_groups[0]["lr"] / 10)
