"""Lane-set transformer: separate attention of modes, and the influence of agents and lanes."""

from dataclasses import replace
from functools import partial

import torch
from support.models import seeded
from support.scenes import make_scene
from support.tensors import draw, weights_of
from torch import nn

from trajformer.core.blocks import BlockConfig
from trajformer.core.multihead import MultiHeadAttention, SeparateAttention
from trajformer.data.batch import collate
from trajformer.models.lane_set import LaneSetConfig

BLOCK = BlockConfig(width=16, heads=2, feedforward=16, dropout=0.0)
PLAIN = LaneSetConfig(12, modes=4, block=BLOCK, agent_layers=1, max_neighbors=5, max_polylines=8)
build = partial(seeded, PLAIN)


def single_attention(layer: SeparateAttention, number: int) -> MultiHeadAttention:
    """One part of a separate attention as a MultiHeadAttention."""
    single = MultiHeadAttention(16, 2)
    part = slice(16 * number, 16 * (number + 1))
    state = {"out.weight": layer.out.weight[number].T, "out.bias": layer.out.bias[number, 0]}
    for name in ("query", "key", "value"):
        projection = getattr(layer, name)
        state[f"{name}.weight"] = projection.weight[part]
        state[f"{name}.bias"] = projection.bias[part]
    single.load_state_dict(state)
    return single


def test_separate_attention_equals_several_attentions() -> None:
    torch.manual_seed(0)
    layer = SeparateAttention(16, 2, 3)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    query = draw(5, 4, 16)
    key = draw(5, 7, 16, seed=1)
    mask = draw(5, 4, 7, seed=2) > 0
    mask[2, 1] = False
    out = layer(query, key, mask=mask)
    weights = weights_of(layer, query, key, mask=mask)
    assert out.shape == (5, 3, 4, 16)
    assert weights.shape == (5, 6, 4, 7)
    for number in range(3):
        single = single_attention(layer, number)
        expected = single(query, key, mask=mask)
        torch.testing.assert_close(out[:, number], expected, atol=1e-4, rtol=1e-4)
        heads = weights[:, 2 * number : 2 * number + 2]
        torch.testing.assert_close(heads, weights_of(single, query, key, mask=mask))
    assert torch.equal(out[2, :, 1], layer.out.bias[:, 0])


def test_agents_and_lanes_beyond_the_radius_have_no_influence() -> None:
    model = build(social_radius_m=20.0, map_radius_m=20.0, max_polylines=50)
    batch = collate([make_scene(12)]).observation
    targets = batch.pose[0, : batch.num_targets, :2]
    middle = batch.polyline[0, :, batch.polyline.shape[2] // 2]
    far_agents = torch.cdist(batch.pose[0, :, :2], targets).amin(1) > 20.0
    far_lanes = torch.cdist(middle, targets).amin(1) > 20.0
    assert far_agents.any()
    assert far_lanes.any() and not far_lanes.all()

    offset = far_agents[:, None, None]
    flags = batch.polyline_flags ^ far_lanes.long()
    changed = replace(batch, position=batch.position + offset, velocity=batch.velocity + offset)
    changed = replace(changed, polyline_flags=flags)
    position = model(batch).position
    assert torch.equal(model(changed).position, position)

    near_changed = replace(batch, polyline_flags=batch.polyline_flags ^ (~far_lanes).long())
    difference = (model(near_changed).position - position).abs()
    assert difference.amax((2, 3, 4)).min() > 1e-5


def test_the_length_of_the_history_is_not_limited() -> None:
    observation = collate([make_scene(num_history=30)]).observation
    assert build()(observation).position.isfinite().all()
