"""Scenes of live tracks: observed steps only, missing headings and velocities estimated."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trajformer.errors import SceneError
from trajformer.scenes.geometry import relative_position, scene_origin
from trajformer.scenes.kinematics import estimate_history
from trajformer.scenes.lane_files import Lanes, as_vector_map
from trajformer.scenes.lane_heading import face_along_lanes
from trajformer.scenes.plausibility import warn_if_implausible
from trajformer.scenes.scene import (
    MAX_EXTENT_M,
    SHORT_LOSS_S,
    AgentKind,
    AgentRole,
    Scene,
)
from trajformer.scenes.track_columns import check_unique, read_columns
from trajformer.scenes.track_history import TrackHistory, TrackSteps
from trajformer.scenes.vector_map import NO_MAP, VectorMap

if TYPE_CHECKING:
    import pandas as pd

IMMOBILE = (
    AgentKind.STATIC,
    AgentKind.BACKGROUND,
    AgentKind.CONSTRUCTION,
    AgentKind.RIDERLESS_BICYCLE,
)
_NO_LANES = (AgentKind.PEDESTRIAN, *IMMOBILE)  # do not face along lanes
SOURCE = "live"
_OTHERS = ("timestamp", "step", "scene_id", "role", "city")


def scene_of_steps(
    steps: TrackSteps,
    clock: tuple[float, int, int],
    origin: np.ndarray,
    facing: VectorMap = NO_MAP,
) -> Scene:
    """The scene of tracks, without a map and with numbers as ids of its agents.

    Missing headings and velocities are estimated as by `preprocess table` for a recording that
    begins with the history.

    Args:
        steps: A tracks.
        clock: the period in seconds, H and F.
        origin: float64 [2], whole metres in the frame of the tracks.
        facing: lanes in the frame of the tracks, along which vehicles face that have not moved.

    Raises SceneError: a track is too far from the origin.
    """
    relative = relative_position(steps.position, origin) * steps.valid[..., None]
    is_far = np.abs(relative).max((1, 2), initial=0.0) > MAX_EXTENT_M
    if is_far.any():
        name = steps.ids[int(is_far.argmax())]
        raise SceneError(
            f"track {name!r} is over {MAX_EXTENT_M / 1e3:g} km from the others; leave it out"
        )
    heading, velocity = _motion(steps, clock[0], facing)
    size = steps.size
    if np.isnan(size).any():
        size = np.zeros((0, 2))
    num_agents = len(steps.ids)
    return Scene(
        scene_id=SOURCE,
        source=SOURCE,
        split=SOURCE,
        city="",
        period_s=clock[0],
        num_history=clock[1],
        num_future=clock[2],
        origin=origin,
        agent_id=tuple(map(str, range(num_agents))),
        agent_kind=steps.kind,
        agent_role=_roles(steps, clock[0]),
        position=relative,
        heading=heading.astype(np.float32),
        velocity=velocity.astype(np.float32),
        valid=steps.valid,
        polyline_id=NO_MAP.polyline_id,
        polyline_kind=NO_MAP.polyline_kind,
        polyline_flags=NO_MAP.polyline_flags,
        polyline_offset=NO_MAP.polyline_offset,
        point=NO_MAP.point.astype(np.float32),
        edge=NO_MAP.edge,
        edge_kind=NO_MAP.edge_kind,
        agent_size=size.astype(np.float32),
    )


def _roles(steps: TrackSteps, period_s: float) -> np.ndarray:
    """AgentRole uint8 [A]: the agents that can move and are present are scored."""
    num_steps = steps.valid.shape[1]
    short_loss = int(SHORT_LOSS_S / period_s + 1e-4)
    is_recent = steps.valid[:, max(0, num_steps - 1 - short_loss) :].any(1)
    is_scored = is_recent & ~np.isin(steps.kind, IMMOBILE)
    return np.where(is_scored, AgentRole.SCORED, AgentRole.CONTEXT).astype(np.uint8)


def _motion(steps: TrackSteps, period_s: float, facing: VectorMap) -> tuple[np.ndarray, np.ndarray]:
    """Heading [A, H] and velocity [A, H, 2], zero where not valid."""
    heading = np.where(steps.valid, steps.heading, 0.0)
    velocity = np.where(steps.valid[..., None], steps.velocity, 0.0)
    no_heading = np.isnan(heading)
    no_velocity = np.isnan(velocity[..., 0])
    agents = np.flatnonzero((no_heading | no_velocity).any(1))
    if not len(agents):
        return heading, velocity
    position = steps.position[agents]
    valid = steps.valid[agents]
    is_missing = (no_heading | no_velocity)[agents]
    estimate = estimate_history(position, valid, period_s, is_missing)
    new_velocity = np.where(no_velocity[agents][..., None], estimate.velocity, velocity[agents])
    velocity[agents] = new_velocity
    if no_heading.any():
        # A given heading has any length.
        length = np.where(no_heading[agents], estimate.length, np.inf)
        new_heading = np.where(no_heading[agents], estimate.heading, heading[agents])
        is_vehicle = ~np.isin(steps.kind[agents], _NO_LANES)
        heading[agents] = face_along_lanes(new_heading, length, position, valid, is_vehicle, facing)
    return heading, velocity


def scene_from_tracks(
    frame: pd.DataFrame,
    lanes: Lanes | None = None,
    now: float | None = None,
    *,
    period_s: float = 0.1,
    num_history: int = 50,
    num_future: int = 60,
) -> Scene:
    """See `Scene.from_tracks`."""
    times = _times(frame, period_s)
    columns = read_columns(frame, _OTHERS)
    if not len(times):
        raise SceneError("tracks: no rows")
    if now is None:
        now = float(times.max())
    history = TrackHistory(period_s, num_history)
    moments, moment = np.unique(times, return_inverse=True)
    begin_s = now - (num_history - 1) * period_s - history.max_gap_s
    for index in np.flatnonzero((moments <= now) & (moments >= begin_s)).tolist():
        rows = np.flatnonzero(moment == index)
        history.add(float(moments[index]), check_unique(columns.take(rows)))
    if history.now_s is None:
        raise SceneError(f"now: no row in the history before {now:g} s")
    if now - history.now_s > period_s / 2:
        raise SceneError(f"now: {now:g} s, but the last row before it is at {history.now_s:g} s")
    steps = history.steps()
    names = tuple(_name(value) for value in steps.ids)
    if len(set(names)) < len(names):
        raise SceneError("object_id: two ids have the same text, such as 1 and '1'")
    is_last = steps.valid[:, -1]
    origin = scene_origin(steps.position[int(is_last.argmax()), -1])
    vector_map = NO_MAP if lanes is None else as_vector_map(lanes)
    scene = scene_of_steps(steps, (period_s, num_history, num_future), origin, vector_map)
    has_heading = bool(np.isfinite(columns.heading).any())
    has_velocity = bool(np.isfinite(columns.velocity).any())
    warn_if_implausible(scene, heading=has_heading, velocity=has_velocity)
    return with_map(scene, vector_map, names).validate()


def with_map(scene: Scene, lanes: VectorMap, names: tuple[str, ...]) -> Scene:
    """The scene with a map in the frame of the tracks, and with other ids."""
    return replace(
        scene,
        agent_id=names,
        polyline_id=lanes.polyline_id,
        polyline_kind=lanes.polyline_kind,
        polyline_flags=lanes.polyline_flags,
        polyline_offset=lanes.polyline_offset,
        point=relative_position(lanes.point, scene.origin),
        edge=lanes.edge,
        edge_kind=lanes.edge_kind,
    )


def _name(value: Hashable) -> str:
    return value if isinstance(value, str) else repr(value)


def _times(frame: pd.DataFrame, period_s: float) -> np.ndarray:
    """Time float64 [n] in seconds of each row, from `timestamp` or `step`."""
    values: Any
    for name, unit_s in (("timestamp", 1.0), ("step", period_s)):
        if name in frame.columns:
            try:
                values = np.asarray(frame[name], np.float64) * unit_s
            except (TypeError, ValueError) as error:
                raise SceneError(f"{name}: {error}, expected numbers") from error
            if not np.isfinite(values).all():
                raise SceneError(f"{name}: empty or NaN, expected a number in each row")
            return values
    raise SceneError("timestamp: missing, expected a column timestamp (seconds) or step")
