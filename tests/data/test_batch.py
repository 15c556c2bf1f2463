"""Scenes to tensors: who is kept and in which order, padding, frames, and that no future leaks into what a model sees."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from support.scenes import make_scene, transform_scene
from torch import Tensor

from trajformer.data.batch import SceneBatch, collate, stack, transform
from trajformer.data.sample import BatchConfig, Frame, sample
from trajformer.errors import SceneError
from trajformer.scenes.geometry import from_frame, rotate, wrap
from trajformer.scenes.scene import AgentRole, PolylineKind, Scene

FUTURE_FIELDS = {"target", "target_valid"}
WIDE = BatchConfig(agent_radius_m=1e4, map_radius_m=1e4)


def tensors(batch: SceneBatch) -> dict[str, Tensor]:
    return {f.name: getattr(batch, f.name) for f in fields(batch) if isinstance(getattr(batch, f.name), Tensor)}


def edit(scene: Scene, agent: int, steps: slice, **values: float) -> Scene:
    """A copy with some steps of an agent hidden, or (given values) overwritten."""
    arrays = {name: getattr(scene, name).copy() for name in ("position", "heading", "velocity", "valid")}
    for name in values or arrays:
        arrays[name][agent, steps] = values.get(name, 0)
    return replace(scene, **arrays).validate()


def placed(offsets: list[float], num_scored: int = 1) -> Scene:
    """Agents that stand on the x axis, always seen; agent 0 is focal."""
    scene = make_scene(len(offsets), num_scored=num_scored)
    position = np.zeros_like(scene.position)
    position[..., 0] = np.array(offsets)[:, None]
    return replace(scene, position=position, valid=np.ones_like(scene.valid)).validate()


def numbers(batch: SceneBatch, scene: int = 0) -> list[int]:
    """Which agents of the scene, in the order of the batch."""
    return [999 if name == "AV" else int(name) - 1000 for name in batch.observation.agent_id[scene]]


def test_targets_come_first_then_the_nearest() -> None:
    scene = placed([0.0, 10.0, 40.0, -6.0, 12.0, 79.0, 91.0, 13.5], num_scored=1)
    scene = replace(
        scene, agent_role=np.array([0, 0, 1, 0, 2, 0, 0, 0], np.uint8), agent_id=tuple(str(1000 + n) for n in range(8))
    )
    batch = collate([scene], BatchConfig(agent_radius_m=50.0))
    # Targets at 12 (focal) and 40; the others lie 1.5, 2, 12, 18 and 39 m from the nearest of them, and 51 m: too far.
    assert numbers(batch) == [4, 2, 7, 1, 0, 3, 5]
    assert batch.observation.num_targets == 2 and batch.observation.agent_role[0, :2].tolist() == [AgentRole.FOCAL, AgentRole.SCORED]
    np.testing.assert_array_equal(batch.observation.position[0, :, 0, 0], scene.position[[4, 2, 7, 1, 0, 3, 5], 0, 0])
    np.testing.assert_array_equal(batch.truth.position[0], scene.position[[4, 2], 10:])
    assert numbers(collate([scene], BatchConfig(max_agents=4))) == [4, 2, 7, 1]
    crowded = collate([scene], BatchConfig(max_agents=1))  # the limit is for context: no target is ever left out
    assert numbers(crowded) == [4, 2] and crowded.observation.num_targets == 2 and crowded.observation.target_mask.all()
    only = collate([scene], BatchConfig(targets="focal"))
    assert only.observation.num_targets == 1 and numbers(only)[:3] == [4, 7, 1]


def test_every_array_is_the_scene_s() -> None:
    scene = make_scene(12)
    batch = collate([scene], WIDE)
    rows = [list(scene.agent_id).index(name) for name in batch.observation.agent_id[0]]
    assert sorted(rows) == list(range(12)) and batch.observation.scene_id == (scene.scene_id,)
    for name in ("position", "heading", "velocity", "valid"):
        np.testing.assert_array_equal(tensors(batch)[name][0], getattr(scene, name)[rows, :10])
    np.testing.assert_array_equal(batch.observation.agent_kind[0], scene.agent_kind[rows])
    np.testing.assert_array_equal(batch.truth.valid[0], scene.valid[rows[:3], 10:])
    assert (batch.observation.num_history, batch.observation.num_future, batch.num_scenes, batch.observation.period_s) == (10, 12, 1, scene.period_s)
    np.testing.assert_array_equal(batch.observation.frame_pose[0], [*scene.origin, 0.0])
    assert batch.observation.frame_pose.dtype == torch.float64


def test_pose_is_taken_at_the_last_observed_step() -> None:
    scene = edit(edit(make_scene(12), 1, slice(6, 10)), 2, slice(9, 22))
    batch = collate([scene])
    for row, (agent, step) in enumerate([(0, 9), (1, 5), (2, 8)]):
        np.testing.assert_array_equal(batch.observation.pose[0, row], [*scene.position[agent, step], scene.heading[agent, step]])


def test_polylines_in_reach_are_kept_without_drivable_areas() -> None:
    scene = make_scene(1, num_scored=0)
    batch = collate([scene], WIDE)
    assert set(batch.observation.polyline_kind[0].tolist()) == {0, 1, 2, 3}
    assert batch.observation.polyline.shape == (1, 4 * (3 * 7 + 3), 10, 2)  # lanes of 51, 18 and 51 m, and crossings of 42 m
    assert batch.observation.polyline_flags.unique().tolist() == [0, 1, 2]
    near = collate([scene], BatchConfig(map_radius_m=25.0)).polyline[0]
    gap = (near - batch.observation.pose[0, 0, :2]).norm(dim=-1).amin(-1)
    everything = (batch.observation.polyline[0] - batch.observation.pose[0, 0, :2]).norm(dim=-1).amin(-1)
    assert gap.max() <= 25.0 and 0 < len(near) < 96
    assert len(near) == (everything <= 25.0).sum()
    few = collate([scene], replace(WIDE, polyline_points=4, polyline_length_m=100.0))
    assert few.observation.polyline.shape == (1, (scene.polyline_kind != PolylineKind.DRIVABLE_AREA).sum(), 4, 2)


def test_padding_is_zero_and_batch_mates_do_not_matter() -> None:
    scenes = [make_scene(12), make_scene(4, num_scored=0, seed=1, with_map=False), make_scene(20, num_scored=5, seed=2)]
    together = collate(scenes)
    assert together.observation.agent_mask.sum(1).tolist() == [12, 4, 20] and together.observation.target_mask.sum(1).tolist() == [3, 1, 6]
    masks = {"agent": together.observation.agent_mask, "target": together.observation.target_mask, "polyline": together.observation.polyline_mask}
    for number, scene in enumerate(scenes):
        alone = tensors(collate([scene]))
        for name, value in tensors(together).items():
            own, got = alone[name][0], value[number]
            if name == "frame_pose":
                assert torch.equal(got, own)
                continue
            kind = name.split("_")[0] if name.split("_")[0] in masks else "agent"
            size = int(masks[kind][number].sum())
            assert torch.equal(got[:size], own), name
            assert not got[size:].any(), name
    assert torch.equal(together.observation.valid.any(-1), together.observation.agent_mask)


@pytest.mark.parametrize("frame", [Frame.SCENE, Frame.FOCAL])
def test_a_model_sees_nothing_of_the_future(frame: Frame) -> None:
    scene = edit(make_scene(12), 4, slice(9, 22))
    rng = np.random.default_rng(0)
    later = {name: getattr(scene, name).copy() for name in ("position", "heading", "velocity", "valid")}
    later["valid"][:, 10:] = rng.random((12, 12)) > 0.5
    for name in ("position", "heading", "velocity"):
        later[name][:, 10:] = rng.uniform(-3, 3, later[name][:, 10:].shape)
        later[name][~later["valid"]] = 0
    cut = {name: getattr(scene, name)[:, :10] for name in later}
    config = BatchConfig(frame=frame)
    known = collate([scene], config)
    for other in (replace(scene, **later).validate(), replace(scene, **cut).validate()):
        batch = collate([other], config)
        assert batch.observation.agent_id == known.observation.agent_id and batch.observation.num_future == 12
        for name, value in tensors(batch).items():
            assert torch.equal(value, tensors(known)[name]) != (name in FUTURE_FIELDS), name


def test_who_appears_after_the_history_is_dropped() -> None:
    scene = edit(edit(make_scene(12), 2, slice(0, 10)), 7, slice(0, 10))
    assert scene.valid[2, 10:].any() and scene.agent_role[2] == AgentRole.SCORED
    batch = collate([scene], WIDE)
    assert set(numbers(batch)) == set(range(11)) - {2, 7} | {999}
    assert batch.observation.num_targets == 2


def test_all_targets_are_those_seen_last() -> None:
    scene = edit(edit(make_scene(8), 3, slice(9, 10)), 1, slice(9, 10))
    scene = edit(scene, 1, slice(0, 3))
    batch = collate([scene], replace(WIDE, targets="all"))
    last = {
        999 if name == "AV" else int(name) - 1000 for name, seen in zip(scene.agent_id, scene.valid[:, 9], strict=True) if seen
    }
    assert set(numbers(batch)[: batch.observation.num_targets]) == last and not last & {1, 3}
    assert numbers(batch)[0] == 0 and {1, 3} <= set(numbers(batch)[batch.observation.num_targets :])


def test_moving_targets_are_the_scored_and_whoever_goes_somewhere_and_is_always_seen() -> None:
    scene = placed([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], num_scored=0)
    way = np.linspace(0, 1, scene.num_steps - 10, dtype=np.float32)
    for agent, metres in ((1, 5.1), (2, 4.9), (3, -8.0), (4, 30.0), (5, 30.0)):
        scene.position[agent, 10:, 0] += metres * way
    scene = edit(edit(scene, 4, slice(3, 4)), 5, slice(-1, None))  # unseen in the history, in the future
    batch = collate([scene], replace(WIDE, targets="moving"))
    assert numbers(batch)[0] == 0 and set(numbers(batch)[: batch.observation.num_targets]) == {0, 1, 3}  # the focal one need not move
    np.testing.assert_allclose(batch.truth.position[0, 1:, -1, 0].sort().values, [10.0 + 5.1, 30.0 - 8.0])
    assert batch.truth.valid.all()
    blind = replace(scene, **{n: getattr(scene, n)[:, :10] for n in ("position", "heading", "velocity", "valid")})
    assert collate([blind.validate()], replace(WIDE, targets="moving")).num_targets == 1


def test_focal_and_scene_frame_are_one_world() -> None:
    scenes = [transform_scene(make_scene(9, seed=n), 2.5 * n, (31.0, -8.0)) for n in range(3)]
    scene, focal = collate(scenes), collate(scenes, BatchConfig(frame=Frame.FOCAL))
    assert (scene.frame, focal.observation.frame) == (Frame.SCENE, Frame.FOCAL) and scene.agent_id == focal.observation.agent_id
    assert focal.observation.pose[:, 0].abs().max() < 1e-5
    assert (scene.pose[:, 0].abs().amax(-1) > 1).all()
    masks = {"position": "valid", "target": "target_valid", "polyline": "polyline_mask"}
    for name, mask in masks.items():
        city = []
        for batch in (scene, focal):
            value = tensors(batch)[name].double()
            home = batch.observation.frame_pose.reshape(3, *[1] * (value.ndim - 2), 3)
            city.append(from_frame(value, home)[tensors(batch)[mask]])
            assert not value[~tensors(batch)[mask]].any()
        torch.testing.assert_close(*city, atol=1e-4, rtol=0)
    turn = focal.observation.frame_pose[:, 2].float() - scene.frame_pose[:, 2].float()
    gap = wrap(focal.observation.heading + turn[:, None, None] - scene.heading)[scene.valid]
    assert gap.abs().max() < 1e-5
    torch.testing.assert_close(rotate(focal.observation.velocity, turn[:, None, None]), scene.velocity, atol=1e-5, rtol=0)
    for name in ("agent_kind", "agent_role", "valid", "target_valid", "polyline_kind", "polyline_flags"):
        assert torch.equal(getattr(scene, name), tensors(focal)[name])


def test_transform_and_back() -> None:
    batch = collate([make_scene(), make_scene(5, seed=1)])
    pose = torch.tensor([[5.0, -3.0, 0.7], [-20.0, 1.0, -2.9]])
    back = torch.cat([rotate(-pose[:, :2], -pose[:, 2]), -pose[:, 2:]], -1)
    again = transform(transform(batch, pose), back)
    for name, value in tensors(batch).items():
        expected = tensors(again)[name]
        torch.testing.assert_close(value, expected, atol=1e-4, rtol=0, msg=name)
    assert (transform(batch, pose).position - batch.observation.position).abs().max() > 1


@pytest.mark.parametrize("change", [{"num_history": 11}, {"num_future": 13}, {"period": 0.2}])
def test_scenes_of_different_length_do_not_mix(change: dict[str, float]) -> None:
    period = change.pop("period", None)
    other = make_scene(4, scene_id="odd one", **change)
    other = replace(other, period_s=period) if period else other
    with pytest.raises(SceneError, match=r"odd one: period, H and F .* differ from \(0.1, 10, 12\)"):
        collate([make_scene(), other])


def test_without_future_map_or_targets() -> None:
    blind = collate([make_scene(with_future=False), make_scene(seed=1)])
    assert blind.truth.position.shape == (2, 3, 12, 2) and not blind.truth.valid[0].any() and not blind.truth.position[0].any()
    assert blind.truth.valid[1].all() and blind.observation.target_mask.all()
    bare = collate([make_scene(with_map=False)])
    assert bare.observation.polyline.shape == (1, 0, 10, 2) and bare.observation.polyline_mask.shape == (1, 0)
    crowd = replace(make_scene(), agent_role=np.zeros(12, np.uint8))
    idle = collate([crowd])
    assert idle.observation.num_targets == 0 and idle.truth.position.shape == (1, 0, 12, 2) and idle.observation.agent_mask.sum() == 12
    mixed = collate([crowd, make_scene()])
    assert mixed.observation.target_mask.tolist() == [[False] * 3, [True] * 3]


def test_a_focal_frame_needs_a_focal_agent() -> None:
    for scene in (replace(make_scene(), agent_role=np.ones(12, np.uint8)), edit(make_scene(), 0, slice(0, 10))):
        with pytest.raises(SceneError, match="agent_role: no focal agent was seen"):
            collate([scene], BatchConfig(frame=Frame.FOCAL))


def test_samples_stack_to_the_same_batch_and_move_as_a_whole() -> None:
    scenes = [make_scene(), make_scene(5, seed=1)]
    config = BatchConfig(frame=Frame.FOCAL)
    stacked, direct = stack([sample(scene, config) for scene in scenes], Frame.FOCAL), collate(scenes, config)
    assert all(torch.equal(value, tensors(direct)[name]) for name, value in tensors(stacked).items())
    assert all(value.is_meta for value in tensors(direct.to("meta")).values())
