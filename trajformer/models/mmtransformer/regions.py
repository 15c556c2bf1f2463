"""Region-based training strategy of mmTransformer: regions of end points and the loss (Liu et al. 2021, section 3.4).

A region is [x, y, weight] in the frame of a target. An end point belongs to the region with the smallest squared distance to
(x, y) minus weight (a power diagram). With equal weights this is the nearest center; a larger weight moves the straight borders
away from the center.

Equal-size k-means finds centers of clusters with equal numbers of training end points. The weights are chosen such that the
regions divide these points exactly like the clusters. The paper does not say how end points are assigned after clustering;
assigned by distance alone, regions in crowded places would contain most of the training data.

Proposals belong to M regions, N to each. Only the proposals of the region with the true end point are trained: the regression
loss is Huber on offsets from step to step (or on positions) of all N or of the nearest one, the confidence loss is the KL
divergence of their scores from softmax(-FDE). The classification loss is a cross-entropy over regions; the probability of a
region is the sum over its proposals. The three are weighted by learned uncertainties (Kendall et al. 2018). Every social decoder
layer has the same losses and uncertainties.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.data.batch import SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.data.loading import SceneDataset
from trajformer.errors import Config, ConfigError, TrajformerError
from trajformer.losses.set_loss import huber, last_valid, pairwise_errors
from trajformer.losses.terms import Terms, combine
from trajformer.scenes.geometry import to_frame

_MAX_SCENES = 2048  # read for their end points
_MAX_POINTS = 768  # clustered
_STARTS = 4
TERMS = ("regression", "confidence", "classification")  # of the loss, in the order of its learned variances


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


@dataclass(frozen=True)
class RegionLossConfig(Config, positive=("huber_m", "temperature_m")):
    """Choices that the paper leaves open.

    Attributes:
        error: input of the Huber loss: offsets from step to step (the paper), or positions, which the metrics measure; errors of
            offsets are small, but accumulate.
        learn: proposals that receive the Huber loss: all N of the region (the paper's text), or the nearest one. With all, they
            learn the same path, the median of the region: after 12 epochs on Argoverse 1, their end points were within 5 cm.
        huber_m: error at which Huber changes from quadratic to linear, metres.
        temperature_m: temperature of softmax(-FDE / temperature), metres.
        auxiliary: weight of the mean loss of the earlier decoder layers.
    """

    error: Literal["offsets", "positions"] = "offsets"
    learn: Literal["all", "nearest"] = "all"
    huber_m: float = 1.0
    temperature_m: float = 1.0
    auxiliary: float = 1.0

    def build(self) -> RegionLoss:
        """The loss with these weights."""
        return RegionLoss(self)


class RegionLoss(nn.Module):
    """`region_loss` of a model with `regions` [M, 3], with learned variances of its terms."""

    def __init__(self, config: RegionLossConfig) -> None:
        super().__init__()
        self.config = config
        self.log_variance = nn.Parameter(torch.zeros(len(TERMS)))

    def forward(self, model: Any, batch: SceneBatch) -> Terms:
        """The terms of the loss by name."""
        forecast, truth = model(batch.observation), batch.truth
        return region_loss(forecast, truth.position, truth.valid, model.regions, self.log_variance, self.config)


def region_loss(
    forecast: Forecast, target: Tensor, valid: Tensor, regions: Tensor, log_variance: Tensor, config: RegionLossConfig
) -> Terms:
    """The loss of a marginal forecast in which the modes k * N to (k + 1) * N - 1 belong to region k.

    Args:
        forecast: M * N modes of B x S agents, in the frames of the agents.
        target: [B, S, F, 2] in the batch frame.
        valid: bool [B, S, F]; agents without a valid step are ignored. The end point is the last valid position.
        regions: [M, 3].
        log_variance: [3], logarithms of the learned variances of the terms, in the order of `TERMS`.
        config: the choices.

    Returns:
        Means over agents of "regression", "confidence" and "classification" of the last layer, "auxiliary" for the earlier
        layers, all detached, and the weighted sum "loss", which may be negative.

    Raises:
        ValueError: the forecast is joint, is not in agents' frames, or its number of modes is not a multiple of M.
    """
    if forecast.is_joint or forecast.pose is None or forecast.num_modes % len(regions):
        expected = f"expected marginal modes in agents' frames, a multiple of {len(regions)} modes"
        raise ValueError(f"region_loss: {forecast.num_modes} modes in frame {forecast.frame.name}, {expected}")
    target = to_frame(target, forecast.pose[:, :, None]).flatten(0, 1)
    valid = valid.flatten(0, 1)
    end = last_valid(valid)
    region = region_of(target.take_along_dim(end[:, None, None], 1).squeeze(1), regions)
    truth = (target, valid, region, len(regions))
    halved = torch.tensor([0.5, 1.0, 1.0], device=log_variance.device)

    def weigh(terms: Terms, _: object) -> Tensor:
        """Kendall et al. 2018: L / (2 var) for a regression, L / var for a classification, plus log(standard deviation)."""
        value = torch.stack([terms[name] for name in TERMS])
        return (halved * (-log_variance).exp() * value + 0.5 * log_variance).sum()

    return combine([_layer_terms(layer, truth, config) for layer in (forecast, *forecast.auxiliary)], config, weigh)


def _layer_terms(forecast: Forecast, truth: tuple[Tensor, Tensor, Tensor, int], config: RegionLossConfig) -> Terms:
    """Terms of one decoder layer; `truth`: futures [n, F, 2] and bool [n, F] of n agents, their regions [n], and M."""
    target, valid, region, count = truth
    known = valid.any(-1)
    agents = known.sum().clamp(min=1)
    position = forecast.position.flatten(0, 1).unflatten(1, (count, -1))  # [n, M, N, F, 2]
    logit = forecast.logit.flatten(0, 1).unflatten(1, (count, -1))  # [n, M, N]
    row = torch.arange(len(region), device=region.device)
    position, inside = position[row, region], logit[row, region]  # [n, N, F, 2], [n, N]
    expected, actual, mask = target, position, valid
    if config.error == "offsets":
        expected, actual = _offsets(target), _offsets(position)
        mask = valid & F.pad(valid[..., :-1], (1, 0), value=True)
    error, _ = huber(actual - expected[:, None], mask[:, None], config.huber_m)  # [n, N]
    fde = pairwise_errors(position.detach(), target[:, None], valid[:, None])[1].squeeze(-1)  # [n, N]
    error = error.mean(1) if config.learn == "all" else error.gather(1, fde.argmin(1, keepdim=True)).squeeze(1)
    confidence = (-fde / config.temperature_m).softmax(-1)
    divergence = F.kl_div(inside.log_softmax(-1), confidence, reduction="none").sum(-1)
    cross_entropy = logit.flatten(1).logsumexp(-1) - inside.logsumexp(-1)
    values = dict(zip(TERMS, (error, divergence, cross_entropy), strict=True))
    return {name: torch.where(known, value, 0.0).sum() / agents for name, value in values.items()}


def _offsets(position: Tensor) -> Tensor:
    """Offsets [..., F, 2] from step to step, the first one from the origin."""
    return position - F.pad(position[..., :-1, :], (0, 0, 1, 0))
