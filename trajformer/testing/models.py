"""Contract tests of models: every model of `MODELS` passes them, and packages with further models can use them.

    from trajformer.testing.models import check_model

    def test_my_model():
        check_model(MyConfig(num_future=12))

Each check takes a model and a batch and raises an AssertionError that states the difference; `CHECKS` lists all checks.
The tolerances allow for float32 rounding only, which depends on the processor and on the order of sums.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trajformer.data.augment_agents import take_agents
from trajformer.data.batch import (
    AGENT_FIELDS,
    POLYLINE_FIELDS,
    Observation,
    SceneBatch,
    Truth,
    collate,
    transform,
)
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.models.forecaster import Forecaster
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.scene import AgentKind, AgentRole, LaneFlag, PolylineKind, Scene

ROUNDING_M = 1e-4  # about 10 float32 rounding errors at 100 m
POSE_ROUNDING_M = 2e-3  # after a change of frame: rounded positions enter velocities (divided by 0.1 s) and all layers
MIN_GRADIENT = 1e-8  # smaller gradients are rounding errors of zero


def check_model(config: Any, batch: SceneBatch | None = None) -> None:
    """Run all checks, each on a new model (AssertionError: the first violation).

    `config.build()` returns a `Forecaster` that needs no further preparation. The batch has padding, unseen steps and several
    targets in one scene; by default it has `example_scenes` with the horizon `config.num_future` if there is one.
    """
    if batch is None:
        batch = collate(example_scenes(num_future=getattr(config, "num_future", 12)))
    for check in CHECKS:
        check(build_random(config), batch)


def build_random(config: Any) -> Forecaster:
    """The model of a config with random weights, also in matrices that are nearly zero at the start and would hide errors."""
    torch.manual_seed(0)
    model: Forecaster = config.build()
    for parameter in model.parameters():
        if parameter.ndim > 1 and parameter.detach().square().mean() < 0.015**2:
            nn.init.normal_(parameter, std=0.1)
    return model


@torch.no_grad()
def check_batching(model: Forecaster, batch: SceneBatch) -> None:
    """A scene has the same forecast alone and in a batch with padding."""
    together = model.eval()(batch.observation)
    for scene in range(batch.num_scenes):
        alone = crop(batch, scene).observation
        _assert_close(
            _targets(alone, model(alone)),
            _targets(batch.observation, together, scene),
            "a scene alone",
        )


@torch.no_grad()
def check_padding(model: Forecaster, batch: SceneBatch) -> None:
    """Values of padded agents and polylines are ignored."""
    observation, generator = crop(batch, 0).observation, torch.Generator().manual_seed(1)

    def pad(value: Tensor) -> Tensor:
        extra = (
            torch.rand((1, 7, *value.shape[2:]), generator=generator) * 4
        )  # near the agents; kinds are at least 0 to 3
        extra = torch.zeros_like(extra) if value.dtype == torch.bool else extra
        return torch.cat([value, extra.to(value.dtype)], 1)

    fields: dict[str, Any] = {
        name: pad(getattr(observation, name)) for name in AGENT_FIELDS + POLYLINE_FIELDS
    }
    padded = replace(observation, **fields)
    expected = _targets(observation, model.eval()(observation))
    _assert_close(_targets(padded, model(padded)), expected, "arbitrary values in padding")


@torch.no_grad()
def check_order(model: Forecaster, batch: SceneBatch) -> None:
    """The order of targets, other agents and polylines does not matter."""
    largest = int(batch.observation.target_mask.sum(1).argmax())
    plain, generator = crop(batch, largest), torch.Generator().manual_seed(2)
    observation = plain.observation
    count, sizes = (
        observation.num_targets,
        (observation.agent_mask.shape[1], observation.polyline_mask.shape[1]),
    )
    targets, others, polylines = (
        torch.randperm(n, generator=generator) for n in (count, sizes[0] - count, sizes[1])
    )
    shuffled = _rows(plain, 0, torch.cat([targets, count + others]), count, polylines).observation
    expected = [value[targets] for value in _targets(observation, model.eval()(observation))]
    _assert_close(_targets(shuffled, model(shuffled)), expected, "another order")


@torch.no_grad()
def check_unseen_steps(model: Forecaster, batch: SceneBatch) -> None:
    """Values at steps that are not valid are ignored."""
    observation, generator = batch.observation, torch.Generator().manual_seed(3)
    changed: dict[str, Any] = {}
    for name in ("position", "heading", "velocity"):
        value = getattr(observation, name)
        noise = 10 * torch.randn(value.shape, generator=generator)
        changed[name] = torch.where(
            observation.valid.view(*observation.valid.shape, *[1] * (value.ndim - 3)), value, noise
        )
    expected = _targets(observation, model.eval()(observation))
    _assert_close(
        _targets(observation, model(replace(observation, **changed))),
        expected,
        "arbitrary values at unseen steps",
    )


def check_pose(model: Forecaster, batch: SceneBatch) -> None:
    """Forecasts are SE(2)-equivariant, or translation-equivariant only if the model declares `equivariant = False`."""
    error = pose_error(model, batch, 2.1 if model.equivariant else 0.0)
    assert error < POSE_ROUNDING_M, f"another pose of the scene: forecasts differ by {error:.3g} m"


@torch.no_grad()
def pose_error(model: Forecaster, batch: SceneBatch, angle: float) -> float:
    """Largest distance in metres between forecasts of a moved scene (rotated by `angle`, in radians) and moved forecasts."""
    pose = torch.tensor([30.0, -20.0, angle]).expand(batch.num_scenes, 3)
    expected = to_frame(model.eval()(batch.observation).in_batch_frame(), pose[:, None, None, None])
    moved = model(transform(batch, pose).observation).in_batch_frame()
    distance = (moved - expected).norm(dim=-1)[batch.observation.target_mask]
    return float(distance.max())


def check_truth(model: Forecaster, batch: SceneBatch) -> None:
    """The recorded future, also one of NaN, never changes a forecast.

    Forecasts in evaluation are compared before and after training steps with other futures, and forecasts that the loss asks
    for. A loss that needs the future inside the model, for a posterior for example, calls another method than the model.
    """
    truth, generator = batch.truth, torch.Generator().manual_seed(4)
    other = Truth(
        torch.randn(truth.position.shape, generator=generator), torch.ones_like(truth.valid)
    )
    broken = Truth(torch.full_like(truth.position, torch.nan), torch.ones_like(truth.valid))
    forecasts: list[Forecast] = []

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Forecast) -> None:
        assert len(inputs) == 1 and isinstance(inputs[0], Observation), (
            "the loss calls the model with more than the observation"
        )
        forecasts.append(output)

    with torch.no_grad():
        before = model.eval()(batch.observation)
    loss, handle = model.losses[0]().build(), model.register_forward_hook(record)
    for future in (truth, other, broken):
        torch.manual_seed(0)
        with suppress(
            *([ValueError] if future is broken else [])
        ):  # matching rejects NaN, after the forecast
            loss(model.train(), replace(batch, truth=future))
    handle.remove()
    with torch.no_grad():
        pairs = [
            (before, model.eval()(batch.observation)),
            *((forecasts[0], later) for later in forecasts[1:]),
        ]
    for left, right in pairs:
        same = torch.equal(left.position, right.position) and torch.equal(left.logit, right.logit)
        assert same, "another future: forecasts differ"


def check_gradients(model: Forecaster, batch: SceneBatch) -> None:
    """Every parameter receives a finite gradient from the model's default loss, and every weight one that is not zero.

    Exceptions: frozen parameters; biases may have a zero gradient (a softmax does not change if all scores are shifted);
    models that declare `partial` may leave parameters without a gradient, but not all.
    """
    if not list(model.parameters()):
        return
    torch.manual_seed(0)
    loss = model.losses[0]().build()
    loss(model.train(), batch)["loss"].backward()
    parameters = [
        item
        for item in (*model.named_parameters(), *loss.named_parameters())
        if item[1].requires_grad
    ]
    missing = [name for name, parameter in parameters if parameter.grad is None]
    assert len(missing) < len(parameters) if model.find_unused_parameters else not missing, (
        f"no gradient: {missing}"
    )
    gradients = {
        name: parameter.grad for name, parameter in parameters if parameter.grad is not None
    }
    assert all(value.isfinite().all() for value in gradients.values()), "a gradient is not finite"
    zero = [
        name
        for name, value in gradients.items()
        if not name.endswith("bias") and value.abs().max() < MIN_GRADIENT
    ]
    assert not zero, f"zero gradient: {zero}"


@torch.no_grad()
def check_determinism(model: Forecaster, batch: SceneBatch) -> None:
    """In evaluation, forecasts are equal bit by bit, for any state of the random number generator."""
    torch.manual_seed(1)
    left = model.eval()(batch.observation)
    torch.manual_seed(2)
    right = model(batch.observation)
    assert torch.equal(left.position, right.position) and torch.equal(left.logit, right.logit), (
        "a second call differs"
    )


def check_small_scenes(model: Forecaster, batch: SceneBatch) -> None:
    """Forecasts, losses and gradients are finite without a target, with one agent, without lanes, and with one seen step."""
    plain = crop(batch, 0)
    valid = plain.observation.valid.clone()
    valid[..., :-1] = False
    unknown = Truth(torch.zeros_like(plain.truth.position), torch.zeros_like(plain.truth.valid))
    cases = {
        "no target": crop(batch, 0, targets=0),
        "no known future": replace(plain, truth=unknown),
        "one agent": crop(batch, 0, targets=1, agents=1),
        "no lane": crop(batch, 0, polylines=0),
        "one agent and no lane": crop(batch, 0, targets=1, agents=1, polylines=0),
        "one seen step": replace(plain, observation=replace(plain.observation, valid=valid)),
    }
    for name, case in cases.items():
        _assert_finite(model, case, name)


def check_autocast(model: Forecaster, batch: SceneBatch) -> None:
    """Under bfloat16 autocast, forecasts are float32 and forecasts, losses and gradients are finite."""
    with torch.autocast(batch.truth.position.device.type, torch.bfloat16):
        _assert_finite(model, batch, "bfloat16")


@torch.no_grad()
def check_horizon(model: Forecaster, batch: SceneBatch) -> None:
    """A model with a fixed horizon names both horizons if they differ; any other model follows the batch."""
    steps = batch.observation.num_future
    try:
        forecast = model.eval()(replace(batch.observation, num_future=steps + 1))
    except TrajformerError as error:
        message = str(error)
        assert str(steps) in message and str(steps + 1) in message and "\n" not in message, (
            f"unclear error: {message}"
        )
    else:
        assert forecast.position.shape[3] == steps + 1, (
            f"{forecast.position.shape[3]} steps, expected {steps + 1}"
        )


CHECKS: tuple[Callable[[Forecaster, SceneBatch], None], ...] = (
    check_batching,
    check_padding,
    check_order,
    check_unseen_steps,
    check_pose,
    check_truth,
    check_gradients,
    check_determinism,
    check_small_scenes,
    check_autocast,
    check_horizon,
)


def crop(
    batch: SceneBatch,
    scene: int,
    targets: int | None = None,
    agents: int | None = None,
    polylines: int | None = None,
) -> SceneBatch:
    """One scene of a batch without padding, or with its first targets, agents and polylines only."""
    o = batch.observation
    real = [int(mask[scene].sum()) for mask in (o.target_mask, o.agent_mask, o.polyline_mask)]
    given = zip((targets, agents, polylines), real, strict=True)
    num_targets, num_agents, num_polylines = (
        size if count is None else count for count, size in given
    )
    return _rows(batch, scene, torch.arange(num_agents), num_targets, torch.arange(num_polylines))


def _rows(
    batch: SceneBatch, scene: int, agents: Tensor, targets: int, polylines: Tensor
) -> SceneBatch:
    """One scene with the given agents (the first `targets` are its targets) and polylines."""
    o, one = batch.observation, slice(scene, scene + 1)
    alone = batch.map(lambda value: value[one])
    lanes: dict[str, Any] = {
        name: getattr(alone.observation, name)[:, polylines] for name in POLYLINE_FIELDS
    }
    observation = replace(
        alone.observation, scene_id=o.scene_id[one], agent_id=o.agent_id[one], **lanes
    )
    return take_agents(replace(alone, observation=observation), agents[None], targets)


def _targets(observation: Observation, forecast: Forecast, scene: int = 0) -> list[Tensor]:
    """Positions in the batch frame [n, K, F, 2] and probabilities [n, K] of one scene's targets."""
    mask = observation.target_mask[scene]
    return [forecast.in_batch_frame()[scene, mask], forecast.probability()[scene, mask]]


def _assert_close(actual: list[Tensor], expected: list[Tensor], change: str) -> None:
    assert expected[0].numel() > 0, "the batch has no target"
    for name, left, right in zip(("position [m]", "probability"), actual, expected, strict=True):
        allowed = ROUNDING_M + 1e-5 * right.abs()
        assert ((left - right).abs() <= allowed).all(), (
            f"{change}: {name} differs by {(left - right).abs().max():.3g}"
        )


def _assert_finite(model: Forecaster, batch: SceneBatch, case: str) -> None:
    """Forecasts in evaluation and training, the default loss and its gradients are finite."""
    with torch.no_grad():
        forecasts = [model.train(mode)(batch.observation) for mode in (False, True)]
    for forecast in forecasts:
        size = forecast.position.shape
        expected = (
            batch.num_scenes,
            batch.observation.num_targets,
            forecast.num_modes,
            batch.observation.num_future,
            2,
        )
        assert size == expected, f"{case}: positions {tuple(size)}, expected {expected}"
        for value in (forecast.position, forecast.logit):
            assert value.dtype == torch.float32 and value.isfinite().all(), (
                f"{case}: forecast is not finite float32"
            )
    loss = model.losses[0]().build()(model, batch)["loss"]
    assert loss.isfinite(), f"{case}: loss {loss.item()}"
    model.zero_grad()
    if loss.requires_grad:
        loss.backward()
    bad = [
        name
        for name, p in model.named_parameters()
        if p.grad is not None and not p.grad.isfinite().all()
    ]
    assert not bad, f"{case}: gradients are not finite: {bad}"


def example_scenes(
    num_agents: tuple[int, ...] = (9, 4, 14), num_history: int = 10, num_future: int = 12
) -> list[Scene]:
    """Random scenes: agents on arcs near straight lanes; two or three are targets, the others are not seen in all steps."""
    scenes, roles = [], np.array([AgentRole.FOCAL, AgentRole.SCORED, AgentRole.CONTEXT], np.uint8)
    for seed, count in enumerate(num_agents):
        rng, targets = np.random.default_rng(seed), min(3, count - 2)
        time = 0.1 * (np.arange(num_history + num_future) - num_history + 1)
        rate, speed = rng.uniform(-0.3, 0.3, (count, 1)), rng.uniform(0.0, 12.0, (count, 1))
        heading = rng.uniform(-np.pi, np.pi, (count, 1)) + rate * time
        velocity = speed[..., None] * np.stack([np.cos(heading), np.sin(heading)], -1)  # [A, T, 2]
        position = rng.uniform(-25, 25, (count, 1, 2)) + 0.1 * np.cumsum(velocity, 1)
        valid = rng.random((count, len(time))) > 0.2
        valid[:3], valid[3:, -num_future - 1] = True, True
        valid[1, num_history - 3 : num_history] = (
            False  # a target that is lost before the last observed step
        )
        heading = (heading + np.pi) % (2 * np.pi) - np.pi
        arrays = {
            "position": position * valid[..., None],
            "heading": heading * valid,
            "velocity": velocity * valid[..., None],
        }
        lanes, points = 10, 7
        angle = rng.uniform(-np.pi, np.pi, lanes)
        direction = np.stack([np.cos(angle), np.sin(angle)], -1)[:, None]  # [M, 1, 2]
        point = (
            rng.uniform(-30, 30, (lanes, 1, 2)) + np.linspace(-9, 9, points)[:, None] * direction
        )
        scene = Scene(
            scene_id=f"example-{seed}",
            source="example",
            split="train",
            city="",
            period_s=0.1,
            num_history=num_history,
            num_future=num_future,
            origin=np.zeros(2),
            agent_id=tuple(str(number) for number in range(count)),
            agent_kind=rng.integers(len(AgentKind), size=count).astype(np.uint8),
            agent_role=np.repeat(roles, (1, targets - 1, count - targets)),
            valid=valid,
            polyline_id=np.arange(lanes),
            polyline_kind=rng.integers(PolylineKind.DRIVABLE_AREA, size=lanes).astype(np.uint8),
            polyline_flags=rng.integers(max(LaneFlag) * 2, size=lanes).astype(np.uint8),
            polyline_offset=(np.arange(lanes + 1) * points).astype(np.int32),
            point=point.reshape(-1, 2).astype(np.float32),
            edge=np.zeros((2, 0), np.int32),
            edge_kind=np.zeros(0, np.uint8),
            **{name: value.astype(np.float32) for name, value in arrays.items()},
        )
        scenes.append(scene.validate())
    return scenes
