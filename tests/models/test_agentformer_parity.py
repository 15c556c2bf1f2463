"""AgentFormer against recorded numbers of the authors' code, and the conversion of their weights.

`fixtures_agentformer.npz` holds results of the public implementation for random weights and eight
pedestrians in three scenes: names and shapes of its tensors (their values are drawn again here in
the same order), inputs, noise and outputs.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.agentformer import fixed_noise, pedestrians
from support.cli import run
from torch import Tensor

from trajformer.core.blocks import BlockConfig
from trajformer.core.positions import sinusoid
from trajformer.core.weights import Options, StateDictReader
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.forecast import Gaussian
from trajformer.errors import CheckpointError
from trajformer.models.agentformer.losses import CVAELossConfig, SamplerLossConfig
from trajformer.models.agentformer.model import AgentFormer
from trajformer.models.agentformer.sampler import AgentFormerSamplerConfig
from trajformer.models.agentformer.weights import agentformer_eth
from trajformer.recipes.checkpoint import load_checkpoint

RECORD = dict(np.load(Path(__file__).parents[1] / "support" / "fixtures_agentformer.npz"))
NAMES = RECORD["names"].tolist()
SAMPLES, LATENT, WIDTH = 5, 4, 16  # of the recorded model
LOSS = CVAELossConfig(free=0.5).build()
TOLERANCE = {"atol": 1e-4, "rtol": 1e-5}


def recorded_weights(kind: str, rng: np.random.RandomState) -> dict[str, Tensor]:
    """The tensors of a stage by the authors' names."""
    names = RECORD[f"{kind}names"].tolist()
    shapes = RECORD[f"{kind}shapes"].tolist()
    weights = {}
    for name, shape in zip(names, shapes, strict=True):
        sizes = [int(size) for size in shape.split()]
        values = 0.4 * rng.standard_normal(sizes)
        if "norm" in name and name.endswith("weight"):
            values = values + 1.0
        weights[name] = torch.from_numpy(values.astype(np.float32))
    return weights


RNG = np.random.RandomState(0)
FIRST = recorded_weights("", RNG)
SECOND = recorded_weights("sampler_", RNG)
TIME_CODES = sinusoid(torch.arange(200, dtype=torch.float32), WIDTH)[:, None]
FIRST |= dict.fromkeys(RECORD["buffers"].tolist(), TIME_CODES)


def per_scene(name: str) -> list[Tensor]:
    """A recorded array over all agents, divided into scenes."""
    return list(torch.from_numpy(RECORD[name]).split(RECORD["counts"].tolist()))


def recorded_batch(scene: int | None = None) -> SceneBatch:
    """All three scenes, or one of them."""
    scenes = []
    for index, position in enumerate(per_scene("position")):
        scenes.append(pedestrians(position.numpy(), f"{index}"))
    if scene is not None:
        scenes = [scenes[scene]]
    return collate(scenes)


def recorded_terms(name: str, terms: tuple[str, ...]) -> dict[str, float]:
    """Recorded terms of a loss, means over the scenes."""
    return dict(zip(terms, RECORD[name].mean(0).tolist(), strict=True))


def recorded_noise() -> Tensor:
    """Padded [B, 1 + K, A, Z]: noise of the posterior, then of the samples."""
    noise = torch.zeros(3, 1 + SAMPLES, 4, LATENT)
    for row, part in zip(noise, per_scene("noise"), strict=True):
        row[:, : len(part)] = part.transpose(0, 1)
    return noise


def without_dropout(model: AgentFormer, **changes: Any) -> AgentFormer:
    block = replace(model.config.block, dropout=0.0, attention_dropout=0.0)
    copy = replace(model.config, block=block, **changes).build()
    copy.load_state_dict(model.state_dict())
    return copy.eval()


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> AgentFormer:
    """The recorded weights after `trajformer weights convert`, from a file in the authors' form."""
    folder = tmp_path_factory.mktemp("converted")
    published = folder / "model_0030.p"
    torch.save({"model_dict": FIRST, "epoch": 30}, published)
    out = folder / "converted.ckpt"
    assert run("weights", "convert", "agentformer_eth", published, out, "--heads", 2) == 0
    model, recipe = load_checkpoint(out)
    config = recipe.model
    assert config.block == BlockConfig(16, 2, 24, 0.1, 0.1, norm_first=False, agent_aware=True)
    assert (config.scale_m, config.hidden, config.latent) == (2.0, (24, 16), LATENT)
    assert config.layers == (2, 2, 2)
    return without_dropout(model, samples=SAMPLES)


def assert_recorded(name: str, actual: Callable[[int, int], Tensor]) -> None:
    """`actual(scene, agents)` equals the record of each scene."""
    for scene, expected in enumerate(per_scene(name)):
        torch.testing.assert_close(
            actual(scene, len(expected)), expected, **TOLERANCE, msg=lambda text: f"{name}: {text}"
        )


def joined(latent: Gaussian) -> Tensor:
    return torch.cat([latent.mean, latent.log_variance], -1)


def test_context_prior_and_samples_equal_the_record(converted: AgentFormer) -> None:
    model = without_dropout(converted)
    observation = recorded_batch().observation
    context = model.encode(observation)
    prior = model.prior_of(context)
    memory = context.memory.unflatten(1, (8, 4)).transpose(1, 2)
    assert_recorded("context", lambda b, n: memory[b, :n])
    assert_recorded("agent", lambda b, n: context.agent[b, :n])
    assert_recorded("prior", lambda b, n: joined(prior)[b, 0, :n])
    z = prior.at(recorded_noise()[:, 1:])
    for gradient in (False, True):
        with torch.set_grad_enabled(gradient):
            forecast = model.decode_samples(observation, context, z, prior, prior, scored=False)
        position = forecast.position
        assert position.requires_grad == gradient
        assert_recorded("samples", lambda b, n: position[b, :n])  # noqa: B023


def test_posterior_reconstruction_and_losses_equal_the_record(converted: AgentFormer) -> None:
    model = without_dropout(converted).train()
    batch = recorded_batch()
    noise = recorded_noise()
    with fixed_noise(noise):
        out = model.reconstruct(batch.observation, batch.truth)
        loss = LOSS(model, batch)
    for b, samples in enumerate(per_scene("samples")):
        target = batch.truth.position[b, : len(samples)]
        error = (samples - target[:, None]).square().sum((-1, -2))
        best = samples[torch.arange(len(samples)), error.argmin(1)]
        torch.testing.assert_close(out.best[b, : len(samples)], best, **TOLERANCE)
    assert_recorded("posterior", lambda b, n: joined(out.posterior)[b, :n])
    assert_recorded("reconstruction", lambda b, n: out.position[b, :n])
    expected = recorded_terms("terms", ("reconstruction", "divergence", "best", "loss"))
    assert {name: value.item() for name, value in loss.items()} == pytest.approx(expected, rel=1e-5)
    for scene in range(3):
        with fixed_noise(noise[scene : scene + 1]):
            loss = LOSS(model, recorded_batch(scene))
        assert loss["loss"].item() == pytest.approx(RECORD["terms"][scene, 3], rel=1e-5)


def test_gradients_equal_the_record(converted: AgentFormer) -> None:
    """The record has the product of each gradient, in the authors' layout, with a direction."""
    model = without_dropout(converted).train()
    directions = {}
    numbers = {}
    for index, name in enumerate(NAMES):
        shape = FIRST[name].shape
        values = np.random.RandomState(index).standard_normal(shape.numel())
        directions[name] = torch.from_numpy(values.reshape(shape))
        numbers[name] = torch.full(shape, float(index))
    # In the layout of this project; `number` is the index of each value's tensor in the record.
    _, direction = agentformer_eth(StateDictReader(directions, "directions"), Options(2))
    _, number = agentformer_eth(StateDictReader(numbers, "numbers"), Options(2))
    for scene in range(3):
        model.zero_grad()
        with fixed_noise(recorded_noise()[scene : scene + 1]):
            LOSS(model, recorded_batch(scene))["loss"].backward()
        actual = torch.zeros(len(NAMES), dtype=torch.float64)
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                product = (parameter.grad.double() * direction[name].double()).flatten()
                actual.index_add_(0, number[name].long().flatten(), product)
        expected = torch.from_numpy(RECORD["gradient"][scene])
        smallest = 1e-5 * expected.abs().max().item()
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=smallest)


def test_second_stage_equals_the_record(converted: AgentFormer) -> None:
    sampler = AgentFormerSamplerConfig(converted.config, hidden=(24, 16)).build().train()
    sampler.cvae.load_state_dict(converted.state_dict())
    layers = {
        "q_mlp.affine_layers.0": sampler.network[0][0],
        "q_mlp.affine_layers.1": sampler.network[1][0],
        "q_A": sampler.scale,
        "q_b": sampler.shift,
    }
    for name, layer in layers.items():
        state = {kind: SECOND[f"{name}.{kind}"] for kind in ("weight", "bias")}
        layer.load_state_dict(state)
    batch = recorded_batch()
    position = sampler(batch.observation).position
    assert_recorded("modes", lambda b, n: position[b, :n])
    terms = SamplerLossConfig().build()(sampler, batch)
    expected = recorded_terms("sampler_terms", ("best", "divergence", "diversity", "loss"))
    values = {name: value.item() for name, value in terms.items()}
    assert values == pytest.approx(expected, rel=1e-5)


def convert(weights: dict[str, Tensor]) -> None:
    """Convert weights of eth and check that all tensors were used."""
    reader = StateDictReader(weights, "file")
    agentformer_eth(reader, Options(2))
    reader.check_all_used()


@pytest.mark.parametrize("damage", ["missing", "another shape"])
def test_missing_and_misshapen_tensors_are_named(damage: str) -> None:
    convert(FIRST)
    for name in NAMES[::7]:
        changed = {key: value for key, value in FIRST.items() if key != name}
        if damage == "another shape":
            changed[name] = torch.cat([FIRST[name], FIRST[name][:1]])
        with pytest.raises(CheckpointError, match=r"^file: (no tensor )?'|^file: tensor '"):
            convert(changed)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        (
            "context_encoder.pos_encoder.pe",
            torch.ones(200, 1, WIDTH),
            "differs from the values that its size implies",
        ),
        ("map_encoder.fc.weight", torch.ones(2, 2), "has no place in the model"),
        ("future_decoder.p_z_net.weight", torch.ones(7, WIDTH), "has 7 rows"),
    ],
)
def test_unsuitable_tensors_are_errors(name: str, value: Tensor, error: str) -> None:
    with pytest.raises(CheckpointError, match=rf"'{name}' {error}"):
        convert(FIRST | {name: value})


@pytest.mark.parametrize(
    ("layout", "origin"), [("agentformer", "observed"), ("agentformer_zara1", "last")]
)
def test_released_models_without_hidden_layers(layout: str, origin: str, tmp_path: Path) -> None:
    weights = {name: value for name, value in FIRST.items() if "out_mlp" not in name}
    published = tmp_path / "published.pth"
    out = tmp_path / "converted.ckpt"
    torch.save(weights, published)
    assert run("weights", "convert", layout, published, out, "--heads", 2) == 0
    model, recipe = load_checkpoint(out)
    config = recipe.model
    assert (config.hidden, config.scale_m, config.origin) == ((), 1.0, origin)
    assert torch.equal(model.decoder.out[0].weight, weights["future_decoder.out_fc.weight"])
