"""Squeeze-and-excite: formula, position in a block, channels of the Spatial-Channel Transformer."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from support.models import seeded
from support.scenes import make_scene
from support.tensors import draw
from torch import Tensor, nn

from trajformer.core.attention import Groups
from trajformer.core.blocks import BlockConfig, SqueezeConfig, SqueezeExcite
from trajformer.data.batch import AGENT_FIELDS, collate
from trajformer.models.spatial_channel import SpatialChannelConfig

BLOCK = BlockConfig(width=16, heads=2, feedforward=16, dropout=0.0)
PLAIN = SpatialChannelConfig(
    12, block=BLOCK, max_history=10, max_neighbors=6, max_polylines=8, map_width=8
)
build = partial(seeded, PLAIN)


def make(axis: str, channels: int = 0, reduction: int = 4) -> SqueezeExcite:
    torch.manual_seed(0)
    layer = SqueezeExcite(SqueezeConfig(axis, channels, reduction), 16)  # type: ignore[arg-type]
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def weights(layer: SqueezeExcite, z: Tensor) -> Tensor:
    """s = sigmoid(W2 relu(W1 z))."""
    return torch.sigmoid(layer.excite.weight @ torch.relu(layer.squeeze.weight @ z))


def test_features_are_scaled_by_the_formula() -> None:
    layer = make("feature")
    x = draw(3, 7, 16)
    real = torch.arange(7) < torch.tensor([7, 4, 0])[:, None]
    out = layer(x, real[:, None])
    means = (x[0].mean(0), x[1, :4].mean(0), torch.zeros(16))
    for n, z in enumerate(means):
        torch.testing.assert_close(out[n], x[n] * weights(layer, z))
    torch.testing.assert_close(layer(x)[:1], out[:1])
    assert layer.squeeze.weight.shape == (4, 16)
    assert layer.excite.weight.shape == (16, 4)
    assert make("feature", reduction=100).squeeze.weight.shape == (1, 16)


def test_groups_are_scaled_by_the_formula() -> None:
    """Three agents in four steps, then two tokens without an agent; the layer has six channels."""
    agents = 3
    layer = make("group", channels=6, reduction=2)
    x = draw(2, 14, 16)
    real = torch.ones(2, 14, dtype=torch.bool)
    real[0, [1, 4, 7, 10]] = False  # agent 1
    real[0, [0, 3]] = False  # two steps of agent 0
    real[1, 13] = False
    out = layer(x, real[:, None], Groups(agents, agents, (2, 2)))
    for n in range(2):
        z = torch.zeros(6)
        for agent in range(agents):
            tokens = x[n, agent:12:agents][real[n, agent:12:agents]]
            if len(tokens):
                z[agent] = tokens.mean()
        s = weights(layer, z)
        for token in range(12):
            torch.testing.assert_close(out[n, token], x[n, token] * s[token % agents])
        assert torch.equal(out[n, 12:], x[n, 12:])


def test_the_channel_of_an_agent_is_its_rank_by_distance() -> None:
    model = build(channel_axis="agent", road=False)
    collected: list[Tensor] = []  # channel weights of the first block in each call
    model.encoder.layers[0].squeeze.excite.register_forward_hook(
        lambda module, args, out: collected.append(out.sigmoid())
    )
    batch = collate([make_scene(6)]).observation
    first = model(batch)
    order = torch.tensor([0, 1, 2, 5, 3, 4])
    reordered: dict[str, Any] = {}
    for name in AGENT_FIELDS:
        reordered[name] = getattr(batch, name)[:, order]
    second = model(replace(batch, **reordered))
    torch.testing.assert_close(*collected)
    torch.testing.assert_close(first.position, second.position)
    assert collected[0].std(-1).max() > 1e-3


def test_lanes_have_an_influence_with_road_only() -> None:
    batch = collate([make_scene(6)]).observation
    bent = replace(batch, polyline=batch.polyline * 1.01)
    for axis in ("feature", "agent"):
        with_road = build(channel_axis=axis)
        without = build(channel_axis=axis, road=False)
        assert (with_road(batch).position - with_road(bent).position).abs().max() > 1e-4
        assert torch.equal(without(batch).position, without(bent).position)
        assert not any("road" in name for name, _ in without.named_parameters())
