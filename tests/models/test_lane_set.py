"""Lane-set transformer: separate attention of modes, detached scores, and the influence of agents and lanes."""

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
        torch.testing.assert_close(
            out[:, number], single(query, key, mask=mask), atol=1e-4, rtol=1e-4
        )
        torch.testing.assert_close(
            weights[:, 2 * number : 2 * number + 2], weights_of(single, query, key, mask=mask)
        )
    assert torch.equal(out[2, :, 1], layer.out.bias[:, 0])


def test_agents_and_lanes_beyond_the_radius_have_no_influence() -> None:
    model, batch = (
        build(social_radius_m=20.0, map_radius_m=20.0, max_polylines=50),
        collate([make_scene(12)]).observation,
    )
    position = batch.pose[0, : batch.num_targets, :2]
    far = torch.cdist(batch.pose[0, :, :2], position).amin(1) > 20.0
    out = torch.cdist(batch.polyline[0, :, batch.polyline.shape[2] // 2], position).amin(1) > 20.0
    assert far.any() and out.any() and not out.all()
    moved = replace(
        batch,
        position=batch.position + far[:, None, None],
        velocity=batch.velocity + far[:, None, None],
    )
    moved = replace(moved, polyline_flags=moved.polyline_flags ^ out.long())
    assert torch.equal(model(moved).position, model(batch).position)
    inside = replace(batch, polyline_flags=batch.polyline_flags ^ (~out).long())
    assert (model(inside).position - model(batch).position).abs().amax((2, 3, 4)).min() > 1e-5


def test_the_length_of_the_history_is_not_limited() -> None:
    assert build()(collate([make_scene(num_history=30)]).observation).position.isfinite().all()
