"""Augmentations of space: mirrored, rotated and scaled scenes, noise on headings and positions."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from trajformer.data.batch import SceneBatch, append_axes, transform
from trajformer.data.draws import centered, draw, per_scene
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import LaneFlag


def flip(batch: SceneBatch, generator: torch.Generator, probability: float) -> SceneBatch:
    """Mirror scenes at the x axis of the batch frame; lane flags exchange left and right turns."""
    is_flipped = per_scene(batch, generator) < probability
    sign = torch.where(is_flipped, -1.0, 1.0)
    factor = torch.stack([torch.ones_like(sign), sign], -1)
    mirrored = _multiply(batch, factor, sign)

    left = int(LaneFlag.TURN_LEFT)
    right = int(LaneFlag.TURN_RIGHT)
    flags = batch.observation.polyline_flags
    is_left = (flags & left) != 0
    is_right = (flags & right) != 0
    swapped = (flags & ~(left | right)) + is_left * right + is_right * left
    flags = torch.where(is_flipped[:, None], swapped, flags)
    observation = replace(mirrored.observation, polyline_flags=flags)
    return replace(mirrored, observation=observation)


def rotate(batch: SceneBatch, generator: torch.Generator, limit: float) -> SceneBatch:
    """Rotate every scene about its origin by a uniform angle within +-limit radians."""
    angle = centered(batch, generator) * min(limit, math.pi)
    zero = torch.zeros_like(angle)
    return transform(batch, torch.stack([zero, zero, angle], -1))


def scale(batch: SceneBatch, generator: torch.Generator, limit: float) -> SceneBatch:
    """Scale every scene about its origin: lanes, positions, velocities and sizes."""
    factor = 1.0 + centered(batch, generator) * limit
    return _multiply(batch, factor[:, None], torch.ones_like(factor))


def _multiply(batch: SceneBatch, factor: Tensor, heading_factor: Tensor) -> SceneBatch:
    """Multiply positions, velocities and sizes by `factor`, and headings by `heading_factor`.

    `factor` is [B, 1 or 2], `heading_factor` [B].
    """

    def vector(value: Tensor) -> Tensor:
        axes = [1] * (value.ndim - 2)
        return value * factor.reshape(len(factor), *axes, factor.shape[1])

    def heading(value: Tensor) -> Tensor:
        return value * append_axes(heading_factor, value.ndim)

    o = batch.observation
    pose = torch.cat([vector(o.pose[..., :2]), heading(o.pose[..., 2])[..., None]], -1)
    observation = replace(
        o,
        position=vector(o.position),
        heading=heading(o.heading),
        velocity=vector(o.velocity),
        pose=pose,
        polyline=vector(o.polyline),
        agent_size=vector(o.agent_size).abs(),
    )
    return SceneBatch(observation, replace(batch.truth, position=vector(batch.truth.position)))


def jitter_headings(batch: SceneBatch, generator: torch.Generator, deviation: float) -> SceneBatch:
    """Rotate every agent's reference frame slightly, because measured headings are uncertain."""
    o = batch.observation
    noise = draw(torch.randn, o.agent_mask.shape, generator, o.pose.device)
    heading = wrap(o.pose[..., 2] + deviation * noise)
    pose = torch.cat([o.pose[..., :2], heading[..., None]], -1)
    return replace(batch, observation=replace(o, pose=pose * o.agent_mask[..., None]))


def jitter_positions(
    batch: SceneBatch, generator: torch.Generator, deviation_m: float
) -> SceneBatch:
    """Add noise to the observed positions.

    The reference poses, to which futures are relative, stay.
    """
    o = batch.observation
    strength = centered(batch, generator).clamp(min=0)  # [B], zero for half of the scenes
    deviation = append_axes(strength * deviation_m, o.position.ndim)
    noise = draw(torch.randn, o.position.shape, generator, o.position.device)
    noise = noise * deviation * o.valid[..., None]

    # Readers measure velocities over about half a second.
    steps = min(max(round(0.5 / o.period_s), 1), o.num_history - 1)
    is_known = o.valid[:, :, steps:] & o.valid[:, :, :-steps]
    difference = noise[:, :, steps:] - noise[:, :, :-steps]
    change = difference * is_known[..., None] / (steps * o.period_s)
    first = change[:, :, :1].expand(-1, -1, steps, -1)
    change = torch.cat([first, change], 2) * o.valid[..., None]
    noisy = replace(o, position=o.position + noise, velocity=o.velocity + change)
    return replace(batch, observation=noisy)
