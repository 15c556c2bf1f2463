"""Augmentation in time: a scene seen some steps earlier is the scene that would have been recorded then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.scenes import hide, make_scene
from torch import Tensor

from trajformer.data.augment import AugmentConfig, augment, shift
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import BatchConfig, Frame
from trajformer.models.constant_velocity import ConstantVelocity
from trajformer.scenes.scene import Scene

STATES = ("position", "heading", "velocity", "valid")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shifted(batch: SceneBatch, count: int) -> SceneBatch:
    """Every scene as it was so many steps before."""
    for _ in range(count):
        batch = shift(batch, generator(), 1.0, 1)
    return batch


def recorded(scene: Scene, count: int) -> Scene:
    """What a recording that began so many steps before, with nothing in them, would be."""
    values = {name: np.roll(getattr(scene, name), count, 1) for name in STATES}
    for value in values.values():
        value[:, :count] = 0
    return replace(scene, **values).validate()


def by_agent(batch: SceneBatch, scene: int) -> dict[str, dict[str, Tensor]]:
    """Histories, poses and truths of who is there, by name."""
    found = {}
    for row, name in enumerate(batch.agent_id[scene]):
        if batch.agent_mask[scene, row]:
            found[name] = {field: getattr(batch, field)[scene, row] for field in (*STATES, "pose")}
            if row < batch.num_targets and batch.target_mask[scene, row]:
                found[name] |= {field: getattr(batch, field)[scene, row] for field in ("target", "target_valid")}
    return found


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("frame", [Frame.SCENE, Frame.FOCAL])
def test_a_scene_seen_earlier_is_the_scene_recorded_earlier(count: int, frame: Frame) -> None:
    late = hide(make_scene(12), 5, slice(0, 9))  # who appears in the last observed step
    scenes, config = [late, make_scene(5, num_scored=1, seed=1), make_scene(20, num_scored=4, seed=2)], BatchConfig(frame=frame)
    ours, expected = shifted(collate(scenes, config), count), collate([recorded(scene, count) for scene in scenes], config)
    assert len(by_agent(ours, 0)) == 11
    for number in range(3):
        left, right = by_agent(ours, number), by_agent(expected, number)
        assert left.keys() == right.keys()
        steps = slice(None, 12 - count)  # a recording is not longer for having begun earlier
        for name, values in right.items():
            assert left[name].keys() == values.keys()
            for field, value in values.items():
                known = steps if field.startswith("target") else slice(None)
                torch.testing.assert_close(left[name][field][known], value[known], atol=1e-5, rtol=1e-5)
    assert ours.target_valid[:, 0].all()


def test_what_is_observed_last_is_what_is_to_be_predicted_first() -> None:
    batch = collate([make_scene(12), make_scene(seed=3)])
    ours = shifted(batch, 4)
    assert torch.equal(ours.target[:, :, :4], batch.position[:, : batch.num_targets, -4:] * batch.target_mask[..., None, None])
    assert torch.equal(ours.target[:, :, 4:], batch.target[:, :, :-4])
    assert torch.equal(ours.position[:, :, 4:], batch.position[:, :, :-4]) and not ours.valid[:, :, :4].any()
    for name in ("polyline", "polyline_kind", "target_mask", "agent_kind"):
        assert torch.equal(getattr(ours, name), getattr(batch, name))
    assert not ours.pose[~ours.agent_mask].any() and not ours.target[~ours.target_valid].any()


def test_several_futures_share_what_was_observed() -> None:
    batch = collate([make_scene(12), make_scene(seed=3)])
    both = torch.stack([batch.target, batch.target + batch.target_valid[..., None]], 2)
    ours = shifted(replace(batch, target=both, target_valid=torch.stack([batch.target_valid] * 2, 2)), 3)
    single = shifted(batch, 3)
    assert torch.equal(ours.target[:, :, 0], single.target) and torch.equal(ours.target_valid[:, :, 1], single.target_valid)
    assert torch.equal(ours.target[:, :, 1, :3], single.target[:, :, :3])
    assert torch.equal(ours.target[:, :, 1, 3:], single.target[:, :, 3:] + single.target_valid[:, :, 3:, None])


def test_a_scene_whose_target_was_not_there_yet_stays() -> None:
    """So does one that chance does not choose, bit for bit."""
    batch = collate([make_scene(12), hide(make_scene(seed=3), 1, slice(3, 9))])
    ours = shift(batch, generator(), 1.0, 1)
    assert not torch.equal(ours.position[0], batch.position[0])
    unchosen = shift(batch, generator(), 0.0, 8)
    for name in (*STATES, "pose", "target", "target_valid", "agent_mask"):
        assert torch.equal(getattr(ours, name)[1], getattr(batch, name)[1]), name
        assert torch.equal(getattr(unchosen, name), getattr(batch, name)), name


def test_steps_are_as_many_as_asked_for_and_leave_two() -> None:
    batch = collate([make_scene(4, seed=seed) for seed in range(64)])
    for steps, most in ((3, 3), (100, 8)):
        gone = 10 - shift(batch, generator(), 1.0, steps).valid[:, 0].sum(-1)
        assert gone.unique().tolist() == list(range(1, most + 1))
    half = augment(batch, AugmentConfig(flip=0.0, agent_dropout=0.0, history_mask=0.0, shift=0.5, shift_steps=3), generator())
    assert 16 < (half.valid[:, 0].sum(-1) < 10).sum() < 48


def test_constant_velocity_forecasts_from_the_earlier_present() -> None:
    batch = collate([make_scene(12), make_scene(seed=3)])
    ours = shifted(batch, 3)
    ahead = ConstantVelocity()(ours)
    start = ours.pose[:, : ours.num_targets, :2] + 0.1 * ours.velocity[:, : ours.num_targets, -1]
    torch.testing.assert_close(ahead.in_batch_frame()[ours.target_mask][:, 0, 0], start[ours.target_mask], atol=1e-4, rtol=1e-4)
