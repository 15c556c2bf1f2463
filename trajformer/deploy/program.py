"""Files of torch.export as sessions of `ExportedForecaster`."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from trajformer.deploy.metadata import MAX_FILE_BYTES, METADATA_KEY, ExportMetadata
from trajformer.errors import TrajformerError, one_line
from trajformer.scenes.files import read_file

_TENSORS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


class ProgramSession:
    """A graph of a .pt2 file, on the CPU.

    Raises TrajformerError: the file is missing or damaged.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        extra = {METADATA_KEY: ""}
        try:
            content = io.BytesIO(read_file(path, MAX_FILE_BYTES))
            with _without_code():
                program = torch.export.load(content, extra_files=extra)
        except Exception as error:  # the deserializer raises errors of many kinds
            raise TrajformerError(f"{path}: cannot be read: {one_line(error, 200)}") from error
        self.metadata = ExportMetadata.from_text(extra[METADATA_KEY], path)
        self.inputs = tuple(self.metadata.inputs)
        self.module = program.module()
        torch.set_num_threads(threads)

    @torch.no_grad()
    def run(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs for the inputs by name."""
        tensors = {name: torch.from_numpy(arrays[name]) for name in self.inputs}
        return [output.numpy() for output in self.module(tensors)]


@contextmanager
def _without_code() -> Iterator[None]:
    """PyTorch loads tensors only: its reader of .pt2 files would also load objects with code."""
    before = os.environ.get(_TENSORS_ONLY)
    os.environ[_TENSORS_ONLY] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_TENSORS_ONLY]
        else:
            os.environ[_TENSORS_ONLY] = before
