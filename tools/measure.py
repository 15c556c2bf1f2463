"""Measurements shared by the benchmarks: environment, times, peak memory.

torch is imported inside functions: workers of `bench_data.py` import this file, but not torch.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trajformer.scenes.files import write_atomically

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_VARIABLES = ("MALLOC_", "GLIBC_", "THP_", "LD_PRELOAD", "ARROW_", "OMP_")


def environment(device: str = "cpu") -> dict[str, Any]:
    """Processor, GPU, threads, versions, allocator settings and load: the figures depend on them."""
    import torch

    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text().splitlines() if cpu_info.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": f"{os.cpu_count()} x {names[0] if names else platform.machine()}",
        "gpu": torch.cuda.get_device_name() if device.startswith("cuda") else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "pyarrow")},
        "allocator": {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)},
        "load": round(os.getloadavg()[0], 2),
    }


def times_s(runs: Mapping[str, Callable[[], object]], repeats: int, device: str = "cpu") -> dict[str, list[float]]:
    """Seconds of repeated calls by name, after one call that does not count.

    The calls alternate, so that a slower or faster phase of the machine affects all in the same way.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(repeats + 1):
        for name, run in runs.items():
            _wait(device)
            start = time.perf_counter()
            run()
            _wait(device)
            if index:
                times[name].append(time.perf_counter() - start)
    return times


def medians_s(runs: Mapping[str, Callable[[], object]], repeats: int, device: str = "cpu") -> dict[str, float]:
    """Median seconds of alternating calls by name."""
    return {name: statistics.median(values) for name, values in times_s(runs, repeats, device).items()}


def median_ms(run: Callable[[], object], repeats: int, device: str = "cpu") -> float:
    """Median milliseconds of a call."""
    run()
    return medians_s({"": run}, repeats, device)[""] * 1e3


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def peak_mb(device: str = "cpu") -> float:
    """Peak memory of this process (of the allocator on a GPU) since the start or `reset_peak`."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated() / 1e6
    status = _STATUS.read_text()  # resource.getrusage includes the peak of the parent process
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def reset_peak(device: str = "cpu") -> float:
    """Return free memory to the system and set the peak to the current memory; returns it."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return peak_mb(device)
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    _CLEAR.write_text("5")
    return peak_mb(device)


def batches(data: Any, size: int = 32) -> Iterator[Any]:
    """All batches of a dataset in order."""
    for start in range(0, len(data), size):
        yield data[range(start, min(start + size, len(data)))]


def new_parser(doc: str | None, repeats: int, device: bool = False) -> argparse.ArgumentParser:
    """A command-line parser with the options of all benchmarks; the help is the docstring of the script."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help=argparse.SUPPRESS)  # the part that a separate process measures
    if device:
        parser.add_argument("--device", default="cpu")
    return parser


def run_only(part: str, *words: str) -> Any:
    """The JSON that this script prints last when a separate process measures one part."""
    command = [sys.executable, *sys.argv, "--only", part, *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def origin() -> dict[str, str]:
    """Commit and command of this process: contained in all files with figures."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return {"commit": commit or "unknown", "command": shlex.join(["python", *sys.argv])}


def write_json(path: Path, rows: Any, machine: dict[str, Any], **more: Any) -> None:
    """Write figures with the machine, the commit and the command that produced them, atomically."""
    write_atomically(path, json.dumps(origin() | {"machine": machine, **more, "rows": rows}, indent=1) + "\n")
