"""Counts of INTERACTION files, and the distance of driven vehicles to the lanes of the maps.

    python tools/research/count_interaction.py RAW [--check]

RAW has the official layout with the split `val`. A vehicle at 1 m/s or faster is driven; its
distance is to the nearest centerline, every 5 s. "Aligned" is the fraction of these vehicles with
a centerline within 3 m and 45 degrees. With --check, the exit status is 1 if the sums are not those
of the 8 locations in docs/results/interaction.md, or if a median exceeds 1.3 m.
"""

import argparse
import sys
from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_prep.readers.interaction.reader import RECORDINGS, Interaction
from data_prep.readers.interaction.tracks import PERIOD_S, read_tracks
from trajformer.scenes.scene import AgentRole, PolylineKind, Scene
from trajformer.scenes.vector_map import distance_to_segments

DRIVEN_M_S = 1.0
NEAR_M = 3.0
ALIGNED_COS = np.cos(np.pi / 4)
ALL = "all"
EXPECTED = (132, 596, 19_425, 8_756, 68_449, 72_457)  # sums of the 8 locations
MAX_MEDIAN_M = 1.3


class Counts(NamedTuple):
    """Counts of a location, as in the columns of the table."""

    recordings: float = 0
    minutes: float = 0
    tracks: float = 0
    cases: float = 0
    cars_40_steps: float = 0  # seen in all steps
    cars_steps_9_and_39: float = 0  # seen in the last observed and the last future step


HEADER = ("recordings", "minutes", "tracks", "cases", "cars, 40 steps", "cars, steps 9 and 39")


class LocationResult(NamedTuple):
    """The row of a location."""

    counts: Counts
    median_m: float
    aligned: float  # fraction of driven vehicles


def lane_distances(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Distance [n] in metres of each driven vehicle to the nearest lane, and whether it is aligned.

    The time is the last observed step.
    """
    now = scene.num_history - 1
    velocity = scene.velocity[:, now]
    speed = np.hypot(velocity[:, 0], velocity[:, 1])
    driven = (scene.agent_role >= AgentRole.SCORED) & (speed >= DRIVEN_M_S)
    position = scene.position[driven, now].astype(np.float64)
    heading = scene.heading[driven, now]

    lanes = np.flatnonzero(scene.polyline_kind == PolylineKind.LANE_VEHICLE)
    starts, ends = [], []
    for index in lanes:
        line = scene.polyline(index)
        starts.append(line[:-1])
        ends.append(line[1:])
    start = np.concatenate(starts).astype(np.float64)
    end = np.concatenate(ends).astype(np.float64)

    distance = distance_to_segments(position[:, None], start, end)
    segment = end - start
    direction = np.arctan2(segment[:, 1], segment[:, 0])
    parallel = np.cos(direction - heading[:, None]) >= ALIGNED_COS
    aligned = (distance <= NEAR_M) & parallel
    return distance.min(1), aligned.any(1)


def count_recording(path: Path) -> Counts:
    """Counts of a file of tracks."""
    rows = read_tracks(path)
    minutes = (np.ptp(rows.time) + 1) * PERIOD_S / 60
    return Counts(recordings=1, minutes=minutes, tracks=len(rows.agent_id))


def count_case(scene: Scene) -> Counts:
    """Counts of a case of the validation split."""
    valid = scene.valid[scene.agent_role >= AgentRole.SCORED]
    return Counts(
        cases=1,
        cars_40_steps=valid.all(1).sum(),
        cars_steps_9_and_39=valid[:, -1].sum(),
    )


def count(raw: Path) -> dict[str, LocationResult]:
    """The row of each location and of `ALL`."""
    counts: dict[str, list[Counts]] = defaultdict(list)
    distances: dict[str, list[np.ndarray]] = defaultdict(list)
    alignments: dict[str, list[np.ndarray]] = defaultdict(list)
    for path in sorted((raw / RECORDINGS).glob("*/vehicle_tracks_*.csv")):
        counts[path.parent.name].append(count_recording(path))
    cases = Interaction()
    for item in cases.inputs(raw, "val"):
        scene = cases.read(item, "val", raw)
        counts[scene.city].append(count_case(scene))
    windows = Interaction(stride=50)
    for item in windows.inputs(raw, RECORDINGS):
        scene = windows.read(item, RECORDINGS, raw)
        distance, aligned = lane_distances(scene)
        distances[scene.city].append(distance)
        alignments[scene.city].append(aligned)
    for parts in (counts, distances, alignments):
        parts[ALL] = list(chain.from_iterable(parts.values()))

    results = {}
    for location in sorted(counts):
        results[location] = LocationResult(
            counts=Counts(*np.sum(counts[location], axis=0)),
            median_m=float(np.median(np.concatenate(distances[location]))),
            aligned=float(np.concatenate(alignments[location]).mean()),
        )
    return results


def check(raw: Path, results: dict[str, LocationResult]) -> None:
    """Exit with status 1 if the sums or the distances to the lanes are wrong."""
    sums = tuple(round(float(value)) for value in results[ALL].counts)
    if sums != EXPECTED:
        sys.exit(f"{raw}: {', '.join(HEADER)}: {sums}, expected {EXPECTED}")
    largest = max(result.median_m for result in results.values())
    if largest > MAX_MEDIAN_M:
        found = f"a median distance of {largest:.2f} m to the lanes"
        sys.exit(f"{raw}: {found}, expected at most {MAX_MEDIAN_M}")


def main() -> None:
    """Print a row per location and their sums."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("raw", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    results = count(args.raw)
    print(f"| location | {' | '.join(HEADER)} | median m | aligned |")
    print(f"| --- |{' ---: |' * (len(HEADER) + 2)}")
    for location, result in results.items():
        cells = [f"{value:,.0f}" for value in result.counts]
        cells.append(f"{result.median_m:.2f}")
        cells.append(f"{100 * result.aligned:.1f} %")
        print(f"| {location.removeprefix('DR_')} | {' | '.join(cells)} |")
    if args.check:
        check(args.raw, results)


if __name__ == "__main__":
    main()
