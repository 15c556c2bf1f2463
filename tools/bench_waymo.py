"""Time of a Waymo record from file to packed scene, next to the `protobuf` package.

    python tools/bench_waymo.py RECORDS.tfrecord [--repeats 50] [--json OUT]

Times are processor time of one process, the median over all repeats of a record; each repeat
measures all rows in turn, so that other work on the machine affects them equally. The package
parses the same bytes (`FromString`, in C) and then copies states and points to arrays, which any
reader on top of it has to do. The process has the environment of a worker of `preprocess`.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

# The messages are shared with the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.waymo import scenario_class

from data_prep.engine.local_runner import PROCESS_VARIABLES
from data_prep.reader import Input
from data_prep.readers.waymo.reader import Waymo
from data_prep.readers.waymo.record import parse_record
from data_prep.readers.waymo.tfrecord import list_records
from data_prep.readers.waymo.tfrecord import read_record as read_content
from trajformer.scenes.shard import pack

_MAP_KINDS = ("lane", "road_line", "road_edge")


def arrays(message: Any) -> tuple[np.ndarray, np.ndarray]:
    """States [A, L, 9] and points [P, 3] of a parsed message."""
    states = []
    for track in message.tracks:
        for state in track.states:
            position = (state.center_x, state.center_y, state.center_z)
            size = (state.length, state.width, state.height)
            states.append((*position, *size, state.heading, state.velocity_x, state.velocity_y))
    points = []
    for feature in message.map_features:
        for kind in _MAP_KINDS:
            if feature.HasField(kind):
                for point in getattr(feature, kind).polyline:
                    points.append((point.x, point.y, point.z))
    return np.array(states).reshape(len(message.tracks), -1, 9), np.array(points)


def steps(path: Path, offset: int) -> dict[str, Callable[[], Any]]:
    """The measured functions of a record by name."""
    reader = Waymo()
    item = Input(path, str(offset))
    content = read_content(path, offset)
    message_class = scenario_class()

    def scene() -> Any:
        read = reader.read(item, path.parent.name, path.parents[1])
        return pack(read.validate())

    return {
        "file and checksums": lambda: read_content(path, offset),
        "message to arrays": lambda: parse_record(content, path),
        "file to packed scene": scene,
        "protobuf: message to objects": lambda: message_class.FromString(content),
        "protobuf: message to arrays": lambda: arrays(message_class.FromString(content)),
    }


def measure(path: Path, repeats: int) -> list[dict[str, Any]]:
    """A row of medians in milliseconds for each record of a file."""
    rows = []
    for offset in list_records(path):
        functions = steps(path, offset)
        seconds: dict[str, list[float]] = {name: [] for name in functions}
        for _ in range(repeats):
            for name, function in functions.items():
                start = time.process_time()
                function()
                seconds[name].append(time.process_time() - start)
        times = {name: round(1e3 * median(values), 2) for name, values in seconds.items()}
        least = {f"{name}, least": round(1e3 * min(v), 2) for name, v in seconds.items()}
        rows.append({"record": offset, "bytes": len(read_content(path, offset))} | times | least)
    return rows


def main() -> None:
    """Print the mean over all records."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    args = parser.parse_args()
    environment = os.environ | PROCESS_VARIABLES
    if environment != dict(os.environ):  # the C library reads some of them when it starts
        os.execve(sys.executable, sys.orig_argv, environment)
    rows = measure(args.file, args.repeats)
    print(f"{len(rows)} records, mean size {np.mean([row['bytes'] for row in rows]):.0f} bytes")
    for name in rows[0]:
        if name in ("record", "bytes") or name.endswith("least"):
            continue
        values = [row[name] for row in rows]
        least = [row[f"{name}, least"] for row in rows]
        print(f"{name:32} {np.mean(values):7.2f} ms   least {np.mean(least):7.2f} ms")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
