"""The inputs of a shard to packed scenes, several side by side: all go through one stage before any begins the next.

A processor that does one thing many times over finds its code in the caches: sixteen scenarios of Argoverse 2 side by
side take three quarters of the time that they take one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

from data_prep.engine.overtime import Alarm, Overtime
from trajformer.errors import SceneError
from trajformer.scenes.shard import PackedScene

SIDE_BY_SIDE = 16
LARGE_S = 0.1  # one with a stage of this length is large: it is finished at once, so that memory holds one such at a time
LEAST_S = 1e-3  # a timer of zero seconds would never go off


class Reading:
    """One input on its way to a scene.

    Attributes:
        number: of the input in its shard.
        seconds: taken so far.
        scene: once it is there.
        error: why it never will be.
    """

    def __init__(self, number: int, label: str, stages: Generator[None, None, PackedScene], timeout_s: float) -> None:
        self.number, self.seconds = number, 0.0
        self.scene: PackedScene | None = None
        self.error: SceneError | None = None
        self._label, self._stages, self._timeout_s = label, stages, timeout_s

    @property
    def done(self) -> bool:
        """Whether there is a scene or an error."""
        return self.scene is not None or self.error is not None

    def advance(self, alarm: Alarm) -> None:
        """Go through the next stage, or through all that are left if it is a long one."""
        began = time.perf_counter()
        try:
            try:
                alarm.start(max(self._timeout_s - self.seconds, LEAST_S))
                next(self._stages)
                if time.perf_counter() - began > LARGE_S:
                    while True:
                        next(self._stages)
            finally:
                alarm.stop()
        except StopIteration as end:
            self.scene = end.value
        except SceneError as error:
            self.error = error
        except Overtime:
            self.error = SceneError(f"{self._label}: {overtime(self._timeout_s)}")
        except Exception as error:
            self.error = SceneError(f"{self._label}: {named(error)}")
        self.seconds += time.perf_counter() - began


def read_side_by_side(readings: Iterable[Reading], note: Callable[[int], Any]) -> None:
    """Advance all until they are done; `note` is told the number of each input when its turn comes."""
    with Alarm() as alarm:
        while readings := [reading for reading in readings if not reading.done]:
            for reading in readings:
                note(reading.number)
                reading.advance(alarm)


def overtime(timeout_s: float) -> str:
    """What is said of an input that took too long."""
    return f"took longer than {timeout_s:g} s"


def named(error: Exception) -> str:
    """A failure with its type, as its message alone may say little or nothing."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
