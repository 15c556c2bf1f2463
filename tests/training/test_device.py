"""Training and evaluation on a simulated accelerator.

Results are those of the CPU, no tensor is on another device, and the host does not wait.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.accelerator import DEVICE, SimulatedTensor, counted, move
from support.models import MODEL_CONFIGS, build, shallow, shallow_config
from torch import nn

from trajformer.core.blocks import BlockConfig
from trajformer.data import augment as augmentation
from trajformer.data.augment import AugmentConfig
from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig
from trajformer.evaluation.evaluate import evaluate
from trajformer.evaluation.metrics.displacement import set_hits
from trajformer.evaluation.protocols.eth_ucy import crowd_metrics
from trajformer.heads.detr.backbone import BackboneConfig, CnnConfig
from trajformer.heads.detr.model import DetrConfig
from trajformer.heads.detr.shapes import ShapesConfig, ShapesDataset
from trajformer.heads.detr.task import DetectionDataConfig, DetectionModule, DetectionRecipe
from trajformer.heads.translation.data import Pairs, TextConfig
from trajformer.heads.translation.model import TransformerConfig
from trajformer.heads.translation.task import TranslationModule, TranslationRecipe
from trajformer.heads.vit.data import ImageBatch
from trajformer.heads.vit.model import ViTConfig
from trajformer.heads.vit.task import ClassificationModule, ClassificationRecipe
from trajformer.losses.matching import match_layers
from trajformer.losses.mixture import MixtureLossConfig
from trajformer.models.forecaster import Predictor
from trajformer.recipes.choices import LOSSES, MODELS
from trajformer.recipes.recipe import OptimConfig, TrainConfig
from trajformer.testing.models import example_scenes
from trajformer.training.base import TaskModule
from trajformer.training.forecasting import ForecastingModule
from trajformer.training.optim import Length, build_optimizer

pytestmark = pytest.mark.filterwarnings("ignore:You are trying to `self.log")
MATCHING = {"copy": 1}  # costs of assignments, of all decoder layers at once
NAMES = "mmtransformer-9-proposals mmtransformer-regions mmtransformer-joint "
NAMES += "wayformer-hierarchical-interleaved-latents lane-set "
NAMES += "spatial-channel-agent gatformer-joint crowd se2former scene-set "
NAMES += "agentformer-tokens agentformer-sampler"
WAITS = {
    name: MATCHING if name == "scene-set" else {} for name in NAMES.split()
}  # of a training step; each model and each loss
SAMPLED = {
    "constant-velocity-sampled",
    "agentformer-tokens",
    "agentformer-sampler",
}  # noise from names, made on the host
AUGMENT = AugmentConfig(
    flip=0.5, rotate=1.0, heading_noise=0.1, scale=0.1, noise_m=0.1, max_targets=2, crop=12,
    agent_dropout=0.3, shift=0.5,
    shift_steps=3, history_mask=0.5, history_mask_steps=4,
)  # fmt: skip
SCENES = example_scenes()


class Scenes(list[Any]):
    split, root = "val", Path("scenes")


def test_the_device_refuses_tensors_of_the_cpu_and_counts_waits() -> None:
    x = torch.arange(4.0).to(DEVICE)
    assert isinstance(x, SimulatedTensor) and torch.equal(
        (x + torch.tensor(1.0)).cpu(), torch.arange(1.0, 5.0)
    )
    with pytest.raises(RuntimeError, match=r"expected all tensors on sim, got one of shape \(4,\)"):
        x + torch.ones(4)
    cases: list[tuple[dict[str, int], Callable[[], Any]]] = [
        ({"copy": 4}, lambda: [x.cpu(), x.tolist(), float(x[0]), bool(x.any())]),
        ({"copy": 2}, lambda: [torch.tensor([1], device=DEVICE), torch.ones(3).to(DEVICE)]),
        ({"shape": 4}, lambda: [x[x > 1], x.nonzero(), x.unique(), torch.where(x > 1)]),
        (
            {},
            lambda: [
                x[x.long()],
                x.to(DEVICE),
                torch.ones(3).to(DEVICE, non_blocking=True),
                x.masked_fill(x > 1, 0.0),
            ],
        ),
    ]
    for expected, run in cases:
        with counted() as waits:
            run()
        assert waits == expected


def forecaster(name: str, loss: Any = None) -> tuple[TaskModule, Any]:
    """A module with random weights, and a batch on the CPU.

    SE2Former has Muon, the others have AdamW.
    """
    optim = OptimConfig(muon_rate=0.02 if name == "se2former" else None, weight_decay=0.1)
    first_stage = "a checkpoint" if name == "agentformer-sampler" else ""  # which is not read here
    config = shallow_config(name)
    module = ForecastingModule(
        TrainConfig(config, loss=loss, first_stage=first_stage, augment=AUGMENT, optim=optim)
    )
    module.model = build(config)
    return module.train(), collate(SCENES)


def heads(name: str) -> tuple[TaskModule, Any]:
    """A module of a reference task with random weights, and a batch on the CPU."""
    torch.manual_seed(0)
    block = BlockConfig(width=16, heads=2, feedforward=16, dropout=0.0)
    if name == "detection":
        model = DetrConfig(
            queries=6,
            block=block,
            layers=(1, 2),
            backbone=BackboneConfig(cnn=CnnConfig((8, 8), groups=4)),
        )
        shapes = ShapesConfig(height=24, width=24, train=4, val=1, test=1)
        module = DetectionModule(DetectionRecipe(model, data=DetectionDataConfig(shapes=shapes)))
        return module, ShapesDataset(shapes, "train")[[0, 1]]
    if name == "classification":
        batch = ImageBatch(torch.rand(3, 1, 8, 8), torch.arange(3))
        return ClassificationModule(ClassificationRecipe(ViTConfig(8, 4, 1, 10, 1, block))), batch
    tokenizer: Any = SimpleNamespace(
        encode=lambda texts: [[4 + ord(letter) % 20 for letter in text] for text in texts]
    )
    recipe = TranslationRecipe(
        TransformerConfig(block=block, layers=(1, 1)), TextConfig("not read", vocabulary=24)
    )
    return TranslationModule(recipe), Pairs(
        "text", (["abc", "hello"], ["x", "wonder"]), tokenizer, None
    )[[0, 1]]


def step(module: TaskModule, batch: Any) -> dict[str, int]:
    """Loss and clipped gradients of a training step; returns the waits."""
    with counted() as waits:
        loss = module.training_step(batch.to(module.device, non_blocking=True), 0)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    module.last_loss = loss.detach()
    return waits


CASES = [(forecaster, (name,), waits) for name, waits in WAITS.items()]
CASES += [
    (forecaster, ("wayformer-early-multi_axis", MixtureLossConfig()), {}),
    (heads, ("detection",), MATCHING),
]
CASES += [(heads, (name,), {}) for name in ("classification", "translation")]


def test_all_models_and_losses_are_checked() -> None:
    assert {type(MODEL_CONFIGS[name]) for name in ("constant-velocity", *WAITS)} == set(
        MODELS.values()
    )
    assert {
        type(make(*arguments)[0].config.loss) for make, arguments, _ in CASES if make is forecaster
    } == set(LOSSES.values())


@pytest.mark.parametrize(
    ("make", "arguments", "expected"), CASES, ids=[case[1][0] for case in CASES]
)
def test_a_training_step_equals_that_of_the_cpu_without_waiting(
    make: Any, arguments: Any, expected: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if (
        "agentformer-tokens" in arguments
    ):  # its random numbers depend on the number of agents with padding
        monkeypatch.setattr(augmentation, "shrink", lambda batch: batch)
    modules = []
    for device in ("cpu", DEVICE):
        module, batch = make(*arguments)
        modules.append(module if device == "cpu" else move(module))
        waits = step(module, batch)
        optimizer, schedule = build_optimizer(module.groups(), module.config.optim, Length(10))
        for parameter, reference in zip(module.parameters(), modules[0].parameters(), strict=True):
            if parameter.grad is not None and module is not modules[0]:
                torch.testing.assert_close(
                    parameter.grad.cpu(), reference.grad, atol=1e-5, rtol=1e-4
                )
                parameter.grad = reference.grad.to(
                    device
                )  # a step of AdamW magnifies rounding errors
        if module is modules[0]:
            gradients = {
                name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None
            }
        with counted() as optimizer_waits:
            optimizer.step()
        schedule.step()
    assert waits == expected and not optimizer_waits
    reference, module = modules
    torch.testing.assert_close(module.last_loss.cpu(), reference.last_loss, rtol=1e-5, atol=1e-8)
    assert gradients and float(module.last_loss) != 0.0
    for (name, parameter), expected_value in zip(
        module.named_parameters(), reference.parameters(), strict=True
    ):
        torch.testing.assert_close(parameter.cpu(), expected_value, atol=1e-6, rtol=1e-5, msg=name)


@pytest.fixture
def generators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PyTorch has no generators for devices that are made in Python."""
    make = torch.Generator
    monkeypatch.setattr(torch, "Generator", lambda device="cpu": make())
    yield


@pytest.mark.usefixtures("generators")
@pytest.mark.parametrize(
    "name", ["mmtransformer-joint", "spatial-channel-agent", "agentformer-tokens"]
)
def test_dropout_does_not_wait(name: str) -> None:
    module, batch = forecaster(name)
    for part in module.modules():
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.1
        if isinstance(part, nn.Dropout):
            part.p = 0.1
    assert step(move(module), batch) == WAITS[name]
    assert bool(module.last_loss.isfinite())


@pytest.mark.parametrize("name", ["constant-velocity", "constant-velocity-sampled", *WAITS])
def test_evaluation_equals_that_of_the_cpu(name: str) -> None:
    joint = name == "se2former"
    results = []
    for device in ("cpu", DEVICE):
        model = shallow(name).eval()
        model = model if device == "cpu" else move(model)
        predictor = Predictor(model, BatchConfig(), torch.device(device), joint=joint)
        result, batch = (
            evaluate(predictor, Scenes(SCENES), batch_size=2),
            collate(SCENES).to(device),
        )
        with torch.no_grad():
            with counted() as waits:
                forecast = model(batch.observation)
            metrics = crowd_metrics(forecast, batch)[0]
            if name == "scene-set":
                metrics["hits"] = set_hits(
                    model.trajectories(batch.observation),
                    batch.truth.position,
                    batch.truth.valid,
                    0.0,
                )[0]
        results.append((result, {key: value.cpu() for key, value in metrics.items()}))
    assert not waits or name in SAMPLED
    (reference, crowd), (result, on_device) = results
    assert result.metrics == pytest.approx(reference.metrics, abs=1e-4, nan_ok=True)
    for column in reference.per_agent:
        expected = reference.per_agent[column].tolist()
        numbers = isinstance(expected[0], float)
        assert result.per_agent[column].tolist() == (
            pytest.approx(expected, abs=1e-4, nan_ok=True) if numbers else expected
        )
    torch.testing.assert_close(on_device, crowd, atol=1e-4, rtol=1e-4, equal_nan=True)


def test_costs_that_are_not_finite_are_matched_so_that_they_reach_the_loss() -> None:
    cost = torch.rand(2, 3, 4, 1)
    cost[1, 2, 3], cost[0, 1, 2] = torch.nan, torch.inf
    first, second = match_layers(cost.to(DEVICE), torch.ones(3, 1, dtype=torch.bool).to(DEVICE))
    assert second.prediction[2] == 3 and first.prediction[1] == 2
    with pytest.raises(ValueError, match="layer 0, problem 1, prediction 2, target 0"):
        match_layers(cost, torch.ones(3, 1, dtype=torch.bool))
