"""Training and evaluation on a simulated accelerator: the results of the CPU, and no waits.

The contract of models compares forecasts, losses and gradients; these tests add augmentation,
optimizers, metrics and the reference tasks.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.models import MODEL_CONFIGS, build, shallow, shallow_config, training_cases
from torch import nn

from trajformer.core.blocks import BlockConfig
from trajformer.data import augment as augmentation
from trajformer.data.augment import AugmentConfig
from trajformer.data.batch import collate
from trajformer.data.sample import BatchConfig
from trajformer.evaluation.evaluate import evaluate
from trajformer.evaluation.metrics.crowd import crowd_metrics
from trajformer.evaluation.metrics.displacement import set_hits
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
from trajformer.models.forecaster import Predictor
from trajformer.models.scene_set import SceneSet
from trajformer.recipes.choices import LOSSES
from trajformer.recipes.recipe import OptimConfig, TrainConfig
from trajformer.testing.accelerator import (
    DEVICE,
    SimulatedTensor,
    counted,
    cpu_generators,
    move,
)
from trajformer.testing.outputs import remove_dropout
from trajformer.testing.scenes import example_scenes
from trajformer.training.base import TaskModule
from trajformer.training.forecasting import ForecastingModule
from trajformer.training.optim import Length, build_optimizer

pytestmark = pytest.mark.filterwarnings("ignore:You are trying to `self.log")
AUGMENT = AugmentConfig(
    flip=0.5,
    rotate=1.0,
    heading_noise=0.1,
    scale=0.1,
    noise_m=0.1,
    max_targets=2,
    crop=12,
    agent_dropout=0.3,
    shift=0.5,
    shift_steps=3,
    history_mask=0.5,
    history_mask_steps=4,
)
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


def forecaster(name: str, loss: type[Any] | None = None) -> tuple[TaskModule, Any]:
    """A module with random weights and without dropout, and a batch on the CPU.

    Models with `muon_exclude` are trained with Muon, the others with AdamW.
    """
    config = shallow_config(name)
    model = build(config)
    optim = OptimConfig(weight_decay=0.1)
    if model.muon_exclude:
        optim = replace(optim, muon_rate=0.02)
    first_stage = ""
    if model.needs_first_stage:
        first_stage = "a checkpoint"  # which is not read here
    loss_config = None  # the default of the model
    if loss not in (None, model.losses[0]):
        loss_config = loss()
    recipe = TrainConfig(
        config,
        loss=loss_config,
        first_stage=first_stage,
        augment=AUGMENT,
        optim=optim,
    )
    module = ForecastingModule(recipe)
    module.model = model
    remove_dropout(module)
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
        TransformerConfig(block=block, layers=(1, 1)), TextConfig("text", vocabulary=24)
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


HEADS = ("detection", "classification", "translation")
CASES: list[Any] = []
for _name, _loss in training_cases():
    CASES.append(pytest.param(forecaster, (_name, _loss), id=f"{_name}-{_loss.__name__}"))
for _name in HEADS:
    CASES.append(pytest.param(heads, (_name,), id=_name))


def test_every_loss_is_the_loss_of_a_model() -> None:
    assert {loss for _, loss in training_cases()} == set(LOSSES.values())


@pytest.mark.parametrize(("make", "arguments"), CASES)
def test_a_training_step_equals_that_of_the_cpu_without_waiting(
    make: Any, arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, batch = make(*arguments)
    module, _ = make(*arguments)
    if is_random(reference, batch):
        # Without padding, the model would draw other random numbers.
        monkeypatch.setattr(augmentation, "shrink", lambda batch: batch)

    step(reference, batch)
    move(module)
    waits = step(module, batch)
    assert float(module.last_loss) != 0.0
    torch.testing.assert_close(module.last_loss.cpu(), reference.last_loss, rtol=1e-5, atol=1e-8)
    largest = max(float(gradient.abs().max()) for gradient in gradients(reference).values())
    assert largest > 0
    for name, gradient in gradients(reference).items():
        parameter = module.get_parameter(name)
        actual = parameter.grad.cpu()
        torch.testing.assert_close(actual, gradient, atol=1e-5 * max(1, largest), rtol=1e-4)
        # AdamW magnifies rounding errors, so that both optimizers get the same gradient.
        parameter.grad = gradient.to(DEVICE)

    optimize(reference)
    optimizer_waits = optimize(module)
    assert not optimizer_waits
    assert not waits or assigns(module)
    for name, expected in reference.named_parameters():
        actual = module.get_parameter(name).cpu()
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5, msg=name)


@pytest.mark.parametrize(("make", "name"), [(forecaster, "scene-set"), (heads, "detection")])
def test_an_assignment_copies_the_costs_of_all_layers_at_once(make: Any, name: str) -> None:
    module, batch = make(name)
    assert assigns(module)
    assert step(move(module), batch) == {"copy": 1}


def is_random(module: TaskModule, batch: Any) -> bool:
    """Whether the loss of a forecaster depends on the seed, apart from augmentation."""
    if not isinstance(module, ForecastingModule):
        return False
    losses = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        losses.append(module.objective(module.model, batch)["loss"])
    return not torch.equal(*losses)


def assigns(module: TaskModule) -> bool:
    """Whether the host waits for the costs of an assignment."""
    return isinstance(module, DetectionModule) or module.model.waits_for_device


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the gradients by the name of the parameter."""
    copies = {}
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            copies[name] = parameter.grad.clone()
    return copies


def optimize(module: TaskModule) -> dict[str, int]:
    """A step of the optimizer; returns the waits."""
    optimizer, schedule = build_optimizer(module.groups(), module.config.optim, Length(10))
    with counted() as waits:
        optimizer.step()
    schedule.step()
    return waits


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
    with cpu_generators():
        assert not step(move(module), batch)
    assert bool(module.last_loss.isfinite())


EVALUATED = [name for name in MODEL_CONFIGS if name.startswith("constant")]
EVALUATED += sorted({name for name, _ in training_cases()})


def evaluated(name: str, device: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """The evaluation of a model, and all other metrics of a batch."""
    model = shallow(name).eval()
    if device != "cpu":
        move(model)
    joint = name == "se2former"  # also the metrics of joint futures
    predictor = Predictor(model, BatchConfig(), torch.device(device), joint=joint)
    result = evaluate(predictor, Scenes(SCENES), batch_size=2)
    batch = collate(SCENES).to(device)
    with torch.no_grad():
        truth = batch.truth
        forecast = model(batch.observation)
        metrics = crowd_metrics(forecast, truth.position, truth.valid)[0]
        if isinstance(model, SceneSet):
            trajectories = model.trajectories(batch.observation)
            metrics["hits"] = set_hits(trajectories, truth.position, truth.valid, 0.0)[0]
    return result, {key: value.cpu() for key, value in metrics.items()}


@pytest.mark.parametrize("name", EVALUATED)
def test_evaluation_equals_that_of_the_cpu(name: str) -> None:
    reference, metrics = evaluated(name, "cpu")
    result, metrics_on_device = evaluated(name, DEVICE)
    assert result.metrics == pytest.approx(reference.metrics, abs=1e-4, nan_ok=True)
    for column in reference.per_agent:
        expected = reference.per_agent[column].tolist()
        if isinstance(expected[0], float):
            expected = pytest.approx(expected, abs=1e-4, nan_ok=True)
        assert result.per_agent[column].tolist() == expected
    torch.testing.assert_close(metrics_on_device, metrics, atol=1e-4, rtol=1e-4, equal_nan=True)


def test_costs_that_are_not_finite_are_matched_so_that_they_reach_the_loss() -> None:
    cost = torch.rand(2, 3, 4, 1)
    cost[1, 2, 3], cost[0, 1, 2] = torch.nan, torch.inf
    first, second = match_layers(cost.to(DEVICE), torch.ones(3, 1, dtype=torch.bool).to(DEVICE))
    assert second.prediction[2] == 3 and first.prediction[1] == 2
    with pytest.raises(ValueError, match="layer 0, problem 1, prediction 2, target 0"):
        match_layers(cost, torch.ones(3, 1, dtype=torch.bool))
