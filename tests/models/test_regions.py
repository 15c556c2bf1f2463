"""Regions of end points, the loss with regions, training with it, and left-out parts."""

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from support.models import MMTRANSFORMER, build
from support.scenes import make_scene, varied_scenes
from support.tensors import draw
from support.training import recipe, training_store, weights
from torch import Tensor

from trajformer.data.batch import Observation, collate
from trajformer.data.forecast import Forecast
from trajformer.data.loading import SceneDataset
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.models.mmtransformer.region_loss import RegionLossConfig, region_loss
from trajformer.models.mmtransformer.regions import equal_regions, fit_regions, region_of
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK
from trajformer.training.run import train


def crowded(count: int = 300) -> np.ndarray:
    """End points, mostly straight ahead, as in real data."""
    rng = np.random.default_rng(5)
    points = np.stack([rng.gamma(4.0, 4.0, count), rng.normal(0.0, 0.5, count)], -1)
    turning = count // 6
    points[:turning, 1] += np.abs(rng.normal(12.0, 5.0, turning))
    return points


def region_sizes(points: np.ndarray, regions: Tensor) -> Tensor:
    """The number of points in each region."""
    region = region_of(torch.from_numpy(points).float(), regions)
    return region.bincount(minlength=len(regions))


def test_points_belong_to_regions_by_hand() -> None:
    regions = torch.tensor([[10.0, 0.0, 0.0], [30.0, 0.0, 0.0], [20.0, 20.0, 100.0]])
    ends = torch.tensor([[19.0, 0.0], [21.0, 0.0], [21.0, 4.0], [-3.0, -4.0]])
    # The third point has squared distances minus weights of 137, 97 and 157.
    assert region_of(ends, regions).tolist() == [0, 1, 1, 0]
    regions[2, 2] = 170.0
    assert region_of(ends, regions).tolist() == [0, 1, 2, 0]


def test_equal_regions_divide_their_points_equally() -> None:
    points = crowded()
    regions = equal_regions(points, 6, seed=1)
    assert region_sizes(points, regions).tolist() == [50] * 6
    assert (regions[1:, 0] >= regions[:-1, 0]).all()
    assert abs(regions[:, 2].sum()) < 1e-2

    without_weights = regions * torch.tensor([1.0, 1.0, 0.0])
    assert region_sizes(points, without_weights).max() > 60  # sizes differ without weights


def squared_spread(points: np.ndarray, groups: list[tuple[int, ...]]) -> float:
    """Sum of squared distances of points to the means of their groups."""
    spread = 0.0
    for group in groups:
        members = points[list(group)]
        spread += float(np.square(members - members.mean(0)).sum())
    return spread


def test_clusters_have_the_smallest_sum_of_squared_distances() -> None:
    points = np.random.default_rng(0).normal(size=(9, 2)) * [6.0, 2.0]
    best = math.inf
    for first in itertools.combinations(range(9), 3):
        others = sorted(set(range(9)) - set(first))
        for second in itertools.combinations(others, 3):
            third = tuple(set(others) - set(second))
            best = min(best, squared_spread(points, [first, second, third]))

    region = region_of(torch.from_numpy(points).float(), equal_regions(points, 3, seed=0))
    groups = [tuple(np.flatnonzero(region == index).tolist()) for index in range(3)]
    assert squared_spread(points, groups) == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize(
    ("count", "seed", "limit"),
    [(600, 0, 2), (600, 1, 2), (4000, 3, 160)],  # points on a border; 768 points are clustered
)
def test_regions_equal_the_clusters_also_if_the_rounds_end_early(
    count: int, seed: int, limit: int
) -> None:
    points = crowded(count)
    regions = equal_regions(points, 6, seed=seed, rounds=2)
    assert (region_sizes(points, regions) - count / 6).abs().max() <= limit
    assert torch.equal(regions, equal_regions(points, 6, seed=seed, rounds=2))


def test_fewer_points_than_regions_are_an_error() -> None:
    with pytest.raises(TrajformerError, match="has 5 end points"):
        equal_regions(crowded()[:5], 6, seed=0)


REGIONS = torch.tensor([[-3.0, 0.0, 1.0], [3.0, 1.0, -2.0]])
LOG_VARIANCE = torch.tensor([0.3, -0.2, 0.5])
CONFIG = RegionLossConfig(huber_m=0.7, temperature_m=2.0, auxiliary=0.6)


def case() -> tuple[Forecast, Tensor, Tensor]:
    """A forecast of 2 regions x 2 proposals for 2 x 3 agents, their futures and a mask.

    Futures are unknown, shorter or with a gap.
    """
    pose = torch.cat([draw(2, 3, 2, seed=4, scale=3.0), draw(2, 3, 1, seed=5, scale=3.0)], -1)
    position = draw(2, 3, 4, 5, 2, scale=3.0).requires_grad_()
    logit = draw(2, 3, 4).requires_grad_()
    target = draw(2, 3, 5, 2, seed=20, scale=3.0)
    valid = torch.ones(2, 3, 5, dtype=torch.bool)
    valid[0, 1] = False
    valid[1, 0, 3:] = False
    valid[1, 2, 1] = False
    return Forecast(position, logit, Frame.AGENT, pose), target, valid


def huber(gap: Tensor) -> Tensor:
    """Huber loss of gaps with the threshold of `CONFIG`."""
    return torch.where(gap.abs() < 0.7, gap.square() / (2 * 0.7), gap.abs() - 0.35)


def agent_terms(
    position: Tensor, logit: Tensor, target: Tensor, valid: Tensor, config: RegionLossConfig
) -> list[float]:
    """Regression, confidence and classification of an agent.

    Positions are [4, F, 2] and the target is [F, 2], both in its frame; logits are [4].
    """
    last = valid.nonzero()[-1, 0]
    squared_distance = (target[last] - REGIONS[:, :2]).square().sum(-1)
    region = int((squared_distance - REGIONS[:, 2]).argmin())
    proposals = [2 * region, 2 * region + 1]
    gap = position[proposals] - target
    fde = gap[:, last].norm(dim=-1)

    if config.error == "offsets":  # an offset is known if both of its steps are
        gap = torch.cat([gap[:, :1], gap.diff(dim=1)], 1)
        valid = valid & torch.cat([valid[:1], valid[:-1]])
    error = huber(gap).sum(-1)[:, valid].mean(1)
    regression = error.mean() if config.learn == "all" else error[fde.argmin()]

    probability = logit.softmax(-1)[proposals]
    region_probability = probability.sum()
    reference = (-fde / 2.0).softmax(-1)
    confidence = (reference * (reference * region_probability / probability).log()).sum()
    classification = -region_probability.log()
    return [regression.item(), confidence.item(), classification.item()]


@pytest.mark.parametrize("learn", ["all", "nearest"])
@pytest.mark.parametrize("error", ["offsets", "positions"])
def test_terms_equal_a_loop_over_agents(
    error: Literal["offsets", "positions"], learn: Literal["all", "nearest"]
) -> None:
    forecast, target, valid = case()
    config = replace(CONFIG, error=error, learn=learn)
    terms = region_loss(forecast, target, valid, REGIONS, LOG_VARIANCE, config)

    rows = []
    for b, s in valid.any(-1).nonzero().tolist():
        in_frame = to_frame(target[b, s], forecast.pose[b, s])
        rows.append(
            agent_terms(
                forecast.position[b, s], forecast.logit[b, s], in_frame, valid[b, s], config
            )
        )
    regression, confidence, classification = np.mean(rows, 0)
    precision = (-LOG_VARIANCE).exp().tolist()
    loss = 0.5 * precision[0] * regression + precision[1] * confidence
    loss += precision[2] * classification + 0.5 * LOG_VARIANCE.sum().item()
    expected = {
        "regression": regression,
        "confidence": confidence,
        "classification": classification,
        "loss": loss,
    }
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(
        expected, rel=1e-4
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_store(tmp_path_factory.mktemp("store"), 9, 2)


def with_regions(store: Path, **changes: Any) -> TrainConfig:
    config = recipe(store, trainer={"epochs": 1}, **changes)
    model = replace(config.model, proposals=9, modes=4, regions=3)
    return replace(config, model=model)


def test_a_run_fits_regions_and_trains_with_them(store: Path, tmp_path: Path) -> None:
    config = with_regions(store, loss=CONFIG)
    train(config, TASK, tmp_path, progress=False)
    model, loaded = load_checkpoint(tmp_path / "last.ckpt")
    assert loaded == config
    scenes = SceneDataset(SceneStore(store, "train"), config.data.train_batch)
    assert torch.equal(model.regions, fit_regions(scenes, 3, config.seed))
    assert model.regions.any()
    assert model(collate([make_scene(6)]).observation).num_modes == 4
    log_variance = weights(tmp_path)["objective.log_variance"]
    assert log_variance.shape == (3,)
    assert (log_variance.abs() > 1e-4).all()


def test_regions_are_fitted_to_end_points_in_the_frames_of_the_targets(store: Path) -> None:
    scenes = SceneDataset(SceneStore(store, "train"), recipe(store).data.train_batch)
    ends = []
    for index in range(len(scenes)):
        padded = scenes.sample(index).padded
        end = padded["target"][:, -1]
        known = padded["target_valid"][:, -1]
        ends.append(to_frame(end, padded["pose"][: len(end)])[known])
    points = np.concatenate(ends)
    assert len(points) == 27
    assert region_sizes(points, fit_regions(scenes, 3, seed=0)).tolist() == [9, 9, 9]


def test_only_a_model_with_regions_has_them_in_its_state() -> None:
    model = build(replace(MMTRANSFORMER, proposals=9, modes=4, regions=3))
    assert model.state_dict()["regions"].shape == (3, 3)
    assert "regions" not in build(MMTRANSFORMER).state_dict()


def without_lanes(observation: Observation) -> Observation:
    return replace(observation, polyline_mask=torch.zeros_like(observation.polyline_mask))


def without_other_agents(observation: Observation) -> Observation:
    mask = observation.agent_mask.clone()
    mask[:, observation.num_targets :] = False
    return replace(observation, agent_mask=mask, valid=observation.valid & mask[..., None])


@torch.no_grad()
@pytest.mark.parametrize(
    ("output", "lanes", "others"),
    [
        ("decoded", True, True),
        ("decoded", True, False),
        ("decoded", False, True),
        ("decoded", False, False),
        ("appended", True, True),
        ("appended", False, True),
    ],
)
def test_a_part_that_is_left_out_has_no_parameters_and_no_inputs(
    output: Any, lanes: bool, others: bool
) -> None:
    map_layers = (1, 1) if lanes else None
    social_layers = (1, 2) if others else None
    config = replace(
        MMTRANSFORMER, social_output=output, map_layers=map_layers, social_layers=social_layers
    )
    model = build(config).eval()
    names = [name for name, _ in model.named_parameters()]
    parts = {
        "map.": lanes,
        "social.": others,
        "social.decoder.": others and output == "decoded",
    }
    for part, expected in parts.items():
        assert any(name.startswith(part) for name in names) == expected

    observation = collate(varied_scenes()[:1]).observation
    position = model(observation).position
    changed_lanes = model(without_lanes(observation)).position
    assert torch.equal(position, changed_lanes) != lanes
    changed_agents = model(without_other_agents(observation)).position
    assert torch.equal(position, changed_agents) != others
