"""Augmentation: repeatable, rigid where it should be, and honest about what it hides."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from support.scenes import make_scene
from torch import Tensor

from trajformer.data.augment import AugmentConfig, augment, crop, disturb_positions, drop_agents, flip, mask_history, turn
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import Frame
from trajformer.losses.set_loss import SetLossConfig, set_loss
from trajformer.models.constant_velocity import ConstantVelocity
from trajformer.scenes.geometry import rotate, wrap
from trajformer.scenes.scene import LaneFlag

EVERYTHING = AugmentConfig(
    flip=0.5, rotate=math.pi, noise_m=0.1, crop=9, agent_dropout=0.4, shift=0.5, history_mask=0.5, history_mask_steps=6
)
NOTHING = AugmentConfig(flip=0.0, rotate=0.0, agent_dropout=0.0, history_mask=0.0)
MOTION = ("position", "heading", "velocity")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tensors(batch: SceneBatch) -> dict[str, Tensor]:
    return {f.name: getattr(batch, f.name) for f in fields(batch) if isinstance(getattr(batch, f.name), Tensor)}


def differing(left: SceneBatch, right: SceneBatch) -> set[str]:
    return {name for name, value in tensors(left).items() if not torch.equal(value, tensors(right)[name])}


@pytest.fixture
def batch() -> SceneBatch:
    """Four scenes of different sizes, lanes with all kinds of flags, some agents lost before the last step."""
    made = collate(
        [make_scene(12), make_scene(5, num_scored=0, seed=1), make_scene(20, num_scored=4, seed=2), make_scene(seed=3)]
    )
    flags = torch.arange(made.polyline_flags.numel()).reshape(made.polyline_flags.shape) % 16
    return replace(made, polyline_flags=flags * made.polyline_mask)


def assert_padding_is_zero(batch: SceneBatch) -> None:
    for name in MOTION:
        assert not getattr(batch, name)[~batch.valid].any(), name
    assert not batch.pose[~batch.agent_mask].any() and not batch.valid[~batch.agent_mask].any()
    assert not batch.target[~batch.target_valid].any() and not batch.polyline[~batch.polyline_mask].any()


def test_a_seed_says_it_all(batch: SceneBatch) -> None:
    first = augment(batch, EVERYTHING, generator(5))
    assert differing(first, augment(batch, EVERYTHING, generator(5))) == set()
    assert differing(first, augment(batch, EVERYTHING, generator(6))) >= {"position", "valid", "agent_mask", "target", "polyline"}
    assert augment(batch, NOTHING, generator()) is batch
    assert_padding_is_zero(first)
    assert first.frame is batch.frame and first.scene_id == batch.scene_id


def test_the_input_is_left_alone(batch: SceneBatch) -> None:
    before = {name: value.clone() for name, value in tensors(batch).items()}
    augment(batch, EVERYTHING, generator())
    assert all(torch.equal(value, before[name]) for name, value in tensors(batch).items())


def test_flip_mirrors_everything_at_the_x_axis(batch: SceneBatch) -> None:
    mirrored = flip(batch, generator(), 1.0)
    sign = torch.tensor([1.0, -1.0])
    for name in ("position", "velocity", "target", "polyline"):
        assert torch.equal(getattr(mirrored, name), getattr(batch, name) * sign), name
    assert torch.equal(mirrored.heading, -batch.heading)
    assert torch.equal(mirrored.pose, batch.pose * torch.tensor([1.0, -1.0, -1.0]))
    left, right = int(LaneFlag.TURN_LEFT), int(LaneFlag.TURN_RIGHT)
    for before, after in ((0, 0), (left, right), (right, left), (left | right, left | right), (left | 3, right | 3)):
        assert (batch.polyline_flags == before).any()
        assert (mirrored.polyline_flags[batch.polyline_flags == before] == after).all()
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
    turned = turn(batch, generator(3), math.pi)
    angle = (2 * torch.rand(4, generator=generator(3)) - 1) * math.pi
    assert angle.abs().min() > 0.05
    for name in ("position", "velocity", "target", "polyline"):
        value = getattr(batch, name)
        wide = -angle.reshape(4, *[1] * (value.ndim - 2))
        torch.testing.assert_close(getattr(turned, name), rotate(value, wide), atol=1e-4, rtol=0, msg=name)
    gap = wrap(turned.heading - batch.heading + angle[:, None, None])[batch.valid]
    assert gap.abs().max() < 1e-5 and turned.heading.abs().max() <= math.pi + 1e-6
    torch.testing.assert_close(turned.pose[..., :2], rotate(batch.pose[..., :2], -angle[:, None]), atol=1e-4, rtol=0)
    assert wrap(turned.pose[..., 2] - batch.pose[..., 2] + angle[:, None])[batch.agent_mask].abs().max() < 1e-5
    assert differing(batch, turned) == {*MOTION, "pose", "target", "polyline"}
    assert_padding_is_zero(turned)


def test_turn_stays_within_its_limit(batch: SceneBatch) -> None:
    seen = []
    for seed in range(50):
        turned = turn(batch, generator(seed), 0.3)
        seen.append(wrap(batch.pose[:, 0, 2] - turned.pose[:, 0, 2]))
    angles = torch.cat(seen)
    assert angles.abs().max() <= 0.3 + 1e-5
    assert angles.min() < -0.2 and angles.max() > 0.2


@pytest.mark.parametrize("probability", [0.5, 1.0])
def test_dropped_agents_vanish_but_never_targets(batch: SceneBatch, probability: float) -> None:
    fewer = drop_agents(batch, generator(), probability)
    gone = batch.agent_mask & ~fewer.agent_mask
    assert gone.any() and not (fewer.agent_mask & ~batch.agent_mask).any()
    for name in (*MOTION, "valid", "pose"):
        assert not getattr(fewer, name)[gone].any(), name
        assert torch.equal(getattr(fewer, name)[~gone], getattr(batch, name)[~gone]), name
    assert (fewer.agent_mask[:, : batch.num_targets] >= batch.target_mask).all()
    assert differing(batch, fewer) == {*MOTION, "valid", "pose", "agent_mask"}
    if probability == 1.0:
        assert fewer.agent_mask.sum(1).tolist() == batch.target_mask.sum(1).tolist()
    assert differing(drop_agents(batch, generator(), 0.0), batch) == set()


@pytest.mark.parametrize("steps", [4, 8, 100])
def test_masking_hides_beginnings_and_nobody(batch: SceneBatch, steps: int) -> None:
    early = batch.valid.clone()
    early[0, 1, 2:] = False  # a track that ended after two steps
    kept = early[..., None]
    batch = replace(
        batch, valid=early, position=batch.position * kept, heading=batch.heading * early, velocity=batch.velocity * kept
    )
    hidden_first, hidden_any = False, False
    for seed in range(10):
        masked = mask_history(batch, generator(seed), 1.0, steps)
        assert not (masked.valid & ~batch.valid).any()
        hidden = batch.valid & ~masked.valid
        hidden_any |= bool(hidden.any())
        step = torch.arange(10)
        last = torch.where(batch.valid, step, -1).amax(-1)
        assert torch.equal(torch.where(masked.valid, step, -1).amax(-1), last)
        first = torch.where(masked.valid, step, 10).amin(-1)
        assert torch.equal(masked.valid, batch.valid & (step >= first[..., None])), "only a beginning is hidden"
        assert not hidden[..., min(steps, 8) :].any()
        hidden_first |= bool((hidden[..., min(steps, 8) - 1]).any())
        assert torch.equal(masked.pose, batch.pose) and torch.equal(masked.agent_mask, batch.agent_mask)
        assert differing(batch, masked) <= {*MOTION, "valid"}
        assert_padding_is_zero(masked)
    assert hidden_any and hidden_first
    assert differing(mask_history(batch, generator(), 0.0, steps), batch) == set()


@pytest.mark.parametrize("move", [lambda b: flip(b, generator(), 1.0), lambda b: turn(b, generator(4), math.pi)])
def test_the_target_moves_along(batch: SceneBatch, move: object) -> None:
    """Constant velocity commutes with mirrors and turns, so its loss and its forecast's shape stay what they were."""
    model, moved = ConstantVelocity(), move(batch)
    before, after = model(batch), model(moved)
    assert before.frame is Frame.SCENE
    as_target = replace(batch, target=before.position[:, :, 0], target_valid=torch.ones_like(batch.target_valid))
    real = batch.target_mask
    torch.testing.assert_close(after.position[:, :, 0][real], move(as_target).target[real], atol=1e-4, rtol=0)
    losses = [set_loss(f, b.target, b.target_valid, SetLossConfig(huber_m=1e3)) for f, b in ((before, batch), (after, moved))]
    assert losses[0]["loss"].item() == pytest.approx(losses[1]["loss"].item(), rel=1e-4)
    assert losses[0]["loss"] > 1e-6


def test_noise_is_on_observations_of_half_of_the_scenes_and_moves_velocities_along(batch: SceneBatch) -> None:
    noisy = disturb_positions(batch, torch.Generator().manual_seed(3), 0.5)
    moved = noisy.position - batch.position
    assert (moved[~batch.valid] == 0).all() and torch.equal(noisy.pose, batch.pose) and torch.equal(noisy.target, batch.target)
    known = batch.valid[:, :, 1:] & batch.valid[:, :, :-1]
    wanted = (moved[:, :, 1:] - moved[:, :, :-1]) / batch.period_s
    change = noisy.velocity - batch.velocity
    assert torch.allclose(change[:, :, 1:][known], wanted[known], atol=1e-4)
    assert torch.allclose(change[:, :, 0][known[:, :, 0]], wanted[:, :, 0][known[:, :, 0]], atol=1e-4)
    many = replace(
        batch, **{name: getattr(batch, name)[:1].repeat_interleave(400, 0) for name in ("position", "velocity", "valid")}
    )
    many = replace(many, scene_id=("",) * 400)
    moved = disturb_positions(many, torch.Generator().manual_seed(0), 0.5).position - many.position
    spread = torch.stack([part[real].std() for part, real in zip(moved, many.valid, strict=True)])
    assert 0.4 < (spread == 0).float().mean() < 0.6
    assert spread.max() < 0.55 and abs(float(spread[spread > 0].mean()) - 0.25) < 0.04  # uniform up to 0.5


def test_a_crop_keeps_a_target_and_those_nearest_to_it(batch: SceneBatch) -> None:
    seen: list[set[str]] = [set() for _ in range(batch.num_scenes)]
    for seed in range(8):
        small = crop(batch, generator(seed), 4)
        assert small.agent_mask.shape[1] == 4 and small.num_targets == small.target.shape[1] == min(4, batch.num_targets)
        assert_padding_is_zero(small)
        for scene, names in enumerate(small.agent_id):
            seen[scene] |= set(names)
            rows = [batch.agent_id[scene].index(name) for name in names]
            assert rows == sorted(rows) and small.target_mask[scene].any()
            wanted = {
                name: value[scene, rows] for name, value in tensors(batch).items() if value.shape[1:2] == (batch.valid.shape[1],)
            }
            assert len(wanted) == 8 and all(torch.equal(getattr(small, n)[scene, : len(rows)], v) for n, v in wanted.items())
            for slot, row in enumerate(rows[: small.num_targets]):
                is_target = row < batch.num_targets and bool(batch.target_mask[scene, row])
                assert bool(small.target_mask[scene, slot]) == is_target
                assert not is_target or torch.equal(small.target[scene, slot], batch.target[scene, row])
            place = batch.pose[scene, : len(batch.agent_id[scene]), :2]
            nearest = [set(torch.cdist(place[r : r + 1], place)[0].topk(len(rows), largest=False).indices.tolist()) for r in rows]
            assert set(rows) in nearest  # of one of them, these are the nearest
    assert len(seen[2]) > 4  # chance names another one
    assert crop(batch, generator(), batch.agent_mask.shape[1]) is batch


def test_somebody_in_the_same_place_does_not_push_a_target_out(batch: SceneBatch) -> None:
    crowded = replace(batch, pose=torch.zeros_like(batch.pose))
    for seed in range(8):
        assert crop(crowded, generator(seed), 1).target_mask.all()
