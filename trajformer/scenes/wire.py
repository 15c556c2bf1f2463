"""The wire format of protocol buffers: fields of a message, read and written.

A message is a sequence of fields, each with a number, a wire type and a value.
"""

import struct
from typing import TypeAlias

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
_MAX_FIELD = (1 << 29) - 1
MAX_FIELDS = 200_000  # of one message; a hostile one may fill the memory
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")


class WireError(ValueError):
    """A message that does not follow the wire format."""


# Number, wire type, value and end of a field. A varint has its value; other fields have the start
# of their bytes, data[value:end]. The next field starts at `end`. A NamedTuple takes twice as long.
Field: TypeAlias = tuple[int, int, int, int]


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The varint at a position of data[:end], and the position after it."""
    # Numbers of one and two bytes are the usual ones.
    if position < end and data[position] < 0x80:
        return data[position], position + 1
    if position + 1 < end and data[position + 1] < 0x80:
        return data[position] & 0x7F | data[position + 1] << 7, position + 2
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            raise WireError("truncated")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
    raise WireError("a varint of more than 10 bytes")


def read_field(data: bytes, position: int, end: int) -> Field:
    """The field at a position of data[:end]; WireError if it is damaged."""
    # Most tags have one byte, most lengths one or two: a third of the time of the general case.
    if position + 1 < end and 8 <= (tag := data[position]) < 0x80:
        kind = tag & 7
        value = data[position + 1]
        if kind == BYTES:
            first = position + 2
            if value >= 0x80 and first < end and data[first] < 0x80:
                value = value & 0x7F | data[first] << 7
                first += 1
            if (value < 0x80 or first > position + 2) and first + value <= end:
                return tag >> 3, BYTES, first, first + value
        elif kind == VARINT:
            if value < 0x80:
                return tag >> 3, VARINT, value, position + 2
        elif kind == FIXED64 and position + 9 <= end:
            return tag >> 3, FIXED64, position + 1, position + 9
    return _read_any_field(data, position, end)


def _read_any_field(data: bytes, position: int, end: int) -> Field:
    tag, position = read_varint(data, position, end)
    number = tag >> 3
    if not 0 < number <= _MAX_FIELD:
        raise WireError(f"field number {number}")
    kind = tag & 7
    if kind == VARINT:
        value, position = read_varint(data, position, end)
        return number, kind, value, position
    if kind == BYTES:
        length, position = read_varint(data, position, end)
    elif kind == FIXED64:
        length = 8
    elif kind == FIXED32:
        length = 4
    else:
        raise WireError(f"field {number}: wire type {kind}")
    if position + length > end:
        raise WireError(f"field {number}: truncated")
    return number, kind, position, position + length


def read_fields(data: bytes, start: int, end: int) -> list[Field]:
    """All fields of the message data[start:end]; WireError if it is damaged."""
    fields: list[Field] = []
    for _ in range(MAX_FIELDS):
        if start >= end:
            return fields
        field = read_field(data, start, end)
        fields.append(field)
        start = field[3]
    raise WireError(f"more than {MAX_FIELDS} fields")


def signed(value: int) -> int:
    """The signed number of a varint of the types int32 and int64."""
    return value - (1 << 64) if value >> 63 else value


def read_double(data: bytes, field: Field) -> float:
    """A number of the type double; WireError if the field has another type."""
    _expect(field, FIXED64, "a double")
    value: float = _DOUBLE.unpack_from(data, field[2])[0]
    return value


def read_float(data: bytes, field: Field) -> float:
    """A number of the type float; WireError if the field has another type."""
    _expect(field, FIXED32, "a float")
    value: float = _FLOAT.unpack_from(data, field[2])[0]
    return value


def read_number(field: Field) -> int:
    """A whole number or an enum; WireError if the field has another type."""
    _expect(field, VARINT, "a whole number")
    return signed(field[2])


def read_numbers(data: bytes, field: Field) -> list[int]:
    """The whole numbers of a repeated field, which may be packed."""
    _, kind, value, end = field
    if kind == VARINT:
        return [signed(value)]
    position, end = read_span(field)
    if end - position > MAX_FIELDS:
        raise WireError(f"field {field[0]}: more than {MAX_FIELDS} bytes of numbers")
    numbers = []
    while position < end:
        value, position = read_varint(data, position, end)
        numbers.append(signed(value))
    return numbers


def read_span(field: Field) -> tuple[int, int]:
    """Start and end of a message, a text or packed values; WireError if it is none."""
    _expect(field, BYTES, "a message")
    return field[2], field[3]


def _expect(field: Field, kind: int, noun: str) -> None:
    if field[1] != kind:
        raise WireError(f"field {field[0]}: wire type {field[1]}, expected {noun}")


# ---- writing -------------------------------------------------------------------------------------


def write_varint(value: int) -> bytes:
    """A whole number; negative ones as int64."""
    value &= 0xFFFFFFFFFFFFFFFF
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def write_number(number: int, value: int) -> bytes:
    """A field with a whole number or an enum."""
    return write_varint(number << 3 | VARINT) + write_varint(value)


def write_bytes(number: int, content: bytes) -> bytes:
    """A field with a message, a text or packed values."""
    return write_varint(number << 3 | BYTES) + write_varint(len(content)) + content


def write_double(number: int, value: float) -> bytes:
    """A field of the type double."""
    return write_varint(number << 3 | FIXED64) + _DOUBLE.pack(value)


def write_float(number: int, value: float) -> bytes:
    """A field of the type float."""
    return write_varint(number << 3 | FIXED32) + _FLOAT.pack(value)
