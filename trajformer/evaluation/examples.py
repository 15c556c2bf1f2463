"""Scenes of a scoring that are worth a look: with the largest, median and smallest errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from trajformer.evaluation.breakdown import common_metrics
from trajformer.evaluation.columns import SCENE
from trajformer.evaluation.scoring import Scoring


class Examples(NamedTuple):
    """Some scenes.

    Attributes:
        name: short.
        title: what the scenes have in common, without the name of a file.
        files: indices of the scorings that the title is about; of two, the first has smaller errors
            or, in the group "loss", larger errors.
        scene_ids: the most extreme scene is the first.
    """

    name: str
    title: str
    files: tuple[int, ...]
    scene_ids: tuple[str, ...]


def example_metric(scorings: Sequence[Scoring]) -> str:
    """The error by which scenes are chosen: minFDE of the usual number of modes."""
    name = f"minFDE{scorings[0].best_of}"
    return name if name in common_metrics(scorings) else common_metrics(scorings)[0]


def scene_errors(scorings: Sequence[Scoring]) -> pd.DataFrame:
    """Mean error over the scored agents of each scene: a column per scoring, by scene id.

    NaN for scenes without an agent of a scoring.
    """
    metric = example_metric(scorings)
    columns = []
    for number, one in enumerate(scorings):
        columns.append(one.per_agent.groupby(SCENE)[metric].mean().rename(number))
    return pd.concat(columns, axis=1).sort_index()


def examples(scorings: Sequence[Scoring], count: int) -> list[Examples]:
    """Up to `count` worst, median and best scenes of the first scoring.

    Then, for each other scoring, the scenes with the largest gain and loss against the first. In
    few scenes, the groups are smaller, so that no scene is in two of the first three.
    """
    errors = scene_errors(scorings)
    first = errors[0].dropna().sort_values(ascending=False, kind="stable")
    worst, median, best = _three_parts(first.index.tolist(), count)
    groups = [
        Examples("worst", "largest errors", (0,), worst),
        Examples("median", "median errors", (0,), median),
        Examples("best", "smallest errors", (0,), best),
    ]
    for number in range(1, len(scorings)):
        gain = (errors[0] - errors[number]).dropna().sort_values(ascending=False, kind="stable")
        better = gain[gain > 0].index[:count]
        worse = gain[gain < 0].index[::-1][:count]
        files = (number, 0)
        groups.append(Examples("gain", "largest gain", files, tuple(better)))
        groups.append(Examples("loss", "largest loss", files, tuple(worse)))
    return [group for group in groups if group.scene_ids]


def _three_parts(ordered: Sequence[str], count: int) -> tuple[tuple[str, ...], ...]:
    """The first, middle and last entries; the last ones in reverse order."""
    number = len(ordered)
    size = max(1, min(count, number // 3))
    worst = tuple(ordered[:size])
    rest = ordered[size:]
    best = tuple(rest[::-1][:size])
    middle = rest[: len(rest) - len(best)]
    start = int(np.ceil((len(middle) - size) / 2)) if len(middle) > size else 0
    return worst, tuple(middle[start : start + size]), best
