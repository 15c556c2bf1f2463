"""True position, heading and velocity of everything in a scene, without sensor noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from data_prep.synthetic.agents import Pedestrians
from data_prep.synthetic.curves import Array, Bools, Ints, direction, offset
from data_prep.synthetic.network import PARKING_WIDTH_M, Network
from data_prep.synthetic.routes import UPSTREAM_M, at_sample
from data_prep.synthetic.traffic import NUM_HISTORY, NUM_STEPS, Simulation

_NUDGE_M = 0.65  # lateral distance by which cars move over to pass a cyclist
_Bodies = tuple[list[str], Array, Array, Array, Array, Bools]  # the first six fields of `World`


@dataclass(frozen=True)
class World:
    """True states of M bodies over T steps of 0.1 s; the first N bodies are the fleet."""

    kind: list[str]  # Argoverse object type
    size: Array  # [M, 2] length and width in metres
    xy: Array  # [M, T, 2] metres
    heading: Array  # [M, T] radians
    velocity: Array  # [M, T, 2] m/s
    present: Bools  # [M, T] within the mapped area
    turn: Ints  # [N] turn at the next junction in the future (1 left, 0 straight, -1 right), 2 if it reaches none
    choices: Ints  # [N] number of turns still open to it at the last observed step, 0 if it reaches none


def build_world(simulation: Simulation, rng: np.random.Generator) -> World:
    """Map the simulated motion to the plane and add parked vehicles and street furniture."""
    at, speed, walked, pace = simulation.motion()
    vehicles, pedestrians = _vehicles(simulation, at, speed, rng), _pedestrians(simulation.pedestrians, walked, pace, rng)
    parts: Any = zip(vehicles, pedestrians, _static_objects(simulation.network, rng), strict=True)
    kind, size, xy, heading, velocity, present = (np.concatenate(part) for part in parts)
    return World(kind.tolist(), size, xy, heading, velocity, present, *_turns(simulation, at))


def _vehicles(simulation: Simulation, at: Array, speed: Array, rng: np.random.Generator) -> _Bodies:
    fleet, paths, row = simulation.fleet, simulation.paths, simulation.row[:, None]
    xy, heading = (at_sample(table, row, at + UPSTREAM_M) for table in (paths.xy, paths.heading))
    # Vehicles deviate from the lane centre. The deviation depends on the path length, so that it stops when they stop.
    wave = 2.0 * np.pi / rng.uniform(55.0, 120.0, (len(at), 1))
    amplitude = rng.uniform(0.03, 0.14, (len(at), 1))
    phase = at * wave + rng.uniform(0.0, 2.0 * np.pi, (len(at), 1))
    lateral = fleet.lateral[:, None] + amplitude * np.sin(phase) + _nudge(simulation, xy, heading, speed)
    xy = offset(xy, heading, lateral)
    heading = heading + np.arctan2(np.gradient(lateral, axis=1) * 10.0, np.maximum(speed, 2.0))
    present = (at > -8.0) & (at < paths.end[row] + 8.0)
    size = np.stack((fleet.length, fleet.width), axis=1)
    return fleet.kind, size, xy, heading, speed[..., None] * direction(heading), present


def _nudge(simulation: Simulation, xy: Array, heading: Array, speed: Array) -> Array:
    """Return how far [N, T] in metres cars move left to pass cyclists at the edge of their lane."""
    edge = simulation.fleet.edge
    out = np.zeros(speed.shape)
    cars = np.flatnonzero(~edge & (simulation.fleet.width < 2.2))
    for rider in np.flatnonzero(edge):
        gap, cos, sin = xy[rider] - xy[cars], np.cos(heading[cars]), np.sin(heading[cars])
        along = gap[..., 0] * cos + gap[..., 1] * sin
        across = -gap[..., 0] * sin + gap[..., 1] * cos
        same_way = np.cos(heading[rider] - heading[cars]) > 0.8
        close = same_way & (along > -9.0) & (along < 16.0) & (np.abs(across) < 1.0)
        out[cars] = np.maximum(out[cars], close * _NUDGE_M * np.minimum(speed[cars] / 4.0, 1.0))
    kernel = np.hanning(33)
    kernel /= kernel.sum()
    for car in np.flatnonzero(out.any(axis=1)):
        out[car] = np.convolve(np.pad(out[car], 16, mode="edge"), kernel, mode="valid")
    return out


def _pedestrians(pedestrians: Pedestrians, walked: Array, pace: Array, rng: np.random.Generator) -> _Bodies:
    paths = pedestrians.xy
    count, samples = paths.shape[:2]
    row = np.arange(count)[:, None]
    xy, left = at_sample(paths, row, walked), np.clip(walked, 0.0, samples - 1.001).astype(np.int64)
    tangent = paths[row, np.minimum(left + 2, samples - 1)] - paths[row, np.maximum(left - 1, 0)]
    heading = np.unwrap(np.arctan2(tangent[..., 1], tangent[..., 0]), axis=1)
    stands = pedestrians.speed == 0.0
    heading[stands] = rng.uniform(-np.pi, np.pi, (count, 1))[stands]
    amplitude, wave, phase = (rng.uniform(low, high, (count, 1)) for low, high in ((0.04, 0.15), (2.5, 5.0), (0.0, 6.3)))
    xy = offset(xy, heading, amplitude * np.sin(walked / wave + phase))
    size, present = np.full((count, 2), 0.6), np.ones(walked.shape, dtype=np.bool_)
    return ["pedestrian"] * count, size, xy, heading, pace[..., None] * direction(heading), present


def _static_objects(network: Network, rng: np.random.Generator) -> _Bodies:
    """Return vehicles parked along roads with parking lanes, and objects on the pavement."""
    kinds: list[str] = []
    poses: list[tuple[float, float, float]] = []
    for road in network.roads:
        last = len(road.points) - 1
        for sign, turn, half in ((-1.0, 0.0, road.half[1]), (1.0, np.pi, road.half[0])):
            slots = np.arange(14.0, last - 14.0, 6.4) if road.spec.parking else np.zeros(0)
            objects = [(int(s), half[0] - 0.4 - PARKING_WIDTH_M / 2, "vehicle") for s in slots[rng.random(len(slots)) < 0.35]]
            for _ in range(rng.poisson(0.45)):
                kind = str(rng.choice(["static", "background", "construction", "riderless_bicycle"]))
                vertex = int(rng.integers(8, last - 8))
                objects.append((vertex, half[vertex] + rng.uniform(0.8, 2.5), kind))
            for vertex, lateral, kind in objects:
                heading = road.heading[vertex]
                x, y = offset(road.points[vertex], heading, sign * (lateral + rng.normal(0.0, 0.1)))
                poses.append((x, y, heading + turn + rng.normal(0.0, 0.03 if kind == "vehicle" else 1.0)))
                kinds.append(kind)
    pose = np.array(poses).reshape(len(kinds), 1, 3).repeat(NUM_STEPS, axis=1)
    size = np.array([(4.7, 1.9) if kind == "vehicle" else (1.0, 0.8) for kind in kinds]).reshape(len(kinds), 2)
    return kinds, size, pose[..., :2], pose[..., 2], np.zeros_like(pose[..., :2]), np.ones(pose.shape[:2], dtype=np.bool_)


def _turns(simulation: Simulation, at: Array) -> tuple[Ints, Ints]:
    """Return ``World.turn`` and ``World.choices``."""
    lanes, paths = simulation.network.lanes, simulation.paths
    turn, choices = np.full(len(at), 2, dtype=np.int64), np.zeros(len(at), dtype=np.int64)
    for i, row in enumerate(simulation.row):
        begin, end = at[i, NUM_HISTORY - 1], at[i, -1]
        for index, enter in zip(paths.gate[row], paths.enter[row], strict=True):
            lane = lanes[index]
            if index >= 0 and enter <= end and enter + lane.length >= begin + 2.0:
                turn[i] = lane.turn
                options = {lanes[k].turn for k in lanes[lane.predecessors[0]].successors}
                choices[i] = len(options) if enter > begin else 1
                break
    return turn, choices
