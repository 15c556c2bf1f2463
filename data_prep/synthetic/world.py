"""What really happened: position, heading and velocity of everything, before any sensor sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.agents import Fleet
from data_prep.synthetic.curves import Array, Bools, Ints
from data_prep.synthetic.junction import Network
from data_prep.synthetic.motion import Motion
from data_prep.synthetic.paths import Paths, at_path
from data_prep.synthetic.road import PARKING_WIDTH_M
from data_prep.synthetic.walkers import Walkers

_NUDGE_M = 0.65


@dataclass(frozen=True, slots=True)
class World:
    """True states of M bodies over T steps of 0.1 s; the first N of them are the fleet.

    Attributes:
        kind: Argoverse object type of each body.
        size: [M, 2] length and width in metres.
        xy, velocity: [M, T, 2] in metres and m/s; heading: [M, T] in radians.
        present: [M, T] whether the body is within the mapped area.
        turn: [N] turn each vehicle takes at the next junction in its future (1 left, 0 straight, -1 right), 2
            where it reaches none.
        choices: [N] number of turns still open to it at the last observed step, 0 where it reaches none.
    """

    kind: list[str]
    size: Array
    xy: Array
    heading: Array
    velocity: Array
    present: Bools
    turn: Ints
    choices: Ints


@dataclass(frozen=True, slots=True)
class _Part:
    kind: list[str]
    size: Array
    xy: Array
    heading: Array
    velocity: Array
    present: Bools


def build_world(
    network: Network,
    fleet: Fleet,
    paths: Paths,
    walkers: Walkers,
    motion: Motion,
    now: int,
    rng: np.random.Generator,
) -> World:
    """Lay out the simulated motion in the plane and add parked vehicles and street furniture.

    Args:
        network, fleet, paths, walkers: what was simulated.
        motion: the simulated motion over T steps.
        now: last observed step, at which ``turn`` and ``choices`` are asked.
        rng: source of lateral wander and of the parked vehicles.
    """
    parts = [_wheels(fleet, paths, motion, rng), _feet(walkers, motion, rng)]
    parts.append(_still(network, rng, motion.at.shape[1]))
    turn, choices = _intentions(network, paths, motion, now)
    return World(
        kind=[kind for part in parts for kind in part.kind],
        size=np.concatenate([part.size for part in parts]),
        xy=np.concatenate([part.xy for part in parts]),
        heading=np.concatenate([part.heading for part in parts]),
        velocity=np.concatenate([part.velocity for part in parts]),
        present=np.concatenate([part.present for part in parts]),
        turn=turn,
        choices=choices,
    )


def _wheels(fleet: Fleet, paths: Paths, motion: Motion, rng: np.random.Generator) -> _Part:
    count = len(fleet.kind)
    row = motion.row[:, None]
    xy = np.stack([at_path(paths.xy[..., axis], row, motion.at) for axis in range(2)], axis=-1)
    heading = at_path(paths.heading, row, motion.at)
    # Nobody drives exactly in the middle. The wander depends on the place, so it stops when they stop.
    wave = 2.0 * np.pi / rng.uniform(55.0, 120.0, (count, 1))
    size = rng.uniform(0.03, 0.14, (count, 1))
    phase = motion.at * wave + rng.uniform(0.0, 2.0 * np.pi, (count, 1))
    lateral = fleet.lateral[:, None] + size * np.sin(phase) + _nudge(fleet, motion, xy, heading)
    normal = np.stack((-np.sin(heading), np.cos(heading)), axis=-1)
    xy = xy + lateral[..., None] * normal
    step = np.gradient(lateral, axis=1) * 10.0
    heading = heading + np.arctan2(step, np.maximum(motion.speed, 2.0))
    velocity = motion.speed[..., None] * np.stack((np.cos(heading), np.sin(heading)), axis=-1)
    present = (motion.at > -8.0) & (motion.at < paths.end[row] + 8.0)
    return _Part(fleet.kind, np.stack((fleet.length, fleet.width), axis=1), xy, heading, velocity, present)


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
    if out.any():
        kernel = np.hanning(33)
        kernel /= kernel.sum()
        padded = np.pad(out, ((0, 0), (16, 16)), mode="edge")
        for car in np.flatnonzero(out.any(axis=1)):
            out[car] = np.convolve(padded[car], kernel, mode="valid")
    return out


def _feet(walkers: Walkers, motion: Motion, rng: np.random.Generator) -> _Part:
    count, steps = motion.walked.shape
    where = np.clip(motion.walked, 0.0, max(walkers.xy.shape[1] - 1.001, 0.0))
    left = where.astype(np.int64)
    share = (where - left)[..., None]
    row = np.arange(count)[:, None]
    xy = (1.0 - share) * walkers.xy[row, left] + share * walkers.xy[row, left + 1]
    back, ahead = np.maximum(left - 1, 0), left + 2
    tangent = walkers.xy[row, np.minimum(ahead, walkers.xy.shape[1] - 1)] - walkers.xy[row, back]
    heading = np.unwrap(np.arctan2(tangent[..., 1], tangent[..., 0]), axis=1)
    stands = walkers.speed == 0.0
    heading[stands] = rng.uniform(-np.pi, np.pi, (count, 1))[stands]
    sway = rng.uniform(0.04, 0.15, (count, 1)) * np.sin(
        motion.walked / rng.uniform(2.5, 5.0, (count, 1)) + rng.uniform(0.0, 6.3, (count, 1))
    )
    normal = np.stack((-np.sin(heading), np.cos(heading)), axis=-1)
    velocity = motion.pace[..., None] * np.stack((np.cos(heading), np.sin(heading)), axis=-1)
    size = np.tile((0.6, 0.6), (count, 1))
    present = np.ones((count, steps), dtype=np.bool_)
    return _Part(["pedestrian"] * count, size, xy + sway[..., None] * normal, heading, velocity, present)


def _still(network: Network, rng: np.random.Generator, steps: int) -> _Part:
    """Return parked vehicles along the roads that have room for them, and things on the pavement."""
    kind: list[str] = []
    pose: list[tuple[float, float, float]] = []
    for road in network.roads:
        last = len(road.points) - 1
        for forward in (True, False):
            half = road.half_out if forward else road.half_in
            sign, turn = (-1.0, 0.0) if forward else (1.0, np.pi)
            spots = np.arange(14.0, last - 14.0, 6.4) if road.spec.parking else np.zeros(0)
            taken = [(s, half[0] - 0.4 - PARKING_WIDTH_M / 2, "vehicle") for s in spots[rng.random(len(spots)) < 0.35]]
            for _ in range(int(rng.poisson(0.45))):
                thing = str(rng.choice(["static", "background", "construction", "riderless_bicycle"]))
                place = int(rng.integers(8, last - 8))
                taken.append((float(place), float(half[place]) + float(rng.uniform(0.8, 2.5)), thing))
            for along, beside, what in taken:
                base = road.points[int(along)]
                direction = road.heading[int(along)]
                side = sign * (beside + float(rng.normal(0.0, 0.1)))
                loose = 0.03 if what == "vehicle" else 1.0
                pose.append((base[0] - side * np.sin(direction), base[1] + side * np.cos(direction),
                             direction + turn + float(rng.normal(0.0, loose))))  # fmt: skip
                kind.append(what)
    table = np.array(pose).reshape(len(kind), 1, 3).repeat(steps, axis=1)
    size = np.array([(4.7, 1.9) if k == "vehicle" else (1.0, 0.8) for k in kind]).reshape(len(kind), 2)
    present = np.ones(table.shape[:2], dtype=np.bool_)
    return _Part(kind, size, table[..., :2], table[..., 2], np.zeros((*table.shape[:2], 2)), present)


def _intentions(network: Network, paths: Paths, motion: Motion, now: int) -> tuple[Ints, Ints]:
    count = len(motion.row)
    turn, choices = np.full(count, 2, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for i in range(count):
        row, begin, end = motion.row[i], motion.at[i, now], motion.at[i, -1]
        for place, index in enumerate(paths.gate[row]):
            if index < 0 or paths.enter[row, place] > end:
                break
            lane = network.lanes[index]
            leaves = paths.enter[row, place] + lane.length[-1]
            if leaves < begin + 2.0:
                continue
            turn[i] = lane.turn
            ways = network.lanes[lane.predecessors[0]].successors
            choices[i] = len({network.lanes[k].turn for k in ways}) if paths.enter[row, place] > begin else 1
            break
    return turn, choices
