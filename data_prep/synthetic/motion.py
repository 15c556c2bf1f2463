"""What a simulation leaves behind, brought from its own step to 10 Hz."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from data_prep.synthetic.curves import Array, Ints

STEP_S = 0.2  # the simulation's step


@dataclass(frozen=True, slots=True)
class Motion:
    """How far everybody has come; T = 10 Hz steps.

    Attributes:
        at, speed: [N, T] path length (m) and speed (m/s) of the fleet.
        row: [N] path each of them took.
        walked, pace: [W, T] the same for pedestrians.
    """

    at: Array
    speed: Array
    row: Ints
    walked: Array
    pace: Array


Snapshot = tuple[Array, Array, Array, Array]  # at, speed, walked and pace at one moment


def motion_of(history: list[Snapshot], row: Ints, steps: int) -> Motion:
    """Return the first ``steps`` 10 Hz steps of a simulation's ``history``, with the path [N] that each of the fleet took."""
    at, speed, walked, pace = (np.stack(part, axis=1) for part in zip(*history, strict=True))
    return Motion(
        halve(at, speed)[:, :steps], between(speed)[:, :steps], row,
        halve(walked, pace)[:, :steps], between(pace)[:, :steps],
    )  # fmt: skip


def halve(at: Array, speed: Array) -> Array:
    """Return ``at`` [N, K] at half the step, exact for speeds that change linearly, as [N, 2K - 1]."""
    out = np.empty((at.shape[0], 2 * at.shape[1] - 1))
    out[:, ::2] = at
    out[:, 1::2] = at[:, :-1] + STEP_S / 8.0 * (3.0 * speed[:, :-1] + speed[:, 1:])
    return out


def between(values: Array) -> Array:
    """Return ``values`` [N, K] with the mean of each two neighbours put between them, as [N, 2K - 1]."""
    out = np.empty((values.shape[0], 2 * values.shape[1] - 1))
    out[:, ::2] = values
    out[:, 1::2] = 0.5 * (values[:, :-1] + values[:, 1:])
    return out
