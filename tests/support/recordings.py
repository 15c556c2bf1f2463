"""Small ETH/UCY recordings."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

H, F, T = 8, 12, 20
PERIOD_S = 0.4
CORNER = np.array([431.25, -77.5])


@dataclass
class Walk:
    """A pedestrian with positions [n, 2] in consecutive frames from frame number `start`."""

    name: str
    positions: np.ndarray
    start: int = 0


def straight(count: int, begin: tuple[float, float], velocity: tuple[float, float]) -> np.ndarray:
    """Positions [count, 2] at constant velocity, m/s."""
    time_s = PERIOD_S * np.arange(count)[:, None]
    return CORNER + np.array(begin) + time_s * np.array(velocity)


def crowd() -> list[Walk]:
    """Three pedestrians with constant velocity, one that turns, and four others.

    The others are present in some frames only.
    """
    turn = straight(T, (0.0, 6.0), (1.5, 0.0))
    turn[H:] = turn[H - 1] + PERIOD_S * np.arange(1, F + 1)[:, None] * (0.0, 1.0)
    walks = [
        Walk("3.0", straight(T, (0.0, 0.0), (1.2, 0.5))),
        Walk("1.0", straight(T, (8.0, 2.0), (-1.0, 0.0))),
        Walk("20.0", straight(T, (4.0, -3.0), (0.0, 0.0))),
        Walk("4.0", turn),
    ]
    leaves_in_third_future_frame = straight(10, (1.0, 9.0), (0.8, 0.8))
    walks.append(Walk("5.0", leaves_in_third_future_frame, start=0))
    walks.append(Walk("6.0", straight(3, (2.0, 5.0), (-1.0, 1.0)), start=3))
    appears_in_last_observed_frame = straight(13, (9.0, 9.0), (-1.0, -1.0))
    walks.append(Walk("7.0", appears_in_last_observed_frame, start=7))
    appears_in_first_future_frame = straight(12, (9.0, 7.0), (-1.0, -1.0))
    walks.append(Walk("8.0", appears_in_first_future_frame, start=8))
    return walks


def lines(walks: list[Walk], interval: int = 10, first: int = 780) -> list[str]:
    """Rows of a file, by frame."""
    unused = " ".join(["-1.0"] * 10)
    rows = []
    for walk in walks:
        for step, (x, y) in enumerate(walk.positions.tolist(), walk.start):
            frame = float(first + step * interval)
            row = f"{frame} {walk.name} Pedestrian {unused} {x} -1.0 {y} -1.0"
            rows.append((step, row))
    rows.sort(key=lambda pair: pair[0])
    return [row for _, row in rows]


def write_recording(
    path: Path, walks: list[Walk] | list[str], end: str = "\n", **options: int
) -> Path:
    """Write pedestrians, or rows, as a recording, by convention RAW/<set>/<recording>.txt."""
    rows = walks
    if isinstance(walks[0], Walk):
        rows = lines(walks, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(row + end for row in rows).encode())
    return path
