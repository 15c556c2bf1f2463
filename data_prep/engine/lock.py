"""Locks on the folders of a store: two runs in one split would delete each other's temporary files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import lock_descriptor

from trajformer.errors import TrajformerError


@contextmanager
def lock_folders(folders: Sequence[Path]) -> Iterator[None]:
    """Lock folders inside the `with` block; the system releases the locks of a process that ends.

    The folders themselves are locked, so that no lock file is left behind. A file system without locks is not locked.

    Raises:
        TrajformerError: another run has locked a folder.
        OSError: a folder cannot be opened.
    """
    with ExitStack() as stack:
        for folder in folders:
            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            try:
                locked = lock_descriptor(descriptor, blocking=False)
            except OSError:
                continue
            if not locked:
                raise TrajformerError(f"{folder}: another run is preparing it; wait for that run, or stop it")
        yield
