"""Compiled models are one graph and give the same forecasts, in training and in evaluation."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from support.models import BLOCK, shallow
from support.scenes import hide, make_scene
from support.tensors import draw, draw_mask
from torch import Tensor

from trajformer.core.dropout import Dropout
from trajformer.data.batch import SceneBatch, Truth, collate
from trajformer.data.forecast import Forecast, Gaussian
from trajformer.data.sample import BatchConfig, Frame
from trajformer.losses.mixture import MixtureLossConfig, mixture_loss
from trajformer.models.agentformer.losses import SamplerLossConfig, sampler_loss
from trajformer.models.mmtransformer.region_loss import RegionLossConfig, region_loss

# Each model once, in training (True) or evaluation; tests below compile the others. Two parts are
# never in a graph: AgentFormer's noise in evaluation, a hash of names (`named_noise`), and matching
# (losses/matching.py).
GRAPHS = {
    "mmtransformer": True,
    "se2former": False,
    "wayformer-9-components": False,
    "lane-set": False,
    "gatformer-joint": True,
    "agentformer-sampler": False,
}
BATCH = BatchConfig(polyline_points=4)


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    """PyTorch stops compiling a function after eight models."""
    torch.compiler.reset()
    # by default nn.LSTM breaks the graph of lane_set
    with torch._dynamo.config.patch(allow_rnn=True):
        yield
    torch.compiler.reset()


def scenes(future: int) -> SceneBatch:
    """Two small scenes; an agent of the first one is lost."""
    first = hide(make_scene(5, 6, future), 4, slice(3, 6))
    second = make_scene(4, 6, future, seed=1)
    return collate([first, second], BATCH)


def tensors(value: object) -> list[Tensor]:
    """All tensors of nested records."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        return []
    result: list[Tensor] = []
    for part in parts:
        result += tensors(part)
    return result


class Counter:
    """A backend of `torch.compile` that counts graphs and runs them as they are."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: Any, inputs: object) -> Any:
        self.count += 1
        return graph


def assert_one_graph(run: Callable[..., object], *arguments: object) -> None:
    """Check that a function can be compiled as one graph, which returns the same tensors."""
    compiled_run = torch.compile(run, backend="eager", fullgraph=True)
    torch.manual_seed(0)
    expected = tensors(run(*arguments))
    torch.manual_seed(0)
    compiled = tensors(compiled_run(*arguments))
    assert len(expected) >= 2
    torch.testing.assert_close(compiled, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "training"), GRAPHS.items())
def test_a_compiled_model_is_one_graph(name: str, training: bool) -> None:
    future = 2 if name.startswith("agentformer") else 12
    assert_one_graph(shallow(name).train(training), scenes(future).observation)


def test_batches_of_other_sizes_are_not_compiled_again() -> None:
    """The first graph has fixed sizes; later ones have any sizes."""
    model = shallow("spatial-channel-agent").eval()
    compiled = shallow("spatial-channel-agent").eval()
    graphs = Counter()
    compiled.compile(backend=graphs)
    counts = []
    for sizes in ((5, 3), (7, 5, 4), (9, 6), (8, 4, 3), (6, 5)):
        batch = collate([make_scene(agents, 6, 12, seed=agents) for agents in sizes], BATCH)
        with torch.no_grad():
            expected = model(batch.observation).position
            actual = compiled(batch.observation).position
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
        counts.append(graphs.count)
    assert counts[2] == counts[-1], counts
    assert counts[-1] <= 3


def outputs_and_gradients(
    model: Any, method: str, inputs: tuple[object, ...]
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs of a method with a gradient, and the gradients of the parameters."""
    torch.manual_seed(0)
    model.zero_grad()
    outputs = tensors(getattr(model, method)(*inputs))
    outputs = [output for output in outputs if output.requires_grad]
    torch.stack([output.square().mean() for output in outputs]).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return outputs, gradients


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("agentformer-road", "reconstruct"),
        ("scene-set", "trajectories"),
        ("se2former", "propose"),
    ],
)
def test_methods_that_losses_call_are_one_graph_with_the_same_gradient(
    name: str, method: str
) -> None:
    model = shallow(name).train()
    names = list(model.state_dict())
    if method == "reconstruct":
        batch = scenes(2)
        inputs: tuple[object, ...] = (batch.observation, batch.truth)
    else:
        inputs = (scenes(12).observation,)
    expected = outputs_and_gradients(model, method, inputs)
    assert len(expected[1]) > 20

    graphs = Counter()
    model.compile(backend=graphs)
    compiled = outputs_and_gradients(model, method, inputs)
    torch.testing.assert_close(compiled, expected, atol=1e-4, rtol=1e-3)
    assert graphs.count == 1
    assert list(model.state_dict()) == names


def test_a_compiled_model_with_dropout_is_random_in_each_call() -> None:
    model = shallow("crowd", block=replace(BLOCK, dropout=0.3)).train()
    run = torch.compile(model, backend="eager", fullgraph=True)
    observation = scenes(12).observation
    assert not torch.equal(run(observation).position, run(observation).position)


def test_compiled_dropout_drops_the_fraction_and_scales_the_rest() -> None:
    dropout = torch.compile(Dropout(0.3), backend="eager", fullgraph=True)
    out = dropout(torch.ones(100, 100))
    dropped = (out == 0).float().mean()
    assert 0.27 < dropped < 0.33
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.7])


def losses() -> dict[str, tuple[Callable[..., object], tuple[object, ...]]]:
    """Losses without matching, with arguments for 2 x 3 agents."""
    target = draw(2, 3, 5, 2, seed=1)
    valid = draw_mask(2, 3, 5, share=0.7, seed=2)
    forecast = Forecast(
        draw(2, 3, 4, 5, 2, seed=4),
        draw(2, 3, 4, seed=5),
        Frame.AGENT,
        pose=draw(2, 3, 3, seed=6),
        scale=draw(2, 3, 4, 5, 2, seed=7).exp(),
        latent=Gaussian(draw(2, 3, 4, 4, seed=7), draw(2, 3, 4, 4, seed=9)),
        prior=Gaussian(draw(2, 3, 1, 4, seed=4), draw(2, 3, 1, 4, seed=9)),
    )
    with_region_layer = replace(forecast, auxiliary=(forecast,))
    regions = (draw(2, 3, seed=8), torch.zeros(3), RegionLossConfig())
    return {
        "mixture": (mixture_loss, (forecast, target, valid, MixtureLossConfig())),
        "regions": (region_loss, (with_region_layer, target, valid, *regions)),
        "sampler": (sampler_loss, (forecast, Truth(target, valid), 1.0, SamplerLossConfig())),
    }


@pytest.mark.parametrize("name", ["mixture", "regions", "sampler"])
def test_a_loss_without_matching_is_one_graph(name: str) -> None:
    loss, arguments = losses()[name]
    assert_one_graph(loss, *arguments)
