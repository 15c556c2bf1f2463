"""Sizes and durations for people."""

from __future__ import annotations

import math


def size_text(count: float) -> str:
    """A number of bytes: 812 kB, 1.4 GB."""
    units = ["TB", "GB", "MB", "kB", "B"]
    while count >= 999.5 and len(units) > 1:
        count, _ = count / 1000, units.pop()
    return f"{count:.0f} {units[-1]}" if units[-1] == "B" or count >= 99.5 else f"{count:.1f} {units[-1]}"


def duration_text(seconds: float) -> str:
    """A number of seconds, whole ones rounded up: 8 s, 12 min, 3.4 h, 2.5 days."""
    seconds = math.ceil(seconds) if seconds < 60 else seconds
    for size, unit, longest in ((1, "s", 99.5), (60, "min", 99.5), (3600, "h", 48.0)):
        if seconds / size < longest:
            digits = 1 if unit == "h" else 0
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86400:.1f} days"
