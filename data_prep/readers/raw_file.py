"""Safe reading of raw files, lists of parts."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from data_prep.reader import Input
from trajformer.errors import SceneError, one_line
from trajformer.scenes.files import open_file, read_file, read_gzip

__all__ = ["list_parts", "one_line", "open_file", "open_table", "read_file"]


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
