"""Metrics of agents and worlds against av2, closed forms and brute force; means over batches."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trajformer.data.batch import Truth
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.evaluation.metrics.averages import CrowdMetrics, DisplacementMetrics, MultiWorldMetrics
from trajformer.evaluation.metrics.displacement import NAMES, SEPARATE_NAMES, displacement, separate_minima
from trajformer.evaluation.metrics.joint import (
    JOINT_NAMES,
    MULTI_WORLD_NAMES,
    collided,
    joint_minima,
    multi_world,
    world_errors,
    world_probability,
)
from trajformer.scenes.geometry import from_frame, to_frame

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(scenes: int = 5, agents: int = 4, modes: int = 6, steps: int = 30) -> tuple[Forecast, Tensor, Tensor]:
    """Random walks with forecasts near the truth: some modes miss, others hit."""
    target = draw(scenes, agents, steps, 2).cumsum(2)
    position = target[:, :, None] + draw(scenes, agents, modes, steps, 2, seed=1, scale=0.5).cumsum(3)
    forecast = Forecast(position, draw(scenes, agents, modes, seed=2), Frame.SCENE)
    return forecast, target, torch.ones(target.shape[:-1], dtype=torch.bool)


def batch(target: Tensor, valid: Tensor) -> Any:
    """The part of a batch that the metrics use."""
    return SimpleNamespace(truth=Truth(target, valid))


def one(position: list[list[list[float]]], logit: list[float]) -> Forecast:
    """Modes of a single agent."""
    return Forecast(torch.tensor(position)[None, None], torch.tensor(logit)[None, None], Frame.SCENE)


@pytest.mark.parametrize("k", [1, 3, 6])
def test_equals_argoverse_2(k: int) -> None:
    av2 = pytest.importorskip("av2.datasets.motion_forecasting.eval.metrics")
    forecast, target, valid = make()
    values, counts = displacement(forecast, target, valid, k)
    assert counts.all()
    probability = forecast.probability().double().numpy()
    for index in np.ndindex(5, 4):
        top = np.argsort(-probability[index], kind="stable")[:k]
        modes, truth = forecast.position[index].double().numpy()[top], target[index].double().numpy()
        fde = av2.compute_fde(modes, truth)
        best = int(fde.argmin())
        expected = {
            "minADE": av2.compute_ade(modes, truth)[best],
            "minFDE": fde[best],
            "MR": float(av2.compute_is_missed_prediction(modes, truth, miss_threshold_m=2.0)[best]),
            "brier_minFDE": av2.compute_brier_fde(modes, truth, probability[index][top])[best],
        }
        assert {name: values[name][index].item() for name in NAMES} == pytest.approx(expected, rel=1e-6, abs=1e-6)
    misses = values["MR"]
    assert 0 < misses.sum() < misses.numel()


def test_by_hand() -> None:
    # Mode 0 is better on average, mode 1 at the end. All metrics of Argoverse 2 are of the mode with the best end point.
    forecast = one([[[0.0, 0.0], [3.0, 4.0]], [[6.0, 0.0], [0.0, 2.0]]], [math.log(3.0), 0.0])
    target, valid = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, dtype=torch.bool)
    values, counts = displacement(forecast, target, valid, 2)
    expected = {"minADE": 4.0, "minFDE": 2.0, "MR": 0.0, "brier_minFDE": 2.0 + 0.75**2, "probability": 0.25}
    assert {name: value.item() for name, value in values.items()} == pytest.approx(expected)
    assert counts.tolist() == [[True]]
    values, _ = displacement(forecast, target, valid, 1)
    expected = {"minADE": 2.5, "minFDE": 5.0, "MR": 1.0, "brier_minFDE": 5.0 + 0.25**2, "probability": 0.75}
    assert {name: value.item() for name, value in values.items()} == pytest.approx(expected)


@pytest.mark.parametrize(("error", "threshold", "miss"), [(2.0, 2.0, 0.0), (2.01, 2.0, 1.0), (2.01, 3.0, 0.0), (0.0, 2.0, 0.0)])
def test_a_miss_is_beyond_the_threshold(error: float, threshold: float, miss: float) -> None:
    valid = torch.ones(1, 1, 1, dtype=torch.bool)
    values, _ = displacement(one([[[error, 0.0]]], [0.0]), torch.zeros(1, 1, 1, 2), valid, 1, miss_threshold_m=threshold)
    assert values["MR"].item() == miss


def test_all_modes_are_used_if_there_are_fewer_than_k() -> None:
    forecast, target, valid = make(modes=3)
    few, all_three = displacement(forecast, target, valid, 6), displacement(forecast, target, valid, 3)
    for name in NAMES:
        assert torch.equal(few[0][name], all_three[0][name])


def test_equally_probable_modes_keep_their_order() -> None:
    forecast = one([[[1.0, 0.0]], [[0.0, 0.0]], [[3.0, 0.0]]], [0.0, 0.0, 0.0])
    target, valid = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, dtype=torch.bool)
    best = [displacement(forecast, target, valid, k)[0]["minFDE"].item() for k in (1, 2, 3)]
    assert best == [1.0, 0.0, 0.0]


def test_unknown_steps_and_agents() -> None:
    forecast, target, valid = make()
    valid[0, 0, -1] = False
    valid[1, 1] = False
    valid[2, 2, :10] = False
    values, counts = displacement(forecast, target, valid, 6)
    assert (~counts).nonzero().tolist() == [[0, 0], [1, 1]]
    error = (forecast.position[2, 2] - target[2, 2]).norm(dim=-1)
    best = error[:, -1].argmin()
    assert values["minADE"][2, 2].item() == pytest.approx(error[best, 10:].mean().item(), rel=1e-5)
    assert values["minFDE"][2, 2].item() == pytest.approx(error[best, -1].item())
    spoiled = torch.where(valid[..., None], target, torch.tensor(1e6))
    again, _ = displacement(forecast, spoiled, valid, 6)
    for name in NAMES:
        assert torch.equal(again[name][counts], values[name][counts])


def test_the_frame_of_the_forecast_does_not_matter() -> None:
    forecast, target, valid = make()
    pose = torch.cat([draw(5, 4, 2, seed=5, scale=5.0), draw(5, 4, 1, seed=6)], -1)
    own = to_frame(forecast.position, pose[:, :, None, None])
    local, _ = displacement(Forecast(own, forecast.logit, Frame.AGENT, pose=pose), target, valid, 6)
    plain, _ = displacement(forecast, target, valid, 6)
    torch.testing.assert_close(from_frame(own, pose[:, :, None, None]), forecast.position, atol=1e-5, rtol=0)
    for name in NAMES:
        torch.testing.assert_close(local[name], plain[name], atol=1e-4, rtol=1e-5)


def test_joint_forecasts_use_the_probability_of_the_world() -> None:
    forecast, target, valid = make()
    joint = replace(forecast, logit=forecast.logit[:, 0])
    wide = replace(forecast, logit=forecast.logit[:, :1].expand(5, 4, 6))
    left, right = displacement(joint, target, valid, 3)[0], displacement(wide, target, valid, 3)[0]
    for name in NAMES:
        assert torch.equal(left[name], right[name])


def assert_table(left: dict[str, float], right: dict[str, float]) -> None:
    assert left.keys() == right.keys()
    assert left == pytest.approx(right, rel=1e-6)


def test_batches_add_up() -> None:
    forecast, target, valid = make()
    valid[3, 1, -1] = False
    whole, parts = DisplacementMetrics((1, 6)), DisplacementMetrics((1, 6))
    whole.update(forecast, batch(target, valid))
    for rows in (slice(0, 1), slice(1, 4), slice(4, 5)):
        part = replace(forecast, position=forecast.position[rows], logit=forecast.logit[rows])
        parts.update(part, batch(target[rows], valid[rows]))
    table = whole.compute()
    assert_table(parts.compute(), table)
    assert table["num_agents"] == 19
    for k in (1, 6):
        values, counts = displacement(forecast, target, valid, k)
        for name in NAMES:
            assert table[f"{name}{k}"] == pytest.approx(values[name][counts].double().mean().item(), rel=1e-6)


def test_padding_targets_do_not_count() -> None:
    forecast, target, valid = make()
    pad = (0, 0, 0, 0, 0, 2)
    wide = replace(
        forecast,
        position=torch.nn.functional.pad(forecast.position, (0, 0, *pad), value=7.0),
        logit=torch.nn.functional.pad(forecast.logit, (0, 0, 0, 2)),
    )
    plain, padded = DisplacementMetrics(), DisplacementMetrics()
    plain.update(forecast, batch(target, valid))
    padded.update(wide, batch(torch.nn.functional.pad(target, pad), torch.nn.functional.pad(valid, (0, 0, 0, 2))))
    assert wide.position.shape[1] == 6
    assert_table(padded.compute(), plain.compute())


def test_no_agents_give_nan_and_reset_clears_the_sums() -> None:
    metrics = DisplacementMetrics((1, 6))
    empty = metrics.compute()
    assert empty.pop("num_agents") == 0
    assert len(empty) == 9 and all(math.isnan(value) for value in empty.values())
    forecast, target, valid = make()
    metrics.update(forecast, batch(target, valid))
    first = metrics.compute()
    metrics.reset()
    metrics.update(forecast, batch(target, torch.zeros_like(valid)))
    assert math.isnan(metrics.compute()["minFDE6"])
    metrics.update(forecast, batch(target, valid))
    assert_table(metrics.compute(), first)


# separate minima, ETH/UCY ------------------------------------------------------------------------------------------


def test_separate_minima_by_hand() -> None:
    # ADE 2.5, 4, 3.5 and FDE 5, 2, 1: best on average is mode 0, best at the end mode 2; no mode has 2.5 and 1.
    forecast = one([[[0.0, 0.0], [3.0, 4.0]], [[6.0, 0.0], [0.0, 2.0]], [[6.0, 0.0], [0.0, 1.0]]], [3.0, 2.0, 1.0])
    target, valid = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, dtype=torch.bool)
    values, counts = separate_minima(forecast, target, valid, 3)
    assert {name: value.item() for name, value in values.items()} == {"ADE": 2.5, "FDE": 1.0, "FDE_at_best_ADE": 5.0}
    assert counts.tolist() == [[True]]
    values, _ = separate_minima(forecast, target, valid, 2)
    assert {name: value.item() for name, value in values.items()} == {"ADE": 2.5, "FDE": 2.0, "FDE_at_best_ADE": 5.0}
    argoverse, _ = displacement(forecast, target, valid, 3)
    assert (argoverse["minADE"].item(), argoverse["minFDE"].item()) == (3.5, 1.0)


def ragged() -> tuple[Forecast, Tensor, Tensor]:
    """Agents with gaps, an agent without an end, one without any valid step, and a scene without actors."""
    forecast, target, valid = make(modes=7, steps=9)
    valid[0, 0, [1, 4]] = False
    valid[0, 2, -1] = False
    valid[1, 1] = False
    valid[2, :, -1] = False
    return forecast, torch.where(valid[..., None], target, torch.tensor(1e4)), valid


@pytest.mark.parametrize("k", [1, 4, 7, 20])
def test_separate_minima_by_brute_force(k: int) -> None:
    forecast, target, valid = ragged()
    values, counts = separate_minima(forecast, target, valid, k)
    assert torch.equal(counts, valid[..., -1])
    for b, a in counts.nonzero().tolist():
        order = sorted(range(7), key=lambda mode: -forecast.logit[b, a, mode].item())[:k]
        known = valid[b, a].nonzero().squeeze(1).tolist()
        apart = {m: [math.dist(forecast.position[b, a, m, t].tolist(), target[b, a, t].tolist()) for t in known] for m in order}
        ade, fde = {m: sum(d) / len(d) for m, d in apart.items()}, {m: d[-1] for m, d in apart.items()}
        expected = (min(ade.values()), min(fde.values()), fde[min(ade, key=lambda m: ade[m])])
        assert [values[name][b, a].item() for name in SEPARATE_NAMES] == pytest.approx(expected, rel=1e-5)


# worlds ------------------------------------------------------------------------------------------------------------


def worlds(position: list[list[list[list[float]]]], logit: list[float]) -> Forecast:
    """A joint forecast of one scene: agents, worlds, steps, xy."""
    return Forecast(torch.tensor(position)[None], torch.tensor(logit)[None], Frame.SCENE)


TWO = worlds([[[[0.0, 3.0]], [[0.0, 1.0]]], [[[9.0, 0.0]], [[9.0, 4.0]]]], [math.log(3.0), 0.0])  # 2 agents, 2 worlds, 1 step
TRUTH, KNOWN = torch.tensor([[[[0.0, 0.0]], [[9.0, 0.0]]]]), torch.ones(1, 2, 1, dtype=torch.bool)


def test_the_best_world_has_the_smallest_mean_error() -> None:
    # World 0 is 3 and 0 m off, world 1 is 1 and 4 m off: each agent alone could have 1 and 0 m.
    values, counts = joint_minima(TWO, TRUTH, KNOWN, 2)
    assert {name: value.item() for name, value in values.items()} == {"JADE": 1.5, "JFDE": 1.5, "JFDE_at_best_JADE": 1.5}
    assert counts.tolist() == [True]
    alone, _ = separate_minima(TWO, TRUTH, KNOWN, 2)
    assert alone["FDE"].tolist() == [[1.0, 0.0]]


def test_errors_of_worlds_are_not_rounded_in_half_precision() -> None:
    """Validation runs under autocast, where a product of matrices knows 30 m to 25 cm."""
    forecast = Forecast(30 * draw(2, 3, 4, 5, 2), draw(2, 4, seed=1), Frame.SCENE)
    target, valid = draw(2, 3, 5, 2, seed=2), torch.ones(2, 3, 5, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        found = world_errors(forecast, target, valid)
    error = (forecast.position - target[:, :, None]).norm(dim=-1)
    for value, expected in zip(found, (error.mean((1, 3)), error[..., -1].mean(1)), strict=True):
        torch.testing.assert_close(value, expected)


def test_joint_minima_are_separate() -> None:
    # World 0: ADE 1, FDE 2; world 1: ADE 3, FDE 1.
    forecast = worlds([[[[0.0, 0.0], [2.0, 0.0]], [[5.0, 0.0], [1.0, 0.0]]]], [0.0, 0.0])
    values, _ = joint_minima(forecast, torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, dtype=torch.bool), 2)
    assert {name: value.item() for name, value in values.items()} == {"JADE": 1.0, "JFDE": 1.0, "JFDE_at_best_JADE": 2.0}


def test_multi_world_by_hand() -> None:
    # World 0 (probability 3/4) is the best: agent 0 is 3 m off and so missed, agent 1 exact; they are 9.5 m apart.
    values, counts = multi_world(TWO, TRUTH, KNOWN, 2)
    expected = {"avgMinFDE": 1.5, "avgMinADE": 1.5, "actorMR": 0.5, "actorCR": 0.0, "avgBrierMinFDE": 1.5 + 0.25**2}
    assert {name: value.item() for name, value in values.items()} == pytest.approx(expected)
    assert counts.tolist() == [True]
    near, _ = multi_world(TWO, TRUTH, KNOWN, 2, collision_m=9.6)
    assert near["actorCR"].item() == 1.0
    only_other, _ = multi_world(replace(TWO, logit=torch.tensor([[0.0, 1.0]])), TRUTH, KNOWN, 1)
    assert only_other["avgMinFDE"].item() == 2.5


def test_worlds_equal_argoverse_2() -> None:
    av2 = pytest.importorskip("av2.datasets.motion_forecasting.eval.metrics")
    forecast, target, valid = make(scenes=6, agents=5, modes=6, steps=12)
    apart = draw(6, 5, 1, 2, seed=8, scale=4.0)  # some collide, some do not
    position = forecast.position * 0.4 + apart[:, :, None]
    joint = replace(forecast, position=position, logit=forecast.logit[:, 0])
    target = target * 0.4 + apart
    probability = joint.logit.softmax(-1).double().numpy()
    values, counts = multi_world(joint, target, valid, 6)
    ade, fde = world_errors(joint, target, valid)
    hits = collided(position, valid[..., -1], 1.0)
    assert counts.all() and 0 < hits.sum() < hits.numel() and 0 < values["actorMR"].mean() < 1
    for b in range(6):
        modes, truth = position[b].double().numpy(), target[b].double().numpy()
        world_fde = av2.compute_world_fde(modes, truth)
        np.testing.assert_allclose(fde[b], world_fde, rtol=1e-5)
        np.testing.assert_allclose(ade[b], av2.compute_world_ade(modes, truth), rtol=1e-5)
        np.testing.assert_array_equal(hits[b], av2.compute_world_collisions(modes, 1.0))
        best = int(world_fde.argmin())
        expected = {
            "avgMinFDE": world_fde[best],
            "avgMinADE": av2.compute_world_ade(modes, truth)[best],
            "actorMR": av2.compute_world_misses(modes, truth, 2.0)[:, best].mean(),
            "actorCR": av2.compute_world_collisions(modes, 1.0)[:, best].mean(),
            "avgBrierMinFDE": av2.compute_world_brier_fde(modes, truth, probability[b])[best],
        }
        assert {name: values[name][b].item() for name in MULTI_WORLD_NAMES} == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("k", [2, 7, 20])
@pytest.mark.parametrize("joint", [True, False])
def test_joint_minima_by_brute_force(k: int, joint: bool) -> None:
    forecast, target, valid = ragged()
    forecast = replace(forecast, logit=forecast.logit[:, 3]) if joint else forecast
    values, counts = joint_minima(forecast, target, valid, k)
    assert counts.tolist() == [True, True, False, True, True]
    for b in counts.nonzero().squeeze(1).tolist():
        actors = valid[b, :, -1].nonzero().squeeze(1).tolist()
        log_p = forecast.logit.log_softmax(-1)
        score = log_p[b] if joint else log_p[b, actors].sum(0)
        rows = []
        for world in sorted(range(7), key=lambda w: -score[w].item())[:k]:
            each = []
            for a in actors:
                off = (forecast.position[b, a, world] - target[b, a]).norm(dim=-1)[valid[b, a]]
                each.append((off.mean().item(), off[-1].item()))
            rows.append([sum(column) / len(actors) for column in zip(*each, strict=True)])
        expected = (min(r[0] for r in rows), min(r[1] for r in rows), min(rows)[1])
        assert [values[name][b].item() for name in JOINT_NAMES] == pytest.approx(expected, rel=1e-5)


def test_probability_of_a_world_of_marginal_modes_is_the_product() -> None:
    forecast, _, valid = ragged()
    actor = valid[..., -1]
    probability = world_probability(forecast, actor)
    product = (forecast.probability()[0, actor[0]]).prod(0)
    torch.testing.assert_close(probability[0], product / product.sum())
    torch.testing.assert_close(probability[2], torch.full((7,), 1 / 7))  # no actor
    joint = replace(forecast, logit=forecast.logit[:, 0])
    torch.testing.assert_close(world_probability(joint, actor), joint.logit.softmax(-1))


def test_a_collision_is_below_the_threshold_and_involves_both_agents() -> None:
    # Agents 0 and 1 are 0.2 m apart in world 0 and 0.19 m in world 1, agent 2 is far off, agent 3 on top of 2 but no actor.
    position = torch.zeros(1, 4, 2, 3, 2)
    position[0, 1, 0, 1, 0], position[0, 1, 1, 1, 0] = 0.2, 0.19
    position[0, 1, :, [0, 2]] = 5.0
    position[0, 2:] = 50.0
    actor = torch.tensor([[True, True, True, False]])
    assert collided(position, actor, 0.2)[0].tolist() == [[False, True], [False, True], [False, False], [False, False]]
    assert not collided(position, torch.tensor([[True, False, False, True]]), 0.2).any()


def test_collisions_between_steps() -> None:
    # Head-on, 1 m apart before and after; in parallel at 0.3 m; and one that reaches a position after the other has left it.
    way = torch.tensor([[[0.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.3], [0.0, 0.3]]])
    position = way[None, :, None]
    actor = torch.ones(1, 3, dtype=torch.bool)
    assert not collided(position, actor, 0.2).any()
    assert collided(position, actor, 0.2, between_steps=True)[0, :, 0].tolist() == [True, True, False]
    after = torch.tensor([[[0.0, 0.0], [1.0, 0.0]], [[-1.0, 0.0], [0.0, 0.0]]])[None, :, None]
    assert not collided(after, actor[:, :2], 0.2, between_steps=True).any()
    still = torch.zeros(1, 2, 1, 2, 2)
    assert collided(still, actor[:, :2], 0.2, between_steps=True).all()  # standing in one place is no division by zero
    assert collided(still[..., :1, :], actor[:, :2], 0.2, between_steps=True).all()


@pytest.mark.parametrize("between", [False, True])
def test_collisions_by_brute_force(between: bool) -> None:
    position = draw(3, 6, 5, 8, 2, scale=0.4).cumsum(3) + draw(3, 6, 1, 1, 2, seed=9)
    actor = torch.rand(3, 6, generator=torch.Generator().manual_seed(3)) > 0.2
    found = collided(position, actor, 0.2, between_steps=between)
    for b in range(3):
        for world in range(5):
            expected = set()
            for i, j in combinations(actor[b].nonzero().squeeze(1).tolist(), 2):
                apart = (position[b, i, world] - position[b, j, world]).double().numpy()
                finer = np.linspace(0.0, 1.0, 4001)[:, None, None] if between else np.zeros((1, 1, 1))
                if np.linalg.norm(apart[:-1] * (1 - finer) + apart[1:] * finer, axis=-1).min() < 0.2 or (
                    np.linalg.norm(apart[-1]) < 0.2
                ):
                    expected |= {i, j}
            assert set(found[b, :, world].nonzero().squeeze(1).tolist()) == expected
    assert 0.05 < found.float().mean() < 0.95


# accumulation ------------------------------------------------------------------------------------------------------


def test_crowd_metrics_are_means_over_agents() -> None:
    forecast, target, valid = ragged()
    metrics = CrowdMetrics(20)
    for rows in (slice(0, 2), slice(2, 5)):
        part = replace(forecast, position=forecast.position[rows], logit=forecast.logit[rows])
        metrics.update(part, Truth(target[rows], valid[rows]))
    table, actor = metrics.compute(), valid[..., -1]
    assert (table["num_windows"], table["num_trajectories"]) == (4, int(actor.sum()))
    for k in (1, 20):
        values, counts = separate_minima(forecast, target, valid, k)
        for name in SEPARATE_NAMES[: 2 if k == 1 else 3]:
            assert table[f"{name}_{k}"] == pytest.approx(values[name][counts].double().mean().item(), rel=1e-6)
    values, _ = joint_minima(forecast, target, valid, 20)
    for name in JOINT_NAMES:  # every agent has the value of its scene
        every = torch.cat([values[name][b].repeat(int(actor[b].sum())) for b in range(5)])
        assert table[f"{name}_20"] == pytest.approx(every.double().mean().item(), rel=1e-6)
    hits = collided(forecast.position, actor, 0.2, between_steps=True)
    assert table["collision_rate_20"] == pytest.approx(hits[actor].double().mean().item())
    assert len(table) == 2 + 2 + 3 + 3 + 1


def test_multi_world_metrics_are_means_over_scenes() -> None:
    marginal, target, valid = ragged()
    metrics = MultiWorldMetrics(6)
    metrics.update(marginal, batch(target, valid))
    assert metrics.compute() == {}
    forecast = replace(marginal, logit=marginal.logit[:, 0])
    metrics.update(forecast, batch(target, valid))
    table, (values, counts) = metrics.compute(), multi_world(forecast, target, valid, 6)
    assert table["num_scenes"] == 4
    for name in MULTI_WORLD_NAMES:
        assert table[f"{name}6"] == pytest.approx(values[name][counts].double().mean().item(), rel=1e-6)
    metrics.reset()
    assert metrics.compute() == {}
