"""Checks whether vehicles drive along the lanes of a file."""

import numpy as np

from trajformer.scenes.scene import AgentKind, PolylineKind, Scene
from trajformer.scenes.spec import warn
from trajformer.scenes.vector_map import VectorMap, distance_to_segments

SPAN_S = 1.0  # duration of the displacement that shows the direction of driving
MIN_SPEED_M_S = 2.0
NEAR_M = 4.0  # distance of a lane that a vehicle may be driving on
FAR_M = 8.0  # distance of all lanes from a vehicle that drives on none of them
OPPOSITE = -0.7  # cosine of the angle between a lane and the direction of driving
MIN_WRONG = 3  # vehicles, and a fraction of the moving ones
AGAINST_FRACTION = 0.5
FAR_FRACTION = 0.75  # in car parks
MAX_COMPARED = 30  # vehicles

_DRIVING = (AgentKind.VEHICLE, AgentKind.BUS, AgentKind.MOTORCYCLIST)
_LANES = (PolylineKind.LANE_VEHICLE, PolylineKind.LANE_BUS)


def check_driving(scene: Scene, lanes: VectorMap) -> None:
    """Warn if most vehicles drive against the lanes near them, or far from all lanes.

    The lanes are in the frame of the recording. Reversed points, a mirrored axis or another unit
    are possible causes. Only the history is used.
    """
    position, direction = _moving_vehicles(scene)
    start, end, _ = lanes.segments(np.flatnonzero(np.isin(lanes.polyline_kind, _LANES)))
    if len(position) < MIN_WRONG or not len(start):
        return
    distance = distance_to_segments(position[:, None], start, end)  # [n, S]
    along = end - start
    along /= np.maximum(np.hypot(along[:, 0], along[:, 1]), 1e-6)[:, None]
    cosine = direction @ along.T

    is_near = distance < NEAR_M
    best = np.where(is_near, cosine, -1.0).max(1)
    is_on_lane = is_near.any(1)
    is_against = is_on_lane & (best < OPPOSITE)
    is_far = distance.min(1) > FAR_M
    total = len(position)
    if is_against.sum() >= max(MIN_WRONG, AGAINST_FRACTION * is_on_lane.sum()):
        share = f"{is_against.sum()} of {total} moving vehicles drive against the lanes"
        warn(f"lanes: {share}: are their points reversed, or is y down?")
    elif is_far.sum() >= max(MIN_WRONG, FAR_FRACTION * total):
        share = f"{is_far.sum()} of {total} moving vehicles are over {FAR_M:g} m from all lanes"
        warn(f"lanes: {share}: are lanes and tracks in one frame and unit?")


def _moving_vehicles(scene: Scene) -> tuple[np.ndarray, np.ndarray]:
    """Positions [n, 2] in the recording at the present, and directions of motion [n, 2]."""
    present = scene.num_history - 1
    before = max(0, present - max(1, round(SPAN_S / scene.period_s)))
    seen = scene.valid[:, present] & scene.valid[:, before]
    agents = np.flatnonzero(seen & np.isin(scene.agent_kind, _DRIVING))
    position = scene.position[agents, present].astype(np.float64)
    moved = position - scene.position[agents, before]
    length = np.hypot(moved[:, 0], moved[:, 1])
    min_length = MIN_SPEED_M_S * scene.period_s * (present - before)
    moving = np.flatnonzero(length > max(min_length, 1e-6))[:MAX_COMPARED]
    return position[moving] + scene.origin, moved[moving] / length[moving, None]
