"""Export of models as torch.export programs (.pt2) or ONNX graphs, for any number of agents.

1. `graphs_of` (graphs.py) states the model as graphs of named tensors.
2. Each graph is traced with one example; axes of scenes, agents, targets and polylines are dynamic.
3. The programs are compared with the model for scenes of other sizes, on both sides of the 512
   tokens above which SE2Former relates near tokens only.
4. Files are written with metadata, and read again.
"""

from __future__ import annotations

import hashlib
import io
import logging
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import trajformer
from trajformer.data.arrays import stack_arrays
from trajformer.data.sample import BatchConfig, samples
from trajformer.deploy.example_scene import example_scene
from trajformer.deploy.graphs import MEANINGS, OUTPUT_MEANINGS, Graph, dynamic_axes, graphs_of
from trajformer.deploy.metadata import METADATA_KEY, ONNX, ExportMetadata, graph_files
from trajformer.deploy.runtime import ExportedForecaster
from trajformer.errors import TrajformerError, one_line
from trajformer.models.forecaster import Forecaster
from trajformer.scenes.files import atomically
from trajformer.scenes.scene import AgentKind
from trajformer.scenes.spec import DataSpec

Tensors = dict[str, Tensor]
# Numbers of agents and lanes in the scenes of a batch. Sizes 0 and 1 would be fixed by tracing.
_EXAMPLE = ((7, 11), (4, 8), (5, 9))
_CHECKS = (((1, 1),), ((1, 0),), ((9, 30), (2, 5)), ((40, 560),))
_MAX_ERROR_M = 1e-3  # of a graph for these scenes; other numbers come from other kernels
_OPSET = 20


@dataclass(frozen=True)
class Program:
    """A traced graph."""

    program: ExportedProgram  # its only argument is a dict of tensors
    inputs: dict[str, str]  # type, shape and unit of each input
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Exported:
    """A result of `export_model`."""

    files: dict[str, Path]  # by graph
    forecaster: ExportedForecaster  # of these files
    max_error_m: float  # largest distance between forecasts of graphs and model in the check


def export_model(model: nn.Module, out: Path) -> Exported:
    """Write the graphs of a model, and compare them with the model.

    Args:
        model: a forecaster in evaluation mode with `trained_on` and `batch_config`, on the CPU.
        out: the file of the forecast, with the suffix .onnx or .pt2; the file of the map is next
            to it.

    Raises TrajformerError: the model cannot be exported, a package is missing, or forecasts differ.
    """
    packages = ("onnx", "onnxscript", "onnxruntime")
    if out.suffix == ONNX and not all(find_spec(package) for package in packages):
        advice = "`pip install trajformer[export]`"
        raise TrajformerError(f"one of the packages {', '.join(packages)} is missing; {advice}")
    return write_programs(model, trace_model(model), out)


def trace_model(model: nn.Module) -> dict[str, Program]:
    """The graphs of a model as programs (TrajformerError: it cannot be exported)."""
    name = type(model).__name__
    spec, batch = _settings(model)
    scenes = []
    for seed, (agents, lanes) in enumerate(_EXAMPLE):
        scenes.append(example_scene(spec, agents, lanes, seed))
    tensors = inputs_of(scenes, batch)
    programs = {}
    for graph_name, graph in graphs_of(model, spec, batch).items():
        given = {key: tensors[key] for key in graph.inputs}
        try:
            with _quiet(), torch.no_grad():
                program = _export(graph, given)
                outputs = graph.module(given)
        except Exception as error:  # tracing raises errors of many kinds
            raise TrajformerError(f"{name} cannot be exported: {_cause(error)}") from error
        random = _random_operation(program)
        if random:
            raise TrajformerError(f"{name} cannot be exported: it draws random numbers ({random})")
        meanings = {key: _meaning(key, value) for key, value in given.items()}
        programs[graph_name] = Program(program, meanings, graph.outputs)
        for key, output in zip(graph.outputs, outputs, strict=True):
            tensors[key] = output.clone(memory_format=torch.contiguous_format)  # no view
    return programs


def write_programs(model: nn.Module, programs: dict[str, Program], out: Path) -> Exported:
    """Write programs of `trace_model`, in the format that the suffix of `out` names."""
    name = type(model).__name__
    spec, batch = _settings(model)
    graphs = tuple(programs)
    files = graph_files(out, graphs)
    common = ExportMetadata(
        model=name,
        graph="",
        graphs=graphs,
        spec=spec,
        batch=batch,
        inputs={},
        outputs={},
        agent_types=tuple(kind.name for kind in AgentKind),
        version=trajformer.__version__,
        commit=_commit(),
        weights_sha256=_digest(model),
    )
    for graph_name, program in programs.items():
        meanings = {key: OUTPUT_MEANINGS.get(key) or MEANINGS[key] for key in program.outputs}
        metadata = replace(common, graph=graph_name, inputs=program.inputs, outputs=meanings)
        write = _write_onnx if out.suffix == ONNX else _write_pt2
        with atomically(files[graph_name]) as temporary:
            write(program, metadata, temporary)
    try:
        forecaster = ExportedForecaster(out)
        error = largest_error(model, forecaster)
        problem = f"the graph differs by {error:.3g} m" if error > _MAX_ERROR_M else ""
    except Exception as failure:  # of a runtime, for sizes that the graph does not take
        problem = _cause(failure)
    if problem:
        for file in files.values():  # no file of an unusable export remains
            file.unlink()
        raise TrajformerError(f"{name} cannot be exported: {problem}")
    return Exported(files, forecaster, error)


def inputs_of(scenes: list[Any], batch: BatchConfig) -> Tensors:
    """Inputs of all graphs for scenes in their own frames."""
    arrays = stack_arrays(samples(scenes, batch))
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    tensors["map_offset"] = torch.zeros(len(scenes), 3)
    return tensors


def largest_error(model: nn.Module, exported: ExportedForecaster) -> float:
    """Largest distance in metres between forecasts of both, for scenes of other sizes.

    The probabilities are compared in metres too, as the change of the mean forecast. Returns
    infinity if one of the two is not finite.
    """
    spec, batch = _settings(model)
    graphs = graphs_of(model, spec, batch)
    largest = 0.0
    for sizes in _CHECKS:
        scenes = []
        for seed, (agents, lanes) in enumerate(sizes):
            scenes.append(example_scene(spec, agents, lanes, 100 + seed))
        selected = samples(scenes, batch)
        arrays = stack_arrays(selected)
        frames = np.stack([sample.frame_pose for sample in selected])
        position, probability = exported.run(arrays, frames)
        expected_position, expected_probability = _eager(graphs, inputs_of(scenes, batch))
        exists = torch.from_numpy(arrays["target_mask"])
        gap = (torch.from_numpy(position) - expected_position).norm(dim=-1).amax((2, 3))
        change = (torch.from_numpy(probability) - expected_probability).abs().amax(2)
        error = torch.maximum(gap, change)[exists].max()
        if not error.isfinite():
            return float("inf")
        largest = max(largest, float(error))
    return largest


@torch.no_grad()
def _eager(graphs: dict[str, Graph], tensors: Tensors) -> tuple[Tensor, Tensor]:
    """Positions and probabilities, by the modules of the graphs."""
    for graph in graphs.values():
        outputs = graph.module({key: tensors[key] for key in graph.inputs})
        tensors = tensors | dict(zip(graph.outputs, outputs, strict=True))
    return tensors["trajectory"], tensors["probability"]


def _settings(model: nn.Module) -> tuple[DataSpec, BatchConfig]:
    """The clock of the training scenes and the batch settings of a model."""
    name = type(model).__name__
    if not isinstance(model, Forecaster):
        raise TrajformerError(f"{name} cannot be exported: it is no forecaster")
    spec = model.trained_on
    if None in (spec.period_s, spec.num_history, spec.num_future):
        reason = "the clock of its training scenes is unknown"
        raise TrajformerError(f"{name} cannot be exported: {reason}")
    return spec, replace(model.batch_config, targets="scored")


def _export(graph: Graph, given: Tensors) -> ExportedProgram:
    shapes: dict[str, Any] = {}
    for key in given:
        shapes[key] = dict.fromkeys(dynamic_axes(key), Dim.DYNAMIC)
    with _without_shape_cache():
        return torch.export.export(graph.module, (given,), dynamic_shapes=(shapes,))


def _random_operation(program: ExportedProgram) -> str:
    """The name of an operation that draws random numbers, or an empty text."""
    for node in program.graph.nodes:
        tags = getattr(node.target, "tags", ())
        name = str(node.target)
        is_random = torch.Tag.nondeterministic_seeded in tags
        if is_random and "attention" not in name:  # attention is random with dropout only
            return name
    return ""


def _meaning(key: str, value: Tensor) -> str:
    """Type, shape and unit of an input; fixed sizes are numbers."""
    letters = dynamic_axes(key)
    axes = [letters.get(axis, str(size)) for axis, size in enumerate(value.shape)]
    dtype = str(value.dtype).removeprefix("torch.")
    unit = MEANINGS[key].partition("]")[2]
    return f"{dtype} [{', '.join(axes)}]{unit}"


def _write_pt2(program: Program, metadata: ExportMetadata, path: Path) -> None:
    with path.open("wb") as file:
        extra = {METADATA_KEY: metadata.to_text()}
        torch.export.save(program.program, file, extra_files=extra)


def _write_onnx(program: Program, metadata: ExportMetadata, path: Path) -> None:
    try:
        with _quiet(), _without_shape_cache():
            converted = torch.onnx.export(
                program.program,
                dynamo=True,
                input_names=list(program.inputs),
                output_names=list(program.outputs),
                opset_version=_OPSET,
                optimize=False,
            )
            assert converted is not None
            _simplify(converted.model)
    except Exception as error:  # as of tracing
        raise TrajformerError(f"{metadata.model} cannot be exported: {_cause(error)}") from error
    converted.model.metadata_props[METADATA_KEY] = metadata.to_text()
    converted.save(path, external_data=False)


def _simplify(graph: Any) -> None:
    """Compute constants of an `onnx_ir.Model`, and repeated values once.

    The optimizer of `torch.onnx.export` also tries hundreds of rewriting rules at each node, which
    take half of the time of an export; the graphs are equally fast without them.
    """
    from onnx_ir.passes.common import CommonSubexpressionEliminationPass
    from onnxscript import optimizer

    optimizer.fold_constants(graph, onnx_shape_inference=False)
    optimizer.remove_unused_nodes(graph)
    CommonSubexpressionEliminationPass()(graph)


def _digest(model: nn.Module) -> str:
    """SHA-256 of the names, shapes and values of all weights."""
    digest = hashlib.sha256()
    for key, tensor in sorted(model.state_dict().items()):
        digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _commit() -> str:
    """The commit of the source code, or an empty text for an installed package."""
    root = Path(trajformer.__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except OSError:
        return ""
    return done.stdout.strip()


def _cause(error: BaseException) -> str:
    """The reason of a failed export, in one line: the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    if str(error).startswith("Constraints violated"):
        return "its operations fix the numbers of scenes, agents or polylines of the example"
    return f"{type(error).__name__}: {one_line(error, 160)}"


def _without_shape_cache() -> AbstractContextManager[None]:
    """No cache of the shapes of results, inside the context.

    Most shapes contain symbols. Filling these into a result of the cache takes longer than
    computing the result: without it, tracing takes about half the time.
    """
    return torch._dynamo.config.patch(fake_tensor_cache_enabled=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """No messages of tracing, which are about the insides of torch."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
