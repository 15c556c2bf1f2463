"""Safe reading of raw files, a cache of parsed files, lists of parts."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from io import BytesIO, StringIO
from pathlib import Path
from typing import BinaryIO, TypeVar, TypeVarTuple

from data_prep.dropped import Dropped, add_dropped, collect_dropped
from data_prep.reader import Input
from trajformer.errors import SceneError, one_line
from trajformer.scenes.files import open_file, read_file, read_gzip

__all__ = [
    "cached_by_file",
    "list_parts",
    "open_table",
    "read_file",
    "xml_elements",
]

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


@contextmanager
def open_table(path: Path, max_bytes: int) -> Iterator[BinaryIO]:
    """The bytes of a regular file for a library that parses tables; gzip is unpacked.

    Raises OSError or ValueError: as `read_file` or `read_gzip`, or the file has a different format.
    """
    with open_file(path, max_bytes) as file:
        head = file.read(8)
        file.seek(0)
        for mark, problem in _FORMATS.items():
            if head.startswith(mark):
                raise OSError(problem)
        if head.startswith(b"\x1f\x8b"):  # gzip
            yield BytesIO(read_gzip(path))
        else:
            yield file


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
