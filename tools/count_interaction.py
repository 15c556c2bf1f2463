"""Counts of INTERACTION files, and the distance of driven vehicles to the lanes of the maps.

    python tools/count_interaction.py RAW [--check]

RAW has the official layout with the split `val`. A vehicle at 1 m/s or faster is driven; its distance is to the nearest
centerline, every 5 s. "Aligned" is the share of these vehicles with a centerline within 3 m and 45 degrees. With --check, the
exit status is 1 if the sums are not those of the 8 locations in docs/results/interaction.md, or if a median exceeds 1.3 m.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from data_prep.readers.interaction.reader import RECORDINGS, Interaction
from data_prep.readers.interaction.tracks import PERIOD_S, read_tracks
from data_prep.readers.vector_map import distance_to_segments
from trajformer.scenes.scene import AgentRole, PolylineKind, Scene

SPEED_M_S, NEAR_M, ALIGNED_COS = 1.0, 3.0, np.cos(np.pi / 4)
ALL = "all"
COUNTS = ("recordings", "minutes", "tracks", "cases", "cars, 40 steps", "cars, steps 9 and 39")
EXPECTED = (132, 596, 19_425, 8_756, 68_449, 72_457)  # of the 8 locations
MAX_MEDIAN_M = 1.3


def lane_distances(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Distance [n] in metres of each driven vehicle in the last observed step to the nearest lane; and whether one is aligned."""
    now = scene.num_history - 1
    driven = (scene.agent_role >= AgentRole.SCORED) & (
        np.hypot(*scene.velocity[:, now].T) >= SPEED_M_S
    )
    lines = [
        scene.polyline(index)
        for index in np.flatnonzero(scene.polyline_kind == PolylineKind.LANE_VEHICLE)
    ]
    start, end = (
        np.concatenate([line[part] for line in lines]).astype(np.float64)
        for part in (np.s_[:-1], np.s_[1:])
    )
    distance = distance_to_segments(
        scene.position[driven][:, None, now].astype(np.float64), start, end
    )
    along = np.arctan2(*(end - start).T[::-1])
    aligned = (distance <= NEAR_M) & (
        np.cos(along - scene.heading[driven, now, None]) >= ALIGNED_COS
    )
    return distance.min(1), aligned.any(1)


def count(raw: Path) -> dict[str, tuple[np.ndarray, float, float]]:
    """By location and for `ALL`: `COUNTS` [6], the median distance in metres, and the share of aligned vehicles."""
    counts: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(COUNTS)))
    distances = defaultdict(list)

    def add(location: str, *values: float) -> None:
        for name in (location, ALL):
            counts[name] += values

    for path in sorted((raw / RECORDINGS).glob("*/vehicle_tracks_*.csv")):
        rows = read_tracks(path)
        add(
            path.parent.name,
            1,
            (np.ptp(rows.time) + 1) * PERIOD_S / 60,
            len(rows.agent_id),
            0,
            0,
            0,
        )
    cases, windows = Interaction(), Interaction(stride=50)
    for item in cases.inputs(raw, "val"):
        scene = cases.read(item, "val", raw)
        valid = scene.valid[scene.agent_role >= AgentRole.SCORED]
        add(scene.city, 0, 0, 0, 1, valid.all(1).sum(), valid[:, -1].sum())
    for item in windows.inputs(raw, RECORDINGS):
        scene = windows.read(item, RECORDINGS, raw)
        for name in (scene.city, ALL):
            distances[name].append(lane_distances(scene))
    metrics = {}
    for name in sorted(counts):
        distance, aligned = (np.concatenate(part) for part in zip(*distances[name], strict=True))
        metrics[name] = (counts[name], float(np.median(distance)), float(aligned.mean()))
    return metrics


def main() -> None:
    """Print a row per location and their sums."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("raw", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    metrics = count(args.raw)
    print(f"| location | {' | '.join(COUNTS)} | median m | aligned |")
    print(f"| --- |{' ---: |' * (len(COUNTS) + 2)}")
    for name, (counts, median, aligned) in metrics.items():
        cells = [f"{value:,.0f}" for value in counts] + [f"{median:.2f}", f"{100 * aligned:.1f} %"]
        print(f"| {name.removeprefix('DR_')} | {' | '.join(cells)} |")
    if args.check:
        sums = tuple(metrics[ALL][0].round().astype(int).tolist())
        if sums != EXPECTED:
            sys.exit(f"{args.raw}: {', '.join(COUNTS)}: {sums}, expected {EXPECTED}")
        if (largest := max(median for _, median, _ in metrics.values())) > MAX_MEDIAN_M:
            sys.exit(
                f"{args.raw}: a median distance of {largest:.2f} m to the lanes, expected at most {MAX_MEDIAN_M}"
            )


if __name__ == "__main__":
    main()
