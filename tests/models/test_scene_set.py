"""The scene set: its loss by hand, recall and precision, and the forecast of targets."""

import itertools
import math
from dataclasses import replace

import numpy as np
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
    """4 queries of 2 scenes with 3 agents; starts, targets and their mask.

    One future is unknown, one ends early.
    """
    decoded = []
    for layer in range(layers):
        position = draw(2, 4, 1, 6, 2, seed=layer, scale=3.0).requires_grad_()
        logit = draw(2, 4, seed=9 + layer).requires_grad_()
        decoded.append(SceneTrajectories(position, logit, torch.zeros(2, 4, 1)))
    start = draw(2, 3, 2, seed=30, scale=3.0)
    target = draw(2, 3, 5, 2, seed=31, scale=3.0)
    valid = torch.ones(2, 3, 5, dtype=torch.bool)
    valid[0, 1] = False
    valid[1, 2, 3:] = False
    return replace(decoded[-1], auxiliary=tuple(decoded[:-1])), start, target, valid


def agent_errors(position: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Matching error [Q], and mean and last Huber error [Q, 2], of [Q, T, 2] with [T, 2]."""
    gap = position - target
    distance = gap.norm(dim=-1)
    error = distance.mean(1) + 0.5 * distance[:, -1]
    huber = torch.where(gap.abs() < 0.8, gap.square() / 1.6, gap.abs() - 0.4).sum(-1)
    return error, torch.stack([huber.mean(1), huber[:, -1]], -1)


def reference(
    predicted: SceneTrajectories, start: Tensor, target: Tensor, valid: Tensor
) -> dict[str, float]:
    """The terms of the best of all assignments."""
    matched = []
    entropy = 0.0
    weight = 0.0
    for b in range(2):
        probability = predicted.logit[b].sigmoid()
        costs = []
        hubers = []
        for s in valid[b].any(-1).nonzero()[:, 0].tolist():
            truth = torch.cat([start[b, s, None], target[b, s][valid[b, s]]])
            steps = [0, *(1 + valid[b, s].nonzero()[:, 0])]
            error, huber = agent_errors(predicted.position[b, :, 0, steps], truth)
            costs.append((error - 2.0 * probability).tolist())
            hubers.append(huber.tolist())

        best: tuple[int, ...] = ()
        best_cost = math.inf
        for queries in itertools.permutations(range(4), len(costs)):
            cost = sum(costs[agent][query] for agent, query in enumerate(queries))
            if cost < best_cost:
                best, best_cost = queries, cost
        matched += [hubers[agent][query] for agent, query in enumerate(best)]
        for query, p in enumerate(probability.tolist()):
            if query in best:
                weight += 1.0
                entropy -= math.log(p)
            else:
                weight += 0.1
                entropy -= 0.1 * math.log(1 - p)
    regression, endpoint = np.mean(matched, 0)
    classification = entropy / weight
    return {
        "regression": regression,
        "endpoint": endpoint,
        "classification": classification,
        "mode": 0.0,
        "loss": regression + 0.3 * endpoint + 0.6 * classification,
    }


def test_terms_equal_the_best_of_all_assignments() -> None:
    predicted, start, target, valid = case()
    terms = scene_set_loss(predicted, start, target, valid, CONFIG)
    expected = reference(predicted, start, target, valid)
    values = {name: value.item() for name, value in terms.items()}
    assert values == pytest.approx(expected, rel=1e-4)


def test_each_decoder_layer_is_matched_separately() -> None:
    predicted, start, target, valid = case(layers=3)
    first, second = (reference(x, start, target, valid)["loss"] for x in predicted.auxiliary)
    last = reference(predicted, start, target, valid)["loss"]
    terms = scene_set_loss(predicted, start, target, valid, CONFIG)
    assert terms["loss"].item() == pytest.approx(last + 0.5 * (first + second) / 2, rel=1e-4)


def test_without_known_futures_all_queries_learn_that_they_do_not_exist() -> None:
    predicted, start, target, valid = case()
    terms = scene_set_loss(predicted, start, target, torch.zeros_like(valid), CONFIG)
    terms["loss"].backward()
    assert terms["regression"] == 0
    assert predicted.logit.grad is not None
    assert (predicted.logit.grad > 0).all()


def test_a_position_that_is_not_finite_is_an_error() -> None:
    predicted, start, target, valid = case()
    position = predicted.position.detach().clone()
    position[:, 2] = math.nan
    with pytest.raises(ValueError, match="layer 0, scene 0, query 2, agent 0"):
        scene_set_loss(replace(predicted, position=position), start, target, valid, CONFIG)


def test_padded_queries_are_neither_matched_nor_classified() -> None:
    predicted, start, target, valid = case(layers=2)
    # A padded query has the best positions.
    best = torch.cat([start[:, :1, None], target[:, :1]], 2)[:, :, None]
    padded = []
    for layer in (*predicted.auxiliary, predicted):
        position = torch.cat([best, layer.position], 1)
        logit = torch.cat([torch.full((2, 1), -torch.inf), layer.logit], 1)
        padded.append(SceneTrajectories(position, logit, torch.zeros(2, 5, 1)))
    first, last = padded
    expected = scene_set_loss(predicted, start, target, valid, CONFIG)
    terms = scene_set_loss(replace(last, auxiliary=(first,)), start, target, valid, CONFIG)
    torch.testing.assert_close(terms, expected, atol=0, rtol=1e-6)

    terms["loss"].backward()
    assert predicted.logit.grad is not None
    assert predicted.logit.grad.isfinite().all()
    num_queries = set_hits(last, target, valid)[2][0]
    assert num_queries == (predicted.logit[0] >= 0).sum()


@pytest.mark.parametrize("ahead_m", [0.0, 2.0])
def test_agents_as_queries_predict_offsets_from_constant_velocity(ahead_m: float) -> None:
    """The offset is in the frame of the agent."""
    model = build_random(replace(SCENE_SET, queries=0)).eval()
    offset = torch.zeros(1 + FUTURE, 2)
    offset[1, 0] = ahead_m
    torch.nn.init.zeros_(model.trajectory[-1].weight)
    model.trajectory[-1].bias.data = offset.flatten()

    batch = collate(varied_scenes()).observation
    predicted = model.trajectories(batch)
    present = ~predicted.logit.isneginf()
    seen = present & batch.valid[..., -1]
    assert torch.equal(seen, batch.agent_mask & batch.valid[..., -1])
    assert (~present).any()
    start = batch.pose[..., :2]
    heading = torch.stack([batch.pose[..., 2].cos(), batch.pose[..., 2].sin()], -1)
    end = start + batch.velocity[:, :, -1] * batch.period_s * FUTURE + ahead_m * heading
    path = predicted.most_probable()
    torch.testing.assert_close(path[:, :, 0][seen], start[seen], atol=1e-3, rtol=0)
    torch.testing.assert_close(path[:, :, -1][seen], end[seen], atol=1e-2, rtol=0)


def test_only_the_best_mode_receives_a_regression_loss_and_it_is_the_class() -> None:
    predicted, start, target, valid = case()
    expected = scene_set_loss(predicted, start, target, valid, CONFIG)
    far = predicted.position.detach() + 50.0
    position = torch.cat([far, predicted.position], 2).detach().requires_grad_()
    mode_logit = torch.tensor([0.3, -0.2]).expand(2, 4, 2).clone().requires_grad_()
    both = replace(predicted, position=position, mode_logit=mode_logit)
    terms = scene_set_loss(both, start, target, valid, CONFIG)
    for name in ("regression", "endpoint", "classification"):
        assert terms[name].item() == pytest.approx(expected[name].item(), rel=1e-5)
    assert terms["mode"].item() == pytest.approx(math.log(1 + math.exp(0.5)), rel=1e-5)

    terms["loss"].backward()
    assert not position.grad[:, :, 0].any()
    assert position.grad[:, :, 1].any()
    matched = mode_logit.grad.abs().sum(-1) > 0
    assert matched.sum() == valid.any(-1).sum()
    assert (mode_logit.grad[matched][:, 1] < 0).all()
    assert torch.equal(both.most_probable(), far[:, :, 0])


def test_a_target_gets_the_modes_of_one_query() -> None:
    model = build_random(replace(SCENE_SET, queries=0, modes=3)).eval()
    batch = collate(varied_scenes()).observation
    forecast = model(batch)
    predicted = model.trajectories(batch)
    assert forecast.position.shape == (3, 5, 3, FUTURE, 2)
    assert forecast.logit.shape == (3, 5, 3)
    offset = predicted.position[0, :, :, 1:] - predicted.position[0, :, :, :1]
    for target in batch.target_mask[0].nonzero()[:, 0].tolist():
        shifted = offset + batch.pose[0, target, :2]
        gap = (shifted - forecast.position[0, target]).abs().amax((1, 2, 3))
        query = gap.argmin()
        assert gap[query] < 1e-4
        assert torch.equal(predicted.mode_logit[0, query], forecast.logit[0, target])


def test_recall_and_precision_by_hand() -> None:
    """Two queries end near agent 0, one near agent 1.

    A query with a low probability is near agent 2; agent 3 has no end point.
    """
    position = torch.zeros(1, 5, 3, 2)
    position[0, :, -1, 0] = torch.tensor([0.0, 1.0, 10.0, 20.0, 50.0])
    position[0, 2, -1, 1] = 1.0
    predicted = single(position, torch.tensor([[2.0, 1.0, 3.0, -1.0, 0.5]]))
    target = torch.zeros(1, 4, 2, 2)
    target[0, :, -1, 0] = torch.tensor([0.5, 10.0, 20.0, 50.0])
    valid = torch.ones(1, 4, 2, dtype=torch.bool)
    valid[0, 3, 1] = False
    assert [int(count) for count in set_hits(predicted, target, valid)] == [2, 3, 4]
    # The queries with logits 2 and 3 have a probability of more than .8.
    assert [int(count) for count in set_hits(predicted, target, valid, 0.8)] == [2, 3, 2]

    lost = replace(predicted, position=torch.full_like(predicted.position, math.nan))
    assert int(set_hits(lost, target, valid)[0]) == 0

    # Queries 0 and 1 are near agents 0 and 1; each query can hit one agent.
    target[0, 1, -1] = torch.tensor([1.5, 0.0])
    assert int(set_hits(predicted, target, valid)[0]) == 2


def test_targets_get_the_nearest_existing_query_shifted_to_them(
    model: SceneSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = collate(varied_scenes()[:1]).observation
    start = batch.pose[0, 0, :2]
    path = torch.zeros(1 + FUTURE, 2)
    path[:, 0] = torch.arange(1 + FUTURE)
    position = torch.full((1, 4, 1 + FUTURE, 2), 1e3)
    position[0, 0] = start + torch.tensor([0.5, 0.0]) + path
    position[0, 1] = start + torch.tensor([0.1, 0.0])  # nearer, with a low probability
    predicted = single(position, torch.tensor([[4.0, -9.0, 4.0, 4.0]]))
    monkeypatch.setattr(model, "trajectories", lambda observation: predicted)
    forecast = model(batch)
    torch.testing.assert_close(forecast.position[0, 0, 0], start + path[1:], atol=1e-4, rtol=0)
