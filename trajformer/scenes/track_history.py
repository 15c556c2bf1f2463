"""The recent past of live tracks: updates with a timestamp, brought to the steps of a clock.

**Clock.** If updates come at the period of the clock, with up to a tenth of it off, an update is a
step, as in the readers of recordings: the motion of tracks is as even as its steps. Other rates,
and jitter, are interpolated linearly in time between two updates of a track, which are at most one
second or two periods apart. Longer gaps stay gaps, and nothing is extrapolated. The last step is
always the last update.

**Timestamps.** Updates with equal timestamps are joined, the later values of a track count. A late
update, up to `MAX_LATE_S` before the last one, is put in its place. A later one, or
`MAX_LATE_UPDATES` in succession, mean that the clock was set back: the history begins again, with a
warning. After a leap forward, what is too old is forgotten, as after any pause.

The memory is bounded by the number of tracks and updates within the time that is kept.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from trajformer.errors import SceneError
from trajformer.scenes.geometry import wrap
from trajformer.scenes.spec import warn
from trajformer.scenes.track_columns import KIND_NOT_GIVEN, TrackColumns

MAX_LATE_S = 1.0
MAX_LATE_UPDATES = 3
MAX_GAP_S = 1.0  # is interpolated; at least two periods
MAX_OFF_STEP = 0.1  # periods between an update and its step
EQUAL_S = 1e-6  # timestamps that differ by less are equal
# An update should have all tracks of a moment. This many are 25 Hz over 80 s.
MAX_UPDATES = 2_000
MIN_CAPACITY = 16
_X_Y = slice(0, 2)
_HEADING = 2
_VELOCITY = slice(3, 5)
_NUM_VALUES = 5


class TrackSteps(NamedTuple):
    """A tracks at the H steps of a clock, the last one being the present.

    Attributes:
        ids: A ids.
        position: float64 [A, H, 2], metres, zero where not valid.
        heading: float64 [A, H], radians, NaN where not given.
        velocity: float64 [A, H, 2], m/s, NaN where not given.
        valid: bool [A, H].
        kind: uint8 [A], AgentKind.
        size: float64 [A, 2], length and width in metres, NaN where not given.
        now_s: timestamp of the present.
    """

    ids: tuple[Hashable, ...]
    position: np.ndarray
    heading: np.ndarray
    velocity: np.ndarray
    valid: np.ndarray
    kind: np.ndarray
    size: np.ndarray
    now_s: float


class TrackHistory:
    """Updates of the last seconds.

    Args:
        period_s: of the clock.
        num_history: H.
    """

    def __init__(self, period_s: float, num_history: int) -> None:
        self.period_s = period_s
        self.num_history = num_history
        self.max_gap_s = max(MAX_GAP_S, 2 * period_s)
        self._span_s = (num_history - 1) * period_s + self.max_gap_s
        self.clear()

    def clear(self) -> None:
        """Forget all updates."""
        self._time = np.full(MIN_CAPACITY, np.nan)  # of each row, NaN if the row is free
        self._values = np.zeros((MIN_CAPACITY, MIN_CAPACITY, _NUM_VALUES))
        self._present = np.zeros((MIN_CAPACITY, MIN_CAPACITY), np.bool_)
        self._slot: dict[Hashable, int] = {}
        self._free = list(range(MIN_CAPACITY))[::-1]  # slots
        self._last_seen = np.full(MIN_CAPACITY, np.inf)
        self._kind = np.zeros(MIN_CAPACITY, np.uint8)
        self._size = np.full((MIN_CAPACITY, 2), np.nan)
        self._late_updates = 0
        self.now_s: float | None = None

    @property
    def num_tracks(self) -> int:
        """Number of tracks that are kept."""
        return len(self._slot)

    @property
    def num_bytes(self) -> int:
        """Size of the arrays."""
        return self._values.nbytes + self._present.nbytes + self._time.nbytes

    def add(self, time_s: float, columns: TrackColumns) -> None:
        """Add an update (SceneError: the timestamp is no number, or too many updates are kept)."""
        if not np.isfinite(time_s):
            raise SceneError(f"timestamp_s: {time_s}, expected seconds")
        if self.now_s is not None:
            self._check_clock(time_s, self.now_s)
        row = self._row(time_s)
        slots = self._slots(columns.ids)
        self._present[row, slots] = True
        self._values[row, slots, _X_Y] = columns.position
        self._values[row, slots, _HEADING] = columns.heading
        self._values[row, slots, _VELOCITY] = columns.velocity
        last_seen = self._last_seen[slots]
        is_newest = ~(last_seen > time_s) | np.isinf(last_seen)
        newest = slots[is_newest]
        self._last_seen[newest] = time_s
        has_kind = columns.kind != KIND_NOT_GIVEN
        self._kind[slots[has_kind]] = columns.kind[has_kind]
        has_size = np.isfinite(columns.size).all(1)
        self._size[slots[has_size]] = columns.size[has_size]
        self.now_s = time_s if self.now_s is None else max(self.now_s, time_s)
        self._forget(self.now_s - self._span_s)

    def _check_clock(self, time_s: float, now_s: float) -> None:
        """Clear the history if the clock was set back."""
        delay_s = now_s - time_s
        if delay_s <= EQUAL_S:
            self._late_updates = 0
            return
        self._late_updates += 1
        if delay_s > MAX_LATE_S or self._late_updates >= MAX_LATE_UPDATES:
            warn(
                f"timestamp_s: the clock was set back by {delay_s:.3g} s: the history begins again"
            )
            self.clear()

    def _row(self, time_s: float) -> int:
        """The row of a time: the row of an equal time, or a free one."""
        equal = np.flatnonzero(np.abs(self._time - time_s) <= EQUAL_S)
        if len(equal):
            return int(equal[0])
        free = np.flatnonzero(np.isnan(self._time))
        if not len(free):
            count = len(self._time)
            if count >= MAX_UPDATES:
                raise SceneError(
                    f"update: {count} updates within {self._span_s:g} s, expected one update with "
                    "all tracks of a moment"
                )
            self._time = np.concatenate([self._time, np.full(count, np.nan)])
            self._values = np.concatenate([self._values, np.zeros_like(self._values)])
            self._present = np.concatenate([self._present, np.zeros_like(self._present)])
            free = np.array([count])
        row = int(free[0])
        self._time[row] = time_s
        return row

    def _slots(self, ids: tuple[Hashable, ...]) -> np.ndarray:
        """The slots int64 [n] of tracks; new tracks get a free one."""
        slots = []
        for name in ids:
            slot = self._slot.get(name)
            if slot is None:
                if not self._free:
                    self._add_slots()
                slot = self._free.pop()
                self._slot[name] = slot
            slots.append(slot)
        return np.array(slots, np.int64)

    def _add_slots(self) -> None:
        count = len(self._kind)
        self._free = list(range(count, 2 * count))[::-1]
        self._values = np.concatenate([self._values, np.zeros_like(self._values)], 1)
        self._present = np.concatenate([self._present, np.zeros_like(self._present)], 1)
        self._last_seen = np.concatenate([self._last_seen, np.full(count, np.inf)])
        self._kind = np.concatenate([self._kind, np.zeros(count, np.uint8)])
        self._size = np.concatenate([self._size, np.full((count, 2), np.nan)])

    def _forget(self, before_s: float) -> None:
        """Free the rows and tracks that were last seen before a time."""
        old_rows = np.flatnonzero(self._time < before_s)  # NaN is not
        self._time[old_rows] = np.nan
        self._present[old_rows] = False
        old_slots = self._last_seen < before_s
        if not old_slots.any():
            return
        for name in [name for name, slot in self._slot.items() if old_slots[slot]]:
            self._free.append(self._slot.pop(name))
        self._last_seen[old_slots] = np.inf
        self._kind[old_slots] = 0
        self._size[old_slots] = np.nan

    def steps(self) -> TrackSteps:
        """All tracks that have a valid step, by their last x; the arrays are copies.

        The order does not depend on older updates: forecasts are equal bit by bit only for agents
        in the same order.

        Raises SceneError: there was no update.
        """
        if self.now_s is None:
            raise SceneError("update: none yet, so there is nothing to forecast")
        rows = np.flatnonzero(~np.isnan(self._time))
        rows = rows[self._time[rows].argsort()]
        slots = np.fromiter(self._slot.values(), np.int64, len(self._slot))
        present = self._present[rows][:, slots]
        values = self._values[rows][:, slots]
        step = regular_steps(self._time[rows], self.period_s, self.num_history)
        if step is None:
            on_grid, valid = self._interpolated(self._time[rows], present, values)
        else:
            shape = (self.num_history, len(slots))
            on_grid = np.zeros((*shape, _NUM_VALUES))
            valid = np.zeros(shape, np.bool_)
            is_used = step >= 0
            on_grid[step[is_used]] = values[is_used]
            valid[step[is_used]] = present[is_used]

        kept = np.flatnonzero(valid.any(0))
        last = self.num_history - 1 - valid[::-1, kept].argmax(0)
        x, y = on_grid[last, kept, _X_Y].T
        kept = kept[np.lexsort((y, x))]
        on_grid = np.ascontiguousarray(on_grid[:, kept].transpose(1, 0, 2))  # [A, H, 5]
        valid = np.ascontiguousarray(valid[:, kept].T)
        on_grid[~valid] = 0.0
        ids = tuple(self._slot)
        return TrackSteps(
            ids=tuple([ids[index] for index in kept.tolist()]),
            position=on_grid[..., _X_Y],
            heading=on_grid[..., _HEADING],
            velocity=on_grid[..., _VELOCITY],
            valid=valid,
            kind=self._kind[slots[kept]],
            size=self._size[slots[kept]],
            now_s=self.now_s,
        )

    def _interpolated(
        self, time: np.ndarray, present: np.ndarray, values: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values [H, A, 5] and validity [H, A] at the steps, from n sorted updates [n, A, 5]."""
        num_updates, num_tracks = present.shape
        index = np.arange(num_updates)[:, None]
        before = np.maximum.accumulate(np.where(present, index, -1))
        after = np.where(present, index, num_updates)[::-1]
        after = np.minimum.accumulate(after)[::-1]
        nothing = np.full((1, num_tracks), num_updates)
        after = np.concatenate([after, nothing])  # after the last update

        steps_ago = np.arange(self.num_history - 1, -1, -1)
        grid = time[-1] - steps_ago * self.period_s  # [H]
        tolerance = max(EQUAL_S, 1e-4 * self.period_s)
        last = np.searchsorted(time, grid + tolerance, "right") - 1
        left = np.where(last[:, None] >= 0, before[last], -1)  # [H, A]
        right = after[last + 1]
        has_left = left >= 0
        left = np.maximum(left, 0)
        is_exact = has_left & (np.abs(time[left] - grid[:, None]) <= tolerance)
        has_right = right < num_updates
        right = np.where(is_exact | ~has_right, left, right)
        gap = time[right] - time[left]
        is_linked = has_left & has_right & (gap <= self.max_gap_s + tolerance)

        track = np.arange(num_tracks)
        start = values[left, track]
        change = values[right, track] - start
        change[..., _HEADING] = wrap(change[..., _HEADING])
        fraction = np.where(gap > 0, (grid[:, None] - time[left]) / np.maximum(gap, 1e-9), 0.0)
        result = np.where(is_exact[..., None], start, start + fraction[..., None] * change)
        result[..., _HEADING] = np.where(
            is_exact, start[..., _HEADING], wrap(result[..., _HEADING])
        )
        return result, is_exact | is_linked


def regular_steps(time: np.ndarray, period_s: float, num_history: int) -> np.ndarray | None:
    """The step int64 [n] of each sorted timestamp [n], negative if it is before the history.

    None if the timestamps are not those of a clock with this period.
    """
    interval = np.diff(time) / period_s
    is_recent = time[:-1] > time[-1] - num_history * period_s
    whole = np.rint(interval)
    recent = interval[is_recent]
    whole_recent = whole[is_recent]
    if len(recent):
        is_off = np.abs(recent - whole_recent) > MAX_OFF_STEP
        if is_off.any() or whole_recent.min() < 1 or np.median(whole_recent) != 1:
            return None
    steps_ago = np.append(whole[::-1].cumsum()[::-1], 0.0)
    step = num_history - 1 - steps_ago
    return np.where(np.append(is_recent, True), step, -1).astype(np.int64)
