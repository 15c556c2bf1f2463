"""Measurements shared by the benchmarks: environment, times, peak memory, tables and files.

torch and pandas are imported inside functions: workers of `bench_data.py` import this file, but not them.
"""

import argparse
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
        "allocator": {
            name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)
        },
        "load": round(os.getloadavg()[0], 2),
    }


def times_s(
    runs: Mapping[str, Callable[[], object]], repeats: int, device: str = "cpu", warm_up: int = 1
) -> dict[str, np.ndarray]:
    """Wall seconds and CPU seconds (with finished child processes) [repeats, 2] by name, after `warm_up` calls.

    The calls alternate, so that a slower or faster phase of the machine affects all in the same way.
    """
    import torch

    wait = torch.cuda.synchronize if device.startswith("cuda") else torch.cpu.synchronize
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(warm_up + repeats):
        for name, run in runs.items():
            wait()
            cpu, start = _cpu_s(), time.perf_counter()
            run()
            wait()
            times[name].append((time.perf_counter() - start, _cpu_s() - cpu))
    return {name: np.array(values[warm_up:]) for name, values in times.items()}


def _cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def medians_ms(runs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median wall milliseconds of alternating calls by name."""
    return {
        name: float(np.median(times[:, 0])) * 1e3 for name, times in times_s(runs, repeats).items()
    }


def median_ms(run: Callable[[], object], repeats: int, device: str = "cpu") -> float:
    """Median wall milliseconds of a call."""
    return float(np.median(times_s({"": run}, repeats, device, warm_up=2)[""][:, 0])) * 1e3


def peak_mb(device: str = "cpu") -> float:
    """Peak memory of this process (of the allocator on a GPU) since the start or `reset_peak`."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated() / 1e6
    status = Path(
        "/proc/self/status"
    ).read_text()  # resource.getrusage includes the peak of the parent process
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def reset_peak(device: str = "cpu") -> float:
    """Return free memory to the system and set the peak of this process to its current memory; returns it, on a GPU 0."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats()
        return 0.0
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def new_parser(doc: str | None, repeats: int) -> argparse.ArgumentParser:
    """A command-line parser with the options of all benchmarks; the help is the docstring of the script."""
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
    """A call that computes a loss of its arguments and the gradient, and changes the weights of a model and its loss.

    `config` is an `OptimConfig`; `precision` is the dtype of autocast, None for single precision.
    """
    import torch

    from trajformer.training.optim import Length, build_optimizer, parameter_groups

    parameters, device = [*model.parameters(), *loss.parameters()], next(model.parameters()).device
    groups = [*parameter_groups(model, config), {"params": list(loss.parameters())}]
    optimizer, _ = build_optimizer(
        [group for group in groups if group["params"]], config, Length(1000)
    )

    def run(*batch: Any) -> None:
        optimizer.zero_grad()
        with torch.autocast(
            device.type, precision or torch.bfloat16, enabled=precision is not None
        ):
            result = value(*batch)
        result.backward()
        if config.clip:
            torch.nn.utils.clip_grad_norm_(parameters, config.clip)
        optimizer.step()

    return run


def origin() -> dict[str, str]:
    """Commit and command of this process: contained in all files with figures."""
    git = [
        "git",
        "-C",
        str(Path(__file__).parent),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
    ]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return {"commit": commit or "unknown", "command": shlex.join(["python", *sys.argv])}


def write_json(path: Path, rows: Any, machine: dict[str, Any], **more: Any) -> None:
    """Write figures with the machine, the commit and the command that produced them, atomically."""
    write_atomically(
        path, json.dumps(origin() | {"machine": machine, **more, "rows": rows}, indent=1) + "\n"
    )


def report(
    args: argparse.Namespace, tables: Mapping[str, Iterable[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Measure and print `tables` (rows by title, measured by iterating over them), and write all rows to --json; returns them."""
    import pandas as pd

    def digits(value: float) -> str:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"

    machine, rows = environment(), []
    print(json.dumps(machine))
    for title, measured in tables.items():
        table = [*measured]
        print(
            f"\n{title}\n{pd.DataFrame(table).to_string(index=False, na_rep='', float_format=digits)}",
            flush=True,
        )
        rows += table
    if args.json:
        write_json(args.json, rows, machine)
    return rows
