"""Submissions to the Argoverse 2 challenge: forecast files that the package av2 reads as meant.

av2 sorts the modes of each track by their probability and keeps one probability vector per scene.
So mode k of all tracks is one joint future only if the probabilities of a scene are equal in all
tracks and have no ties, because its order of tied modes is undefined.

Source: `av2.datasets.motion_forecasting.eval.submission` of av2 0.3.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from typing import Literal

import numpy as np

from trajformer.errors import TrajformerError
from trajformer.evaluation.forecast_file import TrackForecast, check_forecast
from trajformer.scenes.scene import AgentRole, Scene
from trajformer.scenes.spec import DataSpec

Track = Literal["single", "multi"]  # of the challenge: focal agents, or joint futures
NUM_FUTURE = 60
PERIOD_S = 0.1
MIN_GAP = 1e-9  # between the probabilities of two modes, so that they have one order


def check_scenes_of_challenge(scenes: DataSpec) -> None:
    """Raise TrajformerError if av2 would not read forecasts of these scenes."""
    horizon = (scenes.num_future, round(scenes.period_s or 0.0, 6))
    if scenes.source != "argoverse2" or horizon != (NUM_FUTURE, PERIOD_S):
        found = f"{scenes.num_future} steps of {scenes.period_s:g} s of {scenes.source}"
        expected = f"{NUM_FUTURE} steps of {PERIOD_S:g} s of argoverse2"
        raise TrajformerError(f"--submission: the scenes have {found}, expected {expected}")


def without_ties(forecasts: Iterable[TrackForecast]) -> Iterator[TrackForecast]:
    """The forecasts with modes by strictly falling probability; ties keep their order.

    A probability changes by less than 1e-6. Raises the errors of `check_forecast`.
    """
    for forecast in forecasts:
        ordered = check_forecast(forecast)
        probability = ordered.probability.copy()
        # from the least probable mode: each mode is at least a gap above the next one
        for mode in range(len(probability) - 2, -1, -1):
            lowest = probability[mode + 1] + MIN_GAP
            probability[mode] = max(probability[mode], lowest)
        yield replace(ordered, probability=probability / np.sum(probability))


def agents_without_forecast(
    scenes: Iterable[Scene], forecast: Mapping[str, Set[str]], track: Track
) -> list[tuple[str, str]]:
    """Scene and track ids of the agents that a submission must have and does not have.

    `forecast` are the ids of the forecast tracks by scene id.
    """
    least_role = AgentRole.FOCAL if track == "single" else AgentRole.SCORED
    missing = []
    for scene in scenes:
        present = forecast.get(scene.scene_id, frozenset())
        for agent in np.flatnonzero(scene.agent_role >= int(least_role)).tolist():
            track_id = scene.agent_id[agent]
            if track_id not in present:
                missing.append((scene.scene_id, track_id))
    return missing
