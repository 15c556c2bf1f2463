"""Forecasts of live tracks, with the fields of Autoware's PredictedObjects."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trajformer.scenes.scene import AgentKind


class PredictedPath(NamedTuple):
    """One future of an object, as in autoware_perception_msgs/PredictedPath."""

    path: np.ndarray  # float64 [F, 3], x, y in metres and heading in radians, in the world frame
    time_step: float  # seconds between two poses; the first one is a step after the present
    confidence: float  # probability of the path


class PredictedObject(NamedTuple):
    """An object and its futures, as in autoware_perception_msgs/PredictedObject."""

    object_id: Hashable  # as it was given
    classification: AgentKind
    pose: np.ndarray  # float64 [3], x, y and heading at the present
    shape: np.ndarray  # float64 [2], length and width in metres, NaN if not given
    predicted_paths: tuple[PredictedPath, ...]  # by falling confidence


@dataclass(frozen=True, eq=False)
class PredictedObjects:
    """Forecasts of all agents that were seen in the last second, in the frame of the tracks.

    Modes are sorted by falling probability.

    Attributes:
        timestamp_s: of the present.
        time_step_s: seconds between two steps; the first one is a step after the present.
        object_id: ids of the A agents.
        classification: uint8 [A], AgentKind.
        pose: float64 [A, 3], x, y in metres and heading in radians at the present.
        shape: float64 [A, 2], length and width in metres, NaN if not given.
        position: float64 [A, K, F, 2], metres.
        confidence: float64 [A, K], probabilities of the modes.
    """

    timestamp_s: float
    time_step_s: float
    object_id: tuple[Hashable, ...]
    classification: np.ndarray
    pose: np.ndarray
    shape: np.ndarray
    position: np.ndarray
    confidence: np.ndarray

    def __len__(self) -> int:
        return len(self.object_id)

    @property
    def objects(self) -> tuple[PredictedObject, ...]:
        """The same forecasts as one record for each agent."""
        heading = self.heading()
        path = np.concatenate([self.position, heading[..., None]], -1)
        records = []
        for row, name in enumerate(self.object_id):
            paths = []
            for mode, confidence in zip(path[row], self.confidence[row].tolist(), strict=True):
                paths.append(PredictedPath(mode, self.time_step_s, confidence))
            kind = AgentKind(int(self.classification[row]))
            record = PredictedObject(name, kind, self.pose[row], self.shape[row], tuple(paths))
            records.append(record)
        return tuple(records)

    def heading(self) -> np.ndarray:
        """The direction of each path at each step, float64 [A, K, F], radians.

        A step that is shorter than 5 cm keeps the direction before it.
        """
        start = np.broadcast_to(self.pose[:, None, None, :2], self.position[:, :, :1].shape)
        step = np.diff(np.concatenate([start, self.position], 2), axis=2)
        length = np.hypot(step[..., 0], step[..., 1])
        direction = np.arctan2(step[..., 1], step[..., 0])
        first = np.broadcast_to(self.pose[:, None, None, 2], direction[:, :, :1].shape)
        known = np.concatenate([first, direction], 2)
        index = np.arange(known.shape[2])
        moves = np.concatenate([np.ones(first.shape, np.bool_), length >= MIN_STEP_M], 2)
        latest = np.maximum.accumulate(np.where(moves, index, 0), 2)
        return np.take_along_axis(known, latest, 2)[:, :, 1:]


MIN_STEP_M = 0.05
