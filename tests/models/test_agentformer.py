"""AgentFormer against recorded numbers of the authors' code, its cached decoder against plain recomputation, and its promises.

fixtures_agentformer.npz holds what the public implementation gave for random weights and eight invented walkers in three
scenes: names and shapes of its tensors, in the order in which they are drawn here again, inputs, noise, and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.scenes import hide, make_scene
from test_cli import run
from torch import Tensor

from trajformer.cli.weights import layouts
from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import Options, StateDictReader
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.data.sample import BatchConfig, Frame
from trajformer.errors import CheckpointError, TrajformerError
from trajformer.evaluation.protocols.eth_ucy import observed
from trajformer.models.agentformer.loss import CVAELossConfig, SamplerLossConfig, cvae_loss, sampler_loss
from trajformer.models.agentformer.model import AgentFormer, AgentFormerConfig, RoadConfig
from trajformer.models.agentformer.sampler import AgentFormerSampler, AgentFormerSamplerConfig
from trajformer.models.agentformer.scene import Context, times, tokens_of
from trajformer.models.constant_velocity import ConstantVelocity
from trajformer.models.modes import coverage
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.scene import Scene

RECORD = dict(np.load(Path(__file__).parents[1] / "support" / "fixtures_agentformer.npz"))
SCALE_M, SAMPLES, LATENT, WIDTH, FREE = 2.0, 5, 4, 16, 0.5  # of the recorded model
TOLERANCE = {"atol": 1e-4, "rtol": 1e-5}
BLOCK = BlockConfig(16, 2, 24, dropout=0.0, norm_first=False, agent_aware=True)
TINY = AgentFormerConfig(samples=4, latent=3, block=BLOCK, layers=(1, 1, 2), hidden=(8,), scale_m=2.0)
KINDS = {
    "plain": TINY,
    "near": replace(TINY, reach_m=20.0),
    "road": replace(TINY, road=RoadConfig(60.0, 30, 8)),
    "tokens of four steps": replace(TINY, reach_m=20.0, road=RoadConfig(60.0, 30, 8), steps_per_token=4, extrapolate=True),
    "near, road": replace(TINY, reach_m=20.0, road=RoadConfig(60.0, 30, 8), origin="last"),
}


def crowd(position: np.ndarray, scene_id: str = "") -> Scene:
    """Walkers at float [A, 20, 2], all of them there all the time."""
    count = len(position)
    scene = make_scene(count, 8, 12, with_map=False, num_scored=count - 1, scene_id=scene_id)
    return replace(scene, position=position.astype(np.float32)).validate()


def varied() -> list[Scene]:
    """Crossings of different sizes; some come late, some are lost before the last step, some have no whole future."""
    late = hide(hide(make_scene(7, 8, 6), 1, slice(6, 8)), 4, slice(7, 8))
    cut = hide(make_scene(5, 8, 6, num_scored=2, seed=1), 1, slice(11, 14))
    return [hide(late, 5, slice(0, 7)), cut, make_scene(3, 8, 6, num_scored=0, seed=2)]


def made(config: AgentFormerConfig, seed: int = 0) -> AgentFormer:
    """A model whose untrained output is not nearly standing still."""
    torch.manual_seed(seed)
    model = AgentFormer(config)
    for layer in (model.decoder.out[-1], model.prior):
        torch.nn.init.normal_(layer.weight, std=0.2)
    return model.eval()


@contextmanager
def noise_is(value: Tensor) -> Iterator[None]:
    """While open, `torch.randn` gives the part of `value` that has the wanted shape, from its beginning on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randn", lambda *shape, **_: value[tuple(slice(n) for n in shape)].clone())
        yield


def context_of(model: AgentFormer, batch: SceneBatch) -> tuple[Context, Tensor]:
    """The encoded past, and latents of five draws."""
    context = model.encode(batch)
    prior = model.prior_of(context)
    shape = (len(prior.mean), 5, *prior.mean.shape[2:])
    return context, prior.at(torch.randn(shape, generator=torch.Generator().manual_seed(3)))


# recorded numbers of the authors' code ---------------------------------------------------------------------------------


def recorded_states() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The authors' state dict of the first stage, with the tables it keeps, and that of the second."""
    rng, states = np.random.RandomState(0), []
    for kind in ("", "sampler_"):
        state = {}
        for name, shape in zip(RECORD[f"{kind}names"].tolist(), RECORD[f"{kind}shapes"].tolist(), strict=True):
            values = 0.4 * rng.standard_normal(tuple(map(int, shape.split()))) + ("norm" in name and name.endswith("weight"))
            state[name] = torch.from_numpy(values.astype(np.float32))
        states.append(state)
    table = sinusoid(torch.arange(200, dtype=torch.float32), WIDTH)[:, None]
    return states[0] | dict.fromkeys(RECORD["buffers"].tolist(), table), states[1]


def per_scene(name: str) -> list[Tensor]:
    """A recorded array of all agents by scene."""
    return list(torch.from_numpy(RECORD[name]).split(RECORD["counts"].tolist()))


def recorded_batch() -> SceneBatch:
    return collate([crowd(position.numpy(), f"{n}") for n, position in enumerate(per_scene("position"))])


def recorded_noise() -> Tensor:
    """[B, 1 + K, A, Z]: of the posterior, then of the samples; padded."""
    noise = torch.zeros(3, 1 + SAMPLES, 4, LATENT)
    for row, part in zip(noise, per_scene("noise"), strict=True):
        row[:, : len(part)] = part.transpose(0, 1)
    return noise


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> AgentFormer:
    """The recorded weights as `trajformer weights convert` has them, in a file as the authors save it."""
    folder = tmp_path_factory.mktemp("converted")
    torch.save({"model_dict": recorded_states()[0], "epoch": 30}, folder / "model_0030.p")
    words = ("weights", "convert", "agentformer_eth", folder / "model_0030.p", folder / "ours.ckpt", "--heads", 2)
    assert run(*words) == 0
    model, recipe = load_checkpoint(folder / "ours.ckpt", TrainConfig)
    found = recipe.model.agentformer
    assert found is not None and found.block == BlockConfig(16, 2, 24, 0.1, 0.1, norm_first=False, agent_aware=True)
    assert (found.scale_m, found.hidden, found.latent, found.layers) == (SCALE_M, (24, 16), LATENT, (2, 2, 2))
    return without_dropout(model, samples=SAMPLES)


def without_dropout(model: Any, **changes: Any) -> AgentFormer:
    """The same weights in a model of 5 samples that does not drop any."""
    config = replace(model.config, block=replace(model.config.block, dropout=0.0, attention_dropout=0.0), **changes)
    twin = AgentFormer(config)
    twin.load_state_dict(model.state_dict())
    return twin.eval()


def assert_recorded(name: str, found: Callable[[int, int], Tensor]) -> None:
    """`found(scene, agents)` gives what was recorded of each scene."""
    for scene, expected in enumerate(per_scene(name)):
        torch.testing.assert_close(found(scene, len(expected)), expected, **TOLERANCE, msg=lambda text: f"{name}: {text}")


def joined(latent: Gaussian) -> Tensor:
    return torch.cat([latent.mean, latent.log_variance], -1)


def test_encoder_prior_and_samples_are_the_authors(converted: AgentFormer) -> None:
    batch, noise = recorded_batch(), recorded_noise()
    context = converted.encode(batch)
    prior = converted.prior_of(context)
    memory = context.memory.unflatten(1, (8, 4)).transpose(1, 2)
    assert_recorded("context", lambda b, n: memory[b, :n])
    assert_recorded("agent", lambda b, n: context.agent[b, :n])
    assert_recorded("prior", lambda b, n: joined(prior)[b, 0, :n])
    with torch.no_grad():
        rolled = converted.forecast(batch, converted.decode(context, prior.at(noise[:, 1:]), 12), prior).position
    assert_recorded("samples", lambda b, n: rolled[b, :n])
    replayed = converted.forecast(batch, converted.decode(context, prior.at(noise[:, 1:]), 12), prior).position
    assert_recorded("samples", lambda b, n: replayed[b, :n])
    assert replayed.requires_grad and not rolled.requires_grad


@pytest.mark.parametrize("reach_m", [0.0, 2.5])
def test_posterior_reconstruction_and_losses_are_the_authors(converted: AgentFormer, reach_m: float) -> None:
    model, batch, noise = without_dropout(converted, reach_m=reach_m), recorded_batch(), recorded_noise()
    samples, terms = ("near_samples", "near_terms") if reach_m else ("samples", "terms")
    with noise_is(noise):
        out = model.train().reconstruct(batch)
    for b, (drawn, target) in enumerate(zip(per_scene(samples), batch.target, strict=True)):
        error = (drawn - target[: len(drawn), None]).square().sum((-1, -2))
        best = drawn[torch.arange(len(drawn)), error.argmin(1)]
        torch.testing.assert_close(out.best[b, : len(drawn)], best, **TOLERANCE)
    if not reach_m:
        assert_recorded("posterior", lambda b, n: joined(out.posterior)[b, :n])
        assert_recorded("reconstruction", lambda b, n: out.position[b, :n])
    found = cvae_loss(out, batch.target, batch.target_valid, SCALE_M, CVAELossConfig(free=FREE))
    expected = dict(zip(("reconstruction", "divergence", "best", "loss"), RECORD[terms].mean(0).tolist(), strict=True))
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, rel=1e-5)
    for b, position in enumerate(per_scene("position")):  # and each scene by itself
        alone = collate([crowd(position.numpy())])
        with noise_is(noise[b : b + 1]):
            out = model.reconstruct(alone)
        loss = cvae_loss(out, alone.target, alone.target_valid, SCALE_M, CVAELossConfig(free=FREE))["loss"]
        assert loss.item() == pytest.approx(RECORD[terms][b, 3], rel=1e-5)


def test_agents_out_of_reach_are_the_authors(converted: AgentFormer) -> None:
    model, batch, noise = without_dropout(converted, reach_m=2.5), recorded_batch(), recorded_noise()
    context = model.encode(batch)
    prior = model.prior_of(context)
    position = model.forecast(batch, model.decode(context, prior.at(noise[:, 1:]), 12), prior).position
    assert_recorded("near_samples", lambda b, n: position[b, :n])
    assert np.abs(RECORD["near_samples"] - RECORD["samples"]).max() > 0.1


def test_gradients_are_the_authors(converted: AgentFormer) -> None:
    """Each tensor's gradient was recorded as its product with one random direction, in their layout."""
    model, noise = without_dropout(converted), recorded_noise()
    state, names = recorded_states()[0], RECORD["names"].tolist()
    shapes = [state[name].shape for name in names]
    directions = [np.random.RandomState(n).standard_normal(shape.numel()).reshape(shape) for n, shape in enumerate(shapes)]
    read = layouts()["agentformer_eth"].read
    _, number = read(
        StateDictReader({name: torch.full(shapes[n], float(n)) for n, name in enumerate(names)}, "numbers"), Options(2)
    )
    _, along = read(
        StateDictReader({name: torch.from_numpy(directions[n]) for n, name in enumerate(names)}, "directions"), Options(2)
    )
    for b, position in enumerate(per_scene("position")):
        alone = collate([crowd(position.numpy())])
        model.zero_grad()
        with noise_is(noise[b : b + 1]):
            out = model.train().reconstruct(alone)
        cvae_loss(out, alone.target, alone.target_valid, SCALE_M, CVAELossConfig(free=FREE))["loss"].backward()
        found = torch.zeros(len(names), dtype=torch.float64)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                product = (parameter.grad.double() * along[name].double()).flatten()
                found.index_add_(0, number[name].long().flatten(), product)
        expected = torch.from_numpy(RECORD["gradient"][b])
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5 * expected.abs().max().item())


def test_the_second_stage_is_the_authors(converted: AgentFormer) -> None:
    sampler, state = AgentFormerSampler(AgentFormerSamplerConfig(converted.config, hidden=(24, 16))), recorded_states()[1]
    sampler.adopt(converted)
    parts = (sampler.network[0][0], "q_mlp.affine_layers.0"), (sampler.network[1][0], "q_mlp.affine_layers.1")
    for layer, name in (*parts, (sampler.scale, "q_A"), (sampler.shift, "q_b")):
        layer.load_state_dict({kind: state[f"{name}.{kind}"] for kind in ("weight", "bias")})
    batch = recorded_batch()
    forecast = sampler.train()(batch)
    assert_recorded("modes", lambda b, n: forecast.position[b, :n])
    found = sampler_loss(forecast, batch.target, batch.target_valid, SCALE_M, SamplerLossConfig())
    expected = dict(zip(("best", "divergence", "diversity", "loss"), RECORD["sampler_terms"].mean(0).tolist(), strict=True))
    assert {name: value.item() for name, value in found.items()} == pytest.approx(expected, rel=1e-5)


# conversion is strict --------------------------------------------------------------------------------------------------


def read_state(
    state: dict[str, Tensor], layout: str = "agentformer_eth", heads: int = 2
) -> tuple[TrainConfig, dict[str, Tensor]]:
    source = StateDictReader(state, "file")
    recipe, weights = layouts()[layout].read(source, Options(heads))
    source.check_all_used()
    return recipe, weights


@pytest.mark.parametrize("damage", ["missing", "one row more"])
def test_every_tensor_must_be_there_and_in_shape(damage: str) -> None:
    state = recorded_states()[0]
    for name in RECORD["names"].tolist():
        changed = {key: value for key, value in state.items() if key != name}
        if damage != "missing":
            changed[name] = torch.cat([state[name], state[name][:1]])
        with pytest.raises(CheckpointError, match=r"^file: (no tensor )?'|^file: tensor '"):
            read_state(changed)


def test_tensors_that_have_no_place_are_named() -> None:
    state = recorded_states()[0]
    with pytest.raises(CheckpointError, match=r"'context_encoder.pos_encoder.pe' differs from the values"):
        read_state(state | {"context_encoder.pos_encoder.pe": state["context_encoder.pos_encoder.pe"].roll(1, 0)})
    with pytest.raises(CheckpointError, match=r"tensor 'map_encoder.fc.weight' has no place"):
        read_state(state | {"map_encoder.fc.weight": torch.ones(2, 2)})
    with pytest.raises(CheckpointError, match=r"'future_decoder.p_z_net.weight' has 7 rows"):
        read_state(state | {"future_decoder.p_z_net.weight": torch.ones(7, WIDTH)})


def test_released_models_without_hidden_layers_and_of_zara1(tmp_path: Path) -> None:
    state = {name: value for name, value in recorded_states()[0].items() if "out_mlp" not in name}
    for layout, config in (("agentformer", AgentFormerConfig()), ("agentformer_zara1", AgentFormerConfig(origin="last"))):
        torch.save(state, tmp_path / "theirs.pth")
        assert run("weights", "convert", layout, tmp_path / "theirs.pth", tmp_path / "ours.ckpt", "--heads", 2) == 0
        model, recipe = load_checkpoint(tmp_path / "ours.ckpt", TrainConfig)
        found = recipe.model.agentformer
        assert found is not None and (found.hidden, found.scale_m, found.origin) == ((), 1.0, config.origin)
        assert torch.equal(model.decoder.out[0].weight, state["future_decoder.out_fc.weight"])


def test_positions_are_relative_to_the_past_or_to_the_last_step() -> None:
    scenes = [hide(make_scene(4, 8, 6), 1, slice(6, 8)), hide(make_scene(1, 8, 6, num_scored=0), 0, slice(4, 8))]
    batch = collate(scenes)
    for origin, columns in (("observed", slice(0, 8)), ("last", slice(7, 8))):
        found = made(replace(TINY, origin=origin))._origin(batch)
        first, seen = batch.position[0, :, columns], batch.valid[0, :, columns]
        torch.testing.assert_close(found[0], first[seen].mean(0))
        torch.testing.assert_close(found[1], batch.position[1, 0, :4].mean(0))  # nobody is there at the end


# decoding --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_cached_rollout_is_that_of_recomputing_everything(kind: str) -> None:
    model = made(KINDS[kind])
    batch = collate(varied())
    context, z = context_of(model, batch)
    rolled = model.decoder.rollout(z, context, 6)
    again = model.decoder.replay(z, context, rolled)
    here = context.here
    assert rolled.shape == (3, 5, 6, here.shape[1], 2) and again.requires_grad and not rolled.requires_grad
    naive = rolled[:, :, :0]
    for _ in range(6):  # each step decodes all steps so far anew; what the last one would feed on is not read
        nothing = torch.full_like(rolled[:, :, :1], torch.nan)
        naive = torch.cat([naive, model.decoder.replay(z, context, torch.cat([naive, nothing], 2))[:, :, -1:]], 2)
    for other in (again, naive):
        gap = (other - rolled).abs().amax((1, 2, 4))
        assert gap[here].max() < 1e-5
    assert (rolled[:, :, 1:] - rolled[:, :, :-1]).abs().amax((1, 2, 4))[here].min() > 1e-4  # steps do differ


def test_no_step_feels_later_ones() -> None:
    model, batch = made(TINY), collate(varied())
    context, z = context_of(model, batch)
    rolled = model.decoder.rollout(z, context, 6)
    plain = model.decoder.replay(z, context, rolled)
    changed = rolled.clone()
    changed[:, :, 2] += 3.0
    other = model.decoder.replay(z, context, changed)
    assert torch.equal(other[:, :, :3], plain[:, :, :3]) and (other[:, :, 3:] - plain[:, :, 3:]).abs().max() > 1e-3


def test_a_token_holds_all_its_steps_and_which_of_them_are_real() -> None:
    xy, moved = torch.randn(1, 2, 6, 2), torch.randn(1, 2, 6, 2)
    valid = torch.ones(1, 2, 6, dtype=torch.bool)
    valid[0, 1, :3] = False
    heading = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    inputs, real = tokens_of(xy, moved, valid, heading, 4, past=True)  # steps -2 to 1, and 2 to 5
    assert inputs.shape == (1, 2, 2, 22) and real.tolist() == [[[True, False], [True, True]]]
    steps = inputs[..., :20].unflatten(-1, (4, 5))
    assert not steps[0, 0, :, :2].any() and torch.equal(inputs[0, 1, 1, 20:], heading[0, 1])
    assert torch.equal(steps[0, 1, 0], torch.cat([xy, moved, torch.ones(1, 2, 6, 1)], -1)[0, 0, 2:])
    assert steps[0, 1, 1, :, 4].tolist() == [0.0, 1.0, 1.0, 1.0] and not steps[0, 1, 1, 0].any()
    inputs, real = tokens_of(xy, moved, valid, heading[..., :0], 4, past=False)  # steps 0 to 3, and 4 to 7
    assert inputs.shape == (1, 2, 2, 20) and real.all()
    assert torch.equal(inputs[0, 1, 0, 5:7], xy[0, 0, 5]) and not inputs[0, 1, 0, 10:].any()
    assert times(6, 4, xy.device).tolist() == [3, 7] and times(6, 1, xy.device).tolist() == list(range(6))


def test_output_networks_begin_with_tiny_weights_or_with_usual_ones() -> None:
    for tiny, least, most in ((True, 0.0, 0.06), (False, 0.1, 1.0)):
        model = AgentFormer(replace(TINY, tiny_start=tiny))
        for network in (model.future.out, model.decoder.out):
            sizes = [layer.weight.abs().max().item() for layer in network if isinstance(layer, torch.nn.Linear)]
            assert len(sizes) == 2 and all(least < size < most for size in sizes)
        assert model.prior.weight.abs().max() < 0.06


@pytest.mark.parametrize("steps", [1, 4])
def test_an_untrained_model_stands_or_goes_on_as_before(steps: int) -> None:
    batch = collate(varied())
    for extrapolate in (False, True):
        model = AgentFormer(replace(TINY, steps_per_token=steps, extrapolate=extrapolate)).eval()
        torch.nn.init.zeros_(model.decoder.out[-1].weight)
        position = model(batch).position
        if extrapolate:
            plain = ConstantVelocity()(batch).position
            here = batch.target_valid.any(-1) & batch.valid[:, : batch.num_targets, -1]
            torch.testing.assert_close(position[here], plain.expand_as(position)[here], atol=1e-4, rtol=0)
            assert here.sum() >= 5
        else:
            start = batch.pose[:, : batch.num_targets, None, None, :2].expand_as(position)
            torch.testing.assert_close(position[batch.target_mask], start[batch.target_mask], atol=1e-4, rtol=0)


def test_a_token_feeds_on_the_last_step_of_the_one_before() -> None:
    model, batch = made(KINDS["tokens of four steps"]), collate(varied())
    context, z = context_of(model, batch)
    rolled = model.decoder.rollout(z, context, 6)
    plain = model.decoder.replay(z, context, rolled)
    for step, felt in ((2, False), (3, True), (5, False)):
        changed = rolled.clone()
        changed[:, :, step] += 3.0
        other = model.decoder.replay(z, context, changed)
        assert torch.equal(other[:, :, :4], plain[:, :, :4])
        assert ((other[:, :, 4:] - plain[:, :, 4:]).abs().max() > 1e-3) == felt


def test_samples_of_a_scene_are_joint() -> None:
    """An agent's future depends on what the others do in the same sample, and on nothing in other samples."""
    model, batch = made(TINY), collate([make_scene(5, 8, 6)])
    context, z = context_of(model, batch)
    before = model.decoder.rollout(z, context, 6)
    z = z.clone()
    z[:, 1, 2] += 2.0
    after = model.decoder.rollout(z, context, 6)
    torch.testing.assert_close(after[:, [0, 2, 3, 4]], before[:, [0, 2, 3, 4]], atol=1e-6, rtol=0)
    assert ((after - before)[0, 1].abs().amax((0, 2)) > 1e-6).all()


def test_evaluation_can_draw_more_samples_than_training() -> None:
    batch = collate([make_scene(5, 8, 6)])
    few, many = made(TINY), made(replace(TINY, evaluation_samples=9))
    assert many.train()(batch).num_modes == 4
    same = made(replace(TINY, samples=9))(batch)
    torch.testing.assert_close(many.eval()(batch).position, same.position)
    assert few(batch).num_modes == 4 and same.num_modes == 9
    torch.manual_seed(5)
    ours = many.reconstruct(batch)
    torch.manual_seed(5)
    assert torch.equal(few.reconstruct(batch).best, ours.best)  # it learns the same


def test_those_who_are_gone_are_not_felt_by_others() -> None:
    model, batch = made(TINY), collate(varied()[:1])
    context, z = context_of(model, batch)
    gone = ~context.here
    assert gone.sum() == 2
    moved = model.decoder.rollout(torch.where(gone[:, None, :, None], z + 5.0, z), context, 6)
    rolled = model.decoder.rollout(z, context, 6)
    gap = (moved - rolled).abs().amax((1, 2, 4))
    assert gap[~gone].max() == 0.0 and gap[gone].min() > 1e-3


def test_reach_limits_who_is_felt() -> None:
    position = np.zeros((3, 14, 2)) + np.array([[0.0, 0.0], [4.0, 0.0], [8.0, 0.0]])[:, None]
    position += np.arange(14)[:, None] * np.array([0.1, 0.05])
    scene = replace(make_scene(3, 8, 6, with_map=False), position=position.astype(np.float32))
    other = position.copy()
    other[2, :7] += 1.0  # where the third one came from
    batches = [collate([replace(scene, position=xy.astype(np.float32))]) for xy in (position, other)]
    for reach_m, felt in ((0.0, [True, True]), (5.0, [False, True]), (3.0, [False, False]), (9.0, [True, True])):
        model = made(replace(TINY, layers=(1, 1, 1), reach_m=reach_m))
        model._origin = lambda batch: torch.zeros(1, 2)  # type: ignore[method-assign]
        first, second = (model.encode(batch).agent[0] for batch in batches)
        assert [(first - second)[n].abs().max().item() > 1e-5 for n in (0, 1)] == felt, reach_m


# a batch of scenes is its scenes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_of_a_batch_are_the_means_of_its_scenes(kind: str) -> None:
    scenes, noise = varied(), torch.randn(3, 5, 7, 3, generator=torch.Generator().manual_seed(5))

    def learn(batch: SceneBatch, drawn: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        model = made(KINDS[kind]).train()
        with noise_is(drawn):
            out = model.reconstruct(batch)
        terms = cvae_loss(out, batch.target, batch.target_valid, 2.0, CVAELossConfig(free=0.0))
        terms["loss"].backward()
        zero = torch.zeros(())
        return terms, {name: zero if p.grad is None else p.grad for name, p in model.named_parameters()}

    terms, gradients = learn(collate(scenes), noise)
    alone = [learn(collate([scene]), noise[n : n + 1]) for n, scene in enumerate(scenes)]
    for name, value in terms.items():
        assert value.item() == pytest.approx(float(np.mean([part[0][name].item() for part in alone])), rel=1e-4), name
    for name, value in gradients.items():
        mean = torch.stack([(part[1][name] + torch.zeros_like(value)) for part in alone]).mean(0)
        torch.testing.assert_close(value, mean, atol=2e-5 * max(1.0, mean.abs().max().item()), rtol=1e-3, msg=name)


def test_gradient_is_that_of_decoding_every_sample_with_one() -> None:
    batch, noise = collate(varied()), torch.randn(3, 5, 7, 3, generator=torch.Generator().manual_seed(5))
    gradients = []
    for thrifty in (True, False):
        model = made(TINY).train()
        with noise_is(noise):
            out = model.reconstruct(batch)
        if not thrifty:
            context = model.encode(batch)
            every = model.forecast(batch, model.decode(context, model.prior_of(context).at(noise[:, 1:]), 6), out.prior)
            error = ((every.position - batch.target[:, :, None]).square().sum(-1) * batch.target_valid[:, :, None]).sum(-1)
            best = error.argmin(-1)[..., None, None, None].expand(-1, -1, 1, 6, 2)
            out = replace(out, best=every.position.gather(2, best).squeeze(2))
        config = CVAELossConfig(free=0.0, reconstruction=0.0, divergence=0.0)
        cvae_loss(out, batch.target, batch.target_valid, 2.0, config)["loss"].backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None and p.grad.any()})
    assert gradients[0].keys() == gradients[1].keys() and len(gradients[0]) > 40
    for name, value in gradients[0].items():
        torch.testing.assert_close(value, gradients[1][name], atol=1e-5, rtol=1e-3)


def test_the_best_sample_is_that_of_the_steps_that_are_known() -> None:
    batch, model, other = collate([hide(make_scene(5, 8, 6, num_scored=3), 1, slice(9, 14))]), made(TINY).train(), 0
    for seed in range(5):
        noise = torch.randn(1, 5, 5, 3, generator=torch.Generator().manual_seed(seed))
        with noise_is(noise):
            out = model.reconstruct(batch)
        context = model.encode(batch)
        every = model.forecast(batch, model.decode(context, model.prior_of(context).at(noise[:, 1:]), 6), out.prior).position
        error = (every - batch.target[:, :, None]).square().sum(-1)
        known = (error * batch.target_valid[:, :, None]).sum(-1).argmin(-1)
        best = every.gather(2, known[..., None, None, None].expand(-1, -1, 1, 6, 2)).squeeze(2)
        torch.testing.assert_close(out.best, best, atol=1e-5, rtol=1e-5)
        other += int(known[0, 1] != error.sum(-1).argmin(-1)[0, 1])
    assert other


def test_scenes_and_agents_without_a_future_do_not_count() -> None:
    scenes = [
        make_scene(4, 8, 6),
        hide(make_scene(4, 8, 6), 1, slice(8, 14)),
        hide(make_scene(1, 8, 6, num_scored=0), 0, slice(8, 14)),
    ]
    torch.manual_seed(0)
    model, batch = made(TINY).train(), collate(scenes)
    out = model.reconstruct(batch)
    plain = cvae_loss(out, batch.target, batch.target_valid, 2.0, CVAELossConfig())
    hidden = ~batch.target_valid.any(-1)
    assert hidden[1].any() and hidden[2].all()
    shift = 9.0 * hidden[..., None, None]
    wrong = replace(out, position=out.position + shift, best=out.best - shift)
    other = cvae_loss(wrong, batch.target, batch.target_valid, 2.0, CVAELossConfig())
    assert all(torch.equal(value, other[name]) for name, value in plain.items())
    two = replace(batch, scene_id=batch.scene_id[:2], target=batch.target[:2], target_valid=batch.target_valid[:2])
    first = replace(
        out, position=out.position[:2], best=out.best[:2],
        posterior=Gaussian(out.posterior.mean[:2], out.posterior.log_variance[:2]),
        prior=Gaussian(out.prior.mean[:2], out.prior.log_variance[:2]),
    )  # fmt: skip
    same = cvae_loss(first, two.target, two.target_valid, 2.0, CVAELossConfig())
    assert same["loss"].item() == pytest.approx(plain["loss"].item())
    plain["loss"].backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_nobody_to_learn_from_is_no_error() -> None:
    scene = replace(make_scene(3, 8, 6), agent_role=np.zeros(3, np.uint8))
    batch = collate([scene])
    assert batch.num_targets == 0
    loss = cvae_loss(made(TINY).train().reconstruct(batch), batch.target, batch.target_valid, 2.0, CVAELossConfig())["loss"]
    assert loss.item() == 0.0


def test_divergence_below_the_free_nats_is_let_alone() -> None:
    batch, model = collate(varied()[:1]), made(TINY).train()
    for free, learns in ((1e6, False), (0.0, True)):
        model.zero_grad()
        terms = cvae_loss(
            model.reconstruct(batch), batch.target, batch.target_valid, 2.0, CVAELossConfig(0.0, 1.0, free, 0.0)
        )  # the divergence alone
        terms["loss"].backward()
        assert (terms["divergence"].item() == free) != learns
        assert any(p.grad is not None and p.grad.any() for p in model.parameters()) == learns


# what a forecast is ----------------------------------------------------------------------------------------------------


def forecasters(kind: str) -> list[Any]:
    """A first and a second stage, ready to predict."""
    torch.manual_seed(1)
    first = made(KINDS[kind])
    second = AgentFormerSampler(AgentFormerSamplerConfig(KINDS[kind], hidden=(8, 8)))
    second.adopt(first)
    torch.nn.init.normal_(second.shift.weight, std=3.0)
    return [first, second.eval()]


@pytest.mark.parametrize("kind", KINDS)
def test_no_future_step_changes_a_forecast(kind: str) -> None:
    scene, config = make_scene(6, 8, 6), BatchConfig(targets="all")
    futures = [make_scene(6, 8, 6, with_future=False)]
    for step in range(8, 14):
        position = scene.position.copy()
        position[:, step] += np.float32(7.0) * scene.valid[:, step, None]
        futures.append(replace(scene, position=position).validate())
    for model in forecasters(kind):
        plain = model(collate([scene], config))
        for other in futures:
            forecast = model(collate([other], config))
            assert torch.equal(forecast.position, plain.position) and torch.equal(forecast.logit, plain.logit)
        past = scene.position.copy()
        past[:, 3] += np.float32(0.5) * scene.valid[:, 3, None]
        assert not torch.equal(model(collate([replace(scene, position=past)], config)).position, plain.position)


def test_who_stays_changes_no_forecast_of_the_protocol() -> None:
    """Roles of pedestrians tell the future; in the protocol all who are there in the past are predicted alike."""
    rng = np.random.default_rng(0)
    scene = crowd(rng.normal(0, 1, (5, 1, 2)) + rng.normal(0.3, 0.1, (5, 20, 2)).cumsum(1))
    left = hide(hide(scene, 1, slice(9, 20)), 3, slice(19, 20))
    left = replace(left, agent_role=np.array([2, 0, 2, 0, 2], np.uint8), scene_id=scene.scene_id)
    for model in forecasters("plain"):
        first, second = (model(collate([observed(window)])) for window in (scene, left))
        assert torch.equal(first.position, second.position) and first.position.shape[1] == 5


def test_a_target_more_changes_no_other_forecast() -> None:
    scene = make_scene(6, 8, 6, num_scored=1)
    more = replace(scene, agent_role=np.array([3, 2, 0, 2, 2, 0], np.uint8))
    few, many = collate([scene]), collate([more])
    for model in forecasters("near, road"):
        first, second = model(few), model(many)
        for name in few.agent_id[0][: few.num_targets]:
            a, b = first.position[0, few.agent_id[0].index(name)], second.position[0, many.agent_id[0].index(name)]
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_samples_are_drawn_from_the_prior_anew_for_every_agent_scene_and_seed() -> None:
    model = made(TINY)
    batch = collate([replace(make_scene(4, 8, 6), scene_id=name) for name in ("a", "b")])
    prior = model.prior_of(model.encode(batch))
    noise = model._noise(batch, prior.mean)
    assert noise.shape == (2, 4, 4, 3) and torch.equal(noise, model._noise(batch, prior.mean))
    assert len(set(noise.flatten().tolist())) == noise.numel()
    other = AgentFormer(replace(TINY, seed=1)).eval()._noise(batch, prior.mean)
    assert not torch.isclose(noise, other).any()
    forecast = model(batch)
    position = model.forecast(batch, model.decode(model.encode(batch), prior.at(noise), 6), prior).position
    assert torch.equal(forecast.position, position) and forecast.frame is Frame.SCENE
    many = AgentFormer(replace(TINY, samples=3000)).eval()._noise(batch, prior.mean)
    assert abs(many.mean().item()) < 0.02 and many.std().item() == pytest.approx(1.0, abs=0.02)
    torch.manual_seed(0)
    assert not torch.equal(model.train()(batch).position, model(batch).position)


def test_the_most_probable_sample_is_nearest_to_all_and_the_next_ones_cover_the_rest() -> None:
    model = made(replace(TINY, samples=12))
    with torch.no_grad():
        torch.nn.init.normal_(model.decoder.out[-1].weight, std=5.0)
        forecast = model(collate(varied()))
    end = forecast.position[..., -1, :].double()
    assert end.std(2).max() > 0.1
    order = forecast.logit.argsort(dim=-1, descending=True, stable=True)
    for b, s in np.ndindex(*forecast.logit.shape[:2]):
        distance = torch.cdist(end[b, s], end[b, s])
        assert order[b, s, 0] == distance.mean(1).argmin()
        chosen = [int(order[b, s, 0])]
        for mode in order[b, s, 1:5].tolist():
            left = torch.stack([distance[[*chosen, k]].amin(0).mean() for k in range(12)])
            assert left[mode] <= left.min() + 1.1e-3 * distance.mean(1).max()  # ties are broken
            chosen.append(mode)
    probability = forecast.probability()
    torch.testing.assert_close(probability.sum(-1), torch.ones(probability.shape[:2]))


def test_the_share_of_a_sample_is_what_it_covers() -> None:
    """Three samples in one place, one far from them: one of the three stands for them, the far one for itself."""
    position = torch.tensor([0.0, 0.0, 10.0, 0.0])[None, None, :, None, None].expand(1, 1, 4, 3, 2)
    share = coverage(Forecast(position, torch.zeros(1, 1, 4), Frame.SCENE)).probability()[0, 0]
    far = 200**0.5
    expected = torch.tensor([3 * far + 0.01, 0.01, far + 0.01, 0.01])
    torch.testing.assert_close(share, expected / expected.sum())
    still = coverage(Forecast(torch.zeros(1, 1, 4, 3, 2), torch.randn(1, 1, 4), Frame.SCENE)).probability()
    torch.testing.assert_close(still, torch.full((1, 1, 4), 0.25))


def test_a_guess_says_which_sample_comes_first_and_the_others_cover_the_rest() -> None:
    """As if nothing else could be first: the remaining ones are chosen as ever, and none is more probable."""
    position = torch.randn(2, 3, 8, 5, 2, generator=torch.Generator().manual_seed(3)) * 4
    forecast = Forecast(position, torch.zeros(2, 3, 8), Frame.SCENE)
    plain = coverage(forecast).logit
    order = plain.argsort(dim=-1, descending=True, stable=True)
    torch.testing.assert_close(coverage(forecast, guess=_mode(position, order[..., 0])).logit, plain)
    for last in (order[..., -1], order[..., 1]):
        scored = coverage(forecast, guess=_mode(position, last) + 1e-3)
        assert torch.equal(scored.logit.argmax(-1), last)
        torch.testing.assert_close(scored.logit.amax(-1), plain.amax(-1))
        end = position[..., -1, :]
        distance = torch.cdist(end, end)
        chosen = scored.logit.argsort(dim=-1, descending=True, stable=True)[..., 1]
        for b, s in np.ndindex(2, 3):
            left = [distance[b, s][[int(last[b, s]), k]].amin(0).mean().item() for k in range(8)]
            assert left[int(chosen[b, s])] == pytest.approx(min(left), abs=1e-2)
    real = torch.tensor([[True, True, False], [True, False, False]])
    worlds = coverage(forecast, real, _mode(position, torch.tensor([[6, 6, 0], [2, 5, 5]])))
    assert worlds.logit.argmax(-1).tolist() == [6, 2]


def _mode(position: Tensor, index: Tensor) -> Tensor:
    return position.gather(2, index[..., None, None, None].expand(*index.shape, 1, *position.shape[3:])).squeeze(2)


def test_the_mean_of_the_prior_is_the_single_best_guess_where_that_is_asked_for() -> None:
    batch = collate(varied())
    for joint in (False, True):
        plain, model = (made(replace(TINY, samples=12, joint=joint, mean_first=first)) for first in (False, True))
        with torch.no_grad():
            for one in (plain, model):
                torch.nn.init.normal_(one.decoder.out[-1].weight, std=5.0, generator=torch.Generator().manual_seed(1))
            before, forecast, context = plain(batch), model(batch), model.encode(batch)
            prior = model.prior_of(context)
            guess = model.forecast(batch, model.decode(context, prior.mean, batch.num_future), prior).position[:, :, 0]
        assert torch.equal(before.position, forecast.position)  # samples are what they were
        gap = (forecast.position - guess[:, :, None])[..., -1, :].norm(dim=-1)
        if joint:
            gap = (gap * batch.target_mask[..., None]).sum(1)
        real = slice(None) if joint else batch.target_mask
        assert torch.equal(forecast.logit.argmax(-1)[real], gap.argmin(-1)[real])
        assert not torch.equal(before.logit, forecast.logit)
        assert torch.equal(
            model.train()(batch).logit, torch.zeros_like(forecast.logit if not joint else before.position[..., 0, 0])
        )


def test_worlds_are_scored_by_all_targets_together() -> None:
    """As if the targets of a scene were one with the mean of their distances; who is padding does not count."""
    position = torch.randn(2, 3, 8, 5, 2, generator=torch.Generator().manual_seed(3)) * 4
    real = torch.tensor([[True, True, False], [True, False, False]])
    worlds = coverage(Forecast(position, torch.zeros(2, 3, 8), Frame.SCENE), real)
    assert worlds.is_joint and worlds.logit.shape == (2, 8)
    single = coverage(Forecast(position[1:, :1], torch.zeros(1, 1, 8), Frame.SCENE))
    torch.testing.assert_close(worlds.logit[1], single.logit[0, 0])
    same = coverage(Forecast(position[:1, :1].expand(-1, 3, -1, -1, -1), torch.zeros(1, 3, 8), Frame.SCENE), real[:1])
    torch.testing.assert_close(same.logit[0], coverage(Forecast(position[:1, :1], torch.zeros(1, 1, 8), Frame.SCENE)).logit[0, 0])
    assert not torch.allclose(worlds.logit[0], coverage(Forecast(position[:1], torch.zeros(1, 3, 8), Frame.SCENE)).logit[0, 0])
    changed = position.clone()
    changed[0, 2] += 100.0
    torch.testing.assert_close(coverage(Forecast(changed, torch.zeros(2, 3, 8), Frame.SCENE), real).logit, worlds.logit)


def test_rounding_does_not_decide_which_samples_are_probable() -> None:
    """Two samples that stand for each other shorten the distance alike: without a rule for ties half of these would change."""
    position = torch.randn(60, 5, 8, 3, 2, generator=torch.Generator().manual_seed(0)) * 3
    other = position * (1 + 1e-6 * torch.randn(position.shape, generator=torch.Generator().manual_seed(1)))
    first, second = (coverage(Forecast(xy, torch.zeros(60, 5, 8), Frame.SCENE)).probability() for xy in (position, other))
    assert ((first - second).abs().amax(-1) > 1e-3).float().mean() < 0.02


# the second stage ------------------------------------------------------------------------------------------------------


def test_only_the_sampler_learns_in_the_second_stage() -> None:
    sampler = forecasters("plain")[1].train()
    assert not sampler.cvae.training and sampler.training and not sampler.eval().train().cvae.training
    before = {name: value.clone() for name, value in sampler.cvae.state_dict().items()}
    batch, own = collate(varied()), [p for name, p in sampler.named_parameters() if not name.startswith("cvae.")]
    optimizer = torch.optim.SGD([p for p in sampler.parameters() if p.requires_grad], 1e-3)
    terms = sampler_loss(sampler(batch), batch.target, batch.target_valid, 2.0, SamplerLossConfig())
    terms["loss"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in own) and len(own) == 8
    assert all(p.grad is None for p in sampler.cvae.parameters())
    optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in sampler.cvae.state_dict().items())


def test_modes_are_affine_in_noise_that_a_scene_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    config = AgentFormerSamplerConfig(TINY, hidden=(8, 8), noise=True)
    torch.manual_seed(0)
    sampler, batch, seen = AgentFormerSampler(config), collate(varied()), []
    decode = sampler.cvae.decode
    monkeypatch.setattr(sampler.cvae, "decode", lambda context, z, steps: (seen.append(z), decode(context, z, steps))[1])
    latent = sampler.train()(batch).latent
    sampler.eval()(batch)
    sampler.config = replace(config, noise=False)
    sampler.train()(batch)
    assert latent is not None
    shift = seen[1]
    assert torch.equal(seen[2], shift)  # without noise as in evaluation
    targets = slice(0, batch.num_targets)
    torch.testing.assert_close(latent.mean, shift[:, :, targets].transpose(1, 2))
    scale = (0.5 * latent.log_variance).exp().transpose(1, 2)
    noise = ((seen[0] - shift)[:, :, targets] / scale).abs()
    torch.testing.assert_close(noise, noise[:, :1, :1].expand(noise.shape), atol=1e-3, rtol=1e-2)
    assert (noise[0, 0, 0] - noise[1, 0, 0]).abs().min() > 1e-3


def test_a_second_stage_has_the_same_single_best_guess() -> None:
    """Its modes are its own; the first one is that nearest to what the first stage decodes the prior's mean to."""
    batch = collate(varied())
    sampler = AgentFormerSampler(AgentFormerSamplerConfig(replace(TINY, samples=9, mean_first=True))).eval()
    with torch.no_grad():
        for layer in (sampler.shift, sampler.cvae.decoder.out[-1]):
            torch.nn.init.normal_(layer.weight, std=5.0, generator=torch.Generator().manual_seed(1))
        forecast, cvae, context = sampler(batch), sampler.cvae, sampler.cvae.encode(batch)
        prior = cvae.prior_of(context)
        guess = cvae.forecast(batch, cvae.decode(context, prior.mean, batch.num_future), prior).position
    gap = (forecast.position - guess)[..., -1, :].norm(dim=-1)[batch.target_mask]
    assert gap.std(-1).min() > 1e-3
    assert torch.equal(forecast.logit.argmax(-1)[batch.target_mask], gap.argmin(-1))


def test_a_second_stage_takes_the_first_ones_weights_and_no_others() -> None:
    first, sampler = made(TINY), AgentFormerSampler(AgentFormerSamplerConfig(TINY))
    assert not torch.equal(sampler.cvae.prior.weight, first.prior.weight)
    sampler.adopt(first)
    assert all(torch.equal(value, sampler.cvae.state_dict()[name]) for name, value in first.state_dict().items())
    sampler.adopt(made(replace(TINY, samples=TINY.samples + 1)))  # how many were drawn is no part of the weights
    sampler.adopt(made(replace(TINY, evaluation_samples=9, mean_first=True)))
    for other in (made(replace(TINY, scale_m=1.0)), made(replace(TINY, hidden=(9,))), sampler):
        with pytest.raises(TrajformerError, match=r"is no AgentFormer as model.agentformer_sampler.cvae describes it"):
            sampler.adopt(other)


def test_modes_that_lie_together_cost_and_those_apart_do_not() -> None:
    zero = Gaussian(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    terms = {}
    for spread in (0.0, 1.0, 100.0):
        position = (torch.arange(3.0) * spread)[None, None, :, None, None].expand(1, 1, 3, 6, 2)
        forecast = Forecast(position, torch.zeros(1, 1, 3), Frame.SCENE, latent=zero, prior=zero)
        target, valid = torch.zeros(1, 1, 6, 2), torch.ones(1, 1, 6, dtype=torch.bool)
        terms[spread] = sampler_loss(forecast, target, valid, 2.0, SamplerLossConfig(free=0.0, spread=6.0))
        assert terms[spread]["best"].item() == 0.0 and terms[spread]["divergence"].item() == 0.0
    pairs = (2 * np.exp(-12 / 4 / 6.0) + np.exp(-12 * 4 / 4 / 6.0)) / 3  # 12 coordinates, 1 or 2 m apart, a unit being 2 m
    assert [terms[n]["diversity"].item() for n in (0.0, 1.0, 100.0)] == pytest.approx([1.0, pairs, 0.0], abs=1e-6)


def test_a_single_mode_has_no_diversity() -> None:
    zero = Gaussian(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2))
    position = torch.ones(1, 1, 1, 6, 2).requires_grad_()
    forecast = Forecast(position, torch.zeros(1, 1, 1), Frame.SCENE, latent=zero, prior=zero)
    target, valid = torch.zeros(1, 1, 6, 2), torch.ones(1, 1, 6, dtype=torch.bool)
    terms = sampler_loss(forecast, target, valid, 1.0, SamplerLossConfig(free=0.0))
    assert [terms[name].item() for name in ("best", "divergence", "diversity", "loss")] == [12.0, 0.0, 0.0, 60.0]
    terms["loss"].backward()
    assert (position.grad == 10.0).all()


# on roads, and in general ----------------------------------------------------------------------------------------------


def test_lanes_and_headings_matter_on_roads() -> None:
    batch = collate([make_scene(5, 8, 6)])
    model = made(KINDS["road"])
    plain = model(batch).position
    turned = replace(batch, heading=(batch.heading + 0.5) * batch.valid)
    moved = replace(batch, polyline=batch.polyline + 1.0)
    gone = replace(batch, polyline_mask=torch.zeros_like(batch.polyline_mask))
    for other in (turned, moved, gone):
        assert (model(other).position - plain).abs().max() > 1e-4
    far = replace(batch, polyline=batch.polyline + 500.0)
    torch.testing.assert_close(model(far).position, model(gone).position, atol=1e-5, rtol=1e-5)
    walker = made(TINY)
    for other in (turned, moved, gone):
        assert torch.equal(walker(other).position, walker(batch).position)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_learns(kind: str) -> None:
    model, batch = made(KINDS[kind]).train(), collate(varied())
    out = model.reconstruct(batch)
    cvae_loss(out, batch.target, batch.target_valid, 2.0, CVAELossConfig(free=0.0))["loss"].backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-9]
    assert still == [] and all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_walkers_are_learned_by_heart() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    scenes = [crowd(rng.normal(0, 2, (3, 1, 2)) + (np.arange(20)[:, None] - 7) * rng.normal(0, 0.4, (3, 1, 2))) for _ in range(2)]
    model, batch = AgentFormer(replace(TINY, layers=(1, 1, 1), scale_m=2.0)), collate(scenes)
    optimizer, first = torch.optim.AdamW(model.parameters(), 5e-3), None
    for _ in range(130):
        optimizer.zero_grad()
        out = model.train().reconstruct(batch)
        terms = cvae_loss(out, batch.target, batch.target_valid, 2.0, CVAELossConfig())
        terms["loss"].backward()
        optimizer.step()
        first = first or terms["best"].item()
    assert terms["best"].item() < first / 20
    with torch.no_grad():
        error = (model.eval()(batch).position - batch.target[:, :, None]).norm(dim=-1).mean(-1).amin(-1)
    assert error.mean() < 0.8


def test_sizes_that_cannot_be_are_named() -> None:
    for name in ("samples", "evaluation_samples", "latent", "scale_m", "num_history"):
        with pytest.raises(TrajformerError, match=f"agentformer.{name}: 0, expected more than 0"):
            AgentFormer(replace(TINY, **{name: 0}))
    for layers in ((1, 0, 1), (1, 1, 0)):
        with pytest.raises(TrajformerError, match=r"agentformer.layers: \(1, ., .\), future encoder and decoder have"):
            AgentFormer(replace(TINY, layers=layers))
    with pytest.raises(TrajformerError, match=r"agentformer.reach_m: -1\.0, expected a distance"):
        AgentFormer(replace(TINY, reach_m=-1.0))
