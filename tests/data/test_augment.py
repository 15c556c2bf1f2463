"""Augmentation: repeatable, rigid where it should be, and honest about what it hides."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.batches import differing, edit, tensors
from support.scenes import hide, make_scene
from torch import Tensor

from trajformer.data.augment import (
    AugmentConfig,
    augment,
    crop,
    drop_agents,
    flip,
    jitter_headings,
    jitter_positions,
    mask_history,
    rotate,
    scale,
    shift,
)
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import BatchConfig, Frame
from trajformer.losses.set_loss import SetLossConfig, set_loss
from trajformer.models.constant_velocity import ConstantVelocity
from trajformer.scenes import geometry
from trajformer.scenes.scene import LaneFlag, Scene

EVERYTHING = AugmentConfig(
    flip=0.5, rotate=math.pi, noise_m=0.1, crop=9, agent_dropout=0.4, shift=0.5, history_mask=0.5, history_mask_steps=6
)
NOTHING = AugmentConfig(flip=0.0, rotate=0.0, agent_dropout=0.0, history_mask=0.0)
MOTION = ("position", "heading", "velocity")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain_batch() -> SceneBatch:
    return collate([make_scene(12), make_scene(20, num_scored=4, seed=2), make_scene(seed=3)])


@pytest.fixture
def batch() -> SceneBatch:
    """Four scenes of different sizes, lanes with all kinds of flags, some agents lost before the last step."""
    made = collate(
        [make_scene(12), make_scene(5, num_scored=0, seed=1), make_scene(20, num_scored=4, seed=2), make_scene(seed=3)]
    )
    flags = torch.arange(made.observation.polyline_flags.numel()).reshape(made.observation.polyline_flags.shape) % 16
    return edit(made, polyline_flags=flags * made.observation.polyline_mask)


def assert_padding_is_zero(batch: SceneBatch) -> None:
    for name in MOTION:
        assert not tensors(batch)[name][~batch.observation.valid].any(), name
    assert not batch.observation.pose[~batch.observation.agent_mask].any() and not batch.observation.valid[~batch.observation.agent_mask].any()
    assert not batch.truth.position[~batch.truth.valid].any() and not batch.observation.polyline[~batch.observation.polyline_mask].any()


def test_a_seed_says_it_all(batch: SceneBatch) -> None:
    first = augment(batch, EVERYTHING, generator(5))
    assert differing(first, augment(batch, EVERYTHING, generator(5))) == set()
    assert differing(first, augment(batch, EVERYTHING, generator(6))) >= {"position", "valid", "agent_mask", "target", "polyline"}
    assert augment(batch, NOTHING, generator()) is batch
    assert_padding_is_zero(first)
    assert first.observation.frame is batch.observation.frame and first.observation.scene_id == batch.observation.scene_id


def test_the_input_is_left_alone(batch: SceneBatch) -> None:
    before = {name: value.clone() for name, value in tensors(batch).items()}
    augment(batch, EVERYTHING, generator())
    assert all(torch.equal(value, before[name]) for name, value in tensors(batch).items())


def test_flip_mirrors_everything_at_the_x_axis(batch: SceneBatch) -> None:
    mirrored = flip(batch, generator(), 1.0)
    sign = torch.tensor([1.0, -1.0])
    for name in ("position", "velocity", "target", "polyline"):
        assert torch.equal(tensors(mirrored)[name], tensors(batch)[name] * sign), name
    assert torch.equal(mirrored.observation.heading, -batch.observation.heading)
    assert torch.equal(mirrored.observation.pose, batch.observation.pose * torch.tensor([1.0, -1.0, -1.0]))
    left, right = int(LaneFlag.TURN_LEFT), int(LaneFlag.TURN_RIGHT)
    for before, after in ((0, 0), (left, right), (right, left), (left | right, left | right), (left | 3, right | 3)):
        assert (batch.observation.polyline_flags == before).any()
        assert (mirrored.observation.polyline_flags[batch.observation.polyline_flags == before] == after).all()
    assert differing(batch, mirrored) == {*MOTION, "pose", "target", "polyline", "polyline_flags"}


def test_flip_twice_is_nothing(batch: SceneBatch) -> None:
    assert differing(flip(flip(batch, generator(), 1.0), generator(), 1.0), batch) == set()
    assert differing(flip(batch, generator(), 0.0), batch) == set()


def test_flip_decides_for_whole_scenes(batch: SceneBatch) -> None:
    chosen = torch.rand(4, generator=generator(2)) < 0.5
    assert chosen.any() and not chosen.all()
    mixed, mirrored = flip(batch, generator(2), 0.5), flip(batch, generator(), 1.0)
    for name, value in tensors(mixed).items():
        for number, flipped in enumerate(chosen.tolist()):
            assert torch.equal(value[number], tensors(mirrored if flipped else batch)[name][number]), name


def test_turn_is_a_rigid_motion_about_the_origin(batch: SceneBatch) -> None:
    turned = rotate(batch, generator(3), math.pi)
    angle = (2 * torch.rand(4, generator=generator(3)) - 1) * math.pi
    assert angle.abs().min() > 0.05
    for name in ("position", "velocity", "target", "polyline"):
        value = tensors(batch)[name]
        wide = -angle.reshape(4, *[1] * (value.ndim - 2))
        torch.testing.assert_close(tensors(turned)[name], geometry.rotate(value, wide), atol=1e-4, rtol=0, msg=name)
    gap = geometry.wrap(turned.observation.heading - batch.observation.heading + angle[:, None, None])[batch.observation.valid]
    assert gap.abs().max() < 1e-5 and turned.observation.heading.abs().max() <= math.pi + 1e-6
    torch.testing.assert_close(turned.observation.pose[..., :2], geometry.rotate(batch.observation.pose[..., :2], -angle[:, None]), atol=1e-4, rtol=0)
    assert geometry.wrap(turned.observation.pose[..., 2] - batch.observation.pose[..., 2] + angle[:, None])[batch.observation.agent_mask].abs().max() < 1e-5
    assert differing(batch, turned) == {*MOTION, "pose", "target", "polyline"}
    assert_padding_is_zero(turned)


def test_turn_stays_within_its_limit(batch: SceneBatch) -> None:
    seen = []
    for seed in range(50):
        turned = rotate(batch, generator(seed), 0.3)
        seen.append(geometry.wrap(batch.observation.pose[:, 0, 2] - turned.observation.pose[:, 0, 2]))
    angles = torch.cat(seen)
    assert angles.abs().max() <= 0.3 + 1e-5
    assert angles.min() < -0.2 and angles.max() > 0.2


@pytest.mark.parametrize("probability", [0.5, 1.0])
def test_dropped_agents_vanish_but_never_targets(batch: SceneBatch, probability: float) -> None:
    fewer = drop_agents(batch, generator(), probability)
    gone = batch.observation.agent_mask & ~fewer.observation.agent_mask
    assert gone.any() and not (fewer.observation.agent_mask & ~batch.observation.agent_mask).any()
    for name in (*MOTION, "valid", "pose"):
        assert not tensors(fewer)[name][gone].any(), name
        assert torch.equal(tensors(fewer)[name][~gone], tensors(batch)[name][~gone]), name
    assert (fewer.observation.agent_mask[:, : batch.observation.num_targets] >= batch.observation.target_mask).all()
    assert differing(batch, fewer) == {*MOTION, "valid", "pose", "agent_mask"}
    if probability == 1.0:
        assert fewer.observation.agent_mask.sum(1).tolist() == batch.observation.target_mask.sum(1).tolist()
    assert differing(drop_agents(batch, generator(), 0.0), batch) == set()


@pytest.mark.parametrize("steps", [4, 8, 100])
def test_masking_hides_beginnings_and_nobody(batch: SceneBatch, steps: int) -> None:
    early = batch.observation.valid.clone()
    early[0, 1, 2:] = False  # a track that ended after two steps
    kept = early[..., None]
    batch = edit(batch, valid=early, position=batch.observation.position * kept, heading=batch.observation.heading * early, velocity=batch.observation.velocity * kept
    )
    hidden_first, hidden_any = False, False
    for seed in range(10):
        masked = mask_history(batch, generator(seed), 1.0, steps)
        assert not (masked.observation.valid & ~batch.observation.valid).any()
        hidden = batch.observation.valid & ~masked.observation.valid
        hidden_any |= bool(hidden.any())
        step = torch.arange(10)
        last = torch.where(batch.observation.valid, step, -1).amax(-1)
        assert torch.equal(torch.where(masked.observation.valid, step, -1).amax(-1), last)
        first = torch.where(masked.observation.valid, step, 10).amin(-1)
        assert torch.equal(masked.observation.valid, batch.observation.valid & (step >= first[..., None])), "only a beginning is hidden"
        assert not hidden[..., min(steps, 8) :].any()
        hidden_first |= bool((hidden[..., min(steps, 8) - 1]).any())
        assert torch.equal(masked.observation.pose, batch.observation.pose) and torch.equal(masked.observation.agent_mask, batch.observation.agent_mask)
        assert differing(batch, masked) <= {*MOTION, "valid"}
        assert_padding_is_zero(masked)
    assert hidden_any and hidden_first
    assert differing(mask_history(batch, generator(), 0.0, steps), batch) == set()


@pytest.mark.parametrize("move", [lambda b: flip(b, generator(), 1.0), lambda b: rotate(b, generator(4), math.pi)])
def test_the_target_moves_along(batch: SceneBatch, move: object) -> None:
    """Constant velocity commutes with mirrors and turns, so its loss and its forecast's shape stay what they were."""
    model, moved = ConstantVelocity(), move(batch)
    before, after = model(batch.observation), model(moved.observation)
    assert before.observation.frame is Frame.SCENE
    as_target = edit(batch, target=before.observation.position[:, :, 0], target_valid=torch.ones_like(batch.truth.valid))
    real = batch.observation.target_mask
    torch.testing.assert_close(after.observation.position[:, :, 0][real], move(as_target).target[real], atol=1e-4, rtol=0)
    losses = [set_loss(f, b.truth.position, b.truth.valid, SetLossConfig(huber_m=1e3)) for f, b in ((before, batch), (after, moved))]
    assert losses[0]["loss"].item() == pytest.approx(losses[1]["loss"].item(), rel=1e-4)
    assert losses[0]["loss"] > 1e-6


def test_noise_is_on_observations_of_half_of_the_scenes_and_moves_velocities_along(batch: SceneBatch) -> None:
    noisy = jitter_positions(batch, torch.Generator().manual_seed(3), 0.5)
    moved = noisy.observation.position - batch.observation.position
    assert (moved[~batch.observation.valid] == 0).all() and torch.equal(noisy.observation.pose, batch.observation.pose) and torch.equal(noisy.truth.position, batch.truth.position)
    known = batch.observation.valid[:, :, 1:] & batch.observation.valid[:, :, :-1]
    wanted = (moved[:, :, 1:] - moved[:, :, :-1]) / batch.observation.period_s
    change = noisy.observation.velocity - batch.observation.velocity
    assert torch.allclose(change[:, :, 1:][known], wanted[known], atol=1e-4)
    assert torch.allclose(change[:, :, 0][known[:, :, 0]], wanted[:, :, 0][known[:, :, 0]], atol=1e-4)
    many = edit(batch, **{name: tensors(batch)[name][:1].repeat_interleave(400, 0) for name in ("position", "velocity", "valid")}
    )
    many = edit(many, scene_id=("",) * 400)
    moved = jitter_positions(many, torch.Generator().manual_seed(0), 0.5).position - many.observation.position
    spread = torch.stack([part[real].std() for part, real in zip(moved, many.observation.valid, strict=True)])
    assert 0.4 < (spread == 0).float().mean() < 0.6
    assert spread.max() < 0.55 and abs(float(spread[spread > 0].mean()) - 0.25) < 0.04  # uniform up to 0.5


def test_a_crop_keeps_a_target_and_those_nearest_to_it(batch: SceneBatch) -> None:
    seen: list[set[str]] = [set() for _ in range(batch.num_scenes)]
    for seed in range(8):
        small = crop(batch, generator(seed), 4)
        assert small.observation.agent_mask.shape[1] == 4 and small.observation.num_targets == small.truth.position.shape[1] == min(4, batch.observation.num_targets)
        assert_padding_is_zero(small)
        for scene, names in enumerate(small.observation.agent_id):
            seen[scene] |= set(names)
            rows = [batch.observation.agent_id[scene].index(name) for name in names]
            assert rows == sorted(rows) and small.observation.target_mask[scene].any()
            wanted = {
                name: value[scene, rows] for name, value in tensors(batch).items() if value.shape[1:2] == (batch.observation.valid.shape[1],)
            }
            assert len(wanted) == 8 and all(torch.equal(tensors(small)[n][scene, : len(rows)], v) for n, v in wanted.items())
            for slot, row in enumerate(rows[: small.observation.num_targets]):
                is_target = row < batch.observation.num_targets and bool(batch.observation.target_mask[scene, row])
                assert bool(small.observation.target_mask[scene, slot]) == is_target
                assert not is_target or torch.equal(small.truth.position[scene, slot], batch.truth.position[scene, row])
            place = batch.observation.pose[scene, : len(batch.observation.agent_id[scene]), :2]
            nearest = [set(torch.cdist(place[r : r + 1], place)[0].topk(len(rows), largest=False).indices.tolist()) for r in rows]
            assert set(rows) in nearest  # of one of them, these are the nearest
    assert len(seen[2]) > 4  # chance names another one
    assert crop(batch, generator(), batch.observation.agent_mask.shape[1]) is batch


def test_somebody_in_the_same_place_does_not_push_a_target_out(batch: SceneBatch) -> None:
    crowded = edit(batch, pose=torch.zeros_like(batch.observation.pose))
    for seed in range(8):
        assert crop(crowded, generator(seed), 1).target_mask.all()


def test_stretch_scales_everything_that_is_measured_in_metres() -> None:
    before, after = plain_batch(), scale(plain_batch(), generator(), 0.2)
    factor = after.truth.position.flatten(1).norm(dim=1) / before.truth.position.flatten(1).norm(dim=1)
    assert ((factor >= 0.8) & (factor <= 1.2)).all() and factor.unique().numel() == 3
    for name in ("position", "velocity", "target", "polyline"):
        torch.testing.assert_close(tensors(after)[name], tensors(before)[name] * factor[:, None, None, None])
    torch.testing.assert_close(after.observation.pose[..., :2], before.observation.pose[..., :2] * factor[:, None, None])
    assert torch.equal(after.observation.pose[..., 2], before.observation.pose[..., 2]) and torch.equal(after.observation.heading, before.observation.heading)
    assert torch.equal(after.observation.valid, before.observation.valid)


def test_stretch_commutes_with_constant_velocity() -> None:
    """Speeds and distances are stretched alike: what was a consistent motion stays one."""
    model = ConstantVelocity()
    before, after = model(plain_batch()).position, model(scale(plain_batch(), generator(), 0.2)).position
    ratio = after.flatten(1).norm(dim=1) / before.flatten(1).norm(dim=1)
    torch.testing.assert_close(after, before * ratio[:, None, None, None, None], rtol=1e-4, atol=1e-3)


def test_disturbed_headings_turn_reference_frames_and_nothing_else() -> None:
    before, after = plain_batch(), jitter_headings(plain_batch(), generator(), 0.1)
    change = geometry.wrap(after.observation.pose[..., 2] - before.observation.pose[..., 2])
    assert 0.05 < change[before.observation.agent_mask].std() < 0.2
    assert not after.observation.pose[~before.observation.agent_mask].any()
    assert torch.equal(after.observation.pose[..., :2], before.observation.pose[..., :2])
    for name in ("position", "heading", "velocity", "target", "polyline", "valid"):
        assert torch.equal(tensors(after)[name], tensors(before)[name]), name


def test_the_config_reaches_both_and_a_seed_repeats_them() -> None:
    config = AugmentConfig(flip=0.0, agent_dropout=0.0, history_mask=0.0, heading_noise=0.1, scale=0.1)
    one, same, other = (augment(plain_batch(), config, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.observation.pose, same.observation.pose) and torch.equal(one.truth.position, same.truth.position)
    assert not torch.equal(one.observation.pose[..., 2], other.observation.pose[..., 2]) and not torch.equal(one.truth.position, other.truth.position)
    assert not torch.equal(one.observation.pose[..., 2], plain_batch().pose[..., 2]) and not torch.equal(one.truth.position, plain_batch().target)


STATES = ("position", "heading", "velocity", "valid")


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
    for row, name in enumerate(batch.observation.agent_id[scene]):
        if batch.observation.agent_mask[scene, row]:
            found[name] = {field: tensors(batch)[field][scene, row] for field in (*STATES, "pose")}
            if row < batch.observation.num_targets and batch.observation.target_mask[scene, row]:
                found[name] |= {field: tensors(batch)[field][scene, row] for field in ("target", "target_valid")}
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
    assert ours.truth.valid[:, 0].all()


def test_what_is_observed_last_is_what_is_to_be_predicted_first() -> None:
    batch = collate([make_scene(12), make_scene(seed=3)])
    ours = shifted(batch, 4)
    assert torch.equal(ours.truth.position[:, :, :4], batch.observation.position[:, : batch.observation.num_targets, -4:] * batch.observation.target_mask[..., None, None])
    assert torch.equal(ours.truth.position[:, :, 4:], batch.truth.position[:, :, :-4])
    assert torch.equal(ours.observation.position[:, :, 4:], batch.observation.position[:, :, :-4]) and not ours.observation.valid[:, :, :4].any()
    for name in ("polyline", "polyline_kind", "target_mask", "agent_kind"):
        assert torch.equal(tensors(ours)[name], tensors(batch)[name])
    assert not ours.observation.pose[~ours.observation.agent_mask].any() and not ours.truth.position[~ours.truth.valid].any()


def test_several_futures_share_what_was_observed() -> None:
    batch = collate([make_scene(12), make_scene(seed=3)])
    both = torch.stack([batch.truth.position, batch.truth.position + batch.truth.valid[..., None]], 2)
    ours = shifted(edit(batch, target=both, target_valid=torch.stack([batch.truth.valid] * 2, 2)), 3)
    single = shifted(batch, 3)
    assert torch.equal(ours.truth.position[:, :, 0], single.truth.position) and torch.equal(ours.truth.valid[:, :, 1], single.truth.valid)
    assert torch.equal(ours.truth.position[:, :, 1, :3], single.truth.position[:, :, :3])
    assert torch.equal(ours.truth.position[:, :, 1, 3:], single.truth.position[:, :, 3:] + single.truth.valid[:, :, 3:, None])


def test_a_scene_whose_target_was_not_there_yet_stays() -> None:
    """So does one that chance does not choose, bit for bit."""
    batch = collate([make_scene(12), hide(make_scene(seed=3), 1, slice(3, 9))])
    ours = shift(batch, generator(), 1.0, 1)
    assert not torch.equal(ours.observation.position[0], batch.observation.position[0])
    unchosen = shift(batch, generator(), 0.0, 8)
    for name in (*STATES, "pose", "target", "target_valid", "agent_mask"):
        assert torch.equal(tensors(ours)[name][1], tensors(batch)[name][1]), name
        assert torch.equal(tensors(unchosen)[name], tensors(batch)[name]), name


def test_steps_are_as_many_as_asked_for_and_leave_two() -> None:
    batch = collate([make_scene(4, seed=seed) for seed in range(64)])
    for steps, most in ((3, 3), (100, 8)):
        gone = 10 - shift(batch, generator(), 1.0, steps).valid[:, 0].sum(-1)
        assert gone.unique().tolist() == list(range(1, most + 1))
    half = augment(batch, AugmentConfig(flip=0.0, agent_dropout=0.0, history_mask=0.0, shift=0.5, shift_steps=3), generator())
    assert 16 < (half.observation.valid[:, 0].sum(-1) < 10).sum() < 48


def test_constant_velocity_forecasts_from_the_earlier_present() -> None:
    batch = collate([make_scene(12), make_scene(seed=3)])
    ours = shifted(batch, 3)
    ahead = ConstantVelocity()(ours)
    start = ours.observation.pose[:, : ours.observation.num_targets, :2] + 0.1 * ours.observation.velocity[:, : ours.observation.num_targets, -1]
    torch.testing.assert_close(ahead.in_batch_frame()[ours.observation.target_mask][:, 0, 0], start[ours.observation.target_mask], atol=1e-4, rtol=1e-4)
