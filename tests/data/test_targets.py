"""All agents as targets: which context and lanes are kept, and training on a part of the targets."""

from dataclasses import replace

import numpy as np
import torch
from support.scenes import hide, make_scene, varied_scenes
from support.tensors import generator

from trajformer.data.augment import shift, thin
from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig
from trajformer.scenes.scene import AgentRole

ALL = BatchConfig(targets="all")


def test_agents_lost_before_the_last_step_can_be_left_out() -> None:
    scene = hide(make_scene(8), 5, slice(7, 10))  # the last observed step is 9
    kept = collate([scene], replace(ALL, lost_agents=True)).observation.agent_id[0]
    left = collate([scene], replace(ALL, lost_agents=False)).observation.agent_id[0]
    assert set(kept) - set(left) == {scene.agent_id[5]}


def test_slow_targets_keep_a_small_map() -> None:
    scene = make_scene(12, num_scored=1)
    large = collate([scene], replace(ALL, map_radius_m=25.0)).observation
    small = collate([scene], replace(ALL, map_radius_m=25.0, map_slack_m=1.0)).observation
    way = np.hypot(*scene.velocity[:, scene.num_history - 1].T) * scene.num_future * scene.period_s
    reach = np.where(scene.agent_role >= AgentRole.SCORED, 25.0, np.minimum(25.0, 1.0 + way))
    place = {name: reach[row] for row, name in enumerate(scene.agent_id)}
    targets = large.pose[0, : large.num_targets, :2]
    radius = torch.tensor([place[name] for name in large.agent_id[0][: large.num_targets]])
    apart = (large.polyline[0, :, None, ::3] - targets[:, None]).norm(dim=-1).amin(-1)  # [M, S]
    near = (apart <= radius).any(1)
    assert 0 < near.sum() < len(near)
    assert torch.equal(small.polyline[0], large.polyline[0, near])


def test_thinning_keeps_scored_targets_and_mostly_moving_ones() -> None:
    batch = collate(varied_scenes(), ALL)
    o, count = batch.observation, 4
    chosen, moves = set(), []
    for seed in range(20):
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
            is_scored = (o.agent_role[b, : o.num_targets] >= int(AgentRole.SCORED)) & o.target_mask[b]
            scored = {o.agent_id[b][row] for row in is_scored.nonzero()[:, 0].tolist()}
            assert len(scored & set(names)) == min(len(scored), count)
            way = (batch.truth.position[b, :, -1] - o.pose[b, : o.num_targets, :2]).norm(dim=-1)
            moving = (way >= 3.0) & batch.truth.valid[b, :, -1] & (o.agent_role[b, : o.num_targets] < int(AgentRole.SCORED))
            taken = [row for row in rows if o.agent_role[b, row] < int(AgentRole.SCORED)]
            if moving.sum() > len(taken) and not moving.all():
                moves += [bool(moving[row]) for row in taken]
            chosen.add(tuple(names))
    assert len(chosen) > batch.num_scenes  # another choice in other epochs
    assert len(moves) > 20 and np.mean(moves) > 0.8


def test_a_shift_removes_targets_that_are_not_visible_then() -> None:
    scene = make_scene(8, seed=3)
    late = int(np.flatnonzero(scene.valid[:, 9] & (scene.agent_role < AgentRole.SCORED))[0])
    scene = hide(scene, late, slice(0, 9))  # appears in the last observed step
    batch = collate([scene], ALL)
    row = batch.observation.agent_id[0].index(scene.agent_id[late])
    result = shift(batch, generator(), 1.0, 1)
    assert not result.observation.target_mask[0, row] and not result.truth.valid[0, row].any()
    assert not result.truth.position[0, row].any()
    others = [s for s in range(batch.observation.num_targets) if s != row]
    assert torch.equal(result.observation.target_mask[0, others], batch.observation.target_mask[0, others])
    first = others[0]
    torch.testing.assert_close(result.truth.position[0, first, 1:], batch.truth.position[0, first, :-1])
