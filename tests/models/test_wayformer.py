"""Wayformer: fusion, axes, latent queries and masks of the scene encoders, and merged modes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.scenes import make_scene
from support.tensors import draw
from torch import Tensor

from trajformer.core.blocks import BlockConfig
from trajformer.data.batch import collate
from trajformer.errors import ConfigError
from trajformer.models import wayformer
from trajformer.models.modes import aggregate
from trajformer.models.wayformer import (
    SPACE,
    TIME,
    AxisEncoder,
    Grid,
    LatentConfig,
    SceneEncoder,
    SceneEncoderConfig,
)

BLOCK = BlockConfig(width=16, heads=2, feedforward=16, dropout=0.0)
PLAIN = SceneEncoderConfig(block=BLOCK)
SIZES = [(5, 1), (5, 3), (1, 7)]  # history, agents, road
FACTORISED = ("sequential", "interleaved")


def grids() -> list[Grid]:
    """Modalities of two targets.

    An agent and the first steps of a history are unseen, and some polylines are padding.
    """
    parts = []
    for n, size in enumerate(SIZES):
        parts.append(Grid(draw(2, *size, 16, seed=n), torch.ones(2, *size, dtype=torch.bool)))
    history, agents, road = parts
    history.real[0, :2] = False
    agents.real[0, :2] = False
    agents.real[1, :, 2] = False
    road.real[1, :, 4:] = False
    return parts


def encoder(
    fusion: str = "early", attention: str = "multi_axis", **changes: object
) -> SceneEncoder:
    torch.manual_seed(0)
    config = replace(PLAIN, fusion=fusion, attention=attention, **changes)  # type: ignore[arg-type]
    return SceneEncoder(config, SIZES)


def influence(apply: Callable[[Tensor], Tensor], x: Tensor, index: tuple[int, ...]) -> Tensor:
    """Bool: the outputs (all axes but the last) that change with the token x[index]."""
    other = x.clone()
    other[index] += 1.0
    return (apply(x) != apply(other)).any(-1)


@pytest.mark.parametrize("latents", [None, LatentConfig(counts=(2, 3))])
def test_temporal_blocks_mix_steps_and_spatial_blocks_mix_slots(
    latents: LatentConfig | None,
) -> None:
    torch.manual_seed(0)
    whole = AxisEncoder(replace(PLAIN, attention="sequential", latents=latents), 4, (5, 6))
    x = draw(1, 5, 6, 16)
    real = torch.ones(1, 5, 6, dtype=torch.bool)

    def part(blocks: slice, axes: list[int]) -> Callable[[Tensor], Tensor]:
        """Some blocks of the encoder, which attend along `axes`."""
        assert whole.axes[blocks] == axes
        encoder = AxisEncoder(PLAIN, 0, (5, 6))
        encoder.axes = axes
        encoder.blocks = whole.blocks[blocks]
        return lambda x: encoder(Grid(x, real)).token

    changed = influence(part(slice(2), [TIME, TIME]), x, (0, 1, 4))[0]
    assert changed[:, 4].all()
    assert not changed[:, [0, 1, 2, 3, 5]].any()
    changed = influence(part(slice(2, 4), [SPACE, SPACE]), x, (0, 1, 4))[0]
    assert changed[1].all()
    assert not changed[[0, 2, 3, 4]].any()
    assert influence(lambda x: whole(Grid(x, real)).token, x, (0, 1, 4)).all()


@pytest.mark.parametrize("attention", ["multi_axis", *FACTORISED])
@pytest.mark.parametrize(
    ("fusion", "depth", "joint_depth"), [("early", 0, 4), ("late", 4, 0), ("hierarchical", 2, 2)]
)
def test_fusion_divides_the_blocks_and_joins_the_modalities(
    fusion: str, depth: int, joint_depth: int, attention: str
) -> None:
    scene = encoder(fusion, attention)
    assert [len(part.blocks) for part in scene.own] == [depth] * 3
    if scene.joint is None:
        assert joint_depth == 0
    else:
        assert len(scene.joint.blocks) == joint_depth

    history, agents, road = grids()

    def tokens(road_token: Tensor) -> Tensor:
        return scene([history, agents, Grid(road_token, road.real)])[0]

    changed = influence(tokens, road.token, (0, 0, 0))[0]
    assert changed[-7:].all()  # tokens of the road
    assert changed[:20].any() == (fusion != "late")


def test_the_number_of_latents_follows_from_the_largest_input() -> None:
    expected = {
        ("early", "multi_axis"): 14,  # of 5 + 15 + 7 tokens
        ("late", "multi_axis"): 2 + 8 + 4,
        ("hierarchical", "multi_axis"): 7,
        ("early", "sequential"): 2 * 6,  # of 5 steps x 11 slots
        ("late", "sequential"): 2 * 1 + 2 * 2 + 4,
        ("hierarchical", "sequential"): 1 * 4,  # of 2 steps x (1 + 2 + 4) slots
    }
    for (fusion, attention), count in expected.items():
        token, real = encoder(fusion, attention, latents=LatentConfig(0.5))(grids())
        assert token.shape == (2, count, 16), (fusion, attention)
        assert real.all()


def test_the_number_of_latents_may_be_absolute() -> None:
    token, _ = encoder(latents=LatentConfig(counts=(9,)))(grids())
    assert token.shape[1] == 9
    token, _ = encoder("early", "interleaved", latents=LatentConfig(counts=(2, 3)))(grids())
    assert token.shape[1] == 2 * 3


def test_latents_of_an_empty_modality_are_masked() -> None:
    scene = encoder("late", latents=LatentConfig(0.5))
    parts = grids()
    none = Grid(parts[1].token, torch.zeros_like(parts[1].real))
    token, real = scene([parts[0], none, parts[2]])
    assert token.isfinite().all()
    assert real[0, :2].all()
    assert not real[0, 2:10].any()
    assert real[0, 10:].all()


@pytest.mark.parametrize("kind", FACTORISED)
def test_the_road_is_copied_to_steps_with_agents_and_its_copies_are_averaged(kind: str) -> None:
    scene = encoder("early", kind)
    parts = grids()
    road = parts[2]
    seen: list[Any] = []  # input and output of the joint encoder
    scene.joint.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    scene.joint.register_forward_hook(lambda module, args, out: seen.append(out))
    token, real = scene(parts)
    before, after = seen

    # The road follows four slots of agents. The first two steps of target 0 have no agent.
    assert before.token.shape == (2, 5, 11, 16)
    assert torch.equal(before.token[:, 3, 4:], road.token[:, 0])
    has_road = before.real[:, :, 4:].any(-1)
    assert has_road.tolist() == [[False, False, True, True, True], [True] * 5]

    agent_slots = after.token[:, :, :4]
    road_slots = after.token[:, :, 4:]
    assert torch.equal(token[:, :20], agent_slots.flatten(1, 2))
    assert torch.equal(real[:, 20:], road.real[:, 0])
    torch.testing.assert_close(token[0, 20:], road_slots[0, 2:].mean(0))
    torch.testing.assert_close(token[1, 20:24], road_slots[1, :, :4].mean(0))


def small(**changes: object) -> wayformer.Wayformer:
    torch.manual_seed(0)
    config = wayformer.WayformerConfig(
        12,
        encoder=replace(PLAIN, layers=1),
        decoder_layers=1,
        max_history=10,
        max_neighbors=5,
        max_polylines=8,
        map_width=8,
    )
    return replace(config, **changes).build()  # type: ignore[arg-type]


def test_components_are_merged_in_evaluation_only() -> None:
    model = small(proposals=12, modes=4)
    observation = collate([make_scene(6)]).observation
    trained = model.train()(observation)
    assert trained.num_modes == 12
    assert trained.position.shape == trained.scale.shape
    assert (trained.scale > 0).all()
    merged = model.eval()(observation)
    expected = aggregate(trained, 4, model.config.aggregation)
    assert merged.num_modes == 4
    torch.testing.assert_close(merged.position, expected.position)
    torch.testing.assert_close(merged.scale, expected.scale)


def test_a_model_has_at_most_the_modes_of_its_proposals() -> None:
    with pytest.raises(ConfigError, match="modes: 7, expected at most 6"):
        small(modes=7)


@pytest.mark.parametrize(
    ("fusion", "attention", "changes", "error"),
    [
        (
            "early",
            "multi_axis",
            {"latents": LatentConfig(counts=(2, 3))},
            r"latents\.counts: 2 numbers, expected 1 for multi_axis",
        ),
        (
            "early",
            "sequential",
            {"latents": LatentConfig(counts=(2,))},
            "1 numbers, expected 2 for sequential",
        ),
        ("early", "interleaved", {"layers": 1}, "layers: 1, expected at least two"),
        ("hierarchical", "interleaved", {"layers": 3}, "layers: 3, expected at least two"),
    ],
)
def test_encoders_that_do_not_fit_are_errors(
    fusion: str, attention: str, changes: dict[str, Any], error: str
) -> None:
    with pytest.raises(ConfigError, match=error):
        encoder(fusion, attention, **changes)
