"""Checks of forecasts in evaluation: masks, order, frames, horizons and weights."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trajformer.data.batch import (
    AGENT_FIELDS,
    POLYLINE_FIELDS,
    Observation,
    SceneBatch,
    continued,
    transform,
)
from trajformer.data.forecast import Forecast
from trajformer.errors import TrajformerError
from trajformer.models.forecaster import Forecaster
from trajformer.scenes.geometry import to_frame
from trajformer.scenes.scene import SHORT_LOSS_S
from trajformer.testing.outputs import assert_equal
from trajformer.testing.scenes import crop, select_rows

ROUNDING_M = 1e-4  # about 10 float32 rounding errors at 100 m
# After a change of frame: rounded positions enter velocities (divided by 0.1 s) and all layers.
POSE_ROUNDING_M = 2e-3
_ANGLE = 2.1  # radians, of the rotated scene
STEADY_M_S = 8.0  # of a target that moves steadily
LOST_M = 1.0  # largest change of its forecast if its last steps are unseen


@torch.no_grad()
def check_batching(model: Forecaster, batch: SceneBatch) -> None:
    """A scene has the same forecast alone and in a batch with padding."""
    together = model.eval()(batch.observation)
    for scene in range(batch.num_scenes):
        alone = crop(batch, scene).observation
        actual = _of_targets(alone, model(alone))
        expected = _of_targets(batch.observation, together, scene)
        _assert_close(actual, expected, "a scene alone")


@torch.no_grad()
def check_padding(model: Forecaster, batch: SceneBatch) -> None:
    """Values of padded agents and polylines are ignored."""
    observation = crop(batch, 0).observation
    generator = torch.Generator().manual_seed(1)

    def pad(value: Tensor) -> Tensor:
        if value.dtype == torch.bool:
            extra = torch.zeros(1, 7, *value.shape[2:])
        else:
            # Positions near the agents, and kinds of at least 0 to 3.
            extra = 4 * torch.rand((1, 7, *value.shape[2:]), generator=generator)
        return torch.cat([value, extra.to(value.dtype)], 1)

    padded: dict[str, Any] = {}
    for name in AGENT_FIELDS + POLYLINE_FIELDS:
        padded[name] = pad(getattr(observation, name))
    _assert_same(model, observation, replace(observation, **padded), "arbitrary values in padding")


@torch.no_grad()
def check_order(model: Forecaster, batch: SceneBatch) -> None:
    """The order of targets, other agents and polylines does not matter."""
    largest = int(batch.observation.target_mask.sum(1).argmax())
    plain = crop(batch, largest)
    observation = plain.observation
    num_targets = observation.num_targets
    num_others = observation.agent_mask.shape[1] - num_targets
    num_polylines = observation.polyline_mask.shape[1]

    generator = torch.Generator().manual_seed(2)
    targets = torch.randperm(num_targets, generator=generator)
    others = torch.randperm(num_others, generator=generator)
    polylines = torch.randperm(num_polylines, generator=generator)
    agents = torch.cat([targets, num_targets + others])
    shuffled = select_rows(plain, 0, agents, num_targets, polylines).observation

    forecast = _of_targets(observation, model.eval()(observation))
    expected = [value[targets] for value in forecast]
    _assert_close(_of_targets(shuffled, model(shuffled)), expected, "another order")


@torch.no_grad()
def check_unseen_steps(model: Forecaster, batch: SceneBatch) -> None:
    """Values at steps that are not valid are ignored."""
    observation = batch.observation
    generator = torch.Generator().manual_seed(3)
    changed: dict[str, Any] = {}
    for name in ("position", "heading", "velocity"):
        value = getattr(observation, name)
        noise = 10 * torch.randn(value.shape, generator=generator)
        valid = _append_axes(observation.valid, value.ndim)
        changed[name] = torch.where(valid, value, noise)
    other = replace(observation, **changed)
    _assert_same(model, observation, other, "arbitrary values at unseen steps")


@torch.no_grad()
def check_lost_agents(model: Forecaster, batch: SceneBatch) -> None:
    """An agent that was lost more than a second ago is ignored, except as a target.

    Its state is extrapolated, maybe over seconds.
    """
    observation = batch.observation
    lost = observation.agent_mask.clone()
    lost[:, : observation.num_targets] = False
    lost[:, ::2] = False
    assert lost.any(), "the batch has no agent in addition to its targets"
    age = torch.where(lost, 2 * SHORT_LOSS_S, observation.age)
    observation = replace(observation, age=age)

    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(observation.pose.shape, generator=generator)
    pose = torch.where(lost[..., None], noise, observation.pose)
    velocity = torch.where(lost[..., None, None], 3.0, observation.velocity)
    other = replace(observation, pose=pose, velocity=velocity)
    _assert_same(model, observation, other, "another state of a lost agent")


@torch.no_grad()
def check_lost_targets(model: Forecaster, batch: SceneBatch) -> None:
    """The forecast of a target at constant velocity changes little if its last steps are unseen.

    Constant velocity itself loses nothing there.
    """
    observation = _with_steady_targets(batch.observation)
    forecast = model.eval()(observation).in_batch_frame()
    for count in (1, 2, 5):
        step = torch.arange(observation.num_history)
        seen = observation.valid & (step < observation.num_history - count)
        seen[:, 1:] = observation.valid[:, 1:]
        age = observation.age.clone()
        age[:, 0] = count * observation.period_s
        lost = continued(replace(observation, valid=seen, age=age))
        change = (model(lost).in_batch_frame() - forecast)[:, 0].norm(dim=-1)
        message = f"without its last {count} steps, a steady target moves by {change.max():.3g} m"
        assert change.max() <= LOST_M, message


def _with_steady_targets(observation: Observation) -> Observation:
    """The observation with a first target that is seen in all steps, at a constant velocity."""
    pose = observation.pose[:, :1]
    ahead = torch.stack([pose[..., 2].cos(), pose[..., 2].sin()], -1)
    velocity = STEADY_M_S * ahead[:, :, None].expand(-1, -1, observation.num_history, -1)
    position = pose[:, :, None, :2] + velocity * observation.step_time[:, None]
    heading = pose[..., 2:].expand(-1, -1, observation.num_history)
    steady: dict[str, Any] = {"position": position, "velocity": velocity, "heading": heading}
    steady["valid"] = torch.ones_like(heading, dtype=torch.bool)
    steady["age"] = torch.zeros_like(observation.age[:, :1])
    fields: dict[str, Any] = {}
    for name, value in steady.items():
        fields[name] = torch.cat([value, getattr(observation, name)[:, 1:]], 1)
    return replace(observation, **fields)


@torch.no_grad()
def check_question(model: Forecaster, batch: SceneBatch) -> None:
    """The forecast of a target does not depend on the other targets, which are context then.

    Joint models are not checked: they predict the targets together.
    """
    if model.joint:
        return
    for scene in range(batch.num_scenes):
        asked = crop(batch, scene)
        alone = crop(batch, scene, targets=1)
        expected = _of_targets(asked.observation, model.eval()(asked.observation))
        actual = _of_targets(alone.observation, model(alone.observation))
        _assert_close(actual, [value[:1] for value in expected], "a target asked for alone")


@torch.no_grad()
def check_roles(model: Forecaster, batch: SceneBatch) -> None:
    """The roles of agents are ignored: they are set by looking at the future."""
    observation = batch.observation
    role = torch.zeros_like(observation.agent_role)
    _assert_same(model, observation, replace(observation, agent_role=role), "other roles")


@torch.no_grad()
def check_history(model: Forecaster, batch: SceneBatch) -> None:
    """Unseen first steps have the effect of a shorter history.

    Models that declare `fixed_history` are not checked.
    """
    if model.fixed_history:
        return
    observation = batch.observation
    unseen = observation.num_history // 2 - 1
    seen = torch.arange(observation.num_history) >= unseen
    short: dict[str, Any] = {}
    hidden: dict[str, Any] = {}
    for name in ("position", "heading", "velocity", "valid"):
        value = getattr(observation, name)
        short[name] = value[:, :, unseen:]
        hidden[name] = value * seen.view(-1, *[1] * (value.ndim - 3))
    change = "unseen first steps instead of a shorter history (see Forecaster.fixed_history)"
    _assert_same(model, replace(observation, **short), replace(observation, **hidden), change)


def check_pose(model: Forecaster, batch: SceneBatch) -> None:
    """Forecasts are SE(2)-equivariant.

    With `equivariant = False` they are translation-equivariant only, and depend on the rotation.
    """
    shifted = pose_error(model, batch, 0.0)
    rotated = pose_error(model, batch, _ANGLE)
    change = "another pose of the scene: forecasts differ by"
    assert shifted < POSE_ROUNDING_M, f"{change} {shifted:.3g} m"
    if model.equivariant:
        assert rotated < POSE_ROUNDING_M, f"{change} {rotated:.3g} m"
    else:
        assert rotated > POSE_ROUNDING_M, "the model is equivariant, but declares that it is not"


@torch.no_grad()
def pose_error(model: Forecaster, batch: SceneBatch, angle: float) -> float:
    """Largest distance in metres between forecasts of a moved scene and moved forecasts.

    The scene is shifted and rotated by `angle` in radians.
    """
    pose = torch.tensor([30.0, -20.0, angle]).expand(batch.num_scenes, 3)
    forecast = model.eval()(batch.observation).in_batch_frame()
    expected = to_frame(forecast, pose[:, None, None, None])
    moved = model(transform(batch, pose).observation).in_batch_frame()
    distance = (moved - expected).norm(dim=-1)[batch.observation.target_mask]
    return float(distance.max())


@torch.no_grad()
def check_determinism(model: Forecaster, batch: SceneBatch) -> None:
    """In evaluation, forecasts are equal bit by bit, for any seed of random numbers."""
    torch.manual_seed(1)
    first = model.eval()(batch.observation)
    torch.manual_seed(2)
    second = model(batch.observation)
    assert_equal([first], [second], "a second call differs")


@torch.no_grad()
def check_weights(model: Forecaster, batch: SceneBatch) -> None:
    """Another model of the config `model.config` with the same state dict has the same forecast."""
    config: Any = model.config
    restored = config.build()
    restored.load_state_dict(model.state_dict())
    first = model.eval()(batch.observation)
    second = restored.eval()(batch.observation)
    assert_equal([first], [second], "the state dict does not restore the forecast")


@torch.no_grad()
def check_horizon(model: Forecaster, batch: SceneBatch) -> None:
    """A model with a fixed horizon names both horizons if they differ; others follow the batch."""
    steps = batch.observation.num_future
    longer = replace(batch.observation, num_future=steps + 1)
    try:
        forecast = model.eval()(longer)
    except TrajformerError as error:
        message = str(error)
        is_clear = str(steps) in message and str(steps + 1) in message and "\n" not in message
        assert is_clear, f"unclear error: {message}"
    else:
        predicted = forecast.position.shape[3]
        assert predicted == steps + 1, f"{predicted} steps, expected {steps + 1}"


@torch.no_grad()
def check_targets(model: Forecaster, batch: SceneBatch) -> None:
    """All agents that are present can be targets."""
    observation = batch.observation
    present = observation.present
    forecast = model.eval()(replace(observation, target_mask=present))
    num_agents = present.shape[1]
    predicted = forecast.position.shape[1]
    assert predicted == num_agents, f"{predicted} targets, expected {num_agents}"
    assert forecast.position.isfinite().all(), "all agents as targets: forecast is not finite"


def _append_axes(mask: Tensor, ndim: int) -> Tensor:
    """The mask with axes of size 1 at its end, up to `ndim` axes."""
    return mask.view(*mask.shape, *[1] * (ndim - mask.ndim))


def _of_targets(observation: Observation, forecast: Forecast, scene: int = 0) -> list[Tensor]:
    """Positions in the batch frame [n, K, F, 2] and probabilities [n, K] of one scene's targets."""
    mask = observation.target_mask[scene]
    return [forecast.in_batch_frame()[scene, mask], forecast.probability()[scene, mask]]


def _assert_same(
    model: Forecaster, observation: Observation, other: Observation, change: str
) -> None:
    """Check that the targets of all scenes have the same forecast in both observations."""
    expected = model.eval()(observation)
    actual = model(other)
    for scene in range(observation.num_scenes):
        _assert_close(
            _of_targets(other, actual, scene), _of_targets(observation, expected, scene), change
        )


def _assert_close(actual: list[Tensor], expected: list[Tensor], change: str) -> None:
    """Compare the results of `_of_targets`."""
    assert expected[0].numel() > 0, "the batch has no target"
    names = ("position [m]", "probability")
    for name, value, reference in zip(names, actual, expected, strict=True):
        error = (value - reference).abs()
        allowed = ROUNDING_M + 1e-5 * reference.abs()
        assert (error <= allowed).all(), f"{change}: {name} differs by {error.max():.3g}"
