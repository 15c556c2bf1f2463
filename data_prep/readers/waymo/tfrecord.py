"""TFRecord files: for each record its length (uint64), a checksum, the content, a checksum.

Checksums are masked CRC-32C. Files of hundreds of megabytes are never read as a whole: listing
reads the lengths, and each record is read for itself.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from data_prep.readers.raw_file import open_file
from data_prep.readers.waymo.crc32c import crc32c
from trajformer.errors import SceneError, one_line
from trajformer.scenes.files import SIZE_SCALE

MAX_FILE_BYTES = 1 << 40
MAX_RECORD_BYTES = 64 << 20  # a record of 20 s has about 3 MB
_HEADER = struct.Struct("<QI")  # length, its checksum
_FOOTER_BYTES = 4
_REMEDY = "download it again"


def list_records(path: Path) -> Iterator[int]:
    """The offset of each record, in bytes.

    Raises SceneError: the rest of the file cannot be used.
    """
    try:
        with open_file(path, MAX_FILE_BYTES) as file:
            end = os.fstat(file.fileno()).st_size
            if not end:
                raise SceneError(f"{path}: an empty file: {_REMEDY}")
            offset = 0
            while offset < end:
                length = _length(os.pread(file.fileno(), _HEADER.size, offset), offset, path)
                next_offset = offset + _HEADER.size + length + _FOOTER_BYTES
                if next_offset > end:
                    raise SceneError(_truncated(path, offset))
                yield offset
                offset = next_offset
    except OSError as error:
        raise SceneError(f"{path}: cannot be read: {one_line(error)}") from error


def read_record(path: Path, offset: int) -> bytes:
    """The content of the record at an offset in bytes.

    Raises SceneError: the file cannot be read, or a checksum differs.
    """
    try:
        with open_file(path, MAX_FILE_BYTES) as file:
            file.seek(offset)
            length = _length(file.read(_HEADER.size), offset, path)
            content = file.read(length)
            footer = file.read(_FOOTER_BYTES)
    except OSError as error:
        raise SceneError(f"{path}: cannot be read: {one_line(error)}") from error
    if len(footer) < _FOOTER_BYTES:
        raise SceneError(_truncated(path, offset))
    if int.from_bytes(footer, "little") != masked_checksum(content):
        raise SceneError(f"{path}: record at byte {offset}: damaged (checksum): {_REMEDY}")
    return content


def frame_record(content: bytes) -> bytes:
    """A record with its length and checksums, as in a file."""
    length = struct.pack("<Q", len(content))
    header = length + masked_checksum(length).to_bytes(4, "little")
    return header + content + masked_checksum(content).to_bytes(4, "little")


def masked_checksum(data: bytes) -> int:
    """CRC-32C, rotated by 15 bits and shifted by a constant."""
    checksum = crc32c(data)
    rotated = (checksum >> 15) | (checksum << 17)
    return (rotated + 0xA282EAD8) & 0xFFFFFFFF


def _length(header: bytes, offset: int, path: Path) -> int:
    """Length of the record with this header; SceneError if it is damaged or too large."""
    if len(header) < _HEADER.size:
        raise SceneError(_truncated(path, offset))
    length, checksum = _HEADER.unpack(header)
    if checksum != masked_checksum(header[:8]):
        problem = f"damaged or no TFRecord file (checksum of a length): {_REMEDY}, unpacked"
        raise SceneError(f"{path}: record at byte {offset}: {problem}")
    limit = MAX_RECORD_BYTES * SIZE_SCALE.get()
    if length > limit:
        problem = f"{length} bytes, expected at most {limit:.0f}"
        raise SceneError(f"{path}: record at byte {offset}: {problem}")
    return int(length)


def _truncated(path: Path, offset: int) -> str:
    return f"{path}: record at byte {offset}: the file is truncated: {_REMEDY}"
