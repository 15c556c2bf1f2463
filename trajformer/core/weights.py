"""Safe reading of foreign state dicts.

No code is executed, every tensor is checked, and every tensor must be used.
"""

import argparse
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trajformer.errors import UNREADABLE, CheckpointError, TrajformerError

# Keys under which training scripts save the weights.
_WRAPPERS = ("model", "state_dict", "model_dict")
# Our names of layers and the names in PyTorch's `nn.Transformer`, see `StateDictReader.take_model`.
TORCH_LAYERS = {
    r"(encoder\.layers\.[^.]+)\.feedforward\.norm": r"\1.norm2",
    r"feedforward\.norm": "norm3",
    r"feedforward\.sublayer\.0": "linear1",
    r"feedforward\.sublayer\.3": "linear2",
    r"cross_attention\.norm": "norm2",
    r"(self_)?attention\.norm": "norm1",
    r"cross_attention\.sublayer": "multihead_attn",
    r"(self_)?attention\.sublayer": "self_attn",
    r"attn\.out\.": "attn.out_proj.",
    r"attn\.query\.(.*)": r"attn.in_proj_\1[0/3]",
    r"attn\.key\.(.*)": r"attn.in_proj_\1[1/3]",
    r"attn\.value\.(.*)": r"attn.in_proj_\1[2/3]",
}
# A recipe or a model config, and the state dict of its model.
Converted = tuple[Any, dict[str, Tensor]]


@dataclass(frozen=True)
class Options:
    """Properties of a model that the shapes of its tensors do not show."""

    heads: int | None = None  # number of attention heads; None for the usual number of the layout
    labels: tuple[str, ...] = ()  # names of the classes in the order of the outputs; may be empty

    def check_labels(self, classes: int, name: str) -> None:
        """Raise CheckpointError, with the name of the file, unless each class has a label.

        No labels at all are allowed.
        """
        if self.labels and len(self.labels) != classes:
            raise CheckpointError(f"{name}: {classes} classes, but {len(self.labels)} labels")


class StateDictReader:
    """Takes dense tensors out of a foreign state dict.

    Error messages name the file and the tensor.
    """

    def __init__(self, tensors: Mapping[str, Tensor], name: str) -> None:
        self.name = name
        self._left = dict(tensors)
        self._parts: dict[str, tuple[Tensor, ...]] = {}

    def __contains__(self, key: str) -> bool:
        """Whether the file has this tensor and it was not taken yet."""
        return key in self._left

    def peek(self, key: str, dimensions: int) -> Tensor:
        """A tensor, not taken, to read sizes from its shape.

        Raises CheckpointError: it is missing, empty, or has another number of dimensions.
        """
        if key not in self._left:
            raise CheckpointError(
                f"{self.name}: no tensor '{key}': another layout, or an incomplete file"
            )
        tensor = self._left[key]
        if tensor.ndim != dimensions or not tensor.numel():
            raise CheckpointError(
                f"{self.name}: '{key}' has shape {list(tensor.shape)}, "
                f"expected {dimensions} dimensions, none empty"
            )
        return tensor

    def take(self, key: str, *shape: int) -> Tensor:
        """Take a tensor as float32.

        Raises CheckpointError: it is missing, of another shape, not floating-point, or not finite.
        """
        tensor = self.peek(key, len(shape))
        if tuple(tensor.shape) != shape:
            raise CheckpointError(
                f"{self.name}: '{key}' has shape {list(tensor.shape)}, expected {list(shape)}"
            )
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{self.name}: '{key}' holds {tensor.dtype}, expected floating-point numbers"
            )
        tensor = self._left.pop(key).float()
        if not tensor.isfinite().all():
            raise CheckpointError(f"{self.name}: '{key}' has values that are not finite")
        return tensor

    def take_constant(self, key: str, expected: Tensor, tolerance: float = 1e-5) -> None:
        """Take a tensor with known values, such as a table of sinusoids, if the file has it.

        Raises CheckpointError: it has other values.
        """
        if key not in self._left:
            return
        tensor = self._left.pop(key)
        equal = tensor.shape == expected.shape and torch.allclose(
            tensor.to(expected), expected, atol=tolerance
        )
        if not equal:
            raise CheckpointError(
                f"{self.name}: '{key}' differs from the values that its size implies"
            )

    def take_model(
        self,
        build: Callable[[], nn.Module],
        rules: Mapping[str, str],
        known: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Take all tensors of a model and return its state dict.

        Args:
            build: makes the model; it is built on the meta device.
            rules: regular expressions and replacements that turn our name of a tensor into the
                foreign one (`foreign_name`). A foreign name that ends with `[i/n]` is part i of n
                equal parts of the rows of a tensor. An empty name means zeros.
            known: tensors that were read already, by our name.

        Raises:
            CheckpointError: as `take`, or the sizes of the model do not fit together.
        """
        try:
            with torch.device("meta"):
                expected = build().state_dict()
        except (TrajformerError, ValueError) as error:
            raise CheckpointError(f"{self.name}: sizes do not fit together: {error}") from error
        weights = dict(known or {})
        for name, tensor in weights.items():
            shape = list(expected[name].shape) if name in expected else "nothing"
            if shape != list(tensor.shape):
                raise CheckpointError(
                    f"{self.name}: '{name}' has shape {list(tensor.shape)}, "
                    f"the model expects {shape}"
                )
        for name, tensor in expected.items():
            if name in weights:
                continue
            foreign = foreign_name(name, rules)
            if foreign:
                weights[name] = self._take_part(foreign, *tensor.shape)
            else:
                weights[name] = torch.zeros(tensor.shape)
        return weights

    def _take_part(self, foreign: str, *shape: int) -> Tensor:
        part = re.fullmatch(r"(.*)\[(\d+)/(\d+)\]", foreign)
        if part is None:
            return self.take(foreign, *shape)
        key = part[1]
        count = int(part[3])
        if key not in self._parts:
            rows, *rest = shape
            whole = self.take(key, count * rows, *rest)
            self._parts[key] = whole.chunk(count)
        return self._parts[key][int(part[2])]

    def count(self, pattern: str) -> int:
        """Number of layers: the smallest n for which the tensor `pattern.format(n)` is missing."""
        number = 0
        while pattern.format(number) in self._left:
            number += 1
        return number

    def check_all_used(self) -> None:
        """Raise CheckpointError, with the name of a tensor, unless every tensor was taken."""
        if not self._left:
            return
        name = f"'{min(self._left)}'"
        if len(self._left) > 1:
            name += f" (and {len(self._left) - 1} more)"
        raise CheckpointError(
            f"{self.name}: tensor {name} has no place in the model of this layout"
        )


def foreign_name(name: str, rules: Mapping[str, str]) -> str:
    """Apply regular expressions with their replacements, in order, to one of our names."""
    for pattern, replacement in rules.items():
        name = re.sub(pattern, replacement, name)
    return name


def read_state_dict(path: Path) -> StateDictReader:
    """Read a .safetensors or a PyTorch file, with tensors at the top or under a usual key.

    Raises CheckpointError: the file cannot be used.
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
        is_dense = value.layout == torch.strided and not value.is_quantized
        # An expanded tensor, with fewer stored elements, could exhaust the memory when copied.
        num_bytes = value.numel() * value.element_size()
        if (
            not is_dense
            or value.device.type != "cpu"
            or num_bytes > value.untyped_storage().nbytes()
        ):
            raise CheckpointError(f"{path}: '{key}' is no plain dense tensor")
    return StateDictReader(raw, str(path))


def _read_torch(path: Path) -> Any:
    try:
        # Training scripts often save their options next to the weights. A Namespace only holds
        # values. Warnings about pickles are useless, since these are refused in any case.
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:  # PyTorch compresses nothing
                num_bytes = sum(entry.file_size for entry in archive.infolist())
            if num_bytes > path.stat().st_size:
                raise CheckpointError(f"{path}: compressed, which PyTorch's files are not")
        safe = torch.serialization.safe_globals([argparse.Namespace])
        with safe, warnings.catch_warnings(action="ignore"):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (*UNREADABLE, ImportError, MemoryError) as error:
        raise CheckpointError(f"{path}: not readable (damaged, or not plain tensors)") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, *UNREADABLE) as error:
        problem = " ".join(str(error).split())[:120]
        raise CheckpointError(f"{path}: not a readable safetensors file ({problem})") from error
