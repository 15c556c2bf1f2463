"""Augmentation of training batches, on their device, with an explicit random generator.

Each augmentation is a function (batch, generator, ...) -> batch; `augment` applies those that the config enables.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from trajformer.config import Config
from trajformer.data.batch import (
    AGENT_FIELDS,
    POLYLINE_FIELDS,
    Observation,
    SceneBatch,
    Truth,
    transform,
)
from trajformer.data.distances import half_second
from trajformer.data.sample import Frame
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import AgentRole, LaneFlag

_MOVING_M = 3.0  # agents with a future end at least this far away are moving


@dataclass(frozen=True)
class AugmentConfig(
    Config,
    fractions=("flip", "scale", "tempo", "agent_dropout", "lane_dropout", "shift", "history_mask"),
):
    """Strength of each augmentation.

    Attributes:
        flip: probability of mirroring a scene.
        rotate: rotate every scene by a uniform angle within +-`rotate` radians. SE(2)-equivariant models do not notice this;
            use `heading_noise` for them.
        heading_noise: standard deviation in radians of the noise on every agent's reference heading, and so on its frame.
        scale: stretch every scene by a uniform factor in 1 - scale to 1 + scale, speeds included.
        noise_m: add normal noise to the observed positions of half of the scenes, with a standard deviation uniform up to this
            many metres, and to velocities accordingly, which readers measure over about half a second; reference poses stay.
            Recordings differ in their noise.
        max_targets: keep at most this many targets of each scene: the scored ones, then randomly chosen others, mostly ones that
            move. The rest become context. 0 keeps all targets.
        crop: keep only this many agents of larger crowds: the agents nearest to a randomly chosen target. The cost of models
            that attend over all agents and steps grows with the square of both. 0 keeps all agents.
        agent_dropout: probability of hiding each agent that is not a target.
        lane_dropout: probability of hiding each polyline.
        tempo: replay every scene faster or slower, by a uniform factor in 1 - tempo to 1 + tempo, on the same lanes. Futures that
            are replayed faster end earlier.
        shift: probability of a temporal shift: the scene is observed some steps earlier, if all its scored targets are visible
            then, and the last observed steps become part of the future. This adds pasts and futures; histories get shorter.
            Other targets that are not visible then are removed, and all agents first seen less than half a second before.
        shift_steps: largest shift in steps.
        history_mask: probability of hiding the start of an agent's history.
        history_mask_steps: largest number of hidden steps (mmTransformer: 10).
    """

    flip: float = 0.5
    rotate: float = 0.0
    heading_noise: float = 0.0
    scale: float = 0.0
    noise_m: float = 0.0
    tempo: float = 0.0
    max_targets: int = 0
    crop: int = 0
    agent_dropout: float = 0.1
    lane_dropout: float = 0.0
    shift: float = 0.0
    shift_steps: int = 10
    history_mask: float = 0.2
    history_mask_steps: int = 10


def _draw(
    make: Callable[..., Tensor],
    shape: Sequence[int],
    generator: torch.Generator,
    device: torch.device,
) -> Tensor:
    """Numbers of `torch.rand` or `torch.randn` from the generator's device: a seed gives the same ones on CPU and GPU."""
    return make(tuple(shape), generator=generator, device=generator.device).to(
        device, non_blocking=True
    )


def _per_scene(batch: SceneBatch, generator: torch.Generator) -> Tensor:
    """A uniform random number in 0..1 for each scene [B]."""
    return _draw(torch.rand, (batch.num_scenes,), generator, batch.observation.position.device)


def _multiply(
    batch: SceneBatch, factor: Tensor, heading_factor: Tensor | None = None
) -> SceneBatch:
    """Multiply all positions and velocities by `factor` [B, 1 or 2] and all headings by `heading_factor` [B]."""
    o, truth = batch.observation, batch.truth

    def vector(value: Tensor) -> Tensor:
        return value * factor.reshape(-1, *[1] * (value.ndim - 2), factor.shape[1])

    def heading(value: Tensor) -> Tensor:
        return (
            value
            if heading_factor is None
            else value * heading_factor.reshape(-1, *[1] * (value.ndim - 1))
        )

    observation = replace(
        o,
        position=vector(o.position),
        heading=heading(o.heading),
        velocity=vector(o.velocity),
        pose=torch.cat([vector(o.pose[..., :2]), heading(o.pose[..., 2])[..., None]], -1),
        polyline=vector(o.polyline),
    )
    return SceneBatch(observation, replace(truth, position=vector(truth.position)))


def flip(batch: SceneBatch, generator: torch.Generator, probability: float) -> SceneBatch:
    """Mirror scenes at the x axis of the batch frame; lane flags exchange left and right turns."""
    chosen = _per_scene(batch, generator) < probability
    sign = torch.where(chosen, -1.0, 1.0)
    left, right, flags = (
        int(LaneFlag.TURN_LEFT),
        int(LaneFlag.TURN_RIGHT),
        batch.observation.polyline_flags,
    )
    swapped = (
        (flags & ~(left | right)) + ((flags & left) != 0) * right + ((flags & right) != 0) * left
    )
    mirrored = _multiply(batch, torch.stack([torch.ones_like(sign), sign], -1), sign)
    flags = torch.where(chosen[:, None], swapped, flags)
    return replace(mirrored, observation=replace(mirrored.observation, polyline_flags=flags))


def rotate(batch: SceneBatch, generator: torch.Generator, limit: float) -> SceneBatch:
    """Rotate every scene about its origin by a uniform angle within +-limit radians."""
    angle = (2 * _per_scene(batch, generator) - 1) * min(limit, math.pi)
    return transform(
        batch, torch.stack([torch.zeros_like(angle), torch.zeros_like(angle), angle], -1)
    )


def jitter_headings(batch: SceneBatch, generator: torch.Generator, deviation: float) -> SceneBatch:
    """Rotate every agent's reference frame slightly, because measured headings are uncertain."""
    o = batch.observation
    noise = _draw(torch.randn, o.agent_mask.shape, generator, o.pose.device)
    heading = wrap(o.pose[..., 2] + deviation * noise)
    pose = torch.cat([o.pose[..., :2], heading[..., None]], -1)
    return replace(batch, observation=replace(o, pose=pose * o.agent_mask[..., None]))


def scale(batch: SceneBatch, generator: torch.Generator, limit: float) -> SceneBatch:
    """Scale every scene about its origin: lanes, positions and velocities."""
    return _multiply(batch, 1.0 + (2 * _per_scene(batch, generator)[:, None] - 1) * limit)


def jitter_positions(
    batch: SceneBatch, generator: torch.Generator, deviation_m: float
) -> SceneBatch:
    """Add noise to the observed positions; the reference poses, to which futures are relative, stay."""
    o = batch.observation
    share = (2 * _per_scene(batch, generator) - 1).clamp(min=0)
    noise = (
        _draw(torch.randn, o.position.shape, generator, share.device)
        * (share * deviation_m)[:, None, None, None]
        * o.valid[..., None]
    )
    # Readers measure velocities over about half a second.
    gap = min(max(round(0.5 / o.period_s), 1), o.num_history - 1)
    known = (o.valid[:, :, gap:] & o.valid[:, :, :-gap])[..., None]
    change = (noise[:, :, gap:] - noise[:, :, :-gap]) * known / (gap * o.period_s)
    first = change[:, :, :1].expand(-1, -1, gap, -1)
    change = torch.cat([first, change], 2) * o.valid[..., None]
    return replace(
        batch, observation=replace(o, position=o.position + noise, velocity=o.velocity + change)
    )


def crop(batch: SceneBatch, generator: torch.Generator, count: int) -> SceneBatch:
    """Keep the `count` agents of each scene that are nearest to a random target, including it."""
    o = batch.observation
    if o.agent_mask.shape[1] <= count or not o.num_targets:
        return batch
    scene = torch.arange(batch.num_scenes, device=o.pose.device)
    drawn = _draw(torch.rand, o.target_mask.shape, generator, o.pose.device)
    center = torch.where(o.target_mask, drawn, -1.0).argmax(-1)
    point = o.pose[..., :2]
    distance = (
        (point - point[scene, center][:, None]).norm(dim=-1).masked_fill(~o.agent_mask, torch.inf)
    )
    distance[scene, center] = -1.0  # another agent may stand at the same point
    index = distance.topk(count, largest=False).indices.sort(-1).values  # targets stay first
    return take_agents(batch, index, min(count, o.num_targets))


def thin(batch: SceneBatch, generator: torch.Generator, count: int) -> SceneBatch:
    """Keep the scored targets and others, `count` in all: first those that move, then standing ones, each in random order."""
    o, truth, targets = batch.observation, batch.truth, batch.observation.num_targets
    if targets <= count:
        return batch
    end = truth.position[..., -1, :].reshape(*o.target_mask.shape, -1, 2)  # of each future
    moved = (end - o.pose[:, :targets, None, :2]).norm(dim=-1) >= _MOVING_M
    moving = (moved & truth.valid[..., -1].reshape(moved.shape)).any(-1)
    scored = o.agent_role[:, :targets] >= int(AgentRole.SCORED)
    drawn = _draw(torch.rand, o.target_mask.shape, generator, o.pose.device)
    first = (drawn + 1.0 * moving + 2.0 * scored + 4.0 * o.target_mask).argsort(1, descending=True)
    context = torch.arange(targets, o.agent_mask.shape[1], device=o.pose.device).expand(
        batch.num_scenes, -1
    )
    return take_agents(batch, torch.cat([first, context], 1), count)


def take_agents(batch: SceneBatch, index: Tensor, targets: int) -> SceneBatch:
    """The agents `index` int64 [B, n] of each scene; targets among the first `targets` remain targets.

    On a device other than the CPU the names of agents are removed, because the host would have to wait for the index.
    """
    o, truth = batch.observation, batch.truth
    scene = torch.arange(batch.num_scenes, device=index.device)[:, None]
    is_target, row = (
        index[:, :targets] < o.num_targets,
        index[:, :targets].clamp(max=o.num_targets - 1),
    )

    def of_targets(value: Tensor) -> Tensor:
        return value[scene, row] * is_target.view(*is_target.shape, *[1] * (value.ndim - 2))

    rows: list[list[int]] = index.tolist() if index.device.type == "cpu" else [[]] * len(index)
    names = tuple(
        tuple(ids[i] for i in chosen if i < len(ids))
        for ids, chosen in zip(o.agent_id, rows, strict=True)
    )
    values = {name: getattr(o, name)[scene, index] for name in AGENT_FIELDS}
    kept = replace(o, agent_id=names, target_mask=of_targets(o.target_mask), **values)
    return SceneBatch(kept, truth.map(of_targets))


def shift(
    batch: SceneBatch, generator: torch.Generator, probability: float, steps: int
) -> SceneBatch:
    """Observe scenes 1 to `steps` steps earlier; agents first seen less than half a second before are removed.

    Readers estimate the velocity and the heading in the first half second of a track, at least two steps, from all its positions,
    and some of them would be future ones now.
    """
    o, truth = batch.observation, batch.truth
    device, history, targets = o.position.device, o.num_history, o.num_targets
    window = max(half_second(o.period_s), 2)
    if history <= window:
        return batch
    count = (_per_scene(batch, generator) * min(steps, history - window)).long() + 1
    chosen = _per_scene(batch, generator) < probability
    past = (
        torch.arange(history, device=device) - count[:, None]
    )  # [B, H], the former index of each step
    valid = _at(o.valid, past.clamp(min=0)) & (past >= 0)[:, None]
    old = valid[..., : history - window + 1].any(-1) & (
        valid.sum(-1) >= 2
    )  # bool [B, A], agents whose velocity is causal
    present = valid[:, :targets, -1] & old[:, :targets]
    free = ~o.target_mask | (o.agent_role[:, :targets] < int(AgentRole.SCORED))
    count = torch.where(chosen & (present | free).all(1), count, 0)[:, None]
    past = torch.arange(history, device=device) - count
    valid = torch.where(count[..., None] > 0, valid, o.valid)
    seen = o.agent_mask & (old | (count == 0))
    position, heading, velocity = (
        _at(v, past.clamp(min=0)) for v in (o.position, o.heading, o.velocity)
    )
    pose = torch.where(count[..., None] > 0, _last_pose(position, heading, valid), o.pose)
    ahead = (
        history + torch.arange(o.num_future, device=device) - count
    )  # [B, F], index into all steps
    shifted = Truth(
        _shifted(o.position[:, :targets], truth.position, ahead),
        _shifted(o.valid[:, :targets], truth.valid, ahead),
    )
    kept = o.target_mask & (present | (count == 0))
    known = (
        kept[..., None] & truth.valid.any(-1) if truth.valid.ndim > 3 else kept
    )  # one of several futures may be missing
    shifted = shifted.map(
        lambda value: value * known.view(*known.shape, *[1] * (value.ndim - known.ndim))
    )
    earlier = replace(
        o,
        position=position,
        heading=heading,
        velocity=velocity,
        pose=pose,
        target_mask=o.target_mask & kept,
    )
    result = SceneBatch(_hide(earlier, valid & seen[..., None], seen), shifted)
    if o.frame is not Frame.FOCAL:
        return result
    focal = (o.agent_role == int(AgentRole.FOCAL)).int().argmax(1)
    home = pose[torch.arange(batch.num_scenes, device=device), focal]
    return transform(result, torch.where(count > 0, home, 0.0))


def _last_pose(position: Tensor, heading: Tensor, valid: Tensor) -> Tensor:
    """Poses [B, A, 3] in the last valid step of positions [B, A, H, 2] and headings [B, A, H]."""
    last = torch.where(valid, torch.arange(valid.shape[-1], device=valid.device), 0).amax(-1)[
        ..., None
    ]
    point = position.take_along_dim(last[..., None], 2).squeeze(2)
    return torch.cat([point, heading.take_along_dim(last, 2)], -1)


def _shifted(observed: Tensor, future: Tensor, step: Tensor) -> Tensor:
    """Values at steps [B, F] of observed [B, S, H, ...] followed by future values [B, S, F, ...] or [B, S, G, F, ...]."""
    sets = future if future.ndim == observed.ndim + 1 else future[:, :, None]  # [B, S, G, F, ...]
    before = observed[:, :, None].expand(*sets.shape[:3], *observed.shape[2:])
    return _at(torch.cat([before, sets], 3).flatten(1, 2), step).reshape(future.shape)


def _at(value: Tensor, step: Tensor) -> Tensor:
    """Values [B, N, T, ...] at steps [B, n]: [B, N, n, ...]."""
    return value.transpose(1, 2)[
        torch.arange(len(value), device=value.device)[:, None], step
    ].transpose(1, 2)


def tempo(batch: SceneBatch, generator: torch.Generator, limit: float) -> SceneBatch:
    """Replay every scene faster or slower, by a uniform factor in 1 - limit to 1 + limit; the last observed step stays.

    States between recorded steps are interpolated. Steps outside the recording are not valid.
    """
    o, truth = batch.observation, batch.truth
    device, history, targets = o.position.device, o.num_history, o.num_targets
    factor = (1.0 + (2 * _per_scene(batch, generator) - 1) * limit)[:, None]  # [B, 1]
    past = _times(history - 1 + factor * torch.arange(1 - history, 1, device=device), history)
    ahead = _times(factor * torch.arange(1, o.num_future + 1, device=device), o.num_future + 1)
    position, velocity, direction = (
        _blend(partial(_at, value), past)
        for value in (
            o.position,
            o.velocity * factor[..., None, None],
            torch.stack([o.heading.cos(), o.heading.sin()], -1),
        )
    )
    valid = _known(partial(_at, o.valid), past)
    heading = torch.atan2(direction[..., 1], direction[..., 0])
    faster = replace(
        o,
        position=position,
        heading=heading,
        velocity=velocity,
        pose=_last_pose(position, heading, valid),
    )
    path = _blend(partial(_shifted, o.position[:, :targets, -1:], truth.position), ahead)
    known = _known(partial(_shifted, o.valid[:, :targets, -1:], truth.valid), ahead)
    seen = o.agent_mask & valid.any(-1)
    kept = seen[:, :targets]
    faster = replace(faster, target_mask=o.target_mask & kept)
    known &= kept.view(*kept.shape, *[1] * (known.ndim - 2))
    return SceneBatch(_hide(faster, valid, seen), Truth(path * known[..., None], known))


class _Times(NamedTuple):
    """Times between steps: `before` + `share`, where `share` is 0 to 1; `inside` is False before the first or after the last."""

    before: Tensor  # int64 [B, n]
    after: Tensor  # int64 [B, n]
    share: Tensor  # float32 [B, n]
    inside: Tensor  # bool [B, n]


def _times(time: Tensor, steps: int) -> _Times:
    """Times [B, n], in steps, between steps 0 to `steps` - 1."""
    before = time.floor().clamp(0, steps - 1)
    after = time.ceil().clamp(0, steps - 1)
    return _Times(
        before.long(), after.long(), (time - before).clamp(0, 1), (time >= 0) & (time <= steps - 1)
    )


def _blend(at: Callable[[Tensor], Tensor], times: _Times) -> Tensor:
    """Linear interpolation [B, N, ..., n, C] of the values that `at` returns for steps [B, n]."""
    before = at(times.before)
    share = times.share.reshape(len(times.share), *[1] * (before.ndim - 3), -1, 1)
    return before.lerp(at(times.after), share)


def _known(at: Callable[[Tensor], Tensor], times: _Times) -> Tensor:
    """Whether both neighbouring steps are valid, of the masks [B, N, ..., n] that `at` returns for steps [B, n]."""
    before = at(times.before)
    return (
        before
        & at(times.after)
        & times.inside.reshape(len(times.inside), *[1] * (before.ndim - 2), -1)
    )


def drop_agents(batch: SceneBatch, generator: torch.Generator, probability: float) -> SceneBatch:
    """Hide context agents completely; targets stay."""
    o = batch.observation
    kept = _draw(torch.rand, o.agent_mask.shape, generator, o.position.device) >= probability
    kept[:, : o.num_targets] |= o.target_mask
    return replace(batch, observation=_hide(o, o.valid & kept[..., None], o.agent_mask & kept))


def drop_lanes(batch: SceneBatch, generator: torch.Generator, probability: float) -> SceneBatch:
    """Hide polylines."""
    o = batch.observation
    kept = _draw(torch.rand, o.polyline_mask.shape, generator, o.position.device) >= probability
    mask, flags = o.polyline_mask & kept, o.polyline_flags * kept
    return replace(
        batch,
        observation=replace(
            o, polyline=o.polyline * kept[..., None, None], polyline_flags=flags, polyline_mask=mask
        ),
    )


def mask_history(
    batch: SceneBatch, generator: torch.Generator, probability: float, steps: int
) -> SceneBatch:
    """Hide the first steps of some agents' histories, as if their tracks had started later."""
    o = batch.observation
    device = o.position.device
    steps = min(steps, o.num_history - 2)  # velocity needs two steps
    share, drawn = (_draw(torch.rand, o.agent_mask.shape, generator, device) for _ in range(2))
    count = torch.where(drawn < probability, (share * (steps + 1)).floor(), 0.0)
    late = torch.arange(o.num_history, device=device) >= count[..., None]
    # A track that ended early keeps all its steps: masking must not remove an agent.
    kept = o.valid & late
    gone = ~kept.any(-1, keepdim=True)
    return replace(batch, observation=_hide(o, torch.where(gone, o.valid, kept), o.agent_mask))


def _hide(o: Observation, valid: Tensor, agent_mask: Tensor) -> Observation:
    wide = valid[..., None]
    return replace(
        o,
        position=o.position * wide,
        heading=o.heading * valid,
        velocity=o.velocity * wide,
        valid=valid,
        agent_mask=agent_mask,
        pose=o.pose * agent_mask[..., None],
    )


_CHANGES: dict[
    str, Callable[..., SceneBatch]
] = {  # by the config field that enables it, in this order
    "crop": crop,
    "max_targets": thin,
    "shift": shift,
    "tempo": tempo,
    "flip": flip,
    "rotate": rotate,
    "heading_noise": jitter_headings,
    "scale": scale,
    "noise_m": jitter_positions,
    "agent_dropout": drop_agents,
    "lane_dropout": drop_lanes,
    "history_mask": mask_history,
}


def shrink(batch: SceneBatch) -> SceneBatch:
    """Shorten the axes of agents and polylines to the largest number of visible ones in a scene.

    Models ignore hidden ones, but compute with them. All targets and the order of visible ones stay.
    """
    o = batch.observation
    agents = o.agent_mask.clone()
    agents[:, : o.num_targets] = True
    if (count := int(agents.sum(1).max())) < agents.shape[1]:
        batch = take_agents(
            batch, (~agents).byte().argsort(dim=1, stable=True)[:, :count], o.num_targets
        )
    if (count := int(o.polyline_mask.sum(1).max())) < o.polyline_mask.shape[1]:
        index = (~o.polyline_mask).byte().argsort(dim=1, stable=True)[:, :count]
        scene = torch.arange(batch.num_scenes)[:, None]
        polylines = {name: getattr(o, name)[scene, index] for name in POLYLINE_FIELDS}
        batch = replace(batch, observation=replace(batch.observation, **polylines))
    return batch


def augment(batch: SceneBatch, config: AugmentConfig, generator: torch.Generator) -> SceneBatch:
    """Apply all augmentations that the config enables, then `shrink` on a CPU; a GPU would have to wait for the sizes."""
    for name, change in _CHANGES.items():
        if strength := getattr(config, name):
            steps = [getattr(config, f"{name}_steps")] if hasattr(config, f"{name}_steps") else []
            batch = change(batch, generator, strength, *steps)
    return shrink(batch) if batch.observation.position.device.type == "cpu" else batch
