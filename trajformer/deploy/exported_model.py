"""An exported file as a forecaster, so that all commands with a checkpoint take it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from trajformer.data.batch import AGENT_FIELDS, POLYLINE_FIELDS, Observation
from trajformer.data.forecast import Forecast
from trajformer.deploy.metadata import FORMATS
from trajformer.deploy.runtime import EncodedMap, ExportedForecaster
from trajformer.errors import TrajformerError
from trajformer.models.forecaster import Forecaster, Predictor


def is_exported(source: Path | str | None) -> bool:
    """Whether a path has the suffix of an exported file."""
    return source is not None and Path(source).suffix in FORMATS


class ExportedModel(Forecaster):
    """Observation -> Forecast, by the graphs of an exported file, on the CPU.

    Args:
        exported: the opened file.
    """

    def __init__(self, exported: ExportedForecaster) -> None:
        super().__init__()
        self.exported = exported
        self.keeps_map = exported.keeps_map
        self.trained_on = exported.metadata.spec
        self.batch_config = exported.metadata.batch

    def forward(self, observation: Observation) -> Forecast:
        """The forecast of all targets, in the frame of the batch."""
        return self.forecast(observation, None, None)

    def encode_map(self, observation: Observation) -> EncodedMap:
        """The encoded map, for any number of `forecast` calls; only with `keeps_map`."""
        return self.exported.encode_arrays(_arrays(observation), observation.frame_pose.numpy())

    def encode_agents(self, observation: Observation, lanes: EncodedMap) -> None:
        """Nothing: the graph `forecast` encodes agents."""

    def forecast(
        self, observation: Observation, lanes: EncodedMap | None, agents: None
    ) -> Forecast:
        """The forecast with an encoded map in place of the polylines of the observation."""
        frame_pose = observation.frame_pose.numpy()
        position, probability = self.exported.run(_arrays(observation), frame_pose, lanes)
        logit = torch.from_numpy(probability).log()
        return Forecast(torch.from_numpy(position), logit, observation.frame)


def _arrays(observation: Observation) -> dict[str, np.ndarray]:
    names = (*AGENT_FIELDS, *POLYLINE_FIELDS, "target_mask")
    return {name: getattr(observation, name).numpy() for name in names}


def exported_predictor(
    path: Path,
    device: torch.device,
    targets: Literal["scored", "focal", "all"] = "scored",
    joint: bool = False,
) -> Predictor:
    """An exported file, ready to forecast; arguments as of `load_predictor`.

    Raises TrajformerError: the file cannot be used, or the device is a GPU, or `joint` is set.
    """
    if device.type != "cpu":
        raise TrajformerError(f"{path}: exported files run on the CPU; use --accelerator cpu")
    if joint:
        raise TrajformerError(f"{path}: exported files have no joint futures; use the checkpoint")
    model = ExportedModel(ExportedForecaster(path, torch.get_num_threads())).eval()
    return Predictor(model, replace(model.batch_config, targets=targets), device)
