"""Progress on standard error: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from data_prep.engine.amounts import size_text
from data_prep.engine.tasks import ShardResult, ShardTask

LINE_S = 30.0  # between two lines of a log


class Progress:
    """Counts inputs and foretells the size of the store from the shards finished so far; a `runners.Report`.

    Args:
        tasks: all shards.
        kept: those that are there already.
        shown: False for silence.
    """

    def __init__(self, tasks: Sequence[ShardTask], kept: Sequence[ShardTask], shown: bool) -> None:
        self._total, self._finished = (sum(len(task.inputs) for task in part) for part in (tasks, kept))
        self._bytes = sum(task.path.stat().st_size for task in kept)
        self._lines = shown and not sys.stderr.isatty()
        self.checksums: dict[Path, str] = {}  # of the shards made
        self._first, self._shown, self._began = self._finished, self._finished, time.monotonic()
        self._next_line = self._began + LINE_S
        bar = shown and not self._lines
        self._bar = tqdm(
            total=self._total, initial=self._finished, unit="scene", desc="prepare", dynamic_ncols=True, disable=not bar
        )
        self._say(self._finished)

    def reading(self, inputs: int) -> None:
        """About so many inputs of unfinished shards have been read: show it, never less than before."""
        self._shown = max(self._shown, self._finished + inputs)
        self._say(self._shown)

    def finished(self, task: ShardTask, result: ShardResult) -> None:
        """A shard has been written."""
        self.checksums[task.path] = result.sha256
        self._finished += result.inputs
        self._bytes += result.bytes

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()

    def _say(self, count: int) -> None:
        if not self._bar.disable:
            self._bar.set_postfix_str(self._store(), refresh=False)
            self._bar.update(count - self._bar.n)
        now = time.monotonic()
        if self._lines and now >= self._next_line:
            self._next_line = now + LINE_S
            sys.stderr.write(self._line(count, now - self._began) + "\n")
            sys.stderr.flush()

    def _store(self) -> str:
        return f"store about {size_text(self._bytes / self._finished * self._total)}" if self._finished else ""

    def _line(self, count: int, seconds: float) -> str:
        rate = (count - self._first) / seconds
        parts = [f"prepare: {count:,} of {self._total:,} scenes ({100 * count / max(self._total, 1):.1f} %)"]
        if rate > 0:
            parts += [
                f"{rate:.1f} scenes/s" if rate >= 1 else f"{60 * rate:.1f} scenes/min",
                f"{tqdm.format_interval((self._total - count) / rate)} left",
            ]
        return ", ".join([*parts, self._store()] if self._finished else parts)
