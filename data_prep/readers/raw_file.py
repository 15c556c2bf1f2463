"""Safe reading of raw files, a cache of parsed files, lists of parts, one-line messages."""

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, wraps
from io import StringIO
from pathlib import Path
from typing import TypeVar, TypeVarTuple

from data_prep.reader import Input
from trajformer.errors import SceneError
from trajformer.scenes.files import read_file

__all__ = ["cached_by_file", "list_parts", "one_line", "printable", "read_file", "xml_elements"]

MAX_MESSAGE = 300  # characters
_Parsed = TypeVar("_Parsed")
_Args = TypeVarTuple("_Args")


def cached_by_file(
    maxsize: int,
) -> Callable[[Callable[[*_Args], _Parsed]], Callable[[*_Args], _Parsed]]:
    """Decorator that caches `parse(...)` until a file among its arguments changes.

    Many scenes share a file, so each process parses it once. A SceneError is cached, too, as its
    text; so the parsed value must not be a text.
    """

    def decorate(parse: Callable[[*_Args], _Parsed]) -> Callable[[*_Args], _Parsed]:
        @lru_cache(maxsize)
        def cached(stamps: tuple[tuple[int, int], ...], *args: *_Args) -> _Parsed | str:
            try:
                return parse(*args)
            except SceneError as error:
                return str(error)

        @wraps(parse)
        def load(*args: *_Args) -> _Parsed:
            stamps = tuple(_stamp(value) for value in args if isinstance(value, Path))
            result = cached(stamps, *args)
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
    text = " ".join(text.split())
    if not text.isprintable():
        text = repr(text)[1:-1]
    if len(text) > MAX_MESSAGE:
        text = f"{text[:MAX_MESSAGE]} ..."
    return text
