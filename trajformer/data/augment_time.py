"""Augmentations of time: earlier observation, another tempo, shorter histories, lost agents."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from trajformer.data.augment_agents import hide
from trajformer.data.batch import (
    Observation,
    SceneBatch,
    Truth,
    append_axes,
    restated,
    transform,
)
from trajformer.data.distances import half_second
from trajformer.data.draws import centered, draw, per_scene
from trajformer.data.sample import Frame
from trajformer.scenes.scene import SHORT_LOSS_S, AgentRole


def shift(
    batch: SceneBatch, generator: torch.Generator, probability: float, steps: int
) -> SceneBatch:
    """Observe scenes 1 to `steps` steps earlier.

    Agents first seen less than half a second before are removed. Readers estimate the velocity and
    the heading in the first half second of a track, at least two steps, from all its positions, and
    some would be future ones now.
    """
    o = batch.observation
    truth = batch.truth
    window = max(half_second(o.period_s), 2)
    if o.num_history <= window:
        return batch
    max_count = min(steps, o.num_history - window)
    count = _draw_shift(batch, generator, probability, max_count, window)
    is_shifted = count > 0

    # the observation
    valid, is_causal = _observed_earlier(o, count, window)
    past = _past_steps(o, count).clamp(min=0)
    position = _at(o.position, past)
    heading = _at(o.heading, past)
    is_seen = o.agent_mask & (is_causal | ~is_shifted[:, None])
    targets = slice(o.num_targets)
    is_visible = valid[:, targets, -1] & is_causal[:, targets]
    is_kept = o.target_mask & (is_visible | ~is_shifted[:, None])
    earlier = replace(
        o,
        position=position,
        heading=heading,
        velocity=_at(o.velocity, past),
        target_mask=is_kept,
    )
    observation = restated(hide(earlier, valid & is_seen[..., None], is_seen))
    is_seen &= observation.present | ~is_shifted[:, None]
    observation = hide(observation, observation.valid & is_seen[..., None], is_seen)

    # the truth: the last observed steps, then the first ones of the future
    step = torch.arange(o.num_future, device=count.device)
    step = o.num_history + step - count[:, None]  # [B, F], index into all steps
    is_known = is_kept
    if truth.valid.ndim > 3:  # one of several futures may be missing
        is_known = is_kept[..., None] & truth.valid.any(-1)
    future = Truth(
        _joined(o.position[:, targets], truth.position, step),
        _joined(o.recorded[:, targets], truth.valid, step),
    )
    future = future.map(lambda value: value * append_axes(is_known, value.ndim))

    result = SceneBatch(observation, future)
    if o.frame is not Frame.FOCAL:
        return result
    focal = (o.agent_role == int(AgentRole.FOCAL)).int().argmax(1)
    scene = torch.arange(batch.num_scenes, device=count.device)
    home = observation.pose[scene, focal]
    return transform(result, torch.where(is_shifted[:, None], home, 0.0))


def _draw_shift(
    batch: SceneBatch, generator: torch.Generator, probability: float, steps: int, window: int
) -> Tensor:
    """The number of steps by which each scene is shifted, int64 [B], often 0.

    A scene is shifted only if all its scored targets are visible then.
    """
    o = batch.observation
    count = (per_scene(batch, generator) * steps).long() + 1
    is_chosen = per_scene(batch, generator) < probability
    valid, is_causal = _observed_earlier(o, count, window)
    targets = slice(o.num_targets)
    is_visible = valid[:, targets, -1] & is_causal[:, targets]
    is_scored = o.target_mask & (o.agent_role[:, targets] >= int(AgentRole.SCORED))
    is_possible = (is_visible | ~is_scored).all(1)
    return torch.where(is_chosen & is_possible, count, 0)


def _past_steps(o: Observation, count: Tensor) -> Tensor:
    """The former index of each observed step after a shift by `count` [B]: [B, H], some below 0."""
    return torch.arange(o.num_history, device=count.device) - count[:, None]


def _observed_earlier(o: Observation, count: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """The observed steps of agents, `count` [B] steps earlier.

    Returns the recorded steps, bool [B, A, H], and bool [B, A]: velocities of the agent are
    estimated from observed steps only.
    """
    past = _past_steps(o, count)
    valid = _at(o.recorded, past.clamp(min=0)) & (past >= 0)[:, None]
    is_long = valid[..., : o.num_history - window + 1].any(-1)
    is_causal = is_long & (valid.sum(-1) >= 2)
    return valid, is_causal


def tempo(batch: SceneBatch, generator: torch.Generator, limit: float) -> SceneBatch:
    """Replay every scene faster or slower, by a uniform factor in 1 - limit to 1 + limit.

    The last observed step stays. States between recorded steps are interpolated. Steps outside the
    recording are not valid.
    """
    o = batch.observation
    truth = batch.truth
    device = o.position.device
    factor = (1.0 + centered(batch, generator) * limit)[:, None]  # [B, 1]

    # the observation
    step = torch.arange(1 - o.num_history, 1, device=device)
    past = _times(o.num_history - 1 + factor * step, o.num_history)
    velocity = o.velocity * factor[..., None, None]
    direction = torch.stack([o.heading.cos(), o.heading.sin()], -1)
    position = _blend(partial(_at, o.position), past)
    velocity = _blend(partial(_at, velocity), past)
    direction = _blend(partial(_at, direction), past)
    heading = torch.atan2(direction[..., 1], direction[..., 0])
    replayed = replace(
        o,
        position=position,
        heading=heading,
        velocity=velocity,
        valid=_both_valid(partial(_at, o.valid), past),
        age=o.age / factor,
    )
    is_seen = o.agent_mask & replayed.recorded.any(-1)
    targets = slice(o.num_targets)
    replayed = replace(replayed, target_mask=o.target_mask & is_seen[:, targets])

    # the truth, from the last observed step on
    step = torch.arange(1, o.num_future + 1, device=device)
    ahead = _times(factor * step, o.num_future + 1)
    path = _blend(partial(_joined, o.position[:, targets, -1:], truth.position), ahead)
    is_known = _both_valid(partial(_joined, o.valid[:, targets, -1:], truth.valid), ahead)
    is_known &= append_axes(is_seen[:, targets], is_known.ndim)
    future = Truth(path * is_known[..., None], is_known)
    return SceneBatch(hide(replayed, replayed.valid & is_seen[..., None], is_seen), future)


def mask_history(
    batch: SceneBatch, generator: torch.Generator, probability: float, steps: int
) -> SceneBatch:
    """Hide the first steps of some agents' histories, as if their tracks had started later."""
    o = batch.observation
    device = o.position.device
    steps = min(steps, o.num_history - 2)  # velocity needs two steps
    length = draw(torch.rand, o.agent_mask.shape, generator, device)
    is_chosen = draw(torch.rand, o.agent_mask.shape, generator, device) < probability
    count = torch.where(is_chosen, (length * (steps + 1)).floor(), 0.0)
    is_late = torch.arange(o.num_history, device=device) >= count[..., None]
    # A track that ended early keeps all its steps: masking must not remove an agent.
    is_gone = ~(o.recorded & is_late).any(-1, keepdim=True)
    valid = o.valid & (is_late | is_gone)
    return replace(batch, observation=hide(o, valid, o.agent_mask))


def lose(batch: SceneBatch, generator: torch.Generator, probability: float) -> SceneBatch:
    """Hide up to the last second of some agents, which are then continued at their last velocity.

    At least two recorded steps remain.
    """
    o = batch.observation
    device = o.position.device
    steps = max(round(SHORT_LOSS_S / o.period_s), 1)
    length = draw(torch.rand, o.agent_mask.shape, generator, device)
    is_chosen = draw(torch.rand, o.agent_mask.shape, generator, device) < probability
    count = (length * steps).floor() + 1.0
    step = torch.arange(o.num_history, device=device)
    kept = o.recorded & (step < o.num_history - count[..., None])
    is_lost = is_chosen & (kept.sum(-1) >= 2)

    valid = torch.where(is_lost[..., None], kept, o.recorded)
    return replace(batch, observation=restated(replace(o, valid=valid)))


class _Times(NamedTuple):
    """Times between steps: `before` + `fraction`, where `fraction` is 0 to 1."""

    before: Tensor  # int64 [B, n]
    after: Tensor  # int64 [B, n]
    fraction: Tensor  # float32 [B, n]
    is_inside: Tensor  # bool [B, n], False before the first or after the last step


def _times(time: Tensor, steps: int) -> _Times:
    """Times [B, n], in steps, between steps 0 to `steps` - 1."""
    before = time.floor().clamp(0, steps - 1)
    after = time.ceil().clamp(0, steps - 1)
    fraction = (time - before).clamp(0, 1)
    is_inside = (time >= 0) & (time <= steps - 1)
    return _Times(before.long(), after.long(), fraction, is_inside)


def _blend(at: Callable[[Tensor], Tensor], times: _Times) -> Tensor:
    """Linear interpolation [B, N, ..., n, C] of the values that `at` returns for steps [B, n]."""
    before = at(times.before)
    num_scenes, num_times = times.fraction.shape
    axes = [1] * (before.ndim - 3)
    fraction = times.fraction.reshape(num_scenes, *axes, num_times, 1)
    return before.lerp(at(times.after), fraction)


def _both_valid(at: Callable[[Tensor], Tensor], times: _Times) -> Tensor:
    """Whether both neighbouring steps are valid.

    `at` returns masks [B, N, ..., n] for steps [B, n].
    """
    before = at(times.before)
    num_scenes, num_times = times.is_inside.shape
    axes = [1] * (before.ndim - 2)
    is_inside = times.is_inside.reshape(num_scenes, *axes, num_times)
    return before & at(times.after) & is_inside


def _at(value: Tensor, step: Tensor) -> Tensor:
    """Values [B, N, T, ...] at steps [B, n]: [B, N, n, ...]."""
    scene = torch.arange(len(value), device=value.device)[:, None]
    return value.transpose(1, 2)[scene, step].transpose(1, 2)


def _joined(observed: Tensor, future: Tensor, step: Tensor) -> Tensor:
    """Values at steps [B, F] of observed [B, S, H, ...] followed by future values [B, S, F, ...].

    The future may have an axis of several futures, [B, S, G, F, ...], which the result has, too.
    """
    futures = future  # [B, S, G, F, ...]
    if future.ndim == observed.ndim:
        futures = future[:, :, None]
    before = observed[:, :, None].expand(*futures.shape[:3], *observed.shape[2:])
    values = torch.cat([before, futures], 3).flatten(1, 2)
    return _at(values, step).reshape(future.shape)
