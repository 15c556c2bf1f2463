"""The rows of CSV text: a damaged line or byte affects only its own row."""

import codecs
from io import BytesIO
from typing import BinaryIO

import pyarrow as pa
import pyarrow.csv as pa_csv

_BLOCK = 1 << 20  # bytes
READ_OPTIONS = pa_csv.ReadOptions(use_threads=False)


def read_rows(
    text: bytes | BinaryIO,
    types: dict[str, pa.DataType],
    reading: pa_csv.ReadOptions = READ_OPTIONS,
    delimiter: str = ",",
) -> tuple[pa.Table, int]:
    """The columns of `types` of text from `utf8` or `utf8_file`.

    Raises ArrowInvalid: a cell has another type than its column, or the text is no table.

    Returns:
        the table; the number of lines with too few or too many cells, which are left out.
    """
    num_lost = 0

    def skip(row: pa_csv.InvalidRow) -> str:
        nonlocal num_lost
        num_lost += 1
        return "skip"

    parsing = pa_csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip)
    options = pa_csv.ConvertOptions(column_types=types, include_columns=list(types))
    if isinstance(text, bytes):
        text = pa.BufferReader(text)
    else:
        text.seek(0)
    table = pa_csv.read_csv(text, reading, parsing, options)
    return table, num_lost


def utf8(data: bytes) -> bytes:
    r"""Text with escapes such as \xff in place of bytes that are not UTF-8.

    pyarrow decodes a line with a wrong number of cells before `skip` is asked about it. If it
    cannot, it prints a traceback and refuses the file. Escapes keep different words different.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="backslashreplace").encode()
    return data


def utf8_file(file: BinaryIO) -> BinaryIO:
    """The file itself, or one with the text as from `utf8` in memory."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while block := file.read(_BLOCK):
            decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        file.seek(0)
        file = BytesIO(utf8(file.read()))
    file.seek(0)
    return file
