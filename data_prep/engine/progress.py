"""Progress on standard error: a bar on a terminal, a line every 30 seconds in a log."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from data_prep.engine.tasks import ShardResult, ShardTask

LINE_S = 30.0  # between two lines of a log


class Progress:
    """Counts inputs and estimates the size of the store from the finished shards.

    Args:
        tasks: all shards.
        kept: shards that exist already.
        shown: whether to print.
    """

    def __init__(self, tasks: Sequence[ShardTask], kept: Sequence[ShardTask], shown: bool) -> None:
        self.checksums: dict[Path, str] = {}  # of the shards made
        self._total, self._finished = (sum(len(task.inputs) for task in part) for part in (tasks, kept))
        self._bytes = sum(task.path.stat().st_size for task in kept)
        self._initial = self._count = self._finished
        is_terminal = sys.stderr.isatty()
        self._prints_lines = shown and not is_terminal
        self._start_time = time.monotonic()
        self._next_line = self._start_time + LINE_S
        self._bar = tqdm(
            total=self._total,
            initial=self._finished,
            unit="scene",
            desc="prepare",
            dynamic_ncols=True,
            disable=not (shown and is_terminal),
        )
        self.update(0)

    def update(self, unfinished: int) -> None:
        """Show progress; `unfinished` counts the inputs read for shards that are not finished. The count never decreases."""
        self._count = max(self._count, self._finished + unfinished)
        estimate = f"store about {size_text(self._bytes / self._finished * self._total)}" if self._finished else ""
        if not self._bar.disable:
            self._bar.set_postfix_str(estimate, refresh=False)
            self._bar.update(self._count - self._bar.n)
        now = time.monotonic()
        if self._prints_lines and now >= self._next_line:
            self._next_line = now + LINE_S
            line = tqdm.format_meter(
                self._count,
                self._total,
                now - self._start_time,
                ncols=0,
                prefix="prepare",
                unit="scene",
                initial=self._initial,
                postfix=estimate,
            )
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def finish_shard(self, task: ShardTask, result: ShardResult) -> None:
        """Count a shard that has been written."""
        self.checksums[task.path] = result.sha256
        self._finished += len(result.seconds)
        self._bytes += result.bytes

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()


def size_text(count: float) -> str:
    """A number of bytes for messages: 812 kB, 1.4 GB."""
    units = ["TB", "GB", "MB", "kB", "B"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop()
    return f"{count:.0f} {units[-1]}" if units[-1] == "B" or count >= 99.5 else f"{count:.1f} {units[-1]}"


def duration_text(seconds: float) -> str:
    """A number of seconds for messages: 8 s (rounded up), 12 min, 3.4 h, 2.5 days."""
    if seconds < 99.5:
        return f"{math.ceil(seconds)} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
