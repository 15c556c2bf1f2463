"""Forecast: probabilities, frames and selection of modes."""

import math

import numpy as np
import pytest
import torch
from support.scenes import make_scene
from support.tensors import draw, edit

from trajformer.data.batch import collate
from trajformer.data.forecast import Forecast
from trajformer.data.sample import BatchConfig, Frame
from trajformer.scenes.geometry import to_frame


def test_probability_is_marginal_or_repeated_for_every_agent() -> None:
    forecast = Forecast(torch.zeros(1, 2, 3, 4, 2), torch.tensor([[[0.0, math.log(2.0), 0.0], [5.0, 5.0, 5.0]]]), Frame.SCENE)
    assert not forecast.is_joint and forecast.num_modes == 3
    torch.testing.assert_close(forecast.probability(), torch.tensor([[[0.25, 0.5, 0.25], [1 / 3] * 3]]))
    joint = Forecast(torch.zeros(1, 4, 2, 5, 2), torch.tensor([[0.0, math.log(3.0)]], dtype=torch.bfloat16), Frame.SCENE)
    torch.testing.assert_close(joint.probability(), torch.tensor([0.25, 0.75]).expand(1, 4, 2), atol=1e-3, rtol=0)
    assert joint.is_joint and joint.probability().dtype == torch.float32


@pytest.mark.parametrize("frame", [Frame.SCENE, Frame.FOCAL])
def test_the_truth_in_the_city_frame_equals_the_recording(frame: Frame) -> None:
    scenes = [make_scene(seed=0), make_scene(5, seed=1)]
    batch = collate(scenes, BatchConfig(frame=frame))
    pose = batch.observation.pose[:, : batch.observation.num_targets]
    relative = to_frame(batch.truth.position, pose[:, :, None])
    logit = torch.zeros(2, 3, 1)
    local = Forecast(relative[:, :, None], logit, Frame.AGENT, pose=pose)
    torch.testing.assert_close(local.in_batch_frame()[:, :, 0], batch.truth.position, atol=1e-4, rtol=0)
    plain = Forecast(batch.truth.position[:, :, None], logit, frame)
    assert plain.in_batch_frame() is plain.position
    for forecast in (local, plain):
        city = forecast.in_city_frame(batch.observation)
        assert city.shape == (2, 3, 1, 12, 2) and city.dtype == np.float64
        for number, scene in enumerate(scenes):
            rows = [scene.agent_id.index(name) for name in batch.observation.agent_id[number][:3]]
            np.testing.assert_allclose(city[number, :, 0], scene.position[rows, 10:] + scene.origin, atol=1e-4)


def test_city_frame_keeps_precision_far_from_its_origin() -> None:
    far = torch.tensor([[5e6, -4e6, 0.0]], dtype=torch.float64)
    batch = edit(collate([make_scene()]), frame_pose=far)
    forecast = Forecast(torch.full((1, 3, 1, 12, 2), 0.001, requires_grad=True), torch.zeros(1, 3, 1), Frame.SCENE)
    np.testing.assert_allclose(forecast.in_city_frame(batch.observation) - far[0, :2].numpy(), 0.001, atol=1e-8)


@pytest.mark.parametrize("joint", [False, True])
def test_select_takes_modes_in_the_given_order(joint: bool) -> None:
    logit = draw(2, 6, seed=1) if joint else draw(2, 3, 6, seed=1)
    forecast = Forecast(draw(2, 3, 6, 5, 2), logit, Frame.SCENE, scale=draw(2, 3, 6, 5, 2, seed=2))
    index = torch.tensor([[[5, 0], [1, 2], [3, 3]], [[0, 1], [4, 2], [2, 5]]])
    index = index[:, :1].expand(-1, 3, -1) if joint else index
    few = forecast.select(index[:, 0] if joint else index)
    for name in ("position", "scale"):
        assert torch.equal(getattr(few, name), getattr(forecast, name).take_along_dim(index[..., None, None], 2))
    probability = forecast.probability().take_along_dim(index, 2)
    torch.testing.assert_close(few.probability() / few.probability()[..., :1], probability / probability[..., :1])
