"""The lanes of a street network: along its roads and through its junctions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data_prep.synthetic.curves import (
    Array,
    arc_length,
    at_length,
    bridge,
    distance,
    headings,
    offset,
    wrap,
)
from data_prep.synthetic.network import BIKE_WIDTH_M, Arm, Junction, Lane, Network, Road, RoadSpec

_CLEARANCE_M = 2.9  # two vehicles cannot use two paths at the same time that come closer than this
_STRAIGHT_RAD = 0.6  # movements with a smaller change of direction count as straight
_NUM_SAMPLES = 14  # points of a lane inside a junction that are compared with other lanes


def add_lanes(network: Network) -> None:
    """Add the lanes of all roads and junctions, and compare the lanes inside each junction."""
    for road in network.roads:
        _add_road_lanes(road, network.lanes)
    for junction in network.junctions:
        for source in junction.arms:
            _add_connectors(source, network.lanes)
    count = len(network.lanes)
    network.common_length_m = np.zeros((count, count))
    network.conflict = np.zeros((count, count), dtype=np.bool_)
    for junction in network.junctions:
        _compare_lanes(network, junction)


def _link(before: Lane, after: Lane) -> None:
    before.successors.append(after.index)
    after.predecessors.append(before.index)


# ---- along a road ------------------------------------------------------------------------------


def _add_road_lanes(road: Road, lanes: list[Lane]) -> None:
    """Append all lane segments of ``road`` to ``lanes``; link them along and across the road."""
    for section in range(road.num_sections):
        for forward in (True, False):
            _add_section(road, lanes, section, forward)
        forward_lane = lanes[road.lanes[section, True]["0"]]
        backward_lane = lanes[road.lanes[section, False]["0"]]
        forward_lane.left_neighbor = backward_lane.index
        backward_lane.left_neighbor = forward_lane.index

    outermost = str(road.spec.lanes - 1)
    for (section, forward), names in road.lanes.items():
        next_section = section + 1 if forward else section - 1
        following = road.lanes.get((next_section, forward))
        if following is None:
            continue
        for name, index in names.items():
            # A lane that ends here runs into the outermost motor lane.
            lanes[index].merging = name not in following
            successor = following.get(name, following[outermost])
            _link(lanes[index], lanes[successor])


class _Strip(NamedTuple):
    """A lane in the cross-section of a road."""

    kind: str
    center: Array  # [N] distance from the middle of the road, metres
    width: float


def _add_section(road: Road, lanes: list[Lane], section: int, forward: bool) -> None:
    """Append the lanes of one direction in one section, innermost first."""
    strips = _cross_section(road, section, forward)
    first = len(lanes)
    last = first + len(strips) - 1
    road.lanes[section, forward] = {name: first + i for i, name in enumerate(strips)}
    for index, strip in enumerate(strips.values(), first):
        lane = Lane(
            index=index,
            center=_parallel(road, section, forward, strip.center),
            left=_parallel(road, section, forward, strip.center - strip.width / 2),
            right=_parallel(road, section, forward, strip.center + strip.width / 2),
            width=strip.width,
            kind=strip.kind,
            speed=road.spec.speed,
            marks=_marks(road.spec, strip, index == first, index == last),
        )
        if index > first:
            lane.left_neighbor = index - 1
        if index < last:
            lane.right_neighbor = index + 1
        lanes.append(lane)


def _marks(spec: RoadSpec, strip: _Strip, innermost: bool, outermost: bool) -> tuple[str, str]:
    """Return the paint on the left and right boundary of a lane."""
    left = "DASHED_WHITE"
    if innermost and spec.double_line:
        left = "DOUBLE_SOLID_YELLOW"
    elif innermost:
        left = "DASHED_YELLOW"
    elif strip.kind != "VEHICLE":
        left = "SOLID_WHITE"
    right = "DASHED_WHITE"
    if outermost and spec.parking:
        right = "NONE"
    elif outermost:
        right = "SOLID_WHITE"
    return left, right


def _cross_section(road: Road, section: int, forward: bool) -> dict[str, _Strip]:
    """Return the lanes of one direction in one section by name, innermost first."""
    spec = road.spec
    ones = np.ones(len(road.points[road.section_slice(section)]))
    strips = {}
    for i in range(spec.lanes):
        strips[str(i)] = _Strip("VEHICLE", ones * (i + 0.5) * spec.width, spec.width)
    if spec.bus:
        outermost = str(spec.lanes - 1)
        strips[outermost] = strips[outermost]._replace(kind="BUS")
    profile = road.merge_profile(section, forward)
    if profile is not None:
        strips["merge"] = _Strip("VEHICLE", profile, spec.width)
    if spec.bike:
        center = spec.lanes * spec.width + BIKE_WIDTH_M / 2
        strips["bike"] = _Strip("BIKE", ones * center, BIKE_WIDTH_M)
    return strips


def _parallel(road: Road, section: int, forward: bool, outward: Array) -> Array:
    """Return a line [N, 2] in driving direction, ``outward`` [N] m from the middle of the road."""
    vertices = road.section_slice(section)
    points = road.points[vertices]
    heading = road.heading[vertices]
    if forward:
        return offset(points, heading, -1.0 * outward)
    return offset(points, heading, outward)[::-1]


# ---- through a junction ------------------------------------------------------------------------


def _add_connectors(source: Arm, lanes: list[Lane]) -> None:
    """Append a lane, linked to the roads, for every permitted movement from ``source``."""
    turns = {arm: _turn(source, arm) for arm in source.junction.arms if arm is not source}
    entering = [lanes[i] for i in source.lanes(entering=True)]
    for target, turn in turns.items():
        leaving = [lanes[i] for i in target.lanes(entering=False)]
        for first, last in _movements(entering, leaving, turn, set(turns.values())):
            lane = _connector(len(lanes), source, target, first, last)
            lane.turn = turn
            lanes.append(lane)
            _link(first, lane)
            _link(lane, last)


def _turn(source: Arm, target: Arm) -> int:
    """Return the turn from one arm to another: 1 = left, 0 = straight, -1 = right."""
    angle = float(wrap(target.angle - source.angle - np.pi))
    if abs(angle) < _STRAIGHT_RAD:
        return 0
    return int(np.sign(angle))


def _connector(index: int, source: Arm, target: Arm, first: Lane, last: Lane) -> Lane:
    """Return a lane through a junction from the end of ``first`` to the start of ``last``."""
    heading_in = float(source.angle + np.pi)
    heading_out = float(target.angle)
    center = bridge(first.center[-1], heading_in, last.center[0], heading_out, 1.0)
    heading = headings(center)
    along = arc_length(center)
    kind = first.kind
    if last.kind == "VEHICLE":
        kind = "VEHICLE"
    half_width = 0.5 * (first.width + (last.width - first.width) * along / along[-1])
    left = offset(center, heading, half_width)
    right = offset(center, heading, -half_width)
    # The boundaries join the boundaries of the lanes on the roads exactly.
    left[0] = first.left[-1]
    left[-1] = last.left[0]
    right[0] = first.right[-1]
    right[-1] = last.right[0]
    return Lane(
        index=index,
        center=center,
        left=left,
        right=right,
        width=first.width,
        kind=kind,
        speed=first.speed,
        arms=(source, target),
    )


def _movements(
    entering: list[Lane], leaving: list[Lane], turn: int, turns: set[int]
) -> list[tuple[Lane, Lane]]:
    """Return the pairs of lanes that a turn connects.

    Left turns start on the inner lane, right turns on the outer one. ``turns`` are all turns that
    are possible from this arm.
    """
    cars_in = _of_kind(entering, "VEHICLE")
    cars_out = _of_kind(leaving, "VEHICLE")
    if turn == -1:
        pairs = [(cars_in[-1], cars_out[-1])]
    else:
        pairs = []
        for i in _permitted_lanes(len(cars_in), turn, turns):
            pairs.append((cars_in[i], cars_out[min(i, len(cars_out) - 1)]))

    for kind in ("BUS", "BIKE"):
        special_in = _of_kind(entering, kind)
        special_out = _of_kind(leaving, kind) or cars_out[-1:]
        turns_here = turn == 0 or (kind == "BIKE" and turn == -1) or 0 not in turns
        if special_in and turns_here:
            pairs.append((special_in[0], special_out[-1]))
    return pairs


def _of_kind(lanes: list[Lane], kind: str) -> list[Lane]:
    return [lane for lane in lanes if lane.kind == kind]


def _permitted_lanes(count: int, turn: int, turns: set[int]) -> range:
    """Return the numbers of the motor lanes, of ``count`` lanes, that go left or straight."""
    if turn == 1:
        if 0 in turns:
            return range(1)
        # At the stem of a T every lane but the outermost may turn left, so that none is a dead end.
        return range(max(1, count - 1))
    # With left turns, a wide road may reserve its inner lane for them.
    inner_is_reserved = count > 2 and 1 in turns
    return range(int(inner_is_reserved), count)


def _compare_lanes(network: Network, junction: Junction) -> None:
    """Fill ``conflict`` and ``common_length_m`` for all pairs of C lanes inside ``junction``."""
    inside = []
    for lane in network.lanes:
        if lane.arms and lane.arms[0].junction is junction:
            inside.append(lane)
    rows = []
    samples = []
    for lane in inside:
        rows.append((lane.index, lane.predecessors[0], lane.successors[0]))
        positions = np.linspace(0.0, lane.length, _NUM_SAMPLES)
        samples.append(at_length(lane.center, lane.along, positions))
    indices, source, target = np.array(rows).T
    block = np.ix_(indices, indices)
    points = np.stack(samples)
    distances = distance(points[:, None, :, None], points[None, :, None, :])  # [C, C, 14, 14]

    # Lanes conflict if they are close or end in the same lane. Siblings begin in the same lane:
    # their vehicles follow each other.
    is_sibling = source[:, None] == source
    is_close = distances.min(axis=(2, 3)) < _CLEARANCE_M
    same_target = target[:, None] == target
    network.conflict[block] = (is_close | same_target) & ~is_sibling

    # The common stretch of siblings ends at the first sample that is far from the other lane.
    is_apart = distances.min(axis=3) > _CLEARANCE_M
    last = _NUM_SAMPLES - 1
    common_fraction = np.where(is_apart.any(axis=2), is_apart.argmax(axis=2), last) / last
    length = np.array([[lane.length] for lane in inside])
    np.fill_diagonal(is_sibling, False)
    network.common_length_m[block] = np.where(is_sibling, common_fraction * length, 0.0)
