"""Gatformer: edges and their features, influence along edges, and no dependence on the host."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from support.models import seeded
from support.scenes import make_scene
from torch import Tensor

from trajformer.core.blocks import BlockConfig
from trajformer.data.batch import Observation, collate
from trajformer.models.gatformer import GatformerConfig

BLOCK = BlockConfig(width=16, heads=2, feedforward=16, dropout=0.0)
PLAIN = GatformerConfig(
    12,
    modes=4,
    max_history=12,
    block=BLOCK,
    encoder_layers=1,
    decoder_layers=1,
    max_neighbors=4,
    max_polylines=6,
    map_width=8,
    social_radius_m=25.0,
    map_radius_m=25.0,
)
build = partial(seeded, PLAIN)


def scenes() -> Observation:
    """Two scenes; some agents are lost before the last step or seen late."""
    batch = collate([make_scene(12), make_scene(7, seed=1)]).observation
    valid = batch.valid.clone()
    valid[0, 5, 7:] = False
    valid[0, 1, 8:] = False
    valid[0, 6, :8] = False
    valid[1, 2, 4] = False
    # Only some lost agents are still present.
    age = batch.age.clone()
    age[0, 5] = 2.0
    return replace(batch, valid=valid, age=age)


def nearest_nodes(position: Tensor, nodes: Tensor, visible: Tensor, count: int) -> Tensor:
    """Indices of up to `count` visible nodes [N, 2] within the radius of a position [2]."""
    distance = (nodes - position).norm(dim=-1)
    distance = distance.masked_fill(~visible, torch.inf)
    within = int((distance <= 25.0).sum())
    return distance.argsort()[: min(within, count)]


def expected_keys(batch: Observation, lanes: Tensor, times: list[int]) -> dict[int, list[int]]:
    """Keys of all edges by query, for receivers [B, T, A] and positions [B, M, 2] of lanes."""
    num_agents = batch.agent_mask.shape[1]
    num_nodes = batch.num_scenes * len(times) * num_agents  # agents at all steps
    keys = {}
    for b in range(batch.num_scenes):
        for t, time in enumerate(times):
            first = (b * len(times) + t) * num_agents  # node of agent 0 in this step
            visible = batch.valid[b, :, time] & batch.present[b]
            for a in range(num_agents):
                position = batch.position[b, a, time]
                agents = nearest_nodes(position, batch.position[b, :, time], visible, 4)
                polylines = nearest_nodes(position, lanes[b], batch.polyline_mask[b], 6)
                keys[first + a] = []
                if batch.valid[b, a, time]:
                    keys[first + a] += (first + agents).tolist()
                    keys[first + a] += (num_nodes + b * lanes.shape[1] + polylines).tolist()
    return keys


@pytest.mark.parametrize("steps", [1, 4])
def test_edges_lead_to_the_nearest_nodes_within_the_radius_in_each_step(steps: int) -> None:
    model = build(steps_per_token=steps)
    batch = scenes()
    _, lane_pose = model.lanes(batch)
    times = sorted(range(9, 0, -steps))
    num_agents = batch.agent_mask.shape[1]
    expected = expected_keys(batch, lane_pose[..., :2], times)
    for receivers in (num_agents, batch.num_targets):
        graph = model.graph(batch, lane_pose, receivers)
        # The first agents of each step are the receivers.
        queries = [node for node in expected if node % num_agents < receivers]
        for query, node in enumerate(queries):
            keys = graph.edges.key[graph.edges.query == query]
            assert sorted(keys.tolist()) == sorted(expected[node]), node
        count = sum(len(expected[node]) for node in queries)
        assert count == (graph.edges.query < len(queries)).sum()
        assert count > 100
        assert len(graph.position) == len(graph.edges.query) == len(queries) * (4 + 6)


def chain() -> Observation:
    """A target and agents 20 m and 40 m ahead; each is within the radius of the next one only."""
    batch = collate([make_scene(3, num_scored=0, with_map=False)]).observation
    position = batch.position.clone()
    offset = torch.tensor([[20.0, 0.0], [40.0, 0.0]])
    position[0, 1:] = position[0, :1] + offset[:, None]
    pose = torch.cat([position[:, :, -1], batch.pose[..., 2:]], -1)
    return replace(batch, position=position, pose=pose, valid=torch.ones_like(batch.valid))


@pytest.mark.parametrize(("layers", "reached"), [(1, False), (2, True)])
def test_each_graph_layer_extends_the_influence_by_one_edge(layers: int, reached: bool) -> None:
    model = build(graph_layers=layers)
    batch = chain()
    kind = batch.agent_kind.clone()
    kind[0, 2] = 5
    changed = replace(batch, agent_kind=kind)
    assert (model(changed).position != model(batch).position).any() == reached


def test_lanes_influence_an_agent_that_is_seen_in_one_step() -> None:
    model = build()
    batch = collate([make_scene(3, num_scored=0)]).observation
    valid = batch.valid.clone()
    valid[0, 0, :9] = False
    once = replace(batch, valid=valid)
    changed = replace(once, polyline_flags=once.polyline_flags ^ 1)
    assert (model(once).position != model(changed).position).any()
