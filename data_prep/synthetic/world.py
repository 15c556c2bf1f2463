"""True states of all objects in a scene, and the noisy, interrupted tracks that a recording vehicle measures."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from data_prep.synthetic.agents import UPSTREAM_M, Pedestrians, at_sample
from data_prep.synthetic.network import (
    PARKING_WIDTH_M,
    Array,
    Bools,
    Ints,
    Network,
    direction,
    offset,
    wrap,
)
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
    choices: (
        Ints  # [N] number of turns still open to it in the last observed step, 0 if it reaches none
    )


def build_world(simulation: Simulation, rng: np.random.Generator) -> World:
    """Map the simulated motion to the plane and add parked vehicles and street furniture."""
    at, speed, walked, pace = simulation.motion()
    vehicles, pedestrians = (
        _vehicles(simulation, at, speed, rng),
        _pedestrians(simulation.pedestrians, walked, pace, rng),
    )
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
    lateral = (
        fleet.lateral[:, None] + amplitude * np.sin(phase) + _nudge(simulation, xy, heading, speed)
    )
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


def _pedestrians(
    pedestrians: Pedestrians, walked: Array, pace: Array, rng: np.random.Generator
) -> _Bodies:
    paths = pedestrians.xy
    count, samples = paths.shape[:2]
    row = np.arange(count)[:, None]
    xy, left = at_sample(paths, row, walked), np.clip(walked, 0.0, samples - 1.001).astype(np.int64)
    tangent = paths[row, np.minimum(left + 2, samples - 1)] - paths[row, np.maximum(left - 1, 0)]
    heading = np.unwrap(np.arctan2(tangent[..., 1], tangent[..., 0]), axis=1)
    stands = pedestrians.speed == 0.0
    heading[stands] = rng.uniform(-np.pi, np.pi, (count, 1))[stands]
    amplitude, wave, phase = (
        rng.uniform(low, high, (count, 1)) for low, high in ((0.04, 0.15), (2.5, 5.0), (0.0, 6.3))
    )
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
            objects = [
                (int(s), half[0] - 0.4 - PARKING_WIDTH_M / 2, "vehicle")
                for s in slots[rng.random(len(slots)) < 0.35]
            ]
            for _ in range(rng.poisson(0.45)):
                kind = str(
                    rng.choice(["static", "background", "construction", "riderless_bicycle"])
                )
                vertex = int(rng.integers(8, last - 8))
                objects.append((vertex, half[vertex] + rng.uniform(0.8, 2.5), kind))
            for vertex, lateral, kind in objects:
                heading = road.heading[vertex]
                x, y = offset(road.points[vertex], heading, sign * (lateral + rng.normal(0.0, 0.1)))
                poses.append(
                    (x, y, heading + turn + rng.normal(0.0, 0.03 if kind == "vehicle" else 1.0))
                )
                kinds.append(kind)
    pose = np.array(poses).reshape(len(kinds), 1, 3).repeat(NUM_STEPS, axis=1)
    size = np.array([(4.7, 1.9) if kind == "vehicle" else (1.0, 0.8) for kind in kinds]).reshape(
        len(kinds), 2
    )
    return (
        kinds,
        size,
        pose[..., :2],
        pose[..., 2],
        np.zeros_like(pose[..., :2]),
        np.ones(pose.shape[:2], dtype=np.bool_),
    )


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


# ---- sensor model --------------------------------------------------------------------------------------------------

FRAGMENT, UNSCORED, SCORED, FOCAL = 0, 1, 2, 3
_NOW, _LAST = NUM_HISTORY - 1, NUM_STEPS - 1
_MIN_STEPS = 10  # shorter sightings are not kept as tracks
_MAX_SCORED = 8


@dataclass(frozen=True)
class Tracks:
    """M recorded tracks over T steps of 0.1 s. Where ``valid`` is False everything else is zero."""

    ids: list[str]  # unique; the recording vehicle is "AV" and comes last
    kinds: list[str]  # Argoverse object types
    categories: Ints  # [M] 0 = fragment, 1 = unscored, 2 = scored, 3 = focal
    xy: Array  # [M, T, 2] metres
    heading: Array  # [M, T] radians in [-pi, pi)
    velocity: Array  # [M, T, 2] m/s
    valid: Bools  # [M, T]
    bodies: Ints  # [M] index of the recorded body in the world

    @property
    def focal(self) -> int:
        """Index of the focal track."""
        return self.categories.tolist().index(FOCAL)


def observe(world: World, rng: np.random.Generator) -> Tracks | None:
    """The recorded tracks of ``world``, or None if no body can be the focal track or carry the sensors."""
    chosen = _choose_ego_and_focal(world, rng)
    if chosen is None:
        return None
    ego, focal, seen = chosen
    roles = dict.fromkeys(_choose_scored(world, rng, seen, [ego, focal]), SCORED) | {focal: FOCAL}
    pieces: list[tuple[int, int, int]] = []  # first and last step of a track, and its body
    for body in np.flatnonzero(seen.any(axis=1)).tolist():
        if body != ego:
            pieces += [
                (*piece, body) for piece in _sightings(seen[body], rng, always_seen=body in roles)
            ]
    pieces.sort(key=lambda piece: (piece[0], piece[2]))
    pieces.append((0, _LAST, ego))
    categories = [
        roles.get(body, UNSCORED) if (first, last) == (0, _LAST) else FRAGMENT
        for first, last, body in pieces
    ]
    first_id = int(rng.integers(1_000, 150_000))
    ids = [str(number) for number in first_id + np.cumsum(rng.integers(1, 30, len(pieces) - 1))]
    first, last, bodies = np.array(pieces, dtype=np.int64).T
    steps = np.arange(NUM_STEPS)
    valid = (steps >= first[:, None]) & (steps <= last[:, None])
    noise = _smooth_noise(rng, len(pieces), 5)
    still = _distance(world.xy[bodies, _LAST], world.xy[bodies, 0]) < 0.1
    scale = np.where(still, 0.25, 1.0) * rng.uniform(0.5, 1.5, len(pieces))
    scale[-1] = 0.2  # the ego vehicle localizes itself more precisely
    noise = noise * scale[:, None, None]
    xy = world.xy[bodies] + 0.04 * np.moveaxis(noise[:, :2], 1, -1)
    velocity = world.velocity[bodies] + 0.06 * np.moveaxis(noise[:, 2:4], 1, -1)
    heading = wrap(world.heading[bodies] + 0.012 * noise[:, 4])
    return Tracks(
        [*ids, "AV"], [world.kind[b] for b in bodies], np.array(categories), np.where(valid[..., None], xy, 0.0),
        np.where(valid, heading, 0.0), np.where(valid[..., None], velocity, 0.0), valid, bodies,
    )  # fmt: skip


def _distance(points: Array, other: Array) -> Array:
    """Return the distances [...] between points [..., 2]."""
    gap = points - other
    return np.hypot(gap[..., 0], gap[..., 1])


def _choose_ego_and_focal(world: World, rng: np.random.Generator) -> tuple[int, int, Bools] | None:
    """Return the ego vehicle, the focal body and the bodies within sensor range [M, T]."""
    complete = world.present.all(axis=1)
    drivers = np.array([k in ("vehicle", "bus") for k in world.kind]) & complete
    drivers[len(world.turn) :] = False
    interest = _interest(world) * complete
    reach = rng.uniform(65.0, 95.0)
    egos = rng.permutation(np.flatnonzero(drivers))
    # Vehicles near the middle of the scene see most; moving vehicles see more than queueing ones.
    queues = _distance(world.xy[egos, _LAST], world.xy[egos, 0]) < 15.0
    order = egos[
        np.argsort(np.hypot(*world.xy[egos, _NOW].T) // 35.0 + 1.5 * queues, kind="stable")
    ]
    best, chosen = 0.0, None
    for ego in order[:6].tolist():
        near = _distance(world.xy, world.xy[ego]) < reach
        weight = np.where(near.all(axis=1), interest, 0.0)
        weight[ego] = 0.0
        if weight.sum() > best:
            best, chosen = weight.sum(), (ego, weight, near & world.present)
    if chosen is None:
        return None
    ego, weight, seen = chosen
    return ego, int(rng.choice(len(weight), p=weight / best)), seen


def _interest(world: World) -> Array:
    """Return the relative probability [M] of each body to be the focal one; 0 for bodies that hardly move."""
    moved = _distance(world.xy[:, _LAST], world.xy[:, _NOW])
    weight = np.array(
        [{"pedestrian": 0.25, "cyclist": 0.6, "bus": 0.8}.get(k, 1.0) for k in world.kind]
    )
    min_moved = np.array([4.0 if k == "pedestrian" else 9.0 for k in world.kind])
    speed = np.hypot(world.velocity[..., 0], world.velocity[..., 1])[:, _NOW:]
    weight = weight * np.where(np.ptp(speed, axis=1) > 3.5, 2.0, 1.0)
    weight = weight * np.where(
        np.abs(world.heading[:, _LAST] - world.heading[:, _NOW]) > 0.45, 2.5, 1.0
    )
    count = len(world.turn)
    weight[:count] *= np.where(world.choices > 1, 10.0, np.where(world.turn < 2, 3.0, 1.0))
    # Left turns wait for oncoming traffic, so that fewer left turns happen during the future.
    weight[:count] *= np.where(world.turn == 1, 1.8, 1.0)
    return np.where(moved > min_moved, weight, 0.0)


def _choose_scored(
    world: World, rng: np.random.Generator, seen: Bools, leaders: list[int]
) -> list[int]:
    """Return further bodies to be scored: always seen, moving, near the focal one or the ego."""
    near = np.minimum(*(_distance(world.xy[:, _NOW], world.xy[i, _NOW]) for i in leaders))
    able = seen.all(axis=1) & (_distance(world.xy[:, _LAST], world.xy[:, 0]) > 2.5)
    able[leaders] = False
    ranked = [i for i in np.argsort(near, kind="stable").tolist() if able[i]]
    return ranked[: int(rng.integers(2, _MAX_SCORED + 1))]


def _sightings(seen: Bools, rng: np.random.Generator, always_seen: bool) -> list[tuple[int, int]]:
    """Split the steps [T] at which a body is in range into (first, last) steps of the tracks that a tracker reports."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], seen, [False])).astype(np.int8)))
    out = []
    for first, stop in edges.reshape(-1, 2).tolist():
        parts = [(first, stop - 1)]
        gaps: list[tuple[int, int]] = []
        if not always_seen and rng.random() < 0.45:  # hidden for a while
            begin = int(rng.integers(first, stop))
            gaps.append((begin, begin + int(rng.integers(4, 45))))
        if not always_seen and rng.random() < 0.25:  # noticed late
            gaps.append((first, first + int(rng.integers(5, 50))))
        for low, high in gaps:
            parts = [
                part for a, b in parts for part in ((a, min(b, low - 1)), (max(a, high + 1), b))
            ]
        out += [(a, b) for a, b in parts if b - a + 1 >= _MIN_STEPS]
    return out


def _smooth_noise(rng: np.random.Generator, count: int, channels: int) -> Array:
    """Return Gaussian noise [count, channels, T] of unit variance, correlated over about 0.6 s."""
    reach = 12
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / 4.0) ** 2)
    kernel /= np.sqrt((kernel**2).sum())
    white = rng.standard_normal((count, channels, NUM_STEPS + 2 * reach))
    # A plain sum: the rounding of a matrix product differs between linear algebra libraries.
    return sum(
        weight * white[..., shift : shift + NUM_STEPS] for shift, weight in enumerate(kernel)
    )
