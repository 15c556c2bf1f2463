"""Wayformer: fusion, axes and latent queries of the scene encoders, their masks, and the inputs around a target."""

from collections.abc import Callable
from dataclasses import replace

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
    """Modalities of two targets; an agent and the first steps of a history are unseen, and some polylines are padding."""
    real = [torch.ones(2, *size, dtype=torch.bool) for size in SIZES]
    real[0][0, :2], real[1][0, :2], real[1][1, :, 2], real[2][1, :, 4:] = False, False, False, False
    return [
        Grid(draw(2, *size, 16, seed=n), mask)
        for n, (size, mask) in enumerate(zip(SIZES, real, strict=True))
    ]


def encoder(
    fusion: str = "early", attention: str = "multi_axis", **changes: object
) -> SceneEncoder:
    torch.manual_seed(0)
    return SceneEncoder(replace(PLAIN, fusion=fusion, attention=attention, **changes), SIZES)  # type: ignore[arg-type]


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
    x, real = draw(1, 5, 6, 16), torch.ones(1, 5, 6, dtype=torch.bool)

    def part(blocks: slice, axes: list[int]) -> Callable[[Tensor], Tensor]:
        assert whole.axes[blocks] == axes
        encoder = AxisEncoder(PLAIN, 0, (5, 6))
        encoder.axes, encoder.blocks = axes, whole.blocks[blocks]
        return lambda x: encoder(Grid(x, real)).token

    changed = influence(part(slice(2), [TIME, TIME]), x, (0, 1, 4))[0]
    assert changed[:, 4].all() and not changed[:, [0, 1, 2, 3, 5]].any()
    changed = influence(part(slice(2, 4), [SPACE, SPACE]), x, (0, 1, 4))[0]
    assert changed[1].all() and not changed[[0, 2, 3, 4]].any()
    assert influence(lambda x: whole(Grid(x, real)).token, x, (0, 1, 4)).all()


@pytest.mark.parametrize("attention", ["multi_axis", *FACTORISED])
def test_fusion_divides_the_blocks_and_joins_the_modalities(attention: str) -> None:
    for fusion, own, joint in (("early", 0, 4), ("late", 4, 0), ("hierarchical", 2, 2)):
        scene = encoder(fusion, attention)
        assert [len(one.blocks) for one in scene.own] == [own] * 3
        assert (0 if scene.joint is None else len(scene.joint.blocks)) == joint
        road = grids()[2]

        def memory(x: Tensor, scene: SceneEncoder = scene, real: Tensor = road.real) -> Tensor:
            return scene([*grids()[:2], Grid(x, real)])[0]

        changed = influence(memory, road.token, (0, 0, 0))[0]
        assert changed[-7:].all() and changed[:20].any() == (fusion != "late")


def test_the_number_of_latents_follows_from_the_largest_input() -> None:
    half = LatentConfig(0.5)
    multi, kind = 5 + 15 + 7, "sequential"
    expected = {
        ("early", "multi_axis"): round(multi / 2),
        ("late", "multi_axis"): 2 + 8 + 4,
        ("hierarchical", "multi_axis"): 7,
        ("early", kind): 2 * 6,  # of 5 steps x 11 slots
        ("late", kind): 2 * 1 + 2 * 2 + 4,
        ("hierarchical", kind): 1 * 4,  # of 2 steps x (1 + 2 + 4) slots
    }
    for (fusion, attention), count in expected.items():
        token, real = encoder(fusion, attention, latents=half)(grids())
        assert token.shape == (2, count, 16), (fusion, attention)
        assert real.all()
    assert encoder(latents=LatentConfig(counts=(9,)))(grids())[0].shape[1] == 9
    assert (
        encoder("early", "interleaved", latents=LatentConfig(counts=(2, 3)))(grids())[0].shape[1]
        == 6
    )


def test_latents_of_an_empty_modality_are_masked() -> None:
    scene = encoder("late", latents=LatentConfig(0.5))
    parts = grids()
    none = Grid(parts[1].token, torch.zeros_like(parts[1].real))
    token, real = scene([parts[0], none, parts[2]])
    assert token.isfinite().all() and real[0].tolist() == [True] * 2 + [False] * 8 + [True] * 4


@pytest.mark.parametrize("kind", FACTORISED)
def test_the_road_is_copied_to_steps_with_agents_and_its_copies_are_averaged(kind: str) -> None:
    scene, parts = encoder("early", kind), grids()
    seen: list[Tensor] = []
    scene.joint.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    scene.joint.register_forward_hook(lambda module, args, out: seen.append(out))
    token, real = scene(parts)
    before, after = seen
    assert before.token.shape == (2, 5, 11, 16) and torch.equal(
        before.token[:, 3, 4:], parts[2].token[:, 0]
    )
    assert torch.equal(
        before.real[:, :, 4:].any(-1), torch.tensor([[False] * 2 + [True] * 3, [True] * 5])
    )
    torch.testing.assert_close(
        token[0, 20:], after.token[0, 2:, 4:].mean(0)
    )  # the first two steps have no agent
    torch.testing.assert_close(token[1, 20:24], after.token[1, :, 4:8].mean(0))
    assert torch.equal(token[:, :20], after.token[:, :, :4].flatten(1, 2)) and torch.equal(
        real[:, 20:], parts[2].real[:, 0]
    )


def small(**changes: object) -> wayformer.Wayformer:
    torch.manual_seed(0)
    sizes = {
        "decoder_layers": 1,
        "max_history": 10,
        "max_neighbors": 5,
        "max_polylines": 8,
        "map_width": 8,
    }
    config = wayformer.WayformerConfig(12, encoder=replace(PLAIN, layers=1), **(sizes | changes))  # type: ignore[arg-type]
    return config.build()


def test_components_are_merged_in_evaluation_only() -> None:
    model, observation = small(proposals=12, modes=4), collate([make_scene(6)]).observation
    trained = model.train()(observation)
    assert (
        trained.num_modes == 12
        and trained.position.shape == trained.scale.shape
        and (trained.scale > 0).all()
    )
    merged, expected = model.eval()(observation), aggregate(trained, 4, model.config.aggregation)
    assert merged.num_modes == 4
    torch.testing.assert_close(merged.position, expected.position)
    torch.testing.assert_close(merged.scale, expected.scale)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (lambda: small(modes=7), "modes: 7, expected at most 6"),
        (
            lambda: encoder(latents=LatentConfig(counts=(2, 3))),
            r"latents\.counts: 2 numbers, expected 1 for multi_axis",
        ),
        (
            lambda: encoder("early", "sequential", latents=LatentConfig(counts=(2,))),
            "1 numbers, expected 2 for sequential",
        ),
        (lambda: encoder("early", "interleaved", layers=1), "layers: 1, expected at least two"),
        (
            lambda: encoder("hierarchical", "interleaved", layers=3),
            "layers: 3, expected at least two",
        ),
    ],
)
def test_configs_that_do_not_fit_are_errors(config: Callable[[], object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        config()
