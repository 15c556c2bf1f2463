"""Forecast: probabilities, frames, choosing modes, and end-point suppression against a plain greedy reference."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.scenes import make_scene
from torch import Tensor

from trajformer.data.batch import collate
from trajformer.data.forecast import Forecast, consensus, endpoint_nms
from trajformer.data.sample import BatchConfig, Frame
from trajformer.scenes.geometry import to_frame


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make(modes: int = 6, scale: bool = False) -> Forecast:
    position = draw(2, 3, modes, 5, 2)
    return Forecast(position, draw(2, 3, modes, seed=1), Frame.SCENE, scale=draw(2, 3, modes, 5, 2, seed=2) if scale else None)


def ends(x: list[float], probability: list[float]) -> Forecast:
    """One agent whose modes end at these places on the x axis."""
    position = torch.zeros(1, 1, len(x), 3, 2)
    position[0, 0, :, -1, 0] = torch.tensor(x)
    return Forecast(position, torch.tensor(probability).log()[None, None], Frame.SCENE)


def chosen(forecast: Forecast) -> list[float]:
    return forecast.position[0, 0, :, -1, 0].tolist()


def test_marginal_probability() -> None:
    forecast = Forecast(torch.zeros(1, 2, 3, 4, 2), torch.tensor([[[0.0, math.log(2.0), 0.0], [5.0, 5.0, 5.0]]]), Frame.SCENE)
    assert not forecast.is_joint and forecast.num_modes == 3
    torch.testing.assert_close(forecast.probability(), torch.tensor([[[0.25, 0.5, 0.25], [1 / 3] * 3]]))


def test_joint_probability_is_repeated_for_every_agent() -> None:
    forecast = Forecast(torch.zeros(1, 4, 2, 5, 2), torch.tensor([[0.0, math.log(3.0)]]), Frame.SCENE)
    assert forecast.is_joint
    torch.testing.assert_close(forecast.probability(), torch.tensor([0.25, 0.75]).expand(1, 4, 2))


def test_probability_of_half_precision_logits_is_single_precision() -> None:
    forecast = Forecast(torch.zeros(1, 1, 3, 1, 2), torch.tensor([[[0.0, 9.0, -9.0]]], dtype=torch.bfloat16), Frame.SCENE)
    assert forecast.probability().dtype == torch.float32
    assert forecast.probability().sum().item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("frame", [Frame.SCENE, Frame.FOCAL])
def test_the_truth_comes_home_to_the_city(frame: Frame) -> None:
    scenes = [make_scene(seed=0), make_scene(5, seed=1)]
    batch = collate(scenes, BatchConfig(frame=frame))
    pose = batch.pose[:, : batch.num_targets]
    own = to_frame(batch.target, pose[:, :, None])
    logit = torch.zeros(2, 3, 1)
    local = Forecast(own[:, :, None], logit, Frame.AGENT, pose=pose)
    torch.testing.assert_close(local.in_batch_frame()[:, :, 0], batch.target, atol=1e-4, rtol=0)
    plain = Forecast(batch.target[:, :, None], logit, frame)
    assert plain.in_batch_frame() is plain.position
    for forecast in (local, plain):
        city = forecast.in_city_frame(batch)
        assert city.shape == (2, 3, 1, 12, 2) and city.dtype == np.float64
        for number, scene in enumerate(scenes):
            rows = [scene.agent_id.index(name) for name in batch.agent_id[number][:3]]
            np.testing.assert_allclose(city[number, :, 0], scene.position[rows, 10:] + scene.origin, atol=1e-4)


def test_city_frame_keeps_precision_far_from_its_origin() -> None:
    far = torch.tensor([[5e6, -4e6, 0.0]], dtype=torch.float64)
    batch = replace(collate([make_scene()]), frame_pose=far)
    forecast = Forecast(torch.full((1, 3, 1, 12, 2), 0.001, requires_grad=True), torch.zeros(1, 3, 1), Frame.SCENE)
    np.testing.assert_allclose(forecast.in_city_frame(batch) - far[0, :2].numpy(), 0.001, atol=1e-8)


def test_select_takes_modes_in_the_given_order() -> None:
    forecast = make(scale=True)
    index = torch.tensor([[[5, 0], [1, 2], [3, 3]], [[0, 1], [4, 2], [2, 5]]])
    few = forecast.select(index)
    assert few.num_modes == 2 and few.frame is Frame.SCENE and few.auxiliary == ()
    for b, s, k in np.ndindex(2, 3, 2):
        mode = index[b, s, k]
        assert torch.equal(few.position[b, s, k], forecast.position[b, s, mode])
        assert few.logit[b, s, k] == forecast.logit[b, s, mode]
        assert torch.equal(few.scale[b, s, k], forecast.scale[b, s, mode])


@pytest.mark.parametrize(
    ("x", "probability", "modes", "expected"),
    [
        ([0.0, 5.0, 9.0], [0.2, 0.5, 0.3], 3, [5.0, 9.0, 0.0]),  # ordered by probability
        ([0.0, 1.0, 9.0], [0.5, 0.3, 0.2], 2, [0.0, 9.0]),  # a near duplicate makes room
        ([0.0, 1.0, 9.0], [0.5, 0.3, 0.2], 3, [0.0, 9.0, 1.0]),  # and fills up at the end
        ([0.0, 1.5, 3.0], [0.3, 0.4, 0.2], 2, [1.5, 0.0]),  # the middle one suppresses both
        ([0.0, 1.5, 3.0], [0.5, 0.3, 0.2], 2, [0.0, 3.0]),  # the suppressed one suppresses nobody
        ([0.0, 2.0, 9.0], [0.5, 0.3, 0.2], 2, [0.0, 2.0]),  # exactly the radius apart is apart
        ([0.0, 0.1, 0.2, 0.3], [0.1, 0.2, 0.3, 0.4], 3, [0.3, 0.2, 0.1]),
        ([0.0, 5.0, 9.0, 14.0], [1 - 6e-12, 1e-12, 2e-12, 3e-12], 4, [0.0, 14.0, 9.0, 5.0]),  # tiny ones keep their order
        ([0.0, 1.0, 9.0, 1.1], [1 - 6e-12, 2e-12, 1e-12, 3e-12], 4, [0.0, 9.0, 1.1, 1.0]),
        ([0.0, 7.0], [0.5, 0.5], 1, [0.0]),  # the first of equals
    ],
)
def test_suppression_by_hand(x: list[float], probability: list[float], modes: int, expected: list[float]) -> None:
    assert chosen(endpoint_nms(ends(x, probability), modes, 2.0)) == pytest.approx(expected)


def greedy(end: np.ndarray, probability: np.ndarray, modes: int, radius: float) -> list[int]:
    """End-point suppression as one would say it."""
    order = np.argsort(-probability, kind="stable").tolist()
    kept: list[int] = []
    for mode in order:
        if all(math.dist(end[mode], end[other]) >= radius for other in kept):
            kept.append(mode)
    return [*kept, *(mode for mode in order if mode not in kept)][:modes]


@pytest.mark.parametrize(("count", "modes", "radius"), [(6, 6, 1.0), (12, 6, 1.5), (36, 6, 1.0), (10, 4, 0.0), (8, 8, 100.0)])
def test_suppression_equals_a_greedy_reference(count: int, modes: int, radius: float) -> None:
    forecast = Forecast(2 * draw(8, 5, count, 3, 2), 4 * draw(8, 5, count, seed=1), Frame.SCENE)
    result = endpoint_nms(forecast, modes, radius)
    assert result.position.shape == (8, 5, modes, 3, 2)
    for b, s in np.ndindex(8, 5):
        index = greedy(forecast.position[b, s, :, -1].numpy(), forecast.logit[b, s].numpy(), modes, radius)
        assert torch.equal(result.position[b, s], forecast.position[b, s, index])
        assert torch.equal(result.logit[b, s], forecast.logit[b, s, index])


def test_suppression_of_many_modes_is_exact_far_from_the_origin() -> None:
    """Beyond 25 points `cdist` takes a product of matrices, which at 4 km is a metre off."""
    forecast = Forecast(4096 + 4 * draw(8, 5, 30, 3, 2), 4 * draw(8, 5, 30, seed=1), Frame.SCENE)
    result = endpoint_nms(forecast, 6, 1.5)
    for b, s in np.ndindex(8, 5):
        index = greedy(forecast.position[b, s, :, -1].double().numpy(), forecast.logit[b, s].numpy(), 6, 1.5)
        assert torch.equal(result.position[b, s], forecast.position[b, s, index])


def test_gradients_pass_through_the_modes_that_stay() -> None:
    position = draw(1, 1, 4, 3, 2).requires_grad_()
    logit = torch.tensor([[[0.0, 3.0, 1.0, 2.0]]], requires_grad=True)
    result = endpoint_nms(Forecast(position, logit, Frame.SCENE), 2, 0.0)
    (result.position.sum() + result.logit.sum()).backward()
    assert logit.grad.tolist() == [[[0.0, 1.0, 0.0, 1.0]]]
    assert torch.equal(position.grad[0, 0].amax((-1, -2)), torch.tensor([0.0, 1.0, 0.0, 1.0]))


def test_consensus_prefers_the_mode_nearest_to_all_others() -> None:
    """Two modes side by side share 0.6 of the probability; the lonely one with 0.4 is a bad single guess."""
    end = torch.tensor([[0.0, 0.0], [10.0, 0.0], [10.5, 0.0]])
    position = end[None, None, :, None].expand(1, 1, 3, 4, 2).clone()
    forecast = Forecast(position, torch.tensor([[[0.4, 0.35, 0.25]]]).log(), Frame.SCENE)
    assert consensus(forecast, 0.0) is forecast
    out = consensus(forecast, 2.0)
    expected = torch.tensor([0.35 * 10 + 0.25 * 10.5, 0.4 * 10 + 0.25 * 0.5, 0.4 * 10.5 + 0.35 * 0.5])
    torch.testing.assert_close(out.probability()[0, 0], (-expected / 2.0).softmax(-1))
    assert forecast.probability().argmax() == 0 and out.probability().argmax() == 1
    assert out.position is forecast.position
