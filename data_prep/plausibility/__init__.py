"""Checks whether the values of a scene fit each other, for all readers.

Values may be valid numbers and yet in another unit or frame. Each check compares a quantity with
one that follows from others: speeds with a limit, positions with longitudes and latitudes, recorded
velocities and headings with the displacements of each agent, and lanes with the positions of
agents. An error has one line for its cause, with the share of agents and the remedy. What may be
right is a warning, and the scene stays.

On the real recordings of all readers (`docs/data.md`) no check raises an error.
"""

from data_prep.plausibility.driving import check_driving
from data_prep.plausibility.recorded import check_recorded
from data_prep.plausibility.units import MAX_SPEED_M_S, check_units

__all__ = ["MAX_SPEED_M_S", "check_driving", "check_recorded", "check_units"]
