"""Measurements shared by the benchmarks: environment, times, peak memory, tables and files.

torch and pandas are imported inside functions: workers of `bench_data.py` import this file, but not
them.
"""

import argparse
import contextlib
import ctypes
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from trajformer.scenes.files import write_atomically

_VARIABLES = ("MALLOC_", "GLIBC_", "THP_", "LD_PRELOAD", "ARROW_", "OMP_")


def environment(device: str = "cpu") -> dict[str, Any]:
    """Processor, GPU, threads, versions, allocator settings and load: times depend on them."""
    import torch

    gpu = None
    if device.startswith("cuda"):
        gpu = torch.cuda.get_device_name()
    versions = {name: version(name) for name in ("torch", "numpy", "pyarrow")}
    settings = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    return {
        "cpu": f"{os.cpu_count()} x {_processor_name()}",
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **versions,
        "allocator": settings,
        "load": round(os.getloadavg()[0], 2),
    }


def _processor_name() -> str:
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        for line in cpu_info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.machine()


def times_s(
    runs: Mapping[str, Callable[[], object]], repeats: int, device: str = "cpu", warm_up: int = 1
) -> dict[str, np.ndarray]:
    """Wall seconds and CPU seconds [repeats, 2] by name, after `warm_up` calls.

    CPU seconds include finished child processes. The calls alternate, so that a slower or
    faster phase of the machine affects all in the same way.
    """
    import torch

    wait = torch.cuda.synchronize if device.startswith("cuda") else torch.cpu.synchronize
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(warm_up + repeats):
        for name, run in runs.items():
            wait()
            start_cpu = _cpu_s()
            start = time.perf_counter()
            run()
            wait()
            wall = time.perf_counter() - start
            times[name].append((wall, _cpu_s() - start_cpu))
    return {name: np.array(values[warm_up:]) for name, values in times.items()}


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def medians_ms(runs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median wall milliseconds of alternating calls by name."""
    times = times_s(runs, repeats)
    return {name: _median_ms(values) for name, values in times.items()}


def median_ms(run: Callable[[], object], repeats: int, device: str = "cpu") -> float:
    """Median wall milliseconds of a call."""
    times = times_s({"run": run}, repeats, device, warm_up=2)
    return _median_ms(times["run"])


def _median_ms(times: np.ndarray) -> float:
    return float(np.median(times[:, 0])) * 1e3


def peak_mb(device: str = "cpu") -> float:
    """Peak memory of this process (of the allocator on a GPU) since the start or `reset_peak`."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated() / 1e6
    # resource.getrusage includes the peak of the parent process
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def reset_peak(device: str = "cpu") -> float:
    """Return free memory to the system and set the peak of this process to its current memory.

    Returns the current memory in MB, 0 on a GPU.
    """
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats()
        return 0.0
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def new_parser(doc: str | None, repeats: int) -> argparse.ArgumentParser:
    """A command-line parser with the options of all benchmarks.

    The help text is the docstring of the script.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--json", type=Path)
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the command line; --threads takes effect."""
    import torch

    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    return args


def training_step(
    value: Callable[..., Any], model: Any, loss: Any, config: Any, precision: Any = None
) -> Callable[..., None]:
    """A call that computes a loss of its arguments, its gradient, and changes the weights.

    It changes the weights of the model and its loss. `config` is an `OptimConfig`; `precision` is
    the dtype of autocast, None for single precision.
    """
    import torch

    from trajformer.training.optim import Length, build_optimizer, parameter_groups

    loss_parameters = list(loss.parameters())
    parameters = [*model.parameters(), *loss_parameters]
    device = parameters[0].device
    groups = [*parameter_groups(model, config), {"params": loss_parameters}]
    not_empty = [group for group in groups if group["params"]]
    optimizer, _ = build_optimizer(not_empty, config, Length(1000))
    autocast = contextlib.nullcontext()
    if precision is not None:
        autocast = torch.autocast(device.type, precision)

    def run(*batch: Any) -> None:
        optimizer.zero_grad()
        with autocast:
            result = value(*batch)
        result.backward()
        if config.clip:
            torch.nn.utils.clip_grad_norm_(parameters, config.clip)
        optimizer.step()

    return run


def origin() -> dict[str, str]:
    """Commit and command of this process, for all files with measurements."""
    folder = str(Path(__file__).parent)
    git = ["git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return {"commit": commit or "unknown", "command": shlex.join(["python", *sys.argv])}


def write_json(path: Path, rows: Any, machine: dict[str, Any], **more: Any) -> None:
    """Write rows with the machine, the commit and the command that produced them, atomically."""
    content = origin() | {"machine": machine, **more, "rows": rows}
    write_atomically(path, json.dumps(content, indent=1) + "\n")


def report(
    args: argparse.Namespace, tables: Mapping[str, Iterable[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Measure and print tables, and write all rows to --json.

    `tables` are rows by title, measured by iterating over them. Returns all rows.
    """
    import pandas as pd

    machine = environment()
    print(json.dumps(machine))
    rows = []
    for title, measured in tables.items():
        table = list(measured)
        text = pd.DataFrame(table).to_string(index=False, na_rep="", float_format=_digits)
        print(f"\n{title}\n{text}", flush=True)
        rows += table
    if args.json:
        write_json(args.json, rows, machine)
    return rows


def _digits(value: float) -> str:
    if abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}"
