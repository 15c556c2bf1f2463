"""The scene set: its loss by hand, recall and precision, and the forecast of targets from the set."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from support.models import FUTURE, SCENE_SET
from support.scenes import varied_scenes
from support.tensors import draw
from torch import Tensor

from trajformer.data.batch import collate
from trajformer.evaluation.metrics.displacement import set_hits
from trajformer.models.scene_set import (
    SceneSet,
    SceneSetLossConfig,
    SceneTrajectories,
    scene_set_loss,
)
from trajformer.testing.models import build_random

CONFIG = SceneSetLossConfig(endpoint=0.3, classification=0.6, huber_m=0.8, auxiliary=0.5)


@pytest.fixture(params=[12, 0], ids=["learned queries", "agents as queries"])
def model(request: pytest.FixtureRequest) -> SceneSet:
    return build_random(replace(SCENE_SET, queries=request.param)).eval()


def single(position: Tensor, logit: Tensor) -> SceneTrajectories:
    """Queries with one mode each, from positions [B, Q, 1 + F, 2]."""
    return SceneTrajectories(position[:, :, None], logit, torch.zeros(*logit.shape, 1))


def case(layers: int = 1) -> tuple[SceneTrajectories, Tensor, Tensor, Tensor]:
    """4 queries of 2 scenes with 3 agents (one future is unknown, one ends early); then starts, targets and their mask."""
    positions = [
        draw(2, 4, 1, 6, 2, seed=layer, scale=3.0).requires_grad_() for layer in range(layers)
    ]
    logits = [draw(2, 4, seed=9 + layer).requires_grad_() for layer in range(layers)]
    decoded = [
        SceneTrajectories(*layer, torch.zeros(2, 4, 1))
        for layer in zip(positions, logits, strict=True)
    ]
    start, target = draw(2, 3, 2, seed=30, scale=3.0), draw(2, 3, 5, 2, seed=31, scale=3.0)
    valid = torch.ones(2, 3, 5, dtype=torch.bool)
    valid[0, 1], valid[1, 2, 3:] = False, False
    return replace(decoded[-1], auxiliary=tuple(decoded[:-1])), start, target, valid


def reference(
    found: SceneTrajectories, start: Tensor, target: Tensor, valid: Tensor
) -> dict[str, float]:
    """The terms of the best of all assignments."""
    matched, entropy, weight = [], 0.0, 0.0
    for b in range(2):
        agents, probability = valid[b].any(-1).nonzero()[:, 0].tolist(), found.logit[b].sigmoid()
        cost, huber = {}, {}
        for s in agents:
            times = [0, *(1 + valid[b, s].nonzero()[:, 0])]
            gap = found.position[b, :, 0, times] - torch.cat(
                [start[b, s, None], target[b, s][valid[b, s]]]
            )  # [Q, T, 2]
            distance, error = (
                gap.norm(dim=-1),
                torch.where(gap.abs() < 0.8, gap.square() / 1.6, gap.abs() - 0.4).sum(-1),
            )
            cost[s] = (distance.mean(1) + 0.5 * distance[:, -1] - 2.0 * probability).tolist()
            huber[s] = torch.stack([error.mean(1), error[:, -1]], -1)
        assignments = itertools.permutations(range(4), len(agents))
        best = min(
            assignments,
            key=lambda queries: sum(cost[s][q] for q, s in zip(queries, agents, strict=True)),
        )
        matched += [huber[s][q].tolist() for q, s in zip(best, agents, strict=True)]
        for q, p in enumerate(probability.tolist()):
            weight += 1.0 if q in best else 0.1
            entropy -= math.log(p) if q in best else 0.1 * math.log(1 - p)
    regression, endpoint = torch.tensor(matched).mean(0).tolist()
    return {
        "regression": regression,
        "endpoint": endpoint,
        "classification": entropy / weight,
        "mode": 0.0,
    }


def test_value_reference() -> None:
    found, start, target, valid = case()
    terms = scene_set_loss(found, start, target, valid, CONFIG)
    expected = reference(found, start, target, valid)
    expected["loss"] = (
        expected["regression"] + 0.3 * expected["endpoint"] + 0.6 * expected["classification"]
    )
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(
        expected, rel=1e-4
    )


def test_each_decoder_layer_is_matched_separately() -> None:
    found, start, target, valid = case(layers=3)
    alone = []
    for layer in (*found.auxiliary, replace(found, auxiliary=())):
        terms = reference(layer, start, target, valid)
        alone.append(terms["regression"] + 0.3 * terms["endpoint"] + 0.6 * terms["classification"])
    loss = scene_set_loss(found, start, target, valid, CONFIG)
    assert loss["loss"].item() == pytest.approx(
        alone[2] + 0.5 * (alone[0] + alone[1]) / 2, rel=1e-4
    )


def test_without_known_futures_all_queries_learn_that_they_do_not_exist() -> None:
    found, start, target, valid = case()
    terms = scene_set_loss(found, start, target, torch.zeros_like(valid), CONFIG)
    terms["loss"].backward()
    assert (
        terms["regression"] == 0 and found.logit.grad is not None and (found.logit.grad > 0).all()
    )
    bad = replace(
        found, position=found.position.detach().index_fill(1, torch.tensor([2]), math.nan)
    )
    with pytest.raises(ValueError, match="layer 0, scene 0, query 2, agent 0"):
        scene_set_loss(bad, start, target, valid, CONFIG)


def test_padded_queries_are_neither_matched_nor_classified() -> None:
    found, start, target, valid = case(layers=2)
    near = torch.cat([start[:, :1, None], target[:, :1]], 2)[
        :, :, None
    ]  # a padded query with the best positions
    nothing = torch.full((2, 1), -torch.inf)
    last, first = (
        SceneTrajectories(
            torch.cat([near, one.position], 1),
            torch.cat([nothing, one.logit], 1),
            torch.zeros(2, 5, 1),
        )
        for one in (found, *found.auxiliary)
    )
    plain = scene_set_loss(found, start, target, valid, CONFIG)
    same = scene_set_loss(replace(last, auxiliary=(first,)), start, target, valid, CONFIG)
    torch.testing.assert_close(same, plain, atol=0, rtol=1e-6)
    same["loss"].backward()
    assert found.logit.grad is not None and found.logit.grad.isfinite().all()
    assert [int(n[0]) for n in set_hits(last, target, valid)][2] == int((found.logit[0] >= 0).sum())


def test_agents_as_queries_predict_offsets_from_constant_velocity() -> None:
    """The offset is in the frame of the agent."""
    model = build_random(replace(SCENE_SET, queries=0)).eval()
    batch = collate(varied_scenes()).observation
    correction = torch.zeros(1 + FUTURE, 2)
    for ahead in (0.0, 2.0):
        correction[1, 0] = ahead
        torch.nn.init.zeros_(model.trajectory[-1].weight)
        model.trajectory[-1].bias.data = correction.flatten().clone()
        found = model.trajectories(batch)
        present = ~found.logit.isneginf()
        seen = present & batch.valid[..., -1]
        assert torch.equal(seen, batch.agent_mask & batch.valid[..., -1]) and (~present).any()
        heading = torch.stack([batch.pose[..., 2].cos(), batch.pose[..., 2].sin()], -1)
        time = batch.period_s * FUTURE
        end = batch.pose[..., :2] + batch.velocity[:, :, -1] * time + ahead * heading
        torch.testing.assert_close(
            found.most_probable()[:, :, 0][seen], batch.pose[..., :2][seen], atol=1e-3, rtol=0
        )
        torch.testing.assert_close(
            found.most_probable()[:, :, -1][seen], end[seen], atol=1e-2, rtol=0
        )


def test_only_the_best_mode_receives_a_regression_loss_and_it_is_the_class() -> None:
    found, start, target, valid = case()
    single_terms = scene_set_loss(found, start, target, valid, CONFIG)
    far = found.position.detach() + 50.0
    mode_logit = torch.tensor([0.3, -0.2]).expand(2, 4, 2).clone().requires_grad_()
    both = replace(
        found,
        position=torch.cat([far, found.position], 2).detach().requires_grad_(),
        mode_logit=mode_logit,
    )
    terms = scene_set_loss(both, start, target, valid, CONFIG)
    for name in ("regression", "endpoint", "classification"):
        assert terms[name].item() == pytest.approx(single_terms[name].item(), rel=1e-5)
    assert terms["mode"].item() == pytest.approx(math.log(1 + math.exp(0.5)), rel=1e-5)
    terms["loss"].backward()
    assert not both.position.grad[:, :, 0].any() and both.position.grad[:, :, 1].any()
    matched = mode_logit.grad.abs().sum(-1) > 0
    assert matched.sum() == valid.any(-1).sum() and (mode_logit.grad[matched][:, 1] < 0).all()
    assert torch.equal(both.most_probable(), far[:, :, 0])


def test_a_target_gets_the_modes_of_one_query() -> None:
    model = build_random(replace(SCENE_SET, queries=0, modes=3)).eval()
    batch = collate(varied_scenes()).observation
    forecast, found = model(batch), model.trajectories(batch)
    assert forecast.position.shape == (3, 5, 3, FUTURE, 2) and forecast.logit.shape == (3, 5, 3)
    for target in range(batch.num_targets):
        if batch.target_mask[0, target]:
            moved = (
                found.position[0, :, :, 1:]
                - found.position[0, :, :, :1]
                + batch.pose[0, target, :2]
            )
            gap = (moved - forecast.position[0, target]).abs().amax((1, 2, 3))
            assert gap.min() < 1e-4 and torch.equal(
                found.mode_logit[0, gap.argmin()], forecast.logit[0, target]
            )


def test_recall_and_precision_reference() -> None:
    """Two queries end near agent 0, one near agent 1; a query with low probability is near agent 2; agent 3 has no end point."""
    ends = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [10.0, 1.0], [20.0, 0.0], [50.0, 0.0]]])
    position = torch.zeros(1, 5, 3, 2)
    position[:, :, -1] = ends
    found = single(position, torch.tensor([[2.0, 1.0, 3.0, -1.0, 0.5]]))
    target = torch.zeros(1, 4, 2, 2)
    target[0, :, -1] = torch.tensor([[0.5, 0.0], [10.0, 0.0], [20.0, 0.0], [50.0, 0.0]])
    valid = torch.ones(1, 4, 2, dtype=torch.bool)
    valid[0, 3, 1] = False
    assert [int(count) for count in set_hits(found, target, valid)] == [2, 3, 4]
    assert [int(count) for count in set_hits(found, target, valid, 0.8)] == [
        2,
        3,
        2,
    ]  # the queries with logits 2 and 3
    lost = replace(found, position=torch.full_like(position[:, :, None], math.nan))
    assert int(set_hits(lost, target, valid)[0]) == 0
    # Queries 0 and 1 are near agents 0 and 1; each query can hit one agent.
    target[0, 1, -1] = torch.tensor([1.5, 0.0])
    assert int(set_hits(found, target, valid)[0]) == 2


def test_targets_get_the_nearest_existing_query_shifted_to_them(
    model: SceneSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = collate(varied_scenes()[:1]).observation
    start = batch.pose[0, : batch.num_targets, :2]
    position = torch.zeros(1, 4, 1 + FUTURE, 2)
    position[0, 0] = (
        start[0]
        + torch.tensor([0.5, 0.0])
        + torch.arange(1 + FUTURE)[:, None] * torch.tensor([1.0, 0.0])
    )
    position[0, 1] = start[0] + torch.tensor([0.1, 0.0])  # nearer, with a low probability
    position[0, 2:] = 1e3
    found = single(position, torch.tensor([[4.0, -9.0, 4.0, 4.0]]))
    monkeypatch.setattr(model, "trajectories", lambda observation: found)
    forecast = model(batch)
    steps = torch.arange(1, 1 + FUTURE)[:, None] * torch.tensor([1.0, 0.0])
    torch.testing.assert_close(forecast.position[0, 0, 0], start[0] + steps, atol=1e-4, rtol=0)
