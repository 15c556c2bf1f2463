"""AgentFormer: decoding, masks, batches, evaluation, the second stage, and training of both."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.agentformer import ROAD, TINY, VARIANTS, different_scenes, fixed_noise, random_model
from support.scenes import make_scene
from support.tensors import draw
from support.training import logged, recipe, weights
from torch import Tensor

from trajformer.data.augment import AugmentConfig
from trajformer.data.batch import Observation, SceneBatch, Truth, collate
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.data.sample import Frame
from trajformer.errors import TrajformerError
from trajformer.models.agentformer.losses import CVAELossConfig, SamplerLossConfig, sampler_loss
from trajformer.models.agentformer.model import AgentFormer
from trajformer.models.agentformer.networks import Context
from trajformer.models.agentformer.sampler import AgentFormerSamplerConfig
from trajformer.models.constant_velocity import ConstantVelocity, named_noise
from trajformer.models.forecaster import Forecaster
from trajformer.recipes.checkpoint import load_checkpoint, write_checkpoint
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.shard import ShardInfo, shard_path, write_shard
from trajformer.training.forecasting import TASK
from trajformer.training.run import train


def different() -> SceneBatch:
    return collate(different_scenes())


def context_and_latents(model: AgentFormer, observation: Observation) -> tuple[Context, Tensor]:
    """The encoded past, and five samples of the prior [B, 5, A, Z]."""
    context = model.encode(observation)
    prior = model.prior_of(context)
    return context, prior.at(draw(len(prior.mean), 5, *prior.mean.shape[2:], seed=3))


def decoded(
    model: AgentFormer, observation: Observation, z: Callable[[Gaussian], Tensor]
) -> Tensor:
    """Positions of the targets [B, S, K, F, 2] from latents that `z` computes from the prior."""
    context = model.encode(observation)
    prior = model.prior_of(context)
    return model.decode_samples(observation, context, z(prior), prior, prior, scored=False).position


def both_stages(variant: str) -> list[Forecaster]:
    first = random_model(VARIANTS[variant], seed=1)
    second = AgentFormerSamplerConfig(VARIANTS[variant], hidden=(8, 8)).build()
    second.cvae.load_state_dict(first.state_dict())
    torch.nn.init.normal_(second.shift.weight, std=3.0)
    return [first, second.eval()]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_rollout_with_cache_equals_recomputing_all_steps(variant: str) -> None:
    model = random_model(VARIANTS[variant])
    context, z = context_and_latents(model, different().observation)
    rolled = model.decoder.rollout(z, context, 6)
    replayed = model.decoder.replay(z, context, rolled)
    assert rolled.shape == (3, 5, 6, context.present.shape[1], 2)
    assert replayed.requires_grad and not rolled.requires_grad
    recomputed = rolled[:, :, :0]
    for _ in range(6):  # the position of the step that is decoded is not an input
        unknown = torch.full_like(rolled[:, :, :1], torch.nan)
        step = model.decoder.replay(z, context, torch.cat([recomputed, unknown], 2))[:, :, -1:]
        recomputed = torch.cat([recomputed, step], 2)
    for actual in (replayed, recomputed):
        assert (actual - rolled).abs().amax((1, 2, 4))[context.present].max() < 1e-5
    motion = (rolled[:, :, 1:] - rolled[:, :, :-1]).abs().amax((1, 2, 4))
    assert motion[context.present].min() > 1e-4


@pytest.mark.parametrize("steps", [1, 4])
def test_zero_offsets_are_standing_agents_or_constant_velocity(steps: int) -> None:
    batch = different()
    o = batch.observation
    for extrapolate in (False, True):
        model = replace(TINY, steps_per_token=steps, extrapolate=extrapolate).build().eval()
        torch.nn.init.zeros_(model.decoder.out[-1].weight)
        position = model(o).position
        real = o.target_mask
        expected = o.pose[:, : o.num_targets, None, None, :2]
        if extrapolate:
            real = real & o.valid[:, : o.num_targets, -1]
            expected = ConstantVelocity()(o).position
        assert real.sum() >= 5
        torch.testing.assert_close(
            position[real], expected.expand_as(position)[real], atol=1e-4, rtol=0
        )


def test_futures_of_absent_agents_are_not_attended_to() -> None:
    model = random_model(TINY)
    observation = collate(different_scenes()[:1]).observation
    age = observation.age.clone()
    age[:, -2:] = 2.0  # seconds
    context, z = context_and_latents(model, replace(observation, age=age))
    absent = ~context.present
    assert absent.sum() == 2
    expected = model.decoder.rollout(z, context, 6)
    actual = model.decoder.rollout(torch.where(absent[:, None, :, None], z + 5.0, z), context, 6)
    difference = (actual - expected).abs().amax((1, 2, 4))
    assert difference[~absent].max() == 0.0 and difference[absent].min() > 1e-3


def test_lanes_and_headings_are_inputs_on_roads_only() -> None:
    o = collate([make_scene(5, 8, 6)]).observation
    no_lane = replace(o, polyline_mask=torch.zeros_like(o.polyline_mask))
    rotated = replace(o, heading=(o.heading + 0.5) * o.valid)
    changes = [rotated, replace(o, polyline=o.polyline + 1.0), no_lane]
    road = random_model(VARIANTS["road"])
    plain = random_model(TINY)
    for changed in changes:
        assert (road(changed).position - road(o).position).abs().max() > 1e-4
        assert torch.equal(plain(changed).position, plain(o).position)
    far = replace(o, polyline=o.polyline + 500.0)
    torch.testing.assert_close(road(far).position, road(no_lane).position, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_and_gradient_of_a_batch_are_means_over_its_scenes(variant: str) -> None:
    def learn(batch: SceneBatch, noise: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Terms of the loss, and gradients of the parameters."""
        model = random_model(VARIANTS[variant]).train()
        with fixed_noise(noise):
            terms = CVAELossConfig(free=0.0).build()(model, batch)
        terms["loss"].backward()
        gradients = {}
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            gradients[name] = torch.zeros_like(parameter) if gradient is None else gradient
        return terms, gradients

    scenes = different_scenes()
    noise = draw(3, 5, 7, 3, seed=5)
    terms, gradients = learn(collate(scenes), noise)
    alone = [learn(collate([scene]), noise[b : b + 1]) for b, scene in enumerate(scenes)]
    for name, value in terms.items():
        expected = np.mean([scene_terms[name].item() for scene_terms, _ in alone])
        assert value.item() == pytest.approx(float(expected), rel=1e-4), name
    for name, gradient in gradients.items():
        mean = torch.stack([scene_gradients[name] for _, scene_gradients in alone]).mean(0)
        smallest = 2e-5 * max(1.0, mean.abs().max().item())
        torch.testing.assert_close(gradient, mean, atol=smallest, rtol=1e-3, msg=name)


@torch.no_grad()
def test_an_additional_target_does_not_change_other_forecasts() -> None:
    scene = make_scene(6, 8, 6, num_scored=1)
    more = replace(scene, agent_role=np.array([3, 2, 0, 2, 2, 0], np.uint8))
    few = collate([scene]).observation
    many = collate([more]).observation
    for model in both_stages("road-last"):
        expected = model(few).position[0]
        actual = model(many).position[0]
        for index, name in enumerate(few.agent_id[0][: few.num_targets]):
            same_agent = actual[many.agent_id[0].index(name)]
            torch.testing.assert_close(same_agent, expected[index], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_noise_in_evaluation_depends_on_seed_scene_and_agent() -> None:
    o = collate([replace(make_scene(4, 8, 6), scene_id=name) for name in ("a", "b")]).observation
    noise = named_noise(o, 4, 12, 0)
    assert noise.shape == (2, 4, 12)
    assert torch.equal(noise, named_noise(o, 4, 12, 0))
    assert len(set(noise.flatten().tolist())) == noise.numel()
    assert not torch.isclose(noise, named_noise(o, 4, 12, 1)).any()
    many = named_noise(o, 4, 9000, 0)
    assert abs(many.mean().item()) < 0.02
    assert many.std().item() == pytest.approx(1.0, abs=0.02)

    model = random_model(TINY)
    z = noise.unflatten(-1, (4, 3)).transpose(1, 2)
    forecast = model(o)
    assert forecast.frame is Frame.SCENE
    assert torch.equal(forecast.position, decoded(model, o, lambda prior: prior.at(z)))
    assert not torch.equal(random_model(replace(TINY, seed=1))(o).position, forecast.position)
    torch.manual_seed(0)
    assert not torch.equal(model.train()(o).position, model(o).position)


@torch.no_grad()
def test_the_number_of_samples_in_evaluation_may_differ() -> None:
    batch = collate([make_scene(5, 8, 6)])
    few = random_model(TINY)
    many = random_model(replace(TINY, evaluation_samples=9))
    same = random_model(replace(TINY, samples=9))(batch.observation)
    torch.testing.assert_close(many(batch.observation).position, same.position)
    assert few(batch.observation).num_modes == 4 and same.num_modes == 9
    assert many.train()(batch.observation).num_modes == 4
    best = []
    for model in (few, many):
        torch.manual_seed(5)
        best.append(model.reconstruct(batch.observation, batch.truth).best)
    assert torch.equal(*best)


@torch.no_grad()
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("second_stage", [False, True])
def test_with_mean_first_the_most_probable_mode_is_nearest_to_the_decoded_prior_mean(
    second_stage: bool, joint: bool
) -> None:
    o = different().observation
    forecasts = []
    for mean_first in (False, True):
        torch.manual_seed(0)
        config = replace(TINY, samples=12, joint=joint, mean_first=mean_first)
        if second_stage:
            model: Any = AgentFormerSamplerConfig(config).build()
            cvae = model.cvae
            outputs = [cvae.decoder.out[-1], model.shift]
        else:
            cvae = model = random_model(config)
            outputs = [model.decoder.out[-1]]
        for layer in outputs:  # large weights, so that modes differ
            torch.nn.init.normal_(layer.weight, std=5.0, generator=torch.Generator().manual_seed(1))
        forecasts.append(model.eval()(o))
    plain, forecast = forecasts
    assert torch.equal(plain.position, forecast.position)
    assert not torch.equal(plain.logit, forecast.logit)
    guess = decoded(cvae, o, lambda prior: prior.mean)
    distance = (forecast.position - guess)[..., -1, :].norm(dim=-1)
    if joint:
        distance = (distance * o.target_mask[..., None]).sum(1)
    real = slice(None) if joint else o.target_mask
    assert torch.equal(forecast.logit.argmax(-1)[real], distance.argmin(-1)[real])
    assert not model.train()(o).logit.any()


def test_latents_are_affine_in_noise_that_a_scene_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    config = AgentFormerSamplerConfig(TINY, hidden=(8, 8), noise=True)
    torch.manual_seed(0)
    sampler = config.build()
    decoder = sampler.cvae.decoder
    rollout = decoder.rollout
    latents = []

    def recorded_rollout(z: Tensor, *rest: Any) -> Tensor:
        latents.append(z)
        return rollout(z, *rest)

    monkeypatch.setattr(decoder, "rollout", recorded_rollout)
    o = different().observation
    latent = sampler.train()(o).latent
    sampler.eval()(o)
    sampler.config = replace(config, noise=False)
    sampler.train()(o)
    drawn, shift, without_noise = (z[:, :, : o.num_targets] for z in latents)
    assert torch.equal(without_noise, shift)
    torch.testing.assert_close(latent.mean, shift.transpose(1, 2))
    deviation = (0.5 * latent.log_variance).exp().transpose(1, 2)
    noise = ((drawn - shift) / deviation).abs()
    torch.testing.assert_close(noise, noise[:, :1, :1].expand(noise.shape), atol=1e-3, rtol=1e-2)
    assert (noise[0, 0, 0] - noise[1, 0, 0]).abs().min() > 1e-3


@pytest.mark.parametrize(
    "changes", [{}, {"samples": 5}, {"evaluation_samples": 9, "mean_first": True}]
)
def test_the_first_stage_may_have_another_number_of_samples(changes: dict[str, Any]) -> None:
    first = random_model(replace(TINY, **changes))
    sampler = AgentFormerSamplerConfig(TINY).build()
    assert not torch.equal(sampler.cvae.prior.weight, first.prior.weight)
    sampler.prepare(None, 0, first)  # type: ignore[arg-type]
    torch.testing.assert_close(sampler.cvae.state_dict(), first.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize(
    "first_stage",
    [
        None,
        random_model(replace(TINY, scale_m=1.0)),
        random_model(replace(TINY, hidden=(9,))),
        ConstantVelocity(),
    ],
    ids=["none", "scale", "hidden", "another model"],
)
def test_other_first_stages_are_refused(first_stage: Any) -> None:
    sampler = AgentFormerSamplerConfig(TINY).build()
    message = r"is no AgentFormer as model.agentformer_sampler.cvae describes it"
    with pytest.raises(TrajformerError, match=message):
        sampler.prepare(None, 0, first_stage)  # type: ignore[arg-type]


def loss_of_modes(position: Tensor, unit_m: float, config: SamplerLossConfig) -> dict[str, Tensor]:
    """The sampler's loss of modes [1, 1, K, 6, 2] of a standing agent.

    Latents are distributed as the prior.
    """
    same = Gaussian(*torch.zeros(2, 1, 1, position.shape[2], 2))
    logit = torch.zeros(position.shape[:3])
    forecast = Forecast(position, logit, Frame.SCENE, latent=same, prior=same)
    truth = Truth(torch.zeros(1, 1, 6, 2), torch.ones(1, 1, 6, dtype=torch.bool))
    return sampler_loss(forecast, truth, unit_m, config)


def test_diversity_by_hand() -> None:
    """Three modes at x = y = 0, s and 2 s metres, in a model with units of 2 m.

    Pairs differ in 12 coordinates.
    """
    neighbors = math.exp(-12 * 1 / 4 / 6.0)
    outer = math.exp(-12 * 4 / 4 / 6.0)
    one_m = (2 * neighbors + outer) / 3
    for spacing, diversity in ((0.0, 1.0), (1.0, one_m), (100.0, 0.0)):
        offset = torch.arange(3.0) * spacing
        position = offset.view(1, 1, 3, 1, 1).expand(1, 1, 3, 6, 2)
        terms = loss_of_modes(position, 2.0, SamplerLossConfig(free=0.0, spread=6.0))
        assert terms["best"] == terms["divergence"] == 0.0
        assert terms["diversity"].item() == pytest.approx(diversity, abs=1e-6)


def test_a_single_mode_has_no_diversity() -> None:
    position = torch.ones(1, 1, 1, 6, 2).requires_grad_()
    terms = loss_of_modes(position, 1.0, SamplerLossConfig(free=0.0))
    values = {name: value.item() for name, value in terms.items()}
    assert values == {"best": 12.0, "divergence": 0.0, "diversity": 0.0, "loss": 60.0}
    terms["loss"].backward()
    assert (position.grad == 10.0).all()


CVAE = replace(TINY, samples=6, hidden=(), road=ROAD)
ROTATED = AugmentConfig(flip=0.0, rotate=math.pi, agent_dropout=0.0, history_mask=0.0)
TERMS = {
    "first": ("reconstruction", "divergence", "best"),
    "second": ("best", "divergence", "diversity"),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes with these numbers of agents."""
    root = tmp_path_factory.mktemp("store")
    for split, sizes in (("train", (4, 5, 1, 3)), ("val", (4, 2))):
        scenes = []
        for seed, size in enumerate(sizes):
            scenes.append(make_scene(size, 8, 6, num_scored=min(size - 1, 2), seed=seed))
        write_shard(shard_path(root, split, 0), scenes, ShardInfo("synthetic", split))
    return root


def first_recipe(store: Path) -> TrainConfig:
    return recipe(store, model=CVAE, augment=ROTATED, trainer={"epochs": 1})


def second_recipe(store: Path, first_stage: Path | str) -> TrainConfig:
    return replace(
        first_recipe(store),
        model=AgentFormerSamplerConfig(CVAE, hidden=(8, 8)),
        first_stage=str(first_stage),
    )


@pytest.fixture(scope="module")
def stages(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of a run of each stage, of two steps."""
    folder = tmp_path_factory.mktemp("runs")
    first = folder / "first"
    second = folder / "second"
    train(first_recipe(store), TASK, first, progress=False)
    train(second_recipe(store, first / "last.ckpt"), TASK, second, progress=False)
    return {"first": first, "second": second}


@pytest.mark.parametrize(
    ("stage", "factors", "bound"),
    [("first", (1, 1, 1), 2.0), ("second", (5, 0.1, 20), 10.0)],
    ids=TERMS,
)
def test_each_stage_logs_the_terms_of_its_loss(
    stages: dict[str, Path], stage: str, factors: Any, bound: float
) -> None:
    table = logged(stages[stage])
    total = np.zeros(2)
    for factor, name in zip(factors, TERMS[stage], strict=True):
        term = table[f"train/{name}"].dropna().to_numpy()
        assert term.shape == (2,)
        total += factor * term
    assert np.isfinite(total).all()
    assert table["train/divergence"].dropna().min() >= bound
    np.testing.assert_allclose(table["train/loss"].dropna(), total, rtol=1e-5)


def test_the_second_stage_keeps_the_first_one(stages: dict[str, Path]) -> None:
    first = weights(stages["first"])
    second = weights(stages["second"])
    kept = {}
    for name, value in second.items():
        if name.startswith("model.cvae."):
            kept[name.replace("model.cvae.", "model.")] = value
    torch.testing.assert_close(kept, first, rtol=0, atol=0)

    torch.manual_seed(0)
    _, loaded = load_checkpoint(stages["second"] / "last.ckpt")
    initial = loaded.build_model().state_dict()
    names = [name for name in initial if not name.startswith("cvae.")]
    assert len(names) == 8
    for name in names:
        assert not torch.equal(initial[name], second[f"model.{name}"])


def test_a_missing_first_stage_or_one_of_other_sizes_is_an_error(
    store: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.ckpt"
    config = replace(first_recipe(store), model=replace(CVAE, scale_m=1.0))
    write_checkpoint(other, config, config.build_model().state_dict())
    missing = tmp_path / "nothing.ckpt"
    errors = {
        missing: "no such checkpoint",
        other: "is no AgentFormer as model.agentformer_sampler",
    }
    for path, error in errors.items():
        with pytest.raises(TrajformerError, match=f"first_stage: {path}: {error}"):
            train(second_recipe(store, path), TASK, tmp_path / "second", progress=False)
        assert not (tmp_path / "second").exists()


def test_only_the_second_stage_needs_a_first_stage(store: Path) -> None:
    with pytest.raises(TrajformerError, match="first_stage: given, but AgentFormer has none"):
        replace(first_recipe(store), first_stage="x.ckpt").check()
    with pytest.raises(
        TrajformerError, match="first_stage: none, but AgentFormerSampler needs a checkpoint"
    ):
        second_recipe(store, "").check()
