"""A scene as a set of trajectories: the set loss by hand, recall and precision, and the model with its forecast."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.scenes import make_scene
from test_models import (
    BLOCK,
    FUTURE,
    build,
    test_all_agents_as_targets,
    test_an_unseen_beginning_is_as_good_as_none,
    test_moving_the_world_moves_the_forecast_along,
    test_order_of_agents_and_polylines_changes_nothing,
    test_padding_full_of_garbage_changes_nothing,
    test_the_future_is_not_seen,
    test_unseen_steps_and_lost_neighbours_are_not_read,
    varied,
)
from test_training import recipe, weights
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch, collate, transform
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.evaluation.evaluate import evaluate, load_predictor
from trajformer.evaluation.metrics.scene_set import SceneSetMetrics, set_hits
from trajformer.models import ModelConfig, SceneSet, SceneSetConfig
from trajformer.models.scene_set.loss import SceneSetLossConfig, scene_set_loss
from trajformer.models.scene_set.model import SceneTrajectories
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.scene import AgentRole
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.scenes.store import SceneStore
from trajformer.training.forecasting import TASK
from trajformer.training.run import train

__all__ = [  # what every model keeps, this one included
    "test_all_agents_as_targets",
    "test_an_unseen_beginning_is_as_good_as_none",
    "test_moving_the_world_moves_the_forecast_along",
    "test_order_of_agents_and_polylines_changes_nothing",
    "test_padding_full_of_garbage_changes_nothing",
    "test_the_future_is_not_seen",
    "test_unseen_steps_and_lost_neighbours_are_not_read",
]

SMALL = SceneSetConfig(FUTURE, queries=12, block=BLOCK, decoder_layers=2, max_polylines=120, map_width=16)
CONFIG = SceneSetLossConfig(endpoint=0.3, classification=0.6, huber_m=0.8, auxiliary=0.5)


@pytest.fixture(params=[12, 0], ids=["learned queries", "agents as queries"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    """A model with random weights."""
    return build(ModelConfig(scene_set=replace(SMALL, queries=request.param))).eval()


def single(position: Tensor, logit: Tensor) -> SceneTrajectories:
    """Queries with one mode [B, Q, 1 + F, 2]."""
    return SceneTrajectories(position[:, :, None], logit, torch.zeros(*logit.shape, 1))


def draw(*shape: int, seed: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def case(layers: int = 1) -> tuple[SceneTrajectories, Tensor, Tensor, Tensor]:
    """4 queries of 2 scenes for 3 agents, one of which is unknown, and one leaves early; where they are, targets, masks."""
    made = [
        SceneTrajectories(
            draw(2, 4, 1, 6, 2, seed=s).requires_grad_(), draw(2, 4, seed=s + 9, scale=1.0).requires_grad_(), torch.zeros(2, 4, 1)
        )
        for s in range(layers)
    ]
    start, target, valid = draw(2, 3, 2, seed=30), draw(2, 3, 5, 2, seed=31), torch.ones(2, 3, 5, dtype=torch.bool)
    valid[0, 1], valid[1, 2, 3:] = False, False
    return replace(made[-1], auxiliary=tuple(made[:-1])), start, target, valid


def by_hand(
    found: SceneTrajectories, start: Tensor, target: Tensor, valid: Tensor
) -> tuple[dict[str, float], list[dict[int, int]]]:
    """Terms, and who is given whom (agent: query) in each scene: the best of all ways to give them."""
    sums, matched, entropy, weight, pairs = [0.0, 0.0], 0, 0.0, 0.0, []
    for b in range(2):
        agents = [s for s in range(3) if valid[b, s].any()]
        chance = (1 / (1 + (-found.logit[b]).exp())).tolist()
        cost, huber = {}, {}
        for q, s in itertools.product(range(4), agents):
            truth = [start[b, s], *(target[b, s, t] for t in range(5) if valid[b, s, t])]
            times = [0, *(t + 1 for t in range(5) if valid[b, s, t])]
            gaps = [(found.position[b, q, 0, t] - place).tolist() for t, place in zip(times, truth, strict=True)]
            distance = [math.hypot(*gap) for gap in gaps]
            cost[q, s] = sum(distance) / len(distance) + 0.5 * distance[-1] - 2.0 * chance[q]
            error = [sum(g * g / 1.6 if abs(g) < 0.8 else abs(g) - 0.4 for g in gap) for gap in gaps]
            huber[q, s] = (sum(error) / len(error), error[-1])
        ways = itertools.permutations(range(4), len(agents))
        best = min(ways, key=lambda way: sum(cost[q, s] for q, s in zip(way, agents, strict=True)))
        pairs.append(dict(zip(agents, best, strict=True)))
        for s, q in pairs[b].items():
            sums = [total + part for total, part in zip(sums, huber[q, s], strict=True)]
            matched += 1
        for q in range(4):
            weight += 1.0 if q in best else 0.1
            entropy -= math.log(chance[q]) if q in best else 0.1 * math.log(1 - chance[q])
    terms = {"regression": sums[0] / matched, "endpoint": sums[1] / matched, "classification": entropy / weight, "mode": 0.0}
    return terms, pairs


def test_value_by_hand() -> None:
    found, start, target, valid = case()
    terms = scene_set_loss(found, start, target, valid, CONFIG)
    expected, _ = by_hand(found, start, target, valid)
    expected["loss"] = expected["regression"] + 0.3 * expected["endpoint"] + 0.6 * expected["classification"]
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(expected, rel=1e-4)


def test_gradient_reaches_the_matched_queries_alone_and_all_scores() -> None:
    found, start, target, valid = case()
    _, pairs = by_hand(found, start, target, valid)
    scene_set_loss(found, start, target, valid, CONFIG)["loss"].backward()
    assert found.position.grad is not None and found.logit.grad is not None
    for b in range(2):
        touched = found.position.grad[b].abs().sum((-1, -2, -3)) > 0
        assert {q for q in range(4) if touched[q]} == set(pairs[b].values())
        assert all((found.logit.grad[b, q] < 0) == (q in pairs[b].values()) for q in range(4))


def test_layers_have_matches_of_their_own() -> None:
    found, start, target, valid = case(layers=3)
    alone = []
    for layer in (*found.auxiliary, replace(found, auxiliary=())):
        terms, _ = by_hand(layer, start, target, valid)
        alone.append(terms["regression"] + 0.3 * terms["endpoint"] + 0.6 * terms["classification"])
    loss = scene_set_loss(found, start, target, valid, CONFIG)
    assert loss["loss"].item() == pytest.approx(alone[2] + 0.5 * (alone[0] + alone[1]) / 2, rel=1e-4)


def test_a_scene_without_futures_teaches_that_nobody_is_there() -> None:
    found, start, target, valid = case()
    terms = scene_set_loss(found, start, target, torch.zeros_like(valid), CONFIG)
    terms["loss"].backward()
    assert terms["regression"] == 0 and found.logit.grad is not None and (found.logit.grad > 0).all()
    bad = replace(found, position=found.position.detach().index_fill(1, torch.tensor([2]), math.nan))
    with pytest.raises(ValueError, match="layer 0, scene 0, query 2, agent 0"):
        scene_set_loss(bad, start, target, valid, CONFIG)


def test_padding_among_the_queries_is_neither_matched_nor_classified() -> None:
    found, start, target, valid = case(layers=2)
    both = (found, *found.auxiliary)
    near = torch.cat([start[:, :1, None], target[:, :1]], 2)[:, :, None]  # a query that would be matched if it were one
    padded = [
        SceneTrajectories(
            torch.cat([near, one.position], 1), torch.cat([torch.full((2, 1), -torch.inf), one.logit], 1), torch.zeros(2, 5, 1)
        )
        for one in both
    ]
    plain = scene_set_loss(found, start, target, valid, CONFIG)
    same = scene_set_loss(
        replace(padded[0], auxiliary=tuple(replace(one, auxiliary=()) for one in padded[1:])), start, target, valid, CONFIG
    )
    assert {name: value.item() for name, value in same.items()} == pytest.approx(
        {k: v.item() for k, v in plain.items()}, rel=1e-6
    )
    same["loss"].backward()
    assert found.logit.grad is not None and found.logit.grad.isfinite().all()
    assert [int(n[0]) for n in set_hits(padded[0], target, valid)][2] == int((found.logit[0] >= 0).sum())


def test_agents_as_queries_start_from_going_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is learned a trajectory is its agent's, continued; a correction is in the agent's own frame."""
    model = build(ModelConfig(scene_set=replace(SMALL, queries=0))).eval()
    batch = collate(varied())
    correction = torch.zeros(1 + FUTURE, 2)
    for ahead in (0.0, 2.0):
        correction[1, 0] = ahead
        torch.nn.init.zeros_(model.trajectory[-1].weight)
        model.trajectory[-1].bias.data = correction.flatten().clone()
        found = model.trajectories(batch)
        there = ~found.logit.isneginf()
        seen = there & batch.valid[..., -1]
        assert torch.equal(seen, batch.agent_mask & batch.valid[..., -1]) and (~there).any()
        heading = torch.stack([batch.pose[..., 2].cos(), batch.pose[..., 2].sin()], -1)
        time = batch.period_s * FUTURE
        end = batch.pose[..., :2] + batch.velocity[:, :, -1] * time + ahead * heading
        torch.testing.assert_close(found.most_probable()[:, :, 0][seen], batch.pose[..., :2][seen], atol=1e-3, rtol=0)
        torch.testing.assert_close(found.most_probable()[:, :, -1][seen], end[seen], atol=1e-2, rtol=0)


def test_of_several_modes_the_best_one_learns_and_is_the_right_class() -> None:
    found, start, target, valid = case()
    single_terms = scene_set_loss(found, start, target, valid, CONFIG)
    far = found.position.detach() + 50.0
    mode_logit = torch.tensor([0.3, -0.2]).expand(2, 4, 2).clone().requires_grad_()
    both = replace(found, position=torch.cat([far, found.position], 2).detach().requires_grad_(), mode_logit=mode_logit)
    terms = scene_set_loss(both, start, target, valid, CONFIG)
    for name in ("regression", "endpoint", "classification"):
        assert terms[name].item() == pytest.approx(single_terms[name].item(), rel=1e-5)
    assert terms["mode"].item() == pytest.approx(math.log(1 + math.exp(0.5)), rel=1e-5)
    terms["loss"].backward()
    assert both.position.grad is not None and mode_logit.grad is not None
    assert not both.position.grad[:, :, 0].any() and both.position.grad[:, :, 1].any()
    matched = mode_logit.grad.abs().sum(-1) > 0
    assert matched.sum() == valid.any(-1).sum() and (mode_logit.grad[matched][:, 1] < 0).all()
    assert torch.equal(both.most_probable(), far[:, :, 0])  # what is claimed is the most probable mode


def test_a_forecast_has_the_modes_of_one_query() -> None:
    model = build(ModelConfig(scene_set=replace(SMALL, queries=0, modes=3))).eval()
    batch = collate(varied())
    forecast, found = model(batch), model.trajectories(batch)
    assert forecast.position.shape == (3, 5, 3, FUTURE, 2) and forecast.logit.shape == (3, 5, 3)
    for target in range(batch.num_targets):
        if batch.target_mask[0, target]:
            moved = found.position[0, :, :, 1:] - found.position[0, :, :, :1] + batch.pose[0, target, :2]
            gap = (moved - forecast.position[0, target]).abs().amax((1, 2, 3))
            assert gap.min() < 1e-4 and torch.equal(found.mode_logit[0, gap.argmin()], forecast.logit[0, target])
    loss_of(model.train(), batch).backward()
    assert all(p.grad is not None and p.grad.any() for n, p in model.named_parameters() if not n.endswith(".key.bias"))


def test_recall_and_precision_by_hand() -> None:
    """Two claims end near agent 0, one near agent 1, one query near agent 2 claims nothing; agent 3's end is unknown."""
    ends = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [10.0, 1.0], [20.0, 0.0], [50.0, 0.0]]])
    position = torch.zeros(1, 5, 3, 2)
    position[:, :, -1] = ends
    found = single(position, torch.tensor([[2.0, 1.0, 3.0, -1.0, 0.5]]))
    target = torch.zeros(1, 4, 2, 2)
    target[0, :, -1] = torch.tensor([[0.5, 0.0], [10.0, 0.0], [20.0, 0.0], [50.0, 0.0]])
    valid = torch.ones(1, 4, 2, dtype=torch.bool)
    valid[0, 3, 1] = False
    assert [int(count) for count in set_hits(found, target, valid)] == [2, 3, 4]
    metrics = SceneSetMetrics()
    for _ in range(2):
        metrics.update(found, target, valid)
    assert metrics.compute() == {"num_futures": 6, "num_claims": 8, "recall": pytest.approx(2 / 3), "precision": 0.5}
    sure = SceneSetMetrics(0.8)  # the logits 2 and 3
    sure.update(found, target, valid)
    assert sure.compute() == {"num_futures": 3, "num_claims": 2, "recall": pytest.approx(2 / 3), "precision": 1.0}
    # Claims 0 and 1 are both near two agents, each of them must take one.
    target[0, 1, -1] = torch.tensor([1.5, 0.0])
    assert int(set_hits(found, target, valid)[0]) == 2


def test_a_claim_that_is_no_number_hits_nothing() -> None:
    found = single(torch.full((1, 2, 3, 2), math.nan), torch.ones(1, 2))
    assert [int(count) for count in set_hits(found, torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, dtype=torch.bool))] == [0, 1, 2]


def test_as_many_are_hit_as_can_be() -> None:
    position = torch.tensor([[0.0, 0.0], [1.5, 0.0]])[None, :, None].expand(1, 2, 2, 2)
    found = single(position, torch.ones(1, 2))
    target = torch.tensor([[-1.0, 0.0], [0.0, 0.0]])[None, :, None]  # the nearest claim of both is the first
    assert int(set_hits(found, target, torch.ones(1, 2, 1, dtype=torch.bool))[0]) == 2


def test_batch_mates_change_nothing(model: nn.Module) -> None:
    together = collate(varied())
    forecast = model(together)
    assert forecast.position.shape == (3, 5, 1, FUTURE, 2) and forecast.logit.shape == (3, 5, 1)
    for number, scene in enumerate(varied()):
        alone, real = collate([scene]), together.target_mask[number]
        torch.testing.assert_close(model(alone).position[0], forecast.position[number, real], atol=1e-4, rtol=1e-4)


def loss_of(model: SceneSet, batch: SceneBatch) -> Tensor:
    start = batch.pose[:, : batch.num_targets, :2]
    return scene_set_loss(model.trajectories(batch), start, batch.target, batch.target_valid, SceneSetLossConfig())["loss"]


def test_every_parameter_learns(model: SceneSet) -> None:
    loss_of(model.train(), collate(varied())).backward()
    free = [name for name, _ in model.named_parameters() if name.endswith(".key.bias")]
    still = [n for n, p in model.named_parameters() if n not in free and (p.grad is None or p.grad.abs().max() < 1e-8)]
    assert still == [] and all(p.grad.isfinite().all() for p in model.parameters())


def test_without_a_focal_agent_the_set_still_moves_with_the_world(model: SceneSet) -> None:
    scenes = [replace(scene, agent_role=scene.agent_role.clip(max=int(AgentRole.SCORED))) for scene in varied()]
    batch = collate(scenes)
    pose = torch.tensor([[30.0, -20.0, 1.0]]).expand(3, 3)
    found, moved = model.trajectories(batch), model.trajectories(transform(batch, pose)).position
    real = ~found.logit.isneginf()  # padding is anywhere
    torch.testing.assert_close(to_frame(found.position, pose[:, None, None, None])[real], moved[real], atol=1e-3, rtol=0)


def test_targets_get_the_nearest_query_that_exists_moved_to_them(model: SceneSet, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = collate(varied()[:1])
    here = batch.pose[0, : batch.num_targets, :2]
    position = torch.zeros(1, 4, 1 + FUTURE, 2)
    position[0, 0] = here[0] + torch.tensor([0.5, 0.0]) + torch.arange(1 + FUTURE)[:, None] * torch.tensor([1.0, 0.0])
    position[0, 1] = here[0] + torch.tensor([0.1, 0.0])  # nearer, but nobody
    position[0, 2:] = 1e3
    found = single(position, torch.tensor([[4.0, -9.0, 4.0, 4.0]]))
    monkeypatch.setattr(model, "trajectories", lambda batch: found)
    forecast = model(batch)
    steps = torch.arange(1, 1 + FUTURE)[:, None] * torch.tensor([1.0, 0.0])
    torch.testing.assert_close(forecast.position[0, 0, 0], here[0] + steps, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case_name", ["no map", "no target", "one agent"])
def test_poor_scenes(model: SceneSet, case_name: str) -> None:
    scene = {
        "no map": make_scene(with_map=False),
        "no target": replace(make_scene(), agent_role=make_scene().agent_role * 0),
        "one agent": make_scene(1, num_scored=0),
    }[case_name]
    batch = collate([scene])
    assert model(batch).position.isfinite().all()
    loss = loss_of(model.train(), batch)
    loss.backward()
    assert loss.isfinite() and all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_half_precision_keeps_places(model: SceneSet) -> None:
    batch = collate(varied())
    exact = model.trajectories(batch).position
    with torch.autocast("cpu", torch.bfloat16):
        rough = model.trajectories(batch).position
    assert rough.dtype == torch.float32 and (rough - exact).abs().max() < 0.5
    with pytest.raises(TrajformerError, match="13 future steps"):
        model(collate([make_scene(num_future=13)]))


@pytest.mark.parametrize("queries", [12, 0])
def test_four_scenes_are_learned_by_heart(queries: int) -> None:
    torch.manual_seed(0)
    model = SceneSet(replace(SMALL, queries=queries))
    batch = collate([make_scene(8, seed=seed) for seed in range(4)], BatchConfig(targets="all"))
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=220)
    for _ in range(220):
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    hits, futures, claims = (int(n.sum()) for n in set_hits(model.eval().trajectories(batch), batch.target, batch.target_valid))
    assert futures > 20 and hits / futures > 0.95 and hits / claims > 0.9


@pytest.mark.parametrize("queries", [12, 0])
def test_a_recipe_trains_it_and_evaluation_reads_it(tmp_path: Path, queries: int) -> None:
    for split, seeds in (("train", range(4)), ("val", range(20, 22))):
        scenes = [make_scene(6, seed=seed) for seed in seeds]
        write_shard(shard_path(tmp_path / "store", split, 0), scenes, ShardInfo("synthetic", split))
    config = recipe(tmp_path / "store", trainer={"epochs": 1}, scene_set_loss=CONFIG)
    model = ModelConfig(scene_set=replace(SMALL, queries=queries))
    config = replace(config, model=model, data=replace(config.data, batch=BatchConfig(targets="all")))
    train(config, TASK, tmp_path / "run", progress=False)
    learned = weights(tmp_path / "run").get("model.queries")
    assert learned is None if queries == 0 else learned.shape == (12, 32)
    predictor = load_predictor(tmp_path / "run" / "last.ckpt", torch.device("cpu"))
    result = evaluate(predictor, SceneStore(tmp_path / "store", "val"), progress=False)
    assert result["num_agents"] == 6 and result["minFDE_6"] == result["minFDE_1"] > 0
