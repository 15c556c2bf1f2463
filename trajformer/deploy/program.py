"""Files of torch.export as sessions of `ExportedForecaster`."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from torch.export.pt2_archive._package import load_pt2

from trajformer.deploy.archive import checked_archive
from trajformer.deploy.metadata import MAX_FILE_BYTES, ExportMetadata
from trajformer.errors import TrajformerError, one_line
from trajformer.scenes.files import read_file


class ProgramSession:
    """A graph of a .pt2 file, on the CPU.

    Raises TrajformerError: the file is missing or damaged, or has a part that may run code.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        try:
            archive, text = checked_archive(read_file(path, MAX_FILE_BYTES))
            programs = load_pt2(io.BytesIO(archive)).exported_programs
            self.module = programs["model"].module()
        except Exception as error:  # the deserializer raises errors of many kinds
            raise TrajformerError(f"{path}: cannot be read: {one_line(error, 200)}") from error
        self.metadata = ExportMetadata.from_text(text, path)
        self.inputs = tuple(self.metadata.inputs)
        torch.set_num_threads(threads)

    @torch.no_grad()
    def run(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs for the inputs by name."""
        tensors = {name: torch.from_numpy(arrays[name]) for name in self.inputs}
        return [output.numpy() for output in self.module(tensors)]
