"""Augmentation: determinism, rigid motions, crops, hidden entries, noise, tempo, temporal shift."""

import math
from dataclasses import replace
from itertools import compress

import numpy as np
import pytest
import torch
from support.scenes import STATES, hide, make_scene
from support.tensors import differing, edit, generator, tensors
from torch import Tensor

from trajformer.data import augment_agents, augment_space, augment_time
from trajformer.data.augment import AugmentConfig, augment
from trajformer.data.batch import (
    AGENT_FIELDS,
    POLYLINE_FIELDS,
    Observation,
    SceneBatch,
    append_axes,
    collate,
)
from trajformer.data.sample import BatchConfig, Frame
from trajformer.scenes.geometry import GRID_M, rotate, wrap
from trajformer.scenes.kinematics import difference_velocity, estimate_motion
from trajformer.scenes.scene import LaneFlag, Scene

ALL = AugmentConfig(
    flip=0.5,
    rotate=math.pi,
    noise_m=0.1,
    tempo=0.3,
    crop=9,
    agent_dropout=0.4,
    shift=0.5,
    history_mask=0.5,
    history_mask_steps=6,
)
NONE = AugmentConfig(flip=0.0, rotate=0.0, agent_dropout=0.0, history_mask=0.0, lost=0.0)
MOTION = ("position", "heading", "velocity")
METRIC = ("position", "velocity", "target", "polyline")  # tensors in metres


@pytest.fixture(scope="module")
def batch() -> SceneBatch:
    """Four scenes of different sizes with all lane flags.

    Some agents are lost before the last step.
    """
    scenes = [
        make_scene(12),
        make_scene(5, num_scored=0, seed=1),
        make_scene(20, num_scored=4, seed=2),
        make_scene(seed=3),
    ]
    batch = collate(scenes)
    mask = batch.observation.polyline_mask
    return edit(batch, polyline_flags=torch.arange(mask.numel()).reshape(mask.shape) % 16 * mask)


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


def assert_padding_is_zero(batch: SceneBatch) -> None:
    values = tensors(batch)
    masks = dict.fromkeys(MOTION, "valid") | {
        "valid": "agent_mask",
        "pose": "agent_mask",
        "age": "agent_mask",
        "target": "target_valid",
        "polyline": "polyline_mask",
    }
    for name, mask in masks.items():
        assert not values[name][~values[mask]].any(), name


def test_a_seed_determines_the_result_and_the_input_is_unchanged(batch: SceneBatch) -> None:
    before = {name: value.clone() for name, value in tensors(batch).items()}
    first = augment(batch, ALL, generator(5))
    assert differing(first, augment(batch, ALL, generator(5))) == set()
    other = augment(batch, ALL, generator(6))
    assert differing(first, other) >= {"position", "valid", "agent_mask", "target", "polyline"}
    assert augment(batch, NONE, generator()) is batch
    assert_padding_is_zero(first)
    assert first.observation.frame is batch.observation.frame
    assert first.observation.scene_id == batch.observation.scene_id
    assert all(torch.equal(value, before[name]) for name, value in tensors(batch).items())


def test_flip_mirrors_the_scene_at_the_x_axis(batch: SceneBatch) -> None:
    mirrored = augment_space.flip(batch, generator(), 1.0)
    left, right = tensors(batch), tensors(mirrored)
    for name in METRIC:
        assert torch.equal(right[name], left[name] * torch.tensor([1.0, -1.0])), name
    assert torch.equal(right["heading"], -left["heading"])
    assert torch.equal(right["pose"], left["pose"] * torch.tensor([1.0, -1.0, -1.0]))
    turn_left, turn_right = int(LaneFlag.TURN_LEFT), int(LaneFlag.TURN_RIGHT)
    both = turn_left | turn_right
    for old, new in (
        (0, 0),
        (turn_left, turn_right),
        (turn_right, turn_left),
        (both, both),
        (turn_left | 3, turn_right | 3),
    ):
        chosen = left["polyline_flags"] == old
        assert chosen.any() and (right["polyline_flags"][chosen] == new).all()
    assert differing(batch, mirrored) == {*MOTION, "pose", "target", "polyline", "polyline_flags"}
    assert differing(augment_space.flip(mirrored, generator(), 1.0), batch) == set()
    is_flipped = torch.rand(4, generator=generator(2)) < 0.5
    assert is_flipped.any() and not is_flipped.all()
    mixed = tensors(augment_space.flip(batch, generator(2), 0.5))
    for number in range(4):
        expected = right if is_flipped[number] else left
        for name, value in mixed.items():
            assert torch.equal(value[number], expected[name][number]), name


def test_rotation_is_a_rigid_motion_about_the_origin(batch: SceneBatch) -> None:
    rotated = augment_space.rotate(batch, generator(3), math.pi)
    angle = (2 * torch.rand(4, generator=generator(3)) - 1) * math.pi
    assert angle.abs().min() > 0.05
    before = tensors(batch)
    after = tensors(rotated)
    for name in METRIC:
        backward = append_axes(-angle, before[name].ndim - 1)
        close(after[name], rotate(before[name], backward), 1e-4)
    turn = wrap(after["heading"] - before["heading"] + angle[:, None, None])
    assert turn[before["valid"]].abs().max() < 1e-5
    assert after["heading"].abs().max() <= math.pi + 1e-6
    close(after["pose"][..., :2], rotate(before["pose"][..., :2], -angle[:, None]), 1e-4)
    turn = wrap(after["pose"] - before["pose"])[..., 2]
    is_agent = before["agent_mask"]
    assert wrap(turn + angle[:, None])[is_agent].abs().max() < 1e-5
    # The angle is proportional to the limit.
    slightly = augment_space.rotate(batch, generator(3), 0.3).observation.pose
    turn = wrap(slightly - before["pose"])[..., 2]
    close(turn, -0.3 / math.pi * angle[:, None] * is_agent, 1e-5)
    assert_padding_is_zero(rotated)


@pytest.mark.parametrize("probability", [0.5, 1.0])
def test_agent_dropout_hides_context_agents_only(batch: SceneBatch, probability: float) -> None:
    fewer = augment_agents.drop_agents(batch, generator(), probability)
    before, after = tensors(batch), tensors(fewer)
    gone = before["agent_mask"] & ~after["agent_mask"]
    assert gone.any() and not (after["agent_mask"] & ~before["agent_mask"]).any()
    for name in (*STATES, "pose"):
        assert not after[name][gone].any(), name
        assert torch.equal(after[name][~gone], before[name][~gone]), name
    assert (after["agent_mask"][:, : batch.observation.num_targets] >= before["target_mask"]).all()
    assert differing(batch, fewer) == {*STATES, "pose", "age", "agent_mask"}
    if probability == 1.0:
        assert after["agent_mask"].sum(1).tolist() == before["target_mask"].sum(1).tolist()


def test_lane_dropout_hides_polylines_only(batch: SceneBatch) -> None:
    fewer = augment_agents.drop_lanes(batch, generator(), 0.5)
    before, after = batch.observation.polyline_mask, fewer.observation.polyline_mask
    assert 0.3 < after.sum() / before.sum() < 0.7 and not (after & ~before).any()
    assert torch.equal(fewer.observation.polyline[after], batch.observation.polyline[after])
    assert differing(batch, fewer) == {"polyline", "polyline_flags", "polyline_mask"}
    assert_padding_is_zero(fewer)


def test_hidden_agents_and_polylines_are_removed_and_the_others_stay(batch: SceneBatch) -> None:
    hidden = augment_agents.drop_agents(batch, generator(), 0.7)
    hidden = augment_agents.drop_lanes(hidden, generator(1), 0.7)
    small = augment_agents.shrink(hidden)
    before = hidden.observation
    after = small.observation
    targets = before.num_targets

    num_polylines = after.polyline_mask.shape[1]
    assert num_polylines < before.polyline_mask.shape[1]
    assert after.polyline_mask.sum(1).max() == num_polylines
    num_agents = after.agent_mask.shape[1]
    assert num_agents < before.agent_mask.shape[1]
    assert after.agent_mask[:, targets:].sum(1).max() == num_agents - targets
    assert after.num_targets == targets
    assert torch.equal(after.target_mask, before.target_mask)
    assert torch.equal(small.truth.position, batch.truth.position)
    assert torch.equal(small.truth.valid, batch.truth.valid)
    for scene in range(small.num_scenes):
        assert visible(after, scene).keys() == visible(before, scene).keys()
        for name, value in visible(before, scene).items():
            assert torch.equal(visible(after, scene)[name], value), name
        assert visible_names(after, scene) == visible_names(before, scene)
    assert augment_agents.shrink(small) is small


def visible(o: Observation, scene: int) -> dict[str, Tensor]:
    """All values of the agents and polylines of a scene that are not hidden."""
    agents = {name: getattr(o, name)[scene][o.agent_mask[scene]] for name in AGENT_FIELDS}
    is_polyline = o.polyline_mask[scene]
    polylines = {name: getattr(o, name)[scene][is_polyline] for name in POLYLINE_FIELDS}
    return agents | polylines


def visible_names(o: Observation, scene: int) -> list[str]:
    return list(compress(o.agent_id[scene], o.agent_mask[scene]))


@pytest.mark.parametrize("steps", [4, 8, 100])
def test_history_masks_hide_first_steps_but_no_agent(batch: SceneBatch, steps: int) -> None:
    valid = batch.observation.valid.clone()
    valid[0, 1, 2:] = False  # a track that ends after two steps
    o = batch.observation
    batch = edit(
        batch,
        valid=valid,
        position=o.position * valid[..., None],
        heading=o.heading * valid,
        velocity=o.velocity * valid[..., None],
    )
    step = torch.arange(10)
    any_hidden, max_hidden = False, False
    for seed in range(10):
        masked = augment_time.mask_history(batch, generator(seed), 1.0, steps)
        kept = masked.observation.valid
        assert not (kept & ~valid).any()
        hidden = valid & ~kept
        any_hidden |= bool(hidden.any())
        last = torch.where(valid, step, -1).amax(-1)
        assert torch.equal(torch.where(kept, step, -1).amax(-1), last)
        first = torch.where(kept, step, 10).amin(-1)
        assert torch.equal(kept, valid & (step >= first[..., None])), "only first steps are hidden"
        assert not hidden[..., min(steps, 8) :].any()
        max_hidden |= bool(hidden[..., min(steps, 8) - 1].any())
        assert differing(batch, masked) <= {*STATES}
        assert_padding_is_zero(masked)
    assert any_hidden and max_hidden


def test_position_noise_is_added_to_positions_and_velocities(batch: SceneBatch) -> None:
    noisy = augment_space.jitter_positions(batch, generator(1), 0.5)
    before = batch.observation
    after = noisy.observation
    assert differing(batch, noisy) == {"position", "velocity"}
    noise = after.position - before.position
    change = after.velocity - before.velocity
    assert (noise[~before.valid] == 0).all()
    steps = round(0.5 / before.period_s)  # over which a velocity is measured
    is_known = before.valid[:, :, steps:] & before.valid[:, :, :-steps]
    expected = (noise[:, :, steps:] - noise[:, :, :-steps]) / 0.5
    close(change[:, :, steps:][is_known], expected[is_known], 1e-4)
    is_known_first = is_known[:, :, 0]
    close(change[:, :, 0][is_known_first], expected[:, :, 0][is_known_first], 1e-4)


def test_position_noise_has_a_uniform_deviation_in_half_of_the_scenes(batch: SceneBatch) -> None:
    o = batch.observation
    many = edit(
        batch,
        scene_id=("",) * 400,
        target_mask=o.target_mask[:1].repeat_interleave(400, 0),
        position=o.position[:1].repeat_interleave(400, 0),
        velocity=o.velocity[:1].repeat_interleave(400, 0),
        valid=o.valid[:1].repeat_interleave(400, 0),
    )
    noisy = augment_space.jitter_positions(many, generator(), 0.5).observation
    noise = noisy.position - many.observation.position
    spread = noise[:, o.valid[0]].std((1, 2))  # [400]
    assert 0.4 < (spread == 0).float().mean() < 0.6
    assert spread.max() < 0.55


def test_a_crop_keeps_the_agents_nearest_to_a_target(batch: SceneBatch) -> None:
    observation, seen = batch.observation, [set[str]() for _ in range(batch.num_scenes)]
    per_agent = {
        name: value
        for name, value in tensors(batch).items()
        if value.shape[1:2] == (observation.valid.shape[1],)
    }
    assert len(per_agent) == 10
    for seed in range(8):
        small = augment_agents.crop(batch, generator(seed), 4)
        cropped = small.observation
        assert cropped.agent_mask.shape[1] == 4
        assert (
            cropped.num_targets == small.truth.position.shape[1] == min(4, observation.num_targets)
        )
        assert_padding_is_zero(small)
        for scene, names in enumerate(cropped.agent_id):
            seen[scene] |= set(names)
            rows = [observation.agent_id[scene].index(name) for name in names]
            assert rows == sorted(rows) and cropped.target_mask[scene].any()
            for name, value in per_agent.items():
                assert torch.equal(
                    getattr(cropped, name)[scene, : len(rows)], value[scene, rows]
                ), name
            for slot, row in enumerate(rows[: cropped.num_targets]):
                is_target = row < observation.num_targets and bool(
                    observation.target_mask[scene, row]
                )
                assert bool(cropped.target_mask[scene, slot]) == is_target
                assert not is_target or torch.equal(
                    small.truth.position[scene, slot], batch.truth.position[scene, row]
                )
            point = observation.pose[scene, : len(observation.agent_id[scene]), :2]
            distance = torch.cdist(point[rows], point)
            assert set(rows) in [
                set(row.topk(len(rows), largest=False).indices.tolist()) for row in distance
            ]
    assert len(seen[2]) > 4  # the targets differ
    assert augment_agents.crop(batch, generator(), observation.agent_mask.shape[1]) is batch
    crowded = edit(batch, pose=torch.zeros_like(observation.pose))  # all positions are equal
    assert all(
        augment_agents.crop(crowded, generator(seed), 1).observation.target_mask.all()
        for seed in range(8)
    )


def test_scaling_applies_to_all_lengths_and_speeds(batch: SceneBatch) -> None:
    scaled = augment_space.scale(batch, generator(), 0.2)
    before, after = tensors(batch), tensors(scaled)
    factor = after["target"].flatten(1).norm(dim=1) / before["target"].flatten(1).norm(dim=1)
    assert ((factor >= 0.8) & (factor <= 1.2)).all()
    assert factor.unique().numel() == 4
    for name in METRIC:
        torch.testing.assert_close(after[name], before[name] * factor[:, None, None, None])
    expected = before["pose"][..., :2] * factor[:, None, None]
    torch.testing.assert_close(after["pose"][..., :2], expected)
    assert torch.equal(after["pose"][..., 2], before["pose"][..., 2])
    assert differing(batch, scaled) == {*METRIC, "pose"}


def test_heading_noise_rotates_reference_frames_only(batch: SceneBatch) -> None:
    noisy = augment_space.jitter_headings(batch, generator(), 0.1)
    assert differing(batch, noisy) == {"pose"}
    mask = batch.observation.agent_mask
    before = batch.observation.pose
    after = noisy.observation.pose
    assert 0.05 < wrap(after[..., 2] - before[..., 2])[mask].std() < 0.2
    assert not after[~mask].any()
    assert torch.equal(after[..., :2], before[..., :2])


@pytest.mark.parametrize("limit", [0.2, 0.5])
def test_tempo_replays_the_same_paths_faster_or_slower(limit: float) -> None:
    batch = collate([make_scene(4, seed=seed) for seed in range(16)])
    o = batch.observation
    history = o.num_history
    targets = slice(o.num_targets)
    time = torch.arange(1 - history, o.num_future + 1) * o.period_s
    start = o.pose[:, targets, None, :2]
    velocity = torch.tensor([3.0, -2.0])
    path = start + velocity * time[:, None]
    position = o.position.clone()
    position[:, targets] = path[:, :, :history]
    velocities = o.velocity.clone()
    velocities[:, targets] = velocity
    straight = edit(batch, position=position, velocity=velocities, target=path[:, :, history:])

    fast = augment_time.tempo(straight, generator(), limit)
    factor = fast.observation.velocity[:, 0, -1, 0] / 3.0
    assert 1 - limit <= factor.min() < 1 - limit / 2
    assert 1 + limit / 2 < factor.max() <= 1 + limit
    expected = start + factor[:, None, None, None] * velocity * time[:, None]
    valid = fast.observation.valid[:, targets]
    close(fast.observation.position[:, targets][valid], expected[:, :, :history][valid], 1e-4)
    valid = fast.truth.valid
    close(fast.truth.position[valid], expected[:, :, history:][valid], 1e-4)
    assert torch.equal(fast.observation.pose[:, targets, :2], o.pose[:, targets, :2])
    assert batch.truth.valid.all()
    last = (o.num_future / factor.clamp(min=1)).floor().long()
    assert torch.equal(fast.truth.valid[:, 0].sum(-1), last)


def test_lost_agents_are_continued_from_what_was_recorded_before(batch: SceneBatch) -> None:
    """As in a scene in which their last steps were not recorded."""
    result = augment_time.lose(batch, generator(), 1.0)
    o = result.observation
    before = batch.observation
    count = (before.recorded.sum(-1) - o.recorded.sum(-1)).flatten()
    assert count.unique().tolist() == list(range(9))  # 10 steps of history, of which 2 remain
    assert (o.valid[..., -1] == o.agent_mask).all()
    assert torch.equal(o.recorded & before.recorded, o.recorded)
    for b, a in o.agent_mask.nonzero().tolist():
        last = int(o.recorded[b, a].nonzero().max())
        age = (9 - last) * before.period_s
        velocity = before.velocity[b, a, last]
        close(o.age[b, a], torch.tensor(age), 1e-6)
        close(o.pose[b, a, :2], before.position[b, a, last] + velocity * age, GRID_M)
        close(o.position[b, a, -1], o.pose[b, a, :2], 1e-5)
        close(o.velocity[b, a, -1], velocity, 0)
    assert_padding_is_zero(result)
    assert differing(batch, result) <= {*STATES, "pose", "age"}
    assert differing(batch, augment_time.lose(batch, generator(), 0.0)) == set()


def test_tempo_with_factor_one_changes_no_future() -> None:
    batch = collate([make_scene(4, seed=seed) for seed in range(16)])
    same = augment_time.tempo(batch, generator(), 0.0)
    assert torch.equal(same.truth.position, batch.truth.position)


def test_a_target_without_a_step_at_the_new_tempo_is_removed() -> None:
    """Scored agents may be lost early; a recorded step may lie between the new ones."""
    seen_once = hide(hide(make_scene(12), 1, slice(0, 5)), 1, slice(6, 10))
    result = augment_time.tempo(collate([seen_once] * 64), generator(), 0.3)
    o, truth = result.observation, result.truth
    kept = o.target_mask[:, 1]
    assert 0 < kept.sum() < 64
    assert o.recorded[kept, 1].any(-1).all()
    assert not o.valid[~kept, 1].any() and not truth.valid[~kept, 1].any()
    assert not (o.target_mask & ~o.agent_mask[:, : o.num_targets]).any()
    assert_padding_is_zero(result)


def test_moving_targets_are_kept_also_if_they_have_several_futures() -> None:
    batch = collate(
        [make_scene(20, num_scored=0, seed=seed) for seed in range(8)], BatchConfig(targets="all")
    )
    truth, targets = batch.truth, batch.observation.num_targets
    still = batch.observation.pose[:, :targets, None, :2].expand_as(truth.position)
    both = edit(
        batch,
        target=torch.stack([still, truth.position], 2),
        target_valid=torch.stack([truth.valid] * 2, 2),
    )
    left = augment_agents.thin(batch, generator(), 3)
    right = augment_agents.thin(both, generator(), 3)
    assert left.observation.agent_id == right.observation.agent_id
    assert torch.equal(left.truth.position, right.truth.position[:, :, 1])


def test_a_batch_without_targets_is_not_cropped(batch: SceneBatch) -> None:
    o, truth = batch.observation, batch.truth.map(lambda value: value[:, :0])
    empty = SceneBatch(replace(o, target_mask=o.target_mask[:, :0]), truth)
    assert augment_agents.crop(empty, generator(), 3) is empty


# ---- temporal shift --------------------------------------------------------------------------


def shifted(batch: SceneBatch, count: int) -> SceneBatch:
    """All scenes, observed `count` steps earlier."""
    for _ in range(count):
        batch = augment_time.shift(batch, generator(), 1.0, 1)
    return batch


def recorded_earlier(scene: Scene, count: int) -> Scene:
    """The recording after `count` additional empty steps."""
    values = {name: np.roll(getattr(scene, name), count, 1) for name in STATES}
    for value in values.values():
        value[:, :count] = 0
    return replace(scene, **values).validate()


def by_agent(batch: SceneBatch, scene: int) -> dict[str, dict[str, Tensor]]:
    """Histories, poses and futures of the agents of a scene by name."""
    values, observation, rows = tensors(batch), batch.observation, {}
    for row, name in enumerate(observation.agent_id[scene]):
        if observation.agent_mask[scene, row]:
            is_target = row < observation.num_targets and bool(observation.target_mask[scene, row])
            fields = (*STATES, "pose", *(("target", "target_valid") if is_target else ()))
            rows[name] = {field: values[field][scene, row] for field in fields}
    return rows


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("frame", [Frame.SCENE, Frame.FOCAL])
def test_a_shifted_scene_equals_the_scene_recorded_earlier(count: int, frame: Frame) -> None:
    late = hide(make_scene(12), 5, slice(0, 9))  # an agent appears in the last observed step
    few = make_scene(5, num_scored=1, seed=1)
    many = make_scene(20, num_scored=4, seed=2)
    scenes = [late, few, many]
    config = BatchConfig(frame=frame)
    result = shifted(collate(scenes, config), count)
    expected = collate([recorded_earlier(scene, count) for scene in scenes], config)
    assert len(by_agent(result, 0)) == 11
    for number in range(3):
        left, right = by_agent(result, number), by_agent(expected, number)
        assert left.keys() == right.keys()
        for name, values in right.items():
            assert left[name].keys() == values.keys()
            for field, value in values.items():
                known = slice(12 - count) if field.startswith("target") else slice(None)
                actual = left[name][field][known]
                torch.testing.assert_close(actual, value[known], atol=1e-5, rtol=1e-5)
    truth = result.truth
    assert truth.valid[:, 0].all()
    # Context agents have no future to learn from.
    assert not truth.valid[~result.observation.target_mask].any()


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("differences", [False, True])
def test_a_shifted_scene_has_no_velocity_that_was_estimated_from_its_future(
    count: int, differences: bool
) -> None:
    def measured(scene: Scene) -> SceneBatch:
        values = scene.position, scene.valid, scene.num_history, scene.period_s
        velocity, heading, _ = estimate_motion(*values)
        if differences:
            velocity = difference_velocity(*values)
        velocity = velocity.astype(np.float32)
        return collate([replace(scene, velocity=velocity, heading=heading.astype(np.float32))])

    scene = make_scene(30)
    for row in range(3, 30):
        scene = hide(scene, row, slice(0, row % 10))
    result = by_agent(shifted(measured(scene), count), 0)
    expected = by_agent(measured(recorded_earlier(scene, count)), 0)
    assert 2 < len(result) < len(expected)
    for name, values in result.items():
        moving = bool(values["velocity"].norm(dim=-1).amax() > 2)  # the heading of others is noise
        for field in ("valid", "position", "velocity", *(("heading", "pose") if moving else ())):
            torch.testing.assert_close(values[field], expected[name][field], atol=1e-4, rtol=1e-4)


def test_several_futures_of_one_past_are_shifted_together() -> None:
    batch = collate([make_scene(12), make_scene(seed=3)])
    position, valid = batch.truth.position, batch.truth.valid
    both = edit(
        batch,
        target=torch.stack([position, position + valid[..., None]], 2),
        target_valid=torch.stack([valid] * 2, 2),
    )
    result, single = shifted(both, 3).truth, shifted(batch, 3).truth
    assert torch.equal(result.position[:, :, 0], single.position)
    assert torch.equal(result.valid[:, :, 1], single.valid)
    second = result.position[:, :, 1]
    assert torch.equal(second[:, :, :3], single.position[:, :, :3])
    moved = single.position + single.valid[..., None]
    assert torch.equal(second[:, :, 3:], moved[:, :, 3:])


def test_a_missing_future_of_several_stays_missing() -> None:
    batch = collate([make_scene(12)])
    position, valid = batch.truth.position, batch.truth.valid
    missing = [torch.stack([value, torch.zeros_like(value)], 2) for value in (position, valid)]
    result = shifted(edit(batch, target=missing[0], target_valid=missing[1]), 3).truth
    assert result.valid[:, :, 0].any()
    assert not result.valid[:, :, 1].any()
    assert not result.position[:, :, 1].any()


def test_a_scene_is_not_shifted_before_all_its_targets_are_visible() -> None:
    batch = collate([make_scene(12), hide(make_scene(seed=3), 1, slice(3, 9))])
    before = tensors(batch)
    after = tensors(augment_time.shift(batch, generator(), 1.0, 1))
    assert not torch.equal(after["position"][0], before["position"][0])
    for name in before:
        assert torch.equal(after[name][1], before[name][1]), name
    assert differing(augment_time.shift(batch, generator(), 0.0, 8), batch) == set()


def test_shifts_have_the_requested_lengths_and_leave_half_a_second() -> None:
    batch = collate([make_scene(4, seed=seed) for seed in range(64)])
    for steps, longest in ((3, 3), (100, 5)):
        valid = augment_time.shift(batch, generator(), 1.0, steps).observation.valid[:, 0]
        num_removed = 10 - valid.sum(-1)
        assert num_removed.unique().tolist() == list(range(1, longest + 1))
    short = collate([make_scene(num_history=5)])
    assert augment_time.shift(short, generator(), 1.0, 8) is short
    half = augment(batch, replace(NONE, shift=0.5, shift_steps=3), generator())
    assert 16 < (half.observation.valid[:, 0].sum(-1) < 10).sum() < 48
