"""Models as graphs of named tensors, the form in which they are exported.

SE2Former has two graphs, `map` and `forecast`, so that an encoded map can be reused. All other
models have the graph `forecast` only, which receives the polylines, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trajformer.core.memory import Memory
from trajformer.data.batch import AGENT_FIELDS, Observation, continued
from trajformer.data.forecast import Forecast
from trajformer.data.sample import BatchConfig, Frame
from trajformer.deploy.metadata import FORECAST_GRAPH, MAP_GRAPH
from trajformer.errors import TrajformerError
from trajformer.models.se2former.features import Motion
from trajformer.models.se2former.model import AgentEncoding, MapEncoding, SE2Former
from trajformer.scenes.spec import DataSpec

AGENT_INPUTS = (
    "agent_kind",
    "agent_mask",
    "target_mask",
    "position",
    "heading",
    "velocity",
    "valid",
    "pose",
    "age",
    "agent_size",
)
MAP_INPUTS = (
    "polyline",
    "polyline_kind",
    "polyline_flags",
    "polyline_light",
    "polyline_mask",
)
# The encoded map, outputs of the graph `map` and inputs of the graph `forecast`.
MAP_ENCODING = ("map_center", "map_position", "map_key", "map_value")
OUTPUTS = ("trajectory", "probability")
# Axes and unit of each tensor. B scenes, A agents, S targets (the first agents), M polylines and K
# modes are dynamic; letters in lower case and numbers have a fixed size.
MEANINGS = {
    "agent_kind": "[B, A] index in agent_types",
    "agent_mask": "[B, A] True = agent exists",
    "target_mask": "[B, S] True = target exists",
    "position": "[B, A, h, 2] m, frame of the scene, 0 where not valid",
    "heading": "[B, A, h] rad",
    "velocity": "[B, A, h, 2] m/s",
    "valid": "[B, A, h] True = seen",
    "pose": "[B, A, 3] m, m, rad at the present, continued at the last velocity",
    "age": "[B, A] s since the agent was seen",
    "agent_size": "[B, A, 2] m, length and width, 0 if unknown",
    "polyline": "[B, M, p, 2] m, frame of the scene",
    "polyline_kind": "[B, M] PolylineKind",
    "polyline_flags": "[B, M] LaneFlag",
    "polyline_light": "[B, M] 1 + LightState at the present, 0 without a light",
    "polyline_mask": "[B, M] True = polyline exists",
    "map_offset": "[B, 3] m, m, rad, frame of the scene in the frame of the encoded map",
    "map_center": "[B, 2] m",
    "map_position": "[B, M, 2] m",
    "map_key": "[B, layers, heads, M, d]",
    "map_value": "[B, layers, heads, M, d]",
}
OUTPUT_MEANINGS = {
    "trajectory": "[B, S, K, f, 2] m, frame of the scene",
    "probability": "[B, S, K]",
}
_DYNAMIC = {"B", "A", "S", "M"}


def dynamic_axes(name: str) -> dict[int, str]:
    """The axes of an input that may have any size, and their letters."""
    axes = MEANINGS[name].partition("]")[0].strip("[").split(", ")
    return {index: letter for index, letter in enumerate(axes) if letter in _DYNAMIC}


Tensors = dict[str, Tensor]


class Graph(NamedTuple):
    """A module whose inputs and outputs are tensors with names."""

    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def graphs_of(model: Any, spec: DataSpec, config: BatchConfig) -> dict[str, Graph]:
    """The graphs of a model by name: `forecast`, and `map` if the map is encoded on its own.

    Args:
        model: a forecaster in evaluation mode.
        spec: clock and horizon of its scenes.
        config: how scenes become its input.

    Raises TrajformerError: the input has the frame of the focal agent.
    """
    if getattr(model, "keeps_map", False):
        inputs: tuple[str, ...] = (*AGENT_INPUTS, "polyline_mask", "map_offset", *MAP_ENCODING)
        return {
            MAP_GRAPH: Graph(MapGraph(model, spec), MAP_INPUTS, MAP_ENCODING),
            FORECAST_GRAPH: Graph(AgentGraph(model, spec), inputs, OUTPUTS),
        }
    if config.frame is not Frame.SCENE:
        frame = config.frame.value
        raise TrajformerError(f"{type(model).__name__} has the {frame} frame, which no graph has")
    inputs = (*AGENT_INPUTS, *MAP_INPUTS)
    return {FORECAST_GRAPH: Graph(SceneGraph(model, spec), inputs, OUTPUTS)}


class SceneGraph(nn.Module):
    """A forecast from agents and polylines, by any model.

    All agents are computed as if they were targets: with slices of targets, an exported graph would
    assume that there are fewer targets than agents.
    """

    def __init__(self, model: nn.Module, spec: DataSpec) -> None:
        super().__init__()
        self.model = model
        self.spec = spec

    def forward(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """Positions [B, S, K, F, 2] in the scene frame and probabilities [B, S, K]."""
        observation = continued(observation_of(tensors, self.spec))
        num_targets = observation.num_targets
        missing = observation.agent_mask.shape[1] - num_targets
        target_mask = nn.functional.pad(observation.target_mask, (0, missing))
        forecast = self.model(replace(observation, target_mask=target_mask))
        position, probability = _result(forecast)
        index = torch.arange(num_targets, device=position.device)
        return position.index_select(1, index), probability.index_select(1, index)


class MapGraph(nn.Module):
    """The encoding of the polylines, by an SE2Former."""

    def __init__(self, model: SE2Former, spec: DataSpec) -> None:
        super().__init__()
        self.model = model
        self.spec = spec

    def forward(self, tensors: Tensors) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The tensors `MAP_ENCODING`: [B, 2], [B, M, 2], and twice [B, layers, heads, M, d]."""
        lanes = self.model.encode_map(observation_of(tensors, self.spec))
        memories = (*lanes.agent_memories, lanes.decoder_memory)
        key = torch.stack([memory.key for memory in memories], 1)
        value = torch.stack([memory.value for memory in memories], 1)
        return lanes.center, lanes.decoder_memory.position, key, value


class AgentGraph(nn.Module):
    """A forecast from agents and an encoded map, by an SE2Former."""

    def __init__(self, model: SE2Former, spec: DataSpec) -> None:
        super().__init__()
        self.model = model
        self.spec = spec

    def forward(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        """Positions [B, S, K, F, 2] in the scene frame and probabilities [B, S, K]."""
        keys = tensors["map_key"].unbind(1)
        values = tensors["map_value"].unbind(1)
        position = tensors["map_position"]
        memories = []
        for key, value in zip(keys, values, strict=True):
            memories.append(Memory(key, value, position))
        # The frame of the scene in the frame of the map.
        offset = tensors["map_offset"]
        lanes = MapEncoding(
            frame_pose=torch.zeros_like(offset),
            center=tensors["map_center"],
            agent_memories=tuple(memories[:-1]),
            decoder_memory=memories[-1],
            mask=tensors["polyline_mask"],
        )
        observation = continued(observation_of(tensors, self.spec, offset))
        agents = self.model.encode_agents(observation, lanes)
        observation, agents = _targets_only(observation, agents)
        return _result(self.model.forecast(observation, lanes, agents))


def _targets_only(
    observation: Observation, agents: AgentEncoding
) -> tuple[Observation, AgentEncoding]:
    """The targets as the only agents; the memory keeps all agents.

    An exported graph would assume that a slice of the targets has fewer agents.
    """
    index = torch.arange(observation.num_targets, device=observation.pose.device)

    def select(x: Tensor) -> Tensor:
        return x.index_select(1, index)

    fields: dict[str, Any] = {}
    for name in AGENT_FIELDS:
        fields[name] = select(getattr(observation, name))
    encoding = agents._replace(
        motion=Motion(*map(select, agents.motion)),
        token=select(agents.token),
        frames=agents.frames.map(select),
    )
    return replace(observation, **fields), encoding


def observation_of(
    tensors: Tensors, spec: DataSpec, frame_pose: Tensor | None = None
) -> Observation:
    """The observation with these inputs of a graph; missing inputs have no effect and are zero.

    Args:
        tensors: inputs by name.
        spec: clock and horizon.
        frame_pose: [B, 3], by default zeros.
    """
    assert spec.period_s is not None and spec.num_future is not None
    given = _without_agents(tensors) | _without_polylines(tensors)
    given |= {name: value for name, value in tensors.items() if name in given}
    if frame_pose is None:
        frame_pose = torch.zeros_like(given["pose"][:, 0])
    return Observation(
        scene_id=(),
        agent_id=(),
        period_s=spec.period_s,
        num_future=spec.num_future,
        frame=Frame.SCENE,
        frame_pose=frame_pose,
        agent_role=torch.zeros_like(given["agent_kind"]),
        **given,
    )


def _without_agents(tensors: Tensors) -> Tensors:
    """Zeros for `AGENT_INPUTS`; without positions, for one agent in one step."""
    position = tensors.get("position")
    if position is None:
        mask = tensors["polyline_mask"]
        position = torch.zeros_like(mask[:, :0].sum(1), dtype=torch.float32)  # [B]
        position = position[:, None, None, None].expand(-1, 1, 1, 2)
    step = torch.zeros_like(position[..., 0])  # [B, A, H]
    agent = step[..., 0]
    exists = agent.bool()
    return {
        "agent_kind": agent.long(),
        "agent_mask": exists,
        "target_mask": exists,
        "position": position,
        "heading": step,
        "velocity": torch.zeros_like(position),
        "valid": step.bool(),
        "pose": agent[..., None].expand(-1, -1, 3),
        "age": agent,
        "agent_size": agent[..., None].expand(-1, -1, 2),
    }


def _without_polylines(tensors: Tensors) -> Tensors:
    """Zeros for `MAP_INPUTS`; without any of them, for one polyline."""
    known = [tensors[name] for name in MAP_INPUTS if name in tensors]
    if known:
        first = known[0]
        zero = torch.zeros_like(first.flatten(2)[..., 0] if first.ndim > 2 else first)
    else:
        zero = torch.zeros_like(tensors["position"][:, :1, 0, 0])
    return {
        "polyline": zero.float()[..., None, None].expand(-1, -1, 2, 2),
        "polyline_kind": zero.long(),
        "polyline_flags": zero.long(),
        "polyline_light": zero.long(),
        "polyline_mask": zero.bool(),
    }


def _result(forecast: Forecast) -> tuple[Tensor, Tensor]:
    """Positions in the frame of the batch, and probabilities."""
    return forecast.in_batch_frame(), forecast.probability()
