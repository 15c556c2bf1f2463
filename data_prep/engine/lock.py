"""One run at a time prepares a split: two would take each other's temporary files away."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from trajformer.errors import TrajformerError


@contextmanager
def alone_in(folders: Sequence[Path]) -> Iterator[None]:
    """Claim folders for as long as this lasts; whatever ends this process gives them back.

    Nothing is written: the folders themselves are locked. A file system that cannot lock, or a system that cannot, does without.

    Raises:
        TrajformerError: another run has one of them.
        OSError: one cannot be opened.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with ExitStack() as stack:
        for folder in folders:
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise TrajformerError(f"{folder}: another run is preparing it; wait for that one, or stop it") from error
            except OSError:
                continue
        yield
