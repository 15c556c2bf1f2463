"""Details of raw files that cannot be used and are dropped: a lane, a label, a field.

A scene survives without them. Readers report them, and the engine counts them in each shard. Each
scene of a file reports the same details of this file, so a file and cause count once.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

MAX_CAUSES = 20  # of one file; a hostile file may have any number
OTHERS = "other details"
Dropped: TypeAlias = dict[tuple[Path, str], int]  # number of details by file and cause
_COLLECTED: ContextVar[Dropped | None] = ContextVar("_COLLECTED", default=None)


@contextmanager
def collect_dropped() -> Iterator[Dropped]:
    """Yield a dict that receives all details that are reported inside the context."""
    dropped: Dropped = {}
    token = _COLLECTED.set(dropped)
    try:
        yield dropped
    finally:
        _COLLECTED.reset(token)


def report_dropped(path: Path, causes: Mapping[str, int]) -> None:
    """Report the dropped details of a file: their number by cause, such as "lane: one point"."""
    kept = dict(list(causes.items())[:MAX_CAUSES])
    rest = sum(causes.values()) - sum(kept.values())
    if rest:
        kept[OTHERS] = rest
    add_dropped({(path, cause): count for cause, count in kept.items()})


def add_dropped(dropped: Dropped) -> None:
    """Report details again that were collected before."""
    collected = _COLLECTED.get()
    if collected is not None:
        collected.update(dropped)
