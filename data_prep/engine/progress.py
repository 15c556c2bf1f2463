"""Progress on standard error: a bar on a terminal, a line every 30 seconds in a log."""

import io
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data_prep.engine.tasks import ShardResult, ShardTask
from trajformer.scenes.notices import on_terminal, write_line

LINE_S = 30.0  # between two lines of progress in a log


class Progress:
    """Counts inputs and estimates the size of the store from the finished shards."""

    def __init__(self, tasks: Sequence[ShardTask], kept: Sequence[ShardTask], shown: bool) -> None:
        """Begin with all shards and the shards that exist already; print if `shown`."""
        self.checksums: dict[Path, str] = {}  # of the shards made
        self._total = sum(len(task.inputs) for task in tasks)
        self._finished = sum(len(task.inputs) for task in kept)
        self._bytes = sum(task.path.stat().st_size for task in kept)
        terminal = on_terminal()
        self._prints_lines = shown and not terminal
        self._next_line = time.monotonic() + LINE_S
        display: dict[str, Any]
        if terminal:
            display = {"dynamic_ncols": True}
        else:  # tqdm only formats the lines, `update` prints them
            display = {"file": io.StringIO(), "ncols": 0, "mininterval": math.inf}
        self._bar = tqdm(
            desc="prepare",
            total=self._total,
            initial=self._finished,
            unit="scene",
            smoothing=0,
            disable=not shown,
            **display,
        )
        self.update(0)

    def update(self, unfinished: int) -> None:
        """Show progress; the count never decreases.

        `unfinished` is the number of inputs read for shards that are not finished.
        """
        if self._finished:
            store_bytes = self._bytes / self._finished * self._total
            size = tqdm.format_sizeof(store_bytes, "B")
            self._bar.set_postfix_str(f"store about {size}", refresh=False)
        new_inputs = self._finished + unfinished - self._bar.n
        self._bar.update(max(new_inputs, 0))
        if self._prints_lines and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_S
            write_line(str(self._bar))

    def finish_shard(self, task: ShardTask, result: ShardResult) -> None:
        """Count a shard that has been written."""
        self.checksums[task.path] = result.sha256
        self._finished += len(result.seconds)
        self._bytes += result.bytes

    def close(self) -> None:
        """Leave the bar as it is."""
        self._bar.close()
