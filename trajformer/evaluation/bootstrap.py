"""Means over agents with 95 % intervals: a bootstrap over scenes.

Agents of one scene have related errors, so whole scenes are drawn, with replacement and as many as
there are. A mean over agents is the ratio of two sums over the drawn scenes: errors and agents.
Drawing scenes is a matrix product of how often each scene was drawn with the sums of each scene.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

RESAMPLES = 2000
SEED = 0
PERCENTILES = (2.5, 97.5)
_RESAMPLES_PER_BLOCK = 100  # memory: this number times the number of scenes


class Estimate(NamedTuple):
    """A mean and its 95 % interval, which is NaN for a single scene."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class SceneSums:
    """Sums over the agents of each scene: all that means and their intervals depend on.

    Attributes:
        total: float64 [N, C], sums of C columns in N scenes.
        count: float64 [N, C], numbers of agents that have a value.
    """

    total: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, scene: np.ndarray) -> SceneSums:
        """Sums of values float64 [agents, C], NaN where an agent has none.

        `scene` [agents] has the id or number of each agent's scene. Scenes are in sorted order.
        """
        _, code = np.unique(scene, return_inverse=True)
        num_scenes = int(code.max(initial=-1)) + 1
        has_value = ~np.isnan(values)
        filled = np.where(has_value, values, 0.0)
        shape = (num_scenes, values.shape[1])
        total = np.zeros(shape)
        count = np.zeros(shape)
        for column in range(values.shape[1]):
            total[:, column] = np.bincount(code, filled[:, column], num_scenes)
            count[:, column] = np.bincount(code, has_value[:, column], num_scenes)
        return cls(total, count)

    @property
    def num_scenes(self) -> int:
        """N."""
        return len(self.total)

    def means(self) -> np.ndarray:
        """Means [C] over agents; NaN without any agent."""
        return _ratio(self.total.sum(0), self.count.sum(0))

    def resampled_means(self, resamples: int = RESAMPLES, seed: int = SEED) -> np.ndarray:
        """Means [resamples, C] over the agents of N scenes drawn with replacement."""
        rng = np.random.default_rng(seed)
        number = self.num_scenes
        blocks = []
        for start in range(0, resamples, _RESAMPLES_PER_BLOCK):
            rows = min(_RESAMPLES_PER_BLOCK, resamples - start)
            times = np.empty((rows, number))  # how often each scene is drawn
            for row, drawn in enumerate(rng.integers(number, size=(rows, number))):
                times[row] = np.bincount(drawn, minlength=number)
            blocks.append(_ratio(times @ self.total, times @ self.count))
        return np.concatenate(blocks)

    def estimates(self) -> list[Estimate]:
        """The mean of each column with its interval."""
        means = self.means()
        if self.num_scenes < 2:
            return [Estimate(float(mean), np.nan, np.nan) for mean in means]
        sampled = self.resampled_means()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a column without values is NaN
            low, high = np.nanpercentile(sampled, PERCENTILES, axis=0)
        return [Estimate(*map(float, row)) for row in zip(means, low, high, strict=True)]


def _ratio(total: np.ndarray, count: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(total / count)
