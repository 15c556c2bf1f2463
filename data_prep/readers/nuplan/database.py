"""Reading of SQLite files from untrusted sources: logs and maps of nuPlan.

A database is data only if nothing in it runs: it is opened read-only and immutable, without trust
in its schema. An authorizer permits nothing but reading of columns, so that functions, recursion,
attached files and changes are refused. Views, virtual tables and generated columns are not read. A
limit of steps of the virtual machine ends queries of damaged files, which may have loops.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import numpy as np

from trajformer.errors import SceneError, one_line
from trajformer.scenes.files import open_file

MAX_BYTES = 1 << 35  # logs have up to 4 GB
MAX_ROWS = 20_000_000
MAX_CELL_BYTES = 64 << 20  # of a geometry
_MAX_TICKS = 40_000  # of 100,000 steps of the virtual machine each, about a minute
_MAGIC = b"SQLite format 3\0"
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
Cell = int | float | str | bytes | None


class Database:
    """Tables of an open file."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self.tables: dict[str, list[str]] = {}  # names of the stored columns
        query = "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
        for name, sql in connection.execute(query).fetchall():
            if isinstance(name, str) and str(sql)[:12].upper() == "CREATE TABLE":
                quoted = name.replace('"', '""')
                entries = connection.execute(f'PRAGMA table_xinfo("{quoted}")').fetchall()
                # Generated columns are expressions.
                self.tables[name] = [entry[1] for entry in entries if not entry[6]]
        connection.set_authorizer(_authorize)

    def rows(self, table: str, columns: Sequence[str]) -> list[tuple[Cell, ...]]:
        """All rows of some columns of a table, both with names of this program.

        SceneError: no such table or column, or too many rows.
        """
        if table not in self.tables:
            raise SceneError(f"{self._path}: {table}: no such table")
        for column in columns:
            if column not in self.tables[table]:
                raise SceneError(f"{self._path}: {table}: {column}: no such column")
        names = ", ".join(f'"{column}"' for column in columns)
        cursor = self._connection.execute(f'SELECT {names} FROM "{table}"')
        rows: list[tuple[Cell, ...]] = []
        while block := cursor.fetchmany(50_000):
            rows += block
            if len(rows) > MAX_ROWS:
                raise SceneError(f"{self._path}: {table}: over {MAX_ROWS} rows")
        return rows


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """The tables of a file; all errors of SQLite become a SceneError that names the file."""
    try:
        with open_file(path, MAX_BYTES) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                raise OSError("no SQLite database")
        uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True)
    except (OSError, sqlite3.Error) as error:
        raise SceneError(f"{path}: cannot be read: {one_line(error)}") from error
    try:
        _protect(connection)
        yield Database(path, connection)
    # Python cannot decode some messages of SQLite that quote a damaged name.
    except (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise SceneError(f"{path}: not a readable database: {one_line(error)}") from error
    finally:
        connection.close()


def _protect(connection: sqlite3.Connection) -> None:
    for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
        connection.execute(f"PRAGMA {pragma}")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    ticks = 0

    def is_over() -> bool:
        nonlocal ticks
        ticks += 1
        return ticks > _MAX_TICKS

    connection.set_progress_handler(is_over, 100_000)


def _authorize(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY


def numbers(values: Sequence[Cell]) -> np.ndarray:
    """Cells as float64 [n]; NaN for cells that are no finite number."""
    try:
        array = np.array(values, np.float64)
    except (ValueError, TypeError, OverflowError):
        array = np.array([_number(value) for value in values], np.float64)
    array[~np.isfinite(array)] = np.nan
    return array


def _number(value: Cell) -> float:
    if isinstance(value, int | float) and abs(value) < 1e300:
        return float(value)
    return np.nan


def token(value: Cell) -> str:
    """A token, which is stored as bytes or as text, in hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()[:64]
    return str(value)[:64]
