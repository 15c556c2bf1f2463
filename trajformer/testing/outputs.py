"""Outputs that a loss receives from a model, and tools that several checks share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trajformer.data.batch import Observation, SceneBatch
from trajformer.models.forecaster import Forecaster


def training_loss(model: Forecaster, batch: SceneBatch, loss: nn.Module | None = None) -> Tensor:
    """The loss of a batch in training mode, by default the model's default loss."""
    if loss is None:
        loss = model.choose_loss(None).build()
    torch.manual_seed(0)
    terms: dict[str, Tensor] = loss(model.train(), batch)
    return terms["loss"]


@contextmanager
def record_outputs(model: Forecaster) -> Iterator[list[Any]]:
    """Record the outputs of the model and its `compiled_methods`, in the order of calls.

    Outputs of methods that receive more than the observation are left out.

    Raises AssertionError: `forward` receives more than the observation, or neither the model nor
    one of the methods is called.
    """
    outputs: list[Any] = []
    called = False

    def record(name: str, method: Callable[..., Any], *inputs: Any) -> Any:
        nonlocal called
        called = True
        output = method(*inputs)
        only_observation = len(inputs) == 1 and isinstance(inputs[0], Observation)
        if name == "forward":
            assert only_observation, "the loss calls the model with more than the observation"
        if only_observation:
            outputs.append(output)
        return output

    # Attributes of the instance precede methods of the class.
    names = ("forward", *model.compiled_methods)
    for name in names:
        model.__dict__[name] = partial(record, name, getattr(model, name))
    try:
        yield outputs
    finally:
        for name in names:
            del model.__dict__[name]
    hint = "list the methods that it calls in compiled_methods"
    assert called, f"the loss calls neither the model nor its compiled_methods: {hint}"


def remove_dropout(model: nn.Module) -> None:
    """Set the probabilities of dropout to 0, also the attributes `dropout` of layers."""
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        if isinstance(getattr(layer, "dropout", None), float):
            layer.dropout = 0.0  # type: ignore[assignment]


def tensors_of(value: object) -> list[Tensor]:
    """All tensors of nested records, tuples and dicts, in order."""
    if isinstance(value, Tensor):
        return [value]
    parts: list[Any] = []
    if is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    tensors = []
    for part in parts:
        tensors += tensors_of(part)
    return tensors


def assert_equal(expected: list[Any], actual: list[Any], message: str) -> None:
    """Check that all tensors of two lists of outputs are equal bit by bit."""
    first = tensors_of(expected)
    second = tensors_of(actual)
    assert len(first) == len(second), message
    for left, right in zip(first, second, strict=True):
        assert torch.equal(left, right), message
