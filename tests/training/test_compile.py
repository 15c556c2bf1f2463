"""Compiled, a model is one graph, in training and in evaluation, and says what it says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from support.models import BLOCK, MODEL_CONFIGS, build
from support.scenes import hide, make_scene
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from trajformer.core.attention import MultiHeadAttention
from trajformer.core.dropout import Dropout
from trajformer.core.groups import Groups
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.data.sample import Frame
from trajformer.losses.mixture import MixtureLossConfig, mixture_loss
from trajformer.models.agentformer.loss import CVAELossConfig, SamplerLossConfig, cvae_loss, sampler_loss
from trajformer.models.agentformer.model import AgentFormer
from trajformer.models.mmtransformer.loss import RegionLossConfig, region_loss

# No deeper than shows all parts of a model: tracing takes time in proportion to depth.
SHALLOW = {"motion_layers": (1, 1), "map_layers": (1, 1), "social_layers": (1, 2), "agent_layers": 1, "time_layers": 1}
SHALLOW |= {"encoder_layers": 1, "decoder_layers": 1, "lstm_layers": 1}
# Every model in training (True) and in evaluation, in those variants that go other ways; tracing all of them takes minutes.
GRAPHS = {
    "constant-velocity": (True, False),
    "mmtransformer": (True,),
    "mmtransformer-9-proposals": (False,),
    "mmtransformer-joint": (False,),
    "mmtransformer-appended": (True,),
    "wayformer-early-multi_axis": (True,),
    "wayformer-9-components": (False,),
    "wayformer-late-sequential": (True,),
    "wayformer-hierarchical-interleaved-latents": (False,),
    "spatial-channel-feature": (True,),
    "spatial-channel-agent": (False,),
    "lane-set": (True,),
    "lane-set-3-steps": (False,),
    "gatformer": (True,),
    "gatformer-3-steps": (False,),
    "gatformer-joint": (True,),
    "crowd": (True, False),
    "scene-set": (True, False),
    "scene-set-agents": (True, False),
    "agentformer": (True,),
    "agentformer-sampler": (True, False),
}
MODES = [(name, training) for name, modes in GRAPHS.items() for training in modes]
# Of these it depends on values what is computed, but in a compiled graph: a mask that hides nothing is faster left out.
LOOKS = {name for name in MODEL_CONFIGS if name.startswith("agentformer")}
# No graph at all has what these ask the host for: AgentFormer's noise in evaluation, a hash of names (models/noise.py, tested
# below), and what is assigned to what by the losses that match (losses/matching.py).


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    """PyTorch counts how often it compiled a function and gives up at the eighth model that has it."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(allow_rnn=True):  # nn.LSTM would be left as it is, and break the graph of lane_set
        yield
    torch.compiler.reset()


def shallow(name: str, **changes: Any) -> nn.Module:
    """A variant with few layers."""
    config = MODEL_CONFIGS[name]
    layers = {key: value for key, value in SHALLOW.items() if type(getattr(config, key, None)) is type(value)}
    return build(replace(config, **layers, **changes))


def scenes(future: int) -> SceneBatch:
    """Two small ones, one of them with an agent that is lost."""
    first = hide(make_scene(5, 6, future), 4, slice(3, 6))
    return collate([first, make_scene(3, 6, future, num_scored=1, seed=1)])


def tensors(value: object) -> list[Tensor]:
    """All tensors in nested records."""
    if isinstance(value, Tensor):
        return [value]
    parts = [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else value
    parts = list(parts.values()) if isinstance(parts, dict) else parts
    return [tensor for part in parts for tensor in tensors(part)] if isinstance(parts, list | tuple) else []


def assert_one_graph(run: Callable[..., object], *arguments: object) -> tuple[object, object]:
    """What comes out with and without compiling, the same."""
    results = []
    for function in (run, torch.compile(run, backend="eager", fullgraph=True)):
        torch.manual_seed(0)
        results.append(function(*arguments))
    assert len(tensors(results[0])) >= 2
    for plain, compiled in zip(tensors(results[0]), tensors(results[1]), strict=True):
        torch.testing.assert_close(compiled, plain, atol=1e-4, rtol=1e-4)
    return results[0], results[1]


@pytest.mark.parametrize(("name", "training"), MODES, ids=[f"{name}-{'train' if mode else 'eval'}" for name, mode in MODES])
def test_a_model_is_one_graph(name: str, training: bool) -> None:
    assert_one_graph(shallow(name).train(training), scenes(2 if name in LOOKS else 12).observation)


@pytest.mark.parametrize("name", MODEL_CONFIGS)
def test_no_variant_reads_a_value_on_the_way(name: str) -> None:
    """Tensors without values: what asks for one fails. In evaluation, which has all that training has but dropout."""
    model, batch = shallow(name).eval(), scenes(12)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = batch.observation.map(mode.from_tensor)
        if name in LOOKS:
            with pytest.raises(DataDependentOutputException):
                model(fake)
            return
        forecast = model(fake)
    assert isinstance(forecast.position, FakeTensor) and forecast.position.shape[:2] == batch.observation.target_mask.shape


def test_agentformer_evaluates_in_two_graphs_with_its_noise_between() -> None:
    model, batch = shallow("agentformer").eval(), scenes(2)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="blake2b"):
        torch.compile(model, backend="eager", fullgraph=True)(batch.observation)
    compiled = torch.compile(model, backend="eager")(batch.observation)
    torch.testing.assert_close(compiled.position, model(batch.observation).position, atol=1e-4, rtol=1e-4)


def test_the_first_stage_of_agentformer_is_one_graph_with_the_same_gradient() -> None:
    model, batch = shallow("agentformer-road").train(), scenes(2)
    assert isinstance(model, AgentFormer)
    gradients = []
    for output in assert_one_graph(model.reconstruct, batch.observation, batch.truth):
        model.zero_grad()
        cvae_loss(output, batch.truth.position, batch.truth.valid, 1.0, CVAELossConfig())["loss"].backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for plain, compiled in zip(*gradients, strict=True):
        torch.testing.assert_close(compiled, plain, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("name", "method"), [("agentformer", "reconstruct"), ("scene-set", "trajectories")])
def test_what_training_calls_beside_forward_is_compiled_too(name: str, method: str) -> None:
    """Their losses need more than a forecast."""
    model, batch, graphs = shallow(name).train(), scenes(2 if name in LOOKS else 12), list[Any]()
    names = [*model.state_dict()]
    inputs = (batch.observation, batch.truth) if method == "reconstruct" else (batch.observation,)
    torch.manual_seed(0)
    plain = getattr(model, method)(*inputs)
    model.compile(backend=lambda graph, inputs: (graphs.append(graph), graph)[1])
    torch.manual_seed(0)
    for ours, expected in zip(tensors(getattr(model, method)(*inputs)), tensors(plain), strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)
    assert len(graphs) == 1 and [*model.state_dict()] == names


def test_with_dropout_it_is_one_graph_that_drops_anew_each_time() -> None:
    model, batch = shallow("crowd", block=replace(BLOCK, dropout=0.3)), scenes(12)
    run = torch.compile(model.train(), backend="eager", fullgraph=True)
    assert not torch.equal(run(batch.observation).position, run(batch.observation).position)
    x = torch.ones(100, 100)
    out = torch.compile(Dropout(0.3), backend="eager", fullgraph=True)(x)
    assert 0.27 < (out == 0).float().mean() < 0.33 and out.unique().tolist() == pytest.approx([0.0, 1 / 0.7])


@pytest.mark.parametrize("agent_aware", [False, True])
def test_dropped_weights_of_attention_are_others_but_as_many(agent_aware: bool) -> None:
    """Weights that are not kept are dropped again from a seed; a graph has no generators."""
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(16, 2, dropout=0.5, agent_aware=agent_aware), torch.randn(1, 60, 16)
    groups = Groups(3, 3) if agent_aware else None
    exact = layer.eval()(x, x, groups=groups)
    run = torch.compile(layer.train(), backend="eager", fullgraph=True)
    first, *others = [run(x, x, groups=groups) for _ in range(400)]
    assert not torch.equal(first, others[0])
    torch.testing.assert_close(torch.stack([first, *others]).mean(0), exact, atol=0.08, rtol=0)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def losses() -> dict[str, tuple[Callable[..., object], tuple[object, ...]]]:
    """Those that match nothing, with arguments for 2 x 3 agents."""
    truth = (draw(2, 3, 5, 2, seed=1), torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(2)) > 0.3)
    latent = [Gaussian(draw(2, 3, n, 4, seed=3 + n), draw(2, 3, n, 4, seed=9)) for n in (4, 1)]
    own = {"pose": draw(2, 3, 3, seed=6), "scale": draw(2, 3, 4, 5, 2, seed=7).exp(), "latent": latent[0], "prior": latent[1]}
    forecast = Forecast(draw(2, 3, 4, 5, 2, seed=4), draw(2, 3, 4, seed=5), Frame.AGENT, **own)
    regions = (draw(2, 3, seed=8), torch.zeros(3), RegionLossConfig())
    return {
        "mixture": (mixture_loss, (forecast, *truth, MixtureLossConfig())),
        "regions": (region_loss, (replace(forecast, auxiliary=(forecast,)), *truth, *regions)),
        "sampler": (sampler_loss, (forecast, *truth, 1.0, SamplerLossConfig())),
    }


@pytest.mark.parametrize("name", ["mixture", "regions", "sampler"])
def test_a_loss_without_matching_is_one_graph(name: str) -> None:
    loss, arguments = losses()[name]
    assert_one_graph(loss, *arguments)
