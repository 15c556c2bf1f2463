"""Squeeze-and-excite: formula and position in a block; channels of the Spatial-Channel Transformer."""

from dataclasses import replace
from functools import partial

import torch
from support.models import seeded
from support.scenes import make_scene
from support.tensors import draw
from torch import Tensor, nn

from trajformer.core.attention import Groups
from trajformer.core.blocks import BlockConfig, SqueezeConfig, SqueezeExcite
from trajformer.data.batch import collate
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
    layer, x = make("feature"), draw(3, 7, 16)
    real = torch.arange(7) < torch.tensor([7, 4, 0])[:, None]
    out = layer(x, real[:, None])
    for n, count in enumerate((7, 4, 0)):
        z = x[n, :count].mean(0) if count else torch.zeros(16)
        torch.testing.assert_close(out[n], x[n] * weights(layer, z))
    torch.testing.assert_close(layer(x)[:1], out[:1])
    assert layer.squeeze.weight.shape == (4, 16) and layer.excite.weight.shape == (16, 4)
    assert make("feature", reduction=100).squeeze.weight.shape == (1, 16)


def test_groups_are_scaled_by_the_formula() -> None:
    """Three agents in four steps, then two tokens without an agent; the layer has six channels."""
    layer, x, agents = make("group", channels=6, reduction=2), draw(2, 14, 16), 3
    real = torch.ones(2, 14, dtype=torch.bool)
    real[0, [1, 4, 7, 10]], real[0, [0, 3]], real[1, 13] = False, False, False
    out = layer(x, real[:, None], Groups(agents, agents, (2, 2)))
    for n in range(2):
        rows = [
            [t * agents + a for t in range(4) if real[n, t * agents + a]] for a in range(agents)
        ]
        z = torch.stack(
            [x[n, r].mean() if r else torch.tensor(0.0) for r in rows] + [torch.tensor(0.0)] * 3
        )
        s = weights(layer, z)
        for token in range(12):
            torch.testing.assert_close(out[n, token], x[n, token] * s[token % agents])
        assert torch.equal(out[n, 12:], x[n, 12:])


def test_the_channel_of_an_agent_is_its_rank_by_distance() -> None:
    model, batch = build(channel_axis="agent", road=False), collate([make_scene(6)]).observation
    collected: list[Tensor] = []  # channel weights of the first block in each call
    model.encoder.layers[0].squeeze.excite.register_forward_hook(
        lambda module, args, out: collected.append(out.sigmoid())
    )
    first = model(batch)
    order = torch.tensor([0, 1, 2, 5, 3, 4])
    names = (
        "agent_kind",
        "agent_role",
        "agent_mask",
        "position",
        "heading",
        "velocity",
        "valid",
        "pose",
    )
    second = model(replace(batch, **{name: getattr(batch, name)[:, order] for name in names}))
    torch.testing.assert_close(*collected)
    torch.testing.assert_close(first.position, second.position)
    assert collected[0].std(-1).max() > 1e-3


def test_lanes_have_an_influence_with_road_only() -> None:
    batch = collate([make_scene(6)]).observation
    bent = replace(batch, polyline=batch.polyline * 1.01)
    for axis in ("feature", "agent"):
        with_road, without = build(channel_axis=axis), build(channel_axis=axis, road=False)
        assert (with_road(batch).position - with_road(bent).position).abs().max() > 1e-4
        assert torch.equal(without(batch).position, without(bent).position)
        assert not any("road" in name for name, _ in without.named_parameters())
