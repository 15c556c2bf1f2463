"""Broken Argoverse 2 sensor logs: what is done to a real one's annotations or poses, and why it must be refused."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather
from support.hostile import SPECIAL, Cases, Damage, cell, column, cut, data, replaced, words, zeroed

NUMBERS = ("timestamp_ns", "qw", "qx", "qy", "qz", "tx_m", "ty_m", "tz_m")
TEXT = ("track_uuid", "category")
POSES = "city_SE3_egovehicle.feather"


def table(change: Callable[[pa.Table], pa.Table], **options: Any) -> Damage:
    """Another table."""

    def damage(path: Path) -> None:
        changed = change(feather.read_table(path, memory_map=False))
        sink = pa.OSFile(str(path), "wb")  # `write_feather` refuses two columns of one name
        with sink, pa.ipc.new_file(sink, changed.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(changed)

    return damage


def poses(damage: Damage) -> Damage:
    """Done to the poses beside the annotations."""
    return lambda path: damage(path.with_name(POSES))


def archive(damage: Damage) -> Damage:
    """Done to the map of the log."""
    return lambda path: damage(next((path.parent / "map").glob("log_map_archive_*.json")))


def two_maps(path: Path) -> None:
    """A second map."""
    (path.parent / "map" / "log_map_archive_b____PIT_city_1.json").write_text("{}")


def first_row(count: int) -> Callable[[pa.Table], pa.Table]:
    """The first row so often."""
    return lambda whole: whole.take(pa.array(np.zeros(count, int)))


FILES: Cases = {
    **{f"log-{name}": (damage, r"annotations\S*: \w|no map") for name, damage in SPECIAL.items()},
    **{
        f"log-cut-{part}": (cut(part), "annotations.feather: not a readable feather file")
        for part in (0.0, 0.001, 0.3, 0.9, 0.999)
    },
    "log-no-footer": (zeroed(-4_000, 4_000), "not a readable feather file"),
    "log-is-csv": (replaced("timestamp_ns,track_uuid\n1,2\n"), "not a readable feather file"),
    "log-is-gzip": (data(gzip.compress), "not a readable feather file"),
    "log-no-rows": (table(lambda t: t.slice(0, 0)), "timestamp_ns: no rows"),
    **{f"log-no-{name}": (table(lambda t, n=name: t.drop_columns(n)), f"{name}: no such column") for name in (*NUMBERS, *TEXT)},
    **{f"log-{name}-text": (table(column(name, lambda v: "one")), f"{name}: type string, expected") for name in NUMBERS},
    **{f"log-{name}-number": (table(column(name, lambda v: 1.0)), f"{name}: type double, expected text") for name in TEXT},
    **{
        f"log-{name}-empty": (table(cell(name, None)), f"{name}: empty in 1 rows")
        for name in ("timestamp_ns", "qw", "track_uuid")
    },
    **{
        f"log-{name}-{value}": (table(cell(name, float(value))), f"{name}: NaN, infinity or a number beyond")
        for name in ("qw", "tx_m", "ty_m")
        for value in ("nan", "inf", "1e300")
    },
    "log-huge": (lambda path: path.open("r+b").truncate(1 << 40), "1099511627776 bytes, expected at most"),
    "log-two-qw": (table(lambda t: t.append_column("qw", t["qw"])), "qw: two columns of this name"),
    "log-half": (
        table(column("tx_m", lambda v: pa.array(np.zeros(len(v), np.float16)))),
        "tx_m: type halffloat, expected a number",
    ),
    "log-time-float": (
        table(column("timestamp_ns", lambda v: pc.cast(v, pa.float64(), safe=False))),
        "timestamp_ns: type double",
    ),
    "log-time-late": (table(cell("timestamp_ns", 2**62)), "timestamp_ns: .* sweeps spread over"),
    "log-time-early": (table(cell("timestamp_ns", -(2**62))), "timestamp_ns: .* sweeps spread over"),
    "log-rows-twice": (table(lambda t: pa.concat_tables([t, t])), "track_uuid: a track has two rows"),
    "log-category": (table(words("category", "REGULAR_VEHICLE", "TRAM")), "category: unknown value 'TRAM'"),
    "log-no-quaternion": (table(column("qw", lambda v: 9.0)), "qw, qx, qy, qz: a quaternion of length"),
    "log-id-newline": (table(words("track_uuid", "-", "\n")), "agent_id: empty, over 200 characters, or with a newline"),
    "log-id-endless": (table(words("track_uuid", "-", "-" * 400)), "agent_id: empty, over 200 characters"),
    **{f"pose-{name}": (poses(damage), r"city_SE3\S*: \w") for name, damage in SPECIAL.items()},
    "pose-cut": (poses(cut(0.5)), "city_SE3_egovehicle.feather: not a readable feather file"),
    "pose-no-qw": (poses(table(lambda t: t.drop_columns("qw"))), "city_SE3_egovehicle.feather: qw: no such column"),
    "pose-gap": (poses(table(lambda t: t.slice(0, len(t) // 2))), "timestamp_ns: no pose at"),
    "pose-nan": (poses(table(column("tx_m", lambda v: float("nan")))), "tx_m: NaN, infinity or a number beyond"),
    "pose-far": (poses(table(column("tx_m", lambda v: 1e12))), "tx_m: NaN, infinity or a number beyond"),
    "log-map-cut": (archive(cut(0.5)), "map cannot be read"),
    "log-map-missing": (archive(Path.unlink), "0 files log_map_archive"),
    "log-two-maps": (two_maps, "2 files log_map_archive"),
}
BOMBS: Cases = {
    "log-rows-bomb": (table(first_row(3_000_000), compression="zstd"), "timestamp_ns: 3000000 rows, far too many for one log"),
    "log-text-bomb": (
        table(column("category", lambda v: pa.array(["x" * 10_000_000] + ["y"] * (len(v) - 1))), compression="zstd"),
        ".",
    ),
}
CASES: Cases = FILES | BOMBS
