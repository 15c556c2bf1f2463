"""Seeded random tensors, PyTorch attention with given weights, and tensors of a batch by name."""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from trajformer.core.multihead import MultiHeadAttention, recorded_weights
from trajformer.data.batch import SceneBatch, Truth


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Normal numbers with standard deviation `scale`; the same seed gives the same numbers."""
    return scale * torch.randn(shape, generator=generator(seed))


def draw_mask(*shape: int, share: float = 0.65, seed: int = 3) -> Tensor:
    """A boolean mask with this share of True entries."""
    return torch.rand(shape, generator=generator(seed)) < share


def copy_attention(
    source: MultiHeadAttention, target: nn.MultiheadAttention
) -> nn.MultiheadAttention:
    parts = (source.query, source.key, source.value)
    target.in_proj_weight.data.copy_(torch.cat([part.weight for part in parts]))
    target.in_proj_bias.data.copy_(torch.cat([part.bias for part in parts]))
    target.out_proj.load_state_dict(source.out.state_dict())
    return target


def randomize(module: Any, seed: int = 0, std: float = 0.2) -> Any:
    """Move every parameter away from its initial value, so that exchanged ones are noticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * std)
    return module


def weights_of(layer: MultiHeadAttention, *inputs: Tensor, **options: Any) -> Tensor:
    """The attention weights of one call of a layer, without a gradient."""
    with torch.no_grad(), recorded_weights(layer) as record:
        layer(*inputs, **options)
    return record[""][0]


def tensors(batch: SceneBatch) -> dict[str, Tensor]:
    """The tensors by name; "target" and "target_valid" are the fields of the truth."""
    values = {
        item.name: getattr(batch.observation, item.name) for item in fields(batch.observation)
    }
    by_name = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return by_name | {"target": batch.truth.position, "target_valid": batch.truth.valid}


def edit(batch: SceneBatch, **values: Any) -> SceneBatch:
    """A copy with some fields replaced, by the names of `tensors`."""
    truth = Truth(
        values.pop("target", batch.truth.position), values.pop("target_valid", batch.truth.valid)
    )
    return SceneBatch(replace(batch.observation, **values), truth)


def differing(left: SceneBatch, right: SceneBatch) -> set[str]:
    """Names of the tensors that are not equal bit by bit."""
    return {name for name, value in tensors(left).items() if not value.equal(tensors(right)[name])}
