"""Memory between steps: keep it instead of giving it back and asking for it again."""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_MAX, _NEVER = -1, -4, 2**31 - 1  # of malloc.h


def keep_freed_memory() -> None:
    """Have glibc keep what is freed: on a CPU each step's large tensors would else be fresh pages, faulted in one by one.

    Elsewhere than on Linux with glibc nothing happens.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, _NEVER)
