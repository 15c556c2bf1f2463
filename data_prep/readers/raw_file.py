"""Safe reading of raw files, a cache of parsed files, lists of parts, one-line messages."""

import gzip
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from io import BytesIO, StringIO
from pathlib import Path
from typing import BinaryIO, TypeVar, TypeVarTuple

from data_prep.dropped import Dropped, add_dropped, collect_dropped
from data_prep.reader import Input
from trajformer.errors import SceneError
from trajformer.errors import one_line as message_line
from trajformer.scenes.files import SIZE_SCALE, open_file, read_file

__all__ = [
    "cached_by_file",
    "list_parts",
    "one_line",
    "open_table",
    "printable",
    "read_file",
    "xml_elements",
]

MAX_MESSAGE = 300  # characters
_Parsed = TypeVar("_Parsed")
_Args = TypeVarTuple("_Args")


def cached_by_file(
    maxsize: int,
) -> Callable[[Callable[[*_Args], _Parsed]], Callable[[*_Args], _Parsed]]:
    """Decorator that caches `parse(...)` until a file among its arguments changes.

    Many scenes share a file, so each process parses it once. A SceneError is cached, too, as its
    text; so the parsed value must not be a text. Each call reports the dropped details.
    """

    def decorate(parse: Callable[[*_Args], _Parsed]) -> Callable[[*_Args], _Parsed]:
        @lru_cache(maxsize)
        def cached(
            stamps: tuple[tuple[int, int], ...], *args: *_Args
        ) -> tuple[_Parsed | str, Dropped]:
            with collect_dropped() as dropped:
                try:
                    return parse(*args), dropped
                except SceneError as error:
                    return str(error), dropped

        @wraps(parse)
        def load(*args: *_Args) -> _Parsed:
            stamps = tuple(_stamp(value) for value in args if isinstance(value, Path))
            result, dropped = cached(stamps, *args)
            add_dropped(dropped)
            if isinstance(result, str):
                raise SceneError(result)
            return result

        return load

    return decorate


def _stamp(path: Path) -> tuple[int, int]:
    """Time of the last change and size of a file."""
    try:
        state = path.stat()
    except OSError as error:
        raise SceneError(f"{path}: cannot be read: {one_line(error)}") from error
    return state.st_mtime_ns, state.st_size


def list_parts(paths: Iterable[Path], parts: Callable[[Path], Iterable[object]]) -> list[Input]:
    """An input for each part of each file, in order.

    A file that cannot be listed (SceneError) is one input without a part.
    """
    inputs: list[Input] = []
    for path in paths:
        try:
            inputs += [Input(path, str(part)) for part in parts(path)]
        except SceneError:
            inputs.append(Input(path))
    return inputs


# The first bytes of files that are not text, and a remedy.
_FORMATS = {
    b"PK\x03\x04": "a zip archive: unpack it",
    b"BZh": "compressed with bzip2: unpack it",
    b"\xfd7zXZ": "compressed with xz: unpack it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd: unpack it",
    b"\xff\xfe": "text in UTF-16: save it as UTF-8",
    b"\xfe\xff": "text in UTF-16: save it as UTF-8",
}
_GZIP = b"\x1f\x8b"
_MAX_UNPACKED = 4 << 30
_MAX_RATIO = 100  # of unpacked to compressed bytes; of tables it is below 30
_MIN_UNPACKED = 1 << 24  # a small file may have any ratio
_CHUNK = 1 << 20


@contextmanager
def open_table(path: Path, max_bytes: int) -> Iterator[BinaryIO]:
    """The bytes of a regular file for a library that parses tables; gzip is unpacked.

    Raises OSError: as `read_file`, a damaged archive, one that unpacks to too much, or a file of
    another format.
    """
    with open_file(path, max_bytes) as file:
        head = file.read(8)
        file.seek(0)
        for mark, problem in _FORMATS.items():
            if head.startswith(mark):
                raise OSError(problem)
        if head.startswith(_GZIP):
            yield BytesIO(_unpack(file, path.stat().st_size))
        else:
            yield file


def _unpack(file: BinaryIO, size: int) -> bytes:
    """The content of a gzip file of `size` bytes."""
    limit = min(max(_MAX_RATIO * size, _MIN_UNPACKED), _MAX_UNPACKED) * SIZE_SCALE.get()
    chunks = []
    unpacked = 0
    try:
        with gzip.GzipFile(fileobj=file) as archive:
            while chunk := archive.read(_CHUNK):
                unpacked += len(chunk)
                if unpacked > limit:
                    raise OSError(f"unpacks to over {limit:.0f} bytes: unpack it yourself")
                chunks.append(chunk)
    except (EOFError, zlib.error) as error:
        raise OSError(f"a damaged gzip file: {error}") from error
    return b"".join(chunks)


def xml_elements(
    path: Path, max_bytes: int, tags: tuple[str, ...]
) -> Iterator[ElementTree.Element]:
    """Complete elements of an XML file with these tags, in order.

    Raises OSError, ValueError or ParseError.
    """
    data = read_file(path, max_bytes)
    # Entities of a document type can expand to any size, and deeply nested ones crash the parser.
    if b"<!DOCTYPE" in data or b"\0" in data:
        raise ValueError("a document type, or an encoding other than UTF-8, which could hide one")
    for _, element in ElementTree.iterparse(StringIO(data.decode("utf-8-sig"))):
        if element.tag in tags:
            yield element


def one_line(error: BaseException) -> str:
    """The message of an error as `printable` text."""
    return printable(getattr(error, "strerror", None) or str(error))


def printable(text: str) -> str:
    """Text that may quote the content of a file, as one printable line of limited length."""
    return message_line(text, MAX_MESSAGE)
