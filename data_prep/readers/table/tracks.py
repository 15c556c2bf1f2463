"""Tables of tracks: columns of a CSV or Parquet file, the scenes and windows in it, and the checked tracks of a scene."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from data_prep.readers.columns import groups, is_text
from data_prep.readers.kinematics import estimate_motion
from data_prep.readers.raw_file import one_line, printable
from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import AgentKind, AgentRole

SUFFIXES = (".csv", ".parquet")
TIME = ("step", "timestamp")
TEXT = ("track_id", "scene_id", "kind", "role", "city")
NUMBERS = ("x", "y", *TIME, "heading", "vx", "vy")
MAX_OFF_GRID = 0.25  # of a period; a larger distance of a timestamp from the grid means that the period is wrong
MAX_STEP = 2.0**52  # larger whole numbers are not exact in float64
MAX_NAME_BYTES = 150
MAX_BYTES = 1 << 36  # tables are read into memory
MAX_COORDINATE_M = 1e8
MAX_SPEED_M_S = 1e4
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())
_READ = pa_csv.ReadOptions(use_threads=False)
_KINDS = {"": AgentKind.UNKNOWN} | {kind.name.lower(): kind for kind in AgentKind}
_ROLES = {"": AgentRole.CONTEXT} | {role.name.lower(): role for role in AgentRole}
_THINGS = (AgentKind.STATIC, AgentKind.BACKGROUND, AgentKind.CONSTRUCTION, AgentKind.RIDERLESS_BICYCLE)
BLOCK_SIZE = 1_000_000  # agents x steps x steps that are estimated at a time, which limits the memory

# ---- columns -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Columns:
    """The known columns of a file of n rows.

    `number[name]` is float64 [n], NaN for an empty cell and infinity for a cell that is not a number. A text column is
    its distinct words, sorted, in `word[name]` and the index of each row's word, int64 [n], in `code[name]`; an empty
    cell is the word "".
    """

    number: dict[str, np.ndarray]
    word: dict[str, list[str]]
    code: dict[str, np.ndarray]

    def take(self, order: np.ndarray) -> Columns:
        """The same rows in another order (int64 [n])."""
        number = {name: values[order] for name, values in self.number.items()}
        return Columns(number, self.word, {name: values[order] for name, values in self.code.items()})


def read_columns(path: Path, requested: Sequence[str] = (*TEXT, *NUMBERS)) -> Columns:
    """Read the requested columns that a file has.

    Raises:
        SceneError: the file cannot be read or has no rows, a column is missing or repeated, or a Parquet column
            has the wrong type; names file and column.
    """
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise SceneError(f"{path}: {size} bytes, expected at most {MAX_BYTES}")
        table = (_read_parquet if path.suffix.lower() == ".parquet" else _read_csv)(path, requested)
        if not len(table):
            raise SceneError(f"{path}: track_id: no rows")
        text = {name: _words(table[name]) for name in TEXT if name in table.column_names}
        number = {name: table[name].to_numpy() for name in NUMBERS if name in table.column_names}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SceneError(f"{path}: cannot be read: {one_line(error)}") from error
    return Columns(number, {name: words for name, (words, _) in text.items()}, {name: code for name, (_, code) in text.items()})


def _select(columns: Sequence[str], requested: Sequence[str], path: Path) -> dict[str, str]:
    """Requested columns of a file: name in the file (possibly with blanks around it) -> name without blanks."""
    names = [name.strip() for name in columns]
    known = [name for name in names if name in TEXT or name in NUMBERS]
    if twice := next((name for name in known if known.count(name) > 1), None):
        raise SceneError(f"{path}: {twice}: two columns of this name")
    missing = [name for name in ("track_id", "x", "y") if name not in names]
    missing += [name for name, other in (("vx", "vy"), ("vy", "vx")) if other in names and name not in names]
    missing += [] if set(TIME) & set(names) else ["step"]
    if missing:
        also = " (nor timestamp)" if missing[0] == "step" else ""
        raise SceneError(f"{path}: {missing[0]}: no such column{also}; its columns are {printable(', '.join(names[:20]))}")
    return {raw: name for raw, name in zip(columns, names, strict=True) if name in requested}


def _read_csv(path: Path, requested: Sequence[str]) -> pa.Table:
    with pa_csv.open_csv(path, _READ) as head:
        name_of = _select(head.schema.names, requested, path)
    kinds = {raw: pa.float64() if name in NUMBERS else _DICTIONARY for raw, name in name_of.items()}
    try:
        table = _convert_csv(path, kinds)
    except pa.ArrowInvalid:  # text in a column of numbers must affect its own scene only: parse the cells one by one
        table = _convert_csv(path, dict.fromkeys(kinds, _DICTIONARY))
    return table.rename_columns([name_of[raw] for raw in table.column_names])


def _convert_csv(path: Path, kinds: dict[str, pa.DataType]) -> pa.Table:
    options = pa_csv.ConvertOptions(column_types=kinds, include_columns=list(kinds))
    table = pa_csv.read_csv(path, read_options=_READ, convert_options=options)
    for index, raw in enumerate(table.column_names):
        if raw.strip() in NUMBERS and kinds[raw] == _DICTIONARY and len(table):
            words, code = _words(table[raw])
            table = table.set_column(index, raw, pa.array(np.array([_number(word) for word in words])[code]))
    return table


def _number(word: str) -> float:
    """NaN for an empty cell, infinity for a cell that is not a number."""
    try:
        return float(word.replace("_", " _ ") or "nan")  # Python would accept 1_000
    except ValueError:
        return float("nan" if word.strip().lower() in ("", "na", "n/a", "null") else "inf")


def _read_parquet(path: Path, requested: Sequence[str]) -> pa.Table:
    with pq.ParquetFile(path) as file:
        name_of = _select(file.schema_arrow.names, requested, path)
        table = file.read(list(name_of), use_threads=False)
    table = table.rename_columns([name_of[raw] for raw in table.column_names])
    for index, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if name in NUMBERS:
            target, expected = pa.float64(), "numbers"
            fits = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        else:
            target, expected = pa.string(), "text or whole numbers"
            fits = pa.types.is_integer(kind) or is_text(kind)
        if not fits:
            raise SceneError(f"{path}: {name}: type {column.type}, expected {expected}")
        table = table.set_column(index, name, pc.cast(column, target, safe=False))
    return table


def _words(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """The distinct words of a column of n rows, sorted, and the index int64 [n] of each row's word."""
    words, _, code = groups(column if pa.types.is_dictionary(column.type) else pc.fill_null(column, ""))
    return words, code


# ---- scenes and windows --------------------------------------------------------------------------------------------


class Cutting(NamedTuple):
    """Time grid of the scenes: seconds between steps, H, F, and steps between the starts of windows."""

    period_s: float
    num_history: int
    num_future: int
    stride: int


class Cut(NamedTuple):
    """One scene: the sorted rows `begin` to `end`, its first step and its T; or its problem."""

    begin: int
    end: int
    first: int = 0
    num_steps: int = 0
    problem: str = ""


@dataclass(frozen=True, eq=False)
class Cuts:
    """Rows of a file by scene and step: `order` int64 [n], their `step` int64 [n], and the scenes by id."""

    order: np.ndarray
    step: np.ndarray
    scenes: dict[str, Cut]


def cut_scenes(columns: Columns, stem: str, cutting: Cutting) -> Cuts:
    """Find the scenes of a file, in order of their ids and first steps.

    A scene of more than H + F steps is cut into windows of H + F steps, named `<scene>-t<first step>`. A window without an
    agent at the last observed step is left out, because there is nothing to predict.

    Args:
        columns: of the file; only `scene_id` and the time columns are used.
        stem: name of the scene if there is no `scene_id`.
        cutting: the time grid.
    """
    name = "step" if "step" in columns.number else "timestamp"
    time, count = columns.number[name], len(columns.number[name])
    scene = columns.code.get("scene_id", np.zeros(count, np.int64))
    order = np.lexsort((time, scene))  # NaN comes last within its scene
    time, scene = time[order], scene[order]
    start = np.flatnonzero(np.concatenate([[True], np.diff(scene) != 0]))
    end = np.append(start[1:], count)
    step, bad = _steps(name, time, np.repeat(time[start], end - start), cutting)
    broken = np.logical_or.reduceat(bad, start).tolist()
    words = columns.word.get("scene_id", [stem])
    scenes: dict[str, Cut] = {}
    for code, begin, stop, is_broken in zip(scene[start].tolist(), start.tolist(), end.tolist(), broken, strict=True):
        word, problem = words[code], _name_problem(words[code])
        if problem:
            cuts = {ascii(word): Cut(begin, stop, problem=problem)}
        elif is_broken:
            value = float(time[begin + int(bad[begin:stop].argmax())])
            cuts = {word: Cut(begin, stop, problem=_time_problem(name, time[begin:stop], value, cutting))}
        else:
            cuts = _cut_scene(word, step[begin:stop], begin, cutting)
        for key, cut in cuts.items():
            scenes[key] = cut if key not in scenes else cut._replace(problem="scene_id: also the name of a window")
    return Cuts(order, step, scenes)


def _steps(name: str, time: np.ndarray, first: np.ndarray, cutting: Cutting) -> tuple[np.ndarray, np.ndarray]:
    """Step int64 [n] of each row, and rows without a valid step bool [n]; `first` is the scene's first timestamp [n]."""
    with np.errstate(invalid="ignore", over="ignore"):
        exact = (time - first) / cutting.period_s if name == "timestamp" else time
        step = np.rint(exact)
        fits = np.abs(exact - step) <= (MAX_OFF_GRID if name == "timestamp" else 0.0)
    bad = ~(fits & (np.abs(step) <= MAX_STEP))
    return np.where(bad, 0.0, step).astype(np.int64), bad


def _cut_scene(name: str, step: np.ndarray, begin: int, cutting: Cutting) -> dict[str, Cut]:
    """The scene or its windows, from its sorted steps [n]."""
    history, window = cutting.num_history, cutting.num_history + cutting.num_future
    first, last, end = int(step[0]), int(step[-1]), begin + len(step)
    length = last - first + 1
    if length < history:
        problem = f"{length} steps from its first to its last row, expected at least the {history} of the history"
        return {name: Cut(begin, end, problem=problem)}
    if length <= window:
        return {name: Cut(begin, end, first, history if length == history else window)}
    starts = np.unique(step) - (history - 1)  # of windows with a row at their last observed step
    starts = starts[(starts >= first) & (starts + window - 1 <= last) & ((starts - first) % cutting.stride == 0)]
    if not len(starts):
        return {name: Cut(begin, end, problem="no window has an agent at its last observed step")}
    edges = begin + np.searchsorted(step, np.stack([starts, starts + window]))
    return {f"{name}-t{s}": Cut(a, b, s, window) for s, a, b in zip(starts.tolist(), *edges.tolist(), strict=True)}


def _name_problem(name: str) -> str:
    """Why the name of a scene cannot be a file name, or ""."""
    if not name:
        return "scene_id: empty"
    if name.startswith(".") or "/" in name or "\\" in name or not name.isprintable():
        return "scene_id: not fit for a file name (a slash, a dot in front, or a control character)"
    return f"scene_id: longer than {MAX_NAME_BYTES} bytes" if len(name.encode()) > MAX_NAME_BYTES else ""


def _time_problem(name: str, time: np.ndarray, value: float, cutting: Cutting) -> str:
    """Message for a time that fits no step."""
    if not np.isfinite(value):
        return f"{name}: {'empty or NaN' if np.isnan(value) else 'infinite or no number'}"
    if name == "step":
        return f"step: {value:.12g}, expected a whole number of at most 2^52"
    known = np.unique(time[np.isfinite(time)])
    with np.errstate(over="ignore"):
        usual = float(np.median(np.diff(known))) if len(known) > 1 else 0.0
    return (
        f"timestamp: {value:.12g} is no multiple of the period of {cutting.period_s:g} s after the scene's first, "
        f"{known[0]:.12g} (they are mostly {usual:.4g} apart; --period-s sets the period)"
    )


# ---- tracks --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Tracks:
    """The n rows of one scene: A agents by id, T steps."""

    columns: Columns  # of the whole file
    cut: Cut
    step: np.ndarray  # int64 [n], 0 to T - 1
    agent: np.ndarray  # int64 [n]
    agent_id: tuple[str, ...]
    row: np.ndarray  # int64 [A, T], index of the row, -1 where there is none
    num_history: int

    @classmethod
    def of(cls, columns: Columns, cuts: Cuts, cut: Cut, num_history: int) -> Tracks:
        """Arrange the rows of a scene by agent and step.

        Raises:
            SceneError: a track has two rows for one step; names column, track and step.
        """
        step = cuts.step[cut.begin : cut.end] - cut.first
        present, agent = np.unique(columns.code["track_id"][cut.begin : cut.end], return_inverse=True)
        row = np.full((len(present), cut.num_steps), -1)
        row[agent, step] = np.arange(len(step))
        agent_id = tuple(columns.word["track_id"][code] for code in present.tolist())
        tracks = cls(columns, cut, step, agent, agent_id, row, num_history)
        if "" in agent_id or any("\n" in name for name in agent_id):
            raise SceneError("track_id: empty or with a line break")
        if len(lost := np.setdiff1d(np.arange(len(step)), row)):
            tracks._fail("track_id", "two rows of one track for one step", lost[0])
        return tracks

    @property
    def valid(self) -> np.ndarray:
        """Whether an agent has a row at a step, bool [A, T]."""
        return self.row >= 0

    def dense(self, values: np.ndarray) -> np.ndarray:
        """Values [n, ...] of the rows as [A, T, ...], zero without a row."""
        out = np.zeros((*self.row.shape, *values.shape[1:]))
        out[self.agent, self.step] = values
        return out

    def position(self) -> np.ndarray:
        """Positions float64 [n, 2], metres."""
        return np.stack([self._numbers(name, MAX_COORDINATE_M) for name in "xy"], -1)

    def motion(self, position: np.ndarray, period_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Heading [A, T] and velocity [A, T, 2] from the table; missing values are estimated from position [A, T, 2]."""
        unknown = np.full(len(self.step), np.nan)
        heading = self._numbers("heading", 2 * np.pi + 1e-6, optional=True) if "heading" in self.columns.number else unknown
        velocity = np.stack([unknown, unknown], -1)
        if "vx" in self.columns.number:
            velocity = np.stack([self._numbers(name, MAX_SPEED_M_S, optional=True) for name in ("vx", "vy")], -1)
            if len(half := np.flatnonzero(np.isnan(velocity).any(1) & ~np.isnan(velocity).all(1))):
                self._fail("vx", "one of vx and vy is empty", half[0])
        missing = np.isnan(heading) | np.isnan(velocity[:, 0])
        agents = np.unique(self.agent[missing])
        for block in np.array_split(agents, max(1, len(agents) * self.row.shape[1] ** 2 // BLOCK_SIZE)):
            rows, valid = self.row[block][self.valid[block]], self.valid[block]
            v, h, _ = estimate_motion(position[block], valid, self.num_history, period_s)
            heading[rows] = np.where(np.isnan(heading[rows]), h[valid], heading[rows])
            velocity[rows] = np.where(np.isnan(velocity[rows]), v[valid], velocity[rows])
        outside = (heading <= -np.pi) | (heading > np.float32(np.pi))  # other values keep all their bits
        heading = np.where(outside, wrap(heading), heading)
        return self.dense(heading), self.dense(velocity)

    def kind(self) -> np.ndarray:
        """AgentKind uint8 [A]."""
        return self._words("kind", _KINDS, AgentKind.UNKNOWN)

    def role(self, kind: np.ndarray) -> np.ndarray:
        """AgentRole uint8 [A]; without the column, agents with a row at the last observed step and an earlier one are scored.

        This depends on the observed steps only. Objects that cannot move without help are context.

        Raises:
            SceneError: an unknown role, two focal agents, or no agent to predict.
        """
        observed = self.valid[:, : self.num_history]
        if "role" in self.columns.word:
            role = self._words("role", _ROLES, AgentRole.CONTEXT)
        else:
            scored = observed[:, -1] & (observed.sum(1) >= 2) & ~np.isin(kind, _THINGS)
            role = np.where(scored, AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8)
        focal = [self.agent_id[index] for index in np.flatnonzero(role == AgentRole.FOCAL)]
        if len(focal) > 1:
            raise SceneError(f"role: two tracks are focal, {focal[0]!r} and {focal[1]!r}")
        if not (observed.any(1) & (role != AgentRole.CONTEXT)).any():
            raise SceneError("role: no track to predict is seen in the history")
        return role

    def city(self) -> str:
        """City of the scene, "" without the column."""
        if "city" not in self.columns.word:
            return ""
        cities = np.unique(self.columns.code["city"][self.cut.begin : self.cut.end]).tolist()
        if len(cities) > 1:
            raise SceneError(f"city: {len(cities)} cities in one scene")
        return self.columns.word["city"][cities[0]]

    def last_observed(self) -> np.ndarray:
        """Row [A] of each agent's last observed step, -1 for an agent without one."""
        observed = self.row[:, : self.num_history]
        last = self.num_history - 1 - (observed[:, ::-1] >= 0).argmax(1)
        return observed[np.arange(len(observed)), last]

    def _words(self, name: str, meaning: Mapping[str, int], default: int) -> np.ndarray:
        """Values [A] of a text column at each agent's last observed step, or at its first step if it was not observed."""
        if name not in self.columns.word:
            return np.full(len(self.agent_id), default, np.uint8)
        last = self.last_observed()
        first = self.row[np.arange(len(self.row)), self.valid.argmax(1)]
        code = self.columns.code[name][self.cut.begin : self.cut.end]
        words = [self.columns.word[name][index].strip().lower() for index in code[np.where(last >= 0, last, first)].tolist()]
        for word, track in zip(words, self.agent_id, strict=True):
            if word not in meaning:
                allowed = ", ".join(filter(None, meaning))
                raise SceneError(f"{name}: {word[:40]!r} (track {track!r}), expected one of {allowed}")
        return np.array([meaning[word] for word in words], np.uint8)

    def _numbers(self, name: str, limit: float, optional: bool = False) -> np.ndarray:
        """A column float64 [n], finite; if it is optional, an empty cell is NaN."""
        values = self.columns.number[name][self.cut.begin : self.cut.end].copy()
        empty = np.isnan(values)
        if not optional and empty.any():
            self._fail(name, "empty or NaN", int(empty.argmax()))
        if (beyond := np.abs(values) > limit).any():
            value = values[beyond.argmax()]
            problem = f"{value:.12g}, expected at most {limit:.4g} either way"
            self._fail(name, problem if np.isfinite(value) else "infinite or no number", int(beyond.argmax()))
        return values

    def _fail(self, name: str, problem: str, row: int) -> NoReturn:
        where = f"track {self.agent_id[self.agent[row]]!r}, step {self.step[row] + self.cut.first}"
        raise SceneError(f"{name}: {problem} ({where})")
