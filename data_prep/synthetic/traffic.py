"""Traffic simulation: car-following, stop lines, right of way, lane changes and crosswalks for all agents at once.

Vehicles follow the intelligent driver model (Treiber, Hennecke and Helbing, Physical Review E 62, 2000).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from data_prep.synthetic.agents import Fleet, Pedestrians
from data_prep.synthetic.curves import Array, Bools, Ints
from data_prep.synthetic.network import Lane, Network
from data_prep.synthetic.routes import Paths, at_path

STEP_S = 0.2  # the simulation's step
WARM_UP_STEPS = 30
_MAX_BRAKE = -6.5
_SOFT_BRAKE = -2.6  # strongest braking for an agent that is not in the way yet
_STATE = ("at", "speed", "accel", "gate", "granted", "walked", "pace", "may_cross", "crossing")

Snapshot = tuple[Array, Array, Array, Array]  # at, speed, walked and pace at one moment


@dataclass(frozen=True, slots=True)
class Motion:
    """Simulated motion along the paths: N vehicles and W pedestrians over T steps at 10 Hz."""

    at: Array  # [N, T] path length, metres
    speed: Array  # [N, T] m/s
    row: Ints  # [N] index of the path
    walked: Array  # [W, T] path length, metres
    pace: Array  # [W, T] m/s


def motion_of(history: list[Snapshot], row: Ints, steps: int) -> Motion:
    """Return the first ``steps`` 10 Hz steps of a simulation's ``history`` along the paths ``row`` [N]."""
    at, speed, walked, pace = (np.stack(part, axis=1) for part in zip(*history, strict=True))

    def refine(position: Array, velocity: Array) -> tuple[Array, Array]:
        """Insert a step between two steps, exact for speeds that change linearly."""
        between = position[:, :-1] + STEP_S / 8.0 * (3.0 * velocity[:, :-1] + velocity[:, 1:])
        mean_velocity = 0.5 * (velocity[:, :-1] + velocity[:, 1:])
        return _interleave(position, between)[:, :steps], _interleave(velocity, mean_velocity)[:, :steps]

    return Motion(*refine(at, speed), row, *refine(walked, pace))


def _interleave(values: Array, between: Array) -> Array:
    """Return [N, 2K - 1] from ``values`` [N, K] and the values ``between`` [N, K - 1] them."""
    out = np.empty((values.shape[0], 2 * values.shape[1] - 1))
    out[:, ::2], out[:, 1::2] = values, between
    return out


class Simulation:
    """State of one scene while it is simulated."""

    def __init__(self, network: Network, fleet: Fleet, paths: Paths, pedestrians: Pedestrians) -> None:
        self.network, self.fleet, self.paths, self.pedestrians, self.tick = network, fleet, paths, pedestrians, 0
        count = len(fleet.kind)
        self.row, self.other = fleet.row.copy(), fleet.other.copy()
        # The relevant lanes of each agent, gathered once per route instead of once per step: [4, N, L].
        self.view = np.stack((paths.origin, paths.low, paths.high, paths.soft))[:, self.row]
        self.at, self.speed = fleet.at.copy(), fleet.speed.copy()
        self.accel = np.zeros(count)
        self.gate = np.zeros(count, dtype=np.int64)  # number of the next junction along the path
        self.granted = np.zeros(count, dtype=np.bool_)  # whether the agent may enter this junction
        self.walked, self.pace = pedestrians.at.copy(), pedestrians.speed.copy()
        self.may_cross = np.zeros(len(pedestrians.arm), dtype=np.bool_)
        self.crossing = np.zeros(len(network.arms), dtype=np.bool_)  # whether a pedestrian is on the crosswalk
        self.half_sum = (fleet.length[:, None] + fleet.length[None, :]) / 2
        narrow = fleet.width < 2.2
        # Cars pass cyclists at the edge of the lane, and these pass cars.
        one_rides = fleet.edge[:, None] != fleet.edge[None, :]
        self.passing = one_rides & narrow[:, None] & narrow[None, :]
        self.notself = ~np.eye(count, dtype=np.bool_)
        self.rank = [_priority(network, lane) for lane in network.lanes]
        self.brake_root = 2.0 * np.sqrt(fleet.accel * fleet.brake)

    def advance(self, ticks: int) -> list[Snapshot]:
        """Simulate ``ticks`` more steps of 0.2 s and return the state after each."""
        history = []
        for _ in range(ticks):
            self._advance(self.tick * STEP_S)
            self.tick += 1
            history.append(self.snapshot())
        return history

    def snapshot(self) -> Snapshot:
        """Return the current path lengths and speeds of all agents."""
        return self.at, self.speed, self.walked, self.pace

    def fork(self, paths: Paths, profile: Array) -> Simulation:
        """Copy the current state for other paths, equal up to here, with desired speeds ``profile`` [R, P]."""
        fleet = replace(self.fleet, profile=profile, row=self.row.copy(), other=self.other.copy())
        fork = Simulation(self.network, fleet, paths, self.pedestrians)
        for name in _STATE:
            setattr(fork, name, getattr(self, name).copy())
        fork.tick = self.tick
        return fork

    def _advance(self, time: float) -> None:
        lane, along = self._locate()
        self._grant(time)
        interaction = np.maximum(self._following(lane, along), self._stop_lines())
        fleet, speed = self.fleet, self.speed
        desired = np.maximum(at_path(fleet.profile, self.row, self.at + 0.5 * speed), 0.5)
        free = np.where(speed <= desired, fleet.accel * (1.0 - (speed / desired) ** 4), np.maximum((desired - speed) / 0.6, -3.0))
        accel = np.clip(free - fleet.accel * interaction, _MAX_BRAKE, fleet.accel)
        accel = np.clip(accel, self.accel - 2.4, self.accel + 0.8)  # jerk
        next_speed = np.maximum(speed + accel * STEP_S, 0.0)
        self.accel = (next_speed - speed) / STEP_S
        before = self.at
        self.at = self.at + 0.5 * (speed + next_speed) * STEP_S
        self.speed = next_speed
        self._change_lanes(before, lane, along)
        self._walk(time)

    def _locate(self) -> tuple[Ints, Array]:
        """Return the lane [N] of each agent and its position along that lane [N]."""
        number = (self.at[:, None] >= self.paths.start[self.row]).sum(axis=1) - 1
        lane = self.paths.lane[self.row, np.maximum(number, 0)]
        return lane, self.at - self.paths.origin[self.row, lane]

    def _following(self, lane: Ints, along: Array) -> Array:
        """Return the strongest car-following interaction term [N] (to be scaled by ``accel``)."""
        interaction = self._interaction(lane, along, np.arange(len(lane)))
        change = self.paths.change[self.row]
        moving = np.flatnonzero((self.at >= change[:, 0]) & (self.at <= change[:, 1]))
        if len(moving):  # an agent that changes lanes still occupies the lane it leaves
            left = self.paths.change_from[self.row[moving]]
            rest = self.at[moving] - self.paths.origin[self.row[moving], left]
            interaction = np.maximum(interaction, self._interaction(left, rest, moving))
        return interaction

    def _interaction(self, lane: Ints, along: Array, others: Ints) -> Array:
        """Return the interaction [N] with agents ``others`` [M], ``along`` [M] metres on ``lane`` [M]."""
        fleet = self.fleet
        origin, low, high, merging = np.take(self.view, lane, axis=2)
        distance = origin + along - self.at[:, None]
        near = (along >= low) & (along <= high) & (distance > 0.0) & (distance < 120.0)
        near &= self.notself[:, others]
        soft = (merging > 0.0) | self.passing[:, others]
        if self.fleet.edge.any():
            away = self._distance_to_line() > 30.0
            # A moving car moves over to pass a cyclist; a cyclist stays behind a standing car.
            flows = fleet.edge[others] | (self.speed[others] > 2.5)
            near &= ~(self.passing[:, others] & away[:, None] & flows)
        gap = np.maximum(distance - self.half_sum[:, others], 0.25)
        speed = self.speed[:, None]
        closing = speed * (speed - self.speed[None, others]) / self.brake_root[:, None]
        desired_gap = fleet.standstill[:, None] + np.maximum(speed * fleet.headway[:, None] + closing, 0.0)
        interaction = (desired_gap / gap) ** 2
        soft_limit = 1.0 - _SOFT_BRAKE / fleet.accel[:, None]
        interaction = np.where(soft, np.minimum(interaction, soft_limit), interaction)
        return np.asarray(np.where(near, interaction, 0.0).max(axis=1, initial=0.0), dtype=np.float64)

    def _distance_to_line(self) -> Array:
        return self.paths.stop[self.row, self.gate] - self.at - self.fleet.length / 2

    def _stop_lines(self) -> Array:
        """Return the interaction term [N] with the stop line of a junction that may not be entered yet."""
        distance, speed = self._distance_to_line(), self.speed
        seen = ~self.granted & (distance < self._reach() + 3.0)
        desired_gap = 0.7 + 0.3 * speed + speed**2 / self.brake_root
        return np.where(seen, (desired_gap / np.maximum(distance, 0.25)) ** 2, 0.0)

    def _reach(self) -> Array:
        """Return the distance [N] before a line at which a decision is needed, enough to stop comfortably."""
        return self.speed**2 / 3.4 + self.speed + 7.0

    def _grant(self, time: float) -> None:
        """Let agents into junctions: one at a time, and only if no other agent crosses their path."""
        paths, network, fleet = self.paths, self.network, self.fleet
        passed = self.at - fleet.length / 2 > paths.clear[self.row, self.gate]
        self.granted &= ~passed
        self.gate += passed
        inside = paths.gate[self.row, self.gate]
        distance = self._distance_to_line()
        asking = np.flatnonzero(~self.granted & (inside >= 0) & (distance < self._reach()))
        eta = distance / np.maximum(self.speed, 2.0)
        rank = {int(i): self.rank[inside[i]] for i in asking}
        first: dict[int, int] = {}  # the nearest agent of each lane
        for i in asking[np.argsort(distance[asking], kind="stable")]:
            first.setdefault(network.lanes[inside[i]].predecessors[0], int(i))
        for i in sorted(first.values(), key=lambda agent: (rank[agent], float(eta[agent]))):
            lane = network.lanes[inside[i]]
            arm = network.arms[lane.arms[0]]
            junction = network.junctions[lane.junction]
            if not junction.green(arm.phase, time) or self.crossing[list(lane.arms)].any():
                continue
            if junction.control == "stop" and (self.speed[i] > 0.7 or distance[i] > 3.5):
                continue
            if network.conflict[lane.index, inside[self.granted]].any():
                continue
            rivals = [j for j in rank if rank[j] < rank[i] and eta[j] < eta[i] + 3.5 and eta[j] < 6.0]
            if junction.control != "stop" and any(
                network.conflict[lane.index, inside[j]]
                and junction.green(network.arms[network.lanes[inside[j]].arms[0]].phase, time)
                for j in rivals
            ):
                continue
            self.granted[i] = True

    def _change_lanes(self, before: Array, lane: Ints, along: Array) -> None:
        """At the beginning of a lane change, switch to the path with it if the gap is large enough; otherwise drop it."""
        begin = self.paths.change[self.other, 0]
        for i in np.flatnonzero((self.other >= 0) & (self.at >= begin) & (self.row != self.other)):
            row = int(self.other[i])
            self.other[i] = -1
            distance = self.paths.origin[row, lane] + along - before[i]
            relevant = (along >= self.paths.low[row, lane]) & (along <= self.paths.high[row, lane]) & self.notself[i]
            relevant &= lane != lane[i]
            gap = np.abs(distance) - self.half_sum[i]
            faster = np.maximum(np.where(distance < 0, self.speed - self.speed[i], self.speed[i] - self.speed), 0.0)
            room = 3.0 + 0.5 * self.speed[i] + 2.0 * faster
            gates = self.paths.gate[[self.row[i], row], self.gate[i]]
            committed = self.granted[i] and gates[0] != gates[1]  # the lane through the junction is settled
            if self.speed[i] > 3.0 and not committed and not (relevant & (gap < room)).any():
                self.row[i] = row
                paths = self.paths
                self.view[:, i] = paths.origin[row], paths.low[row], paths.high[row], paths.soft[row]

    def _walk(self, time: float) -> None:
        """Move the pedestrians; at the kerb they wait until no vehicle is about to drive over the crosswalk."""
        pedestrians, network = self.pedestrians, self.network
        if not len(pedestrians.arm):
            return
        at_kerb = (self.walked > pedestrians.kerb - 2.0) & (self.walked < pedestrians.across) & ~self.may_cross
        if at_kerb.any():
            free = ~self._driven_over()
            for arm in network.arms:
                junction = network.junctions[arm.junction]
                free[arm.index] &= junction.control != "signal" or not junction.green(arm.phase, time)
            self.may_cross |= at_kerb & free[pedestrians.arm]
        stop = ~self.may_cross & (self.walked > pedestrians.kerb - 1.0) & (self.walked < pedestrians.across)
        stop |= self.walked > pedestrians.end - 0.6
        target = np.where(stop, 0.0, pedestrians.speed)
        pace = self.pace + np.clip(target - self.pace, -0.4, 0.25)
        self.walked = self.walked + 0.5 * (self.pace + pace) * STEP_S
        self.pace = pace
        on_road = self.may_cross & (self.walked < pedestrians.across)
        self.crossing = np.zeros(len(network.arms), dtype=np.bool_)
        self.crossing[pedestrians.arm[on_road]] = True

    def _driven_over(self) -> Bools:
        """Return per arm whether an agent inside the junction has this crosswalk still ahead."""
        used = np.zeros(len(self.network.arms), dtype=np.bool_)
        inside = self.paths.gate[self.row, self.gate]
        rear = self.at - self.fleet.length / 2
        for i in np.flatnonzero(self.granted):
            source, target = self.network.lanes[inside[i]].arms
            used[target] = True
            used[source] |= bool(rear[i] < self.paths.enter[self.row[i], self.gate[i]])
        return used


def _priority(network: Network, lane: Lane) -> int:
    """Return the rank of a lane through a junction: lower enters first, left turns last."""
    if lane.junction < 0:
        return 0
    minor = network.junctions[lane.junction].control == "priority" and not network.arms[lane.arms[0]].major
    return 2 * int(minor) + int(lane.turn == 1)
