"""mmTransformer (Liu et al., CVPR 2021): stacked transformers over motion, map and neighbours.

K learned queries per agent (proposals) pass a motion extractor (own history), a map aggregator (lanes) and a social constructor
(neighbours). Two heads predict offsets and a score.

Differences from the paper:
- Every agent is normalised in its own frame instead of the target's, so that all targets of a scene are predicted in one pass.
- Positional embeddings are learned and added in each attention (DETR style); queries are initialised orthogonally.
- Offsets from step to step are added to the positions at constant velocity.
- With `social_output: appended`, features reach the heads as in the released code.
- With `regions` (section 3.4), proposals k * N to (k + 1) * N - 1 belong to region k. Regions are a buffer of the model.
- With `joint` (not in the paper), proposal k of all targets is one world: in the social constructor it attends to the k-th
  proposals of the neighbours only, and the score of a world is computed from the mean feature of its targets.

Regions of end points and their loss (section 3.4):

A region is [x, y, weight] in the frame of a target. An end point belongs to the region with the smallest squared distance to
(x, y) minus weight (a power diagram). With equal weights this is the nearest center; a larger weight moves the straight borders
away from the center.

Equal-size k-means finds centers of clusters with equal numbers of training end points. The weights are chosen such that the
regions divide these points exactly like the clusters. The paper does not say how end points are assigned after clustering;
assigned by distance alone, regions in crowded places would contain most of the training data.

Only the N proposals of the region with the true end point are trained: the regression loss is Huber of all or of the nearest one,
the confidence loss the KL divergence of their scores from softmax(-FDE). The classification loss is a cross-entropy over regions;
the probability of a region is the sum over its proposals. Learned uncertainties, the same for every social decoder layer, weigh
the three (Kendall et al. 2018).
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional as F

from trajformer.config import Config
from trajformer.core.blocks import Decoder, Encoder
from trajformer.core.positions import LearnedPosition
from trajformer.data.batch import Observation, SceneBatch
from trajformer.data.forecast import Forecast
from trajformer.data.loading import SceneDataset
from trajformer.errors import ConfigError, TrajformerError
from trajformer.losses.set_loss import (
    WorldLossConfig,
    confidence_divergence,
    huber,
    last_valid,
    pairwise_errors,
)
from trajformer.losses.terms import LossConfig, Terms, combine, total
from trajformer.models.forecaster import Forecaster, TargetModelConfig
from trajformer.models.horizon import check_lengths, forecast_from_offsets, world_features
from trajformer.models.modes import consensus, endpoint_nms
from trajformer.models.tokens import MapTokenizer, MotionTokenizer, NeighborTokenizer, mlp
from trajformer.scenes.geometry import to_frame

_MAX_SCENES = 2048  # read for their end points
_MAX_POINTS = 768  # clustered
_STARTS = 4
TERMS = (
    "regression",
    "confidence",
    "classification",
)  # of the loss, in the order of its learned variances


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
            raise ConfigError(
                "count", f"{self.count}, expected the number of regions of the fan, {fan}"
            )


def initial_regions(config: RegionConfig) -> Tensor:
    """The fan [M, 3], or zeros, which `fit_regions` replaces before training."""
    fan = config.fan
    if fan is None:
        return torch.zeros(config.count, 3)
    angle = (
        torch.linspace(-0.5, 0.5, fan.directions) * fan.spread
        if fan.directions > 1
        else torch.zeros(1)
    )
    distance = torch.tensor(fan.distances_m)[:, None]
    x, y = (distance * angle.cos()).flatten(), (distance * angle.sin()).flatten()
    return torch.stack([x, y, torch.zeros_like(x)], -1)


def region_of(end: Tensor, regions: Tensor) -> Tensor:
    """Int64 [...], index of the region [M, 3] that contains each end point [..., 2]."""
    return ((end[..., None, :] - regions[:, :2]).square().sum(-1) - regions[:, 2]).argmin(-1)


def fit_regions(scenes: SceneDataset, count: int, seed: int) -> Tensor:
    """Equal-size regions [M, 3] of the end points of all targets in a random choice of training scenes.

    The result depends on the scenes, `count` and `seed` only. Raises TrajformerError: there are fewer end points than regions.
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
    (exactly). The best of several random starts is the result. At most 768 points, chosen at random, are clustered. Raises
    TrajformerError: there are fewer points than regions.
    """
    if len(points) < count:
        raise TrajformerError(
            f"mmtransformer.regions.count: {count}, but the training data has {len(points)} end points"
        )
    rng = np.random.default_rng(seed)
    size = min(len(points), _MAX_POINTS) // count
    points = points[rng.permutation(len(points))[: size * count]].astype(np.float64)
    starts = [
        _cluster(points, points[rng.choice(len(points), count, replace=False)], rounds)
        for _ in range(_STARTS)
    ]
    _, center, cluster = min(starts, key=lambda start: start[0])
    regions = np.concatenate(
        [center, _weights(_squared_distances(points, center), cluster)[:, None]], 1
    )
    return torch.from_numpy(regions[regions[:, 0].argsort(kind="stable")]).float()


def _squared_distances(points: np.ndarray, center: np.ndarray) -> np.ndarray:
    return np.square(points[:, None] - center).sum(-1)


def _cluster(
    points: np.ndarray, center: np.ndarray, rounds: int
) -> tuple[float, np.ndarray, np.ndarray]:
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
    distance = np.stack(
        [(cost[cluster == j] - cost[cluster == j, j : j + 1]).min(0) for j in range(count)]
    )
    for middle in range(count):  # Floyd-Warshall
        distance = np.minimum(distance, distance[:, middle : middle + 1] + distance[middle])
    weight = distance.mean(0)
    return weight - weight.mean()


@dataclass(frozen=True)
class RegionLossConfig(LossConfig, positive=("huber_m", "temperature_m")):
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

    def build(self) -> nn.Module:
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
        return region_loss(
            forecast, truth.position, truth.valid, model.regions, self.log_variance, self.config
        )


def region_loss(
    forecast: Forecast,
    target: Tensor,
    valid: Tensor,
    regions: Tensor,
    log_variance: Tensor,
    config: RegionLossConfig,
) -> Terms:
    """The loss of a marginal forecast in agents' frames, in which the modes k * N to (k + 1) * N - 1 belong to region k.

    The target is [B, S, F, 2] in the batch frame, `valid` bool [B, S, F]; agents without a valid step are ignored, and the end
    point is the last valid position. `log_variance` [3] are logarithms of the learned variances of the terms, in the order of
    `TERMS`. Returns means over agents of "regression", "confidence" and "classification" of the last layer, "auxiliary" for the
    earlier layers, all detached, and the weighted sum "loss", which may be negative. Raises ValueError: the forecast is joint, is
    not in agents' frames, or its number of modes is not a multiple of M.
    """
    if forecast.is_joint or forecast.pose is None or forecast.num_modes % len(regions):
        expected = f"expected marginal modes in agents' frames, a multiple of {len(regions)} modes"
        raise ValueError(
            f"region_loss: {forecast.num_modes} modes in frame {forecast.frame.name}, {expected}"
        )
    target = to_frame(target, forecast.pose[:, :, None]).flatten(0, 1)
    valid = valid.flatten(0, 1)
    end = last_valid(valid)
    region = region_of(target.take_along_dim(end[:, None, None], 1).squeeze(1), regions)
    truth = (target, valid, region, len(regions))

    def weigh(terms: Terms, _: object) -> Tensor:
        """Kendall et al. 2018: L / (2 var) for a regression, L / var for a classification, plus log(standard deviation)."""
        value = torch.stack(
            [share * terms[name] for name, share in zip(TERMS, (0.5, 1.0, 1.0), strict=True)]
        )
        return ((-log_variance).exp() * value + 0.5 * log_variance).sum()

    return combine(
        [_layer_terms(layer, truth, config) for layer in (forecast, *forecast.auxiliary)],
        config,
        weigh,
    )


def _layer_terms(
    forecast: Forecast, truth: tuple[Tensor, Tensor, Tensor, int], config: RegionLossConfig
) -> Terms:
    """Terms of one decoder layer; `truth`: futures [n, F, 2] and bool [n, F] of n agents, their regions [n], and M."""
    target, valid, region, count = truth
    known = valid.any(-1)
    agents = total(known)
    position = forecast.position.flatten(0, 1).unflatten(1, (count, -1))  # [n, M, N, F, 2]
    logit = forecast.logit.flatten(0, 1).unflatten(1, (count, -1))  # [n, M, N]
    row = torch.arange(len(region), device=region.device)
    position, inside = position[row, region], logit[row, region]  # [n, N, F, 2], [n, N]
    expected, actual, mask = target, position, valid
    if config.error == "offsets":
        expected, actual = _offsets(target), _offsets(position)
        mask = valid & F.pad(valid[..., :-1], (1, 0), value=True)
    error, _ = huber(actual - expected[:, None], mask[:, None], config.huber_m)  # [n, N]
    fde = pairwise_errors(position.detach(), target[:, None], valid[:, None])[1].squeeze(
        -1
    )  # [n, N]
    error = (
        error.mean(1)
        if config.learn == "all"
        else error.gather(1, fde.argmin(1, keepdim=True)).squeeze(1)
    )
    divergence = confidence_divergence(inside, fde, config.temperature_m)
    cross_entropy = logit.flatten(1).logsumexp(-1) - inside.logsumexp(-1)
    values = dict(zip(TERMS, (error, divergence, cross_entropy), strict=True))
    return {name: torch.where(known, value, 0.0).sum() / agents for name, value in values.items()}


def _offsets(position: Tensor) -> Tensor:
    """Offsets [..., F, 2] from step to step, the first one from the origin."""
    return position - F.pad(position[..., :-1, :], (0, 0, 1, 0))


@dataclass(frozen=True)
class MMTransformerConfig(TargetModelConfig, positive=("proposals",)):
    """Sizes and reach of mmTransformer.

    Attributes:
        modes: number of modes in evaluation; if it is less than `proposals`, modes are selected by end-point suppression.
        proposals: K, number of queries.
        nms_radius_m: end points closer than this to a more probable one are suppressed.
        motion_layers: numbers of encoder and decoder layers of the motion extractor.
        map_layers: the same for the map aggregator; None leaves it out.
        social_layers: the same for the social constructor; None leaves it out.
        neighbour_map: neighbours pass the map aggregator, as in the paper; otherwise their features contain motion only.
        social_output: decoded: proposals pass a social decoder (paper). appended: there is no social decoder, and the encoded
            target is concatenated to its proposals (released code).
        regions: proposals are divided between regions of end points; the default loss is then `regions`.
        joint: proposal k of all targets is one world with one probability; the default loss is then `worlds`.
    """

    proposals: int = 6
    nms_radius_m: float = 2.0
    motion_layers: tuple[int, int] = (2, 2)
    map_layers: tuple[int, int] | None = (2, 2)
    social_layers: tuple[int, int] | None = (2, 4)
    neighbour_map: bool = False
    social_output: Literal["decoded", "appended"] = "decoded"
    regions: RegionConfig | None = None
    joint: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        decoded = self.social_output == "decoded"
        for name in ("motion_layers", "map_layers", "social_layers"):
            layers = getattr(self, name)
            if layers and layers[1] < 1 and (decoded or name != "social_layers"):
                raise ConfigError(name, f"{layers}, expected at least one decoder layer")
        if self.modes > self.proposals:
            raise ConfigError(
                "modes", f"{self.modes}, expected at most {self.proposals}, the number of proposals"
            )
        if self.regions is not None and self.proposals % self.regions.count:
            raise ConfigError(
                "proposals",
                f"{self.proposals}, expected a multiple of {self.regions.count} regions",
            )
        if not decoded and not self.social_layers:
            raise ConfigError("social_output", "appended needs social_layers")
        if self.joint and (
            self.modes < self.proposals or self.regions is not None or not self.social_layers
        ):
            raise ConfigError(
                "joint", "needs social_layers, modes equal to proposals, and no regions"
            )


class MotionExtractor(nn.Module):
    """K queries per agent attend to the agent's history."""

    def __init__(self, config: MMTransformerConfig) -> None:
        super().__init__()
        width = config.block.width
        self.tokens = MotionTokenizer(width, config.steps_per_token)
        self.time = LearnedPosition((config.max_history,), width)
        self.encoder = Encoder(config.block, config.motion_layers[0])
        self.decoder = Decoder(config.block, config.motion_layers[1])
        self.queries = nn.Parameter(nn.init.orthogonal_(torch.empty(config.proposals, width)))

    def forward(self, observation: Observation) -> Tensor:
        """Proposals of all agents [B, A, K, D]."""
        tokens, mask = self.tokens(observation)
        time = self.time()[
            -tokens.shape[2] :
        ]  # embeddings are counted back from the last observed step
        memory = self.encoder(tokens, mask[:, :, None], time)
        queries = self.queries.expand(*mask.shape[:2], -1, -1)
        arguments = {
            "memory_mask": mask[:, :, None],
            "position": self.queries,
            "memory_position": time,
        }
        return self.decoder(queries, memory, **arguments)[-1]


class MapAggregator(nn.Module):
    """Proposals attend to the lanes around their agent."""

    def __init__(self, config: MMTransformerConfig, layers: tuple[int, int]) -> None:
        super().__init__()
        self.tokens = MapTokenizer(
            config.block.width, config.map_width, config.map_radius_m, config.max_polylines
        )
        self.encoder = Encoder(config.block, layers[0])
        self.decoder = Decoder(config.block, layers[1])

    def forward(
        self, observation: Observation, proposals: Tensor, position: Tensor | None
    ) -> Tensor:
        """Proposals of the first N agents [B, N, K, D] to the same shape."""
        tokens, mask = self.tokens(observation, proposals.shape[1])
        memory = self.encoder(tokens, mask[:, :, None])
        return self.decoder(proposals, memory, memory_mask=mask[:, :, None], position=position)[-1]


class SocialConstructor(nn.Module):
    """Proposals of targets attend to the neighbours of the target.

    A neighbour is one token, an MLP of all its proposals. With `joint`, it is K tokens, one per proposal (world), and a
    proposal attends to tokens of the same world only.
    """

    def __init__(self, config: MMTransformerConfig, layers: tuple[int, int]) -> None:
        super().__init__()
        width = config.block.width
        self.joint = config.joint
        self.vehicle = mlp((1 if config.joint else config.proposals) * width, width, width)
        self.tokens = NeighborTokenizer(width, config.social_radius_m, config.max_neighbors)
        self.encoder = Encoder(config.block, layers[0])
        self.decoder = (
            Decoder(config.block, layers[1]) if config.social_output == "decoded" else None
        )

    def forward(
        self,
        observation: Observation,
        all_proposals: Tensor,
        proposals: Tensor,
        position: Tensor | None,
    ) -> list[Tensor]:
        """Proposals of all agents [B, A, K, D] and of the targets [B, S, K, D], to features after each decoder layer.

        `position` [K, D] are the positional embeddings of the queries. Returns a tensor [B, S, K, D] per layer; without a
        decoder, one tensor [B, S, K, 2 D]: encoded target, then proposal.
        """
        worlds = (
            all_proposals if self.joint else all_proposals.flatten(-2)[:, :, None]
        )  # [B, A, W, ...], W = K or 1
        tokens, mask = self.tokens(observation, self.vehicle(worlds))  # [B, S, n, W, D], [B, S, n]
        memory = self.encoder(
            tokens.transpose(2, 3).contiguous(), mask[:, :, None, None]
        )  # [B, S, W, n, D]
        if self.decoder is None:
            target = memory[:, :, :, 0].expand_as(
                proposals
            )  # a target is its own nearest neighbour
            return [torch.cat([target, proposals], -1)]
        same_world = torch.eye(memory.shape[2], dtype=torch.bool, device=mask.device)[
            :, :, None
        ]  # [W, W, 1]
        memory_mask = (same_world & mask[:, :, None, None]).flatten(-2)  # [B, S, W, W * n]
        return self.decoder(
            proposals, memory.flatten(2, 3), memory_mask=memory_mask, position=position
        )


class MMTransformer(Forecaster, config=MMTransformerConfig):
    """Observation -> Forecast in the frame of each target. K is `proposals` in training, `modes` in evaluation.

    Forecasts of earlier social decoder layers are auxiliary, for the same losses.
    """

    regions: Tensor | None  # [M, 3], regions of end points (see `fit_regions`)

    def __init__(self, config: MMTransformerConfig) -> None:
        super().__init__()
        self.config, self.joint = config, config.joint
        if config.regions is not None:
            self.losses = (RegionLossConfig,)
        elif config.joint:
            self.losses = (WorldLossConfig,)
        width, decoded = config.block.width, config.social_output == "decoded"
        self.motion = MotionExtractor(config)
        self.map = MapAggregator(config, config.map_layers) if config.map_layers else None
        self.social = (
            SocialConstructor(config, config.social_layers) if config.social_layers else None
        )
        queried = self.map is not None or (self.social is not None and decoded)
        self.position = (
            nn.Parameter(torch.randn(config.proposals, width) * 0.02) if queried else None
        )
        inputs = width if decoded else 2 * width
        self.trajectory = mlp(inputs, width, width, config.num_future * 2)
        self.score = mlp(inputs, width, width, 1)
        self.register_buffer("regions", initial_regions(config.regions) if config.regions else None)

    def forward(self, observation: Observation) -> Forecast:
        """Predict all targets; raises the errors of `check_lengths`."""
        check_lengths(observation, self.config.num_future, self.config.max_history)
        layers = self._layers(observation)
        scored = [world_features(observation, x) for x in layers] if self.joint else layers
        pairs = zip(layers, scored, strict=True)
        *earlier, last = [
            forecast_from_offsets(observation, self.trajectory(x), self.score(y)) for x, y in pairs
        ]
        forecast = replace(last, auxiliary=tuple(earlier))
        if self.training or self.config.joint:
            return forecast
        if self.config.modes < self.config.proposals:
            forecast = endpoint_nms(forecast, self.config.modes, self.config.nms_radius_m)
        return consensus(forecast, self.config.consensus_m)

    def prepare(
        self, scenes: SceneDataset, seed: int, first_stage: nn.Module | None = None
    ) -> None:
        """Fit the regions to the end points of the training scenes, unless the config gives them."""
        if (
            self.regions is not None
            and self.config.regions is not None
            and self.config.regions.fan is None
        ):
            self.regions.copy_(fit_regions(scenes, self.config.regions.count, seed))

    def _layers(self, observation: Observation) -> list[Tensor]:
        """Features [B, S, K, ...] of the targets' proposals, for each social decoder layer."""
        count = observation.num_targets
        all_proposals = self.motion(observation)
        if self.map is not None and self.config.neighbour_map:
            all_proposals = self.map(observation, all_proposals, self.position)
        targets = all_proposals[:, :count]
        if self.map is not None and not self.config.neighbour_map:
            targets = self.map(observation, targets, self.position)
        if self.social is None:
            return [targets]
        if (
            self.config.joint
        ):  # neighbours that are targets are known by their features after the map aggregator
            first = torch.where(
                observation.target_mask[..., None, None], targets, all_proposals[:, :count]
            )
            all_proposals = torch.cat([first, all_proposals[:, count:]], 1)
        return self.social(observation, all_proposals, targets, self.position)
