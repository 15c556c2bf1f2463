"""Synthetic scenes from seeds: streets, traffic, the true world and its record."""

import copy
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data_prep.synthetic.curves import Array
from data_prep.synthetic.layout import random_network
from data_prep.synthetic.network import Network
from data_prep.synthetic.pedestrians import random_pedestrians
from data_prep.synthetic.sensor import RecordedTracks, observe
from data_prep.synthetic.traffic import FUTURE_TICKS, NUM_HISTORY, WARM_UP_TICKS, Simulation
from data_prep.synthetic.vehicles import populate
from data_prep.synthetic.world import World, build_world

# Approximate center of the mapped area of each city in its own frame (metres) and height of its
# streets.
_CITIES = {
    "austin": (1900.0, -1500.0, 150.0),
    "washington-dc": (4200.0, 2100.0, 20.0),
    "miami": (700.0, -2300.0, -20.0),
    "pittsburgh": (3900.0, 1800.0, 10.0),
    "dearborn": (8100.0, 4600.0, -35.0),
    "palo-alto": (-1800.0, 2100.0, 5.0),
}
_EPOCH_NS = 315_960_000_000_000_000  # time around which scenes start
_TENTH_OF_SECOND_NS = 100_000_000
_MIN_VEHICLES = 4
_MAX_DRAWS = 400


@dataclass(frozen=True)
class SyntheticScene:
    """A recorded scene with the street map around it."""

    scene_id: str  # UUID, also the name of its folder
    network: Network  # metres relative to ``origin``
    world: World  # true states, metres relative to ``origin``
    tracks: RecordedTracks  # metres relative to ``origin``
    city: str  # one of the six Argoverse 2 cities
    origin: Array  # [2] city coordinates of the scene's middle, metres
    ground: Array  # [3] height of the ground at the origin (m) and its slope along x and y
    start_ns: float  # time of the first step in nanoseconds
    first_id: int  # smallest of the map element ids


class Recording(NamedTuple):
    """A simulated scene and its record, before its place and time are drawn."""

    rng: np.random.Generator
    now: Simulation  # at the first moment after the last observed step
    world: World
    tracks: RecordedTracks
    world_rng: np.random.Generator  # as it was before ``world`` was built

    def scene(self, scene_id: str) -> SyntheticScene:
        """Draw a city and a time."""
        rng = self.rng
        city = str(rng.choice(list(_CITIES)))
        x, y, z = _CITIES[city]
        origin = np.round(np.array((x, y)) + rng.uniform(-900.0, 900.0, 2), 2)
        height = z + rng.uniform(-5.0, 5.0)
        slope_x = rng.normal(0.0, 0.012)
        slope_y = rng.normal(0.0, 0.012)
        tenths = int(rng.integers(-10_000_000, 10_000_000))
        return SyntheticScene(
            scene_id=scene_id,
            network=self.now.network,
            world=self.world,
            tracks=self.tracks,
            city=city,
            origin=origin,
            ground=np.array((height, slope_x, slope_y)),
            start_ns=float(_EPOCH_NS + tenths * _TENTH_OF_SECOND_NS),
            first_id=int(rng.integers(190_000_000, 460_000_000)),
        )


def simulate_scene(seed: int | np.random.SeedSequence) -> SyntheticScene:
    """Build streets, simulate 17 s of traffic and record the last 11 s.

    A scene has 110 steps of 0.1 s, 50 are history. It depends on ``seed`` only. Its focal track is
    valid at all steps and moves in its future. Raises ValueError: if ``seed`` is negative.
    RuntimeError: if 400 draws in a row give no scene with a focal track, which would be a bug.
    """
    recording = next(recordings(seed))
    return recording.scene(scene_identity(seed))


def scene_identity(seed: int | np.random.SeedSequence) -> str:
    """Return the UUID of the scene of ``seed``, without simulating it."""
    number = np.random.default_rng(_entropy(seed)).bytes(16)
    return str(uuid.UUID(bytes=number, version=4))


def recordings(seed: int | np.random.SeedSequence) -> Iterator[Recording]:
    """Yield recordings; draws of streets and traffic without a possible focal track are left out.

    Raises as `simulate_scene`.
    """
    for attempt in range(_MAX_DRAWS):
        rng = np.random.default_rng([*_entropy(seed), attempt])
        network = random_network(rng)
        fleet, paths = populate(network, rng)
        if len(fleet.kind) < _MIN_VEHICLES:
            continue
        simulation = Simulation(network, fleet, paths, random_pedestrians(network, rng))
        simulation.advance(WARM_UP_TICKS + NUM_HISTORY // 2)
        now = simulation.fork(paths)
        simulation.advance(FUTURE_TICKS)
        world_rng = copy.deepcopy(rng)
        world = build_world(simulation, rng)
        tracks = observe(world, rng)
        if tracks is not None:
            yield Recording(rng, now, world, tracks, world_rng)
    raise RuntimeError(f"no usable scene from seed {seed} in {_MAX_DRAWS} draws")


def _entropy(seed: int | np.random.SeedSequence) -> list[int]:
    """Return the numbers from which the generators of a scene are made.

    Spawning them from a sequence would change the caller's object.
    """
    if not isinstance(seed, np.random.SeedSequence):
        seed = np.random.SeedSequence(seed)
    return seed.generate_state(8).tolist()
