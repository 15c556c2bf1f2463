"""What every model keeps: indifferent to padding, order, frame, future and unseen steps; it learns and names errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from itertools import product
from typing import TypeVar

import numpy as np
import pytest
import torch
from support.scenes import PERIOD_S, make_scene, transform_scene
from torch import Tensor, nn
from trajformer.recipes.objective import Objective

from trajformer.core.blocks import BlockConfig
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.distances import pairwise_distances
from trajformer.data.forecast import Forecast
from trajformer.data.sample import BatchConfig, Frame
from trajformer.errors import TrajformerError
from trajformer.evaluation.metrics.displacement import displacement
from trajformer.losses.mixture import MixtureLossConfig, mixture_loss
from trajformer.losses.set_loss import SetLossConfig, set_loss
from trajformer.losses.worlds import WorldLossConfig, world_loss
from trajformer.models import MODELS, ModelConfig, SceneSet, SceneSetConfig, SpatialChannelConfig, WayformerConfig, build_model
from trajformer.models.agentformer.model import AgentFormer, AgentFormerConfig, RoadConfig
from trajformer.models.agentformer.sampler import AgentFormerSampler, AgentFormerSamplerConfig
from trajformer.models.constant_velocity import ConstantVelocity, ConstantVelocityConfig
from trajformer.models.crowd import CrowdConfig
from trajformer.models.gatformer import GatformerConfig
from trajformer.models.lane_set import LaneSetConfig
from trajformer.models.mmtransformer.model import MMTransformerConfig
from trajformer.models.mmtransformer.regions import FanConfig, RegionConfig
from trajformer.models.modes import consensus
from trajformer.models.tokens import nearest
from trajformer.models.wayformer.fusion import LatentConfig, SceneEncoderConfig
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.geometry import rotate
from trajformer.scenes.scene import Scene

T = TypeVar("T")

FUTURE = 12
BLOCK = BlockConfig(width=32, heads=4, feedforward=64, dropout=0.0)
PLAIN = MMTransformerConfig(num_future=FUTURE, block=BLOCK, map_width=16, max_polylines=120)  # more than there are
SHALLOW = replace(PLAIN, motion_layers=(1, 1), map_layers=(1, 1), social_layers=(1, 2), max_polylines=40)
LEARNED = {
    "mmtransformer": PLAIN,
    "mmtransformer-neighbour-map": replace(PLAIN, neighbour_map=True, max_polylines=40),
    "mmtransformer-3-steps": replace(PLAIN, steps_per_token=3),
    "mmtransformer-9-proposals": replace(PLAIN, proposals=9, neighbour_map=True),
    "mmtransformer-motion": replace(PLAIN, map_layers=None, social_layers=None),
    "mmtransformer-map": replace(PLAIN, social_layers=None),
    "mmtransformer-social": replace(PLAIN, map_layers=None),
    "mmtransformer-appended": replace(PLAIN, social_output="appended", max_polylines=40),
    "mmtransformer-regions": replace(PLAIN, proposals=9, regions=RegionConfig(3, FanConfig((20.0,), 3)), max_polylines=40),
    "mmtransformer-joint": replace(PLAIN, joint=True, max_polylines=40),
}
WAY = WayformerConfig(FUTURE, decoder_layers=1, max_history=10, max_neighbors=7, max_polylines=12, map_width=16)


def family() -> dict[str, WayformerConfig]:
    """Wayformer's fusion x attention x latents, small, with as many layers as show them."""
    fusions = (("early", 2), ("late", 2), ("hierarchical", 4))
    kinds = ("multi_axis", "sequential", "interleaved")
    members = {}
    for (fusion, layers), attention, latents in product(fusions, kinds, (None, LatentConfig())):
        encoder = SceneEncoderConfig(fusion, attention, latents, layers, BLOCK)
        members[f"wayformer-{fusion}-{attention}{'-latents' if latents else ''}"] = replace(WAY, encoder=encoder)
    first = members["wayformer-early-multi_axis"]
    members["wayformer-9-components"] = replace(first, proposals=9, decoder=replace(BLOCK, width=16))
    return members | {"wayformer-3-steps": replace(first, steps_per_token=3)}


SPATIAL = SpatialChannelConfig(FUTURE, max_history=10, block=BLOCK, max_polylines=40, map_width=16)
CHANNELS = {
    "spatial-channel-feature": SPATIAL,
    "spatial-channel-agent": replace(SPATIAL, channel_axis="agent", steps_per_token=3),
    "spatial-channel-no-road": replace(SPATIAL, channel_axis="agent", road=False),
}
LANES = LaneSetConfig(FUTURE, block=BLOCK, max_neighbors=7, max_polylines=40)
GRAPH = GatformerConfig(
    FUTURE, max_history=10, block=BLOCK, encoder_layers=1, decoder_layers=1, max_neighbors=7, max_polylines=20, map_width=16
)
CONFIGS = {"constant-velocity": ModelConfig(constant_velocity=ConstantVelocityConfig(modes=6))}
CONFIGS |= {name: ModelConfig(mmtransformer=config) for name, config in LEARNED.items()}
CONFIGS |= {name: ModelConfig(wayformer=config) for name, config in family().items()}
CONFIGS |= {name: ModelConfig(spatial_channel=config) for name, config in CHANNELS.items()}
CONFIGS["crowd"] = ModelConfig(crowd=CrowdConfig(FUTURE, 6, BLOCK, social_layers=2, radius_m=30.0, max_neighbors=7))
CONFIGS["lane-set"] = ModelConfig(lane_set=LANES)
CONFIGS["lane-set-3-steps"] = ModelConfig(lane_set=replace(LANES, steps_per_token=3))
CONFIGS["gatformer"] = ModelConfig(gatformer=GRAPH)
CONFIGS["gatformer-joint"] = ModelConfig(gatformer=replace(GRAPH, joint=True))
CONFIGS["gatformer-3-steps"] = ModelConfig(gatformer=replace(GRAPH, steps_per_token=3))
SAMPLED = AgentFormerConfig(6, 8, replace(BLOCK, norm_first=False, agent_aware=True), (1, 1, 1), (16,), num_history=10)
LATENT = {  # what they learn from is not a forecast: see test_agentformer.py
    "agentformer": ModelConfig(agentformer=SAMPLED),
    "agentformer-road": ModelConfig(agentformer=replace(SAMPLED, reach_m=30.0, road=RoadConfig(100.0, 120, 16))),
    "agentformer-tokens": ModelConfig(
        agentformer=replace(SAMPLED, reach_m=30.0, road=RoadConfig(100.0, 120, 16), steps_per_token=4, extrapolate=True)
    ),
    "agentformer-joint": ModelConfig(agentformer=replace(SAMPLED, joint=True)),
    "agentformer-sampler": ModelConfig(agentformer_sampler=AgentFormerSamplerConfig(SAMPLED, hidden=(16, 16))),
}
CONFIGS |= LATENT
SCENE_SET = SceneSetConfig(FUTURE, queries=12, block=BLOCK, decoder_layers=2, max_polylines=120, map_width=16)
SETS = {"scene-set": SCENE_SET, "scene-set-agents": replace(SCENE_SET, queries=0, modes=2)}
EVERY = CONFIGS | {name: ModelConfig(scene_set=config) for name, config in SETS.items()}  # one mode, own frame: test_scene_set.py
CHOOSING = {"mmtransformer-9-proposals", "mmtransformer-regions", "wayformer-9-components"}  # modes, in evaluation
AGENT_FIELDS = ("agent_kind", "agent_role", "agent_mask", "position", "heading", "velocity", "valid", "pose")
POLYLINE_FIELDS = ("polyline", "polyline_kind", "polyline_flags", "polyline_mask")


@pytest.fixture(params=CONFIGS.values(), ids=CONFIGS.keys())
def model(request: pytest.FixtureRequest) -> nn.Module:
    return build(request.param).eval()


def build(config: ModelConfig) -> nn.Module:
    """A model with random weights, in those matrices, too, that start at zero or nearly so."""
    torch.manual_seed(0)
    model = build_model(config)
    for parameter in model.parameters():
        if parameter.ndim > 1 and parameter.detach().square().mean() < 0.015**2:
            nn.init.normal_(parameter, std=0.1)
    return model


def loss_of(forecast: Forecast, batch: SceneBatch) -> Tensor:
    """The loss that the model is made for."""
    if forecast.is_joint:
        return world_loss(forecast, batch.target, batch.target_valid, WorldLossConfig())["loss"]
    if forecast.scale is not None:
        return mixture_loss(forecast, batch.target, batch.target_valid, MixtureLossConfig())["loss"]
    return set_loss(forecast, batch.target, batch.target_valid, SetLossConfig())["loss"]


def hide(scene: Scene, agent: int, steps: slice) -> Scene:
    """The scene without some steps of one agent."""
    arrays = {name: getattr(scene, name).copy() for name in ("position", "heading", "velocity", "valid")}
    for value in arrays.values():
        value[agent, steps] = 0
    return replace(scene, **arrays).validate()


def varied() -> list[Scene]:
    """Three scenes of different sizes; a scored agent and a context agent are lost early, one is seen once."""
    late = hide(hide(make_scene(12), 1, slice(7, 10)), 4, slice(8, 10))
    return [hide(late, 5, slice(0, 9)), make_scene(5, num_scored=1, seed=1), make_scene(20, num_scored=4, seed=2)]


def rows(batch: SceneBatch, forecast: Forecast, scene: int = 0) -> tuple[Tensor, Tensor]:
    """Positions in the batch frame and logits of one scene's real targets."""
    real = batch.target_mask[scene]
    return forecast.in_batch_frame()[scene, real], logits(forecast)[scene, real]


def logits(forecast: Forecast) -> Tensor:
    """[B, S, K], those of worlds the same for every target; of samples probabilities, as many of theirs are next to nothing."""
    if forecast.latent is not None:
        return forecast.probability()
    return forecast.logit[:, None].expand(forecast.position.shape[:3]) if forecast.is_joint else forecast.logit


def assert_same(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], tolerance: float = 1e-5) -> None:
    assert left[0].numel() > 0
    for a, b, slack in zip(left, right, (1, 10), strict=True):  # metres, and what is computed of them
        torch.testing.assert_close(a, b, atol=slack * tolerance, rtol=slack * tolerance)


@torch.no_grad()
def test_batch_mates_change_nothing(model: nn.Module) -> None:
    together = collate(varied())
    forecast = model(together)
    assert forecast.position.shape == (3, 5, 6, FUTURE, 2) and logits(forecast).shape == (3, 5, 6)
    for number, scene in enumerate(varied()):
        alone = collate([scene])
        assert_same(rows(together, forecast, number), rows(alone, model(alone)))


@torch.no_grad()
def test_padding_full_of_garbage_changes_nothing(model: nn.Module) -> None:
    batch, extra, generator = collate(varied()[:1]), 7, torch.Generator().manual_seed(1)

    def widened(value: Tensor) -> Tensor:
        new = torch.rand((1, extra, *value.shape[2:]), generator=generator) * 4  # kinds exist up to 4
        new = torch.zeros_like(new) if value.dtype == torch.bool else new
        return torch.cat([value, new.to(value.dtype)], 1)

    padded = replace(batch, **{name: widened(getattr(batch, name)) for name in (*AGENT_FIELDS, *POLYLINE_FIELDS)})
    assert padded.position.shape[1] == batch.position.shape[1] + extra
    assert_same(rows(batch, model(batch)), rows(padded, model(padded)))


@torch.no_grad()
def test_order_of_agents_and_polylines_changes_nothing(model: nn.Module) -> None:
    batch = collate(varied()[2:])
    size, targets, generator = batch.agent_mask.shape[1], batch.num_targets, torch.Generator().manual_seed(2)
    first = torch.randperm(targets, generator=generator)
    agents = torch.cat([first, targets + torch.randperm(size - targets, generator=generator)])
    lines = torch.randperm(batch.polyline.shape[1], generator=generator)
    order = dict.fromkeys(AGENT_FIELDS, agents) | dict.fromkeys(("target_mask", "target", "target_valid"), first)
    order |= dict.fromkeys(POLYLINE_FIELDS, lines)
    names = tuple(batch.agent_id[0][index] for index in agents.tolist())
    mixed = replace(batch, agent_id=(names,), **{name: getattr(batch, name)[:, index] for name, index in order.items()})
    position, logit = rows(batch, model(batch))
    assert_same((position[first], logit[first]), rows(mixed, model(mixed)))


@torch.no_grad()
@pytest.mark.parametrize("frame", [Frame.SCENE, Frame.FOCAL])
def test_moving_the_world_moves_the_forecast_along(model: nn.Module, frame: Frame) -> None:
    upright = frame is Frame.SCENE and isinstance(model, AgentFormer | AgentFormerSampler)  # they learn of turns by seeing them
    angle, shift, scenes, config = 0.0 if upright else 2.1, (37.0, -110.0), varied(), BatchConfig(frame=frame)
    moved = [transform_scene(scene, angle, shift) for scene in scenes]
    before, after = collate(scenes, config), collate(moved, config)
    first, second = model(before), model(after)
    expected = rotate(first.in_city_frame(before) - scenes[0].origin, np.array(angle)) + scenes[0].origin + np.array(shift)
    assert np.abs(second.in_city_frame(after) - expected)[before.target_mask.numpy()].max() < 1e-3
    found, expected = (logits(forecast)[before.target_mask] for forecast in (second, first))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


@torch.no_grad()
def test_the_future_is_not_seen(model: nn.Module) -> None:
    scene = make_scene(12)
    position = scene.position.copy()
    position[:, scene.num_history :] += np.float32(5.0) * scene.valid[:, scene.num_history :, None]
    known = collate([scene])
    expected = rows(known, model(known))
    for other in (replace(scene, position=position).validate(), make_scene(12, with_future=False)):
        batch = collate([other])
        assert not torch.equal(batch.target, known.target)
        assert all(map(torch.equal, rows(batch, model(batch)), expected))


@torch.no_grad()
def test_unseen_steps_and_lost_neighbours_are_not_read(model: nn.Module) -> None:
    batch = collate(varied())
    lost = batch.agent_mask & ~batch.valid[..., -1]
    lost[:, : batch.num_targets] = False
    assert lost.any() and not batch.valid[0, 1, -1]
    generator, spoiled = torch.Generator().manual_seed(3), batch
    for name, unseen in {"position": ~batch.valid, "heading": ~batch.valid, "velocity": ~batch.valid, "pose": lost}.items():
        value = getattr(batch, name)
        unseen = unseen.reshape(*unseen.shape, *[1] * (value.ndim - unseen.ndim))
        garbage = torch.where(unseen, 10 * torch.randn(value.shape, generator=generator), value)
        spoiled = replace(spoiled, **{name: garbage})
    first, second = model(batch), model(spoiled)
    for number in range(batch.num_scenes):
        assert_same(rows(batch, first, number), rows(spoiled, second, number))


@torch.no_grad()
def test_an_unseen_beginning_is_as_good_as_none(model: nn.Module) -> None:
    batch, names = collate(varied()), ("position", "heading", "velocity", "valid")
    short = replace(batch, **{name: getattr(batch, name)[:, :, 4:] for name in names})
    empty = {name: torch.zeros_like(getattr(batch, name)[:, :, :4]) for name in names}
    late = replace(batch, **{name: torch.cat([empty[name], getattr(short, name)], 2) for name in names})
    first, second = model(short), model(late)
    for number in range(3):
        assert_same(rows(batch, first, number), rows(batch, second, number))


@torch.no_grad()
def test_all_agents_as_targets(model: nn.Module) -> None:
    scenes = varied()
    batch = collate(scenes, BatchConfig(targets="all"))
    assert batch.target_mask.sum(1).tolist() == [int(scene.valid[:, 9].sum()) for scene in scenes]
    position = model(batch).position
    assert position.isfinite().all() and position.shape[1] == batch.num_targets


@pytest.mark.parametrize("case", ["no map", "single agent", "one observed step", "no target"])
def test_poor_scenes_give_finite_forecasts(model: nn.Module, case: str) -> None:
    scene = {
        "no map": make_scene(with_map=False),
        "single agent": make_scene(1, num_scored=0),
        "one observed step": hide(make_scene(1, num_scored=0, with_map=False), 0, slice(0, 9)),
        "no target": replace(make_scene(), agent_role=np.zeros(12, np.uint8)),
    }[case]
    batch = collate([scene])
    forecast = model.train()(batch)
    assert forecast.position.shape[:3] == (1, batch.num_targets, forecast.num_modes)
    assert forecast.position.isfinite().all() and forecast.logit.isfinite().all()
    loss = loss_of(forecast, batch)
    assert loss.isfinite()
    if loss.requires_grad:
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def in_both(run: Callable[[], T]) -> tuple[T, T]:
    """What something gives in single precision, and under autocast with the same chance."""
    torch.manual_seed(0)
    exact = run()
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16):
        return exact, run()


@torch.no_grad()
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", EVERY)
def test_half_precision_is_close(name: str, training: bool) -> None:
    model, batch = build(EVERY[name]).train(training), collate(varied())
    if isinstance(model, SceneSet):  # which one of the set a target gets may differ
        sets = in_both(lambda: model.trajectories(batch))
        pairs, real, metres = (
            [[found.position for found in sets], [found.logit.clamp(min=-1e3) for found in sets]],
            slice(None),
            0.5,
        )
    else:
        forecasts = in_both(lambda: model(batch))
        pairs, real, metres = [[found.position for found in forecasts]], batch.target_mask, 0.08
        # Greedy choices may differ: what stands for others, and how many it stands for.
        pairs += [[logits(found) for found in forecasts]] if training or name not in LATENT else []
        pairs += [[found.scale.log() for found in forecasts]] if forecasts[0].scale is not None else []
    for exact, rough in pairs:
        assert rough.dtype == torch.float32 and rough.isfinite().all()
        if training or name not in CHOOSING:
            assert (rough - exact)[real].abs().max() < metres


@pytest.mark.parametrize("name", sorted(EVERY.keys() - {"constant-velocity"}))
def test_half_precision_can_be_learned_from(name: str) -> None:
    """The loss of the recipe is that of single precision within a twentieth, its gradient is there and finite."""
    model, batch = build(EVERY[name]).train(), collate(varied())
    mixture = MixtureLossConfig() if EVERY[name].wayformer else None
    objective = Objective(TrainConfig(model=EVERY[name], mixture_loss=mixture).objective())
    exact, rough = in_both(lambda: objective(model, batch)["loss"])
    assert rough.dtype == torch.float32 and rough.item() == pytest.approx(exact.item(), rel=0.05)
    rough.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients) and any(g.any() for g in gradients)


def earlier_layers(name: str) -> int:
    """How many forecasts of earlier decoder layers a model keeps."""
    config = LEARNED.get(name)
    if config is None:
        return int(name in CHANNELS)
    return config.social_layers[1] - 1 if config.social_layers and config.social_output == "decoded" else 0


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - LATENT.keys() - {"constant-velocity"}))
def test_every_parameter_learns(name: str) -> None:
    model, batch = build(CONFIGS[name]), collate(varied())
    forecast = model(batch)
    assert len(forecast.auxiliary) == earlier_layers(name)
    loss_of(forecast, batch).backward()
    # A softmax does not change when all its scores shift: these two kinds of bias have no gradient in mathematics.
    score = [n for n, _ in model.named_parameters() if "score." in n][-1]
    free = [score, *(n for n, _ in model.named_parameters() if n.endswith(".key.bias"))]
    still = [n for n, p in model.named_parameters() if n not in free and (p.grad is None or p.grad.abs().max() < 1e-8)]
    assert still == [] and all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    "name",
    ["mmtransformer", "wayformer-hierarchical-interleaved-latents", "spatial-channel-agent", "lane-set", "gatformer", "crowd"],
)
def test_four_scenes_are_learned_by_heart(name: str) -> None:
    torch.manual_seed(0)
    config = ModelConfig(mmtransformer=SHALLOW) if name == "mmtransformer" else CONFIGS[name]
    model, batch = build_model(config), collate([make_scene(8, seed=seed) for seed in range(4)])
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=120)
    for _ in range(120):
        optimizer.zero_grad()
        loss_of(model(batch), batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    values, counts = displacement(model.eval()(batch), batch.target, batch.target_valid, 6)
    assert counts.all() and values["minFDE"].mean() < 0.2


def test_a_recipe_and_weights_on_disk_are_the_model(model: nn.Module, request: pytest.FixtureRequest) -> None:
    config = CONFIGS[request.node.callspec.id]
    again = build_model(from_plain(ModelConfig, to_plain(config))).eval()
    again.load_state_dict(model.state_dict())
    batch = collate(varied()[1:2])
    assert torch.equal(again(batch).position, model(batch).position)


def test_mistakes_are_named() -> None:
    short = ModelConfig(mmtransformer=replace(PLAIN, max_history=10))
    for config in (short, ModelConfig(wayformer=WAY), ModelConfig(spatial_channel=SPATIAL), ModelConfig(gatformer=GRAPH)):
        model = build_model(config)
        with pytest.raises(TrajformerError, match="13 future steps, the model predicts 12"):
            model(collate([make_scene(num_future=13)]))
        with pytest.raises(TrajformerError, match="11 observed steps, the model max_history 10"):
            model(collate([make_scene(num_history=11)]))
    with pytest.raises(TrajformerError, match="found none"):
        build_model(ModelConfig())
    with pytest.raises(TrajformerError, match=r"found \['constant_velocity', 'mmtransformer'\]"):
        build_model(ModelConfig(constant_velocity=ConstantVelocityConfig(), mmtransformer=PLAIN))


def test_nearest_by_hand() -> None:
    distance, exists = torch.tensor([4.0, 1.0, 9.0, 2.0, 3.0]), torch.tensor([True, True, True, False, True])
    cases = ((5.0, 3, [1, 4, 0]), (3.0, 5, [1, 4]), (0.5, 2, []), (99.0, 9, [1, 4, 0, 2]), (float("inf"), 5, [1, 4, 0, 2]))
    for radius, count, indices in cases:
        index, real = nearest(distance, exists, radius, count)
        assert index[real].tolist() == indices and len(index) == min(count, 5)


def test_distances_are_as_good_far_away_and_among_many() -> None:
    point = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 40
    far = (point + 4096).float()  # where float32 has steps of half a millimetre
    torch.testing.assert_close(pairwise_distances(far, far).double(), torch.cdist(point, point), atol=2e-3, rtol=0)


def test_every_model_that_a_recipe_can_name_is_built() -> None:
    assert list(MODELS) == [part.name for part in fields(ModelConfig)]
    built = {next(name for name, value in vars(config).items() if value is not None) for config in CONFIGS.values()}
    assert built == MODELS.keys() - {"scene_set"}  # has tests of its own
    for config in CONFIGS.values():
        assert type(build_model(config)) is next(MODELS[name] for name, value in vars(config).items() if value is not None)


TOO_SMALL = {
    "mmtransformer.modes: 0": ModelConfig(mmtransformer=replace(PLAIN, modes=0)),
    "mmtransformer.regions.count: 0": ModelConfig(mmtransformer=replace(PLAIN, regions=RegionConfig(0))),
    r"mmtransformer.motion_layers: \(1, 0\), its decoder": ModelConfig(mmtransformer=replace(PLAIN, motion_layers=(1, 0))),
    r"mmtransformer.social_layers: \(1, 0\), its decoder": ModelConfig(mmtransformer=replace(PLAIN, social_layers=(1, 0))),
    "spatial_channel.decoder_layers: 0": ModelConfig(spatial_channel=replace(SPATIAL, decoder_layers=0)),
    "spatial_channel.reduction: 0": ModelConfig(spatial_channel=replace(SPATIAL, reduction=0)),
    "lane_set.max_neighbors: 0": ModelConfig(lane_set=replace(LANES, max_neighbors=0)),
    "gatformer.graph_layers: 0": ModelConfig(gatformer=replace(GRAPH, graph_layers=0)),
    "gatformer.steps_per_token: 0": ModelConfig(gatformer=replace(GRAPH, steps_per_token=0)),
    "constant_velocity.modes: 0": ModelConfig(constant_velocity=ConstantVelocityConfig(modes=0)),
    "wayformer.modes: 0": ModelConfig(wayformer=replace(WAY, modes=0)),
    "wayformer.steps_per_token: 0": ModelConfig(wayformer=replace(WAY, steps_per_token=0)),
    "wayformer.decoder_layers: 0": ModelConfig(wayformer=replace(WAY, decoder_layers=0)),
    "wayformer.max_neighbors: 0": ModelConfig(wayformer=replace(WAY, max_neighbors=0)),
    r"encoder.latents.counts: \(0,\)": ModelConfig(
        wayformer=replace(WAY, encoder=SceneEncoderConfig(latents=LatentConfig(counts=(0,)), block=BLOCK))
    ),
    "scene_set.modes: 0": ModelConfig(scene_set=SceneSetConfig(FUTURE, modes=0)),
    "scene_set.queries: -1": ModelConfig(scene_set=SceneSetConfig(FUTURE, queries=-1)),
}


@pytest.mark.parametrize("expected", TOO_SMALL)
def test_a_model_without_something_that_it_needs_is_not_built(expected: str) -> None:
    with pytest.raises(TrajformerError, match=expected):
        build_model(TOO_SMALL[expected])


def test_a_stack_that_is_not_used_may_be_empty() -> None:
    released = replace(PLAIN, social_output="appended", social_layers=(1, 0), map_layers=(0, 1), motion_layers=(0, 1))
    assert build(ModelConfig(mmtransformer=released)).eval()(collate(varied())).position.isfinite().all()


@pytest.mark.parametrize("name", ["mmtransformer", "spatial-channel-agent", "lane-set", "gatformer", "mmtransformer-joint"])
def test_a_single_mode_learns(name: str) -> None:
    [(field, config)] = [(field, value) for field, value in vars(CONFIGS[name]).items() if value is not None]
    few = {"proposals": 1} if field == "mmtransformer" else {}
    model, batch = build(ModelConfig(**{field: replace(config, modes=1, **few)})), collate(varied())
    loss = loss_of(model.train()(batch), batch)
    loss.backward()
    assert loss.isfinite() and model.trajectory[0].weight.grad.abs().max() > 0
    forecast = model.eval()(batch)
    assert forecast.position.shape[2] == 1 and torch.equal(forecast.probability(), torch.ones(3, 5, 1))


@pytest.mark.parametrize("valid", [list(range(10)), [5, 9], [0, 6, 9], [2, 3, 8], [9]])
def test_constant_velocity_goes_straight_on_and_stands_after_one_step(valid: list[int]) -> None:
    scene = make_scene(1, num_scored=0, with_map=False)
    line = np.array([1.0, 2.0]) + (np.arange(22) - 9)[:, None] * PERIOD_S * np.array([3.0, -4.0])
    scene = replace(scene, position=line[None].astype(np.float32))
    for step in {*range(10)} - {*valid}:
        scene = hide(scene, 0, slice(step, step + 1))
    forecast = ConstantVelocity(ConstantVelocityConfig(modes=3))(collate([scene]))
    expected = line[10:] if len(valid) > 1 else line[[9] * FUTURE]
    np.testing.assert_allclose(forecast.position[0, 0, 0], expected, atol=1e-5)
    assert forecast.logit[0, 0].argmax() == 0
    assert len(valid) == 1 or (forecast.position[0, 0, 1:, -1] - forecast.position[0, 0, 0, -1]).norm(dim=-1).min() > 0.01


@pytest.mark.parametrize("name", ["mmtransformer", "spatial-channel-agent", "lane-set", "gatformer"])
def test_modes_are_scored_by_consensus_in_evaluation_alone(name: str) -> None:
    [(kind, config)] = [(kind, value) for kind, value in vars(CONFIGS[name]).items() if value is not None]
    batch, scored = collate(varied()), []
    for temperature in (1.0, 0.0):
        model = build(ModelConfig(**{kind: replace(config, consensus_m=temperature)}))
        scored.append((model.eval()(batch), model.train()(batch)))
    (after, trained), (own, same) = scored
    real = batch.target_mask
    torch.testing.assert_close(after.logit[real], consensus(own, 1.0).logit[real])
    assert not torch.allclose(after.logit[real], own.logit[real])
    torch.testing.assert_close(trained.logit[real], same.logit[real])
