"""SE2Former: kept encodings, poses far from the origin, smooth paths, the fitted components, and its loss."""

import math
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import BLOCK, SE2FORMER
from support.scenes import varied_scenes
from support.training import training_store
from torch import nn

from trajformer.core.pose import Frames, PoseAttentionConfig
from trajformer.data.batch import SceneBatch, Truth, collate
from trajformer.data.loading import SceneDataset
from trajformer.data.sample import BatchConfig, Frame
from trajformer.errors import ConfigError, TrajformerError
from trajformer.losses.set_loss import last_valid
from trajformer.models import se2former
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.scene import AgentRole
from trajformer.scenes.store import SceneStore
from trajformer.testing.models import build_random, example_scenes


@pytest.fixture(scope="module")
def batch() -> SceneBatch:
    return collate(varied_scenes(), BatchConfig(targets="all"))


@pytest.fixture(scope="module")
def model() -> se2former.SE2Former:
    built = build_random(SE2FORMER).eval()
    return built


@torch.no_grad()
def test_a_kept_map_gives_the_forecast_of_a_fresh_one(
    model: se2former.SE2Former, batch: SceneBatch
) -> None:
    fresh, lanes = model(batch.observation), model.encode_map(batch.observation)
    for _ in range(2):
        kept = model.forecast(
            batch.observation, lanes, model.encode_agents(batch.observation, lanes)
        )
        torch.testing.assert_close(kept.position, fresh.position, atol=1e-6, rtol=0)
        torch.testing.assert_close(kept.logit, fresh.logit, atol=1e-6, rtol=0)


@torch.no_grad()
def test_the_map_encoding_does_not_depend_on_agents(
    model: se2former.SE2Former, batch: SceneBatch
) -> None:
    o = batch.observation
    other = replace(o, pose=o.pose + 1.0, position=o.position + 1.0, velocity=o.velocity * 2)
    for before, after in zip(
        model.encode_map(o).memories, model.encode_map(other).memories, strict=True
    ):
        assert torch.equal(before.key, after.key) and torch.equal(before.value, after.value)


@torch.no_grad()
def test_paths_are_sums_of_smooth_components(batch: SceneBatch) -> None:
    """For any output of the network, a path is in the space of its components."""
    model = build_random(SE2FORMER).eval()
    time = torch.linspace(0, 1, 12)
    model.basis.copy_(torch.stack([time, time**2, time**3, time**4]).expand(2, -1, -1))
    o = batch.observation
    rest = (model(o).position - se2former.base_path(o, se2former.Motion.of(o))[0])[o.target_mask]
    # After the refinement, x mixes components of both axes, which are the same here.
    space = torch.linalg.qr(model.basis[0].T).Q  # [F, C]
    rest = rest.transpose(-1, -2)
    assert ((rest @ space @ space.T) - rest).abs().max() < 1e-3 * rest.abs().max()


@torch.no_grad()
def test_the_most_probable_mode_of_an_agent_at_rest_is_rest(
    model: se2former.SE2Former, batch: SceneBatch
) -> None:
    o = batch.observation
    still = o.position[:, :, -1:] + 0.05 * torch.randn(
        o.position.shape, generator=torch.Generator().manual_seed(0)
    )
    resting = model.eval()(replace(o, position=still, valid=o.valid | o.agent_mask[..., None]))
    top = resting.position.take_along_dim(resting.logit.argmax(-1)[..., None, None, None], 2)[
        o.target_mask
    ]
    assert top.diff(dim=-2).abs().max() < 1e-4 and top.abs().max() < 0.2


def test_an_agent_that_was_seen_shortly_is_not_at_rest(batch: SceneBatch) -> None:
    o, targets = batch.observation, batch.observation.num_targets
    time = torch.arange(o.num_history) * o.period_s
    for seen in (2, 4, 7, o.num_history):
        valid = torch.arange(o.num_history) >= o.num_history - seen
        moving = replace(
            o,
            position=5.0 * time[:, None] + torch.zeros_like(o.position),
            valid=valid.expand_as(o.valid),
        )
        assert (se2former.base_path(moving, se2former.Motion.of(moving))[1][:, :targets] == 1).all()


def test_prepare_stores_mean_and_components_of_moving_targets(tmp_path: Path) -> None:
    training_store(tmp_path, 8, 1)
    data = SceneDataset(SceneStore(tmp_path, "train"), BatchConfig(targets="all"))
    mean, basis = se2former.residual_basis(data, 4)
    model = build_random(SE2FORMER)
    model.prepare(data, 0)
    assert torch.equal(model.mean, mean) and torch.equal(model.basis, basis)
    # Residuals are reproduced by all components, and each component has the standard deviation of its coefficient.
    full = se2former.residual_basis(data, 12)[1]
    batch = data[list(range(8))]
    observation, truth = batch.observation, batch.truth
    path = to_frame(truth.position, observation.pose[:, : observation.num_targets, None])
    moves = truth.valid.all(-1) & (path[..., -1, :].norm(dim=-1) > 3.0)
    focal = moves & (observation.agent_role[:, : observation.num_targets] == int(AgentRole.FOCAL))
    rest = path - se2former.base_path(observation, se2former.Motion.of(observation))[0][:, :, 0]
    rest = torch.cat([rest[moves], rest[focal]]) - mean
    for axis, components in zip(rest.unbind(-1), full, strict=True):
        size = components.norm(dim=1, keepdim=True)
        unit = components / size
        torch.testing.assert_close(axis @ unit.T @ unit, axis, atol=1e-3, rtol=0)
        torch.testing.assert_close(
            (axis @ unit[0]).square().mean().sqrt(), size[0, 0], atol=1e-3, rtol=1e-3
        )


@pytest.mark.parametrize(
    "change", [{}, {"nested": 2}, {"joint": True}], ids=["marginal", "nested", "joint"]
)
def test_the_loss_is_that_of_the_best_proposal_and_the_median(
    batch: SceneBatch, change: dict[str, Any]
) -> None:
    """An independent loop over targets; nested modes have a separate winner, joint modes one for the scene."""
    config = se2former.SE2FormerLossConfig(
        moving=0.5, standing=0.1, endpoint=0.7, median=0.2, score=0.3, worlds=0.0
    )
    valid = batch.truth.valid.clone()
    valid[0, 1, 5:], valid[1, 0] = False, False  # an incomplete and an unknown future
    partial = replace(batch, truth=Truth(batch.truth.position * valid[..., None], valid))
    model = build_random(replace(SE2FORMER, **change)).train().requires_grad_(False)
    terms = config.build()(model, partial)
    forecast, o = model(partial.observation), partial.observation
    stages = [torch.cat([f.position, f.median], 2) for f in (*forecast.auxiliary, forecast)]
    known = (o.target_mask & valid.any(-1)).nonzero().tolist()
    distances = {}
    for b, s in known:
        path = to_frame(partial.truth.position[b, s], forecast.pose[b, s])[valid[b, s]]
        distances[b, s] = [
            torch.stack([(m[valid[b, s]] - path).norm(dim=-1) for m in paths[b, s]])
            for paths in stages
        ]
    total = weights = 0.0
    for b, s in known:
        group = [
            rows
            for (scene, target), rows in distances.items()
            if scene == b and (target == s or "joint" in change)
        ]
        error = torch.stack([rows[0][:6].mean(-1) + rows[0][:6, -1] for rows in group]).mean(0)
        best = [(int(error[:size].argmin()), 1.0) for size in (6, change.get("nested", 0)) if size]
        value = torch.tensor(0.0)
        for rows in distances[b, s]:
            for mode, share in (*best, (6, 0.2)):
                huber = torch.where(rows[mode] < 1, rows[mode] ** 2 / 2, rows[mode] - 0.5)
                value = value + share * (huber.mean() + 0.7 * huber[-1])
        ends = torch.stack([rows[1][:6, -1] for rows in group]).mean(0)
        logit = forecast.logit[b] if "joint" in change else forecast.logit[b, s]
        value = value - 0.3 * ((-ends).softmax(0) * logit.log_softmax(0)).sum()
        end = to_frame(partial.truth.position[b, s], forecast.pose[b, s])[
            int(last_valid(valid)[b, s])
        ]
        scored = o.agent_role[b, s] >= int(AgentRole.SCORED)
        weight = 1.0 if scored else 0.5 if end.norm() >= 3.0 else 0.1
        total, weights = total + weight * float(value), weights + weight
    assert float(terms["proposal"] + terms["path"] + 0.3 * terms["score"]) == pytest.approx(
        total / weights, rel=1e-4
    )


@torch.no_grad()
def test_the_nearest_mode_moves_to_the_single_forecast_and_gets_the_highest_score(
    batch: SceneBatch,
) -> None:
    """The single forecast is the middle of the median and the mean of the modes, and the median for agents at rest that do not
    start. The nearest mode of an agent at rest moves all the way, that of others two thirds."""
    model = build_random(SE2FORMER).train()
    model.temperature.fill_(0.5)
    free, shown = model(batch.observation), model.eval()(batch.observation)
    share = se2former.base_path(batch.observation, se2former.Motion.of(batch.observation))[
        1
    ].flatten(2)[..., 0]
    assert (share == 0).any() and (share == 1).any()
    for b, s in batch.observation.target_mask.nonzero().tolist():
        paths, median, logit = (
            free.position[b, s],
            free.median[b, s, 0],
            free.logit[b, s] / math.exp(0.5),
        )
        mean = torch.einsum("k,kfc->fc", logit.softmax(0), paths)
        single = median + share[b, s] * (mean - median) / 2
        nearest = int((paths[:, -1] - single[-1]).norm(dim=-1).argmin())
        assert (
            shown.logit[b, s, nearest]
            == shown.logit[b, s].max()
            == pytest.approx(float(logit.max()), rel=1e-5, abs=1e-5)
        )
        paths[nearest] += (1 - share[b, s] / 3) * (single - paths[nearest])
        torch.testing.assert_close(shown.position[b, s], paths, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("share", "far", "mean_share"),
    [(1.0, 0.9, 0.5), (0.0, 0.7, 0.0), (0.0, 0.9, 1.0)],
    ids=["moving", "resting", "starting"],
)
def test_an_agent_at_rest_starts_if_most_of_its_modes_do(
    share: float, far: float, mean_share: float
) -> None:
    end = torch.tensor([[1.0, 0.0], [8.0, 0.0]])[:, None].expand(
        2, 3, 2
    )  # [K, F, 2], the second mode is far away
    logit = torch.tensor([1 - far, far]).log()
    forecast = se2former.WorldForecast(
        end[None, None], logit[None, None], Frame.AGENT, torch.zeros(1, 1, 3)
    )
    forecast = replace(forecast, median=torch.zeros(1, 1, 1, 3, 2))
    single = build_random(SE2FORMER)._single(forecast, torch.full((1, 1, 1, 1, 1), share))
    expected = mean_share * (1 - far + 8 * far)
    torch.testing.assert_close(single[0, 0, 0], torch.tensor([[expected, 0.0]]).expand(3, 2))


@pytest.mark.parametrize(
    ("straight", "median_y", "expected_y"),
    [(0.4, -1.0, -12.5), (0.4, -9.0, -12.5), (0.7, -1.0, -0.5), (0.7, -9.0, 0.0)],
)
@pytest.mark.parametrize("steps", [10, 60])
def test_the_single_forecast_is_an_average_of_one_manoeuvre(
    straight: float, median_y: float, expected_y: float, steps: int
) -> None:
    """One mode goes straight on and two turn right; the median lies near the straight one, or between the manoeuvres."""
    time = torch.linspace(1 / steps, 1, steps)
    modes = [
        (30 * time, 0 * time),
        *((30 * time.clamp(max=0.5), -y * (2 * time - 1).clamp(min=0)) for y in (10, 15)),
    ]
    path, median = (
        torch.stack([torch.stack(mode, -1) for mode in modes]),
        time[:, None] * torch.tensor([28.0, median_y]),
    )
    logit = torch.tensor([straight, (1 - straight) / 2, (1 - straight) / 2]).log()
    forecast = se2former.WorldForecast(
        path[None, None], logit[None, None], Frame.AGENT, torch.zeros(1, 1, 3)
    )
    single = build_random(SE2FORMER)._single(
        replace(forecast, median=median[None, None, None]), torch.ones(1, 1, 1, 1, 1)
    )
    assert single[0, 0, 0, -1, 1] == pytest.approx(expected_y)


def test_paths_agree_if_the_end_of_one_is_near_the_other() -> None:
    path = 3 * torch.randn(1, 4, 5, 6, 2, generator=torch.Generator().manual_seed(0)).cumsum(3)
    dense = torch.cat([torch.zeros_like(path[..., :1, :]), path], 3).flatten(0, 2).transpose(1, 2)
    dense = (
        nn.functional.interpolate(dense, 5001, mode="linear", align_corners=True)
        .transpose(1, 2)
        .unflatten(0, (4, 5))
    )
    gap = (path[0, :, :, None, None, -1] - dense[:, None]).norm(dim=-1).amin(-1)
    gap = torch.minimum(gap, gap.transpose(1, 2))
    clear = (gap - 2.0).abs() > 0.01
    assert clear.float().mean() > 0.9 and 0.3 < (gap < 2).float().mean() < 0.7
    assert torch.equal(se2former._agree(path)[0][clear], (gap < 2)[clear])


@torch.no_grad()
def test_modes_of_a_world_see_each_other_and_no_other_world() -> None:
    torch.manual_seed(0)
    block = se2former.WorldBlock(BLOCK, PoseAttentionConfig()).eval()
    modes, frames = torch.randn(2, 3, 4, BLOCK.width), Frames.of(torch.randn(2, 12, 3))
    mask = torch.tensor([[True, True, True], [True, True, False]])
    other = modes.clone()
    other[:, 2, 1] = torch.randn(
        BLOCK.width
    )  # mode 1 of the last target, which exists in the first scene only
    changed = (block(modes, frames, mask) - block(other, frames, mask)).abs().amax(-1) > 1e-6
    assert changed[0].nonzero().tolist() == [[0, 1], [1, 1], [2, 1]]
    assert changed[1].nonzero().tolist() == [[2, 1]]


@torch.no_grad()
def test_nested_modes_are_the_most_probable_ones(batch: SceneBatch) -> None:
    plain, nested = (
        build_random(replace(SE2FORMER, nested=count)).eval()(batch.observation) for count in (0, 2)
    )
    torch.testing.assert_close(*(forecast.logit.sort(-1).values for forecast in (plain, nested)))
    real = batch.observation.target_mask
    assert (nested.logit.topk(2).indices[real] < 2).all()


@torch.no_grad()
def test_one_of_the_nested_modes_moves(batch: SceneBatch) -> None:
    model = build_random(replace(SE2FORMER, nested=2))
    free, shown = model.train()(batch.observation), model.eval()(batch.observation)
    moved = (free.position - shown.position).abs().amax((-1, -2))[
        batch.observation.target_mask
    ] > 1e-6
    assert (moved.sum(-1) <= 1).all() and not moved[:, 2:].any() and moved.any()


@torch.no_grad()
def test_a_thousand_agents(model: se2former.SE2Former) -> None:
    crowd = collate(
        example_scenes((1000,)), BatchConfig(targets="all", max_agents=1000, agent_radius_m=1e4)
    )
    forecast = model(crowd.observation)
    assert (
        forecast.position.shape[:2] == (1, crowd.observation.num_targets)
        and crowd.observation.num_targets > 900
    )
    assert forecast.position.isfinite().all() and forecast.logit.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("points", [2, 5, 8, 20])
def test_lanes_of_any_number_of_points(model: se2former.SE2Former, points: int) -> None:
    config = BatchConfig(polyline_points=points)
    assert model(collate(varied_scenes(), config).observation).position.isfinite().all()


def test_a_joint_forecast_takes_each_mode_in_the_world_that_fits_best(
    model: se2former.SE2Former, batch: SceneBatch
) -> None:
    with torch.no_grad():
        forecast = model(batch.observation)
    joint = forecast.joint_futures()
    assert joint.is_joint and joint.position.shape[2] == SE2FORMER.worlds and not forecast.is_joint
    with torch.no_grad():
        pick, world = forecast.worlds()
    for b, s in batch.observation.target_mask.nonzero().tolist():
        gain = pick[b, :, s] * world[b].softmax(-1)[:, None]
        orders = permutations(range(SE2FORMER.modes), SE2FORMER.worlds)
        best = max(
            orders,
            key=lambda order, gain=gain: sum(float(gain[w, mode]) for w, mode in enumerate(order)),
        )
        assert torch.equal(joint.position[b, s], forecast.position[b, s, list(best)])


@torch.no_grad()
def test_worlds_choose_among_selected_modes(model: se2former.SE2Former, batch: SceneBatch) -> None:
    forecast = model(batch.observation)
    order = torch.arange(SE2FORMER.modes).flip(0).expand(*batch.observation.target_mask.shape, -1)
    torch.testing.assert_close(
        forecast.select(order).joint_futures().position, forecast.joint_futures().position
    )
    few = forecast.select(order[..., :2])
    pick, _ = few.worlds()
    torch.testing.assert_close(pick.exp().sum(-1), torch.ones(pick.shape[:-1]))
    ends = few.joint_futures().position[..., -1, :]  # [B, S, W, 2]
    gaps = (ends[:, :, :, None] - few.position[:, :, None, :, -1]).norm(dim=-1).amin(-1)
    assert not gaps[batch.observation.target_mask].any()


@torch.no_grad()
def test_paths_are_computed_in_single_precision(model: se2former.SE2Former) -> None:
    coefficient = torch.randn(1, 3, 2, 2 * SE2FORMER.components)
    with torch.autocast("cpu", torch.bfloat16):
        half = model._curve(coefficient)
    assert torch.equal(half, model._curve(coefficient))


def test_few_moving_targets_and_options_without_effect_are_errors(tmp_path: Path) -> None:
    training_store(tmp_path, 1, 1)
    few = SceneDataset(SceneStore(tmp_path, "train"), BatchConfig(targets="focal"))
    with pytest.raises(TrajformerError, match="too few for 4 components"):
        se2former.residual_basis(few, 4)
    with pytest.raises(ConfigError, match=r"components: 13, expected at most num_future, 12"):
        replace(SE2FORMER, components=13)
    with pytest.raises(
        ConfigError,
        match=r"block.attention_dropout: pose attention does not have it; leave it at 0.0",
    ):
        replace(SE2FORMER, block=replace(BLOCK, attention_dropout=0.1))


def test_worlds_learn_which_modes_go_together() -> None:
    """Two agents with two equally likely modes each, which always agree: the worlds become the two agreements."""
    torch.manual_seed(0)
    worlds = se2former.Worlds(BLOCK, PoseAttentionConfig(), 2)
    modes, logit = torch.randn(1, 2, 2, 32).expand(2, -1, -1, -1), torch.zeros(2, 2, 2)
    frames, mask = (
        Frames.of(torch.randn(1, 2, 3).expand(2, -1, -1)),
        torch.ones(2, 2, dtype=torch.bool),
    )
    aim = torch.eye(2)[:, None].expand(
        2, 2, 2
    )  # scene 0: both take mode 0; scene 1: both take mode 1
    optimizer = torch.optim.Adam(worlds.parameters(), 0.01)
    for _ in range(200):
        optimizer.zero_grad()
        loss = se2former.world_loss(*worlds(modes, logit, frames, mask), aim, torch.ones(2, 2))
        loss.backward()
        optimizer.step()
    pick, world = worlds(modes, logit, frames, mask)
    assert float(loss.detach()) == pytest.approx(
        math.log(2) / 2, abs=0.02
    )  # one bit for both agents, instead of one for each
    assert sorted(pick[0].argmax(-1).tolist()) == [[0, 0], [1, 1]]
    torch.testing.assert_close(world[0].softmax(-1), torch.full((2,), 0.5), atol=0.1, rtol=0)


def test_the_moved_mode_is_the_most_probable_one_if_modes_tie() -> None:
    """Also for small scores, whose next larger number has the same softmax."""
    model = build_random(replace(SE2FORMER, modes=3)).eval()
    nn.init.zeros_(model.temperature)
    path = torch.zeros(1, 1, 3, SE2FORMER.num_future, 2)
    path[0, 0, :, -1, 0] = torch.tensor([10.0, 20.0, 30.0])
    for score in ([0.125, 0.125, -1.0], [0.125, 0.125, 0.125], [2.0, 2.0, -1.0]):
        forecast = se2former.WorldForecast(
            path, torch.tensor([[score]]), Frame.AGENT, torch.zeros(1, 1, 3)
        )
        forecast = replace(forecast, single=path[:, :, 2:], share=torch.ones(1, 1, 1, 1, 1))
        probability = model.finish(forecast).probability()
        assert probability.argsort(dim=-1, descending=True, stable=True)[0, 0, 0] == 2
