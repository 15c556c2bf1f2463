"""Latency of live forecasts: update and forecast of all agents, one thread.

    python tools/bench_stream.py --logs RAW/argoverse2_sensor
    python tools/bench_stream.py --large          # 256 agents, 2,000 lanes
    python tools/bench_stream.py --hour           # an hour of 10 Hz: latency and memory do not grow
    python tools/bench_stream.py --million        # 10^6 updates: time and memory do not grow

Prints machine and versions; median and 99th percentile in milliseconds, of the wall clock and of
the processor (the two differ on a machine with other work); and in the same run a lower bound, the
forward pass of the model on the batch of the last scene.
"""

import argparse
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from trajformer.cli.replay import recordings_of_logs
from trajformer.deploy.stream import OnlineForecaster

WEIGHTS = "pretrained:se2former_argoverse1"
LANE_M = 60.0
WARM_UP = 25  # updates that are not counted


class Times(NamedTuple):
    """Milliseconds of each call."""

    wall: list[float]
    processor: list[float]

    def add(self, call: Callable[[], object]) -> None:
        """Run and measure one call."""
        wall = time.perf_counter()
        processor = time.process_time()
        call()
        self.wall.append(1e3 * (time.perf_counter() - wall))
        self.processor.append(1e3 * (time.process_time() - processor))

    def text(self) -> str:
        """Median and 99th percentile of both."""
        words = []
        for name, values in (("wall", self.wall), ("processor", self.processor)):
            median, p99 = np.percentile(values, (50, 99))
            words.append(f"{name} {median:.1f} (99 % {p99:.1f})")
        return ", ".join(words)


def main() -> None:
    """Run the chosen measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", default=WEIGHTS)
    parser.add_argument("--logs", type=Path, help="folder of Argoverse 2 sensor logs")
    parser.add_argument("--large", action="store_true", help="256 agents, 2,000 lanes")
    parser.add_argument("--hour", action="store_true", help="36,000 updates of 24 agents")
    parser.add_argument("--million", action="store_true", help="10^6 updates of 24 agents")
    parser.add_argument("--updates", type=int, default=60, help="of each measurement")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cores = os.cpu_count()
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}", end=", ")
    print(f"torch {torch.__version__}, one thread; milliseconds")
    forecaster = OnlineForecaster(args.checkpoint)
    if args.logs:
        for recording in recordings_of_logs(args.logs):
            forecaster.reset()
            forecaster.set_map(recording.lanes)
            count = min(recording.num_observed, WARM_UP + args.updates)
            updates = (recording.tracks(step) for step in range(count))
            measure(recording.name[:8], forecaster, updates)
    if args.large:
        forecaster.reset()
        forecaster.set_map(grid_of_lanes(2_000))
        measure("256 agents, 2,000 lanes", forecaster, traffic(256, WARM_UP + args.updates))
    if args.hour:
        forecaster.reset()
        forecaster.set_map(grid_of_lanes(50))
        an_hour(forecaster)
    if args.million:
        forecaster.reset()
        forecaster.set_map(grid_of_lanes(50))
        a_million(forecaster)


def measure(name: str, forecaster: OnlineForecaster, updates: Iterator[dict[str, Any]]) -> None:
    """Print the times of updates with forecasts, and the lower bound."""
    times = Times([], [])
    for step, tracks in enumerate(updates):

        def tick(time_s: float = 0.1 * step, tracks: dict[str, Any] = tracks) -> None:
            forecaster.update(time_s, tracks)
            forecaster.forecast()

        if step < WARM_UP:
            tick()
        else:
            times.add(tick)
    bound, sizes = lower_bound(forecaster)
    print(f"{name}: {sizes}: {times.text()}; model alone {bound.text()}")


def lower_bound(forecaster: OnlineForecaster) -> tuple[Times, str]:
    """Times of SE2Former alone on the present scene, with its kept map; and its sizes."""
    observation = forecaster.observation()
    model = forecaster.model
    times = Times([], [])
    with torch.inference_mode():
        lanes = model.encode_map(observation)

        def forward() -> None:
            model.forecast(observation, lanes, model.encode_agents(observation, lanes))

        for _ in range(15):
            times.add(forward)
    pieces = observation.polyline.shape[1]
    return times, f"{observation.num_targets} agents, {pieces} pieces of lanes"


def grid_of_lanes(count: int) -> list[np.ndarray]:
    """Lanes of `LANE_M` on a square, half along x and half along y."""
    side = int(np.ceil(np.sqrt(count / 2)))
    along = np.linspace(0, LANE_M, 13)
    lanes: list[np.ndarray] = []
    for index in range(count):
        row, column = divmod(index // 2, side)
        begin = LANE_M * np.array([column, row])
        points = np.stack([along, np.zeros_like(along)], -1)
        lanes.append(begin + (points if index % 2 else points[:, ::-1]))
    return lanes


def traffic(agents: int, steps: int) -> Iterator[dict[str, Any]]:
    """Agents that move along x or y over the square of 2,000 lanes."""
    rng = np.random.default_rng(0)
    begin = rng.uniform(0, 31 * LANE_M, (agents, 2))
    speed = rng.uniform(0, 12, (agents, 1))
    velocity = speed * np.eye(2)[rng.integers(0, 2, agents)]
    for step in range(steps):
        x, y = (begin + 0.1 * step * velocity).T
        vx, vy = velocity.T
        heading = np.arctan2(vy, vx)
        names = list(range(agents))
        yield {"object_id": names, "x": x, "y": y, "heading": heading, "vx": vx, "vy": vy}


def an_hour(forecaster: OnlineForecaster) -> None:
    """36,000 updates; a forecast after every 10th one, once a second."""
    for minute in range(60):
        times = Times([], [])
        for step in range(600 * minute, 600 * (minute + 1)):
            forecaster.update(0.1 * step, passing(step))
            if step % 10 == 0:
                times.add(forecaster.forecast)
        if minute % 10 in (1, 9):
            print(f"minute {minute}: {times.text()}, {kept(forecaster)}", flush=True)


def a_million(forecaster: OnlineForecaster) -> None:
    """10^6 updates, over 27 hours at 10 Hz; a forecast after every 1,000th one."""
    for tenth in range(10):
        begin = time.process_time()
        for step in range(100_000 * tenth, 100_000 * (tenth + 1)):
            forecaster.update(0.1 * step, passing(step))
            if step % 1_000 == 0:
                forecaster.forecast()
        update_us = (time.process_time() - begin) / 0.1
        print(
            f"{100_000 * (tenth + 1)} updates: processor {update_us:.0f} us each, "
            f"{kept(forecaster)}",
            flush=True,
        )


def passing(step: int) -> dict[str, Any]:
    """24 agents on a road of 240 m at 5 m/s; each second one leaves and a new one comes."""
    second = step // 10
    names = list(range(second, second + 24))
    x = [10.0 * (name - second) + 0.5 * (step % 10) for name in names]
    return {"object_id": names, "x": x, "y": [0.0] * 24}


def kept(forecaster: OnlineForecaster) -> str:
    """Numbers of tracks that are kept, and the memory that the process has."""
    status = Path("/proc/self/statm")
    if status.exists():
        pages = int(status.read_text().split()[1])
        memory_mb = pages * resource.getpagesize() / 2**20
    else:  # elsewhere the most that the process ever had
        memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"{forecaster.num_tracks} tracks, {memory_mb:.0f} MB"


if __name__ == "__main__":
    main()
