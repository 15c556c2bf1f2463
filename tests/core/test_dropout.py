"""Dropout with random bytes on a CPU: dropped share, mean, gradient, seeds."""

import pytest
import torch

from trajformer.core.dropout import Dropout


@pytest.mark.parametrize("p", [1 / 256, 0.1, 0.3, 0.75, 254 / 256])
def test_dropout_drops_the_given_share_and_keeps_the_mean(p: float) -> None:
    torch.manual_seed(0)
    layer, x = Dropout(p), torch.ones(1000, 257)
    out, dropped = layer(x), round(p * 256) / 256
    assert layer.eval()(x) is x
    assert (out == 0).float().mean().item() == pytest.approx(dropped, abs=4e-3)
    assert out.mean().item() == pytest.approx(1, abs=1e-2 if p < 0.9 else 1e-1) and len(out.unique()) == 2
    neighbors = ((out[:, 1:] == 0) & (out[:, :-1] == 0)).float().mean().item()
    assert neighbors == pytest.approx(dropped**2, abs=5e-3), "the bytes of one random number must be independent"


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
