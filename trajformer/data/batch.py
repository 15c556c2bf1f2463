"""SceneBatch: padded tensors of several scenes.

It is divided into the observation, which models see, and the truth.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from trajformer.data.arrays import stack_arrays
from trajformer.data.indexing import take_along
from trajformer.data.sample import ROUNDING_S, BatchConfig, Frame, Sample, samples
from trajformer.scenes.geometry import on_grid, relative_pose, rotate, to_frame, wrap
from trajformer.scenes.scene import SHORT_LOSS_S, Scene

Record = TypeVar("Record", bound="TensorRecord")


class TensorRecord:
    """Base of frozen dataclasses with tensors, records and plain values as fields."""

    def map(self: Record, change: Callable[[Tensor], Tensor]) -> Record:
        """The same record with `change` applied to every tensor."""
        values: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                value = change(value)
            elif isinstance(value, TensorRecord):
                value = value.map(change)
            values[field.name] = value
        return type(self)(**values)

    def to(self: Record, device: torch.device | str, non_blocking: bool = False) -> Record:
        """The same record with every tensor on `device`."""
        return self.map(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self: Record) -> Record:
        """The same record in pinned memory; called by `DataLoader`.

        A GPU copies from pinned memory while the host continues.
        """
        return self.map(Tensor.pin_memory)


@dataclass(frozen=True, eq=False)
class Observation(TensorRecord):
    """The input of a model: B scenes.

    They are padded to A agents, of which the first S are targets, H steps, and M polylines of P
    points. Metres, seconds, radians, in the batch frame; `frame_pose` is its pose in the city
    frame. Padding and unseen steps are zero, with False in their mask.

    An agent that was lost before the present, the last step of the history, is continued at its
    last velocity: `pose` and the valid steps after the last `recorded` one are extrapolated, and
    `age` says since when.
    """

    scene_id: tuple[str, ...]  # B
    # B of at most A; empty after an augmentation that selects agents on a GPU
    agent_id: tuple[tuple[str, ...], ...]
    period_s: float
    num_future: int  # F, steps to predict
    frame: Frame
    frame_pose: Tensor  # float64 [B, 3]
    agent_kind: Tensor  # int64 [B, A]
    agent_role: Tensor  # int64 [B, A]
    agent_mask: Tensor  # bool [B, A]
    target_mask: Tensor  # bool [B, S]
    position: Tensor  # float32 [B, A, H, 2]
    heading: Tensor  # float32 [B, A, H]
    velocity: Tensor  # float32 [B, A, H, 2]
    valid: Tensor  # bool [B, A, H]
    pose: Tensor  # float32 [B, A, 3], position and heading at the present
    age: Tensor  # float32 [B, A], seconds since the agent was seen, 0 if it is seen at the present
    agent_size: Tensor  # float32 [B, A, 2], length and width in metres, 0 if they are unknown
    polyline: Tensor  # float32 [B, M, P, 2]
    polyline_kind: Tensor  # int64 [B, M]
    polyline_flags: Tensor  # int64 [B, M]
    polyline_light: Tensor  # int64 [B, M], 1 + LightState at the present, 0 without a traffic light
    polyline_mask: Tensor  # bool [B, M]

    @property
    def num_scenes(self) -> int:
        """B."""
        return self.target_mask.shape[0]

    @property
    def num_targets(self) -> int:
        """S."""
        return self.target_mask.shape[1]

    @property
    def num_history(self) -> int:
        """H."""
        return self.position.shape[2]

    @property
    def step_time(self) -> Tensor:
        """Times [H] of the observed steps, in seconds; the last one is the present, 0."""
        step = torch.arange(1 - self.num_history, 1, device=self.age.device)
        return step * self.period_s

    @property
    def is_continued(self) -> Tensor:
        """Bool [B, A, H], the extrapolated steps of lost agents."""
        return self.step_time > 0.5 * self.period_s - self.age[..., None]

    @property
    def recorded(self) -> Tensor:
        """Bool [B, A, H], the steps in which an agent was seen."""
        return self.valid & ~self.is_continued

    @property
    def present(self) -> Tensor:
        """Bool [B, A], agents that were seen in the last second; others attend to them only."""
        return self.agent_mask & (self.age <= SHORT_LOSS_S + ROUNDING_S)


# fields of the shape [B, A, ...]
AGENT_FIELDS = (
    "agent_kind",
    "agent_role",
    "agent_mask",
    "position",
    "heading",
    "velocity",
    "valid",
    "pose",
    "age",
    "agent_size",
)
# fields of the shape [B, M, ...]
POLYLINE_FIELDS = (
    "polyline",
    "polyline_kind",
    "polyline_flags",
    "polyline_light",
    "polyline_mask",
)


@dataclass(frozen=True, eq=False)
class Truth(TensorRecord):
    """The recorded futures of the S targets, in metres in the batch frame.

    `valid` is all False where the future is unknown. Where G futures of one past are known
    (`sample.branched`), they are an axis of both tensors: [B, S, G, F, 2] and [B, S, G, F].
    """

    position: Tensor  # float32 [B, S, F, 2], zero where not valid
    valid: Tensor  # bool [B, S, F]


@dataclass(frozen=True, eq=False)
class SceneBatch(TensorRecord):
    """B scenes: the observation for models, and the truth for losses and metrics.

    The two are separate records, so that a model cannot read the future by mistake.
    """

    observation: Observation
    truth: Truth

    @property
    def num_scenes(self) -> int:
        """B."""
        return self.observation.num_scenes

    def first_steps(self, steps: int) -> "SceneBatch":
        """The batch with a horizon of `steps` steps."""
        observation = replace(self.observation, num_future=steps)
        position = self.truth.position[..., :steps, :]
        return SceneBatch(observation, Truth(position, self.truth.valid[..., :steps]))


def collate(scenes: Sequence[Scene], config: BatchConfig = BatchConfig()) -> SceneBatch:
    """Select, cut and pad at least one scene into a batch.

    Raises the errors of `samples` and `stack`.
    """
    return stack(samples(scenes, config), config.frame)


def stack(samples: Sequence[Sample], frame: Frame) -> SceneBatch:
    """Pad samples of the same `frame` into one batch.

    Raises SceneError: there are no samples, or they differ in period, H, F or unit.
    """
    tensors = {name: torch.from_numpy(array) for name, array in stack_arrays(samples).items()}
    period_s, _, num_future, _ = samples[0].clock
    truth = Truth(tensors.pop("target"), tensors.pop("target_valid"))
    observation = Observation(
        scene_id=tuple([sample.scene_id for sample in samples]),
        agent_id=tuple([sample.agent_id for sample in samples]),
        period_s=period_s,
        num_future=num_future,
        frame=frame,
        frame_pose=torch.from_numpy(np.stack([sample.frame_pose for sample in samples])),
        **tensors,
    )
    batch = SceneBatch(continued(observation), truth)
    if frame is Frame.SCENE:
        return batch
    home = np.stack([sample.home for sample in samples])
    return transform(batch, torch.from_numpy(home))


def continued(o: Observation) -> Observation:
    """Continue the tracks of lost agents to the present, at their last velocity.

    `pose` and `age` are given; steps that are not recorded may hold anything.
    """
    # A GPU would have to wait for the answer, and a graph cannot depend on it.
    can_ask = o.age.device.type == "cpu" and not torch.compiler.is_compiling()
    if can_ask and not bool((o.age > 0).any()):
        return o
    is_continued = o.is_continued
    step = torch.arange(o.num_history, device=o.age.device)
    last = torch.where(o.recorded, step, 0).amax(-1)[..., None, None]  # [B, A, 1, 1]
    velocity = take_along(o.velocity, last, 2)  # [B, A, 1, 2]
    path = o.pose[:, :, None, :2] + on_grid(velocity * o.step_time[:, None])
    return replace(
        o,
        position=torch.where(is_continued[..., None], path, o.position),
        heading=torch.where(is_continued, o.pose[..., 2:], o.heading),
        velocity=torch.where(is_continued[..., None], velocity, o.velocity),
        valid=o.valid | is_continued,
    )


def restated(o: Observation) -> Observation:
    """The observation with `pose` and `age` of its valid steps, continued to the present."""
    step = torch.arange(o.num_history, device=o.age.device)
    last = torch.where(o.valid, step, 0).amax(-1)  # [B, A]
    age = (o.num_history - 1 - last) * o.period_s * o.valid.any(-1)
    heading = o.heading.take_along_dim(last[..., None], 2)
    last = last[..., None, None]
    velocity = o.velocity.take_along_dim(last, 2).squeeze(2)
    point = o.position.take_along_dim(last, 2).squeeze(2) + on_grid(velocity * age[..., None])
    return continued(replace(o, pose=torch.cat([point, heading], -1), age=age))


def transform(batch: SceneBatch, pose: Tensor) -> SceneBatch:
    """The batch expressed in a frame at `pose` [B, 3] of the present frame; padding stays zero.

    `frame_pose` is unchanged: `collate` sets it correctly beforehand, and augmentation does not
    need it.
    """
    o = batch.observation
    truth = batch.truth
    pose = pose.to(o.position.dtype)

    def with_axes(count: int) -> Tensor:
        """The pose [B, 1, ..., 3] with `count` axes between the scene and its three values."""
        axes = [1] * count
        return pose.reshape(-1, *axes, 3)

    agent_pose = with_axes(1)
    step_pose = with_axes(2)
    step_heading = step_pose[..., 2]
    observation = replace(
        o,
        position=to_frame(o.position, step_pose) * o.valid[..., None],
        heading=wrap(o.heading - step_heading) * o.valid,
        velocity=rotate(o.velocity, -step_heading) * o.valid[..., None],
        pose=relative_pose(o.pose, agent_pose) * o.agent_mask[..., None],
        polyline=to_frame(o.polyline, step_pose) * o.polyline_mask[..., None, None],
    )
    truth_pose = with_axes(truth.position.ndim - 2)  # there may be an axis of several futures
    position = to_frame(truth.position, truth_pose) * truth.valid[..., None]
    return SceneBatch(observation, Truth(position, truth.valid))


def append_axes(value: Tensor, ndim: int) -> Tensor:
    """The value with axes of length 1 appended, so that it has `ndim` axes."""
    axes = [1] * (ndim - value.ndim)
    return value.reshape(*value.shape, *axes)
