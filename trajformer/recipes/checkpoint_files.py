"""The two formats of checkpoint files: plain tensors and plain values in both.

Reading a file never executes code from it. A run writes PyTorch files. A .safetensors file holds
weights only, with the recipe in its header.
"""

import io
import json
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import trajformer
from trajformer.errors import UNREADABLE, CheckpointError
from trajformer.recipes.names import PRETRAINED, checkpoint_file, pretrained_names
from trajformer.scenes.files import atomically

CONFIG_KEY = "trajformer"  # the entry with version, task, recipe and training scenes
SCHEMA_VERSION = 2  # of checkpoints
WEIGHT_PREFIX = "model."  # of the names of weights in a file of a run
SAFETENSORS = ".safetensors"

# CRC-32 of the whole .safetensors file with zeros in this place of the header.
_CHECKSUM = '\\"checksum\\": \\"{:08x}\\"'


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint: "state_dict", `CONFIG_KEY`, and the state of a run.

    Raises CheckpointError: no such file, damaged, or not a checkpoint of this project.
    """
    file = checkpoint_file(path)
    if not file.is_file():
        raise CheckpointError(f"{path}: {_missing_file(path, file)}")
    try:
        content = _read_safetensors(file) if file.suffix == SAFETENSORS else _read_torch(file)
    except UNREADABLE as error:
        reason = "not a readable checkpoint (damaged, or not plain tensors)"
        raise CheckpointError(f"{path}: {reason}") from error

    head = content.get(CONFIG_KEY) if isinstance(content, dict) else None
    if not isinstance(head, dict) or "state_dict" not in content:
        raise CheckpointError(f"{path}: not a trajformer checkpoint (no '{CONFIG_KEY}' entry)")
    schema = head.get("schema")
    if schema != SCHEMA_VERSION:
        known = f"this software ({trajformer.__version__}) reads {SCHEMA_VERSION}"
        made_by = f"made by another state of the software ({head.get('version')})"
        advice = f"{made_by}; train again, or install that one"
        raise CheckpointError(f"{path}: schema version {schema}, {known}: {advice}")
    return content


def _missing_file(path: Path, file: Path) -> str:
    """Why `path` names no file."""
    if (file / "last.ckpt").is_file():
        return f"a folder; its checkpoint is {path / 'last.ckpt'}"
    if file.exists():
        return "not a file"
    if str(path) in pretrained_names():
        return f"no such checkpoint; did you mean {PRETRAINED}{path}?"
    return "no such checkpoint"


def _read_torch(file: Path) -> Any:
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            # PyTorch compresses nothing: a small file with large entries fills the memory.
            num_bytes = sum(entry.file_size for entry in archive.infolist())
            if num_bytes > file.stat().st_size:
                raise CheckpointError(f"{file}: compressed, which PyTorch's files are not")
            if archive.testzip() is not None:  # torch.load ignores checksums
                raise ValueError("a checksum differs")
    with warnings.catch_warnings(action="ignore"):  # about pickles, which are refused
        return torch.load(file, map_location="cpu", weights_only=True)


def _read_safetensors(file: Path) -> dict[str, Any]:
    """The same structure as the file of a run."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        advice = "needs the package safetensors (pip install safetensors)"
        raise CheckpointError(f"{file}: {advice}") from error
    try:
        with safe_open(file, "pt") as opened:
            header = (opened.metadata() or {}).get(CONFIG_KEY)
            names = opened.keys()
            weights = {WEIGHT_PREFIX + name: opened.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(error) from error
    content: dict[str, Any] = {"state_dict": weights}
    if header is not None:
        head = json.loads(header)
        content[CONFIG_KEY] = head
        if "checksum" in head:
            _compare_checksum(file, int(head["checksum"], 16))
    return content


def _compare_checksum(file: Path, expected: int) -> None:
    """Raise ValueError if the CRC-32 of a .safetensors file differs from that in its header."""
    content = file.read_bytes()
    present = _CHECKSUM.format(expected).encode()
    blank = _CHECKSUM.format(0).encode()
    if zlib.crc32(content.replace(present, blank, 1)) != expected:
        raise ValueError("the checksum differs")


def write_weights(out: Path, head: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """Write weights with a header of plain values, atomically; the suffix selects the format."""
    # A view would save its whole storage.
    weights = {name: tensor.clone().contiguous() for name, tensor in weights.items()}
    if out.suffix == SAFETENSORS:
        content = _safetensors_bytes(head, weights)
    else:
        tensors = {WEIGHT_PREFIX + name: tensor for name, tensor in weights.items()}
        buffer = io.BytesIO()  # errors of a file would not name the reason
        torch.save({CONFIG_KEY: head, "state_dict": tensors}, buffer)
        content = buffer.getvalue()
    with atomically(out) as temporary:
        temporary.write_bytes(content)


def _safetensors_bytes(head: dict[str, Any], weights: dict[str, Tensor]) -> bytes:
    """The content of a .safetensors file with its checksum in the header."""
    from safetensors.torch import save

    header = json.dumps(head | {"checksum": f"{0:08x}"})
    content: bytes = save(weights, {CONFIG_KEY: header})
    blank = _CHECKSUM.format(0).encode()
    present = _CHECKSUM.format(zlib.crc32(content)).encode()
    return content.replace(blank, present, 1)
