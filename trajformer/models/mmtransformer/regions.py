"""Regions of end points, one per group of mmTransformer's proposals (Liu et al. 2021, section 3.4).

A region is [x, y, weight] in the frame of a target. An end point belongs to the region with the smallest squared distance to
(x, y) minus weight (a power diagram). With equal weights this is the nearest center; a larger weight moves the straight borders
away from the center.

Equal-size k-means finds centers of clusters with equal numbers of training end points. The weights are chosen such that the
regions divide these points exactly like the clusters. The paper does not say how end points are assigned after clustering;
assigned by distance alone, regions in crowded places would contain most of the training data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from trajformer.data.loading import SceneDataset
from trajformer.errors import Config, ConfigError, TrajformerError
from trajformer.scenes.geometry import to_frame

_MAX_SCENES = 2048  # read for their end points
_MAX_POINTS = 768  # clustered
_STARTS = 4


@dataclass(frozen=True)
class FanConfig(Config, positive=("directions",)):
    """Regions around fixed points: some distances in evenly spread directions.

    Attributes:
        distances_m: distances of the points, equal for all directions.
        directions: number of directions.
        spread: angle between the outermost directions in radians; the middle is straight ahead.
    """

    distances_m: tuple[float, ...] = (10.0, 30.0)
    directions: int = 3
    spread: float = 1.2


@dataclass(frozen=True)
class RegionConfig(Config, positive=("count",)):
    """How end points are divided into regions.

    Attributes:
        count: M, number of regions.
        fan: fixed regions, `count` in total; by default, regions are fitted to the training data before training.
    """

    count: int = 6
    fan: FanConfig | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fan is not None and len(self.fan.distances_m) * self.fan.directions != self.count:
            fan = f"{len(self.fan.distances_m)} distances in {self.fan.directions} directions"
            raise ConfigError("count", f"{self.count}, expected the number of regions of the fan, {fan}")


def initial_regions(config: RegionConfig) -> Tensor:
    """The fan [M, 3], or zeros, which `fit_regions` replaces before training."""
    fan = config.fan
    if fan is None:
        return torch.zeros(config.count, 3)
    angle = torch.linspace(-0.5, 0.5, fan.directions) * fan.spread if fan.directions > 1 else torch.zeros(1)
    distance = torch.tensor(fan.distances_m)[:, None]
    x, y = (distance * angle.cos()).flatten(), (distance * angle.sin()).flatten()
    return torch.stack([x, y, torch.zeros_like(x)], -1)


def region_of(end: Tensor, regions: Tensor) -> Tensor:
    """Int64 [...], index of the region [M, 3] that contains each end point [..., 2]."""
    return ((end[..., None, :] - regions[:, :2]).square().sum(-1) - regions[:, 2]).argmin(-1)


def fit_regions(scenes: SceneDataset, count: int, seed: int) -> Tensor:
    """Equal-size regions [M, 3] of the end points of all targets in a random choice of training scenes.

    The result depends on the scenes, `count` and `seed` only.

    Raises:
        TrajformerError: there are fewer end points than regions.
    """
    chosen = np.random.default_rng(seed).permutation(len(scenes))[:_MAX_SCENES]
    ends = [np.zeros((0, 2), np.float32)]
    for index in chosen.tolist():
        padded = scenes.sample(index).padded
        known = padded["target_valid"][:, -1]
        pose = padded["pose"][: len(known)]
        ends.append(to_frame(padded["target"][:, -1], pose)[known])
    return equal_regions(np.concatenate(ends), count, seed)


def equal_regions(points: np.ndarray, count: int, seed: int, rounds: int = 60) -> Tensor:
    """Equal-size k-means of end points [n, 2] in metres: regions [M, 3], ordered by the x of their centers.

    Each round, at most `rounds`, assigns the same number of points to every center at the smallest sum of squared distances
    (exactly). The best of several random starts is the result. At most 768 points, chosen at random, are clustered.

    Raises:
        TrajformerError: there are fewer points than regions.
    """
    if len(points) < count:
        raise TrajformerError(f"mmtransformer.regions.count: {count}, but the training data has {len(points)} end points")
    rng = np.random.default_rng(seed)
    size = min(len(points), _MAX_POINTS) // count
    points = points[rng.permutation(len(points))[: size * count]].astype(np.float64)
    starts = [_cluster(points, points[rng.choice(len(points), count, replace=False)], rounds) for _ in range(_STARTS)]
    _, center, cluster = min(starts, key=lambda start: start[0])
    regions = np.concatenate([center, _weights(_squared_distances(points, center), cluster)[:, None]], 1)
    return torch.from_numpy(regions[regions[:, 0].argsort(kind="stable")]).float()


def _squared_distances(points: np.ndarray, center: np.ndarray) -> np.ndarray:
    return np.square(points[:, None] - center).sum(-1)


def _cluster(points: np.ndarray, center: np.ndarray, rounds: int) -> tuple[float, np.ndarray, np.ndarray]:
    """K-means from initial centers [M, 2]: the sum of squared distances, the centers, and the cluster of each point.

    The last step is always an assignment, also after the last round: `_weights` needs clusters that are optimal for the centers.
    """
    size, cluster = len(points) // len(center), np.full(len(points), -1)
    for number in range(rounds):
        previous, cost = cluster, _squared_distances(points, center)
        cluster = linear_sum_assignment(cost.repeat(size, axis=1))[1] // size
        if (cluster == previous).all() or number + 1 == rounds:
            break
        center = np.stack([points[cluster == region].mean(0) for region in range(len(center))])
    return float(cost[np.arange(len(points)), cluster].sum()), center, cluster


def _weights(cost: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """Weights [M] such that cost minus weight is smallest for the cluster of each point: the dual of the assignment.

    Point i stays in cluster j instead of k if weight k - weight j <= cost ik - cost ij. Let the length from j to k be the
    minimum of the right side over the points of j. The shortest distances from any node satisfy all inequalities; their mean
    over the nodes keeps points away from the borders.
    """
    count = cost.shape[1]
    distance = np.stack([(cost[cluster == j] - cost[cluster == j, j : j + 1]).min(0) for j in range(count)])
    for middle in range(count):  # Floyd-Warshall
        distance = np.minimum(distance, distance[:, middle : middle + 1] + distance[middle])
    weight = distance.mean(0)
    return weight - weight.mean()
