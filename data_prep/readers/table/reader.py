"""Your tracks: a table of (track, time, x, y) as CSV or Parquet, with optional lanes, to `Scene`.

A wrong cell affects its own scene only. `docs/your-data.md` describes the columns and the lanes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from data_prep.reader import Input
from data_prep.readers.columns import DICTIONARY, READ_OPTIONS, Agents, cells, fill, groups, is_text
from data_prep.readers.kinematics import estimate_motion
from data_prep.readers.raw_file import cached_by_file, one_line, printable
from data_prep.readers.table.lanes import find_lanes, lanes_near
from data_prep.readers.vector_map import NO_MAP
from trajformer.config import Config
from trajformer.errors import SceneError, TrajformerError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import AgentKind, AgentRole, Scene

SUFFIXES = (".csv", ".parquet")
TIME = ("step", "timestamp")
TEXT = ("track_id", "scene_id", "kind", "role", "city")
NUMBERS = ("x", "y", *TIME, "heading", "vx", "vy")
MAX_BYTES = 1 << 36  # tables are read into memory


@dataclass(frozen=True, eq=False)
class Columns:
    """The known columns of n rows.

    `number[name]` is float64 [n], NaN for an empty cell and infinity for a cell that is not a number. A text column is
    its distinct words, sorted, in `word[name]` and the index of each row's word, int64 [n], in `code[name]`; an empty
    cell is the word "".
    """

    number: dict[str, np.ndarray]
    word: dict[str, list[str]]
    code: dict[str, np.ndarray]

    def take(self, rows: np.ndarray | slice) -> Columns:
        """Some rows, or all rows in another order."""
        number, code = (
            {name: values[rows] for name, values in part.items()}
            for part in (self.number, self.code)
        )
        return Columns(number, self.word, code)


def read_columns(path: Path, requested: Sequence[str] = (*TEXT, *NUMBERS)) -> Columns:
    """Read the requested columns that a file has; a SceneError names the file and the column that cannot be used."""
    columns = Columns({}, {}, {})
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise SceneError(f"{path}: {size} bytes, expected at most {MAX_BYTES}")
        table = (_read_parquet if path.suffix.lower() == ".parquet" else _read_csv)(path, requested)
        if not len(table):
            raise SceneError(f"{path}: track_id: no rows")
        for name, column in zip(map(str.strip, table.column_names), table.columns, strict=True):
            if name in NUMBERS:
                columns.number[name] = _numbers(column, f"{path}: {name}")
            else:
                columns.word[name], columns.code[name] = _words(column, f"{path}: {name}")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SceneError(f"{path}: cannot be read: {one_line(error)}") from error
    return columns


def _read_csv(path: Path, requested: Sequence[str]) -> pa.Table:
    with pa_csv.open_csv(path, READ_OPTIONS) as head:
        names = _select(head.schema.names, requested, path)

    def read(kinds: dict[str, pa.DataType]) -> pa.Table:
        options = pa_csv.ConvertOptions(column_types=kinds, include_columns=names)
        return pa_csv.read_csv(path, read_options=READ_OPTIONS, convert_options=options)

    try:
        return read(
            {name: pa.float64() if name.strip() in NUMBERS else DICTIONARY for name in names}
        )
    except pa.ArrowInvalid:  # text in a column of numbers: `_numbers` parses the cells
        return read(dict.fromkeys(names, DICTIONARY))


def _read_parquet(path: Path, requested: Sequence[str]) -> pa.Table:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.read(_select(file.schema_arrow.names, requested, path), use_threads=False)


def _select(columns: Sequence[str], requested: Sequence[str], path: Path) -> list[str]:
    """Requested columns of a file, possibly with blanks around their names."""
    names = [name.strip() for name in columns]
    known = [name for name in names if name in TEXT or name in NUMBERS]
    if twice := next((name for name in known if known.count(name) > 1), None):
        raise SceneError(f"{path}: {twice}: two columns of this name")
    missing = [name for name in ("track_id", "x", "y") if name not in names]
    missing += [
        name for name, other in (("vx", "vy"), ("vy", "vx")) if other in names and name not in names
    ]
    missing += [] if set(TIME) & set(names) else ["step (nor timestamp)"]
    if missing:
        raise SceneError(
            f"{path}: {missing[0]}: no such column; its columns are {printable(', '.join(names[:20]))}"
        )
    return [name for name in columns if name.strip() in requested]


def _words(column: pa.ChunkedArray, where: str) -> tuple[list[str], np.ndarray]:
    """The distinct words of a column of n rows, sorted, and the index int64 [n] of each row's word."""
    if not (pa.types.is_integer(column.type) or is_text(column.type)):
        raise SceneError(f"{where}: type {column.type}, expected text or whole numbers")
    is_plain = column.type == DICTIONARY and not column.null_count
    words, _, code = groups(column if is_plain else column.cast(pa.string()).fill_null(""))
    return words, code


def _numbers(column: pa.ChunkedArray, where: str) -> np.ndarray:
    """A column of numbers or of text as float64 [n]."""
    kind = column.type
    if is_text(kind):
        words, code = _words(column, where)
        return np.array([_number(word) for word in words])[code]
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise SceneError(f"{where}: type {kind}, expected numbers")
    return column.cast(pa.float64(), safe=False).to_numpy()


def _number(word: str) -> float:
    """NaN for an empty cell, infinity for a cell that is not a number."""
    try:
        return float(word.replace("_", " _ ") or "nan")  # Python would accept 1_000
    except ValueError:
        return float("nan" if word.strip().lower() in ("", "na", "n/a", "null") else "inf")


ALL = "all"  # the split of tables directly in RAW
MAX_OFF_GRID = 0.25  # of a period; a larger distance of a timestamp from the grid means that the period is wrong
MAX_STEP = 2.0**52  # larger whole numbers are not exact in float64
MAX_NAME_BYTES = 150
MAX_COORDINATE_M = 1e8
MAX_SPEED_M_S = 1e4
MOVING_M_S, MIN_MOVING = (
    0.3,
    8,
)  # minimum speed and number of steps to compare recorded speeds with displacements
FAST_M_S = 3.0  # displacements of this speed are not noise: recorded speeds must not be zero
MAX_RATIO = 2.5  # feet and metres differ by 3.3, km/h and m/s by 3.6
BLOCK_SIZE = (
    1_000_000  # agents x steps x steps that are estimated at a time, which limits the memory
)
MOVED_M, MAX_ACROSS = (
    2.0,
    50.0,
)  # in about a second; degrees. A compass has 90 degrees of difference on most roads
_KINDS = {"": AgentKind.UNKNOWN} | {kind.name.lower(): kind for kind in AgentKind}
_ROLES = {"": AgentRole.CONTEXT} | {role.name.lower(): role for role in AgentRole}
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}  # per second
_TWICE = "track_id (--drop-duplicates true uses the first row)"
_THINGS = (
    AgentKind.STATIC,
    AgentKind.BACKGROUND,
    AgentKind.CONSTRUCTION,
    AgentKind.RIDERLESS_BICYCLE,
)


_LIMITS = {
    "period_s": (1e-9, 60.0),
    "map_radius_m": (0, np.inf),
    "num_history": (2, 10_000),
    "num_future": (1, 10_000),
}


@dataclass(frozen=True)
class Table(Config, limits=_LIMITS | dict.fromkeys(("step_interval", "stride"), (1, 10**9))):
    """Reader of tables of tracks.

    Attributes:
        period_s: seconds between steps; timestamps are rounded to multiples of it.
        time_unit: unit of the column `timestamp`.
        step_interval: difference of the column `step` between two steps of a scene, 10 for example if every tenth frame has rows.
        drop_duplicates: use the first row of a track and step; otherwise a second row is an error.
        num_history: observed steps of a scene.
        num_future: steps to predict.
        stride: steps between the starts of windows, into which a scene of more than history + future steps is cut.
        map_radius_m: lanes within this distance of an agent's last observed position are kept.
    """

    period_s: float = 0.1
    time_unit: Literal["s", "ms", "us", "ns"] = "s"
    step_interval: int = 1
    drop_duplicates: bool = False
    num_history: int = 50
    num_future: int = 60
    stride: int = 10
    map_radius_m: float = 100.0
    name: ClassVar[str] = "table"
    layout: ClassVar[str] = (
        "RAW/<split>/*.csv or *.parquet with columns track_id, x, y and step or timestamp"
    )
    published: ClassVar[dict[str, int]] = {}

    def splits(self, raw: Path) -> list[str]:
        """Sub-folders with tables, and "all" for tables directly in the raw folder."""
        names = {path.name for path in raw.iterdir() if path.is_dir() and next(_tables(path), None)}
        return sorted(names | ({ALL} if next(_tables(raw), None) else set()))

    def inputs(self, raw: Path, split: str) -> list[Input]:
        """All scenes and windows, by file and scene id; the part is the scene's id, or "" if a file is one scene.

        Raises TrajformerError: two files hold scenes of the same name, so their forecasts would be ambiguous.
        """
        inputs: list[Input] = []
        owner: dict[str, Path] = {}
        for path in sorted({*_tables(raw / split), *(_tables(raw) if split == ALL else ())}):
            stamp = _stamp(path, find_lanes(path, raw))
            try:
                columns = read_columns(path, ("scene_id", *TIME))
            except SceneError:
                inputs.append(Input(path, "", stamp))
                continue
            _, _, scenes = cut_scenes(columns, path.stem, self)
            if twice := next((name for name in scenes if name in owner), None):
                reason = f"scene {twice!r} is also in {owner[twice]}: every scene of a split needs a unique name"
                raise TrajformerError(f"{path}: scene_id: {reason}")
            owner |= dict.fromkeys(scenes, path)
            inputs += [
                Input(path, "" if name == path.stem and len(scenes) == 1 else name, stamp)
                for name in scenes
            ]
        return inputs

    def read(self, item: Input, split: str, raw: Path) -> Scene:
        """Read one scene or window, see `Reader.read`."""
        path, name = item.path, item.part or item.path.stem
        columns, step, cuts = _load(path, self)
        if name not in cuts:
            raise SceneError(f"{path}: scene_id: there is no scene {name!r}")
        cut = cuts[name]
        rows = np.arange(cut.begin, cut.end)
        if self.drop_duplicates:
            _, first = np.unique(
                np.stack([step[rows], columns.code["track_id"][rows]]), axis=1, return_index=True
            )
            rows = rows[np.sort(first)]
        try:
            if cut.problem:
                raise SceneError(cut.problem)
            if "step" in columns.number and "timestamp" in columns.number:
                observed = rows[step[rows] < cut.first + self.num_history]
                self._check_clock(step[observed], columns.number["timestamp"][observed])
            tracks = Tracks(columns.take(rows), step[rows], cut, self)
            return self._scene(tracks, name, split, find_lanes(path, raw)).validate()
        except SceneError as error:
            where = f"{path}: scene {name}" if item.part else str(path)
            raise SceneError(f"{where}: {error}") from error

    def _scene(self, tracks: Tracks, name: str, split: str, lanes: Path | None) -> Scene:
        xy, kind = tracks.position(), tracks.words("kind", _KINDS)
        role, last = tracks.role(kind), tracks.last_observed
        origin = xy[
            last[np.where(last >= 0, role.astype(np.int64), -1).argmax()]
        ]  # of the focal agent, else of a scored one
        position = tracks.fill(xy - origin)
        heading, velocity = tracks.motion(position)
        history = slice(
            0, self.num_history
        )  # whether a scene is used must not depend on its future
        recorded, valid = position[:, history], tracks.valid[:, history]
        if "vx" in tracks.columns.number:
            self._check_velocity(recorded, velocity[:, history], valid)
            vx, vy = np.moveaxis(velocity[:, history], -1, 0)
            self._check_direction(
                "vx", np.arctan2(vy, vx), recorded, valid & (np.hypot(vx, vy) > MOVING_M_S)
            )
        if "heading" in tracks.columns.number:
            self._check_direction("heading", heading[:, history], recorded, valid)
        polylines = lanes_near(lanes, xy[last[last >= 0]], self.map_radius_m) if lanes else NO_MAP
        agents = Agents(tracks.agent_id, kind, role, position, heading, velocity, tracks.valid)
        clock = self.period_s, self.num_history, self.num_future
        return agents.scene((name, self.name, split, tracks.city()), clock, origin, polylines)

    def _check_clock(self, step: np.ndarray, timestamp: np.ndarray) -> None:
        """SceneError if timestamps next to steps have another period than `period_s`, in every unit."""
        known = np.flatnonzero(np.isfinite(timestamp))
        if len(known) and (steps := step[known[-1]] - step[known[0]]) > 0:
            apart = (timestamp[known[-1]] - timestamp[known[0]]) / steps
            if apart > 0 and not any(
                abs(apart / (unit * self.period_s) - 1) < MAX_OFF_GRID for unit in _UNITS.values()
            ):
                problem = f"{apart:.4g} apart from step to step, expected {self.period_s:g} s"
                raise SceneError(
                    f"timestamp: {problem}; --period-s and --step-interval set the clock, or remove the column"
                )

    def _check_velocity(
        self, position: np.ndarray, velocity: np.ndarray, valid: np.ndarray
    ) -> None:
        """SceneError if recorded velocities [A, T, 2] and the displacements per second have different units."""
        pairs = valid[:, 1:] & valid[:, :-1]
        moved = np.linalg.norm(np.diff(position, axis=1), axis=-1)[pairs] / self.period_s
        recorded = np.linalg.norm(velocity[:, 1:], axis=-1)[pairs]
        moving = (np.minimum(moved, recorded) > MOVING_M_S) | (moved > FAST_M_S)
        if (
            moving.sum() >= MIN_MOVING
            and not 1 / MAX_RATIO
            < (ratio := np.median(recorded[moving] / moved[moving]))
            < MAX_RATIO
        ):
            reason = f"speeds are {ratio:.3g} times the displacements per second (median)"
            raise SceneError(
                f"vx: {reason}; check the units of x, y, vx, vy and time, or remove vx and vy"
            )

    def _check_direction(
        self, name: str, angle: np.ndarray, position: np.ndarray, valid: np.ndarray
    ) -> None:
        """SceneError if angles [A, T] are mostly across the displacements of about a second; backwards is no error."""
        steps = min(max(round(1 / self.period_s), 1), position.shape[1] - 1)
        moved = position[:, steps:] - position[:, :-steps]
        used = valid[:, steps:] & valid[:, :-steps] & (np.linalg.norm(moved, axis=-1) > MOVED_M)
        if used.sum() >= MIN_MOVING:
            across = (
                wrap(2 * (angle[:, steps:] - np.arctan2(moved[..., 1], moved[..., 0])))[used] / 2
            )
            if (median := np.degrees(np.median(np.abs(across)))) > MAX_ACROSS:
                reason = f"differs from the direction of motion by {median:.0f} degrees (median)"
                expected = (
                    "expected radians counter-clockwise from +x"
                    if name == "heading"
                    else "are vx and vy exchanged?"
                )
                raise SceneError(f"{name}: {reason}; {expected}; correct it, or remove the column")


def _stamp(*files: Path | None) -> str:
    """Digest of the contents of files, because users edit their tables."""
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        try:
            if path and (size := path.stat().st_size) > MAX_BYTES:
                digest.update(str(size).encode())
            elif path:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "blake2b").digest())
        except OSError as error:
            digest.update(repr(error.errno).encode())
    return digest.hexdigest()


def _tables(folder: Path) -> Iterator[Path]:
    """Tables of a folder, without hidden files."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file():
            yield path


@cached_by_file(2)
def _load(path: Path, options: Table) -> tuple[Columns, np.ndarray, dict[str, Cut]]:
    """Columns of a file with rows sorted by scene and step, the steps int64 [n], and the scenes by id."""
    columns = read_columns(path)
    order, step, scenes = cut_scenes(columns, path.stem, options)
    return columns.take(order), step, scenes


# ---- scenes and windows --------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """One scene: the sorted rows `begin` to `end`, its first step and its T; or its problem."""

    begin: int
    end: int
    first: int = 0
    num_steps: int = 0
    problem: str = ""


def cut_scenes(
    columns: Columns, stem: str, options: Table
) -> tuple[np.ndarray, np.ndarray, dict[str, Cut]]:
    """Find the scenes of a file from its columns `scene_id` and time; `stem` is the name of the scene if there is no `scene_id`.

    A scene of more than H + F steps is cut into windows of H + F steps, named `<scene>-t<first step>`. A window without an agent
    in the last observed step is left out, because there is nothing to predict. Returns the rows by scene and step, int64 [n];
    their steps, int64 [n]; and the scenes by id, sorted by id and first step.
    """
    name = "step" if "step" in columns.number else "timestamp"
    time, count = columns.number[name], len(columns.number[name])
    scene = columns.code.get("scene_id", np.zeros(count, np.int64))
    order = np.lexsort((time, scene))  # NaN comes last within its scene
    time, scene = time[order], scene[order]
    start = np.flatnonzero(np.concatenate([[True], np.diff(scene) != 0]))
    end = np.append(start[1:], count)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = (time - np.repeat(time[start], end - start)) / (
            options.period_s * _UNITS[options.time_unit]
        )
        if name == "step":
            grid = np.repeat(time[start] % options.step_interval, end - start)
            exact = np.where(time == np.rint(time), (time - grid) / options.step_interval, np.nan)
        step = np.rint(exact)
        bad = ~(
            (np.abs(exact - step) <= (MAX_OFF_GRID if name == "timestamp" else 0.0))
            & (np.abs(step) <= MAX_STEP)
        )
    step = np.where(bad, 0.0, step).astype(np.int64)
    words = columns.word.get("scene_id", [stem])
    scenes: dict[str, Cut] = {}
    for code, begin, stop in zip(scene[start].tolist(), start.tolist(), end.tolist(), strict=True):
        word = words[code]
        if (
            not re.fullmatch(r"(?!\.)[^/\\]+", word)
            or not word.isprintable()
            or len(word.encode()) > MAX_NAME_BYTES
        ):
            problem = f"scene_id: no file name (1 to {MAX_NAME_BYTES} bytes, no slash, dot in front or control character)"
            cuts = {ascii(word): Cut(begin, stop, problem=problem)}
        elif (wrong := bad[begin:stop]).any():
            cuts = {
                word: Cut(
                    begin, stop, problem=_time_problem(name, time[begin:stop], wrong, options)
                )
            }
        else:
            cuts = _cut_scene(word, step[begin:stop], begin, options)
        for key, cut in cuts.items():
            scenes[key] = (
                cut
                if key not in scenes
                else cut._replace(problem="scene_id: also the name of a window")
            )
    return order, step, scenes


def _cut_scene(name: str, step: np.ndarray, begin: int, options: Table) -> dict[str, Cut]:
    """The scene or its windows, from its sorted steps [n]."""
    history, window = options.num_history, options.num_history + options.num_future
    first, last, end = int(step[0]), int(step[-1]), begin + len(step)
    length, interval = last - first + 1, np.median(np.diff(np.unique(step))) if first < last else 1
    if interval > 1:
        remedy = "--step-interval sets their interval, --period-s and --time-unit the clock of timestamps"
        return {
            name: Cut(
                begin,
                end,
                problem=f"most steps are missing: steps with rows are {interval:g} apart; {remedy}",
            )
        }
    if length < history:
        problem = f"{length} steps from its first to its last row, expected at least the {history} of the history"
        return {name: Cut(begin, end, problem=problem)}
    if length <= window:
        return {name: Cut(begin, end, first, history if length == history else window)}
    starts = np.unique(step) - (history - 1)  # of windows with a row at their last observed step
    starts = starts[
        (starts >= first) & (starts + window - 1 <= last) & ((starts - first) % options.stride == 0)
    ]
    if not len(starts):
        return {name: Cut(begin, end, problem="no window has an agent at its last observed step")}
    edges = begin + np.searchsorted(step, np.stack([starts, starts + window]))
    return {
        f"{name}-t{s}": Cut(a, b, s, window)
        for s, a, b in zip(starts.tolist(), *edges.tolist(), strict=True)
    }


def _time_problem(name: str, time: np.ndarray, wrong: np.ndarray, options: Table) -> str:
    """Message for the first wrong time of a scene, which fits no step."""
    value = float(time[wrong.argmax()])
    if not np.isfinite(value):
        return f"{name}: {'empty or NaN' if np.isnan(value) else 'infinite or no number'}"
    if name == "step":
        if value.is_integer() and abs(value) <= MAX_STEP:
            return f"step: {value:.12g} is no multiple of {options.step_interval} (--step-interval) after the first, {time[0]:.12g}"
        return f"step: {value:.12g}, expected a whole number of at most 2^52"
    known = np.unique(time[np.isfinite(time)])
    with np.errstate(over="ignore"):
        usual = f"they are mostly {np.median(np.diff(known)) if len(known) > 1 else 0.0:.4g} apart; --period-s sets the period"
    grid = f"the period of {options.period_s:g} s after the scene's first, {known[0]:.12g}"
    return f"timestamp: {value:.12g} is no multiple of {grid} ({usual})"


# ---- tracks --------------------------------------------------------------------------------------------------------


class Tracks:
    """The n rows of one scene as A agents by id with T steps."""

    def __init__(self, columns: Columns, step: np.ndarray, cut: Cut, options: Table) -> None:
        """Arrange rows, of which `step` (int64 [n]) is the step; SceneError if a track has no name or two rows for one step."""
        self.columns, self._step, self._options = columns, step, options
        present, self._agent = np.unique(columns.code["track_id"], return_inverse=True)
        self.agent_id = tuple(columns.word["track_id"][code] for code in present.tolist())
        if "" in self.agent_id or any("\n" in name for name in self.agent_id):
            raise SceneError("track_id: empty or with a line break")
        self._cell, self.valid = cells(
            self.agent_id, self._agent, step - cut.first, cut.num_steps, _TWICE
        )
        self.row = (
            self.fill(np.arange(1, len(step) + 1)) - 1
        )  # index of the row, int64 [A, T], -1 without a row
        observed = self.row[:, : options.num_history]
        last = options.num_history - 1 - (observed[:, ::-1] >= 0).argmax(1)
        self.last_observed = observed[
            np.arange(len(observed)), last
        ]  # row [A] of the last observed step, -1 without one

    def fill(self, values: np.ndarray) -> np.ndarray:
        """Values [n, ...] of the rows as [A, T, ...], zero without a row."""
        return fill(self.valid, self._cell, values)

    def position(self) -> np.ndarray:
        """Positions float64 [n, 2], metres."""
        return np.stack([self._numbers(name, MAX_COORDINATE_M) for name in "xy"], -1)

    def motion(self, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Heading [A, T] and velocity [A, T, 2] from the table; missing values are estimated from position [A, T, 2]."""
        heading = self._numbers("heading", 2 * np.pi + 1e-6, optional=True).copy()
        velocity = np.stack(
            [self._numbers(name, MAX_SPEED_M_S, optional=True) for name in ("vx", "vy")], -1
        )
        empty = np.isnan(velocity)
        if (half := empty[:, 0] != empty[:, 1]).any():
            raise SceneError(f"vx: one of vx and vy is empty {self._where(half)}")
        agents = np.unique(self._agent[np.isnan(heading) | empty[:, 0]])
        for block in np.array_split(
            agents, max(1, len(agents) * self.valid.shape[1] ** 2 // BLOCK_SIZE)
        ):
            rows, valid = self.row[block][self.valid[block]], self.valid[block]
            v, h, _ = estimate_motion(
                position[block], valid, self._options.num_history, self._options.period_s
            )
            heading[rows] = np.where(np.isnan(heading[rows]), h[valid], heading[rows])
            velocity[rows] = np.where(empty[rows], v[valid], velocity[rows])
        outside = (heading <= -np.pi) | (
            heading > np.float32(np.pi)
        )  # other values keep all their bits
        heading = np.where(outside, wrap(heading), heading)
        return self.fill(heading), self.fill(velocity)

    def role(self, kind: np.ndarray) -> np.ndarray:
        """AgentRole uint8 [A]; without the column, agents with a row in the last observed step and an earlier one are scored.

        This depends on the observed steps only. Objects that cannot move without help are context. Raises SceneError: an unknown
        role, two focal agents, or no agent to predict.
        """
        observed = self.valid[:, : self._options.num_history]
        role = self.words("role", _ROLES)
        if "role" not in self.columns.word:
            role[observed[:, -1] & (observed.sum(1) >= 2) & ~np.isin(kind, _THINGS)] = (
                AgentRole.SCORED
            )
        focal = [self.agent_id[index] for index in np.flatnonzero(role == AgentRole.FOCAL)]
        if len(focal) > 1:
            raise SceneError(f"role: two tracks are focal, {focal[0]!r} and {focal[1]!r}")
        if not (observed.any(1) & (role != AgentRole.CONTEXT)).any():
            raise SceneError("role: no track to predict is seen in the history")
        return role

    def city(self) -> str:
        """City of the scene, "" without the column."""
        cities = np.unique(self.columns.code.get("city", np.zeros(1, np.int64))).tolist()
        if len(cities) > 1:
            raise SceneError(f"city: {len(cities)} cities in one scene")
        return self.columns.word.get("city", [""])[cities[0]]

    def words(self, name: str, meaning: Mapping[str, int]) -> np.ndarray:
        """Values uint8 [A] of a text column at each agent's last observed step, or at its first step if it was not observed."""
        if name not in self.columns.word:
            return np.full(len(self.agent_id), meaning[""], np.uint8)
        first = self.row[np.arange(len(self.row)), self.valid.argmax(1)]
        code = self.columns.code[name][np.where(self.last_observed >= 0, self.last_observed, first)]
        words = [self.columns.word[name][index].strip().lower() for index in code.tolist()]
        for word, track in zip(words, self.agent_id, strict=True):
            if word not in meaning:
                allowed = ", ".join(filter(None, meaning))
                raise SceneError(
                    f"{name}: {word[:40]!r} (track {track!r}), expected one of {allowed}"
                )
        return np.array([meaning[word] for word in words], np.uint8)

    def _numbers(self, name: str, limit: float, optional: bool = False) -> np.ndarray:
        """A column float64 [n], finite; if it is optional, an empty cell is NaN."""
        values = self.columns.number.get(name, np.full(len(self._step), np.nan))
        if not optional and (empty := np.isnan(values)).any():
            raise SceneError(f"{name}: empty or NaN {self._where(empty)}")
        if (beyond := np.abs(values) > limit).any():
            value = values[beyond.argmax()]
            problem = (
                f"{value:.12g}, expected at most {limit:.4g} either way"
                if np.isfinite(value)
                else "infinite or no number"
            )
            raise SceneError(f"{name}: {problem} {self._where(beyond)}")
        return values

    def _where(self, wrong: np.ndarray) -> str:
        """The first row with True in `wrong`, for messages."""
        row = int(wrong.argmax())
        return f"(track {self.agent_id[self._agent[row]]!r}, step {self._step[row]})"
