"""SceneBatch: padded tensors of several scenes, divided into the observation, which models see, and the truth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from trajformer.data.sample import BatchConfig, Frame, Sample, samples
from trajformer.errors import SceneError
from trajformer.scenes.geometry import relative_pose, rotate, to_frame, wrap
from trajformer.scenes.scene import Scene

Record = TypeVar("Record", bound="TensorRecord")


class TensorRecord:
    """Base of frozen dataclasses with tensors, records and plain values as fields."""

    def map(self: Record, change: Callable[[Tensor], Tensor]) -> Record:
        """The same record with `change` applied to every tensor."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        for name, value in values.items():
            if isinstance(value, Tensor | TensorRecord):
                values[name] = change(value) if isinstance(value, Tensor) else value.map(change)
        return type(self)(**values)

    def to(self: Record, device: torch.device | str, non_blocking: bool = False) -> Record:
        """The same record with every tensor on `device`."""
        return self.map(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self: Record) -> Record:
        """The same record in pinned memory, from which a GPU copies while the host continues; called by `DataLoader`."""
        return self.map(Tensor.pin_memory)


@dataclass(frozen=True, eq=False)
class Observation(TensorRecord):
    """The input of a model: B scenes, padded to A agents (the first S are targets), H steps, M polylines of P points.

    Metres, seconds, radians, in the batch frame; `frame_pose` is its pose in the city frame. Padding and unseen steps are
    zero, with False in their mask.
    """

    scene_id: tuple[str, ...]  # B
    agent_id: tuple[
        tuple[str, ...], ...
    ]  # B of at most A; empty after an augmentation that selects agents on a GPU
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
    pose: Tensor  # float32 [B, A, 3], position and heading in the last observed step of each agent
    polyline: Tensor  # float32 [B, M, P, 2]
    polyline_kind: Tensor  # int64 [B, M]
    polyline_flags: Tensor  # int64 [B, M]
    polyline_mask: Tensor  # bool [B, M]

    @property
    def num_scenes(self) -> int:
        """B."""
        return len(self.scene_id)

    @property
    def num_targets(self) -> int:
        """S."""
        return self.target_mask.shape[1]

    @property
    def num_history(self) -> int:
        """H."""
        return self.position.shape[2]


AGENT_FIELDS = (
    "agent_kind",
    "agent_role",
    "agent_mask",
    "position",
    "heading",
    "velocity",
    "valid",
    "pose",
)  # [B, A, ...]
POLYLINE_FIELDS = ("polyline", "polyline_kind", "polyline_flags", "polyline_mask")  # [B, M, ...]


@dataclass(frozen=True, eq=False)
class Truth(TensorRecord):
    """The recorded futures of the S targets, in metres in the batch frame.

    `valid` is all False where the future is unknown. Where G futures of one past are known (`sample.branched`), they are an
    axis of both tensors: [B, S, G, F, 2] and [B, S, G, F].
    """

    position: Tensor  # float32 [B, S, F, 2], zero where not valid
    valid: Tensor  # bool [B, S, F]


@dataclass(frozen=True, eq=False)
class SceneBatch(TensorRecord):
    """B scenes: the observation, which is all that a model receives, and the truth, for losses and metrics.

    The two are separate records, so that a model cannot read the future by mistake.
    """

    observation: Observation
    truth: Truth

    @property
    def num_scenes(self) -> int:
        """B."""
        return self.observation.num_scenes


def _pad(parts: Sequence[np.ndarray]) -> Tensor:
    """Stack arrays that differ in length along their first axis, padded with zeros; enums become int64.

    `pad_sequence` of PyTorch takes four times as long.
    """
    length = max(len(part) for part in parts)
    kind = parts[0].dtype
    out = np.zeros(
        (len(parts), length, *parts[0].shape[1:]), np.int64 if kind == np.uint8 else kind
    )
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return torch.from_numpy(out)


def stack(samples: Sequence[Sample], frame: Frame) -> SceneBatch:
    """Pad samples of the same `frame` into one batch (SceneError: there are none, or they differ in period, H, F or unit)."""
    if not samples:
        raise SceneError("a batch needs at least one scene")
    first = samples[0]
    for other in samples:
        if other.clock != first.clock:
            clocks = f"period, H, F and unit {other.clock} differ from {first.clock} of scene {first.scene_id} in its batch"
            raise SceneError(f"scene {other.scene_id}: {clocks}")
    tensors = {name: _pad([part.padded[name] for part in samples]) for name in first.padded}
    truth = Truth(tensors.pop("target"), tensors.pop("target_valid"))
    observation = Observation(
        scene_id=tuple(part.scene_id for part in samples),
        agent_id=tuple(part.agent_id for part in samples),
        period_s=first.clock[0],
        num_future=first.clock[2],
        frame=frame,
        frame_pose=torch.from_numpy(np.stack([part.frame_pose for part in samples])),
        **tensors,
    )
    batch = SceneBatch(observation, truth)
    if frame is Frame.SCENE:
        return batch
    return transform(batch, torch.from_numpy(np.stack([part.home for part in samples])))


def collate(scenes: Sequence[Scene], config: BatchConfig = BatchConfig()) -> SceneBatch:
    """Select, resample and pad at least one scene into a batch; raises the errors of `samples` and `stack`."""
    return stack(samples(scenes, config), config.frame)


def transform(batch: SceneBatch, pose: Tensor) -> SceneBatch:
    """The batch expressed in a frame at `pose` [B, 3] of the present frame; padding stays zero.

    `frame_pose` is unchanged: `collate` sets it correctly beforehand, and augmentation does not need it.
    """
    o, truth = batch.observation, batch.truth
    lift = {
        n: pose.reshape(-1, *([1] * n), 3).to(o.position.dtype) for n in (1, 2, 3)
    }  # [B, 1, ..., 3]
    observation = replace(
        o,
        position=to_frame(o.position, lift[2]) * o.valid[..., None],
        heading=wrap(o.heading - lift[2][..., 2]) * o.valid,
        velocity=rotate(o.velocity, -lift[2][..., 2]) * o.valid[..., None],
        pose=relative_pose(o.pose, lift[1]) * o.agent_mask[..., None],
        polyline=to_frame(o.polyline, lift[2]) * o.polyline_mask[..., None, None],
    )
    position = to_frame(truth.position, lift[truth.position.ndim - 2]) * truth.valid[..., None]
    return SceneBatch(observation, Truth(position, truth.valid))
