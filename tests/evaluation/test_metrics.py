"""Metrics of agents and worlds against av2, closed forms and brute force; means over batches."""

import math
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.tensors import draw
from torch import Tensor
from torchmetrics import Metric

from trajformer.data.batch import Truth
from trajformer.data.forecast import Forecast
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.collection import METRICS, forecast_metrics
from trajformer.evaluation.metrics.displacement import (
    NAMES,
    Errors,
    agent_errors,
    best_end,
    displacement,
    futures_covered,
    separate_minima,
)
from trajformer.evaluation.metrics.joint import (
    collisions,
    multi_world,
    multi_world_of_joint,
    world_errors,
)

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
MINIMA = ("ADE", "FDE", "FDE_at_best_ADE")


def make(
    scenes: int = 5, agents: int = 4, modes: int = 6, steps: int = 30
) -> tuple[Forecast, Tensor, Tensor]:
    """Random walks with forecasts near the truth: some modes miss, others hit."""
    target = draw(scenes, agents, steps, 2).cumsum(2)
    position = target[:, :, None] + 0.5 * draw(scenes, agents, modes, steps, 2, seed=1).cumsum(3)
    forecast = Forecast(position, draw(scenes, agents, modes, seed=2), Frame.SCENE)
    return forecast, target, torch.ones(target.shape[:-1], dtype=torch.bool)


def ragged(modes: int = 7) -> tuple[Forecast, Tensor, Tensor]:
    """Agents with gaps, an agent without an end, one without any valid step, and a scene without actors."""
    forecast, target, valid = make(modes=modes, steps=9)
    valid[0, 0, [1, 4]] = False
    valid[0, 2, -1] = False
    valid[1, 1] = False
    valid[2, :, -1] = False
    return forecast, torch.where(valid[..., None], target, torch.tensor(1e4)), valid


def batch(target: Tensor, valid: Tensor) -> Any:
    """The part of a batch that the metrics use."""
    return SimpleNamespace(truth=Truth(target, valid))


def plain(values: dict[str, Tensor], *index: int) -> dict[str, float]:
    return {name: value[index].item() for name, value in values.items()}


@pytest.mark.parametrize("k", [1, 3, 6, 20])
def test_equals_argoverse_2(k: int) -> None:
    av2 = pytest.importorskip("av2.datasets.motion_forecasting.eval.metrics")
    forecast, target, valid = make()
    values = best_end(agent_errors(forecast, target, valid).most_probable(k))
    probability = forecast.probability().double().numpy()
    for index in np.ndindex(5, 4):
        top = np.argsort(-probability[index], kind="stable")[:k]
        modes, truth = (
            forecast.position[index].double().numpy()[top],
            target[index].double().numpy(),
        )
        fde = av2.compute_fde(modes, truth)
        best = int(fde.argmin())
        expected = {
            "minADE": av2.compute_ade(modes, truth)[best],
            "minFDE": fde[best],
            "MR": float(av2.compute_is_missed_prediction(modes, truth, miss_threshold_m=2.0)[best]),
            "brier_minFDE": av2.compute_brier_fde(modes, truth, probability[index][top])[best],
            "probability": probability[index][top][best],
        }
        assert plain(values, *index) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert 0 < values["MR"].sum() < values["MR"].numel()


def test_a_miss_is_beyond_two_metres_and_equally_probable_modes_keep_their_order() -> None:
    fde = torch.tensor([2.01, 2.0, 0.0])
    errors = Errors(fde, fde, torch.full((3,), 1 / 3), torch.arange(3))
    assert [best_end(errors.most_probable(k))["MR"].item() for k in (1, 2)] == [1.0, 0.0]
    assert errors.most_probable(2).mode.tolist() == [0, 1]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_forecast_that_is_not_finite_is_never_a_hit(value: float) -> None:
    """One mode of one agent is not finite, so that the joint mode is not either; all other modes are exact."""
    _, target, valid = make(modes=6)
    position = target[:, :, None].repeat(1, 1, 6, 1, 1)
    position[0, 1, :, -1] = value
    forecast = Forecast(position, torch.zeros(5, 6), Frame.SCENE)
    agents, worlds = (
        displacement(forecast, batch(target, valid))[0],
        multi_world(forecast, target, valid)[0],
    )
    expected = torch.zeros(5, 4)
    expected[0, 1] = 1
    assert all(torch.equal(agents[f"MR{k}"], expected) for k in (1, 6))
    assert torch.equal(worlds["actorMR"], expected.mean(1)) and worlds["actorCR"][0] >= (
        0.25 if math.isnan(value) else 0.0
    )
    covered, _ = futures_covered(forecast, target[:, :, None], valid[:, :, None], 6)
    assert torch.equal(covered[..., 0], expected == 0)


def test_unknown_steps_agents_and_padding_have_no_influence() -> None:
    forecast, target, valid = make()
    valid[0, 0, -1], valid[1, 1], valid[2, 2, :10], valid[:, 3] = False, False, False, False
    values, counts = displacement(forecast, batch(target, valid))
    assert (~counts).nonzero().tolist() == [[0, 0], [0, 3], [1, 1], [1, 3], [2, 3], [3, 3], [4, 3]]
    error = (forecast.position[2, 2] - target[2, 2]).norm(dim=-1)
    assert values["minADE6"][2, 2].item() == pytest.approx(
        error[error[:, -1].argmin(), 10:].mean().item(), rel=1e-5
    )
    again, _ = displacement(
        forecast, batch(torch.where(valid[..., None], target, torch.tensor(1e6)), valid)
    )
    assert all(torch.equal(again[name][counts], values[name][counts]) for name in values)


@pytest.mark.parametrize("k", [1, 4, 7, 20])
@pytest.mark.parametrize("joint", [True, False])
def test_separate_minima_of_agents_and_worlds_by_brute_force(k: int, joint: bool) -> None:
    forecast, target, valid = ragged()
    forecast = replace(forecast, logit=forecast.logit[:, 3]) if joint else forecast
    log_p = forecast.probability().log()
    agents = separate_minima(agent_errors(forecast, target, valid).most_probable(k))
    worlds = separate_minima(world_errors(forecast, target, valid).most_probable(k))

    def minima(rows: list[tuple[float, float]], score: Tensor) -> Any:
        rows = [rows[mode] for mode in sorted(range(7), key=lambda mode: -score[mode].item())[:k]]
        return pytest.approx(
            [min(r[0] for r in rows), min(r[1] for r in rows), min(rows)[1]], rel=1e-5
        )

    for b in (0, 1, 3, 4):
        actors, each = valid[b, :, -1].nonzero().squeeze(1).tolist(), []
        for a in actors:
            off = (forecast.position[b, a] - target[b, a]).norm(dim=-1)[:, valid[b, a]].tolist()
            each.append([(sum(row) / len(row), row[-1]) for row in off])
            assert [agents[name][b, a].item() for name in MINIMA] == minima(each[-1], log_p[b, a])
        means = [tuple(np.mean(row, 0).tolist()) for row in zip(*each, strict=True)]
        score = log_p[b, 0] if joint else log_p[b, actors].sum(0)
        assert [worlds[name][b].item() for name in MINIMA] == minima(means, score)


def test_worlds_equal_argoverse_2() -> None:
    av2 = pytest.importorskip("av2.datasets.motion_forecasting.eval.metrics")
    forecast, target, valid = make(scenes=6, agents=5, modes=6, steps=12)
    apart = 4 * draw(6, 5, 1, 2, seed=8)  # some collide, some do not
    joint = replace(
        forecast, position=forecast.position * 0.4 + apart[:, :, None], logit=forecast.logit[:, 0]
    )
    target = target * 0.4 + apart
    probability = joint.logit.softmax(-1).double().numpy()
    values, counts = multi_world(joint, target, valid)
    errors, hits = (
        world_errors(joint, target, valid),
        collisions(joint.position, valid[..., -1], 1.0),
    )
    assert counts.all() and 0 < hits.sum() < hits.numel() and 0 < values["actorMR"].mean() < 1
    for b in range(6):
        modes, truth = joint.position[b].double().numpy(), target[b].double().numpy()
        world_fde = av2.compute_world_fde(modes, truth)
        np.testing.assert_allclose(errors.fde[b], world_fde, rtol=1e-5)
        np.testing.assert_allclose(errors.ade[b], av2.compute_world_ade(modes, truth), rtol=1e-5)
        np.testing.assert_array_equal(hits[b], av2.compute_world_collisions(modes, 1.0))
        best = int(world_fde.argmin())
        expected = {
            "avgMinFDE": world_fde[best],
            "avgMinADE": av2.compute_world_ade(modes, truth)[best],
            "actorMR": av2.compute_world_misses(modes, truth, 2.0)[:, best].mean(),
            "actorCR": av2.compute_world_collisions(modes, 1.0)[:, best].mean(),
            "avgBrierMinFDE": av2.compute_world_brier_fde(modes, truth, probability[b])[best],
        }
        assert plain(values, b) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_errors_of_worlds_are_not_rounded_in_half_precision() -> None:
    """Validation runs under autocast, where a matrix product would round 30 m to 25 cm."""
    forecast = Forecast(30 * draw(2, 3, 4, 5, 2), draw(2, 4, seed=1), Frame.SCENE)
    target, valid = draw(2, 3, 5, 2, seed=2), torch.ones(2, 3, 5, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        errors = world_errors(forecast, target, valid)
    error = (forecast.position - target[:, :, None]).norm(dim=-1)
    torch.testing.assert_close(
        (errors.ade, errors.fde), (error.mean((1, 3)), error[..., -1].mean(1))
    )


@pytest.mark.parametrize("between", [False, True])
def test_collisions_by_brute_force(between: bool) -> None:
    position = 0.4 * draw(3, 6, 5, 8, 2).cumsum(3) + draw(3, 6, 1, 1, 2, seed=9)
    actor = torch.rand(3, 6, generator=torch.Generator().manual_seed(3)) > 0.2
    hits = collisions(position, actor, 0.2, between_steps=between)
    shares = np.linspace(0.0, 1.0, 4001 if between else 2)[:, None, None]
    for b, world in np.ndindex(3, 5):
        expected = set()
        for i, j in combinations(actor[b].nonzero().squeeze(1).tolist(), 2):
            apart = (position[b, i, world] - position[b, j, world]).double().numpy()
            if np.linalg.norm(apart[:-1] * (1 - shares) + apart[1:] * shares, axis=-1).min() < 0.2:
                expected |= {i, j}
        assert set(hits[b, :, world].nonzero().squeeze(1).tolist()) == expected
    assert 0.05 < hits.float().mean() < 0.95


@pytest.mark.parametrize("modes", [6, 20])
@pytest.mark.parametrize("joint", [False, True])
def test_metrics_are_means_over_all_entries_that_count(modes: int, joint: bool) -> None:
    forecast, target, valid = ragged(modes)
    forecast = replace(forecast, logit=forecast.logit[:, 0]) if joint else forecast
    names = {f"{name}{k}" for name in NAMES for k in (1, 6, 20) if k <= max(modes, 6)} | {"minFDE"}
    worlds = {
        f"{name}6" for name in ("avgMinFDE", "avgMinADE", "actorMR", "actorCR", "avgBrierMinFDE")
    }
    agents = ("displacement", displacement, "num_agents", 14, names)
    scenes = ("multi_world", multi_world_of_joint, "num_scenes", 4, worlds)
    for kind, function, count, number, expected_names in (agents, scenes):
        metric = METRICS[kind]()
        metric.update(forecast, batch(target, torch.zeros_like(valid)))
        if kind == "multi_world" and not joint:
            assert metric.compute() == {}
            continue
        empty = metric.compute()
        assert empty.pop(count) == 0
        assert empty.keys() == expected_names
        assert all(math.isnan(value) for value in empty.values())
        for part in (slice(0, 1), slice(1, 4), slice(4, 5)):
            some = replace(forecast, position=forecast.position[part], logit=forecast.logit[part])
            metric.update(some, batch(target[part], valid[part]))
        values, counts = function(forecast, batch(target, valid))
        expected = {name: values[name][counts].double().mean().item() for name in expected_names}
        assert metric.compute() == pytest.approx({count: number} | expected, rel=1e-6)
        metric.reset()
        assert metric.compute() == {}


def test_metrics_with_equal_names_keep_the_names_of_all_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Other(Metric):
        name, full_state_update = "num_agents", False

        def update(self, forecast: Forecast, batch: object) -> None: ...

        def compute(self) -> dict[str, float]:
            return {self.name: 3, "mine": 1.0}

    monkeypatch.setitem(METRICS, "other", Other)
    assert forecast_metrics().compute() == {"num_agents": 3, "mine": 1.0}
    monkeypatch.setattr(Other, "name", "mine2")
    monkeypatch.setitem(METRICS, "third", Other)
    with pytest.raises(
        TrajformerError, match="metric third: another metric has a figure of the name mine2"
    ):
        forecast_metrics().compute()
