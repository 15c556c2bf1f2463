"""The scene of tracks that are columns: of a table, or of a file that is read as one."""

from collections.abc import Callable

import numpy as np

from data_prep.readers.columns import Agents
from data_prep.readers.table.estimates import RowEstimates
from data_prep.readers.table.timeline import TimeOptions
from data_prep.readers.table.tracks import KINDS, TableTracks
from data_prep.readers.table.windows import Cut, Scenes
from trajformer.errors import SceneError
from trajformer.scenes.plausibility import check_driving, check_recorded
from trajformer.scenes.scene import METRES, Scene
from trajformer.scenes.vector_map import VectorMap

# The part of a map around positions, float64 [n, 2].
MapNear = Callable[[np.ndarray], VectorMap]


def tracks_of_cut(
    scenes: Scenes, cut: Cut, options: TimeOptions, estimate: Callable[[], RowEstimates]
) -> tuple[TableTracks, RowEstimates | None]:
    """The tracks of one scene, and estimates of their motion unless the columns have all values.

    `estimate` makes the estimates for all rows of `scenes`. Raises SceneError: the problem of the
    scene.
    """
    rows = scenes.rows(cut, options.num_history)
    if options.drop_duplicates:
        keys = np.stack([scenes.step[rows], scenes.columns.code["track_id"][rows]])
        _, first = np.unique(keys, axis=1, return_index=True)
        rows = rows[np.sort(first)]
    if cut.problem:
        raise SceneError(cut.problem)
    columns = scenes.columns.take(rows)
    tracks = TableTracks(columns, scenes.step[rows], cut, options.num_history)
    if tracks.has_motion():
        return tracks, None
    return tracks, estimate().take(rows)


def table_scene(
    tracks: TableTracks,
    estimates: RowEstimates | None,
    name: tuple[str, str, str],
    options: TimeOptions,
    map_near: MapNear,
    unit: str = METRES,
) -> Scene:
    """The scene of one window.

    `name` is scene id, source and split. `estimates` of motion are None if the columns have all
    values. Raises SceneError: a value cannot be used.
    """
    xy = tracks.position()
    kind = tracks.words("kind", KINDS)
    role = tracks.role(kind, options.short_loss)

    # The center is the last observed position of the focal agent, else of a scored one.
    last = tracks.last_observed
    rank = np.where(last >= 0, role.astype(np.int64), -1)
    center = xy[last[rank.argmax()]]
    relative = tracks.fill(xy - center)
    heading, velocity, length = tracks.motion(relative, options.period_s, estimates)

    polylines = map_near(xy[last[last >= 0]])
    heading = tracks.face_lanes(heading, length, xy, kind, polylines)
    position = tracks.fill(xy)
    agents = Agents(tracks.agent_id, kind, role, position, heading, velocity, tracks.valid)
    clock = (options.period_s, options.num_history, options.num_future)
    scene = agents.scene((*name, tracks.city()), clock, center, polylines, unit)
    scene = tracks.with_size(scene)
    if unit == METRES:
        has_heading = "heading" in tracks.columns.number
        has_velocity = "vx" in tracks.columns.number
        check_recorded(scene, heading=has_heading, velocity=has_velocity)
        check_driving(scene, polylines)
    return scene
