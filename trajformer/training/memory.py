"""Memory settings of the C library for training on a CPU."""

import ctypes
import platform

# Of malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Make glibc keep freed memory.

    Otherwise every step requests its large tensors again and pays for the page faults. On systems
    without glibc this does nothing.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, _NEVER)
