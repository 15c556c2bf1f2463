"""Compiled models are one graph and give the same forecasts, in training and in evaluation."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from support.models import BLOCK, shallow
from support.scenes import hide, make_scene
from support.tensors import draw
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
GRAPHS = {"mmtransformer": True, "se2former": False, "wayformer-9-components": False}
GRAPHS |= {"lane-set": False, "gatformer-joint": True, "agentformer-sampler": False}


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    """PyTorch stops compiling a function after eight models."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(
        allow_rnn=True
    ):  # by default nn.LSTM breaks the graph of lane_set
        yield
    torch.compiler.reset()


def scenes(future: int) -> SceneBatch:
    """Two small scenes; an agent of the first one is lost."""
    first = hide(make_scene(5, 6, future), 4, slice(3, 6))
    return collate(
        [first, make_scene(3, 6, future, num_scored=1, seed=1)], BatchConfig(polyline_points=4)
    )


def tensors(value: object) -> list[Tensor]:
    """All tensors of nested records."""
    if isinstance(value, Tensor):
        return [value]
    parts = (
        [getattr(value, field.name) for field in fields(value)] if is_dataclass(value) else value
    )
    parts = list(parts.values()) if isinstance(parts, dict) else parts
    return (
        [tensor for part in parts for tensor in tensors(part)]
        if isinstance(parts, list | tuple)
        else []
    )


def assert_one_graph(run: Callable[..., object], *arguments: object) -> tuple[object, object]:
    """Check that the compiled function returns the same tensors; returns both results."""
    results = []
    for function in (run, torch.compile(run, backend="eager", fullgraph=True)):
        torch.manual_seed(0)
        results.append(function(*arguments))
    assert len(tensors(results[0])) >= 2
    for plain, compiled in zip(tensors(results[0]), tensors(results[1]), strict=True):
        torch.testing.assert_close(compiled, plain, atol=1e-4, rtol=1e-4)
    return results[0], results[1]


@pytest.mark.parametrize(("name", "training"), GRAPHS.items())
def test_a_compiled_model_is_one_graph(name: str, training: bool) -> None:
    assert_one_graph(
        shallow(name).train(training),
        scenes(2 if name.startswith("agentformer") else 12).observation,
    )


def test_batches_of_other_sizes_are_not_compiled_again() -> None:
    """The first graph has fixed sizes; later ones have any sizes."""
    model, compiled = (shallow("spatial-channel-agent").eval() for _ in range(2))
    graphs, counts = list[Any](), list[int]()
    compiled.compile(backend=lambda graph, inputs: (graphs.append(graph), graph)[1])
    for sizes in ((5, 3), (7, 5, 4), (9, 6), (8, 4, 3), (6, 5)):
        batch = collate(
            [make_scene(agents, 6, 12, seed=agents) for agents in sizes],
            BatchConfig(polyline_points=4),
        )
        with torch.no_grad():
            expected, actual = (
                model(batch.observation).position,
                compiled(batch.observation).position,
            )
        torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
        counts.append(len(graphs))
    assert counts[2] == counts[-1] <= 3, counts


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
    model, graphs, results = shallow(name).train(), list[Any](), list[Any]()
    batch, names = scenes(2 if method == "reconstruct" else 12), [*model.state_dict()]
    inputs = (batch.observation, batch.truth) if method == "reconstruct" else (batch.observation,)
    for backend in (None, lambda graph, inputs: (graphs.append(graph), graph)[1]):
        if backend:
            model.compile(backend=backend)
        torch.manual_seed(0)
        model.zero_grad()
        outputs = [
            tensor for tensor in tensors(getattr(model, method)(*inputs)) if tensor.requires_grad
        ]
        torch.stack([tensor.square().mean() for tensor in outputs]).sum().backward()
        results.append(
            (outputs, [p.grad.clone() for p in model.parameters() if p.grad is not None])
        )
    torch.testing.assert_close(results[1], results[0], atol=1e-4, rtol=1e-3)
    assert len(graphs) == 1 and [*model.state_dict()] == names and len(results[0][1]) > 20


def test_compiled_dropout_is_random_in_each_call() -> None:
    model, batch = shallow("crowd", block=replace(BLOCK, dropout=0.3)), scenes(12)
    run = torch.compile(model.train(), backend="eager", fullgraph=True)
    assert not torch.equal(run(batch.observation).position, run(batch.observation).position)
    x = torch.ones(100, 100)
    out = torch.compile(Dropout(0.3), backend="eager", fullgraph=True)(x)
    assert 0.27 < (out == 0).float().mean() < 0.33 and out.unique().tolist() == pytest.approx(
        [0.0, 1 / 0.7]
    )


def losses() -> dict[str, tuple[Callable[..., object], tuple[object, ...]]]:
    """Losses without matching, with arguments for 2 x 3 agents."""
    truth = (
        draw(2, 3, 5, 2, seed=1),
        torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(2)) > 0.3,
    )
    latent = [Gaussian(draw(2, 3, n, 4, seed=3 + n), draw(2, 3, n, 4, seed=9)) for n in (4, 1)]
    fields = {
        "pose": draw(2, 3, 3, seed=6),
        "scale": draw(2, 3, 4, 5, 2, seed=7).exp(),
        "latent": latent[0],
        "prior": latent[1],
    }
    forecast = Forecast(draw(2, 3, 4, 5, 2, seed=4), draw(2, 3, 4, seed=5), Frame.AGENT, **fields)
    regions = (draw(2, 3, seed=8), torch.zeros(3), RegionLossConfig())
    return {
        "mixture": (mixture_loss, (forecast, *truth, MixtureLossConfig())),
        "regions": (region_loss, (replace(forecast, auxiliary=(forecast,)), *truth, *regions)),
        "sampler": (sampler_loss, (forecast, Truth(*truth), 1.0, SamplerLossConfig())),
    }


@pytest.mark.parametrize("name", ["mixture", "regions", "sampler"])
def test_a_loss_without_matching_is_one_graph(name: str) -> None:
    loss, arguments = losses()[name]
    assert_one_graph(loss, *arguments)
