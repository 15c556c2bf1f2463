"""A cache of parsed files, and the elements of an XML file."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from io import StringIO
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from trajformer.errors import SceneError, one_line
from trajformer.scenes.dropped import Dropped, add_dropped, collect_dropped
from trajformer.scenes.files import read_file

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
