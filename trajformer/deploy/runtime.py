"""Forecasts of exported models, with numpy and onnxruntime and without torch.

    forecaster = ExportedForecaster("model.onnx")
    forecast = forecaster.forecast(scene)

A map that stays the same is encoded once:

    lanes = forecaster.encode_map(scene)
    forecast = forecaster.forecast(later_scene, lanes)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from trajformer.data.arrays import stack_arrays
from trajformer.data.sample import Sample, samples
from trajformer.deploy.metadata import (
    FORECAST_GRAPH,
    MAP_GRAPH,
    MAX_FILE_BYTES,
    METADATA_KEY,
    ONNX,
    PT2,
    ExportMetadata,
    graph_files,
)
from trajformer.errors import TrajformerError, one_line
from trajformer.scenes.files import read_file
from trajformer.scenes.geometry import from_frame, relative_pose
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import DataSpec, check_scenes

_TENSOR_FOLDER = "session.model_external_initializers_file_folder_path"

Arrays = dict[str, np.ndarray]


class Session(Protocol):
    """A loaded graph."""

    inputs: tuple[str, ...]

    def run(self, arrays: Arrays) -> list[np.ndarray]:
        """The outputs for the inputs by name."""


@dataclass(frozen=True, eq=False)
class SceneForecast:
    """K futures of the S agents of one scene, in the city frame."""

    scene_id: str
    agent_id: tuple[str, ...]  # S
    position: np.ndarray  # float64 [S, K, F, 2], metres
    probability: np.ndarray  # float32 [S, K]


@dataclass(frozen=True, eq=False)
class EncodedMap:
    """The encoded map of one scene or of the B scenes of a batch."""

    frame_pose: np.ndarray  # float64 [B, 3], frame of the scene in the city frame
    arrays: Arrays  # outputs of the graph `map`, and `polyline_mask`


class ExportedForecaster:
    """An exported model.

    Args:
        path: the file of the forecast; the file of the map is next to it.
        threads: CPU threads.
        targets: agents to forecast, as of `BatchConfig`.

    Raises TrajformerError: a file is missing or damaged, or onnxruntime is missing.
    """

    def __init__(
        self,
        path: Path | str,
        threads: int = 1,
        targets: Literal["scored", "focal", "all"] = "all",
    ) -> None:
        path = Path(path)
        session, self.metadata = _open(path, threads)
        self.path = path
        self._sessions: dict[str, Session] = {FORECAST_GRAPH: session}
        files = graph_files(path, self.metadata.graphs)
        if MAP_GRAPH in files:
            session, metadata = _open(files[MAP_GRAPH], threads)
            if metadata.weights_sha256 != self.metadata.weights_sha256:
                reason = f"has other weights than {path}; export the model again"
                raise TrajformerError(f"{files[MAP_GRAPH]}: {reason}")
            self._sessions[MAP_GRAPH] = session
        self.batch = replace(self.metadata.batch, targets=targets)

    @property
    def keeps_map(self) -> bool:
        """Whether `encode_map` is possible."""
        return MAP_GRAPH in self._sessions

    def forecast(self, scene: Scene, lanes: EncodedMap | None = None) -> SceneForecast:
        """The forecast of one scene; arguments and errors as of `forecast_scenes`."""
        return self.forecast_scenes([scene], lanes)[0]

    def forecast_scenes(
        self, scenes: Sequence[Scene], lanes: EncodedMap | None = None
    ) -> list[SceneForecast]:
        """The forecasts of B scenes in one batch.

        Args:
            scenes: scenes with the clock of the model.
            lanes: their encoded map, which replaces the polylines of the scenes.

        Raises TrajformerError: unit, period, history or horizon differ from those of the model.
        """
        selected = self._samples(scenes)
        arrays = stack_arrays(selected)
        frame_pose = np.stack([sample.frame_pose for sample in selected])
        num_scenes, num_targets = arrays["target_mask"].shape
        if num_targets == 0:
            steps = arrays["target_valid"].shape[2]
            position = np.zeros((num_scenes, 0, 1, steps, 2), np.float32)
            probability = np.zeros((num_scenes, 0, 1), np.float32)
        else:
            position, probability = self.run(arrays, frame_pose, lanes)
        city = from_frame(position.astype(np.float64), frame_pose[:, None, None, None])

        forecasts = []
        for index, sample in enumerate(selected):
            count = int(arrays["target_mask"][index].sum())
            agents = sample.agent_id[:count]
            modes = city[index, :count]
            forecasts.append(
                SceneForecast(sample.scene_id, agents, modes, probability[index, :count])
            )
        return forecasts

    def encode_map(self, scene: Scene) -> EncodedMap:
        """Encode the polylines of a scene (TrajformerError: the model has no graph `map`)."""
        if not self.keeps_map:
            reason = f"{self.metadata.model} has one graph only, without an encoded map"
            raise TrajformerError(f"{self.path}: {reason}")
        selected = self._samples([scene])
        return self.encode_arrays(stack_arrays(selected), selected[0].frame_pose[None])

    def inputs(self, scene: Scene) -> Arrays:
        """The inputs of the graphs for one scene, for programs in other languages."""
        arrays = _with_polyline(stack_arrays(self._samples([scene])))
        return arrays | {"map_offset": np.zeros((1, 3), np.float32)}

    def run(
        self, arrays: Arrays, frame_pose: np.ndarray, lanes: EncodedMap | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run the graphs.

        Args:
            arrays: padded inputs, of `stack_arrays`.
            frame_pose: float64 [B, 3], frames of the scenes in the city frame.
            lanes: an encoded map.

        Returns:
            Positions float32 [B, S, K, F, 2] in metres in the frames of the scenes, and
            probabilities [B, S, K].
        """
        arrays = _with_polyline(arrays)
        if self.keeps_map:
            if lanes is None:
                lanes = self.encode_arrays(arrays, frame_pose)
            offset = relative_pose(frame_pose, lanes.frame_pose).astype(np.float32)
            arrays = arrays | lanes.arrays | {"map_offset": offset}
        elif lanes is not None:
            raise TrajformerError(f"{self.path}: {self.metadata.model} takes no encoded map")
        outputs = self._outputs(FORECAST_GRAPH, arrays, 2)
        position, probability = outputs
        num_future = self.metadata.spec.num_future
        targets = arrays["target_mask"].shape
        if position.shape[:2] != targets or position.shape[3:] != (num_future, 2):
            expected = f"[{targets[0]}, {targets[1]}, K, {num_future}, 2]"
            reason = f"the forecast has the shape {list(position.shape)}, expected {expected}"
            raise TrajformerError(f"{self.path}: {reason}")
        if probability.shape != position.shape[:3]:
            reason = f"probabilities have the shape {list(probability.shape)}"
            raise TrajformerError(f"{self.path}: {reason}, expected {list(position.shape[:3])}")
        return position, probability

    def encode_arrays(self, arrays: Arrays, frame_pose: np.ndarray) -> EncodedMap:
        """Encode the polylines of padded inputs; arguments as of `run`."""
        arrays = _with_polyline(arrays)
        names = ("map_center", "map_position", "map_key", "map_value")
        outputs = self._outputs(MAP_GRAPH, arrays, len(names))
        encoded = dict(zip(names, outputs, strict=True))
        return EncodedMap(frame_pose, encoded | {"polyline_mask": arrays["polyline_mask"]})

    def _outputs(self, graph: str, arrays: Arrays, count: int) -> list[np.ndarray]:
        """The outputs of a graph (TrajformerError: it fails, or has another number of outputs)."""
        session = self._sessions[graph]
        unknown = [name for name in session.inputs if name not in arrays]
        if unknown:
            raise TrajformerError(
                f"{self.path}: the graph {graph} has an unknown input {unknown[0]}"
            )
        try:
            outputs = session.run({name: arrays[name] for name in session.inputs})
        except Exception as error:  # of a runtime, for sizes or types that the graph does not take
            reason = f"the graph {graph} failed: {one_line(error, 200)}"
            raise TrajformerError(f"{self.path}: {reason}") from error
        if len(outputs) != count:
            reason = f"the graph {graph} has {len(outputs)} outputs, expected {count}"
            raise TrajformerError(f"{self.path}: {reason}")
        return outputs

    def _samples(self, scenes: Sequence[Scene]) -> list[Sample]:
        for scene in scenes:
            known = DataSpec.of(scene)
            check_scenes(known, self.metadata.spec, self.path, "the exported model has")
        return samples(scenes, self.batch)


class OnnxSession:
    """A graph of an ONNX file, on the CPU.

    Raises TrajformerError: the file is missing or damaged, or onnxruntime is missing.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        try:
            runtime: Any = import_module("onnxruntime")
        except ImportError as error:
            advice = "`pip install trajformer[runtime]`"
            raise TrajformerError(f"the package onnxruntime is missing; {advice}") from error
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors
        # Tensors are in the file: it must not read other files of this machine.
        options.add_session_config_entry(_TENSOR_FOLDER, str(path.absolute() / "none"))
        try:
            content = read_file(path, MAX_FILE_BYTES)
            self._session = runtime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime has an exception for each status, of no base class
            raise TrajformerError(f"{path}: cannot be read: {one_line(error, 200)}") from error
        self.inputs = tuple([item.name for item in self._session.get_inputs()])
        properties = self._session.get_modelmeta().custom_metadata_map
        self.metadata = ExportMetadata.from_text(properties.get(METADATA_KEY), path)

    def run(self, arrays: Arrays) -> list[np.ndarray]:
        """The outputs for the inputs by name."""
        result: list[np.ndarray] = self._session.run(None, arrays)
        return result


def _open(path: Path, threads: int) -> tuple[Session, ExportMetadata]:
    """A graph and its metadata; only the format .pt2 needs torch."""
    if path.suffix == ONNX:
        session = OnnxSession(path, threads)
        return session, session.metadata
    if path.suffix == PT2:
        program = import_module("trajformer.deploy.program").ProgramSession(path, threads)
        return program, program.metadata
    raise TrajformerError(f"{path}: expected a file of `trajformer export`, {ONNX} or {PT2}")


def _with_polyline(arrays: Arrays) -> Arrays:
    """The arrays with at least one polyline, because graphs do not take empty axes."""
    if arrays["polyline"].shape[1] > 0:
        return arrays
    padded = dict(arrays)
    for name, value in arrays.items():
        if not name.startswith("polyline"):
            continue
        shape = (value.shape[0], 1, *value.shape[2:])
        padded[name] = np.zeros(shape, value.dtype)
    return padded
