"""The most memory that a process, or a GPU's allocator, has held."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import torch

_STATUS, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_mb(device: torch.device) -> float:
    """The most so far, or since `forget_peak`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e6
    status = _STATUS.read_text()  # resource.getrusage has the peak of the parent process in it
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def forget_peak(device: torch.device) -> float:
    """Give free memory back to the system and let the peak be what is held now, which is returned."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return peak_mb(device)
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
    _FORGET.write_text("5")
    return peak_mb(device)
