"""SceneBatch: padded tensors of several scenes, the only thing a model sees. The batch frame is chosen here alone.

What a model may know (steps before H) and what it must predict (`target`) are separate tensors, so that a model
cannot look into the future by a wrong slice. Agents are ordered with the scored ones first: a Forecast speaks of the
first S agents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trajformer.data.sample import BatchConfig, Frame, Sample, samples
from trajformer.errors import SceneError
from trajformer.scenes.geometry import rotate, to_frame, wrap
from trajformer.scenes.scene import Scene


@dataclass(frozen=True, eq=False)
class SceneBatch:
    """B scenes, padded: A agents (the first S of them targets), H observed steps, F to predict, M polylines of P points.

    Metres, seconds, radians, in the batch frame, whose pose in the city frame is `frame_pose`. Padding and unseen
    steps are zero with False in their mask. `target_valid` is all False where the future is unknown. Where G futures of one
    past are known (`sample.branched`), they are an axis of `target` [B, S, G, F, 2] and `target_valid` [B, S, G, F].
    """

    scene_id: tuple[str, ...]  # B
    agent_id: tuple[tuple[str, ...], ...]  # B of at most A
    period_s: float
    num_targets: int  # S
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
    pose: Tensor  # float32 [B, A, 3], position and heading at the last observed step of each agent
    target: Tensor  # float32 [B, S, F, 2], or [B, S, G, F, 2]
    target_valid: Tensor  # bool [B, S, F], or [B, S, G, F]
    polyline: Tensor  # float32 [B, M, P, 2]
    polyline_kind: Tensor  # int64 [B, M]
    polyline_flags: Tensor  # int64 [B, M]
    polyline_mask: Tensor  # bool [B, M]

    @property
    def num_scenes(self) -> int:
        """B."""
        return len(self.scene_id)

    @property
    def num_history(self) -> int:
        """H."""
        return self.position.shape[2]

    @property
    def num_future(self) -> int:
        """F."""
        return self.target.shape[-2]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> SceneBatch:
        """The same batch with every tensor on `device`."""
        return self._map(lambda value: value.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> SceneBatch:
        """The same batch in page-locked memory, for a fast copy to a GPU."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> SceneBatch:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: change(v) if isinstance(v, Tensor) else v for name, v in values.items()}
        return SceneBatch(**changed)


def _pad(parts: Sequence[np.ndarray]) -> Tensor:
    """Stack arrays that differ in their first axis, zero where there is nothing; enums become int64."""
    length = max(len(part) for part in parts)
    kind = parts[0].dtype
    out = np.zeros((len(parts), length, *parts[0].shape[1:]), np.int64 if kind == np.uint8 else kind)
    for row, part in zip(out, parts, strict=True):
        row[: len(part)] = part
    return torch.from_numpy(out)


def stack(samples: Sequence[Sample], frame: Frame) -> SceneBatch:
    """Pad samples, all made with this frame, into one batch.

    Raises:
        SceneError: they differ in period, H or F.
    """
    first = samples[0]
    for other in samples:
        if other.clock != first.clock:
            clocks = f"period, H and F {other.clock} differ from {first.clock} of scene {first.scene_id} in its batch"
            raise SceneError(f"scene {other.scene_id}: {clocks}")
    tensors = {name: _pad([part.padded[name] for part in samples]) for name in first.padded}
    batch = SceneBatch(
        scene_id=tuple(part.scene_id for part in samples),
        agent_id=tuple(part.agent_id for part in samples),
        period_s=first.clock[0],
        num_targets=tensors["target_mask"].shape[1],
        frame=frame,
        frame_pose=torch.from_numpy(np.stack([part.frame_pose for part in samples])),
        **tensors,
    )
    if frame is Frame.SCENE:
        return batch
    return transform(batch, torch.from_numpy(np.stack([part.home for part in samples])))


def collate(scenes: Sequence[Scene], config: BatchConfig = BatchConfig()) -> SceneBatch:
    """Choose, resample and pad scenes (at least one) into a batch; raises what `samples` and `stack` raise."""
    return stack(samples(scenes, config), config.frame)


def transform(batch: SceneBatch, pose: Tensor) -> SceneBatch:
    """The batch's tensors expressed in a frame at `pose` [B, 3] of the present frame; padding stays zero.

    `frame_pose` is left alone: `collate` has it right already, augmentation has no use for it.
    """
    lift = {n: pose.reshape(-1, *([1] * n), 3).to(batch.position.dtype) for n in (1, 2, 3)}
    heading = wrap(batch.heading - lift[2][..., 2]) * batch.valid
    turned = wrap(batch.pose[..., 2] - lift[1][..., 2])
    own = torch.cat([to_frame(batch.pose[..., :2], lift[1]), turned[..., None]], -1)
    return replace(
        batch,
        position=to_frame(batch.position, lift[2]) * batch.valid[..., None],
        heading=heading,
        velocity=rotate(batch.velocity, -lift[2][..., 2]) * batch.valid[..., None],
        pose=own * batch.agent_mask[..., None],
        target=to_frame(batch.target, lift[batch.target.ndim - 2]) * batch.target_valid[..., None],
        polyline=to_frame(batch.polyline, lift[2]) * batch.polyline_mask[..., None, None],
    )
