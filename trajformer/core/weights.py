"""The tensors of a foreign file, taken out one by one, so that none is forgotten and none is bent to fit."""

from __future__ import annotations

import argparse
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trajformer.errors import CheckpointError

_UNREADABLE = (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, AssertionError, RuntimeError, ArithmeticError, LookupError)
_ODD = (OSError, TypeError, ValueError, AttributeError, ImportError, MemoryError, RecursionError)
_WRAPPERS = ("model", "state_dict", "model_dict")  # under which a training script may keep the weights among other things


@dataclass(frozen=True)
class Options:
    """What no tensor's shape tells.

    Attributes:
        heads: attention heads; None for what is usual in the layout.
        labels: names of the classes, in the order of the outputs; none if empty.
    """

    heads: int | None = None
    labels: tuple[str, ...] = ()


class Source:
    """Tensors by name; complaints name the file and the tensor.

    A layout takes what it knows; `check_empty` then complains of whatever is left.

    Args:
        tensors: plain tensors by name.
        name: of the file.
    """

    def __init__(self, tensors: Mapping[str, Tensor], name: str) -> None:
        self.name, self._left = name, dict(tensors)

    def __contains__(self, key: str) -> bool:
        """Whether this tensor is there and not yet taken."""
        return key in self._left

    def peek(self, key: str, dimensions: int) -> Tensor:
        """A tensor whose shape tells sizes; it stays.

        Raises:
            CheckpointError: there is none of this name, or it has another number of dimensions, or one that is empty.
        """
        if key not in self._left:
            raise CheckpointError(f"{self.name}: no tensor '{key}': not of this layout, or incomplete")
        tensor = self._left[key]
        if tensor.ndim != dimensions or not tensor.numel():
            found = list(tensor.shape)
            raise CheckpointError(f"{self.name}: '{key}' has shape {found}, expected {dimensions} dimensions, none empty")
        return tensor

    def take(self, key: str, *shape: int) -> Tensor:
        """A tensor as float32, which is then no longer here.

        Raises:
            CheckpointError: there is none of this name, it has another shape, or its values are not all finite numbers.
        """
        tensor = self.peek(key, len(shape))
        if tuple(tensor.shape) != shape:
            raise CheckpointError(f"{self.name}: '{key}' has shape {list(tensor.shape)}, expected {list(shape)}")
        if not tensor.is_floating_point():
            raise CheckpointError(f"{self.name}: '{key}' holds {tensor.dtype}, expected floating-point numbers")
        tensor = self._left.pop(key).float()
        if not tensor.isfinite().all():
            raise CheckpointError(f"{self.name}: '{key}' has values that are not finite")
        return tensor

    def linear(self, key: str, outputs: int, inputs: int, *, bias: bool = True) -> dict[str, Tensor]:
        """`weight` and `bias` of a linear layer; zeros for the bias of a layer that has none.

        Raises:
            CheckpointError: as `take`.
        """
        weight = self.take(f"{key}.weight", outputs, inputs)
        return {"weight": weight, "bias": self.take(f"{key}.bias", outputs) if bias else torch.zeros(outputs)}

    def norm(self, key: str, width: int) -> dict[str, Tensor]:
        """`weight` and `bias` of a layer norm.

        Raises:
            CheckpointError: as `take`.
        """
        return {name: self.take(f"{key}.{name}", width) for name in ("weight", "bias")}

    def take_derived(self, key: str, expected: Tensor) -> None:
        """Take a tensor that follows from the sizes, such as a table of sinusoids, where the file has it.

        Raises:
            CheckpointError: it is not what it should be, so the file means something else.
        """
        if key in self._left:
            found = self._left.pop(key)
            if found.shape != expected.shape or not torch.allclose(found.to(expected), expected, atol=1e-5):
                raise CheckpointError(f"{self.name}: '{key}' is not what follows from the sizes")

    def count(self, pattern: str) -> int:
        """How many layers there are: the first number n for which `pattern`, with n in place of {}, is no tensor here."""
        number = 0
        while pattern.format(number) in self._left:
            number += 1
        return number

    def check_empty(self) -> None:
        """All has been taken.

        Raises:
            CheckpointError: names a tensor that no part of the model is made of.
        """
        if self._left:
            more = f" (and {len(self._left) - 1} more)" if len(self._left) > 1 else ""
            raise CheckpointError(f"{self.name}: tensor '{min(self._left)}'{more} has no place in the model of this layout")


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors with names `prefix.name`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def read_source(path: Path) -> Source:
    """Tensors of a .safetensors file, or of a PyTorch one, whether it has them bare or in a dict under one of a few usual names.

    Nothing in the file is executed.

    Raises:
        CheckpointError: no such file, damaged, or with anything but plain tensors in it.
    """
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file")
    raw = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    for wrapper in _WRAPPERS:
        if isinstance(raw, dict) and isinstance(raw.get(wrapper), dict):
            raw = raw[wrapper]
    if not isinstance(raw, dict) or not raw:
        raise CheckpointError(f"{path}: holds no tensors by name")
    for key, value in raw.items():
        if not isinstance(key, str) or not isinstance(value, Tensor):
            raise CheckpointError(f"{path}: entry {str(key)[:80]!r} is no tensor")
        if not _is_plain(value):
            raise CheckpointError(f"{path}: '{key}' is no plain dense tensor")
    return Source(raw, str(path))


def _is_plain(tensor: Tensor) -> bool:
    """Dense, and as large on disk as it says (a stretched one would burst the memory when copied)."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return False
    return tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()


def _read_torch(path: Path) -> Any:
    try:
        # Training scripts keep their options beside the weights: a Namespace holds values and does nothing.
        safe = torch.serialization.safe_globals([argparse.Namespace])
        with safe, warnings.catch_warnings(action="ignore"):  # about pickles that are refused anyway
            return torch.load(path, map_location="cpu", weights_only=True)
    except (*_UNREADABLE, *_ODD) as error:
        raise CheckpointError(f"{path}: not readable (damaged, or not plain tensors)") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError as error:
        raise CheckpointError(f"{path}: needs the package safetensors (pip install safetensors)") from error
    try:
        return load_file(path)
    except (SafetensorError, *_UNREADABLE, *_ODD) as error:
        raise CheckpointError(f"{path}: not a readable safetensors file ({' '.join(str(error).split())[:120]})") from error
