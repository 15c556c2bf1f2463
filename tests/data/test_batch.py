"""Scenes to tensors: selection, order, padding and frames; forecasts: frames and modes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.scenes import STATES, hide, make_scene, transform_scene, varied_scenes
from support.tensors import draw, edit, generator, tensors

from trajformer.data.augment_agents import thin
from trajformer.data.augment_time import shift
from trajformer.data.batch import Observation, collate
from trajformer.data.forecast import Forecast
from trajformer.data.sample import BatchConfig, Frame
from trajformer.errors import SceneError
from trajformer.scenes.geometry import from_frame, rotate, to_frame, wrap
from trajformer.scenes.scene import AgentRole, PolylineKind, Scene

FUTURE_FIELDS = {"target", "target_valid"}
WIDE = BatchConfig(map_radius_m=1e4)
ALL = BatchConfig(targets="all")


def standing(offsets: list[float], num_scored: int = 1) -> Scene:
    """Agents that stand on the x axis and are always visible; agent 0 is focal."""
    scene = make_scene(len(offsets), num_scored=num_scored)
    position = np.zeros_like(scene.position)
    position[..., 0] = np.array(offsets)[:, None]
    return replace(scene, position=position, valid=np.ones_like(scene.valid)).validate()


def agents(observation: Observation) -> list[int]:
    """Indices of the agents of the first scene, in the order of the batch."""
    return [number_of(name) for name in observation.agent_id[0]]


def number_of(name: str) -> int:
    return 999 if name == "AV" else int(name) - 1000


def targets(observation: Observation) -> set[int]:
    return set(agents(observation)[: observation.num_targets])


def test_targets_come_first_then_all_other_agents() -> None:
    scene = standing([0.0, 10.0, 40.0, -6.0, 12.0, 79.0, 9100.0, 13.5])
    roles = np.array([0, 0, 1, 0, 2, 0, 0, 0], np.uint8)
    scene = replace(scene, agent_role=roles, agent_id=tuple(str(1000 + n) for n in range(8)))
    batch = collate([scene])
    expected = [4, 2, 0, 1, 3, 5, 6, 7]
    assert agents(batch.observation) == expected and batch.observation.num_targets == 2
    assert batch.observation.agent_role[0, :2].tolist() == [AgentRole.FOCAL, AgentRole.SCORED]
    np.testing.assert_array_equal(
        batch.observation.position[0, :, 0, 0], scene.position[expected, 0, 0]
    )
    np.testing.assert_array_equal(batch.truth.position[0], scene.position[[4, 2], 10:])
    focal = collate([scene], BatchConfig(targets="focal")).observation
    assert focal.num_targets == 1 and agents(focal) == [4, 0, 1, 2, 3, 5, 6, 7]


@pytest.mark.parametrize("slack_m", [None, 1.0])
def test_the_surroundings_depend_on_the_scene_only(slack_m: float | None) -> None:
    """The agents and polylines of a batch are the same for any targets and any roles."""
    scene = hide(make_scene(12, num_scored=3), 5, slice(8, 10))
    config = BatchConfig(map_radius_m=12.0, map_slack_m=slack_m)
    without_roles = replace(scene, agent_role=np.zeros(12, np.uint8))
    expected = collate([scene], config).observation
    assert 0 < expected.polyline.shape[1] < collate([scene], WIDE).observation.polyline.shape[1]
    for other, targets in ((scene, "focal"), (scene, "all"), (without_roles, "all")):
        actual = collate([other], replace(config, targets=targets)).observation
        assert sorted(actual.agent_id[0]) == sorted(expected.agent_id[0])
        assert torch.equal(actual.polyline, expected.polyline)


def test_lost_agents_are_continued() -> None:
    """At the velocity of their last recorded step; those lost for over a second are left out."""
    scene = hide(hide(make_scene(8, 14), 5, slice(11, 14)), 6, slice(1, 14))
    observation = collate([scene], ALL).observation
    names = observation.agent_id[0]
    assert observation.num_targets == 7 and scene.agent_id[6] not in names
    row = names.index(scene.agent_id[5])
    velocity = torch.from_numpy(scene.velocity[5, 10])
    time = torch.arange(1, 4)[:, None] * scene.period_s
    path = torch.from_numpy(scene.position[5, 10]) + velocity * time
    torch.testing.assert_close(observation.position[0, row, 11:], path)
    torch.testing.assert_close(observation.pose[0, row, :2], path[-1])
    assert (observation.velocity[0, row, 11:] == velocity).all()
    assert (observation.heading[0, row, 11:] == scene.heading[5, 10].item()).all()
    assert observation.pose[0, row, 2] == scene.heading[5, 10].item()
    assert observation.valid[0, row, 11:].all() and not observation.recorded[0, row, 11:].any()
    assert torch.equal(observation.recorded[0, row, :11], torch.from_numpy(scene.valid[5, :11]))
    torch.testing.assert_close(observation.age[0, row], torch.tensor(3 * scene.period_s))


def test_a_target_lost_long_ago_is_continued_but_not_present() -> None:
    scene = hide(replace(make_scene(8), period_s=0.5), 0, slice(7, 10))
    observation = collate([scene]).observation
    assert observation.age[0, 0] == 1.5
    assert not observation.present[0, 0] and observation.present[0, 1:].all()
    end = scene.position[0, 6] + 1.5 * scene.velocity[0, 6]
    np.testing.assert_allclose(observation.pose[0, 0, :2], end, rtol=1e-6)


def test_a_batch_contains_the_arrays_of_the_scene() -> None:
    scene = hide(make_scene(12), 2, slice(10, 22))
    scene = replace(scene, valid=scene.valid | (np.arange(22) == 9))
    batch = collate([scene], WIDE)
    observation = batch.observation
    rows = [list(scene.agent_id).index(name) for name in observation.agent_id[0]]
    assert sorted(rows) == list(range(12)) and observation.scene_id == (scene.scene_id,)
    for name in STATES:
        np.testing.assert_array_equal(
            getattr(observation, name)[0], getattr(scene, name)[rows, :10]
        )
    for pose, row in zip(observation.pose[0], rows, strict=True):
        last = np.flatnonzero(scene.valid[row, :10])[-1]
        np.testing.assert_array_equal(pose, [*scene.position[row, last], scene.heading[row, last]])
    np.testing.assert_array_equal(observation.agent_kind[0], scene.agent_kind[rows])
    np.testing.assert_array_equal(batch.truth.valid[0], scene.valid[rows[:3], 10:])
    sizes = (
        observation.num_history,
        observation.num_future,
        batch.num_scenes,
        observation.period_s,
    )
    assert sizes == (10, 12, 1, scene.period_s)
    np.testing.assert_array_equal(observation.frame_pose[0], [*scene.origin, 0.0])
    assert observation.frame_pose.dtype == torch.float64


def test_near_polylines_are_kept_without_drivable_areas() -> None:
    scene = make_scene(1, num_scored=0)
    observation = collate([scene], WIDE).observation
    assert set(observation.polyline_kind[0].tolist()) == {0, 1, 2, 3}
    # lanes of 51, 18 and 51 m, and crossings of 42 m
    assert observation.polyline.shape == (1, 4 * (3 * 7 + 3), 10, 2)
    assert observation.polyline_flags.unique().tolist() == [0, 1, 2]
    num_lines = (scene.polyline_kind != PolylineKind.DRIVABLE_AREA).sum()
    uncut = replace(WIDE, polyline_points=4, polyline_length_m=100.0)
    assert collate([scene], uncut).observation.polyline.shape == (1, num_lines, 4, 2)


@pytest.mark.parametrize("points", [2, 10])
def test_polylines_within_the_radius_are_kept(points: int) -> None:
    """With two points per piece, both ends count."""
    scene = make_scene(1, num_scored=0)
    every = collate([scene], replace(WIDE, polyline_points=points)).observation
    config = BatchConfig(map_radius_m=25.0, polyline_points=points)
    near = collate([scene], config).observation
    position = every.pose[0, 0, :2]
    distance = (every.polyline[0] - position).norm(dim=-1).amin(-1)
    expected = every.polyline[0][distance <= 25.0]
    assert torch.equal(near.polyline[0], expected)
    assert 0 < len(expected) < 96


def test_padding_is_zero_and_other_scenes_have_no_influence() -> None:
    scenes = [
        make_scene(12),
        make_scene(4, num_scored=0, seed=1, with_map=False),
        make_scene(20, num_scored=5, seed=2),
    ]
    together = collate(scenes)
    masks = {name: tensors(together)[f"{name}_mask"] for name in ("agent", "target", "polyline")}
    assert masks["agent"].sum(1).tolist() == [12, 4, 20]
    assert masks["target"].sum(1).tolist() == [3, 1, 6]
    for number, scene in enumerate(scenes):
        alone = tensors(collate([scene]))
        for name, value in tensors(together).items():
            if name == "frame_pose":
                assert torch.equal(value[number], alone[name][0])
                continue
            prefix = name.split("_")[0]
            mask = masks.get(prefix, masks["agent"])
            size = int(mask[number].sum())
            assert torch.equal(value[number][:size], alone[name][0]), name
            assert not value[number][size:].any(), name
    assert torch.equal(together.observation.valid.any(-1), masks["agent"])


@pytest.mark.parametrize("frame", [Frame.SCENE, Frame.FOCAL])
def test_the_observation_does_not_depend_on_the_future(frame: Frame) -> None:
    scene = hide(make_scene(12), 4, slice(9, 22))
    rng = np.random.default_rng(0)
    changed = {name: getattr(scene, name).copy() for name in STATES}
    changed["valid"][:, 10:] = rng.random((12, 12)) > 0.5
    for name in ("position", "heading", "velocity"):
        changed[name][:, 10:] = rng.uniform(-3, 3, changed[name][:, 10:].shape)
        changed[name][~changed["valid"]] = 0
    cut = {name: getattr(scene, name)[:, :10] for name in changed}
    config = BatchConfig(frame=frame)
    expected = collate([scene], config)
    for other in (replace(scene, **changed).validate(), replace(scene, **cut).validate()):
        batch = collate([other], config)
        assert batch.observation.agent_id == expected.observation.agent_id
        assert batch.observation.num_future == 12
        for name, value in tensors(batch).items():
            assert torch.equal(value, tensors(expected)[name]) != (name in FUTURE_FIELDS), name


def test_agents_that_appear_after_the_history_are_dropped() -> None:
    scene = hide(hide(make_scene(12), 2, slice(0, 10)), 7, slice(0, 10))
    observation = collate([scene], WIDE).observation
    assert set(agents(observation)) == set(range(11)) - {2, 7} | {999}
    assert observation.num_targets == 2


def test_all_targets_are_the_agents_seen_in_the_last_second() -> None:
    scene = hide(make_scene(8, 20), 3, slice(19, 20))
    scene = hide(scene, 1, slice(10, 20))
    scene = hide(scene, 2, slice(9, 20))
    observation = collate([scene], replace(WIDE, targets="all")).observation
    seen = {number_of(scene.agent_id[row]) for row in np.flatnonzero(scene.valid[:, 9:20].any(1))}
    assert targets(observation) == seen
    assert {1, 3} <= seen and 2 not in seen
    assert agents(observation)[0] == 0


def test_moving_targets_are_scored_agents_and_agents_that_move_and_are_always_seen() -> None:
    scene = standing([0.0, 10.0, 20.0, 30.0, 40.0, 50.0], num_scored=0)
    progress = np.linspace(0, 1, scene.num_steps - 10, dtype=np.float32)
    for agent, metres in ((1, 5.1), (2, 4.9), (3, -8.0), (4, 30.0), (5, 30.0)):
        scene.position[agent, 10:, 0] += metres * progress
    scene = hide(scene, 4, slice(3, 4))  # in the history
    scene = hide(scene, 5, slice(-1, None))  # in the future
    batch = collate([scene], replace(WIDE, targets="moving"))
    assert agents(batch.observation)[0] == 0
    assert targets(batch.observation) == {0, 1, 3}  # the focal agent does not need to move
    end = batch.truth.position[0, 1:, -1, 0].sort().values
    np.testing.assert_allclose(end, [10.0 + 5.1, 30.0 - 8.0])
    assert batch.truth.valid.all()
    observed = replace(scene, **{name: getattr(scene, name)[:, :10] for name in STATES}).validate()
    assert collate([observed], replace(WIDE, targets="moving")).observation.num_targets == 1


def test_focal_and_scene_frame_describe_the_same_scene() -> None:
    scenes = [transform_scene(make_scene(9, seed=n), 2.5 * n, (31.0, -8.0)) for n in range(3)]
    scene, focal = collate(scenes), collate(scenes, BatchConfig(frame=Frame.FOCAL))
    assert (scene.observation.frame, focal.observation.frame) == (Frame.SCENE, Frame.FOCAL)
    assert scene.observation.agent_id == focal.observation.agent_id
    assert focal.observation.pose[:, 0].abs().max() < 1e-5
    assert (scene.observation.pose[:, 0].abs().amax(-1) > 1).all()
    left, right = tensors(scene), tensors(focal)
    for name, mask in {
        "position": "valid",
        "target": "target_valid",
        "polyline": "polyline_mask",
    }.items():
        city = []
        for values in (left, right):
            value = values[name].double()
            frame_pose = values["frame_pose"].reshape(3, *[1] * (value.ndim - 2), 3)
            city.append(from_frame(value, frame_pose)[values[mask]])
            assert not value[~values[mask]].any()
        torch.testing.assert_close(*city, atol=1e-4, rtol=0)
    angle = (right["frame_pose"][:, 2] - left["frame_pose"][:, 2]).float()
    angle = angle[:, None, None]
    gap = wrap(right["heading"] + angle - left["heading"])[left["valid"]]
    assert gap.abs().max() < 1e-5
    velocity = rotate(right["velocity"], angle)
    torch.testing.assert_close(velocity, left["velocity"], atol=1e-5, rtol=0)
    for name in (
        "agent_kind",
        "agent_role",
        "valid",
        "target_valid",
        "polyline_kind",
        "polyline_flags",
    ):
        assert torch.equal(left[name], right[name])


@pytest.mark.parametrize("change", [{"num_history": 11}, {"num_future": 13}, {"period": 0.2}])
def test_scenes_of_different_lengths_cannot_share_a_batch(change: dict[str, float]) -> None:
    period = change.pop("period", None)
    other = make_scene(4, scene_id="other", **change)
    other = replace(other, period_s=period) if period else other
    with pytest.raises(
        SceneError, match=r"other: period, H, F and unit .* differ from \(0.1, 10, 12, 'm'\)"
    ):
        collate([make_scene(), other])


def test_scenes_without_future_map_or_targets() -> None:
    batch = collate([make_scene(with_future=False), make_scene(seed=1)])
    assert batch.truth.position.shape == (2, 3, 12, 2)
    assert not batch.truth.valid[0].any() and not batch.truth.position[0].any()
    assert batch.truth.valid[1].all() and batch.observation.target_mask.all()
    without_map = collate([make_scene(with_map=False)]).observation
    assert without_map.polyline.shape == (1, 0, 10, 2) and without_map.polyline_mask.shape == (1, 0)
    context = replace(make_scene(), agent_role=np.zeros(12, np.uint8))
    batch = collate([context])
    assert batch.observation.num_targets == 0 and batch.truth.position.shape == (1, 0, 12, 2)
    assert batch.observation.agent_mask.sum() == 12
    assert collate([context, make_scene()]).observation.target_mask.tolist() == [
        [False] * 3,
        [True] * 3,
    ]


def test_a_focal_frame_needs_an_observed_focal_agent() -> None:
    for scene in (
        replace(make_scene(), agent_role=np.ones(12, np.uint8)),
        hide(make_scene(), 0, slice(0, 10)),
    ):
        with pytest.raises(SceneError, match="agent_role: no focal agent was observed"):
            collate([scene], BatchConfig(frame=Frame.FOCAL))


def test_slow_targets_keep_a_small_map() -> None:
    scene = make_scene(12, num_scored=1)
    large = collate([scene], replace(ALL, map_radius_m=25.0)).observation
    small = collate([scene], replace(ALL, map_radius_m=25.0, map_slack_m=1.0)).observation
    speed = np.linalg.norm(scene.velocity[:, scene.num_history - 1], axis=-1)
    distance = speed * scene.num_future * scene.period_s
    radius = np.minimum(25.0, 1.0 + distance)
    names = large.agent_id[0][: large.num_targets]
    radius = torch.tensor([radius[scene.agent_id.index(name)] for name in names])
    targets = large.pose[0, : large.num_targets, None, :2]
    gap = (large.polyline[0, :, None, ::3] - targets).norm(dim=-1).amin(-1)  # [M, S]
    is_near = (gap <= radius).any(1)
    assert 0 < is_near.sum() < len(is_near)
    assert torch.equal(small.polyline[0], large.polyline[0, is_near])


def test_thinning_keeps_scored_targets_and_mostly_moving_ones() -> None:
    batch = collate(varied_scenes(), ALL)
    o, count = batch.observation, 4
    chosen, moves = set(), []
    for seed in range(24):
        result = thin(batch, generator(seed), count)
        r = result.observation
        assert r.num_targets == count and result.truth.position.shape[1] == count
        for b in range(batch.num_scenes):
            assert sorted(r.agent_id[b]) == sorted(o.agent_id[b])
            names = [r.agent_id[b][s] for s in range(count) if r.target_mask[b, s]]
            rows = [o.agent_id[b].index(name) for name in names]
            assert len(names) == min(count, int(o.target_mask[b].sum()))
            assert torch.equal(r.pose[b, : len(rows)], o.pose[b, rows])
            assert torch.equal(result.truth.position[b, : len(rows)], batch.truth.position[b, rows])
            is_scored = o.agent_role[b, : o.num_targets] >= int(AgentRole.SCORED)
            scored_rows = (is_scored & o.target_mask[b]).nonzero()[:, 0].tolist()
            scored = {o.agent_id[b][row] for row in scored_rows}
            assert len(scored & set(names)) == min(len(scored), count)
            displacement = batch.truth.position[b, :, -1] - o.pose[b, : o.num_targets, :2]
            is_far = (displacement.norm(dim=-1) >= 3.0) & batch.truth.valid[b, :, -1]
            is_moving = is_far & ~is_scored
            others = [row for row in rows if not is_scored[row]]
            if is_moving.sum() > len(others) and not is_moving.all():
                moves += [bool(is_moving[row]) for row in others]
            chosen.add(tuple(names))
    assert len(chosen) > batch.num_scenes  # another choice in other epochs
    assert len(moves) > 20
    assert np.mean(moves) > 0.8


def test_a_shift_removes_targets_that_are_not_visible_then() -> None:
    scene = make_scene(8, seed=3)
    late = int(np.flatnonzero(scene.valid[:, 9] & (scene.agent_role < AgentRole.SCORED))[0])
    scene = hide(scene, late, slice(0, 9))  # appears in the last observed step
    batch = collate([scene], ALL)
    row = batch.observation.agent_id[0].index(scene.agent_id[late])
    result = shift(batch, generator(), 1.0, 1)
    target_mask = result.observation.target_mask
    assert not target_mask[0, row]
    assert not result.truth.valid[0, row].any()
    assert not result.truth.position[0, row].any()
    others = [s for s in range(batch.observation.num_targets) if s != row]
    assert torch.equal(target_mask[0, others], batch.observation.target_mask[0, others])
    later = result.truth.position[0, others[0], 1:]
    torch.testing.assert_close(later, batch.truth.position[0, others[0], :-1])


def test_probability_is_marginal_or_repeated_for_every_agent() -> None:
    logit = torch.tensor([[[0.0, math.log(2.0), 0.0], [5.0, 5.0, 5.0]]])
    forecast = Forecast(torch.zeros(1, 2, 3, 4, 2), logit, Frame.SCENE)
    assert not forecast.is_joint
    assert forecast.num_modes == 3
    expected = torch.tensor([[[0.25, 0.5, 0.25], [1 / 3] * 3]])
    torch.testing.assert_close(forecast.probability(), expected)

    logit = torch.tensor([[0.0, math.log(3.0)]], dtype=torch.bfloat16)
    joint = Forecast(torch.zeros(1, 4, 2, 5, 2), logit, Frame.SCENE)
    assert joint.is_joint
    expected = torch.tensor([0.25, 0.75]).expand(1, 4, 2)
    assert joint.probability().dtype == torch.float32
    torch.testing.assert_close(joint.probability(), expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("frame", [Frame.SCENE, Frame.FOCAL])
def test_the_truth_in_the_city_frame_equals_the_recording(frame: Frame) -> None:
    scenes = [make_scene(seed=0), make_scene(5, seed=1)]
    batch = collate(scenes, BatchConfig(frame=frame))
    pose = batch.observation.pose[:, : batch.observation.num_targets]
    relative = to_frame(batch.truth.position, pose[:, :, None])
    logit = torch.zeros(2, 3, 1)
    local = Forecast(relative[:, :, None], logit, Frame.AGENT, pose=pose)
    position = local.in_batch_frame()[:, :, 0]
    torch.testing.assert_close(position, batch.truth.position, atol=1e-4, rtol=0)
    plain = Forecast(batch.truth.position[:, :, None], logit, frame)
    assert plain.in_batch_frame() is plain.position
    for forecast in (local, plain):
        city = forecast.in_city_frame(batch.observation)
        assert city.shape == (2, 3, 1, 12, 2)
        assert city.dtype == np.float64
        for number, scene in enumerate(scenes):
            names = batch.observation.agent_id[number][:3]
            rows = [scene.agent_id.index(name) for name in names]
            recorded = scene.position[rows, 10:] + scene.origin
            np.testing.assert_allclose(city[number, :, 0], recorded, atol=1e-4)


def test_city_frame_keeps_precision_far_from_its_origin() -> None:
    far = torch.tensor([[5e6, -4e6, 0.0]], dtype=torch.float64)
    batch = edit(collate([make_scene()]), frame_pose=far)
    position = torch.full((1, 3, 1, 12, 2), 0.001, requires_grad=True)
    forecast = Forecast(position, torch.zeros(1, 3, 1), Frame.SCENE)
    city = forecast.in_city_frame(batch.observation)
    np.testing.assert_allclose(city - far[0, :2].numpy(), 0.001, atol=1e-8)


@pytest.mark.parametrize("joint", [False, True])
def test_select_takes_modes_in_the_given_order(joint: bool) -> None:
    logit = draw(2, 6, seed=1) if joint else draw(2, 3, 6, seed=1)
    forecast = Forecast(draw(2, 3, 6, 5, 2), logit, Frame.SCENE, scale=draw(2, 3, 6, 5, 2, seed=2))
    index = torch.tensor([[[5, 0], [1, 2], [3, 3]], [[0, 1], [4, 2], [2, 5]]])
    if joint:
        index = index[:, :1].expand(-1, 3, -1)
    few = forecast.select(index[:, 0] if joint else index)
    for name in ("position", "scale"):
        expected = getattr(forecast, name).take_along_dim(index[..., None, None], 2)
        assert torch.equal(getattr(few, name), expected)
    expected = forecast.probability().take_along_dim(index, 2)
    expected = expected / expected[..., :1]
    probability = few.probability()
    torch.testing.assert_close(probability / probability[..., :1], expected)
