"""The tracks of one scene of a table: rows put in place by agent and step, and what they say, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from data_prep.readers.kinematics import estimate_motion
from data_prep.readers.table.cuts import Cut, Cuts
from data_prep.readers.table.file import Columns
from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.scene import AgentKind, AgentRole

LARGEST_M = 1e8  # a coordinate beyond this is broken
LARGEST_M_S = 1e4  # and a speed beyond this
_KINDS = {"": AgentKind.UNKNOWN} | {kind.name.lower(): kind for kind in AgentKind}
_ROLES = {"": AgentRole.CONTEXT} | {role.name.lower(): role for role in AgentRole}
_THINGS = (AgentKind.STATIC, AgentKind.BACKGROUND, AgentKind.CONSTRUCTION, AgentKind.RIDERLESS_BICYCLE)
_BLOCK = 1_000_000  # estimated at a time: agents times steps times steps


@dataclass(frozen=True, eq=False)
class Tracks:
    """Rows of one scene: A agents by id, T steps, n rows."""

    columns: Columns  # of the whole file
    cut: Cut
    step: np.ndarray  # int64 [n], 0 to T - 1
    agent: np.ndarray  # int64 [n]
    agent_id: tuple[str, ...]
    row: np.ndarray  # int64 [A, T], which of the n rows, -1 where there is none
    num_history: int

    @classmethod
    def of(cls, columns: Columns, cuts: Cuts, cut: Cut, num_history: int) -> Tracks:
        """Put the rows of a scene in place.

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
        """Where there is a row, bool [A, T]."""
        return self.row >= 0

    def dense(self, values: np.ndarray) -> np.ndarray:
        """Values [n, ...] of the rows as [A, T, ...], zero where there is no row."""
        out = np.zeros((*self.row.shape, *values.shape[1:]))
        out[self.agent, self.step] = values
        return out

    def position(self) -> np.ndarray:
        """Positions float64 [n, 2], metres."""
        return np.stack([self._numbers(name, LARGEST_M) for name in "xy"], -1)

    def motion(self, position: np.ndarray, period_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Heading [A, T] and velocity [A, T, 2], as the table says or else estimated from position [A, T, 2]."""
        unknown = np.full(len(self.step), np.nan)
        heading = self._numbers("heading", 2 * np.pi + 1e-6, optional=True) if "heading" in self.columns.number else unknown
        velocity = np.stack([unknown, unknown], -1)
        if "vx" in self.columns.number:
            velocity = np.stack([self._numbers(name, LARGEST_M_S, optional=True) for name in ("vx", "vy")], -1)
            if len(half := np.flatnonzero(np.isnan(velocity).any(1) & ~np.isnan(velocity).all(1))):
                self._fail("vx", "one of vx and vy is empty", half[0])
        guess = np.isnan(heading) | np.isnan(velocity[:, 0])
        agents = np.unique(self.agent[guess])
        for some in np.array_split(agents, max(1, len(agents) * self.row.shape[1] ** 2 // _BLOCK)):
            rows = self.row[some][self.valid[some]]
            v, h, _ = estimate_motion(position[some], self.valid[some], self.num_history, period_s)
            heading[rows] = np.where(np.isnan(heading[rows]), h[self.valid[some]], heading[rows])
            velocity[rows] = np.where(np.isnan(velocity[rows]), v[self.valid[some]], velocity[rows])
        outside = (heading <= -np.pi) | (heading > np.float32(np.pi))  # what needs no turn stays as it is, to the bit
        heading = np.where(outside, wrap(heading), heading)
        return self.dense(heading), self.dense(velocity)

    def kind(self) -> np.ndarray:
        """AgentKind uint8 [A]."""
        return self._words("kind", _KINDS, AgentKind.UNKNOWN)

    def role(self, kind: np.ndarray) -> np.ndarray:
        """AgentRole uint8 [A]; where the table has none, all are scored that are there now and were before.

        That depends on nothing but the observed steps. Things that do not move by themselves are context.

        Raises:
            SceneError: an unknown role, two focal agents, or nobody to predict.
        """
        seen = self.valid[:, : self.num_history]
        if "role" in self.columns.word:
            role = self._words("role", _ROLES, AgentRole.CONTEXT)
        else:
            scored = seen[:, -1] & (seen.sum(1) >= 2) & ~np.isin(kind, _THINGS)
            role = np.where(scored, AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8)
        focal = [self.agent_id[index] for index in np.flatnonzero(role == AgentRole.FOCAL)]
        if len(focal) > 1:
            raise SceneError(f"role: two tracks are focal, {focal[0]!r} and {focal[1]!r}")
        if not (seen.any(1) & (role != AgentRole.CONTEXT)).any():
            raise SceneError("role: no track to predict is seen in the history")
        return role

    def city(self) -> str:
        """The scene's city, "" where the table has none."""
        if "city" not in self.columns.word:
            return ""
        found = np.unique(self.columns.code["city"][self.cut.begin : self.cut.end]).tolist()
        if len(found) > 1:
            raise SceneError(f"city: {len(found)} of them in one scene")
        return self.columns.word["city"][found[0]]

    def last_seen(self) -> np.ndarray:
        """Row [A] of each agent's last observed step, -1 for one that was not observed."""
        observed = self.row[:, : self.num_history]
        last = self.num_history - 1 - (observed[:, ::-1] >= 0).argmax(1)
        return observed[np.arange(len(observed)), last]

    def _words(self, name: str, meaning: Mapping[str, int], default: int) -> np.ndarray:
        """What a text column says of each agent at its last observed step, or at its first where it is not observed."""
        if name not in self.columns.word:
            return np.full(len(self.agent_id), default, np.uint8)
        last = self.last_seen()
        first = self.row[np.arange(len(self.row)), self.valid.argmax(1)]
        code = self.columns.code[name][self.cut.begin : self.cut.end]
        words = [self.columns.word[name][index].strip().lower() for index in code[np.where(last >= 0, last, first)].tolist()]
        for word, track in zip(words, self.agent_id, strict=True):
            if word not in meaning:
                allowed = ", ".join(filter(None, meaning))
                raise SceneError(f"{name}: {word[:40]!r} (track {track!r}), expected one of {allowed}")
        return np.array([meaning[word] for word in words], np.uint8)

    def _numbers(self, name: str, largest: float, optional: bool = False) -> np.ndarray:
        """A column float64 [n]; finite, NaN where empty if it is optional."""
        values = self.columns.number[name][self.cut.begin : self.cut.end].copy()
        empty = np.isnan(values)
        if not optional and empty.any():
            self._fail(name, "empty or NaN", int(empty.argmax()))
        if (far := np.abs(values) > largest).any():
            value = values[far.argmax()]
            known = np.isfinite(value)
            problem = f"{value:.12g}, expected at most {largest:.4g} either way" if known else "infinite or no number"
            self._fail(name, problem, int(far.argmax()))
        return values

    def _fail(self, name: str, problem: str, row: int) -> NoReturn:
        where = f"track {self.agent_id[self.agent[row]]!r}, step {self.step[row] + self.cut.first}"
        raise SceneError(f"{name}: {problem} ({where})")
