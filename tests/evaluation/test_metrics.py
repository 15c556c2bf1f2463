"""Metrics of agents and worlds against av2, closed forms and brute force; means over batches."""

import math
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.tensors import draw, draw_mask
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
    Metrics,
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
    error = 0.5 * draw(scenes, agents, modes, steps, 2, seed=1).cumsum(3)
    position = target[:, :, None] + error
    forecast = Forecast(position, draw(scenes, agents, modes, seed=2), Frame.SCENE)
    return forecast, target, torch.ones(target.shape[:-1], dtype=torch.bool)


def ragged(modes: int = 7) -> tuple[Forecast, Tensor, Tensor]:
    """Agents with missing steps; targets at missing steps are far away."""
    forecast, target, valid = make(modes=modes, steps=9)
    valid[0, 0, [1, 4]] = False  # gaps
    valid[0, 2, -1] = False  # no end
    valid[1, 1] = False  # no step
    valid[2, :, -1] = False  # a scene without actors
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
        modes = forecast.position[index].double().numpy()[top]
        truth = target[index].double().numpy()
        top_probability = probability[index][top]
        fde = av2.compute_fde(modes, truth)
        missed = av2.compute_is_missed_prediction(modes, truth, miss_threshold_m=2.0)
        best = int(fde.argmin())
        expected = {
            "minADE": av2.compute_ade(modes, truth)[best],
            "minFDE": fde[best],
            "MR": float(missed[best]),
            "brier_minFDE": av2.compute_brier_fde(modes, truth, top_probability)[best],
            "probability": top_probability[best],
        }
        assert plain(values, *index) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    assert 0 < values["MR"].mean() < 1


def test_a_miss_is_beyond_two_metres_and_equally_probable_modes_keep_their_order() -> None:
    fde = torch.tensor([2.01, 2.0, 0.0])
    errors = Errors(ade=fde, fde=fde, probability=torch.full((3,), 1 / 3), mode=torch.arange(3))
    first = errors.most_probable(1)
    first_two = errors.most_probable(2)
    assert best_end(first)["MR"] == 1.0
    assert best_end(first_two)["MR"] == 0.0
    assert first_two.mode.tolist() == [0, 1]


def lines(ends: list[float], logits: list[float], steps: int = 2) -> Forecast:
    """One agent whose modes go straight along x from 0 m to these ends."""
    x = torch.linspace(0.0, 1.0, steps) * torch.tensor(ends)[:, None]
    position = torch.stack([x, torch.zeros_like(x)], -1)
    return Forecast(position[None, None], torch.tensor([[logits]]), Frame.SCENE)


def test_the_errors_of_an_agent_with_one_known_step_are_those_of_this_step() -> None:
    forecast = lines([3.0, 4.0], [0.0, 0.0])
    valid = torch.tensor([[[False, True]]])
    errors = agent_errors(forecast, torch.zeros(1, 1, 2, 2), valid)
    assert errors.ade.tolist() == [[[3.0, 4.0]]]
    assert errors.fde.tolist() == [[[3.0, 4.0]]]


def test_only_the_most_probable_modes_count() -> None:
    """The mode of the smallest error is the least probable of seven."""
    forecast = lines([7.0, 6.0, 5.0, 4.0, 3.0, 2.5, 0.0], [0.0, 5.0, 4.0, 3.0, 2.0, 1.0, -1.0])
    target, valid = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, dtype=torch.bool)
    metrics, _ = displacement(forecast, batch(target, valid))
    assert metrics["minFDE"].item() == 0.0
    assert metrics["minFDE6"].item() == 2.5
    assert metrics["minFDE1"].item() == 6.0
    joint = replace(forecast, logit=forecast.logit[:, 0])
    for k, expected in ((1, 6.0), (6, 2.5), (7, 0.0)):
        worlds, _ = multi_world(joint, target, valid, k)
        assert worlds["avgMinFDE"].item() == expected


def test_futures_that_the_most_probable_modes_cover() -> None:
    """Ends of modes are 0, 10 and 20 m; the last one is the least probable."""
    forecast = lines([20.0, 0.0, 10.0], [0.0, 2.0, 1.0], steps=3)
    ends = torch.tensor([2.0, 2.01, 12.0, 20.0, 0.0])  # up to 2 m is covered
    target = torch.zeros(1, 1, 5, 3, 2)
    target[0, 0, :, -1, 0] = ends
    valid = torch.ones(1, 1, 5, 3, dtype=torch.bool)
    valid[0, 0, 4, -1] = False
    covered, known = futures_covered(forecast, target, valid, 2)
    assert covered[0, 0, :4].tolist() == [True, False, True, False]
    assert known[0, 0].tolist() == [True, True, True, True, False]
    all_modes, _ = futures_covered(forecast, target, valid, 3)
    assert all_modes[0, 0, :4].tolist() == [True, False, True, True]


@pytest.mark.parametrize(("end", "rate"), [(2.0, 0.0), (2.01, 1.0)])
def test_the_miss_rate_of_a_scene_with_one_actor(end: float, rate: float) -> None:
    forecast = lines([end], [0.0])
    joint = replace(forecast, logit=forecast.logit[:, 0])
    valid = torch.ones(1, 1, 2, dtype=torch.bool)
    worlds, counts = multi_world(joint, torch.zeros(1, 1, 2, 2), valid)
    assert worlds["actorMR"].item() == rate
    assert worlds["avgMinFDE"].item() == pytest.approx(end)
    assert counts.tolist() == [True]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_forecast_that_is_not_finite_is_never_a_hit(value: float) -> None:
    """All modes of one agent are not finite at the end; all other agents are exact."""
    _, target, valid = make(modes=6)
    position = target[:, :, None].repeat(1, 1, 6, 1, 1)
    position[0, 1, :, -1] = value
    forecast = Forecast(position, torch.zeros(5, 6), Frame.SCENE)
    missed = torch.zeros(5, 4)
    missed[0, 1] = 1

    agents, _ = displacement(forecast, batch(target, valid))
    assert torch.equal(agents["MR1"], missed)
    assert torch.equal(agents["MR6"], missed)

    worlds, _ = multi_world(forecast, target, valid)
    assert torch.equal(worlds["actorMR"], missed.mean(1))
    if math.isnan(value):
        assert worlds["actorCR"][0] >= 0.25, "NaN counts as a collision"

    covered, _ = futures_covered(forecast, target[:, :, None], valid[:, :, None], 6)
    assert torch.equal(covered[..., 0], missed == 0)


def test_unknown_steps_agents_and_padding_have_no_influence() -> None:
    forecast, target, valid = make()
    valid[0, 0, -1] = False  # no end
    valid[1, 1] = False  # no step
    valid[2, 2, :10] = False  # a late start
    valid[:, 3] = False  # padding
    values, counts = displacement(forecast, batch(target, valid))
    assert (~counts).nonzero().tolist() == [[0, 0], [0, 3], [1, 1], [1, 3], [2, 3], [3, 3], [4, 3]]

    error = (forecast.position[2, 2] - target[2, 2]).norm(dim=-1)
    best = error[:, -1].argmin()
    ade_of_late_start = error[best, 10:].mean().item()
    assert values["minADE6"][2, 2].item() == pytest.approx(ade_of_late_start, rel=1e-5)

    other_target = torch.where(valid[..., None], target, torch.tensor(1e6))
    other_values, _ = displacement(forecast, batch(other_target, valid))
    for name, value in values.items():
        assert torch.equal(other_values[name][counts], value[counts]), name


def expected_minima(errors: np.ndarray, score: Tensor, k: int) -> Any:
    """The smallest ADE, the smallest FDE and the FDE at the best ADE of the k most probable modes.

    `errors` are ADE and FDE [K, 2] of the modes, `score` is a log probability [K].
    """
    order = sorted(range(len(errors)), key=lambda mode: -score[mode].item())
    ade, fde = errors[order[:k]].T
    return pytest.approx([ade.min(), fde.min(), fde[ade.argmin()]], rel=1e-5)


@pytest.mark.parametrize("k", [1, 4, 7, 20])
@pytest.mark.parametrize("joint", [True, False])
def test_separate_minima_of_agents_and_worlds_by_brute_force(k: int, joint: bool) -> None:
    forecast, target, valid = ragged()
    if joint:
        forecast = replace(forecast, logit=forecast.logit[:, 3])
    log_probability = forecast.probability().log()
    agents = separate_minima(agent_errors(forecast, target, valid).most_probable(k))
    worlds = separate_minima(world_errors(forecast, target, valid).most_probable(k))
    scenes_with_actors = (0, 1, 3, 4)
    for b in scenes_with_actors:
        actors = valid[b, :, -1].nonzero().squeeze(1).tolist()
        errors = []
        for a in actors:
            distance = (forecast.position[b, a] - target[b, a]).norm(dim=-1)[:, valid[b, a]]
            errors_of_agent = torch.stack([distance.mean(1), distance[:, -1]], -1).numpy()
            errors.append(errors_of_agent)
            minima = [agents[name][b, a].item() for name in MINIMA]
            assert minima == expected_minima(errors_of_agent, log_probability[b, a], k)
        score = log_probability[b, 0] if joint else log_probability[b, actors].sum(0)
        minima = [worlds[name][b].item() for name in MINIMA]
        assert minima == expected_minima(np.mean(errors, 0), score, k)


def test_worlds_equal_argoverse_2() -> None:
    av2 = pytest.importorskip("av2.datasets.motion_forecasting.eval.metrics")
    forecast, target, valid = make(scenes=6, agents=5, modes=6, steps=12)
    apart = 4 * draw(6, 5, 1, 2, seed=8)  # some collide, some do not
    position = forecast.position * 0.4 + apart[:, :, None]
    joint = replace(forecast, position=position, logit=forecast.logit[:, 0])
    target = target * 0.4 + apart
    probability = joint.logit.softmax(-1).double().numpy()
    values, counts = multi_world(joint, target, valid)
    errors = world_errors(joint, target, valid)
    hits = collisions(joint.position, valid[..., -1], 1.0)
    assert counts.all()
    assert 0 < hits.double().mean() < 1
    assert 0 < values["actorMR"].mean() < 1
    for b in range(6):
        modes = joint.position[b].double().numpy()
        truth = target[b].double().numpy()
        world_ade = av2.compute_world_ade(modes, truth)
        world_fde = av2.compute_world_fde(modes, truth)
        world_hits = av2.compute_world_collisions(modes, 1.0)
        np.testing.assert_allclose(errors.ade[b], world_ade, rtol=1e-5)
        np.testing.assert_allclose(errors.fde[b], world_fde, rtol=1e-5)
        np.testing.assert_array_equal(hits[b], world_hits)

        misses = av2.compute_world_misses(modes, truth, 2.0)
        brier_fde = av2.compute_world_brier_fde(modes, truth, probability[b])
        best = int(world_fde.argmin())
        expected = {
            "avgMinFDE": world_fde[best],
            "avgMinADE": world_ade[best],
            "actorMR": misses[:, best].mean(),
            "actorCR": world_hits[:, best].mean(),
            "avgBrierMinFDE": brier_fde[best],
        }
        assert plain(values, b) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_errors_of_worlds_are_not_rounded_in_half_precision() -> None:
    """Validation runs under autocast, where a matrix product would round 30 m to 25 cm."""
    forecast = Forecast(30 * draw(2, 3, 4, 5, 2), draw(2, 4, seed=1), Frame.SCENE)
    target = draw(2, 3, 5, 2, seed=2)
    valid = torch.ones(2, 3, 5, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        errors = world_errors(forecast, target, valid)
    error = (forecast.position - target[:, :, None]).norm(dim=-1)
    torch.testing.assert_close(errors.ade, error.mean((1, 3)))
    torch.testing.assert_close(errors.fde, error[..., -1].mean(1))


@pytest.mark.parametrize("between", [False, True])
def test_collisions_by_brute_force(between: bool) -> None:
    position = 0.4 * draw(3, 6, 5, 8, 2).cumsum(3) + draw(3, 6, 1, 1, 2, seed=9)
    actor = draw_mask(3, 6, share=0.8)
    hits = collisions(position, actor, 0.2, between_steps=between)
    points = 4001 if between else 2  # of each step
    fraction = np.linspace(0.0, 1.0, points)[:, None, None]
    for b, world in np.ndindex(3, 5):
        colliding = set()
        actors = actor[b].nonzero().squeeze(1).tolist()
        for i, j in combinations(actors, 2):
            offset = (position[b, i, world] - position[b, j, world]).double().numpy()
            along = offset[:-1] * (1 - fraction) + offset[1:] * fraction
            if np.linalg.norm(along, axis=-1).min() < 0.2:
                colliding |= {i, j}
        assert set(hits[b, :, world].nonzero().squeeze(1).tolist()) == colliding
    assert 0.05 < hits.float().mean() < 0.95


def test_a_distance_equal_to_the_threshold_is_no_collision() -> None:
    position = torch.zeros(1, 2, 1, 3, 2)
    position[0, 1, 0, :, 0] = torch.tensor([3.0, 1.0, 2.0])
    actor = torch.ones(1, 2, dtype=torch.bool)
    assert not collisions(position, actor, 1.0).any()
    assert collisions(position, actor, 1.01).all()


def test_two_agents_that_pass_each_other_between_two_steps_collide() -> None:
    position = torch.zeros(1, 2, 1, 2, 2)
    position[0, 0, 0, :, 0] = torch.tensor([-1.0, 1.0])
    position[0, 1, 0, :, 0] = torch.tensor([1.0, -1.0])
    actor = torch.ones(1, 2, dtype=torch.bool)
    assert not collisions(position, actor, 0.2).any()
    assert collisions(position, actor, 0.2, between_steps=True).all()


def updated(name: str, forecast: Forecast, target: Tensor, valid: Tensor) -> Metric:
    """A metric after five scenes in three batches of different sizes."""
    metric = METRICS[name]()
    for part in (slice(0, 1), slice(1, 4), slice(4, 5)):
        some = replace(forecast, position=forecast.position[part], logit=forecast.logit[part])
        metric.update(some, batch(target[part], valid[part]))
    return metric


def means(metrics: Metrics, names: set[str]) -> Any:
    values, counts = metrics
    by_name = {name: values[name][counts].double().mean().item() for name in names}
    return pytest.approx(by_name, rel=1e-6)


AGENT_METRICS = {f"{name}{k}" for name in NAMES for k in (1, 6)} | {"minFDE"}
AGENT_METRICS_OF_20 = AGENT_METRICS | {f"{name}20" for name in NAMES}
WORLD_METRICS = {"avgMinFDE6", "avgMinADE6", "actorMR6", "actorCR6", "avgBrierMinFDE6"}


@pytest.mark.parametrize(("modes", "names"), [(6, AGENT_METRICS), (20, AGENT_METRICS_OF_20)])
def test_metrics_of_agents_are_means_over_the_agents_of_all_batches(
    modes: int, names: set[str]
) -> None:
    forecast, target, valid = ragged(modes)
    metric = updated("displacement", forecast, target, valid)
    metrics = metric.compute()
    assert metrics.pop("num_agents") == 14
    assert metrics.keys() == names
    assert metrics == means(displacement(forecast, batch(target, valid)), names)

    metric.reset()
    assert metric.compute() == {}


def test_metrics_of_worlds_are_means_over_the_scenes_of_all_batches() -> None:
    forecast, target, valid = ragged(modes=6)
    joint = replace(forecast, logit=forecast.logit[:, 0])
    metrics = updated("multi_world", joint, target, valid).compute()
    assert metrics.pop("num_scenes") == 4
    assert metrics.keys() == WORLD_METRICS
    assert metrics == means(multi_world_of_joint(joint, batch(target, valid)), WORLD_METRICS)


def test_marginal_forecasts_have_no_metrics_of_worlds() -> None:
    assert updated("multi_world", *ragged(modes=6)).compute() == {}


@pytest.mark.parametrize(
    ("name", "count"), [("displacement", "num_agents"), ("multi_world", "num_scenes")]
)
def test_metrics_are_nan_if_no_agent_counts(name: str, count: str) -> None:
    forecast, target, valid = ragged(modes=6)
    joint = replace(forecast, logit=forecast.logit[:, 0])
    metrics = updated(name, joint, target, torch.zeros_like(valid)).compute()
    assert metrics.pop(count) == 0
    assert metrics
    assert all(math.isnan(value) for value in metrics.values())


def test_metrics_with_equal_names_keep_the_names_of_all_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Other(Metric):
        name = "num_agents"
        full_state_update = False

        def update(self, forecast: Forecast, batch: object) -> None: ...

        def compute(self) -> dict[str, float]:
            return {self.name: 3, "mine": 1.0}

    monkeypatch.setitem(METRICS, "other", Other)
    assert forecast_metrics().compute() == {"num_agents": 3, "mine": 1.0}
    monkeypatch.setattr(Other, "name", "mine2")
    monkeypatch.setitem(METRICS, "third", Other)
    with pytest.raises(
        TrajformerError, match="metric third: another metric has a value named mine2"
    ):
        forecast_metrics().compute()
