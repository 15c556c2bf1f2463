"""Checks whether the values of a scene fit each other, for all readers and for live tracks.

Values may be valid numbers and yet in another unit or frame. Each check compares a quantity with
one that follows from others: speeds with a limit, positions with longitudes and latitudes, recorded
velocities and headings with the displacements of each agent, and lanes with the positions of
agents. An error has one line for its cause, with the share of agents and the remedy. What may be
right is a warning, and the scene stays.

Of the real recordings of all readers (`docs/data.md`), one window of 1,141 in the Korean drone
recordings is refused, for its headings.
"""

from trajformer.errors import SceneError
from trajformer.scenes.plausibility.driving import check_driving
from trajformer.scenes.plausibility.recorded import check_recorded
from trajformer.scenes.plausibility.units import MAX_SPEED_M_S, check_units
from trajformer.scenes.scene import Scene
from trajformer.scenes.spec import warn

__all__ = ["MAX_SPEED_M_S", "check_driving", "check_recorded", "check_units", "warn_if_implausible"]


def warn_if_implausible(scene: Scene, *, heading: bool, velocity: bool) -> None:
    """Warn if the values of live tracks do not fit each other.

    `heading` and `velocity` tell whether the tracker gave them; estimates are not compared.
    """
    try:
        check_units(scene, MAX_SPEED_M_S)
        check_recorded(scene, heading=heading, velocity=velocity)
    except SceneError as error:
        warn(f"tracks: {error}")
