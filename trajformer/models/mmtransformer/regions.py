"""Regions of end points for mmTransformer (Liu et al., CVPR 2021, section 3.4).

A region is [x, y, weight] in the frame of a target. An end point belongs to the region with the
smallest squared distance to (x, y) minus weight (a power diagram). With equal weights this is the
nearest center; a larger weight moves the straight borders away from the center.

Equal-size k-means finds centers of clusters with equal numbers of training end points. The weights
are chosen such that the regions divide these points exactly like the clusters. The paper does not
say how end points are assigned after clustering; assigned by distance alone, regions in crowded
places would contain most of the training data.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trajformer.data.loading import TrainingScenes
from trajformer.errors import TrajformerError
from trajformer.scenes.geometry import to_frame

_MAX_SCENES = 2048  # read for their end points
_MAX_POINTS = 768  # clustered
_NUM_STARTS = 4


class _Clustering(NamedTuple):
    """n points in M clusters of equal size."""

    cost: float  # sum of the squared distances of the points to their centers
    center: np.ndarray  # float64 [M, 2]
    cluster: np.ndarray  # int64 [n], the cluster of each point


def region_of(end: Tensor, regions: Tensor) -> Tensor:
    """Int64 [...], index of the region [M, 3] that contains each end point [..., 2]."""
    squared_distance = (end[..., None, :] - regions[:, :2]).square().sum(-1)  # [..., M]
    return (squared_distance - regions[:, 2]).argmin(-1)


def fit_regions(scenes: TrainingScenes, count: int, seed: int) -> Tensor:
    """Equal-size regions [M, 3] of the end points of targets in a random choice of training scenes.

    Targets that are not valid in the last recorded step of their scene are left out. The result
    depends on the scenes, `count` and `seed` only. Raises TrajformerError: there are fewer end
    points than regions.
    """
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(scenes))[:_MAX_SCENES]
    ends = [np.zeros((0, 2), np.float32)]
    for index in chosen.tolist():
        padded = scenes.sample(index).padded
        valid = padded["target_valid"]  # [S, F]
        # In a training with several data sets, horizons differ.
        last = np.flatnonzero(valid.any(0))[-1:]
        if len(last) == 0:
            continue
        known = valid[:, last[0]]
        pose = padded["pose"][: len(known)]
        end = to_frame(padded["target"][:, last[0]], pose)
        ends.append(end[known])
    return equal_regions(np.concatenate(ends), count, seed)


def equal_regions(points: np.ndarray, count: int, seed: int, rounds: int = 60) -> Tensor:
    """Equal-size k-means of end points [n, 2] in metres: regions [M, 3], by increasing x.

    Each round, at most `rounds`, assigns the same number of points to every center at the smallest
    sum of squared distances (exactly). The best of several random starts is the result. At most 768
    points, chosen at random, are clustered. Raises TrajformerError: there are fewer points than
    regions.
    """
    if len(points) < count:
        raise TrajformerError(
            f"mmtransformer.regions: {count}, but the training data has {len(points)} end points"
        )
    # The number of points must be a multiple of the number of clusters.
    rng = np.random.default_rng(seed)
    cluster_size = min(len(points), _MAX_POINTS) // count
    chosen = rng.permutation(len(points))[: cluster_size * count]
    points = points[chosen].astype(np.float64)

    clusterings = []
    for _ in range(_NUM_STARTS):
        initial = rng.choice(len(points), count, replace=False)
        clusterings.append(_cluster(points, points[initial], rounds))
    best = min(clusterings, key=lambda clustering: clustering.cost)

    weight = _weights(_squared_distances(points, best.center), best.cluster)
    regions = np.concatenate([best.center, weight[:, None]], 1)
    order = regions[:, 0].argsort(kind="stable")
    return torch.from_numpy(regions[order]).float()


def _squared_distances(points: np.ndarray, center: np.ndarray) -> np.ndarray:
    """Points [n, 2] and centers [M, 2] to [n, M]."""
    return np.square(points[:, None] - center).sum(-1)


def _cluster(points: np.ndarray, center: np.ndarray, rounds: int) -> _Clustering:
    """K-means from initial centers [M, 2].

    The last step is always an assignment, also after the last round: `_weights` needs clusters that
    are optimal for the centers.
    """
    # Importing it takes half a second, which forecasts do not need.
    from scipy.optimize import linear_sum_assignment

    cluster_size = len(points) // len(center)
    cluster = np.full(len(points), -1)
    for round_index in range(rounds):
        previous = cluster
        cost = _squared_distances(points, center)
        # A column for each place in a cluster: all clusters receive the same number of points.
        columns = linear_sum_assignment(cost.repeat(cluster_size, axis=1))[1]
        cluster = columns // cluster_size
        if (cluster == previous).all() or round_index + 1 == rounds:
            break
        center = np.stack([points[cluster == region].mean(0) for region in range(len(center))])
    assigned = cost[np.arange(len(points)), cluster]
    return _Clustering(float(assigned.sum()), center, cluster)


def _weights(cost: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """Weights [M] such that cost minus weight is smallest for the cluster of each point.

    This is the dual of the assignment. Point i stays in cluster j instead of k if weight k - weight
    j <= cost ik - cost ij. Let the length from j to k be the minimum of the right side over the
    points of j. The shortest distances from any node satisfy all inequalities; their mean over the
    nodes keeps points away from the borders.
    """
    count = cost.shape[1]
    lengths = []
    for region in range(count):
        members = cost[cluster == region]
        lengths.append((members - members[:, region : region + 1]).min(0))
    distance = np.stack(lengths)
    for middle in range(count):  # Floyd-Warshall
        through_middle = distance[:, middle : middle + 1] + distance[middle]
        distance = np.minimum(distance, through_middle)
    weight = distance.mean(0)
    return weight - weight.mean()
