"""True position, heading and velocity of everything in a scene, without sensor noise."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from data_prep.synthetic.agents import Fleet, Pedestrians
from data_prep.synthetic.curves import Array, Bools, Ints
from data_prep.synthetic.network import PARKING_WIDTH_M, Network
from data_prep.synthetic.routes import Paths, at_path
from data_prep.synthetic.traffic import Motion

_NUDGE_M = 0.65  # lateral distance by which cars move over to pass a cyclist


@dataclass(frozen=True, slots=True)
class _Bodies:
    """True states of M bodies over T steps of 0.1 s."""

    kind: list[str]  # Argoverse object type
    size: Array  # [M, 2] length and width in metres
    xy: Array  # [M, T, 2] metres
    heading: Array  # [M, T] radians
    velocity: Array  # [M, T, 2] m/s
    present: Bools  # [M, T] within the mapped area


@dataclass(frozen=True, slots=True)
class World(_Bodies):
    """True states of all bodies of a scene; the first N bodies are the fleet."""

    turn: Ints  # [N] turn at the next junction in the future (1 left, 0 straight, -1 right), 2 if it reaches none
    choices: Ints  # [N] number of turns still open to it at the last observed step, 0 if it reaches none


def build_world(
    network: Network, fleet: Fleet, paths: Paths, pedestrians: Pedestrians, motion: Motion, now: int, rng: np.random.Generator
) -> World:
    """Map the simulated motion over T steps to the plane and add parked vehicles and street furniture.

    ``turn`` and ``choices`` refer to the last observed step ``now``.
    """
    vehicles, walkers = _vehicles(fleet, paths, motion, rng), _pedestrians(pedestrians, motion, rng)
    parts = [vehicles, walkers, _static_objects(network, rng, motion.at.shape[1])]
    joined = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(_Bodies) if f.name != "kind"}
    turn, choices = _turns(network, paths, motion, now)
    return World(kind=[kind for part in parts for kind in part.kind], turn=turn, choices=choices, **joined)


def _vehicles(fleet: Fleet, paths: Paths, motion: Motion, rng: np.random.Generator) -> _Bodies:
    count = len(fleet.kind)
    row = motion.row[:, None]
    xy = np.stack([at_path(paths.xy[..., axis], row, motion.at) for axis in range(2)], axis=-1)
    heading = at_path(paths.heading, row, motion.at)
    # Vehicles deviate from the lane centre. The deviation depends on the path length, so that it stops when they stop.
    wave = 2.0 * np.pi / rng.uniform(55.0, 120.0, (count, 1))
    amplitude = rng.uniform(0.03, 0.14, (count, 1))
    phase = motion.at * wave + rng.uniform(0.0, 2.0 * np.pi, (count, 1))
    lateral = fleet.lateral[:, None] + amplitude * np.sin(phase) + _nudge(fleet, motion, xy, heading)
    normal = np.stack((-np.sin(heading), np.cos(heading)), axis=-1)
    xy = xy + lateral[..., None] * normal
    step = np.gradient(lateral, axis=1) * 10.0
    heading = heading + np.arctan2(step, np.maximum(motion.speed, 2.0))
    velocity = motion.speed[..., None] * np.stack((np.cos(heading), np.sin(heading)), axis=-1)
    present = (motion.at > -8.0) & (motion.at < paths.end[row] + 8.0)
    return _Bodies(fleet.kind, np.stack((fleet.length, fleet.width), axis=1), xy, heading, velocity, present)


def _nudge(fleet: Fleet, motion: Motion, xy: Array, heading: Array) -> Array:
    """Return how far [N, T] in metres cars move left to pass cyclists at the edge of their lane."""
    out = np.zeros(motion.at.shape)
    cars = np.flatnonzero(~fleet.edge & (fleet.width < 2.2))
    for rider in np.flatnonzero(fleet.edge):
        gap = xy[rider] - xy[cars]
        along = gap[..., 0] * np.cos(heading[cars]) + gap[..., 1] * np.sin(heading[cars])
        across = -gap[..., 0] * np.sin(heading[cars]) + gap[..., 1] * np.cos(heading[cars])
        same_way = np.cos(heading[rider] - heading[cars]) > 0.8
        close = same_way & (along > -9.0) & (along < 16.0) & (np.abs(across) < 1.0)
        out[cars] = np.maximum(out[cars], close * _NUDGE_M * np.minimum(motion.speed[cars] / 4.0, 1.0))
    kernel = np.hanning(33)
    kernel /= kernel.sum()
    padded = np.pad(out, ((0, 0), (16, 16)), mode="edge")
    for car in np.flatnonzero(out.any(axis=1)):
        out[car] = np.convolve(padded[car], kernel, mode="valid")
    return out


def _pedestrians(pedestrians: Pedestrians, motion: Motion, rng: np.random.Generator) -> _Bodies:
    count, steps = motion.walked.shape
    samples = pedestrians.xy.shape[1]
    where = np.clip(motion.walked, 0.0, max(samples - 1.001, 0.0))
    left = where.astype(np.int64)
    share = (where - left)[..., None]
    row = np.arange(count)[:, None]
    xy = (1.0 - share) * pedestrians.xy[row, left] + share * pedestrians.xy[row, left + 1]
    tangent = pedestrians.xy[row, np.minimum(left + 2, samples - 1)] - pedestrians.xy[row, np.maximum(left - 1, 0)]
    heading = np.unwrap(np.arctan2(tangent[..., 1], tangent[..., 0]), axis=1)
    stands = pedestrians.speed == 0.0
    heading[stands] = rng.uniform(-np.pi, np.pi, (count, 1))[stands]
    sway = rng.uniform(0.04, 0.15, (count, 1)) * np.sin(
        motion.walked / rng.uniform(2.5, 5.0, (count, 1)) + rng.uniform(0.0, 6.3, (count, 1))
    )
    normal = np.stack((-np.sin(heading), np.cos(heading)), axis=-1)
    velocity = motion.pace[..., None] * np.stack((np.cos(heading), np.sin(heading)), axis=-1)
    size = np.tile((0.6, 0.6), (count, 1))
    present = np.ones((count, steps), dtype=np.bool_)
    return _Bodies(["pedestrian"] * count, size, xy + sway[..., None] * normal, heading, velocity, present)


def _static_objects(network: Network, rng: np.random.Generator, steps: int) -> _Bodies:
    """Return vehicles parked along roads with parking lanes, and objects on the pavement."""
    kinds: list[str] = []
    poses: list[tuple[float, float, float]] = []
    for road in network.roads:
        last = len(road.points) - 1
        for forward in (True, False):
            half = road.half_out if forward else road.half_in
            sign, turn = (-1.0, 0.0) if forward else (1.0, np.pi)
            slots = np.arange(14.0, last - 14.0, 6.4) if road.spec.parking else np.zeros(0)
            objects = [(s, half[0] - 0.4 - PARKING_WIDTH_M / 2, "vehicle") for s in slots[rng.random(len(slots)) < 0.35]]
            for _ in range(int(rng.poisson(0.45))):
                kind = str(rng.choice(["static", "background", "construction", "riderless_bicycle"]))
                vertex = int(rng.integers(8, last - 8))
                objects.append((float(vertex), float(half[vertex]) + float(rng.uniform(0.8, 2.5)), kind))
            for along, lateral, kind in objects:
                base = road.points[int(along)]
                direction = road.heading[int(along)]
                side = sign * (lateral + float(rng.normal(0.0, 0.1)))
                spread = 0.03 if kind == "vehicle" else 1.0
                poses.append((base[0] - side * np.sin(direction), base[1] + side * np.cos(direction),
                              direction + turn + float(rng.normal(0.0, spread))))  # fmt: skip
                kinds.append(kind)
    pose = np.array(poses).reshape(len(kinds), 1, 3).repeat(steps, axis=1)
    size = np.array([(4.7, 1.9) if kind == "vehicle" else (1.0, 0.8) for kind in kinds]).reshape(len(kinds), 2)
    present = np.ones(pose.shape[:2], dtype=np.bool_)
    return _Bodies(kinds, size, pose[..., :2], pose[..., 2], np.zeros((*pose.shape[:2], 2)), present)


def _turns(network: Network, paths: Paths, motion: Motion, now: int) -> tuple[Ints, Ints]:
    """Return ``World.turn`` and ``World.choices``."""
    count = len(motion.row)
    turn, choices = np.full(count, 2, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for i in range(count):
        row, begin, end = motion.row[i], motion.at[i, now], motion.at[i, -1]
        for number, index in enumerate(paths.gate[row]):
            enter = paths.enter[row, number]
            if index < 0 or enter > end:
                break
            lane = network.lanes[index]
            if enter + lane.length[-1] < begin + 2.0:
                continue
            turn[i] = lane.turn
            options = network.lanes[lane.predecessors[0]].successors
            choices[i] = len({network.lanes[k].turn for k in options}) if enter > begin else 1
            break
    return turn, choices
