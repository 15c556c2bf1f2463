"""Wayformer: fusion, axes and latent queries of the scene encoders, their masks, and the inputs around a target."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from support.scenes import make_scene
from support.tensors import draw
from torch import Tensor, nn

from trajformer.core.blocks import BlockConfig, LatentBlock
from trajformer.data.batch import collate
from trajformer.errors import ConfigError
from trajformer.models.modes import aggregate
from trajformer.models.tokens import agent_states, neighbors
from trajformer.models.wayformer import (
    SPACE,
    TIME,
    AxisEncoder,
    Grid,
    LatentConfig,
    SceneEncoder,
    SceneEncoderConfig,
    Wayformer,
    WayformerConfig,
)
from trajformer.recipes.plain import from_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.geometry import from_frame, rotate

BLOCK = BlockConfig(width=16, heads=2, feedforward=16, dropout=0.0)
PLAIN = SceneEncoderConfig(block=BLOCK)
SIZES = [(5, 1), (5, 3), (1, 7)]  # history, agents, road
FACTORISED = ("sequential", "interleaved")
CONFIGS = Path(__file__).parents[2] / "configs" / "wayformer"


def grids() -> list[Grid]:
    """Modalities of two targets; an agent and the first steps of a history are unseen, and some polylines are padding."""
    real = [torch.ones(2, *size, dtype=torch.bool) for size in SIZES]
    real[0][0, :2], real[1][0, :2], real[1][1, :, 2], real[2][1, :, 4:] = False, False, False, False
    return [Grid(draw(2, *size, 16, seed=n), mask) for n, (size, mask) in enumerate(zip(SIZES, real, strict=True))]


def encoder(fusion: str = "early", attention: str = "multi_axis", **changes: object) -> SceneEncoder:
    torch.manual_seed(0)
    return SceneEncoder(replace(PLAIN, fusion=fusion, attention=attention, **changes), SIZES)  # type: ignore[arg-type]


def influence(apply: Callable[[Tensor], Tensor], x: Tensor, index: tuple[int, ...]) -> Tensor:
    """Bool: the outputs (all axes but the last) that change with the token x[index]."""
    other = x.clone()
    other[index] += 1.0
    return (apply(x) != apply(other)).any(-1)


@pytest.mark.parametrize("latents", [None, LatentConfig(counts=(2, 3))])
def test_temporal_blocks_mix_steps_and_spatial_blocks_mix_slots(latents: LatentConfig | None) -> None:
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


@pytest.mark.parametrize("kind", FACTORISED)
def test_blocks_along_an_axis_of_length_one_use_the_other_axis(kind: str) -> None:
    history, agents, road = encoder("late", kind).own
    assert history.axes == [TIME] * 4 and road.axes == [SPACE] * 4
    assert agents.axes == replace(PLAIN, attention=kind).axes(4)


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


@pytest.mark.parametrize("fusion", ["early", "late", "hierarchical"])
@pytest.mark.parametrize("attention", ["multi_axis", *FACTORISED])
def test_without_latents_each_token_has_one_output(fusion: str, attention: str) -> None:
    token, real = encoder(fusion, attention)(grids())
    assert token.shape == (2, 5 + 15 + 7, 16) and real.shape == (2, 27)
    assert real.sum(1).tolist() == [sum(int(grid.real[n].sum()) for grid in grids()) for n in range(2)]


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
    assert encoder("early", "interleaved", latents=LatentConfig(counts=(2, 3)))(grids())[0].shape[1] == 6


def test_latents_of_an_empty_modality_are_masked() -> None:
    scene = encoder("late", latents=LatentConfig(0.5))
    parts = grids()
    none = Grid(parts[1].token, torch.zeros_like(parts[1].real))
    token, real = scene([parts[0], none, parts[2]])
    assert token.isfinite().all() and real[0].tolist() == [True] * 2 + [False] * 8 + [True] * 4


def test_a_latent_block_equals_its_formula() -> None:
    torch.manual_seed(0)
    block, x = LatentBlock(BLOCK, 3), draw(2, 5, 16)
    mask = torch.tensor([[True] * 5, [True, False, True, False, False]])[:, None]
    z, attention = block.latents.expand(2, -1, -1), block.attention
    z = z + attention.sublayer(attention.norm(z), block.norm(x), mask=mask)
    expected = z + block.feedforward.sublayer(block.feedforward.norm(z))
    torch.testing.assert_close(block(x, mask), expected)
    torch.testing.assert_close(block(x, mask)[1], block(x[1:, [0, 2]])[0])


@pytest.mark.parametrize("kind", FACTORISED)
def test_the_road_is_copied_to_steps_with_agents_and_its_copies_are_averaged(kind: str) -> None:
    scene, parts = encoder("early", kind), grids()
    seen: list[Tensor] = []
    scene.joint.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    scene.joint.register_forward_hook(lambda module, args, out: seen.append(out))
    token, real = scene(parts)
    before, after = seen
    assert before.token.shape == (2, 5, 11, 16) and torch.equal(before.token[:, 3, 4:], parts[2].token[:, 0])
    assert torch.equal(before.real[:, :, 4:].any(-1), torch.tensor([[False] * 2 + [True] * 3, [True] * 5]))
    torch.testing.assert_close(token[0, 20:], after.token[0, 2:, 4:].mean(0))  # the first two steps have no agent
    torch.testing.assert_close(token[1, 20:24], after.token[1, :, 4:8].mean(0))
    assert torch.equal(token[:, :20], after.token[:, :, :4].flatten(1, 2)) and torch.equal(real[:, 20:], parts[2].real[:, 0])


def test_states_of_agents_in_the_frame_of_the_target() -> None:
    observation = collate([make_scene(8), make_scene(5, seed=1)]).observation
    index, near = neighbors(observation, 1e3, 20)
    state, seen = agent_states(observation, index, 1)
    assert index.shape == (2, 3, 8) and torch.equal(index[:, :, 0], torch.arange(3).expand(2, 3)) and near[0].sum() <= 24
    for b, s, n, t in ((0, 0, 1, 9), (0, 2, 3, 4), (1, 1, 2, 6)):
        agent, pose = index[b, s, n], observation.pose[b, s]
        values = state[b, s, t, n]
        assert seen[b, s, t, n] == observation.valid[b, agent, t] == (values[6] == 1)
        if seen[b, s, t, n]:
            torch.testing.assert_close(from_frame(10 * values[:2], pose), observation.position[b, agent, t], atol=1e-3, rtol=0)
            torch.testing.assert_close(rotate(10 * values[2:4], pose[2]), observation.velocity[b, agent, t], atol=1e-4, rtol=0)
            heading = torch.atan2(values[5], values[4]) + pose[2] - observation.heading[b, agent, t]
            assert heading.cos().item() == pytest.approx(1.0, abs=1e-5)
        assert values[7:].argmax() == observation.agent_kind[b, agent] and values[7:].sum() == 1
    distance = (observation.pose[0, index[0, 1], :2] - observation.pose[0, 1, :2]).norm(dim=-1)[near[0, 1]]
    assert torch.equal(distance, distance.sort().values)
    stacked, some = agent_states(observation, index, 4)
    assert stacked.shape[2] == 3 and torch.equal(stacked[:, :, -1, :, 21:28], state[:, :, -1, :, :7])
    assert torch.equal(stacked[:, :, 0, :, :14], torch.zeros_like(stacked[:, :, 0, :, :14]))
    assert torch.equal(some[:, :, 1], seen[:, :, 2:6].any(2))


def small(**changes: object) -> Wayformer:
    torch.manual_seed(0)
    sizes = {"decoder_layers": 1, "max_history": 10, "max_neighbors": 5, "max_polylines": 8, "map_width": 8}
    return Wayformer(WayformerConfig(12, encoder=replace(PLAIN, layers=1), **(sizes | changes)))  # type: ignore[arg-type]


def test_positional_embeddings_start_at_zero_and_count_back_from_the_last_step() -> None:
    model, observation = small(), collate([make_scene(6)]).observation
    assert not any(table.any() for table in model.scenes.positions.parameters())
    plain = model.scenes(observation)[1].token
    time, slot = model.scenes.positions[1].tables
    nn.init.constant_(time[0], 2.0)
    nn.init.constant_(slot[1], 3.0)
    moved = model.scenes(observation)[1].token - plain
    expected = torch.zeros_like(moved)
    expected[:, -1, :, :8], expected[:, :, 1, 8:] = 2.0, 3.0
    torch.testing.assert_close(moved, expected)
    assert all((grid.token >= 0).all() for grid in small().scenes(observation))


def test_components_are_merged_in_evaluation_only() -> None:
    model, observation = small(proposals=12, modes=4), collate([make_scene(6)]).observation
    trained = model.train()(observation)
    assert trained.num_modes == 12 and trained.position.shape == trained.scale.shape and (trained.scale > 0).all()
    merged, expected = model.eval()(observation), aggregate(trained, 4, model.config.aggregation)
    assert merged.num_modes == 4
    torch.testing.assert_close(merged.position, expected.position)
    torch.testing.assert_close(merged.scale, expected.scale)


@pytest.mark.parametrize(
    ("name", "size", "widths"), [("multi_axis", (1, 1024), (128, 512, 128, 512)), ("factorised", (6, 192), (256, 1536, 128, 768))]
)
def test_recipes_of_the_paper_have_its_sizes(name: str, size: tuple[int, int], widths: tuple[int, ...]) -> None:
    recipe = from_plain(TrainConfig, yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()))
    with torch.device("meta"):
        model = recipe.build_model()
    assert model.encoder.joint.size == size and model.config.encoder.fusion == "early"
    feedforward = [model.encoder.joint.blocks[0].feedforward, model.decoder.layers[0].feedforward]
    assert widths == tuple(n for part in feedforward for n in (part.sublayer[0].in_features, part.sublayer[0].out_features))
    assert len(model.encoder.joint.blocks) == 4 and len(model.decoder.layers) == 6 and len(model.queries) == 6
    assert (recipe.optim.learning_rate, recipe.optim.schedule) == (2e-4, "linear")


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (lambda: small(modes=7), "modes: 7, expected at most 6"),
        (lambda: encoder(latents=LatentConfig(counts=(2, 3))), r"latents\.counts: 2 numbers, expected 1 for multi_axis"),
        (
            lambda: encoder("early", "sequential", latents=LatentConfig(counts=(2,))),
            r"counts: 1 numbers, expected 2 for sequential",
        ),
        (lambda: encoder("early", "interleaved", layers=1), "layers: 1, expected at least two"),
        (lambda: encoder("hierarchical", "interleaved", layers=3), "layers: 3, expected at least two"),
    ],
)
def test_configs_that_do_not_fit_are_errors(config: Callable[[], object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        config()
