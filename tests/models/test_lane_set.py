"""Lane-set transformer: separate attention of modes, detached scores, and the influence of agents and lanes."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from support.models import seeded
from support.scenes import make_scene
from support.tensors import draw, weights_of
from torch import Tensor, nn

from trajformer.core.attention import MultiHeadAttention, SeparateAttention, recorded_weights
from trajformer.core.blocks import BlockConfig
from trajformer.data.batch import collate
from trajformer.models.lane_set import LaneSetConfig
from trajformer.models.tokens import motion_vectors

BLOCK = BlockConfig(width=16, heads=2, feedforward=16, dropout=0.0)
PLAIN = LaneSetConfig(12, modes=4, block=BLOCK, agent_layers=1, max_neighbors=5, max_polylines=8)
build = partial(seeded, PLAIN)


def single_attention(layer: SeparateAttention, number: int) -> MultiHeadAttention:
    """One part of a separate attention as a MultiHeadAttention."""
    single = MultiHeadAttention(16, 2)
    part = slice(16 * number, 16 * (number + 1))
    for name in ("query", "key", "value"):
        for parameter in ("weight", "bias"):
            source = getattr(getattr(layer, name), parameter)
            getattr(getattr(single, name), parameter).data.copy_(source[part])
    single.out.weight.data.copy_(layer.out.weight[number].T)
    single.out.bias.data.copy_(layer.out.bias[number, 0])
    return single


def test_separate_attention_equals_several_attentions() -> None:
    torch.manual_seed(0)
    layer, query, key = SeparateAttention(16, 2, 3), draw(5, 4, 16), draw(5, 7, 16, seed=1)
    mask = draw(5, 4, 7, seed=2) > 0
    mask[2, 1] = False
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    out, weights = layer(query, key, mask=mask), weights_of(layer, query, key, mask=mask)
    assert out.shape == (5, 3, 4, 16) and weights.shape == (5, 6, 4, 7)
    for number in range(3):
        single = single_attention(layer, number)
        torch.testing.assert_close(out[:, number], single(query, key, mask=mask), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(weights[:, 2 * number : 2 * number + 2], weights_of(single, query, key, mask=mask))
    assert torch.equal(out[2, :, 1], layer.out.bias[:, 0])


def test_separate_attention_is_initialized_as_several_attentions() -> None:
    torch.manual_seed(0)
    layer = SeparateAttention(64, 4, 6)
    bound = (6 / (64 + 64)) ** 0.5
    for weight in (layer.query.weight, layer.key.weight, layer.value.weight, layer.out.weight):
        assert 0.95 * bound < weight.abs().max() <= bound
    with pytest.raises(ValueError, match="heads 3 does not divide width 16"):
        SeparateAttention(16, 3, 2)


@pytest.mark.parametrize("name", ["query", "key", "value", "out"])
def test_the_attention_weights_of_a_mode_affect_this_mode_only(name: str) -> None:
    model, batch = build(consensus_m=0.0), collate([make_scene(6), make_scene(4, seed=1)]).observation
    before = model(batch)
    weight = getattr(model.lanes.choose, name).weight
    rows = weight[2] if name == "out" else weight[32:48]  # of mode 2
    with torch.no_grad():
        rows += 0.5 * draw(*rows.shape)
    after = model(batch)
    for a, b in ((before.position.flatten(3), after.position.flatten(3)), (before.logit[..., None], after.logit[..., None])):
        changed = (a != b).any(-1)
        assert changed[..., 2].all() and not changed[..., [0, 1, 3]].any()


def test_scores_send_no_gradient_to_features() -> None:
    model, batch = build(consensus_m=0.0), collate([make_scene(6)]).observation
    forecast = model(batch)
    names = [name for name, _ in model.named_parameters()]
    for output, of_score in ((forecast.logit, True), (forecast.position, False)):
        gradients = torch.autograd.grad(output.square().sum(), [*model.parameters()], retain_graph=True, allow_unused=True)
        reached = {name for name, gradient in zip(names, gradients, strict=True) if gradient is not None}
        assert reached == {name for name in names if name.startswith("score.") == of_score}


@pytest.mark.parametrize("steps", [1, 3])
def test_the_lstm_skips_unseen_steps(steps: int) -> None:
    model, batch = build(steps_per_token=steps), collate([make_scene(8)]).observation
    history, valid = model.agents.history, batch.valid.clone()
    valid[0, 0, [2, 3]], valid[0, 1, :6], valid[0, 2, 7:], valid[0, 3, :9], valid[0, 4] = False, False, False, False, False
    batch = replace(batch, valid=valid)
    vector, seen = motion_vectors(batch, steps)
    out = history(batch)[0] - history.kind(batch.agent_kind)[0]
    assert vector.shape[-1] == history.lstm.input_size == 8 * steps and not seen[0, 3:5].any()
    for agent in range(8):
        expected = torch.zeros(16)
        if seen[0, agent].any():
            expected = history.lstm(vector[:, agent, seen[0, agent]])[0][0, -1]
        torch.testing.assert_close(out[agent], expected)


def test_agents_and_lanes_beyond_the_radius_have_no_influence() -> None:
    model, batch = build(social_radius_m=20.0, map_radius_m=20.0, max_polylines=50), collate([make_scene(12)]).observation
    position = batch.pose[0, : batch.num_targets, :2]
    far = torch.cdist(batch.pose[0, :, :2], position).amin(1) > 20.0
    out = torch.cdist(batch.polyline[0, :, batch.polyline.shape[2] // 2], position).amin(1) > 20.0
    assert far.any() and out.any() and not out.all()
    moved = replace(batch, position=batch.position + far[:, None, None], velocity=batch.velocity + far[:, None, None])
    moved = replace(moved, polyline_flags=moved.polyline_flags ^ out.long())
    assert torch.equal(model(moved).position, model(batch).position)
    inside = replace(batch, polyline_flags=batch.polyline_flags ^ (~out).long())
    assert (model(inside).position - model(batch).position).abs().amax((2, 3, 4)).min() > 1e-5


def test_the_feature_of_a_lane_depends_on_its_waypoints_only() -> None:
    model, batch = build(), collate([make_scene(6, num_scored=0)]).observation
    lanes: list[Tensor] = []
    model.lanes.norm.register_forward_hook(lambda module, args, out: lanes.append(out[0, 0, :, 0]))
    with recorded_weights(model) as weights:
        model(batch)
    assert weights["lanes.look"][0].shape == (1, 1, 8, 2, 1, batch.polyline.shape[2])
    assert weights["lanes.choose"][0].shape == (1, 1, 8, 1, 8)  # four modes with two heads, eight lanes
    distance = (batch.polyline[0, :, batch.polyline.shape[2] // 2] - batch.pose[0, 0, :2]).norm(dim=-1)
    bent = batch.polyline.clone()
    bent[0, distance.argsort()[5], -1] += 2.0  # the last point of the sixth lane
    model(replace(batch, polyline=bent))
    assert (lanes[0] != lanes[1]).any(-1).tolist() == [number == 5 for number in range(8)]


def test_the_length_of_the_history_is_not_limited() -> None:
    assert build()(collate([make_scene(num_history=30)]).observation).position.isfinite().all()
