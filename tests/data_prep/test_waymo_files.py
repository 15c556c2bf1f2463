"""TFRecord files and the wire format: checksums, listing, damaged records, many files."""

import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from support import waymo

from data_prep.engine.options import PrepareOptions
from data_prep.engine.prepare import prepare
from data_prep.readers.waymo import crc32c as crc
from data_prep.readers.waymo.messages import all_numbers, read_messages
from data_prep.readers.waymo.reader import Waymo
from data_prep.readers.waymo.tfrecord import (
    frame_record,
    list_records,
    masked_checksum,
    read_record,
)
from trajformer.errors import SceneError
from trajformer.scenes import wire
from trajformer.scenes.store import SceneStore


def plain_crc(data: bytes) -> int:
    """Bit by bit, from the definition."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_checksums_are_those_of_rfc_3720() -> None:
    assert crc.crc32c(b"123456789") == 0xE3069283
    assert crc.crc32c(bytes(32)) == 0x8A9136AA
    assert crc.crc32c(b"\xff" * 32) == 0x62A8AB43


# Lengths around a word, the shortest vectorised message, the folded part and a chunk.
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 66, 67, 22_740, 22_741, 131_079])
def test_vectorised_checksums_equal_the_definition(size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert crc.crc32c(data) == plain_crc(data)


def test_a_file_lists_and_returns_its_records(tmp_path: Path) -> None:
    path = tmp_path / "file.tfrecord"
    contents = [b"", b"abc", bytes(1_000)]
    waymo.write(path, *contents)
    offsets = list(list_records(path))
    assert offsets == [0, 16, 35]
    assert [read_record(path, offset) for offset in offsets] == contents


def test_damage_leaves_the_records_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "raw" / "training"
    path = folder / "a.tfrecord"
    first, second = frame_record(waymo.scenario("a")), frame_record(waymo.scenario("b"))

    def outcome(content: bytes) -> tuple[int, str]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        items = Waymo().inputs(tmp_path / "raw", "training")
        problems = [item.problem for item in items if item.problem]
        return len(items) - len(problems), problems[0] if problems else ""

    assert outcome(first + second) == (2, "")
    assert outcome(first + second[:-1])[0] == 1
    assert "truncated" in outcome(first + second[:-1])[1]
    assert "checksum of a length" in outcome(first + b"\1" + second[1:])[1]
    huge = struct.pack("<Q", 1 << 62)
    count, problem = outcome(first + huge + masked_checksum(huge).to_bytes(4, "little"))
    assert count == 1
    assert f"{path}: record at byte {len(first)}: {1 << 62} bytes, expected at most" in problem

    # A changed byte of the content is found when the record is read.
    changed = bytearray(second)
    changed[500] ^= 1
    assert outcome(first + changed) == (2, "")
    with pytest.raises(SceneError, match=rf"a\.tfrecord: record at byte {len(first)}: damaged"):
        read_record(path, len(first))


def test_fields_of_all_wire_types_are_read_and_written() -> None:
    content = wire.write_number(1, 300) + wire.write_double(2, -1.5) + wire.write_float(3, 0.25)
    content += wire.write_bytes(1000, bytes(200)) + wire.write_number(4, -7)
    fields = wire.read_fields(content, 0, len(content))
    assert [field[0] for field in fields] == [1, 2, 3, 1000, 4]
    assert wire.read_number(fields[0]) == 300
    assert wire.read_double(content, fields[1]) == -1.5
    assert wire.read_float(content, fields[2]) == 0.25
    start, end = wire.read_span(fields[3])
    assert content[start:end] == bytes(200)
    assert wire.read_number(fields[4]) == -7


@pytest.mark.parametrize(
    "content",
    [b"\x08", b"\x0a\x05abc", b"\x09" + bytes(7), b"\xff" * 11, b"\x0b", b"\0\1", b"\x0a\xff\xff"],
)
def test_a_broken_message_is_refused(content: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.read_fields(content, 0, len(content))


NUM_FILES = int(
    os.environ.get("TRAJFORMER_WAYMO_FILES", "20")
)  # the published training split has 1,000 files


def test_a_split_of_many_files_is_prepared_from_their_lengths(tmp_path: Path) -> None:
    """Ten records a file, several workers; a second run makes nothing again.

    1,000 files of this size take 4 s of processor time with `TRAJFORMER_WAYMO_FILES=1000`.
    """
    raw = tmp_path / "raw"
    for number in range(NUM_FILES):
        names = [f"{number:04d}-{record}" for record in range(10)]
        contents = [waymo.tiny(name) for name in names]
        waymo.write(
            raw / "training" / f"training.tfrecord-{number:05d}-of-{NUM_FILES:05d}", *contents
        )
    assert len(Waymo().inputs(raw, "training")) == 10 * NUM_FILES
    options = PrepareOptions(workers=2, progress=False)
    [summary] = prepare(Waymo(), raw, tmp_path / "store", options).splits
    assert (summary.scenes, summary.skipped) == (10 * NUM_FILES, ())
    [again] = prepare(Waymo(), raw, tmp_path / "store", options).splits
    assert again.kept_shards == again.shards
    store = SceneStore(tmp_path / "store", "training")
    assert {store[row].scene_id for row in (0, len(store) - 1)} == {
        "0000-0",
        f"{NUM_FILES - 1:04d}-9",
    }
    np.testing.assert_allclose(store[5].position[0, 10], 0.0, atol=1e-3)


# ---- the fields of many messages -----------------------------------------------------------------


def random_message(rng: random.Random) -> bytes:
    """Fields of all wire types with numbers and values of all lengths."""
    parts = []
    for _ in range(rng.randrange(12)):
        number = rng.choice([1, 2, 9, 15, 16, 500])
        size = rng.choice([0, 1, 20, 127, 128, 300])
        value = rng.choice([0, 1, 127, 128, 2**14, 2**27, 2**28, 2**40, -1, -(2**63)])
        kinds = [
            wire.write_number(number, value),
            wire.write_bytes(number, bytes(size)),
            wire.write_double(number, 1.5),
            wire.write_float(number, 2.5),
        ]
        parts.append(rng.choice(kinds))
    return b"".join(parts)


def test_the_fields_of_many_messages_are_those_of_each() -> None:
    rng = random.Random(0)
    messages = [random_message(rng) for _ in range(200)]
    data = b"".join(messages)
    end = np.cumsum([len(message) for message in messages])
    start = np.append(0, end[:-1])
    fields = read_messages(data, start, end)
    rows = list(zip(*(column.tolist() for column in fields), strict=True))
    expected = []
    for index, (first, last) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        for number, kind, value, after in wire.read_fields(data, first, last):
            number_or_start = wire.signed(value) if kind == wire.VARINT else value
            expected.append((index, number, kind, number_or_start, after))
    assert rows == expected

    # A length that exceeds its message is damage, also if more data follow.
    is_bytes = (fields.kind == wire.BYTES) & (fields.number < 16)
    last = is_bytes.nonzero()[0][-1]
    end[fields.message[last]] = fields.end[last] - 1
    with pytest.raises(wire.WireError, match="truncated"):
        read_messages(data, start, end)


def test_packed_and_single_numbers_of_many_fields() -> None:
    lists = [[1, 300], [], [-5, 2**40, 0], [7]]
    packed = [wire.write_bytes(9, b"".join(map(wire.write_varint, each))) for each in lists]
    for messages in (packed, [*packed, wire.write_number(9, -3)]):
        data = b"".join(messages)
        end = np.cumsum([len(message) for message in messages])
        fields = read_messages(data, np.append(0, end[:-1]), end)
        numbers, field = all_numbers(data, fields)
        assert numbers.tolist() == [1, 300, -5, 2**40, 0, 7, -3][: len(messages) + 2]
        assert field.tolist() == [0, 0, 2, 2, 2, 3, 4][: len(messages) + 2]
    cut = wire.write_bytes(9, b"\x80")
    with pytest.raises(wire.WireError, match="truncated"):
        all_numbers(cut, read_messages(cut, np.array([0]), np.array([len(cut)])))
