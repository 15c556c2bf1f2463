"""Traffic simulation of all agents at once.

It models car-following, stop lines, right of way, lane changes and crosswalks. Vehicles follow the
intelligent driver model (Treiber, Hennecke and Helbing, Physical Review E 62, 2000).
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import numpy as np

from data_prep.synthetic.curves import Array, Bools, Ints
from data_prep.synthetic.network import Network
from data_prep.synthetic.paths import UPSTREAM_M, Paths, at_sample
from data_prep.synthetic.pedestrians import Pedestrians
from data_prep.synthetic.vehicles import Fleet

NUM_HISTORY = 50  # observed steps of 0.1 s
NUM_STEPS = 110
WARM_UP_TICKS = 30  # steps of the simulation before the first observed one
FUTURE_TICKS = (NUM_STEPS - NUM_HISTORY + 1) // 2
_STEP_S = 0.2  # the simulation's step
_MAX_BRAKE = -6.5
_SOFT_BRAKE = -2.6  # strongest braking for an agent that is not in the way yet
_NARROW_M = 2.2  # vehicles of a smaller width and cyclists pass each other


class Motion(NamedTuple):
    """Path length (metres) and speed (m/s) of N vehicles and W pedestrians at T steps of 0.1 s."""

    at: Array  # [N, T]
    speed: Array  # [N, T]
    walked: Array  # [W, T]
    pace: Array  # [W, T]


class Simulation:
    """State of one scene while it is simulated: N vehicles and W pedestrians."""

    def __init__(
        self, network: Network, fleet: Fleet, paths: Paths, pedestrians: Pedestrians
    ) -> None:
        self.network = network
        self.fleet = fleet
        self.paths = paths
        self.pedestrians = pedestrians

        # State of the vehicles.
        count = len(fleet.kind)
        self.row = np.arange(count)  # [N] index of the path
        self.other = fleet.other.copy()  # [N] as in `Fleet`
        # [4, N, L] the relevant lanes of each agent, gathered once per route, not once per step.
        self.view = paths.relevant[:, self.row]
        self.at = fleet.at
        self.speed = fleet.speed
        self.accel = np.zeros(count)
        self.gate = np.zeros(count, dtype=np.int64)  # number of the next junction along the path
        self.granted = np.zeros(count, dtype=np.bool_)  # whether the agent may enter this junction

        # State of the pedestrians and the crosswalks.
        self.walked = pedestrians.at
        self.pace = pedestrians.speed
        self.may_cross = np.zeros(len(pedestrians.arm), dtype=np.bool_)
        self.crossing = np.zeros(len(network.arms), dtype=np.bool_)  # a pedestrian is on it

        self.history: list[tuple[Array, Array, Array, Array]] = []  # `Motion` after each step

        # Constants.
        self.half_sum = (fleet.length[:, None] + fleet.length[None, :]) / 2
        # Cars pass cyclists at the edge of the lane, and these pass cars.
        narrow = fleet.width < _NARROW_M
        both_narrow = narrow[:, None] & narrow
        self.passing = (fleet.edge[:, None] != fleet.edge) & both_narrow
        self.is_other = ~np.eye(count, dtype=np.bool_)
        self.rank = _lane_ranks(network)
        self.brake_root = 2.0 * np.sqrt(fleet.accel * fleet.brake)

    def advance(self, ticks: int) -> None:
        """Simulate ``ticks`` more steps of 0.2 s."""
        for _ in range(ticks):
            self._advance()

    def fork(self, paths: Paths) -> Simulation:
        """Copy the current state for other paths, equal up to here."""
        fork = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray | list):
                setattr(fork, name, value.copy())
        fork.paths = paths
        fork.view = paths.relevant[:, self.row]
        return fork

    def motion(self) -> Motion:
        """Return the motion at all T steps of 0.1 s."""
        parts = zip(*self.history[WARM_UP_TICKS - 1 :], strict=True)
        at, speed, walked, pace = [np.stack(part, axis=1) for part in parts]
        return Motion(*_refine(at, speed), *_refine(walked, pace))

    # ---- one step ------------------------------------------------------------------------------

    def _advance(self) -> None:
        time = len(self.history) * _STEP_S
        fleet = self.fleet
        paths = self.paths
        speed = self.speed
        rear = self.at - fleet.length / 2
        lane = self._current_lane()
        along = self.at - paths.relevant[0, self.row, lane]

        # An agent that has passed a junction looks at the next one.
        passed = rear > paths.clear[self.row, self.gate]
        self.granted &= ~passed
        self.gate += passed
        stop_line = paths.stop[self.row, self.gate]
        line_m = stop_line - self.at - fleet.length / 2  # distance to the stop line
        # Distance at which a decision is needed, enough to stop comfortably.
        reach_m = speed**2 / 3.4 + speed + 7.0
        self._grant(time, line_m, reach_m)

        # The stop line of a junction acts like a standing vehicle.
        interaction = self._following(lane, along, line_m)
        stopping_m = 0.7 + 0.3 * speed + speed**2 / self.brake_root
        stopping = (stopping_m / np.maximum(line_m, 0.25)) ** 2
        must_stop = ~self.granted & (line_m < reach_m + 3.0)
        interaction = np.where(must_stop, np.maximum(interaction, stopping), interaction)

        accel = np.clip(
            self._free_acceleration() - fleet.accel * interaction, _MAX_BRAKE, fleet.accel
        )
        accel = np.clip(accel, self.accel - 2.4, self.accel + 0.8)  # jerk
        self.speed = np.maximum(speed + accel * _STEP_S, 0.0)
        self.accel = (self.speed - speed) / _STEP_S
        before = self.at
        self.at = self.at + 0.5 * (speed + self.speed) * _STEP_S
        self._change_lanes(before, lane, along)
        self._walk(time)
        self.history.append((self.at, self.speed, self.walked, self.pace))

    def _current_lane(self) -> Ints:
        """Return the lane [N] of each agent."""
        number = (self.at[:, None] >= self.paths.start[self.row]).sum(axis=1) - 1
        return self.paths.lane[self.row, np.maximum(number, 0)]

    def _free_acceleration(self) -> Array:
        """Return the acceleration [N] towards the desired speed on an empty road."""
        speed = self.speed
        ahead = self.at + 0.5 * speed + UPSTREAM_M
        desired = np.maximum(at_sample(self.paths.profile, self.row, ahead), 0.5)
        speeding_up = self.fleet.accel * (1.0 - (speed / desired) ** 4)
        slowing_down = np.maximum((desired - speed) / 0.6, -3.0)
        return np.where(speed <= desired, speeding_up, slowing_down)

    # ---- car-following -------------------------------------------------------------------------

    def _following(self, lane: Ints, along: Array, line_m: Array) -> Array:
        """Return the strongest car-following term [N] (to be scaled by ``accel``)."""
        interaction = self._interaction(lane, along, line_m, np.arange(len(lane)))
        begin, end = self.paths.change[self.row].T
        changing = np.flatnonzero((self.at >= begin) & (self.at <= end))
        if len(changing):  # an agent that changes lanes still occupies the lane it leaves
            row = self.row[changing]
            left_lane = self.paths.change_from[row]
            along_left = self.at[changing] - self.paths.relevant[0, row, left_lane]
            left_term = self._interaction(left_lane, along_left, line_m, changing)
            interaction = np.maximum(interaction, left_term)
        return interaction

    def _interaction(self, lane: Ints, along: Array, line_m: Array, others: Ints) -> Array:
        """Return the term [N] of agents ``others`` [M], ``along`` [M] metres on ``lane`` [M]."""
        fleet = self.fleet
        speed = self.speed[:, None]
        other_speed = self.speed[others]
        origin, low, high, merging = np.take(self.view, lane, axis=2)
        distance = origin + along - self.at[:, None]
        on_stretch = (along >= low) & (along <= high)
        near = on_stretch & (distance > 0.0) & (distance < 120.0) & self.is_other[:, others]
        # A moving car moves over to pass a cyclist; a cyclist stays behind a standing car.
        passing = self.passing[:, others]
        flows = fleet.edge[others] | (other_speed > 2.5)
        far_from_line = (line_m > 30.0)[:, None]
        near &= ~(passing & far_from_line & flows)

        gap = np.maximum(distance - self.half_sum[:, others], 0.25)
        closing = speed * (speed - other_speed) / self.brake_root[:, None]
        dynamic_gap = np.maximum(speed * fleet.headway[:, None] + closing, 0.0)
        desired_gap = fleet.standstill[:, None] + dynamic_gap
        interaction = (desired_gap / gap) ** 2
        max_soft = 1.0 - _SOFT_BRAKE / fleet.accel[:, None]
        is_soft = (merging > 0.0) | passing
        interaction = np.where(is_soft, np.minimum(interaction, max_soft), interaction)
        return np.where(near, interaction, 0.0).max(axis=1, initial=0.0)

    # ---- junctions -----------------------------------------------------------------------------

    def _grant(self, time: float, line_m: Array, reach_m: Array) -> None:
        """Let agents into junctions: one at a time, and only if no other agent crosses its path."""
        lanes = self.network.lanes
        inside = self.paths.gate[self.row, self.gate]
        asking = np.flatnonzero(~self.granted & (inside >= 0) & (line_m < reach_m))
        eta = line_m / np.maximum(self.speed, 2.0)  # estimated time of arrival
        rank = {int(i): self.rank[inside[i]] for i in asking}
        first_of_lane: dict[int, int] = {}  # the nearest agent of each lane
        for i in asking[np.argsort(line_m[asking], kind="stable")]:
            lane_before = lanes[inside[i]].predecessors[0]
            first_of_lane.setdefault(lane_before, int(i))

        order = sorted(first_of_lane.values(), key=lambda agent: (rank[agent], float(eta[agent])))
        for i in order:
            lane = lanes[inside[i]]
            crosswalk_is_used = any(self.crossing[arm.index] for arm in lane.arms)
            if crosswalk_is_used or not lane.arms[0].green(time):
                continue
            blocking = inside[self.granted]
            if lane.arms[0].junction.control == "stop":
                has_stopped = self.speed[i] <= 0.7 and line_m[i] <= 3.5
                if not has_stopped:
                    continue
            else:
                rivals = self._rivals(i, rank, eta, inside, time)
                blocking = np.concatenate((blocking, inside[rivals]))
            self.granted[i] = not self.network.conflict[lane.index, blocking].any()

    def _rivals(
        self, agent: int, rank: dict[int, int], eta: Array, inside: Ints, time: float
    ) -> list[int]:
        """Return the agents with priority over ``agent`` that arrive soon."""
        rivals = []
        for other, other_rank in rank.items():
            arrives_soon = eta[other] < eta[agent] + 3.5 and eta[other] < 6.0
            if other_rank < rank[agent] and arrives_soon:
                source = self.network.lanes[inside[other]].arms[0]
                if source.green(time):
                    rivals.append(other)
        return rivals

    # ---- lane changes --------------------------------------------------------------------------

    def _change_lanes(self, before: Array, lane: Ints, along: Array) -> None:
        """Switch to the path with a lane change where it begins, or drop it if the gap is small.

        ``before`` [N] are the path lengths at the beginning of the step, ``lane`` and ``along`` [N]
        the lane and the position on it at that time.
        """
        begin = self.paths.change[self.other, 0]
        for i in np.flatnonzero((self.other >= 0) & (self.at >= begin)).tolist():
            new_row = int(self.other[i])
            self.other[i] = -1
            # The lane through the junction is settled if entry has been granted.
            gates = self.paths.gate[[self.row[i], new_row], self.gate[i]]
            is_committed = self.granted[i] and gates[0] != gates[1]
            if self.speed[i] <= 3.0 or is_committed:
                continue
            if self._gap_is_free(i, new_row, before[i], lane, along):
                self.row[i] = new_row
                self.view[:, i] = self.paths.relevant[:, new_row]

    def _gap_is_free(self, i: int, row: int, at: float, lane: Ints, along: Array) -> bool:
        """Return whether agent ``i`` has enough space on path ``row`` at path length ``at``."""
        origin, low, high, _ = self.paths.relevant[:, row, lane]
        distance = origin + along - at
        on_stretch = (along >= low) & (along <= high)
        relevant = on_stretch & self.is_other[i] & (lane != lane[i])
        gap = np.abs(distance) - self.half_sum[i]
        # Agents behind may be faster, those in front slower.
        speed_gap = self.speed - self.speed[i]
        closing = np.maximum(np.where(distance < 0, speed_gap, -speed_gap), 0.0)
        min_gap = 3.0 + 0.5 * self.speed[i] + 2.0 * closing
        return not (relevant & (gap < min_gap)).any()

    # ---- pedestrians ---------------------------------------------------------------------------

    def _walk(self, time: float) -> None:
        """Move the pedestrians.

        At the kerb they wait until no vehicle is about to drive over the crosswalk.
        """
        walkers = self.pedestrians
        before_end = self.walked < walkers.across
        at_kerb = (self.walked > walkers.kerb - 2.0) & before_end & ~self.may_cross
        if at_kerb.any():
            self.may_cross |= at_kerb & self._free_crosswalks(time)[walkers.arm]
        waits = ~self.may_cross & (self.walked > walkers.kerb - 1.0) & before_end
        has_arrived = self.walked > walkers.end - 0.6
        desired = np.where(waits | has_arrived, 0.0, walkers.speed)
        pace = self.pace + np.clip(desired - self.pace, -0.4, 0.25)
        self.walked = self.walked + 0.5 * (self.pace + pace) * _STEP_S
        self.pace = pace
        is_crossing = self.may_cross & (self.walked < walkers.across)
        self.crossing = np.zeros_like(self.crossing)
        self.crossing[walkers.arm[is_crossing]] = True

    def _free_crosswalks(self, time: float) -> Bools:
        """Return for each arm whether no vehicle is about to drive over its crosswalk."""
        free = np.ones(len(self.network.arms), dtype=np.bool_)
        for arm in self.network.arms:
            if arm.junction.control == "signal":
                free[arm.index] = not arm.green(time)
        # Vehicles inside a junction still have a crosswalk ahead.
        for i in np.flatnonzero(self.granted):
            row = self.row[i]
            gate = self.gate[i]
            source, target = self.network.lanes[self.paths.gate[row, gate]].arms
            free[target.index] = False
            rear = self.at[i] - self.fleet.length[i] / 2
            free[source.index] &= rear >= self.paths.enter[row, gate]
        return free


def _lane_ranks(network: Network) -> list[int]:
    """Return the rank of each lane through a junction: lower enters first, left turns last."""
    ranks = []
    for lane in network.lanes:
        yields = False
        if lane.arms:
            source = lane.arms[0]
            yields = source.junction.control == "priority" and not source.major
        ranks.append(2 * int(yields) + int(lane.turn == 1))
    return ranks


def _refine(position: Array, velocity: Array) -> tuple[Array, Array]:
    """Insert a step of 0.1 s between two steps, exact for speeds that change linearly."""
    start_velocity = velocity[:, :-1]
    end_velocity = velocity[:, 1:]
    moved = _STEP_S / 8.0 * (3.0 * start_velocity + end_velocity)
    between_position = position[:, :-1] + moved
    between_velocity = 0.5 * (start_velocity + end_velocity)
    return _interleave(position, between_position), _interleave(velocity, between_velocity)


def _interleave(values: Array, between: Array) -> Array:
    """Return the first T of ``values`` [N, S] with ``between`` [N, S - 1] between them."""
    refined = np.empty((len(values), 2 * values.shape[1] - 1))
    refined[:, ::2] = values
    refined[:, 1::2] = between
    return refined[:, :NUM_STEPS]
