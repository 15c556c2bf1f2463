"""Traffic simulation: car-following, stop lines, right of way, lane changes and crosswalks for all agents at once.

Vehicles follow the intelligent driver model (Treiber, Hennecke and Helbing, Physical Review E 62, 2000).
"""

from __future__ import annotations

import copy

import numpy as np

from data_prep.synthetic.agents import UPSTREAM_M, Fleet, Paths, Pedestrians, at_sample
from data_prep.synthetic.network import Array, Ints, Network

NUM_HISTORY = 50  # observed steps of 0.1 s
NUM_STEPS = 110
WARM_UP_TICKS = 30  # steps of the simulation before the first observed one
FUTURE_TICKS = (NUM_STEPS - NUM_HISTORY + 1) // 2
_STEP_S = 0.2  # the simulation's step
_MAX_BRAKE = -6.5
_SOFT_BRAKE = -2.6  # strongest braking for an agent that is not in the way yet


class Simulation:
    """State of one scene while it is simulated: N vehicles and W pedestrians."""

    def __init__(
        self, network: Network, fleet: Fleet, paths: Paths, pedestrians: Pedestrians
    ) -> None:
        self.network, self.fleet, self.paths, self.pedestrians = network, fleet, paths, pedestrians
        count = len(fleet.kind)
        self.row, self.other = (
            np.arange(count),
            fleet.other.copy(),
        )  # [N] index of the path, and as in `Fleet`
        # The relevant lanes of each agent, gathered once per route instead of once per step: [4, N, L].
        self.view = paths.relevant[:, self.row]
        self.at, self.speed, self.accel = fleet.at, fleet.speed, np.zeros(count)
        self.gate = np.zeros(count, dtype=np.int64)  # number of the next junction along the path
        self.granted = np.zeros(count, dtype=np.bool_)  # whether the agent may enter this junction
        self.walked, self.pace = pedestrians.at, pedestrians.speed
        self.may_cross = np.zeros(len(pedestrians.arm), dtype=np.bool_)
        self.crossing = np.zeros(
            len(network.arms), dtype=np.bool_
        )  # whether a pedestrian is on the crosswalk
        self.history: list[
            tuple[Array, Array, Array, Array]
        ] = []  # at, speed, walked and pace after each step
        self.half_sum = (fleet.length[:, None] + fleet.length[None, :]) / 2
        narrow = fleet.width < 2.2
        # Cars pass cyclists at the edge of the lane, and these pass cars.
        self.passing = (fleet.edge[:, None] != fleet.edge) & narrow[:, None] & narrow
        self.notself = ~np.eye(count, dtype=np.bool_)
        # Rank of a lane through a junction: lower enters first, left turns last.
        minor = [
            bool(k.arms) and k.arms[0].junction.control == "priority" and not k.arms[0].major
            for k in network.lanes
        ]
        self.rank = [
            2 * int(behind) + int(lane.turn == 1)
            for lane, behind in zip(network.lanes, minor, strict=True)
        ]
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
        fork.paths, fork.view = paths, paths.relevant[:, self.row]
        return fork

    def motion(self) -> tuple[Array, Array, Array, Array]:
        """Return path length and speed [N, T] of the vehicles and of the pedestrians [W, T] at all T steps of 0.1 s."""
        at, speed, walked, pace = (
            np.stack(part, axis=1) for part in zip(*self.history[WARM_UP_TICKS - 1 :], strict=True)
        )
        return *_refine(at, speed), *_refine(walked, pace)

    def _advance(self) -> None:
        time = len(self.history) * _STEP_S
        number = (self.at[:, None] >= self.paths.start[self.row]).sum(axis=1) - 1
        lane = self.paths.lane[self.row, np.maximum(number, 0)]
        along = self.at - self.paths.relevant[0, self.row, lane]
        fleet, speed, paths = self.fleet, self.speed, self.paths
        passed = self.at - fleet.length / 2 > paths.clear[self.row, self.gate]
        self.granted &= ~passed
        self.gate += passed
        line = (
            paths.stop[self.row, self.gate] - self.at - fleet.length / 2
        )  # distance to the next stop line
        reach = (
            speed**2 / 3.4 + speed + 7.0
        )  # distance at which a decision is needed, enough to stop comfortably
        self._grant(time, line, reach)
        stopping = ((0.7 + 0.3 * speed + speed**2 / self.brake_root) / np.maximum(line, 0.25)) ** 2
        interaction = self._following(lane, along, line)
        interaction = np.where(
            ~self.granted & (line < reach + 3.0), np.maximum(interaction, stopping), interaction
        )
        desired = np.maximum(
            at_sample(self.paths.profile, self.row, self.at + 0.5 * speed + UPSTREAM_M), 0.5
        )
        free = np.where(
            speed <= desired,
            fleet.accel * (1.0 - (speed / desired) ** 4),
            np.maximum((desired - speed) / 0.6, -3.0),
        )
        accel = np.clip(free - fleet.accel * interaction, _MAX_BRAKE, fleet.accel)
        accel = np.clip(accel, self.accel - 2.4, self.accel + 0.8)  # jerk
        self.speed = np.maximum(speed + accel * _STEP_S, 0.0)
        self.accel = (self.speed - speed) / _STEP_S
        before = self.at
        self.at = self.at + 0.5 * (speed + self.speed) * _STEP_S
        self._change_lanes(before, lane, along)
        self._walk(time)
        self.history.append((self.at, self.speed, self.walked, self.pace))

    def _following(self, lane: Ints, along: Array, line: Array) -> Array:
        """Return the strongest car-following interaction term [N] (to be scaled by ``accel``)."""
        interaction = self._interaction(lane, along, line, np.arange(len(lane)))
        begin, end = self.paths.change[self.row].T
        moving = np.flatnonzero((self.at >= begin) & (self.at <= end))
        if len(moving):  # an agent that changes lanes still occupies the lane it leaves
            left = self.paths.change_from[self.row[moving]]
            rest = self.at[moving] - self.paths.relevant[0, self.row[moving], left]
            interaction = np.maximum(interaction, self._interaction(left, rest, line, moving))
        return interaction

    def _interaction(self, lane: Ints, along: Array, line: Array, others: Ints) -> Array:
        """Return the interaction [N] with agents ``others`` [M], ``along`` [M] metres on ``lane`` [M]."""
        fleet, speed = self.fleet, self.speed[:, None]
        origin, low, high, merging = np.take(self.view, lane, axis=2)
        distance = origin + along - self.at[:, None]
        near = (
            (along >= low)
            & (along <= high)
            & (distance > 0.0)
            & (distance < 120.0)
            & self.notself[:, others]
        )
        # A moving car moves over to pass a cyclist; a cyclist stays behind a standing car.
        flows = fleet.edge[others] | (self.speed[others] > 2.5)
        near &= ~(self.passing[:, others] & (line > 30.0)[:, None] & flows)
        gap = np.maximum(distance - self.half_sum[:, others], 0.25)
        closing = speed * (speed - self.speed[others]) / self.brake_root[:, None]
        desired_gap = fleet.standstill[:, None] + np.maximum(
            speed * fleet.headway[:, None] + closing, 0.0
        )
        interaction = (desired_gap / gap) ** 2
        soft = (merging > 0.0) | self.passing[:, others]
        interaction = np.where(
            soft, np.minimum(interaction, 1.0 - _SOFT_BRAKE / fleet.accel[:, None]), interaction
        )
        return np.where(near, interaction, 0.0).max(axis=1, initial=0.0)

    def _grant(self, time: float, distance: Array, reach: Array) -> None:
        """Let agents into junctions: one at a time, and only if no other agent crosses their path."""
        network, inside = self.network, self.paths.gate[self.row, self.gate]
        asking = np.flatnonzero(~self.granted & (inside >= 0) & (distance < reach))
        eta = distance / np.maximum(self.speed, 2.0)
        rank = {int(i): self.rank[inside[i]] for i in asking}
        first: dict[int, int] = {}  # the nearest agent of each lane
        for i in asking[np.argsort(distance[asking], kind="stable")]:
            first.setdefault(network.lanes[inside[i]].predecessors[0], int(i))
        for i in sorted(first.values(), key=lambda agent: (rank[agent], float(eta[agent]))):
            lane = network.lanes[inside[i]]
            stops = lane.arms[0].junction.control == "stop"
            if not lane.arms[0].green(time) or any(self.crossing[arm.index] for arm in lane.arms):
                continue
            if stops and (self.speed[i] > 0.7 or distance[i] > 3.5):
                continue
            rivals = [
                j for j in rank
                if rank[j] < rank[i] and eta[j] < eta[i] + 3.5 and eta[j] < 6.0 and network.lanes[inside[j]].arms[0].green(time)
            ]  # fmt: skip
            blocking = (
                inside[self.granted]
                if stops
                else np.concatenate((inside[self.granted], inside[rivals]))
            )
            self.granted[i] = not network.conflict[lane.index, blocking].any()

    def _change_lanes(self, before: Array, lane: Ints, along: Array) -> None:
        """At the beginning of a lane change, switch to the path with it if the gap is large enough; otherwise drop it."""
        paths = self.paths
        begin = paths.change[self.other, 0]
        for i in np.flatnonzero((self.other >= 0) & (self.at >= begin)):
            row, self.other[i] = int(self.other[i]), -1
            origin, low, high, _ = paths.relevant[:, row, lane]
            distance = origin + along - before[i]
            relevant = (along >= low) & (along <= high) & self.notself[i] & (lane != lane[i])
            gap = np.abs(distance) - self.half_sum[i]
            faster = np.maximum(
                np.where(distance < 0, self.speed - self.speed[i], self.speed[i] - self.speed), 0.0
            )
            room = 3.0 + 0.5 * self.speed[i] + 2.0 * faster
            gates = paths.gate[[self.row[i], row], self.gate[i]]
            committed = (
                self.granted[i] and gates[0] != gates[1]
            )  # the lane through the junction is settled
            if self.speed[i] > 3.0 and not committed and not (relevant & (gap < room)).any():
                self.row[i], self.view[:, i] = row, paths.relevant[:, row]

    def _walk(self, time: float) -> None:
        """Move the pedestrians; at the kerb they wait until no vehicle is about to drive over the crosswalk."""
        walkers = self.pedestrians
        before_end = self.walked < walkers.across
        at_kerb = (self.walked > walkers.kerb - 2.0) & before_end & ~self.may_cross
        if at_kerb.any():
            free = np.array(
                [
                    arm.junction.control != "signal" or not arm.green(time)
                    for arm in self.network.arms
                ]
            )
            for i in np.flatnonzero(
                self.granted
            ):  # inside a junction, with a crosswalk still ahead
                row, gate = self.row[i], self.gate[i]
                source, target = self.network.lanes[self.paths.gate[row, gate]].arms
                free[target.index] = False
                free[source.index] &= (
                    self.at[i] - self.fleet.length[i] / 2 >= self.paths.enter[row, gate]
                )
            self.may_cross |= at_kerb & free[walkers.arm]
        stop = ~self.may_cross & (self.walked > walkers.kerb - 1.0) & before_end
        stop |= self.walked > walkers.end - 0.6
        pace = self.pace + np.clip(np.where(stop, 0.0, walkers.speed) - self.pace, -0.4, 0.25)
        self.walked = self.walked + 0.5 * (self.pace + pace) * _STEP_S
        self.pace = pace
        self.crossing = np.zeros_like(self.crossing)
        self.crossing[walkers.arm[self.may_cross & (self.walked < walkers.across)]] = True


def _refine(position: Array, velocity: Array) -> tuple[Array, Array]:
    """Insert a step of 0.1 s between two steps, exact for speeds that change linearly."""
    between = position[:, :-1] + _STEP_S / 8.0 * (3.0 * velocity[:, :-1] + velocity[:, 1:])
    refined = np.empty((2, len(position), 2 * position.shape[1] - 1))
    refined[0, :, ::2], refined[0, :, 1::2] = position, between
    refined[1, :, ::2], refined[1, :, 1::2] = velocity, 0.5 * (velocity[:, :-1] + velocity[:, 1:])
    return refined[0, :, :NUM_STEPS], refined[1, :, :NUM_STEPS]
