"""Tensors of a SceneBatch by name, for comparisons; "target" and "target_valid" are the fields of its truth."""

from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from trajformer.data.batch import SceneBatch, Truth


def tensors(batch: SceneBatch) -> dict[str, Tensor]:
    values = {item.name: getattr(batch.observation, item.name) for item in fields(batch.observation)}
    by_name = {name: value for name, value in values.items() if isinstance(value, Tensor)}
    return by_name | {"target": batch.truth.position, "target_valid": batch.truth.valid}


def edit(batch: SceneBatch, **values: Any) -> SceneBatch:
    """A copy with some fields replaced, by the names of `tensors`."""
    truth = Truth(values.pop("target", batch.truth.position), values.pop("target_valid", batch.truth.valid))
    return SceneBatch(replace(batch.observation, **values), truth)


def differing(left: SceneBatch, right: SceneBatch) -> set[str]:
    """Names of the tensors that are not equal bit by bit."""
    return {name for name, value in tensors(left).items() if not value.equal(tensors(right)[name])}
