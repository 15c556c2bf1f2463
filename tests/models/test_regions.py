"""Regions of end points, the losses with them, and mmTransformer trained so; its variants without some of its parts."""

from __future__ import annotations

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
from test_training import recipe, weights
from torch import Tensor
from trajformer.models.mmtransformer.fit_regions import find_regions
from trajformer.training.check import check_recipe

from trajformer.data.batch import SceneBatch, collate
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.losses.mixture import MixtureLossConfig
from trajformer.losses.set_loss import SetLossConfig
from trajformer.losses.worlds import WorldLossConfig
from trajformer.models import MMTransformerConfig, ModelConfig, build_model
from trajformer.models.agentformer.loss import CVAELossConfig
from trajformer.models.mmtransformer import regions as regions_file
from trajformer.models.mmtransformer.loss import RegionLossConfig, region_loss
from trajformer.models.mmtransformer.regions import FanConfig, RegionConfig, equal_regions, first_regions, region_of
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.training import forecasting as module_file
from trajformer.training.forecasting import TASK
from trajformer.training.run import build_module, train

RTS = replace(MMTRANSFORMER, proposals=9, modes=4, regions=RegionConfig(3), max_polylines=40)


def crowded(count: int = 300) -> np.ndarray:
    """End points of which most are straight ahead, as they are."""
    rng = np.random.default_rng(5)
    ahead = np.stack([rng.gamma(4.0, 4.0, count), rng.normal(0.0, 0.5, count)], -1)
    ahead[: count // 6, 1] += np.abs(rng.normal(12.0, 5.0, count // 6))
    return ahead


def test_equal_regions_divide_their_points_equally() -> None:
    points = crowded()
    regions = equal_regions(points, 6, seed=1)
    counts = region_of(torch.from_numpy(points).float(), regions).bincount(minlength=6)
    assert counts.tolist() == [50] * 6
    nearest = region_of(torch.from_numpy(points).float(), torch.cat([regions[:, :2], torch.zeros(6, 1)], 1)).bincount(minlength=6)
    assert nearest.max() > 60  # or the weights would not be needed
    assert (regions[1:, 0] >= regions[:-1, 0]).all() and abs(regions[:, 2].sum()) < 1e-2


def test_the_clusters_are_the_best_there_are() -> None:
    points = np.random.default_rng(0).normal(size=(9, 2)) * [6.0, 2.0]

    def spread(groups: list[tuple[int, ...]]) -> float:
        return sum(float(np.square(points[list(g)] - points[list(g)].mean(0)).sum()) for g in groups)

    everyone = set(range(9))
    best = math.inf
    for one in itertools.combinations(range(9), 3):
        for two in itertools.combinations(sorted(everyone - set(one)), 3):
            best = min(best, spread([one, two, tuple(everyone - set(one) - set(two))]))
    owner = region_of(torch.from_numpy(points).float(), equal_regions(points, 3, seed=0))
    assert spread([tuple((owner == k).nonzero()[:, 0].tolist()) for k in range(3)]) == pytest.approx(best, rel=1e-4)


def test_a_seed_decides_the_regions_and_order_and_place_do_not_matter_much() -> None:
    points = crowded(4000)
    assert torch.equal(equal_regions(points, 6, seed=3), equal_regions(points, 6, seed=3))
    counts = region_of(torch.from_numpy(points).float(), equal_regions(points, 6, seed=3)).bincount(minlength=6) / 4000
    assert (counts - 1 / 6).abs().max() < 0.04  # 768 of the points were clustered
    with pytest.raises(TrajformerError, match="has 5 end points"):
        equal_regions(points[:5], 6, seed=0)


def test_regions_cut_as_the_clusters_do_even_where_the_rounds_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regions_file, "_ROUNDS", 2)
    points = crowded(600)
    for seed in range(4):
        counts = region_of(torch.from_numpy(points).float(), equal_regions(points, 6, seed=seed)).bincount(minlength=6)
        assert (counts - 100).abs().max() <= 2  # points on a border


def test_the_fan_lies_where_it_is_said_to() -> None:
    fan = first_regions(RegionConfig(6, FanConfig((10.0, 30.0), 3, math.pi / 2)))
    side = math.sqrt(0.5)
    expected = [
        (10 * side, -10 * side),
        (10, 0),
        (10 * side, 10 * side),
        (30 * side, -30 * side),
        (30, 0),
        (30 * side, 30 * side),
    ]
    torch.testing.assert_close(fan[:, :2], torch.tensor(expected), atol=1e-5, rtol=0)
    ends = torch.tensor([[11.0, 1.0], [28.0, 2.0], [20.0, 20.0], [-3.0, -4.0]])
    assert region_of(ends, fan).tolist() == [1, 4, 5, 0]
    assert not first_regions(RegionConfig(4)).any()
    with pytest.raises(TrajformerError, match="count: 5, its fan has 2 distances in 3 directions"):
        first_regions(RegionConfig(5, FanConfig()))


def draw(*shape: int, seed: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


REGIONS = torch.tensor([[-3.0, 0.0, 1.0], [3.0, 1.0, -2.0]])
SIGMAS = torch.tensor([0.3, -0.2, 0.5])
CONFIG = RegionLossConfig(huber_m=0.7, temperature_m=2.0, auxiliary=0.6)


def case(layers: int = 1) -> tuple[list[Forecast], Tensor, Tensor]:
    """Forecasts of 2 regions x 2 proposals for 2 x 3 agents, targets and masks: one is unknown, one ends early, one has a gap."""
    pose = torch.cat([draw(2, 3, 2, seed=4), draw(2, 3, 1, seed=5)], -1)
    made = [
        Forecast(
            draw(2, 3, 4, 5, 2, seed=s).requires_grad_(), draw(2, 3, 4, seed=s, scale=1.0).requires_grad_(), Frame.AGENT, pose
        )
        for s in range(layers)
    ]
    target, valid = draw(2, 3, 5, 2, seed=20), torch.ones(2, 3, 5, dtype=torch.bool)
    valid[0, 1], valid[1, 0, 3:], valid[1, 2, 1] = False, False, False
    return made, target, valid


def by_hand(
    forecast: Forecast, target: Tensor, valid: Tensor, offsets: bool = True, every: bool = True
) -> tuple[float, dict[str, float]]:
    """Loss and terms of one layer in plain Python."""
    sums, agents = {"regression": 0.0, "confidence": 0.0, "classification": 0.0}, 0
    assert forecast.pose is not None
    for b, s in itertools.product(range(2), range(3)):
        steps = [t for t in range(5) if valid[b, s, t]]
        if not steps:
            continue
        agents += 1
        truth = to_frame(target[b, s], forecast.pose[b, s]).tolist()
        end = truth[steps[-1]]
        cost = [(end[0] - x) ** 2 + (end[1] - y) ** 2 - w for x, y, w in REGIONS.tolist()]
        region = cost.index(min(cost))
        modes, logits = forecast.position[b, s].tolist(), forecast.logit[b, s].tolist()
        chosen, fdes, errors = (2 * region, 2 * region + 1), list[float](), list[float]()
        for mode in chosen:
            known, error = 0, 0.0
            for t in range(5):
                if not (valid[b, s, t] and (not offsets or t == 0 or valid[b, s, t - 1])):
                    continue
                known += 1
                for axis in range(2):
                    before = (modes[mode][t - 1][axis], truth[t - 1][axis]) if t and offsets else (0.0, 0.0)
                    gap = abs((modes[mode][t][axis] - before[0]) - (truth[t][axis] - before[1]))
                    error += gap**2 / (2 * 0.7) if gap < 0.7 else gap - 0.35
            errors.append(error / known)
            fdes.append(math.dist(modes[mode][steps[-1]], end))
        sums["regression"] += sum(errors) / 2 if every else errors[fdes.index(min(fdes))]
        total = sum(map(math.exp, logits))
        inside = sum(math.exp(logits[mode]) for mode in chosen)
        sums["classification"] -= math.log(inside / total)
        softened = [math.exp(-fde / 2.0) for fde in fdes]
        for mode, part in zip(chosen, softened, strict=True):
            wanted = part / sum(softened)
            sums["confidence"] += wanted * math.log(wanted / (math.exp(logits[mode]) / inside))
    terms = {name: value / agents for name, value in sums.items()}
    halved = {"regression": 0.5, "confidence": 1.0, "classification": 1.0}
    loss = sum(h * terms[n] * math.exp(-s) + s / 2 for (n, h), s in zip(halved.items(), SIGMAS.tolist(), strict=True))
    return loss, terms


@pytest.mark.parametrize("learn", ["all", "nearest"])
@pytest.mark.parametrize("error", ["offsets", "positions"])
def test_losses_by_hand(error: Literal["offsets", "positions"], learn: Literal["all", "nearest"]) -> None:
    [forecast], target, valid = case()
    terms = region_loss(forecast, target, valid, REGIONS, SIGMAS, replace(CONFIG, error=error, learn=learn))
    loss, expected = by_hand(forecast, target, valid, error == "offsets", learn == "all")
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(expected | {"loss": loss}, rel=1e-4)


def test_every_decoder_layer_has_the_same_losses() -> None:
    (first, second, last), target, valid = case(layers=3)
    terms = region_loss(replace(last, auxiliary=(first, second)), target, valid, REGIONS, SIGMAS, CONFIG)
    alone = [by_hand(layer, target, valid)[0] for layer in (first, second, last)]
    assert terms["loss"].item() == pytest.approx(alone[2] + 0.6 * (alone[0] + alone[1]) / 2, rel=1e-4)
    terms["loss"].backward()
    assert all(layer.position.grad.abs().sum() > 0 for layer in (first, second, last))


def test_all_proposals_of_the_true_region_learn_and_no_others() -> None:
    [forecast], target, valid = case()
    sigmas = SIGMAS.clone().requires_grad_()
    region_loss(forecast, target, valid, REGIONS, sigmas, CONFIG)["loss"].backward()
    assert forecast.pose is not None and forecast.position.grad is not None
    ends = to_frame(target, forecast.pose[:, :, None]).gather(
        2, torch.tensor([[4, 4, 4], [2, 4, 4]])[..., None, None].expand(-1, -1, 1, 2)
    )
    region = region_of(ends.squeeze(2), REGIONS)
    touched = forecast.position.grad.abs().sum((-1, -2)) > 0
    for b, s in itertools.product(range(2), range(3)):
        expected = [valid[b, s].any().item() and k // 2 == region[b, s] for k in range(4)]
        assert touched[b, s].tolist() == expected
    assert set(region[valid.any(-1)].tolist()) == {0, 1}
    assert ((forecast.logit.grad != 0).all(-1) == valid.any(-1)).all() and (sigmas.grad != 0).all()
    assert not forecast.position.grad[1, 0, :, 3:].any()


def test_nothing_known_is_a_loss_without_gradient() -> None:
    [forecast], target, valid = case()
    terms = region_loss(forecast, target, torch.zeros_like(valid), REGIONS, SIGMAS, CONFIG)
    terms["loss"].backward()
    assert terms["regression"] == terms["classification"] == 0 and not forecast.position.grad.any()
    for wrong in (replace(forecast, pose=None), replace(forecast, logit=forecast.logit[:, 0])):
        with pytest.raises(ValueError, match="a multiple of 2 modes"):
            region_loss(wrong, target, valid, REGIONS, SIGMAS, CONFIG)
    with pytest.raises(ValueError, match="a multiple of 3 modes"):
        region_loss(forecast, target, valid, torch.zeros(3, 3), SIGMAS, CONFIG)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine scenes to train on and two to validate on."""
    root = tmp_path_factory.mktemp("store")
    for split, seeds in (("train", range(9)), ("val", range(20, 22))):
        scenes = [make_scene(6, seed=seed) for seed in seeds]
        write_shard(shard_path(root, split, 0), scenes, ShardInfo("synthetic", split))
    return root


def regional(store: Path, **changes: Any) -> TrainConfig:
    """`recipe` with three regions."""
    config = recipe(store, trainer={"epochs": 2}, **changes)
    assert config.model.mmtransformer is not None
    model = replace(config.model.mmtransformer, proposals=9, modes=4, regions=RegionConfig(3))
    return replace(config, model=ModelConfig(mmtransformer=model))


def test_a_run_finds_regions_learns_with_them_and_keeps_them(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = regional(store, region_loss=CONFIG)
    train(config, TASK, tmp_path / "whole", progress=False)
    model, loaded = load_checkpoint(tmp_path / "whole" / "last.ckpt", TrainConfig)
    assert loaded == config and torch.equal(model.regions, find_regions(config.data, 3, config.seed))
    assert model.regions.any() and model(collate([make_scene(6)])).num_modes == 4
    sigmas = weights(tmp_path / "whole")["objective.log_variance"]
    assert sigmas.shape == (3,) and (sigmas.abs() > 1e-3).all()

    step = module_file.ForecastingModule.training_step

    def die(self: Any, batch: SceneBatch, index: int) -> Tensor:
        if (self.current_epoch, index) == (1, 0):
            raise ZeroDivisionError("killed")
        return step(self, batch, index)

    with monkeypatch.context() as patch:
        patch.setattr(module_file.ForecastingModule, "training_step", die)
        with pytest.raises(ZeroDivisionError):
            train(config, TASK, tmp_path / "killed", progress=False)
    train(config, TASK, tmp_path / "killed", resume=True, progress=False)
    for name, value in weights(tmp_path / "whole").items():
        torch.testing.assert_close(weights(tmp_path / "killed")[name], value, atol=1e-6, rtol=0)


def test_regions_are_found_in_the_training_data_in_its_agents_frames(store: Path) -> None:
    ends = []
    for seed in range(4):
        batch = collate([make_scene(6, seed=seed)])
        ends.append(to_frame(batch.target[0, :, -1], batch.pose[0, : batch.num_targets]))
    few = replace(regional(store).data, limit_train=4)
    counts = region_of(torch.cat(ends), find_regions(few, 3, seed=0)).bincount(minlength=3)
    assert counts.tolist() == [4, 4, 4]  # of four scenes with three targets each


def test_a_fan_needs_no_data() -> None:
    model = build(ModelConfig(mmtransformer=replace(RTS, regions=RegionConfig(3, FanConfig((20.0,), 3)))))
    assert model.regions[1].tolist() == [20.0, 0.0, 0.0]
    assert "regions" in model.state_dict() and "regions" not in build(ModelConfig(mmtransformer=MMTRANSFORMER)).state_dict()


def test_the_recipe_says_which_loss(store: Path) -> None:
    plain = recipe(store)
    assert isinstance(plain.objective(), SetLossConfig)
    assert regional(store).objective() == RegionLossConfig() and regional(store, region_loss=CONFIG).objective() == CONFIG
    joint = ModelConfig(mmtransformer=replace(MMTRANSFORMER, joint=True))
    assert replace(plain, model=joint).objective() == WorldLossConfig()
    wrong = {
        "region_loss: is not for this model, which is trained with loss": replace(plain, region_loss=RegionLossConfig()),
        "mixture_loss: is not for this model": regional(store, mixture_loss=MixtureLossConfig()),
        "region_loss: a recipe has one loss, and this one world_loss": regional(
            store, region_loss=RegionLossConfig(), world_loss=WorldLossConfig()
        ),
        "data.branches: only the set loss": replace(plain, model=joint, data=replace(plain.data, branches=True)),
    }
    for expected, config in wrong.items():
        with pytest.raises(TrajformerError, match=expected):
            check_recipe(config)


def test_recipes_from_before_there_were_these_losses_are_read(store: Path) -> None:
    before = to_plain(recipe(store))
    for name in ("region_loss", "world_loss", "scene_set_loss", "mixture_loss"):
        del before[name]
    del before["data"]["branches"]
    for name in ("social_output", "regions", "joint"):
        del before["model"]["mmtransformer"][name]
    read = from_plain(TrainConfig, before)
    assert read == recipe(store) and isinstance(read.objective(), SetLossConfig)
    assert read.cvae_loss == CVAELossConfig()  # it was in every recipe


MISFITS = {
    "9, no multiple of 2 regions": replace(MMTRANSFORMER, proposals=9, regions=RegionConfig(2)),
    "no social memory to append": replace(MMTRANSFORMER, social_layers=None, social_output="appended"),
    "joint: wants social_layers": replace(MMTRANSFORMER, proposals=9, joint=True),
}


@pytest.mark.parametrize("expected", MISFITS)
def test_parts_that_do_not_go_together(expected: str) -> None:
    with pytest.raises(TrajformerError, match=expected):
        build_model(ModelConfig(mmtransformer=MISFITS[expected]))


def without_lanes(batch: SceneBatch) -> SceneBatch:
    return replace(batch, polyline_mask=torch.zeros_like(batch.polyline_mask))


def without_others(batch: SceneBatch) -> SceneBatch:
    mask = batch.agent_mask.clone()
    mask[:, batch.num_targets :] = False
    return replace(batch, agent_mask=mask, valid=batch.valid & mask[..., None])


@pytest.mark.parametrize(("lanes", "others"), itertools.product([True, False], repeat=2))
@pytest.mark.parametrize("output", ["decoded", "appended"])
def test_a_part_left_out_is_neither_built_nor_read(lanes: bool, others: bool, output: Any) -> None:
    if output == "appended" and not others:
        pytest.skip("nothing to append")
    config: MMTransformerConfig = replace(MMTRANSFORMER, social_output=output)
    config = replace(config, map_layers=(1, 1) if lanes else None, social_layers=(1, 2) if others else None)
    model, batch = build(ModelConfig(mmtransformer=config)).eval(), collate(varied_scenes()[:1])
    names = {name.split(".")[0] for name, _ in model.named_parameters()}
    assert ("map" in names, "social" in names) == (lanes, others)
    assert any(name.startswith("social.decoder") for name, _ in model.named_parameters()) == (others and output == "decoded")
    for reads, change in ((lanes, without_lanes), (others, without_others)):
        assert torch.equal(model(batch).position, model(change(batch)).position) != reads


def test_the_released_heads_read_the_social_memory_of_their_own_target() -> None:
    model = build(ModelConfig(mmtransformer=replace(MMTRANSFORMER, social_output="appended"))).eval()
    assert model.trajectory[0].in_features == 2 * MMTRANSFORMER.block.width and model(collate(varied_scenes())).auxiliary == ()
    batch = collate(varied_scenes()[2:])
    memory = model._layers(batch)[0][..., : MMTRANSFORMER.block.width]
    assert torch.equal(memory[:, :, :1].expand_as(memory), memory)  # the same for all proposals of a target
    assert (memory[0, 0, 0] - memory[0, 1, 0]).abs().max() > 1e-3


def test_a_module_without_regions_of_its_own_asks_no_store(store: Path) -> None:
    config = regional(store)
    nowhere = replace(config, data=replace(config.data, train="nowhere"))
    with pytest.raises(TrajformerError, match="nowhere"):
        build_module(nowhere, TASK)
    fan = replace(config.model.mmtransformer, regions=RegionConfig(3, FanConfig((20.0,), 3)))  # type: ignore[type-var]
    build_module(replace(nowhere, model=ModelConfig(mmtransformer=fan)), TASK)
