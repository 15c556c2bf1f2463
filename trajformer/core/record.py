"""Record the attention weights of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trajformer.core.attention import MultiHeadAttention


@contextmanager
def recorded_weights(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Record the weights of all attention layers in `model` inside the context, for plotting. Outputs do not change.

    Yields:
        The weights [..., heads, L, S] of each call, detached, by the name of the `MultiHeadAttention` in `model`.
    """
    record: dict[str, list[Tensor]] = {}

    def make_hook(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            assert isinstance(module, MultiHeadAttention)
            with torch.no_grad():
                record.setdefault(name, []).append(module.weights(*args, **kwargs))

        return hook

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, MultiHeadAttention)]
    handles = [module.register_forward_hook(make_hook(name), with_kwargs=True) for name, module in layers]
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()
