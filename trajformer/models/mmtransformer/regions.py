"""Regions of end points, one for each group of mmTransformer's proposals (Liu et al. 2021, section 3.4).

A region is [x, y, weight], in a target's own frame. An end point belongs to the region with the least squared distance to
(x, y) minus its weight: with equal weights to the nearest, otherwise borders move, straight, in favour of the heavier one.
Equal-size k-means finds centres whose clusters have the same number of training end points, and the weights at which the
regions cut the plane just as the clusters cut those points. The paper leaves open how an end point is given to a region
after clustering; by distance alone, regions of crowded places would have most of the training data again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from trajformer.data.loading import SceneDataset
from trajformer.errors import ConfigError, TrajformerError, check_numbers
from trajformer.scenes.geometry import to_frame

_MOST = 768  # end points that are clustered
_STARTS, _ROUNDS = 4, 60
_SCENES = 2048  # scenes whose end points are used


@dataclass(frozen=True)
class FanConfig:
    """Regions by hand: around points at some distances in evenly spread directions, the nearest of them.

    Attributes:
        distances_m: of the points, the same in every direction.
        directions: how many.
        spread: radians between the outermost ones, straight ahead being in their middle.
    """

    distances_m: tuple[float, ...] = (10.0, 30.0)
    directions: int = 3
    spread: float = 1.2

    def __post_init__(self) -> None:
        check_numbers(self, positive=("directions",))


@dataclass(frozen=True)
class RegionConfig:
    """How end points are divided.

    Attributes:
        count: M regions.
        fan: these regions, as many as `count`; otherwise training begins with equal-size k-means of its data's end points.
    """

    count: int = 6
    fan: FanConfig | None = None

    def __post_init__(self) -> None:
        check_numbers(self, positive=("count",))
        if self.fan is not None and len(self.fan.distances_m) * self.fan.directions != self.count:
            fan = f"{len(self.fan.distances_m)} distances in {self.fan.directions} directions"
            raise ConfigError("count", f"{self.count}, expected the number of regions of the fan, {fan}")


def first_regions(config: RegionConfig) -> Tensor:
    """The fan [M, 3], or zeros, to be filled in before training."""
    fan = config.fan
    if fan is None:
        return torch.zeros(config.count, 3)
    angle = torch.linspace(-0.5, 0.5, fan.directions) * fan.spread if fan.directions > 1 else torch.zeros(1)
    distance = torch.tensor(fan.distances_m)[:, None]
    x, y = (distance * angle.cos()).flatten(), (distance * angle.sin()).flatten()
    return torch.stack([x, y, torch.zeros_like(x)], -1)


def region_of(end: Tensor, regions: Tensor) -> Tensor:
    """Index int64 [...] of the region [M, 3] that each end point [..., 2] is in."""
    return ((end[..., None, :] - regions[:, :2]).square().sum(-1) - regions[:, 2]).argmin(-1)


def fit_regions(scenes: SceneDataset, count: int, seed: int) -> Tensor:
    """Equal-size regions [M, 3] of the end points of the targets of a random choice of training scenes.

    The same scenes, count and seed give the same regions.

    Raises:
        TrajformerError: there are fewer end points than regions.
    """
    chosen = np.random.default_rng(seed).permutation(len(scenes))[:_SCENES]
    ends = [np.zeros((0, 2), np.float32)]
    for index in chosen.tolist():
        padded = scenes.sample(index).padded
        known = padded["target_valid"][:, -1]
        pose = padded["pose"][: len(known)]
        ends.append(to_frame(padded["target"][:, -1], pose)[known])
    return equal_regions(np.concatenate(ends), count, seed)


def equal_regions(points: np.ndarray, count: int, seed: int) -> Tensor:
    """Equal-size k-means of end points [n, 2], metres: regions [M, 3] from left to right by their centres' x.

    Each round gives every centre the same number of points at the least sum of squared distances, exactly; the best of a few
    random starts is taken. Of more than 768 points a random choice is clustered.

    Raises:
        TrajformerError: there are fewer points than regions.
    """
    if len(points) < count:
        raise TrajformerError(f"mmtransformer.regions.count: {count}, but the training data has {len(points)} end points")
    rng = np.random.default_rng(seed)
    size = min(len(points), _MOST) // count
    points = points[rng.permutation(len(points))[: size * count]].astype(np.float64)
    found = [_cluster(points, points[rng.choice(len(points), count, replace=False)]) for _ in range(_STARTS)]
    _, centre, owner = min(found, key=lambda one: one[0])
    regions = np.concatenate([centre, _weights(_squared(points, centre), owner)[:, None]], 1)
    return torch.from_numpy(regions[regions[:, 0].argsort(kind="stable")]).float()


def _squared(points: np.ndarray, centre: np.ndarray) -> np.ndarray:
    return np.square(points[:, None] - centre).sum(-1)


def _cluster(points: np.ndarray, centre: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """The least sum of squared distances found from these centres [M, 2], the centres there, and the owner of each point.

    Owners are the best ones for these centres, also where the rounds end before centres are the means of their points: or
    there would be no weights for them.
    """
    size, owner = len(points) // len(centre), np.full(len(points), -1)
    for number in range(_ROUNDS):
        before, cost = owner, _squared(points, centre)
        owner = linear_sum_assignment(cost.repeat(size, axis=1))[1] // size
        if (owner == before).all() or number + 1 == _ROUNDS:
            break
        centre = np.stack([points[owner == region].mean(0) for region in range(len(centre))])
    return float(cost[np.arange(len(points)), owner].sum()), centre, owner


def _weights(cost: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Weights [M] at which every point has the least cost minus weight where it is: the dual of the assignment.

    Point i stays in j rather than k as long as weight k - weight j is at most cost ik - cost ij. With the least of these over
    all points as lengths of ways, the distances from any one region are such weights; their mean keeps off all borders.
    """
    count = cost.shape[1]
    way = np.stack([(cost[owner == j] - cost[owner == j, j : j + 1]).min(0) for j in range(count)])
    for middle in range(count):
        way = np.minimum(way, way[:, middle : middle + 1] + way[middle])
    weight = way.mean(0)
    return weight - weight.mean()
