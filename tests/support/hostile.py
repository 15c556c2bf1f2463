"""Broken and hostile inputs, made from whole ones: what is done to a file, and a run over whole and broken ones in a process
of its own, that tells the memory it took."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
LONGEST_S = 10.0  # of one input
Damage = Callable[[Path], None]  # done to a whole file
Cases = dict[str, tuple[Damage, str]]  # by name: what is done, and a pattern of the reason that must be given


@dataclass(frozen=True)
class Outcome:
    """What became of a raw folder."""

    skipped: dict[str, str]  # reason by input
    scenes: int
    cpu_seconds: float
    peak_mb: float  # of memory, of the process that listed the inputs and of the one that read them
    errors: str  # standard error


# ---- what is done to a file ----------------------------------------------------------------------------------------


def data(change: Callable[[bytes], bytes]) -> Damage:
    """Other bytes."""

    def damage(path: Path) -> None:
        path.write_bytes(change(path.read_bytes()))

    return damage


def then(*damages: Damage) -> Damage:
    """One after the other."""

    def damage(path: Path) -> None:
        for part in damages:
            part(path)

    return damage


def text(old: str, new: str, count: int = -1) -> Damage:
    """Other words; surrogates in `new` stand for bytes that are not UTF-8."""

    def change(whole: bytes) -> bytes:
        assert old.encode() in whole, old
        return whole.replace(old.encode(), new.encode(errors="surrogateescape"), count)

    return data(change)


def cut(share: float) -> Damage:
    """The file ends after this share of it."""
    return data(lambda whole: whole[: int(share * len(whole))])


def zeroed(start: int, count: int) -> Damage:
    """So many bytes are zero, from `start` on, which is counted from the end if negative."""

    def change(whole: bytes) -> bytes:
        first = start % len(whole)
        return whole[:first] + bytes(count) + whole[first + count :]

    return data(change)


def replaced(content: bytes | str) -> Damage:
    """Something else."""
    return data(lambda whole: content if isinstance(content, bytes) else content.encode())


def gone(path: Path) -> None:
    """No file."""
    path.unlink()


def folder(path: Path) -> None:
    """A folder with the file's name."""
    path.unlink()
    path.mkdir()


def fifo(path: Path) -> None:
    """A pipe that nobody ever writes to."""
    path.unlink()
    os.mkfifo(path)


def link(target: str) -> Damage:
    """A symbolic link, also one that leads nowhere or to itself."""

    def damage(path: Path) -> None:
        path.unlink()
        path.symlink_to(target.format(path.name))

    return damage


SPECIAL: dict[str, Damage] = {
    "missing": gone,
    "folder": folder,
    "pipe": fifo,
    "link-nowhere": link("nowhere"),
    "link-loop": link("{}"),
    "endless-device": link("/dev/zero"),
}
if os.geteuid():  # the superuser reads everything
    SPECIAL["unreadable"] = lambda path: path.chmod(0)


# ---- what is done to a table ---------------------------------------------------------------------------------------


def column(name: str, change: Callable[[pa.ChunkedArray], Any]) -> Callable[[pa.Table], pa.Table]:
    """A column replaced by an array of the same length, or by one value."""

    def replace(table: pa.Table) -> pa.Table:
        values = change(table[name])
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            values = pa.array([values] * len(table), values.type if isinstance(values, pa.Scalar) else None)
        return table.set_column(table.column_names.index(name), name, values)

    return replace


def cell(name: str, value: Any, row: int = 7, kind: pa.DataType | None = None) -> Callable[[pa.Table], pa.Table]:
    """One value of a column is another one."""

    def change(old: pa.ChunkedArray) -> pa.Array:
        values = old.to_pylist()
        values[row] = value
        return pa.array(values, kind or (pa.float64() if isinstance(value, float) else old.type))

    return column(name, change)


def words(name: str, old: str, new: str) -> Callable[[pa.Table], pa.Table]:
    """One word of a text column is another one, in every row."""
    return column(name, lambda values: pc.replace_substring(values, old, new))


def parquet(change: Callable[[pa.Table], pa.Table], **options: Any) -> Damage:
    """Another table."""

    def damage(path: Path) -> None:
        pq.write_table(change(pq.read_table(path)), path, **options)

    return damage


# ---- a run of its own ----------------------------------------------------------------------------------------------


def prepared(reader: str, raw: Path, store: Path, **options: Any) -> Outcome:
    """Prepare a raw folder in a process of its own; fails when that fails."""
    script = [sys.executable, __file__, reader, str(raw), str(store), json.dumps(options)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(script, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return Outcome(**json.loads(done.stdout.splitlines()[-1]), errors=done.stderr)


def peak_mb() -> float:
    """The most memory that this process ever had; `getrusage` also counts what its parent had when it began."""
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024


def main(name: str, raw: str, store: str, options: str) -> None:
    """In that process."""
    from data_prep.engine.prepare import PrepareOptions, prepare
    from data_prep.readers.names import READERS

    reader = READERS[name](**json.loads(options))
    summary = prepare(reader, Path(raw), Path(store), PrepareOptions(timeout_s=LONGEST_S, progress=False))
    theirs = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds, peak = time.process_time() + theirs.ru_utime + theirs.ru_stime, max(peak_mb(), theirs.ru_maxrss / 1024)
    outcome = Outcome(dict(summary.skipped), summary.scenes, seconds, peak, "")
    print(json.dumps({key: value for key, value in asdict(outcome).items() if key != "errors"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
