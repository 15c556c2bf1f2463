"""Safe reading and atomic writing of files, and locks on folders."""

import errno
import gzip
import os
import shutil
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BufferedReader
from pathlib import Path
from typing import Any

from trajformer.errors import UNREADABLE, TrajformerError, one_line

LOCK = ".lock"  # in a locked folder: process, machine and start time of the owner
LOCK_S = 3.0  # to recognize the lock of an ended process
# Multiplies the limits of sizes of files and of their content.
SIZE_SCALE = ContextVar("SIZE_SCALE", default=1.0)
UNPACKED_BYTES = 1 << 28  # any file may unpack to this size, a larger one to a multiple of its own
UNPACKED_RATIO = 30  # of gzipped tables it is lower
_NO_FILE = "neither a file nor a folder"
# Opening a pipe must not wait for a writer. Some systems lack some of the flags.
_READ_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _READ_FLAGS |= getattr(os, _name, 0)


def read_file(path: Path, max_bytes: int) -> bytes:
    """Bytes of a regular file.

    Raises OSError: the file is missing, unreadable or too large, or it is a folder, a pipe or a
    device. Reading a pipe or a device may never end.
    """
    with open_file(path, max_bytes) as file:
        return file.read(os.fstat(file.fileno()).st_size)


@contextmanager
def open_file(path: Path, max_bytes: int) -> Iterator[BufferedReader]:
    """A regular file, open for reading; raises as `read_file`."""
    descriptor = os.open(path, _READ_FLAGS)
    try:
        state = os.fstat(descriptor)
        if stat.S_ISDIR(state.st_mode):
            raise OSError("a folder")
        if not stat.S_ISREG(state.st_mode):
            raise OSError(_NO_FILE)
        limit = max_bytes * SIZE_SCALE.get()
        if state.st_size > limit:
            raise OSError(f"{state.st_size} bytes, expected at most {limit:.0f}")
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def check_unpacked(path: Path, num_bytes: float = 0) -> int:
    """The largest allowed size of the unpacked content of a file, in bytes.

    Raises OSError: `num_bytes`, the size that its headers state, is larger, as in a small file that
    was made to fill the memory.
    """
    ratio_bytes = UNPACKED_RATIO * path.stat().st_size
    limit = int(max(UNPACKED_BYTES, ratio_bytes) * SIZE_SCALE.get())
    if num_bytes > limit:
        raise OSError(f"unpacks to more than {limit / 1e6:.0f} MB")
    return limit


def check_parquet(path: Path, metadata: Any, row_bytes: int = 0, value_bytes: int = 8) -> None:
    """Compare the memory for the rows of a Parquet file, from its `metadata`, as `check_unpacked`.

    A row takes `row_bytes` in addition to `value_bytes` for each value, also for those in lists.
    """
    num_bytes = 0
    for group_index in range(metadata.num_row_groups):
        group = metadata.row_group(group_index)
        num_bytes += group.total_byte_size + row_bytes * group.num_rows
        for column_index in range(group.num_columns):
            num_bytes += value_bytes * group.column(column_index).num_values
    check_unpacked(path, num_bytes)


def read_gzip(path: Path) -> bytes:
    """The content of a gzip file (OSError: damaged; ValueError as `check_unpacked`)."""
    limit = check_unpacked(path)
    try:
        with gzip.open(path) as file:
            data = file.read(limit + 1)
    except (EOFError, zlib.error) as error:
        raise gzip.BadGzipFile(f"a damaged gzip file: {error}") from error
    check_unpacked(path, len(data))
    return data


@contextmanager
def reading(path: Path, content: str) -> Iterator[None]:
    """Errors of a parser become a TrajformerError: the file is not `content`."""
    try:
        yield
    except UNREADABLE as error:
        problem = "cannot be read" if isinstance(error, OSError) else f"not {content}"
        raise TrajformerError(f"{path}: {problem}: {one_line(error)}") from error


def require_file_or_folder(path: Path) -> None:
    """Raise OSError if an output is a pipe, a device or a socket, also behind a link.

    A missing output is accepted.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, _NO_FILE, str(path))


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which is renamed to `path` if the block ends without an error.

    The temporary path is in the same folder. A link is followed: the file behind it is replaced,
    and its permissions are kept.
    Raises OSError: the folder or the file cannot be written, or `path` is a pipe, a device or a
    socket; the error names `path`. The temporary file or folder is removed.
    """
    require_file_or_folder(path)
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        if target.is_file():
            temporary.touch()
            shutil.copymode(target, temporary)
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        if error.filename is None or str(error.filename) == str(temporary):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary)
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically; raises as `atomically`."""
    with atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, created if missing: two runs in one folder would replace each other's files.

    The lock is a file with the process and the machine of its owner. The lock of a process that has
    ended is taken over. Raises TrajformerError: another process has locked the folder. OSError: the
    folder cannot be written.
    """
    from filelock import SoftFileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    lock = SoftFileLock(path)
    try:
        try:
            lock.acquire(timeout=LOCK_S)
        except Timeout:
            has_owner = not path.is_file() or path.stat().st_size > 0
            if has_owner:
                raise
            # The owner was killed before it wrote its name, which takes no time.
            path.unlink(missing_ok=True)
            lock.acquire(timeout=0)
    except Timeout as error:
        owner = f"another run is writing to this folder ({_lock_owner(path)})"
        remedy = f"wait for it, or remove {path} if it has ended"
        raise TrajformerError(f"{folder}: {owner}; {remedy}") from error
    try:
        yield
    finally:
        lock.release()


def _lock_owner(path: Path) -> str:
    """Process and machine in a lock file."""
    try:
        process, host = read_file(path, 1000).decode().split()[:2]
    except (OSError, ValueError):
        process = "unknown"
        host = "unknown"
    return f"process {process} on {host}"
