"""Regions of end points, the loss with regions, training with it, and mmTransformer without some of its parts."""

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
from trajformer.errors import ConfigError, TrajformerError
from trajformer.models import mmtransformer
from trajformer.models.mmtransformer import (
    FanConfig,
    RegionConfig,
    RegionLossConfig,
    equal_regions,
    fit_regions,
    region_of,
)
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK
from trajformer.training.run import train

FAN = RegionConfig(3, FanConfig((20.0,), 3))


def crowded(count: int = 300) -> np.ndarray:
    """End points, mostly straight ahead, as in real data."""
    rng = np.random.default_rng(5)
    ahead = np.stack([rng.gamma(4.0, 4.0, count), rng.normal(0.0, 0.5, count)], -1)
    ahead[: count // 6, 1] += np.abs(rng.normal(12.0, 5.0, count // 6))
    return ahead


def test_equal_regions_divide_their_points_equally() -> None:
    points = crowded()
    regions = equal_regions(points, 6, seed=1)
    counts = region_of(torch.from_numpy(points).float(), regions).bincount(minlength=6)
    assert counts.tolist() == [50] * 6
    nearest = region_of(
        torch.from_numpy(points).float(), torch.cat([regions[:, :2], torch.zeros(6, 1)], 1)
    ).bincount(minlength=6)
    assert nearest.max() > 60  # without weights, sizes differ
    assert (regions[1:, 0] >= regions[:-1, 0]).all() and abs(regions[:, 2].sum()) < 1e-2


def test_clusters_have_the_smallest_sum_of_squared_distances() -> None:
    points = np.random.default_rng(0).normal(size=(9, 2)) * [6.0, 2.0]

    def spread(groups: list[tuple[int, ...]]) -> float:
        return sum(
            float(np.square(points[list(g)] - points[list(g)].mean(0)).sum()) for g in groups
        )

    all_points = set(range(9))
    best = math.inf
    for one in itertools.combinations(range(9), 3):
        for two in itertools.combinations(sorted(all_points - set(one)), 3):
            best = min(best, spread([one, two, tuple(all_points - set(one) - set(two))]))
    owner = region_of(torch.from_numpy(points).float(), equal_regions(points, 3, seed=0))
    assert spread(
        [tuple((owner == k).nonzero()[:, 0].tolist()) for k in range(3)]
    ) == pytest.approx(best, rel=1e-4)


def test_regions_equal_the_clusters_also_if_the_rounds_end_early() -> None:
    for count, seed, limit in (
        (600, 0, 2),
        (600, 1, 2),
        (4000, 3, 160),
    ):  # points on a border; 768 points are clustered
        points = crowded(count)
        regions = equal_regions(points, 6, seed=seed, rounds=2)
        counts = region_of(torch.from_numpy(points).float(), regions).bincount(minlength=6)
        assert (counts - count / 6).abs().max() <= limit and torch.equal(
            regions, equal_regions(points, 6, seed=seed, rounds=2)
        )
    with pytest.raises(TrajformerError, match="has 5 end points"):
        equal_regions(points[:5], 6, seed=0)


def test_a_fan_by_hand() -> None:
    fan = mmtransformer.initial_regions(RegionConfig(6, FanConfig((10.0, 30.0), 3, math.pi / 2)))
    angle = torch.tensor([-1.0, 0.0, 1.0] * 2) * math.pi / 4
    distance = torch.tensor([10.0] * 3 + [30.0] * 3)
    torch.testing.assert_close(
        fan[:, :2], torch.stack([distance * angle.cos(), distance * angle.sin()], -1)
    )
    ends = torch.tensor([[11.0, 1.0], [28.0, 2.0], [20.0, 20.0], [-3.0, -4.0]])
    assert region_of(ends, fan).tolist() == [1, 4, 5, 0]
    assert not mmtransformer.initial_regions(RegionConfig(4)).any()
    with pytest.raises(
        ConfigError, match=r"count: 5, expected .* fan, 2 distances in 3 directions"
    ):
        RegionConfig(5, FanConfig())


REGIONS = torch.tensor([[-3.0, 0.0, 1.0], [3.0, 1.0, -2.0]])
SIGMAS = torch.tensor([0.3, -0.2, 0.5])
CONFIG = RegionLossConfig(huber_m=0.7, temperature_m=2.0, auxiliary=0.6)


def case() -> tuple[Forecast, Tensor, Tensor]:
    """A forecast of 2 regions x 2 proposals for 2 x 3 agents; futures are unknown, shorter or with a gap."""
    pose = torch.cat([draw(2, 3, 2, seed=4, scale=3.0), draw(2, 3, 1, seed=5, scale=3.0)], -1)
    position, logit = (
        draw(2, 3, 4, 5, 2, scale=3.0).requires_grad_(),
        draw(2, 3, 4).requires_grad_(),
    )
    target, valid = draw(2, 3, 5, 2, seed=20, scale=3.0), torch.ones(2, 3, 5, dtype=torch.bool)
    valid[0, 1], valid[1, 0, 3:], valid[1, 2, 1] = False, False, False
    return Forecast(position, logit, Frame.AGENT, pose), target, valid


def by_hand(
    forecast: Forecast, target: Tensor, valid: Tensor, offsets: bool, every: bool
) -> tuple[float, dict[str, float]]:
    """Loss and terms of a layer, agent by agent."""
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    for b, s in valid.any(-1).nonzero().tolist():
        known, truth = valid[b, s], to_frame(target[b, s], forecast.pose[b, s])
        last = known.nonzero()[-1, 0]
        region = int(((truth[last] - REGIONS[:, :2]).square().sum(-1) - REGIONS[:, 2]).argmin())
        chosen = [2 * region, 2 * region + 1]
        gap, fde = (
            forecast.position[b, s, chosen] - truth,
            (forecast.position[b, s, chosen, last] - truth[last]).norm(dim=-1),
        )
        if offsets:  # an offset is known if both of its steps are
            gap = torch.cat([gap[:, :1], gap.diff(dim=1)], 1)
            known = known & torch.cat([known[:1], known[:-1]])
        error = (
            torch.where(gap.abs() < 0.7, gap.square() / (2 * 0.7), gap.abs() - 0.35)
            .sum(-1)[:, known]
            .mean(1)
        )
        share, expected_share = forecast.logit[b, s].softmax(-1)[chosen], (-fde / 2.0).softmax(-1)
        confidence = (expected_share * (expected_share * share.sum() / share).log()).sum()
        rows.append(
            (error.mean() if every else error[fde.argmin()], confidence, -share.sum().log())
        )
    means = torch.tensor(rows).mean(0).tolist()
    loss = sum(
        m * h * math.exp(-s) + s / 2
        for m, h, s in zip(means, (0.5, 1.0, 1.0), SIGMAS.tolist(), strict=True)
    )
    return loss, dict(zip(("regression", "confidence", "classification"), means, strict=True))


@pytest.mark.parametrize("learn", ["all", "nearest"])
@pytest.mark.parametrize("error", ["offsets", "positions"])
def test_terms_equal_a_loop_over_agents(
    error: Literal["offsets", "positions"], learn: Literal["all", "nearest"]
) -> None:
    forecast, target, valid = case()
    terms = mmtransformer.region_loss(
        forecast, target, valid, REGIONS, SIGMAS, replace(CONFIG, error=error, learn=learn)
    )
    loss, expected = by_hand(forecast, target, valid, error == "offsets", learn == "all")
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(
        expected | {"loss": loss}, rel=1e-4
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_store(tmp_path_factory.mktemp("store"), 9, 2)


def with_regions(store: Path, **changes: Any) -> TrainConfig:
    config = recipe(store, trainer={"epochs": 1}, **changes)
    return replace(
        config, model=replace(config.model, proposals=9, modes=4, regions=RegionConfig(3))
    )


def test_a_run_fits_regions_and_trains_with_them(store: Path, tmp_path: Path) -> None:
    config = with_regions(store, loss=CONFIG)
    train(config, TASK, tmp_path, progress=False)
    model, loaded = load_checkpoint(tmp_path / "last.ckpt")
    scenes = SceneDataset(SceneStore(store, "train"), config.data.train_batch)
    assert loaded == config and torch.equal(model.regions, fit_regions(scenes, 3, config.seed))
    assert model.regions.any() and model(collate([make_scene(6)]).observation).num_modes == 4
    sigmas = weights(tmp_path)["objective.log_variance"]
    assert sigmas.shape == (3,) and (sigmas.abs() > 1e-4).all()


def test_regions_are_fitted_to_end_points_in_the_frames_of_the_targets(store: Path) -> None:
    scenes = SceneDataset(SceneStore(store, "train"), recipe(store).data.train_batch)
    ends = []
    for index in range(len(scenes)):
        padded = scenes.sample(index).padded
        known, end = padded["target_valid"][:, -1], padded["target"][:, -1]
        ends.append(to_frame(end, padded["pose"][: len(end)])[known])
    points = np.concatenate(ends)
    counts = region_of(torch.from_numpy(points), fit_regions(scenes, 3, seed=0)).bincount(
        minlength=3
    )
    assert len(points) == 27 and counts.tolist() == [9, 9, 9]


def test_a_fan_needs_no_data() -> None:
    model = build(replace(MMTRANSFORMER, proposals=9, modes=4, regions=FAN))
    before = model.regions.clone()
    model.prepare(None, 0)  # type: ignore[arg-type]
    assert torch.equal(model.regions, before) and before[1].tolist() == [20.0, 0.0, 0.0]
    assert "regions" in model.state_dict() and "regions" not in build(MMTRANSFORMER).state_dict()


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
        *itertools.product(["decoded"], [True, False], [True, False]),
        ("appended", True, True),
        ("appended", False, True),
    ],
)
def test_a_part_that_is_left_out_has_no_parameters_and_no_inputs(
    output: Any, lanes: bool, others: bool
) -> None:
    layers: dict[str, Any] = {
        "map_layers": (1, 1) if lanes else None,
        "social_layers": (1, 2) if others else None,
    }
    model = build(replace(MMTRANSFORMER, social_output=output, **layers)).eval()
    names = [name for name, _ in model.named_parameters()]
    for part, expected in (
        ("map", lanes),
        ("social", others),
        ("social.decoder", others and output == "decoded"),
    ):
        assert any(name.startswith(f"{part}.") for name in names) == expected
    observation = collate(varied_scenes()[:1]).observation
    position = model(observation).position
    for used, change in ((lanes, without_lanes), (others, without_other_agents)):
        assert torch.equal(position, model(change(observation)).position) != used
