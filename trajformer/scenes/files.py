"""Safe reading and atomic writing of files, and locks on folders."""

import errno
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory

from trajformer.errors import TrajformerError

LOCK = ".lock"  # in a locked folder: process, machine and start time of the owner
SIZE_SCALE = ContextVar(
    "SIZE_SCALE", default=1.0
)  # multiplies the limits of sizes of files and of their content
LOCK_S = 3.0  # to recognize the lock of an ended process
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


def read_file(path: Path, max_bytes: int) -> bytes:
    """Bytes of a regular file (OSError: missing, unreadable or too large; a pipe or device, because reading may never end)."""
    descriptor = os.open(path, _FLAGS)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(
                "a folder" if stat.S_ISDIR(state.st_mode) else "neither a file nor a folder"
            )
        if state.st_size > (most := max_bytes * SIZE_SCALE.get()):
            raise OSError(f"{state.st_size} bytes, expected at most {most:.0f}")
        data = os.read(descriptor, state.st_size)
        while len(data) < state.st_size and (
            more := os.read(descriptor, state.st_size - len(data))
        ):
            data += more  # a read may return fewer bytes than requested
        return data
    finally:
        os.close(descriptor)


def is_special(path: Path) -> bool:
    """True for a device, a pipe, a socket or an open descriptor (/dev/stdout), also behind a link; it is never replaced."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or _descriptor(path) is not None


def _descriptor(path: Path) -> int | None:
    """N for a path that leads to /proc/self/fd/N, as /dev/stdout and /dev/fd/N do."""
    own = Path(f"/proc/{os.getpid()}/fd")
    for _ in range(4):  # a link of a user, /dev/stdout, /proc/self/fd/1
        path = Path(os.path.realpath(path.parent), path.name)
        if path.parent == own:
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / os.readlink(path)
    return None


@contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`; it is renamed to `path` if the block ends without an error.

    A link is followed: the file behind it is replaced. A device or a pipe stays and receives the content. Raises OSError: the
    folder or the file cannot be written; the error names `path`. The temporary file or folder is removed.
    """
    with ExitStack() as stack:
        special, target = is_special(path), Path(os.path.realpath(path))
        folder = Path(stack.enter_context(TemporaryDirectory())) if special else target.parent
        temporary = folder / f".{target.name}.{os.getpid()}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not special and target.is_file() and not os.access(target, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            yield temporary
            if special:
                _send(temporary, path)
            else:
                os.replace(temporary, target)
        except OSError as error:
            if error.filename is None or str(error.filename) == str(temporary):
                raise OSError(error.errno, error.strerror or str(error), str(path)) from error
            raise
        finally:
            if temporary.is_dir():
                shutil.rmtree(temporary)
            temporary.unlink(missing_ok=True)


def _send(source: Path, path: Path) -> None:
    """Write the bytes of a file to a device, a pipe or an open descriptor."""
    number = _descriptor(path)
    if number is not None:
        sys.stdout.flush()
        descriptor = os.dup(number)  # opened again, a file would be written from its start
    elif stat.S_ISBLK(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "is a disk")
    else:
        try:
            descriptor = os.open(
                path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
            )  # a pipe without a reader would block
        except OSError as error:
            reason = "no process reads from it" if error.errno == errno.ENXIO else error.strerror
            raise OSError(error.errno, reason) from error
        os.set_blocking(descriptor, True)
    with source.open("rb") as data, open(descriptor, "wb") as sink:
        shutil.copyfileobj(data, sink)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8, atomically; raises as `atomically`."""
    with atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, created if missing: two runs in one folder would replace each other's files.

    The lock is a file with the process and the machine of its owner. The lock of a process that has ended is taken over. Raises
    TrajformerError: another process has locked the folder. OSError: the folder cannot be written.
    """
    from filelock import SoftFileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock, path = SoftFileLock(folder / LOCK), folder / LOCK
    try:
        try:
            lock.acquire(timeout=LOCK_S)
        except Timeout:
            if not path.is_file() or path.stat().st_size:
                raise
            path.unlink(
                missing_ok=True
            )  # its owner was killed before it wrote its name, which takes no time
            lock.acquire(timeout=0)
    except Timeout as error:
        try:
            pid, host = read_file(path, 1000).decode().split()[:2]
        except (OSError, ValueError):
            pid = host = "unknown"
        owner = f"another run is writing to this folder (process {pid} on {host})"
        raise TrajformerError(
            f"{folder}: {owner}; wait for it, or remove {path} if it has ended"
        ) from error
    try:
        yield
    finally:
        lock.release()
