"""Broken tables of all data sets (csv, parquet, feather), with the expected reasons."""

import decimal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.damages import (
    NAME,
    ROWS_TWICE,
    Cases,
    Files,
    check_dropped,
    check_refused,
    claim_rows,
    constant,
    edited,
    names_of_cases,
    replaced,
    then,
    twice,
    with_row_many_times,
    without,
)
from support.hostile import column, rows, table, text
from support.sensor_logs import T0

from trajformer.testing.readers import Damage, change_bytes


def filtered(keeps: Callable[[pa.Table], pa.ChunkedArray]) -> Damage:
    """Keep the rows of a condition."""
    return table(lambda whole: whole.filter(keeps(whole)))


def first_rows(fraction: float) -> Damage:
    return table(lambda whole: whole.slice(0, int(len(whole) * fraction)))


def compressed(codec: str) -> Damage:
    """The same table with another compression."""
    return table(lambda whole: whole, compression=codec)


NO_ROWS = first_rows(0)
one_row_twice = table(lambda whole: pa.concat_tables([whole, whole.slice(7, 1)]))

# ---- Argoverse 1 ---------------------------------------------------------------------------------


def unobserved_agent(whole: pa.Table) -> pa.Table:
    is_other = pc.not_equal(whole["OBJECT_TYPE"], "AGENT")
    is_late = pc.greater(whole["TIMESTAMP"], "315971501.1")
    return whole.filter(pc.or_(is_other, is_late))


SEQUENCES: Cases = {
    "no column": (without("X"), "X: no such column"),
    "no header": (text("^[^\n]*\n", ""), "TIMESTAMP: no such column"),
    "an open quote": (text("\n", '\n"', 1), "columns"),
    "no rows": (NO_ROWS, "Empty CSV|0 rows, expected 1 to 50000"),
    "far": (edited("X", "90000.0"), "farther than 50 km|faster than"),
    "one more timestamp": (
        edited("TIMESTAMP", "1e10"),
        "TIMESTAMP: (51|21) different timestamps",
    ),
    "no AGENT": (replaced("OBJECT_TYPE", "AGENT", "OTHERS"), "OBJECT_TYPE: 0 tracks are AGENT"),
    "two AGENTs": (replaced("OBJECT_TYPE", "AV", "AGENT"), "OBJECT_TYPE: 2 tracks are AGENT"),
    "unobserved AGENT": (
        table(unobserved_agent),
        "tracks are AGENT, expected one with an observed step",
    ),
    "each row twice": (ROWS_TWICE, "TRACK_ID: two rows for step 0 of track '00-agent'"),
    "many rows": (with_row_many_times(60_000, "TRACK_ID"), r"60\d+ rows, expected 1 to 50000"),
    "many tracks": (with_row_many_times(3_000, "TRACK_ID"), r"30\d+ tracks, expected 1 to 2000"),
    "a long id": (text("00-agent", "a" * 1_000), NAME),
    "an escape sequence as id": (text("00-agent", "\x1b[2J"), NAME),
    "an id with a zero byte": (text("00-agent", "a\0b"), NAME),
    "two cities": (
        edited("CITY_NAME", "MIA"),
        "CITY_NAME: 2 different values in one scene: 'MIA', 'PIT'",
    ),
    "city outside": (
        constant("CITY_NAME", "../../etc/p"),
        r"CITY_NAME: no map_files/pruned_argoverse_\.\./\.\./etc/p_",
    ),
    "city of two lines": (
        constant("CITY_NAME", "a\n" + "b" * 900),
        r"CITY_NAME: no map_files/pruned_argoverse_a\\nb{38}_",
    ),
}

# ---- Argoverse 2 ---------------------------------------------------------------------------------

TEXT = ("track_id", "object_type", "city")
NUMBERS = (
    "timestep",
    "object_category",
    "position_x",
    "position_y",
    "heading",
    "velocity_x",
    "velocity_y",
)


def one_row_many_times(whole: pa.Table) -> pa.Table:
    """Two million rows that need little space in the file."""
    index = pa.array(np.zeros(2_000_000, np.int8))
    columns = {}
    for name in (*TEXT, *NUMBERS):
        first = whole[name][:1].combine_chunks()
        columns[name] = pa.DictionaryArray.from_arrays(index, first)
    return pa.table(columns)


def long_list(values: pa.ChunkedArray) -> pa.Array:
    """The values as lists; the first one is very long."""
    offsets = np.concatenate([[0], 8_000_000 + np.arange(len(values))]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(np.zeros(8_000_000 + len(values) - 1)))


def not_utf8(values: pa.ChunkedArray) -> pa.Array:
    texts = [b"\xff\xfe" + str(value).encode() for value in values]
    return pa.array(texts, pa.binary()).cast(pa.string(), safe=False)


def as_timestamp(values: pa.ChunkedArray) -> pa.ChunkedArray:
    whole = pc.cast(values, pa.int64(), safe=False)
    return pc.cast(whole, pa.timestamp("ms"))


def as_half(values: pa.ChunkedArray) -> pa.Array:
    return pa.array(np.zeros(len(values), np.float16))


def as_null(values: pa.ChunkedArray) -> pa.Array:
    return pa.nulls(len(values))


def with_long_text(values: pa.ChunkedArray) -> pa.Array:
    return pa.array(["x" * 70_000_000] + ["y"] * (len(values) - 1))


def x_as(change: Callable[[pa.ChunkedArray], pa.Array | pa.ChunkedArray]) -> Damage:
    return table(column("position_x", change))


SCENARIOS: Cases = {
    # columns
    "no heading": (without("heading"), "heading: no such column"),
    "two city": (twice("city"), "city: two columns"),
    "two heading": (twice("heading"), "heading: two columns"),
    # types
    "text": (constant("position_x", "one"), "position_x: type string, expected a number"),
    "a number": (constant("city", 3.5), "city: type double, expected text"),
    "x as decimal": (
        constant("position_x", decimal.Decimal("1.5")),
        r"position_x: type decimal128\(2, 1\)",
    ),
    "x as timestamp": (x_as(as_timestamp), "position_x: type timestamp"),
    "x as halffloat": (x_as(as_half), "position_x: type halffloat"),
    "x as null": (x_as(as_null), "position_x: type null"),
    "x as a long list": (x_as(long_list), "position_x: not one value a row"),
    "ids not UTF-8": (
        table(column("track_id", not_utf8)),
        "not a readable parquet file: .*(utf-8|UTF8)",
    ),
    # numbers
    "far apart": (
        edited("position_x", 70_000.0),
        "position: farther than 50 km from the origin",
    ),
    "degrees": (constant("heading", 170.0), "heading: 170, expected at most 6.28"),
    # categories and names
    "category 4": (constant("object_category", 4), "object_category: .* 0 to 3"),
    "category 1.5": (constant("object_category", 1.5), "object_category: .* 0 to 3"),
    "two focal": (constant("object_category", 3), "agent_role: more than one focal agent"),
    "two cities": (
        edited("city", "oslo"),
        "city: 2 different values in one scene: 'austin', 'oslo'",
    ),
    "an empty id": (replaced("track_id", "AV", ""), "track_id: empty"),
    "an id of two lines": (replaced("track_id", "AV", "A\nV"), NAME),
    "a long id": (replaced("track_id", "AV", "A" * 9_999), NAME),
    "a city of two lines": (constant("city", "a\nb"), "city: not usable as a name: "),
    "a long city": (constant("city", "c" * 9_999), "city: not usable as a name: "),
    # rows
    "one row": (table(lambda whole: whole.slice(0, 1)), "timestep: one step only"),
    "no history": (
        filtered(lambda whole: pc.greater_equal(whole["timestep"], 50)),
        "timestep: no track has an observed step",
    ),
    "each row twice": (ROWS_TWICE, r"timestep: two rows for step \d+ of track '9'"),
    "many tracks": (with_row_many_times(20_000, "track_id"), r"200\d\d tracks, expected 1 to 5000"),
    # the parquet file
    "wrong number of rows": (claim_rows(100), r"100 rows, its parts have \d+"),
    "two million rows": (table(one_row_many_times), "2000000 rows, expected 1 to 200000"),
    "endless text": (
        table(column("track_id", with_long_text), compression="zstd"),
        r"7\d+ bytes uncompressed, expected 1 to",
    ),
}

# ---- sensor logs ---------------------------------------------------------------------------------

WITHOUT_COMPRESSION = table(lambda whole: whole)
PARKED_NOT_UTF8 = change_bytes(lambda data: data.replace(b"parked", b"park\xff\xff"))
LOGS: Cases = {
    "fractions of nanoseconds": (
        constant("timestamp_ns", 1.5),
        "timestamp_ns: type double, expected whole numbers",
    ),
    "each row twice": (ROWS_TWICE, r"track_uuid: two rows for step 0 of track 'car' \(721 of 1442"),
    "no rotation": (constant("qw", 9.0), "qw, qx, qy, qz: a quaternion of length"),
    "not UTF-8": (
        then(WITHOUT_COMPRESSION, PARKED_NOT_UTF8),
        "not a readable feather file: .*UTF8",
    ),
    "three million rows": (
        table(rows(lambda count: np.zeros(3_000_000)), compression="zstd"),
        "3000000 rows, expected 1 to",
    ),
}
POSES: Cases = {
    "a gap": (first_rows(0.5), "timestamp_ns: no pose at"),
    "NaN": (constant("tx_m", float("nan")), "tx_m: empty, no number, NaN or infinity"),
}

# ---- INTERACTION ---------------------------------------------------------------------------------


def downsampled(renumber: bool) -> Damage:
    """Every second frame, with the same numbers or with consecutive ones."""

    def change(whole: pa.Table) -> pa.Table:
        frame = pc.cast(whole["frame_id"], pa.int64()).to_numpy()
        whole = whole.filter(pa.array(frame % 2 == 1))
        if not renumber:
            return whole
        half = (frame[frame % 2 == 1] + 1) // 2
        names = pa.array(half.astype(str))
        return column("frame_id", lambda values: names)(whole)

    return table(change)


TRACKS: Cases = {
    "each row twice": (ROWS_TWICE, r"track_id: '1' is twice in frame 1 \(\d+ of \d+ rows"),
}
RATES: Cases = {
    "5 Hz": (
        downsampled(renumber=True),
        r"timestamp_ms: \d+\.?\d* ms from frame to frame, expected 100 \(10 Hz\)",
    ),
    "every second frame": (
        downsampled(renumber=False),
        r"frame_id: most steps are 200 ms long, expected 100 \(10 Hz\)",
    ),
}

# ---- Stanford Drone ------------------------------------------------------------------------------

DRONES: Cases = {
    "scenes as text": (constant("scene", "one"), "scene: type string, expected a number"),
    "each row twice": (ROWS_TWICE, "agent: 0 is twice in step 0 of scene 7"),
    "19 steps": (
        filtered(lambda whole: pc.less(whole["step"], 19)),
        "no agent is present in all 20 frames",
    ),
    "wrong number of rows": (claim_rows(60), "60 rows, its parts have 40"),
}

FILES: Files = {
    "sequence": ("argoverse1", "1.csv", SEQUENCES),
    "scenario": ("argoverse2", "*.parquet", SCENARIOS),
    "log": ("argoverse2_sensor", "annotations.feather", LOGS),
    "poses": ("argoverse2_sensor", "city_SE3*", POSES),
    "tracks": ("interaction", "[vD]*.csv", TRACKS),
    "frame-rates": ("interaction", "*.csv", RATES),
    "drones": ("sdd", "*.parquet", DRONES),
}

NAN = float("nan")
DETAILS: Files = {
    "sequence": (
        "argoverse1",
        "1.csv",
        {
            "unknown type": (
                replaced("OBJECT_TYPE", "OTHERS", "T" * 9_000),
                "OBJECT_TYPE: unknown value 'T{40}'$",
            ),
            "NaN": (edited("Y", "nan"), "row: Y: expected a number"),
            "text": (edited("TIMESTAMP", "north"), "row: TIMESTAMP: expected a number"),
            "a short line": (text(r",OTHERS,[^\n]*", "", 1), "row: another number of cells"),
        },
    ),
    "scenario": (
        "argoverse2",
        "*.parquet",
        {
            "unknown type": (
                replaced("object_type", "vehicle", "tram" * 999),
                "object_type: unknown value '(tram){10}'$",
            ),
            "empty track_id": (edited("track_id", None), "row: track_id: empty"),
            "empty heading": (edited("heading", None), "row: heading: expected a number"),
            "velocity nan": (edited("velocity_x", NAN), "row: velocity_x: expected a number"),
            "velocity 3e8": (edited("velocity_x", 3e8), "row: velocity_x: expected a number"),
            "far from the earth": (edited("position_y", 1e9), "row: position_y: .* 1e.08"),
            "step -1": (edited("timestep", -1), "row: timestep: .* whole number from 0 to 109"),
            "step 110": (edited("timestep", 110), "row: timestep: .* whole number"),
            "step 3.5": (edited("timestep", 3.5), "row: timestep: .* whole number"),
            "a row twice": (one_row_twice, "row: timestep: two rows for a step of a track"),
        },
    ),
    "log": (
        "argoverse2_sensor",
        "annotations.feather",
        {
            "category": (replaced("category", "BUS", "TRAM"), "category: unknown value 'TRAM'"),
            "an early timestamp": (edited("timestamp_ns", 40), "row: timestamp_ns: no pose"),
            "a late timestamp": (edited("timestamp_ns", 2**62), "row: timestamp_ns: no pose"),
            "a foreign timestamp": (edited("timestamp_ns", T0 + 1), "row: timestamp_ns: no pose"),
            "x inf": (edited("tx_m", float("inf")), "row: tx_m: expected a number"),
            "no rotation": (edited("qw", 9.0), "row: qw, qx, qy, qz: a quaternion of another"),
            "a row twice": (one_row_twice, "row: track_uuid: two rows for a step of a track"),
        },
    ),
    "poses": (
        "argoverse2_sensor",
        "city_SE3*",
        {"NaN": (edited("tx_m", NAN), "row: tx_m: expected a number")},
    ),
    "tracks": (
        "interaction",
        "[vD]*.csv",
        {
            "a car without heading": (edited("psi_rad", ""), "row: psi_rad: expected a number"),
            "degrees": (edited("psi_rad", "170"), "row: psi_rad: .* at most 7"),
            "a car without width": (edited("width", "inf"), "row: width: expected a number"),
            "half a frame": (edited("frame_id", "7.5"), "row: frame_id: .* whole number"),
            "text": (edited("x", "east"), "row: x: expected a number"),
            "another type": (edited("agent_type", "pedestrian"), "row: agent_type: another type"),
            "a timestamp": (edited("timestamp_ms", "7"), "row: timestamp_ms: differs from"),
            "a row twice": (one_row_twice, "row: track_id: twice in a frame"),
            "a short line": (text(r",car,[^\n]*", "", 1), "row: another number of cells"),
        },
    ),
    "drones": (
        "sdd",
        "*.parquet",
        {
            "empty agent": (edited("agent", None), "row: agent: expected a number"),
            "x nan": (edited("x", NAN), "row: x: expected a number"),
            "x inf": (edited("x", float("inf")), "row: x: expected a number"),
            "x 60000": (edited("x", 60_000.0), "row: x: .* at most 50000"),
            "step 20": (edited("step", 20), "row: step: .* whole number from 0 to 19"),
            "a row twice": (one_row_twice, "row: agent: twice in a step"),
        },
    ),
}


@pytest.mark.parametrize(("kind", "case"), names_of_cases(FILES))
def test_a_broken_table_is_refused_with_the_reason(tmp_path: Path, kind: str, case: str) -> None:
    check_refused(FILES, kind, case, tmp_path / "raw")


@pytest.mark.parametrize(("kind", "case"), names_of_cases(DETAILS))
def test_an_unusable_detail_is_counted(tmp_path: Path, kind: str, case: str) -> None:
    check_dropped(DETAILS, kind, case, tmp_path / "raw")
