"""Tables of positions only, with agents that stand, brake or never moved."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from support import tables
from support.cli import run
from support.uses import Case

from trajformer.scenes.store import SceneStore

STEPS = 300
LANE = {"id": 1, "points": [[40.0, 3.0], [-40.0, 3.0]]}  # points to -x, 3 m from parked cars


def drive(speed: np.ndarray, noise_m: float) -> None:
    """Write raw/val/drive.csv: car `a` has speeds [T] in m/s along the y axis, `b` drives past."""
    y = 0.1 * np.cumsum(speed)
    noise = np.random.default_rng(0).normal(0, noise_m, (len(y), 2))
    step = np.arange(len(y))
    car = pd.DataFrame({"track_id": "a", "step": step, "x": noise[:, 0], "y": y + noise[:, 1]})
    other = pd.DataFrame({"track_id": "b", "step": step, "x": 9.0, "y": 200 - 0.8 * step})
    tables.write(Path("raw/val/drive.csv"), tables.frame(car, other))


def red_light() -> None:
    """A car drives for 5 s and waits for 25 s."""
    drive(np.where(np.arange(STEPS) < 50, 8.0, 0.0), 0.05)


def braking() -> None:
    """A car brakes with 4 m/s^2 and waits for half a second at its last observed step."""
    time = 0.1 * np.arange(110)
    drive(np.clip(14 - 4 * (time - 1.0), 0, 14), 0.0)


def parked() -> None:
    """A car that never moves, near a lane."""
    drive(np.zeros(STEPS), 0.1)
    tables.write_lanes(Path("raw/lanes.json"), LANE)


def last_motion() -> None:
    """Prepare the table, and print the range of the last observed motion of car `a` by window."""
    assert run("preprocess", "table", "raw", "s", "--workers", "1") == 0
    headings = []
    speeds = []
    for scene in SceneStore("s", "val"):
        agent = scene.agent_id.index("a")
        last = scene.num_history - 1
        headings.append(round(float(np.degrees(scene.heading[agent, last]))) % 360)
        speeds.append(float(np.linalg.norm(scene.velocity[agent, last])))
    print(f"{len(headings)} windows: heading {min(headings)} to {max(headings)}", end=", ")
    print(f"speed up to {max(speeds):.1f}")


def motion(use: str, prepare: Callable[[], None], line: str) -> Case:
    return Case(use, last_motion, line, prepare, status=0)


CASES = [
    motion(
        "a car at a red light in the windows of a table",
        red_light,
        r"20 windows: heading (8[5-9]|90) to 9[0-5], speed up to (7.[89]|8)",
    ),
    motion(
        "a car that has braked to a stop", braking, "1 windows: heading 90 to 90, speed up to 0.0"
    ),
    motion("a parked car near a lane", parked, "20 windows: heading 180 to 180, speed up to 0"),
]
