"""Gatformer: edges and their features, influence along edges, and no dependence on the host."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from support.models import seeded
from support.scenes import make_scene

from trajformer.core.blocks import BlockConfig
from trajformer.data.batch import Observation, collate
from trajformer.models.gatformer import GatformerConfig

BLOCK = BlockConfig(width=16, heads=2, feedforward=16, dropout=0.0)
PLAIN = GatformerConfig(
    12, modes=4, max_history=12, block=BLOCK, encoder_layers=1, decoder_layers=1, max_neighbors=4, max_polylines=6, map_width=8,
    social_radius_m=25.0, map_radius_m=25.0,
)  # fmt: skip
build = partial(seeded, PLAIN)


def scenes() -> Observation:
    """Two scenes; some agents are lost before the last step or seen late."""
    batch = collate([make_scene(12), make_scene(7, seed=1)]).observation
    valid = batch.valid.clone()
    valid[0, 5, 7:], valid[0, 1, 8:], valid[0, 6, :8], valid[1, 2, 4] = False, False, False, False
    return replace(batch, valid=valid)


@pytest.mark.parametrize("steps", [1, 4])
def test_edges_lead_to_the_nearest_nodes_within_the_radius_in_each_step(steps: int) -> None:
    model, batch = build(steps_per_token=steps), scenes()
    _, pose = model.lanes(batch)
    agents, lanes = batch.agent_mask.shape[1], batch.polyline.shape[1]
    for receivers in (agents, batch.num_targets):
        graph, query, count = model.graph(batch, pose, receivers), 0, 0
        times = list(range(9, 0, -steps))[::-1]
        for b in range(2):
            for t, time in enumerate(times):
                for a in range(receivers):
                    expected = []
                    if batch.valid[b, a, time]:
                        position, visible = (
                            batch.position[b, a, time],
                            batch.valid[b, :, time] & batch.valid[b, :, -1],
                        )
                        gap = (
                            (batch.position[b, :, time] - position)
                            .norm(dim=-1)
                            .masked_fill(~visible, torch.inf)
                        )
                        near = gap.argsort()[: int((gap <= 25.0).sum())][:4]
                        expected += (near + (b * len(times) + t) * agents).tolist()
                        gap = (
                            (pose[b, :, :2] - position)
                            .norm(dim=-1)
                            .masked_fill(~batch.polyline_mask[b], torch.inf)
                        )
                        near = gap.argsort()[: int((gap <= 25.0).sum())][:6]
                        expected += (near + 2 * len(times) * agents + b * lanes).tolist()
                    keys = graph.edges.key[graph.edges.query == query]
                    assert sorted(keys.tolist()) == sorted(expected), (b, t, a)
                    query, count = query + 1, count + len(expected)
        assert count == (graph.edges.query < query).sum() and count > 100
        assert len(graph.position) == len(graph.edges.query) == query * (4 + 6)


def chain() -> Observation:
    """A target and agents 20 m and 40 m ahead; only the first one is within the radius of the others."""
    batch = collate([make_scene(3, num_scored=0, with_map=False)]).observation
    position = batch.position.clone()
    position[0, 1:] = position[0, :1] + torch.tensor([20.0, 40.0])[:, None, None] * torch.tensor(
        [1.0, 0.0]
    )
    pose = torch.cat([position[:, :, -1], batch.pose[..., 2:]], -1)
    return replace(batch, position=position, pose=pose, valid=torch.ones_like(batch.valid))


@pytest.mark.parametrize(("layers", "reached"), [(1, False), (2, True)])
def test_each_graph_layer_extends_the_influence_by_one_edge(layers: int, reached: bool) -> None:
    model, batch = build(graph_layers=layers), chain()
    kind = batch.agent_kind.clone()
    kind[0, 2] = 5
    assert (
        model(replace(batch, agent_kind=kind)).position != model(batch).position
    ).any() == reached


def test_lanes_influence_an_agent_that_is_seen_in_one_step() -> None:
    model, batch = build(), collate([make_scene(3, num_scored=0)]).observation
    valid = batch.valid.clone()
    valid[0, 0, :9] = False
    once = replace(batch, valid=valid)
    bent = replace(once, polyline_flags=once.polyline_flags ^ 1)
    assert (model(once).position != model(bent).position).any()
