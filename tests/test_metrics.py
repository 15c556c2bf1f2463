"""Displacement metrics against Argoverse 2's own functions and by hand; accumulation over batches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from trajformer.forecast import Forecast
from trajformer.geometry import from_frame, to_frame
from trajformer.metrics.accumulate import DisplacementMetrics
from trajformer.metrics.displacement import NAMES, displacement
from trajformer.sample import Frame

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(scenes: int = 5, agents: int = 4, modes: int = 6, steps: int = 30) -> tuple[Forecast, Tensor, Tensor]:
    """Random walks, the forecasts around the truth, so that some miss and some do not."""
    target = draw(scenes, agents, steps, 2).cumsum(2)
    position = target[:, :, None] + draw(scenes, agents, modes, steps, 2, seed=1, scale=0.5).cumsum(3)
    forecast = Forecast(position, draw(scenes, agents, modes, seed=2), Frame.SCENE)
    return forecast, target, torch.ones(target.shape[:-1], dtype=torch.bool)


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
    # Mode 0 is better on average, mode 1 at the end: Argoverse 2 takes everything at the best end point.
    forecast = one([[[0.0, 0.0], [3.0, 4.0]], [[6.0, 0.0], [0.0, 2.0]]], [math.log(3.0), 0.0])
    target, valid = torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, dtype=torch.bool)
    values, counts = displacement(forecast, target, valid, 2)
    expected = {"minADE": 4.0, "minFDE": 2.0, "MR": 0.0, "brier_minFDE": 2.0 + 0.75**2}
    assert {name: value.item() for name, value in values.items()} == pytest.approx(expected)
    assert counts.tolist() == [[True]]
    values, _ = displacement(forecast, target, valid, 1)
    expected = {"minADE": 2.5, "minFDE": 5.0, "MR": 1.0, "brier_minFDE": 5.0 + 0.25**2}
    assert {name: value.item() for name, value in values.items()} == pytest.approx(expected)


@pytest.mark.parametrize(("error", "threshold", "miss"), [(2.0, 2.0, 0.0), (2.01, 2.0, 1.0), (2.01, 3.0, 0.0), (0.0, 2.0, 0.0)])
def test_a_miss_is_beyond_the_threshold(error: float, threshold: float, miss: float) -> None:
    valid = torch.ones(1, 1, 1, dtype=torch.bool)
    values, _ = displacement(one([[[error, 0.0]]], [0.0]), torch.zeros(1, 1, 1, 2), valid, 1, miss_threshold_m=threshold)
    assert values["MR"].item() == miss


def test_fewer_modes_than_k_all_count() -> None:
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
    whole.update(forecast, target, valid)
    for rows in (slice(0, 1), slice(1, 4), slice(4, 5)):
        part = replace(forecast, position=forecast.position[rows], logit=forecast.logit[rows])
        parts.update(part, target[rows], valid[rows])
    table = whole.compute()
    assert_table(parts.compute(), table)
    assert table["num_agents"] == 19
    for k in (1, 6):
        values, counts = displacement(forecast, target, valid, k)
        for name in NAMES:
            assert table[f"{name}_{k}"] == pytest.approx(values[name][counts].double().mean().item(), rel=1e-6)


def test_padding_targets_do_not_count() -> None:
    forecast, target, valid = make()
    pad = (0, 0, 0, 0, 0, 2)
    wide = replace(
        forecast,
        position=torch.nn.functional.pad(forecast.position, (0, 0, *pad), value=7.0),
        logit=torch.nn.functional.pad(forecast.logit, (0, 0, 0, 2)),
    )
    plain, padded = DisplacementMetrics(), DisplacementMetrics()
    plain.update(forecast, target, valid)
    padded.update(wide, torch.nn.functional.pad(target, pad), torch.nn.functional.pad(valid, (0, 0, 0, 2)))
    assert wide.position.shape[1] == 6
    assert_table(padded.compute(), plain.compute())


def test_nothing_gives_nan_and_reset_begins_anew() -> None:
    metrics = DisplacementMetrics((1, 6))
    empty = metrics.compute()
    assert empty.pop("num_agents") == 0
    assert len(empty) == 8 and all(math.isnan(value) for value in empty.values())
    forecast, target, valid = make()
    metrics.update(forecast, target, valid)
    first = metrics.compute()
    metrics.reset()
    metrics.update(forecast, target, torch.zeros_like(valid))
    assert math.isnan(metrics.compute()["minFDE_6"])
    metrics.update(forecast, target, valid)
    assert_table(metrics.compute(), first)
