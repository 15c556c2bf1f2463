"""Shares of agents and pieces of polylines in the attention of each target."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.models import BLOCK, MODEL_CONFIGS, build_random
from support.scenes import make_scene
from torch import Tensor

from trajformer.core.multihead import MultiHeadAttention, recorded_weights
from trajformer.data.batch import Observation, collate
from trajformer.data.sample import BatchConfig
from trajformer.models.attended import recorded_attention
from trajformer.models.forecaster import Forecaster
from trajformer.models.se2former.model import memory_order
from trajformer.models.tokens import neighbors

NAMES = [
    "se2former",
    "se2former-joint",
    "mmtransformer",
    "mmtransformer-appended",
    "mmtransformer-joint",
    "agentformer-tokens",
    "wayformer-early-sequential-latents",
    "wayformer-late-multi_axis-latents",
    "wayformer-hierarchical-interleaved-latents",
    "wayformer-early-interleaved",
]
PIECE = 3
CONTEXT = 5  # an agent that is no target
AGED_S = 30.0


@pytest.fixture(scope="module")
def observation() -> Observation:
    scenes = [make_scene(seed=seed) for seed in (0, 1)]
    return collate(scenes, BatchConfig(map_radius_m=30.0)).observation


def build(config: Any) -> Forecaster:
    """A model with random weights that draws the same samples in each call."""
    model: Forecaster = build_random(config)
    return model.eval()


@torch.inference_mode()
def shares(model: Forecaster, observation: Observation) -> dict[str, Tensor]:
    """Shares [B, S, heads, A + M] by the name of the layer."""
    layers = model.attention_layers(observation)
    expected = model(observation)
    with recorded_attention(layers) as recorded:
        forecast = model(observation)
    assert torch.equal(forecast.position, expected.position)
    assert len({layer.name for layer in layers}) == len(layers)
    return {layer.name: share for layer, share in zip(layers, recorded, strict=True)}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_model_cannot_see_has_no_share(name: str, observation: Observation) -> None:
    model = build(MODEL_CONFIGS[name])
    num_agents = observation.agent_mask.shape[1]
    before = shares(model, observation)
    age = observation.age.clone()
    age[:, CONTEXT] = AGED_S
    mask = observation.polyline_mask.clone()
    mask[:, PIECE] = False
    after = shares(model, replace(observation, age=age, polyline_mask=mask))
    seen_agent = seen_piece = torch.zeros(())
    for layer, share in before.items():
        torch.testing.assert_close(share.sum(-1), torch.ones_like(share[..., 0]))
        assert (share >= 0).all()
        seen_agent = seen_agent + share[..., CONTEXT].sum()
        seen_piece = seen_piece + share[..., num_agents + PIECE].sum()
        torch.testing.assert_close(after[layer].sum(-1), torch.ones_like(share[..., 0]))
        assert not after[layer][..., CONTEXT].any()
        assert not after[layer][..., num_agents + PIECE].any()
    assert seen_agent > 0
    if "wayformer" not in name:  # it has fewer slots than there are pieces
        assert seen_piece > 0


def test_shares_of_se2former_are_the_recorded_weights(observation: Observation) -> None:
    model = build(MODEL_CONFIGS["se2former"])
    with torch.inference_mode(), recorded_weights(model) as record:
        model(observation)
    of_layer = shares(model, observation)
    num_pieces = observation.polyline_mask.shape[1]
    queries = len(model.modes)
    for scene, target, head in ((0, 0, 0), (1, 2, 3)):
        share = of_layer["agents 1"][scene, target, head]
        weights = record["agent_layers.0.cross.sublayer"][0][scene, head, target]
        place = memory_order(observation)[scene].argsort()
        agents = weights[num_pieces:][place]
        assert torch.equal(share, torch.cat([agents, weights[:num_pieces]]))
        share = of_layer["refinement"][scene, target, head]
        rows = record["refine_layer.cross.sublayer"][0][scene, head]
        weights = rows[target * queries : (target + 1) * queries].mean(0)
        agents = weights[num_pieces:][place]
        torch.testing.assert_close(share, torch.cat([agents, weights[:num_pieces]]))


def test_shares_of_agentformer_are_sums_over_the_tokens_of_an_agent(
    observation: Observation,
) -> None:
    model = build(MODEL_CONFIGS["agentformer-road"])
    with torch.inference_mode(), recorded_weights(model) as record:
        model(observation)
    calls = record["decoder.decoder.layers.0.cross_attention.sublayer"]
    weights = torch.stack(calls).mean((0, 2))  # [B, heads, A, L]
    num_agents = observation.agent_mask.shape[1]
    name = "decoder 1, to the past"
    share = shares(model, observation)[name]
    for scene, target, head, agent in ((0, 0, 1, 4), (1, 2, 0, 0)):
        tokens = range(agent, num_agents * observation.num_history, num_agents)
        total = sum(float(weights[scene, head, target, token]) for token in tokens)
        assert float(share[scene, target, head, agent]) == pytest.approx(total, abs=1e-6)


def without_scores(model: Forecaster) -> Forecaster:
    """The model with equal scores of all tokens."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            torch.nn.init.zeros_(module.query.weight)
            torch.nn.init.zeros_(module.query.bias)
    return model


def test_equal_scores_give_equal_shares_to_neighbors(observation: Observation) -> None:
    model = without_scores(build(MODEL_CONFIGS["mmtransformer"]))
    config = model.config
    index, mask = neighbors(observation, config.social_radius_m, config.max_neighbors)
    share = shares(model, observation)["neighbors 4"]
    for target in range(observation.num_targets):
        near = index[0, target][mask[0, target]]
        expected = torch.zeros(share.shape[-1])
        expected[near] = 1 / len(near)
        torch.testing.assert_close(share[0, target, 0], expected)


@pytest.mark.parametrize("latents", [False, True])
def test_latents_pass_on_the_shares_of_their_inputs(
    latents: bool, observation: Observation
) -> None:
    config = MODEL_CONFIGS["wayformer-early-multi_axis"]
    if latents:
        latent = MODEL_CONFIGS["wayformer-late-multi_axis-latents"].encoder.latents
        config = replace(config, encoder=replace(config.encoder, latents=latent, block=BLOCK))
    model = without_scores(build(config))
    agents, _ = neighbors(observation, config.social_radius_m, config.max_neighbors)
    tokens = torch.stack([grid.real[0].sum() for grid in model.scenes(observation)])
    share = shares(model, observation)["decoder 1"]
    # with equal scores an agent has the number of shares equal to its steps
    target = agents[0, 0, 0]
    steps = observation.valid[0, target].sum()
    expected = (steps / tokens.sum()).expand(share.shape[2])
    torch.testing.assert_close(share[0, 0, :, target], expected)


def test_models_without_such_layers_have_none(observation: Observation) -> None:
    assert build(MODEL_CONFIGS["gatformer"]).attention_layers(observation) == ()
    assert not build(MODEL_CONFIGS["mmtransformer-motion"]).attention_layers(observation)
