"""True states of all objects in a scene."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints, direction, offset
from data_prep.synthetic.network import EDGE_M, PARKING_WIDTH_M, Network, Road
from data_prep.synthetic.paths import UPSTREAM_M, at_sample
from data_prep.synthetic.traffic import NUM_HISTORY, NUM_STEPS, Motion, Simulation

_NUDGE_M = 0.65  # lateral distance by which cars move over to pass a cyclist
_OUTSIDE_M = 8.0  # vehicles are present until this distance beyond the ends of their lanes
_PARKING_SPACE_M = 6.4
_STATIC_SIZE_M = {"vehicle": (4.7, 1.9)}
_STREET_OBJECTS = ["static", "background", "construction", "riderless_bicycle"]


@dataclass(frozen=True)
class World:
    """True states of M bodies over T steps of 0.1 s; the first N bodies are the fleet."""

    kind: list[str]  # Argoverse object type
    size: Array  # [M, 2] length and width in metres
    xy: Array  # [M, T, 2] metres
    heading: Array  # [M, T] radians
    velocity: Array  # [M, T, 2] m/s
    present: Bools  # [M, T] within the mapped area
    # [N] turn at the next junction in the future (1 left, 0 straight, -1 right), 2 if it reaches
    # none
    turn: Ints
    # [N] number of turns still open to it in the last observed step, 0 if it reaches none
    choices: Ints


class _Bodies(NamedTuple):
    """Bodies of one type: the fields of `World` of the same names."""

    kind: list[str]
    size: Array
    xy: Array
    heading: Array
    velocity: Array
    present: Bools


def build_world(simulation: Simulation, rng: np.random.Generator) -> World:
    """Map the simulated motion to the plane and add parked vehicles and street furniture."""
    motion = simulation.motion()
    vehicles = _vehicles(simulation, motion, rng)
    pedestrians = _pedestrians(simulation, motion, rng)
    static_objects = _static_objects(simulation.network, rng)
    turn, choices = _turns(simulation, motion.at)
    bodies = _concatenate(vehicles, pedestrians, static_objects)
    return World(*bodies, turn=turn, choices=choices)


def _concatenate(*groups: _Bodies) -> _Bodies:
    kind, size, xy, heading, velocity, present = zip(*groups, strict=True)
    return _Bodies(
        kind=list(chain.from_iterable(kind)),
        size=np.concatenate(size),
        xy=np.concatenate(xy),
        heading=np.concatenate(heading),
        velocity=np.concatenate(velocity),
        present=np.concatenate(present),
    )


# ---- vehicles and cyclists ---------------------------------------------------------------------


def _vehicles(simulation: Simulation, motion: Motion, rng: np.random.Generator) -> _Bodies:
    fleet = simulation.fleet
    paths = simulation.paths
    row = simulation.row[:, None]
    at = motion.at
    speed = motion.speed
    path_xy = at_sample(paths.xy, row, at + UPSTREAM_M)
    path_heading = at_sample(paths.heading, row, at + UPSTREAM_M)

    # Vehicles deviate from the lane center. The deviation depends on the path length, so that it
    # stops when they stop.
    count = len(at)
    wave = 2.0 * np.pi / rng.uniform(55.0, 120.0, (count, 1))
    amplitude = rng.uniform(0.03, 0.14, (count, 1))
    phase = at * wave + rng.uniform(0.0, 2.0 * np.pi, (count, 1))
    weaving = amplitude * np.sin(phase)
    nudge = _nudge(simulation, path_xy, path_heading, speed)
    lateral = fleet.lateral[:, None] + weaving + nudge
    lateral_speed = np.gradient(lateral, axis=1) * 10.0
    heading = path_heading + np.arctan2(lateral_speed, np.maximum(speed, 2.0))
    return _Bodies(
        kind=fleet.kind,
        size=np.stack((fleet.length, fleet.width), axis=1),
        xy=offset(path_xy, path_heading, lateral),
        heading=heading,
        velocity=speed[..., None] * direction(heading),
        present=(at > -_OUTSIDE_M) & (at < paths.end[row] + _OUTSIDE_M),
    )


def _nudge(simulation: Simulation, xy: Array, heading: Array, speed: Array) -> Array:
    """Return how far [N, T] in metres cars move left to pass cyclists at the edge of their lane."""
    edge = simulation.fleet.edge
    nudge = np.zeros(speed.shape)
    cars = np.flatnonzero(~edge & (simulation.fleet.width < 2.2))
    car_heading = heading[cars]
    for rider in np.flatnonzero(edge):
        # Position of the cyclist in the frame of each car.
        gap = xy[rider] - xy[cars]
        cos = np.cos(car_heading)
        sin = np.sin(car_heading)
        along = gap[..., 0] * cos + gap[..., 1] * sin
        across = -gap[..., 0] * sin + gap[..., 1] * cos
        same_direction = np.cos(heading[rider] - car_heading) > 0.8
        next_to_rider = (along > -9.0) & (along < 16.0) & (np.abs(across) < 1.0)
        passes = same_direction & next_to_rider
        needed = passes * _NUDGE_M * np.minimum(speed[cars] / 4.0, 1.0)
        nudge[cars] = np.maximum(nudge[cars], needed)
    kernel = np.hanning(33)
    kernel /= kernel.sum()
    for car in np.flatnonzero(nudge.any(axis=1)):
        padded = np.pad(nudge[car], 16, mode="edge")
        nudge[car] = np.convolve(padded, kernel, mode="valid")
    return nudge


def _turns(simulation: Simulation, at: Array) -> tuple[Ints, Ints]:
    """Return ``World.turn`` and ``World.choices``; ``at`` [N, T] are path lengths."""
    lanes = simulation.network.lanes
    paths = simulation.paths
    turn = np.full(len(at), 2, dtype=np.int64)
    choices = np.zeros(len(at), dtype=np.int64)
    for i, row in enumerate(simulation.row):
        current = at[i, NUM_HISTORY - 1]
        end = at[i, -1]
        for index, enter in zip(paths.gate[row], paths.enter[row], strict=True):
            lane = lanes[index]
            is_ahead = enter + lane.length >= current + 2.0
            if index >= 0 and enter <= end and is_ahead:
                turn[i] = lane.turn
                source = lanes[lane.predecessors[0]]
                open_turns = {lanes[k].turn for k in source.successors}
                choices[i] = len(open_turns) if enter > current else 1
                break
    return turn, choices


# ---- pedestrians -------------------------------------------------------------------------------


def _pedestrians(simulation: Simulation, motion: Motion, rng: np.random.Generator) -> _Bodies:
    pedestrians = simulation.pedestrians
    walked = motion.walked
    paths = pedestrians.xy
    count, samples = paths.shape[:2]
    row = np.arange(count)[:, None]
    path_xy = at_sample(paths, row, walked)
    sample = np.clip(walked, 0.0, samples - 1.001).astype(np.int64)
    sample_ahead = np.minimum(sample + 2, samples - 1)
    sample_behind = np.maximum(sample - 1, 0)
    tangent = paths[row, sample_ahead] - paths[row, sample_behind]
    heading = np.unwrap(np.arctan2(tangent[..., 1], tangent[..., 0]), axis=1)
    stands = pedestrians.speed == 0.0
    heading[stands] = rng.uniform(-np.pi, np.pi, (count, 1))[stands]

    # Pedestrians do not walk in straight lines.
    amplitude = rng.uniform(0.04, 0.15, (count, 1))
    wave = rng.uniform(2.5, 5.0, (count, 1))
    phase = rng.uniform(0.0, 6.3, (count, 1))
    lateral = amplitude * np.sin(walked / wave + phase)
    return _Bodies(
        kind=["pedestrian"] * count,
        size=np.full((count, 2), 0.6),
        xy=offset(path_xy, heading, lateral),
        heading=heading,
        velocity=motion.pace[..., None] * direction(heading),
        present=np.ones(walked.shape, dtype=np.bool_),
    )


# ---- parked vehicles and street furniture ------------------------------------------------------


class _StaticObject(NamedTuple):
    """An object that does not move, with its pose in metres and radians."""

    kind: str
    x: float
    y: float
    heading: float


def _static_objects(network: Network, rng: np.random.Generator) -> _Bodies:
    """Return vehicles parked along roads with parking lanes, and objects on the pavement."""
    objects: list[_StaticObject] = []
    for road in network.roads:
        for forward in (True, False):
            objects += _objects_along(road, forward, rng)
    count = len(objects)
    pose = np.array([(item.x, item.y, item.heading) for item in objects])
    pose = pose.reshape(count, 1, 3).repeat(NUM_STEPS, axis=1)
    kinds = [item.kind for item in objects]
    size = [_STATIC_SIZE_M.get(kind, (1.0, 0.8)) for kind in kinds]
    return _Bodies(
        kind=kinds,
        size=np.array(size).reshape(count, 2),
        xy=pose[..., :2],
        heading=pose[..., 2],
        velocity=np.zeros((count, NUM_STEPS, 2)),
        present=np.ones((count, NUM_STEPS), dtype=np.bool_),
    )


def _objects_along(road: Road, forward: bool, rng: np.random.Generator) -> list[_StaticObject]:
    """Draw the objects on one side of a road; parked vehicles face in driving direction."""
    half = road.half[int(forward)]
    last = len(road.points) - 1
    drawn: list[tuple[int, float, str]] = []  # vertex, distance from the middle, kind
    if road.spec.parking:
        spaces = np.arange(14.0, last - 14.0, _PARKING_SPACE_M)
        occupied = spaces[rng.random(len(spaces)) < 0.35]
        center = half[0] - EDGE_M - PARKING_WIDTH_M / 2
        drawn += [(int(space), center, "vehicle") for space in occupied]
    for _ in range(rng.poisson(0.45)):
        kind = str(rng.choice(_STREET_OBJECTS))
        vertex = int(rng.integers(8, last - 8))
        drawn.append((vertex, half[vertex] + rng.uniform(0.8, 2.5), kind))

    if forward:
        left = -1.0
        turn = 0.0
    else:
        left = 1.0
        turn = np.pi
    objects = []
    for vertex, distance, kind in drawn:
        road_heading = road.heading[vertex]
        outward = distance + rng.normal(0.0, 0.1)
        x, y = offset(road.points[vertex], road_heading, left * outward)
        spread = 0.03 if kind == "vehicle" else 1.0
        heading = road_heading + turn + rng.normal(0.0, spread)
        objects.append(_StaticObject(kind, x, y, heading))
    return objects
