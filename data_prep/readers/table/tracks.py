"""The tracks of one scene of a table."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from data_prep.readers.columns import cells, fill
from data_prep.readers.table.estimates import MAX_COORDINATE_M, RowEstimates
from data_prep.readers.table.table_file import SIZE, TableColumns
from data_prep.readers.table.windows import Cut
from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.kinematics import estimate_motion, look_ahead_steps
from trajformer.scenes.lane_heading import face_along_lanes
from trajformer.scenes.scene import MAX_SIZE_M, AgentKind, AgentRole, Scene
from trajformer.scenes.vector_map import VectorMap

MAX_SPEED_M_S = 1e4
MAX_HEADING = 2 * np.pi + 1e-6
KINDS = {"": AgentKind.UNKNOWN} | {kind.name.lower(): kind for kind in AgentKind}
ROLES = {"": AgentRole.CONTEXT} | {role.name.lower(): role for role in AgentRole}
_TWO_ROWS = "track_id (--drop-duplicates true uses the first row)"
_IMMOBILE = (
    AgentKind.STATIC,
    AgentKind.BACKGROUND,
    AgentKind.CONSTRUCTION,
    AgentKind.RIDERLESS_BICYCLE,
)


class TableTracks:
    """The n rows of one scene as A agents by id with T steps.

    Attributes:
        columns: the columns of the rows.
        agent_id: ids of the A agents, sorted.
        valid: bool [A, T], True where an agent has a row.
        row: index of the row, int64 [A, T], -1 without a row.
        last_observed: row int64 [A] of the last observed step, -1 without one.
    """

    def __init__(self, columns: TableColumns, step: np.ndarray, cut: Cut, num_history: int) -> None:
        """Arrange rows, of which `step` (int64 [n]) is the step.

        Raises SceneError: a track has no name or two rows for one step.
        """
        self.columns = columns
        self.num_history = num_history
        self._first_step = cut.first_step
        self._step = step
        present, self._agent = np.unique(columns.code["track_id"], return_inverse=True)
        self.agent_id = tuple(columns.word["track_id"][code] for code in present.tolist())
        if "" in self.agent_id or any("\n" in name for name in self.agent_id):
            raise SceneError("track_id: empty or with a line break")
        step_in_scene = step - cut.first_step
        self._cell, self.valid = cells(
            self.agent_id, self._agent, step_in_scene, cut.num_steps, _TWO_ROWS
        )
        self.row = self.fill(np.arange(1, len(step) + 1)) - 1
        observed = self.row[:, :num_history]
        last_step = num_history - 1 - (observed[:, ::-1] >= 0).argmax(1)
        self.last_observed = observed[np.arange(len(observed)), last_step]

    def fill(self, values: np.ndarray) -> np.ndarray:
        """Values [n, ...] of the rows as [A, T, ...], zero without a row."""
        return fill(self.valid, self._cell, values)

    def position(self) -> np.ndarray:
        """Positions float64 [n, 2], metres."""
        columns = [self._required(name, MAX_COORDINATE_M) for name in "xy"]
        return np.stack(columns, -1)

    def has_motion(self) -> bool:
        """Whether all rows have a heading and a velocity."""
        names = ("heading", "vx", "vy")
        if not all(name in self.columns.number for name in names):
            return False
        return not any(np.isnan(self.columns.number[name]).any() for name in names)

    def motion(
        self, position: np.ndarray, period_s: float, estimates: RowEstimates | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Motion of the agents from the table.

        Missing values are estimated from position [A, T, 2] and from `estimates` of the rows, which
        know the rows before the scene. They are None if all rows have a motion.

        Returns:
            heading [A, T], velocity [A, T, 2], and the length [A, T] of `Motion`, infinite if the
            heading is given.
        """
        heading = self._optional("heading", MAX_HEADING).copy()
        vx = self._optional("vx", MAX_SPEED_M_S)
        vy = self._optional("vy", MAX_SPEED_M_S)
        has_one = np.isnan(vx) != np.isnan(vy)
        if has_one.any():
            raise SceneError(f"vx: one of vx and vy is empty {self._where(has_one)}")
        velocity = np.stack([vx, vy], -1)
        length = np.full(len(heading), np.inf)

        # Estimate missing values.
        no_heading = np.isnan(heading)
        no_velocity = np.isnan(vx)
        if estimates is not None:
            self._look_ahead(position, period_s, estimates)
            heading[no_heading] = estimates.motion.heading[no_heading]
            velocity[no_velocity] = estimates.motion.velocity[no_velocity]
            length[no_heading] = estimates.motion.length[no_heading]

        # Headings in (-pi, pi] keep all their bits.
        is_outside = (heading <= -np.pi) | (heading > np.float32(np.pi))
        heading = np.where(is_outside, wrap(heading), heading)
        return self.fill(heading), self.fill(velocity), self.fill(length)

    def _look_ahead(self, position: np.ndarray, period_s: float, estimates: RowEstimates) -> None:
        """Replace the estimates of the first steps of tracks, which look ahead in the scene."""
        num_steps = look_ahead_steps(period_s) - 1
        first_row = self.row[np.arange(len(self.row)), self.valid.argmax(1)]
        first_step = estimates.first_step[first_row] - self._first_step
        new = np.flatnonzero(first_step > -num_steps)
        is_early = np.arange(self.valid.shape[1]) < first_step[new, None] + num_steps
        is_early &= self.valid[new]
        rows = self.row[new][is_early]
        motion = estimate_motion(position[new], self.valid[new], self.num_history, period_s)
        for values, replacement in zip(estimates.motion, motion, strict=True):
            values[rows] = replacement[is_early]

    def face_lanes(
        self,
        heading: np.ndarray,
        length: np.ndarray,
        xy: np.ndarray,
        kind: np.ndarray,
        lanes: VectorMap,
    ) -> np.ndarray:
        """Headings [A, T] that do not follow from a motion of some `length` [A, T] along lanes.

        `xy` [n, 2] are the positions of the rows and `kind` [A] is AgentKind.
        """
        is_vehicle = ~np.isin(kind, (AgentKind.PEDESTRIAN, *_IMMOBILE))
        return face_along_lanes(heading, length, self.fill(xy), self.valid, is_vehicle, lanes)

    def role(self, kind: np.ndarray, short_loss: int) -> np.ndarray:
        """AgentRole uint8 [A] of agents with AgentKind `kind` [A].

        Without the column, agents with two observed rows are scored, if the last one is at most
        `short_loss` steps before the last observed step. This depends on the observed steps only.
        Objects that cannot move without help are context. Raises SceneError: an unknown role, two
        focal agents, or no agent to predict.
        """
        observed = self.valid[:, : self.num_history]
        role = self.words("role", ROLES)
        if "role" not in self.columns.word:
            is_recent = observed[:, -1 - short_loss :].any(1)
            is_seen = is_recent & (observed.sum(1) >= 2)
            role[is_seen & ~np.isin(kind, _IMMOBILE)] = AgentRole.SCORED
        focal = [self.agent_id[index] for index in np.flatnonzero(role == AgentRole.FOCAL)]
        if len(focal) > 1:
            raise SceneError(f"role: two tracks are focal, {focal[0]!r} and {focal[1]!r}")
        if not (observed.any(1) & (role != AgentRole.CONTEXT)).any():
            raise SceneError("role: no track to predict is seen in the history")
        return role

    def with_size(self, scene: Scene) -> Scene:
        """The scene with lengths and widths of its agents, if the table has both columns.

        They are in the row of the last observed step, like kind and role; 0 is not known.
        """
        if not set(SIZE) <= set(self.columns.number):
            return scene
        size = np.stack([self._optional(name, MAX_SIZE_M) for name in SIZE], -1)
        size = np.nan_to_num(size)[self._described_row()]
        if (size < 0).any():
            raise SceneError("length: a length or width is negative")
        return replace(scene, agent_size=size.astype(np.float32))

    def city(self) -> str:
        """City of the scene, "" without the column."""
        if "city" not in self.columns.word:
            return ""
        codes = np.unique(self.columns.code["city"])
        if len(codes) > 1:
            raise SceneError(f"city: {len(codes)} cities in one scene")
        return self.columns.word["city"][codes[0]]

    def words(self, name: str, meaning: Mapping[str, int]) -> np.ndarray:
        """Values uint8 [A] of a text column, the meaning of one word of each agent.

        It is in the row of the last observed step, or of the first step of an agent that was never
        observed.
        """
        if name not in self.columns.word:
            return np.full(len(self.agent_id), meaning[""], np.uint8)
        codes = self.columns.code[name][self._described_row()].tolist()
        values = []
        for track, code in zip(self.agent_id, codes, strict=True):
            word = self.columns.word[name][code].strip().lower()
            if word not in meaning:
                allowed = ", ".join(filter(None, meaning))
                raise SceneError(
                    f"{name}: {word[:40]!r} (track {track!r}), expected one of {allowed}"
                )
            values.append(meaning[word])
        return np.array(values, np.uint8)

    def _described_row(self) -> np.ndarray:
        """Row int64 [A] of the last observed step, or of the first step of an unobserved agent."""
        first = self.row[np.arange(len(self.row)), self.valid.argmax(1)]
        return np.where(self.last_observed >= 0, self.last_observed, first)

    def _required(self, name: str, limit: float) -> np.ndarray:
        """A column float64 [n] of numbers up to a limit; SceneError for an empty cell."""
        is_empty = np.isnan(self.columns.number[name])
        if is_empty.any():
            raise SceneError(f"{name}: empty or NaN {self._where(is_empty)}")
        return self._optional(name, limit)

    def _optional(self, name: str, limit: float) -> np.ndarray:
        """A column float64 [n] of numbers up to a limit; NaN in empty cells and missing columns."""
        if name not in self.columns.number:
            return np.full(len(self._step), np.nan)
        values = self.columns.number[name]
        is_beyond = np.abs(values) > limit
        if is_beyond.any():
            value = values[is_beyond.argmax()]
            problem = "infinite or no number"
            if np.isfinite(value):
                problem = f"{value:.12g}, expected at most {limit:.4g} either way"
            remedy = "; degrees need --angle-unit deg" if name == "heading" else ""
            raise SceneError(f"{name}: {problem} {self._where(is_beyond)}{remedy}")
        return values

    def _where(self, is_wrong: np.ndarray) -> str:
        """The first row with True in `is_wrong`, for messages."""
        row = int(is_wrong.argmax())
        return f"(track {self.agent_id[self._agent[row]]!r}, step {self._step[row]})"
