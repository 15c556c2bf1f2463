"""The simulation: car-following, stop lines, right of way, lane changes and crosswalks for all at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from data_prep.synthetic.agents import Fleet
from data_prep.synthetic.curves import Array, Bools, Ints
from data_prep.synthetic.junction import Network
from data_prep.synthetic.motion import STEP_S, Motion, Snapshot, motion_of
from data_prep.synthetic.paths import Paths, at_path
from data_prep.synthetic.road import Lane
from data_prep.synthetic.walkers import Walkers

WARM_UP_S = 6.0
_HARDEST_BRAKE = -6.5
_SOFT_BRAKE = -2.6  # nobody brakes harder than this for somebody who is not yet in the way
_STATE = ("at", "speed", "accel", "gate", "granted", "walked", "pace", "may_cross", "crossing")


class Simulation:
    """State of one scene while it is simulated.

    Args:
        network: the streets.
        fleet: vehicles and cyclists.
        paths: where they go.
        walkers: pedestrians.
    """

    def __init__(self, network: Network, fleet: Fleet, paths: Paths, walkers: Walkers) -> None:
        self.network, self.fleet, self.paths, self.walkers, self.tick = network, fleet, paths, walkers, 0
        count = len(fleet.kind)
        self.row, self.other = fleet.row.copy(), fleet.other.copy()
        # Which lanes matter to whom, gathered once per route instead of once per step: [4, N, L].
        self.view = np.stack((paths.origin, paths.low, paths.high, paths.soft))[:, self.row]
        self.at, self.speed = fleet.at.copy(), fleet.speed.copy()
        self.accel = np.zeros(count)
        self.gate = np.zeros(count, dtype=np.int64)  # number of the next junction along the path
        self.granted = np.zeros(count, dtype=np.bool_)
        self.walked, self.pace = walkers.at.copy(), walkers.speed.copy()
        self.may_cross = np.zeros(len(walkers.arm), dtype=np.bool_)
        self.crossing = np.zeros(len(network.arms), dtype=np.bool_)
        self.half_sum = (fleet.length[:, None] + fleet.length[None, :]) / 2
        narrow = fleet.width < 2.2
        # Cars pass cyclists that keep to the edge of the lane and the other way round.
        one_rides = fleet.edge[:, None] != fleet.edge[None, :]
        self.passing = one_rides & narrow[:, None] & narrow[None, :]
        self.notself = ~np.eye(count, dtype=np.bool_)
        self.rank = [_rank(network, lane) for lane in network.lanes]
        self.brake_root = 2.0 * np.sqrt(fleet.accel * fleet.brake)

    def run(self, steps: int) -> Motion:
        """Simulate the warm-up and then ``steps`` steps of 0.1 s, and return the motion during the latter."""
        self.advance(round(WARM_UP_S / STEP_S))
        return motion_of([self.snapshot(), *self.advance((steps + 1) // 2)], self.row, steps)

    def advance(self, ticks: int) -> list[Snapshot]:
        """Simulate ``ticks`` more steps of 0.2 s and return the moment after each."""
        history = []
        for _ in range(ticks):
            self._advance(self.tick * STEP_S)
            self.tick += 1
            history.append(self.snapshot())
        return history

    def snapshot(self) -> Snapshot:
        """Return how far everybody has come by now, and how fast they are."""
        return self.at, self.speed, self.walked, self.pace

    def fork(self, paths: Paths, profile: Array) -> Simulation:
        """Return the same moment with other paths that are the same up to here, and wanted speeds [R, P] along them."""
        fleet = replace(self.fleet, profile=profile, row=self.row.copy(), other=self.other.copy())
        fork = Simulation(self.network, fleet, paths, self.walkers)
        for name in _STATE:
            setattr(fork, name, getattr(self, name).copy())
        fork.tick = self.tick
        return fork

    def _advance(self, time: float) -> None:
        lane, along = self._locate()
        self._grant(time)
        push = np.maximum(self._followers(lane, along), self._lines())
        fleet, speed = self.fleet, self.speed
        wanted = np.maximum(at_path(fleet.profile, self.row, self.at + 0.5 * speed), 0.5)
        free = np.where(
            speed <= wanted,
            fleet.accel * (1.0 - (speed / wanted) ** 4),
            np.maximum((wanted - speed) / 0.6, -3.0),
        )
        accel = np.clip(free - fleet.accel * push, _HARDEST_BRAKE, fleet.accel)
        accel = np.clip(accel, self.accel - 2.4, self.accel + 0.8)  # jerk
        following = np.maximum(speed + accel * STEP_S, 0.0)
        self.accel = (following - speed) / STEP_S
        before = self.at
        self.at = self.at + 0.5 * (speed + following) * STEP_S
        self.speed = following
        self._change_lanes(before, lane, along)
        self._walk(time)

    def _locate(self) -> tuple[Ints, Array]:
        """Return the lane [N] everybody is on and how far along it [N] they are."""
        number = (self.at[:, None] >= self.paths.start[self.row]).sum(axis=1) - 1
        lane = self.paths.lane[self.row, np.maximum(number, 0)]
        return lane, self.at - self.paths.origin[self.row, lane]

    def _followers(self, lane: Ints, along: Array) -> Array:
        """Return the strongest car-following interaction term [N] (to be scaled by ``accel``)."""
        push = self._push(lane, along, np.arange(len(lane)))
        change = self.paths.change[self.row]
        moving = np.flatnonzero((self.at >= change[:, 0]) & (self.at <= change[:, 1]))
        if len(moving):  # who changes lanes still occupies the lane it leaves
            left = self.paths.change_from[self.row[moving]]
            rest = self.at[moving] - self.paths.origin[self.row[moving], left]
            push = np.maximum(push, self._push(left, rest, moving))
        return push

    def _push(self, lane: Ints, along: Array, who: Ints) -> Array:
        """Return the interaction [N] with agents ``who`` [M], ``along`` [M] metres on ``lane`` [M]."""
        fleet = self.fleet
        origin, low, high, merging = np.take(self.view, lane, axis=2)
        distance = origin + along - self.at[:, None]
        near = (along >= low) & (along <= high) & (distance > 0.0) & (distance < 120.0)
        near &= self.notself[:, who]
        soft = (merging > 0.0) | self.passing[:, who]
        if self.fleet.edge.any():
            away = self._distance_to_line() > 30.0
            # A car moves over to pass a cyclist; a car that stands cannot, and the cyclist stays behind it.
            flows = fleet.edge[who] | (self.speed[who] > 2.5)
            near &= ~(self.passing[:, who] & away[:, None] & flows)
        gap = np.maximum(distance - self.half_sum[:, who], 0.25)
        speed = self.speed[:, None]
        closing = speed * (speed - self.speed[None, who]) / self.brake_root[:, None]
        wish = fleet.standstill[:, None] + np.maximum(speed * fleet.headway[:, None] + closing, 0.0)
        push = (wish / gap) ** 2
        mildest = 1.0 - _SOFT_BRAKE / fleet.accel[:, None]
        push = np.where(soft, np.minimum(push, mildest), push)
        return np.asarray(np.where(near, push, 0.0).max(axis=1, initial=0.0), dtype=np.float64)

    def _distance_to_line(self) -> Array:
        return self.paths.stop[self.row, self.gate] - self.at - self.fleet.length / 2

    def _lines(self) -> Array:
        """Return the interaction term [N] with the stop line of a junction that may not be entered yet."""
        distance, speed = self._distance_to_line(), self.speed
        seen = ~self.granted & (distance < self._reach() + 3.0)
        wish = 0.7 + 0.3 * speed + speed**2 / self.brake_root
        return np.where(seen, (wish / np.maximum(distance, 0.25)) ** 2, 0.0)

    def _reach(self) -> Array:
        """Return the distance [N] before a line at which a decision is needed, enough to stop comfortably."""
        return self.speed**2 / 3.4 + self.speed + 7.0

    def _grant(self, time: float) -> None:
        """Let agents into junctions: one at a time, and only where nobody crosses their way."""
        paths, network, fleet = self.paths, self.network, self.fleet
        self.granted &= self.at - fleet.length / 2 <= paths.clear[self.row, self.gate]
        passed = self.at - fleet.length / 2 > paths.clear[self.row, self.gate]
        self.gate += passed
        inside = paths.gate[self.row, self.gate]
        distance = self._distance_to_line()
        asking = np.flatnonzero(~self.granted & (inside >= 0) & (distance < self._reach()))
        if not len(asking):
            return
        eta = distance / np.maximum(self.speed, 2.0)
        rank = {int(i): self.rank[inside[i]] for i in asking}
        first: dict[int, int] = {}
        for i in asking[np.argsort(distance[asking], kind="stable")]:
            first.setdefault(network.lanes[inside[i]].predecessors[0], int(i))
        for i in sorted(first.values(), key=lambda who: (rank[who], float(eta[who]))):
            way = network.lanes[inside[i]]
            arm = network.arms[way.arms[0]]
            junction = network.junctions[way.junction]
            if not junction.green(arm.phase, time) or self.crossing[list(way.arms)].any():
                continue
            if junction.control == "stop" and (self.speed[i] > 0.7 or distance[i] > 3.5):
                continue
            if network.conflict[way.index, inside[self.granted]].any():
                continue
            rivals = [j for j in rank if rank[j] < rank[i] and eta[j] < eta[i] + 3.5 and eta[j] < 6.0]
            if junction.control != "stop" and any(
                network.conflict[way.index, inside[j]]
                and junction.green(network.arms[network.lanes[inside[j]].arms[0]].phase, time)
                for j in rivals
            ):
                continue
            self.granted[i] = True

    def _change_lanes(self, before: Array, lane: Ints, along: Array) -> None:
        """Switch to the path with the lane change where it begins, if there is room; else forget it."""
        begin = self.paths.change[self.other, 0]
        for i in np.flatnonzero((self.other >= 0) & (self.at >= begin) & (self.row != self.other)):
            row = int(self.other[i])
            self.other[i] = -1
            distance = self.paths.origin[row, lane] + along - before[i]
            counts = (along >= self.paths.low[row, lane]) & (along <= self.paths.high[row, lane]) & self.notself[i]
            counts &= lane != lane[i]
            gap = np.abs(distance) - self.half_sum[i]
            faster = np.maximum(np.where(distance < 0, self.speed - self.speed[i], self.speed[i] - self.speed), 0.0)
            room = 3.0 + 0.5 * self.speed[i] + 2.0 * faster
            gates = self.paths.gate[[self.row[i], row], self.gate[i]]
            promised = self.granted[i] and gates[0] != gates[1]  # the way through the junction is settled
            if self.speed[i] > 3.0 and not promised and not (counts & (gap < room)).any():
                self.row[i] = row
                paths = self.paths
                self.view[:, i] = paths.origin[row], paths.low[row], paths.high[row], paths.soft[row]

    def _walk(self, time: float) -> None:
        """Move the pedestrians; one at the kerb waits until nobody is about to drive over the crosswalk."""
        walkers, network = self.walkers, self.network
        if not len(walkers.arm):
            return
        at_kerb = (self.walked > walkers.kerb - 2.0) & (self.walked < walkers.across) & ~self.may_cross
        if at_kerb.any():
            free = ~self._driven_over()
            for arm in network.arms:
                junction = network.junctions[arm.junction]
                free[arm.index] &= junction.control != "signal" or not junction.green(arm.phase, time)
            self.may_cross |= at_kerb & free[walkers.arm]
        stop = ~self.may_cross & (self.walked > walkers.kerb - 1.0) & (self.walked < walkers.across)
        stop |= self.walked > walkers.end - 0.6
        target = np.where(stop, 0.0, walkers.speed)
        pace = self.pace + np.clip(target - self.pace, -0.4, 0.25)
        self.walked = self.walked + 0.5 * (self.pace + pace) * STEP_S
        self.pace = pace
        on_road = self.may_cross & (self.walked < walkers.across)
        self.crossing = np.zeros(len(network.arms), dtype=np.bool_)
        self.crossing[walkers.arm[on_road]] = True

    def _driven_over(self) -> Bools:
        """Return per arm whether somebody in the junction has its crosswalk still ahead."""
        used = np.zeros(len(self.network.arms), dtype=np.bool_)
        inside = self.paths.gate[self.row, self.gate]
        rear = self.at - self.fleet.length / 2
        for i in np.flatnonzero(self.granted):
            source, target = self.network.lanes[inside[i]].arms
            used[target] = True
            used[source] |= bool(rear[i] < self.paths.enter[self.row[i], self.gate[i]])
        return used


def _rank(network: Network, lane: Lane) -> int:
    """Return the priority of a way through a junction, lower goes first; left turns go last."""
    if lane.junction < 0:
        return 0
    minor = network.junctions[lane.junction].control == "priority" and not network.arms[lane.arms[0]].major
    return 2 * int(minor) + int(lane.turn == 1)
