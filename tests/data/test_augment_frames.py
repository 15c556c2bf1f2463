"""Augmentation that changes sizes and reference frames: stretching a scene and disturbing headings."""

from __future__ import annotations

import torch
from support.scenes import make_scene

from trajformer.data.augment import AugmentConfig, augment, disturb_headings, stretch
from trajformer.data.batch import SceneBatch, collate
from trajformer.models.constant_velocity import ConstantVelocity
from trajformer.scenes.geometry import wrap


def batch() -> SceneBatch:
    return collate([make_scene(12), make_scene(20, num_scored=4, seed=2), make_scene(seed=3)])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_stretch_scales_everything_that_is_measured_in_metres() -> None:
    before, after = batch(), stretch(batch(), generator(), 0.2)
    factor = after.target.flatten(1).norm(dim=1) / before.target.flatten(1).norm(dim=1)
    assert ((factor >= 0.8) & (factor <= 1.2)).all() and factor.unique().numel() == 3
    for name in ("position", "velocity", "target", "polyline"):
        torch.testing.assert_close(getattr(after, name), getattr(before, name) * factor[:, None, None, None])
    torch.testing.assert_close(after.pose[..., :2], before.pose[..., :2] * factor[:, None, None])
    assert torch.equal(after.pose[..., 2], before.pose[..., 2]) and torch.equal(after.heading, before.heading)
    assert torch.equal(after.valid, before.valid)


def test_stretch_commutes_with_constant_velocity() -> None:
    """Speeds and distances are stretched alike: what was a consistent motion stays one."""
    model = ConstantVelocity()
    before, after = model(batch()).position, model(stretch(batch(), generator(), 0.2)).position
    ratio = after.flatten(1).norm(dim=1) / before.flatten(1).norm(dim=1)
    torch.testing.assert_close(after, before * ratio[:, None, None, None, None], rtol=1e-4, atol=1e-3)


def test_disturbed_headings_turn_reference_frames_and_nothing_else() -> None:
    before, after = batch(), disturb_headings(batch(), generator(), 0.1)
    change = wrap(after.pose[..., 2] - before.pose[..., 2])
    assert 0.05 < change[before.agent_mask].std() < 0.2
    assert not after.pose[~before.agent_mask].any()
    assert torch.equal(after.pose[..., :2], before.pose[..., :2])
    for name in ("position", "heading", "velocity", "target", "polyline", "valid"):
        assert torch.equal(getattr(after, name), getattr(before, name)), name


def test_the_config_reaches_both_and_a_seed_repeats_them() -> None:
    config = AugmentConfig(flip=0.0, agent_dropout=0.0, history_mask=0.0, heading_noise=0.1, scale=0.1)
    one, same, other = (augment(batch(), config, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.pose, same.pose) and torch.equal(one.target, same.target)
    assert not torch.equal(one.pose[..., 2], other.pose[..., 2]) and not torch.equal(one.target, other.target)
    assert not torch.equal(one.pose[..., 2], batch().pose[..., 2]) and not torch.equal(one.target, batch().target)
