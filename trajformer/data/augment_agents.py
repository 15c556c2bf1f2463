"""Augmentations that select agents and polylines: crops, fewer targets, and hidden entries."""

from dataclasses import replace

import torch
from torch import Tensor

from trajformer.data.batch import (
    AGENT_FIELDS,
    POLYLINE_FIELDS,
    Observation,
    SceneBatch,
    append_axes,
)
from trajformer.data.draws import draw
from trajformer.scenes.scene import AgentRole

_MOVING_M = 3.0  # agents with a future end at least this far away are moving


def crop(batch: SceneBatch, generator: torch.Generator, count: int) -> SceneBatch:
    """Keep the `count` agents of each scene that are nearest to a random target, including it."""
    o = batch.observation
    num_agents = o.agent_mask.shape[1]
    if num_agents <= count or o.num_targets == 0:
        return batch
    scene = torch.arange(batch.num_scenes, device=o.pose.device)
    drawn = draw(torch.rand, o.target_mask.shape, generator, o.pose.device)
    center = torch.where(o.target_mask, drawn, -1.0).argmax(-1)  # [B], a target of each scene
    point = o.pose[..., :2]
    distance = (point - point[scene, center][:, None]).norm(dim=-1)
    distance = distance.masked_fill(~o.agent_mask, torch.inf)
    distance[scene, center] = -1.0  # another agent may stand at the same point
    nearest = distance.topk(count, largest=False).indices
    index = nearest.sort(-1).values  # targets stay first
    return take_agents(batch, index, min(count, o.num_targets))


def thin(batch: SceneBatch, generator: torch.Generator, count: int) -> SceneBatch:
    """Keep `count` targets of each scene; the others become context.

    Scored targets come first, then targets that move, then standing ones, each in random order.
    """
    o = batch.observation
    num_targets = o.num_targets
    if num_targets <= count:
        return batch
    is_moving = _is_moving(batch)
    is_scored = o.agent_role[:, :num_targets] >= int(AgentRole.SCORED)
    drawn = draw(torch.rand, o.target_mask.shape, generator, o.pose.device)
    priority = drawn + 1.0 * is_moving + 2.0 * is_scored + 4.0 * o.target_mask
    targets = priority.argsort(1, descending=True)
    context = torch.arange(num_targets, o.agent_mask.shape[1], device=o.pose.device)
    index = torch.cat([targets, context.expand(batch.num_scenes, -1)], 1)
    return take_agents(batch, index, count)


def _is_moving(batch: SceneBatch) -> Tensor:
    """Whether a target ends far from its pose in one of its futures, bool [B, S]."""
    o = batch.observation
    truth = batch.truth
    shape = o.target_mask.shape
    # The last step of a scene: in a training with several data sets, horizons differ.
    recorded = truth.valid.flatten(1, -2).any(1)  # [B, F]
    step = torch.arange(o.num_future, device=recorded.device)
    last = append_axes((step * recorded).amax(-1), truth.valid.ndim)
    end = truth.position.take_along_dim(last[..., None], -2).reshape(*shape, -1, 2)  # [B, S, G, 2]
    is_known = truth.valid.take_along_dim(last, -1).reshape(*shape, -1)
    start = o.pose[:, : o.num_targets, None, :2]
    is_far = (end - start).norm(dim=-1) >= _MOVING_M
    return (is_far & is_known).any(-1)


def drop_agents(batch: SceneBatch, generator: torch.Generator, probability: float) -> SceneBatch:
    """Hide context agents completely; targets stay."""
    o = batch.observation
    drawn = draw(torch.rand, o.agent_mask.shape, generator, o.position.device)
    is_kept = drawn >= probability
    is_kept[:, : o.num_targets] |= o.target_mask
    observation = hide(o, o.valid & is_kept[..., None], o.agent_mask & is_kept)
    return replace(batch, observation=observation)


def drop_lanes(batch: SceneBatch, generator: torch.Generator, probability: float) -> SceneBatch:
    """Hide polylines."""
    o = batch.observation
    drawn = draw(torch.rand, o.polyline_mask.shape, generator, o.position.device)
    is_kept = drawn >= probability
    observation = replace(
        o,
        polyline=o.polyline * is_kept[..., None, None],
        polyline_flags=o.polyline_flags * is_kept,
        polyline_light=o.polyline_light * is_kept,
        polyline_mask=o.polyline_mask & is_kept,
    )
    return replace(batch, observation=observation)


def take_agents(batch: SceneBatch, index: Tensor, targets: int) -> SceneBatch:
    """The agents `index` int64 [B, n] of each scene.

    Targets among the first `targets` remain targets. On a device other than the CPU the names of
    agents are removed, because the host would have to wait for the index.
    """
    o = batch.observation
    scene = torch.arange(batch.num_scenes, device=index.device)[:, None]
    target_index = index[:, :targets]
    is_target = target_index < o.num_targets
    row = target_index.clamp(max=o.num_targets - 1)

    def of_targets(value: Tensor) -> Tensor:
        return value[scene, row] * append_axes(is_target, value.ndim)

    values = {name: getattr(o, name)[scene, index] for name in AGENT_FIELDS}
    observation = replace(
        o,
        agent_id=_take_names(o.agent_id, index),
        target_mask=of_targets(o.target_mask),
        **values,
    )
    return SceneBatch(observation, batch.truth.map(of_targets))


def _take_names(
    agent_id: tuple[tuple[str, ...], ...], index: Tensor
) -> tuple[tuple[str, ...], ...]:
    """The names of the agents `index` int64 [B, n]; padding has no name."""
    if index.device.type != "cpu":
        return ((),) * len(agent_id)
    names = []
    for ids, rows in zip(agent_id, index.tolist(), strict=True):
        names.append(tuple([ids[row] for row in rows if row < len(ids)]))
    return tuple(names)


def shrink(batch: SceneBatch) -> SceneBatch:
    """Shorten the axes of agents and polylines to the largest number of visible ones in a scene.

    Models ignore hidden ones, but compute with them. All targets and the order of visible ones
    stay.
    """
    o = batch.observation
    is_kept = o.agent_mask.clone()
    is_kept[:, : o.num_targets] = True
    num_agents = int(is_kept.sum(1).max())
    if num_agents < is_kept.shape[1]:
        batch = take_agents(batch, _first_true(is_kept, num_agents), o.num_targets)
    num_polylines = int(o.polyline_mask.sum(1).max())
    if num_polylines < o.polyline_mask.shape[1]:
        index = _first_true(o.polyline_mask, num_polylines)
        scene = torch.arange(batch.num_scenes)[:, None]
        polylines = {name: getattr(o, name)[scene, index] for name in POLYLINE_FIELDS}
        batch = replace(batch, observation=replace(batch.observation, **polylines))
    return batch


def _first_true(mask: Tensor, count: int) -> Tensor:
    """Indices [B, count] of the entries of a mask [B, n]: those that are True first, in order."""
    return (~mask).byte().argsort(dim=1, stable=True)[:, :count]


def hide(o: Observation, valid: Tensor, agent_mask: Tensor) -> Observation:
    """The observation with other masks, and zeros where they are False."""
    is_valid = valid[..., None]
    return replace(
        o,
        position=o.position * is_valid,
        heading=o.heading * valid,
        velocity=o.velocity * is_valid,
        valid=valid,
        agent_mask=agent_mask,
        pose=o.pose * agent_mask[..., None],
        age=o.age * agent_mask,
    )
