"""Checks of the default loss: no leak of the future, gradients, precision and devices."""

from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor, nn

from trajformer.data.batch import SceneBatch, Truth
from trajformer.data.forecast import Forecast
from trajformer.models.forecaster import Forecaster
from trajformer.testing.accelerator import DEVICE, counted, cpu_generators, move
from trajformer.testing.outputs import (
    assert_equal,
    record_outputs,
    remove_dropout,
    tensors_of,
    training_loss,
)
from trajformer.testing.scenes import crop

MIN_GRADIENT = 1e-8  # smaller gradients are rounding errors of zero
# bfloat16 keeps 8 bits: offsets of some metres pass some 20 roundings.
BFLOAT16_ROUNDING = 0.08
BFLOAT16_RTOL = 0.01
FLOAT16_RTOL = 0.02  # float16 keeps 11 bits
LOSS_SCALE = 2.0**8


def check_truth(model: Forecaster, batch: SceneBatch) -> None:
    """The recorded future, also one of NaN, never changes a forecast.

    Forecasts in evaluation are compared before and after training steps with other futures, and
    the outputs that the loss receives from the model and its `compiled_methods`. A method of these
    may receive the future as a further argument, for a posterior for example; its output is not
    compared.
    """
    truth = batch.truth
    generator = torch.Generator().manual_seed(4)
    known = torch.ones_like(truth.valid)
    random = torch.randn(truth.position.shape, generator=generator)
    other = replace(batch, truth=Truth(random, known))
    broken = replace(batch, truth=Truth(torch.full_like(random, torch.nan), known))

    with torch.no_grad():
        before = model.eval()(batch.observation)
    with record_outputs(model) as expected:
        training_loss(model, batch)
    with record_outputs(model) as with_other_future:
        training_loss(model, other)
    with record_outputs(model) as with_nan, suppress(ValueError):
        training_loss(model, broken)  # matching refuses NaN, after the forecast
    with torch.no_grad():
        after = model.eval()(batch.observation)

    assert_equal([before], [after], "another future: forecasts differ")
    assert_equal(expected, with_other_future, "another future: forecasts differ in the loss")
    # The loss may have stopped before its last call of the model.
    assert with_nan or not expected, "NaN in the future: the loss fails before the forecast"
    assert_equal(expected[: len(with_nan)], with_nan, "NaN in the future: forecasts differ")


def check_gradients(model: Forecaster, batch: SceneBatch) -> None:
    """Each parameter receives a finite gradient from the default loss, which is not zero.

    Exceptions: frozen parameters; biases may have a zero gradient (a softmax does not change if all
    scores are shifted); models that declare `find_unused_parameters` may leave parameters without a
    gradient, but not all.
    """
    if not list(model.parameters()):
        return
    loss = model.choose_loss(None).build()
    training_loss(model, batch, loss).backward()
    missing = []
    zero = []
    trainable = [*_trainable(model), *_trainable(loss)]
    for name, parameter in trainable:
        gradient = parameter.grad
        if gradient is None:
            missing.append(name)
            continue
        assert gradient.isfinite().all(), f"the gradient of {name} is not finite"
        if not name.endswith("bias") and gradient.abs().max() < MIN_GRADIENT:
            zero.append(name)
    if model.find_unused_parameters:
        assert len(missing) < len(trainable), "no parameter has a gradient"
    else:
        assert not missing, f"no gradient (see Forecaster.find_unused_parameters): {missing}"
    assert not zero, f"zero gradient: {zero}"


def check_small_scenes(model: Forecaster, batch: SceneBatch) -> None:
    """Forecasts, losses and gradients are finite in scenes that lack something.

    Scenes without a target, a known future, other agents or lanes, and with one seen step.
    """
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


def check_bfloat16(model: Forecaster, batch: SceneBatch) -> None:
    """Under bfloat16 autocast, forecasts are float32, and results are close to those of float32.

    Forecasts, loss and gradients are finite. The outputs that the loss receives are compared.
    """
    device = batch.truth.position.device.type
    with torch.autocast(device, torch.bfloat16):
        _assert_finite(model, batch, "bfloat16")

    with torch.no_grad(), record_outputs(model) as expected:
        training_loss(model, batch)
    with torch.no_grad(), record_outputs(model) as actual, torch.autocast(device, torch.bfloat16):
        training_loss(model, batch)
    values = tensors_of([_without_latents(output) for output in actual])
    references = tensors_of([_without_latents(output) for output in expected])
    for value, reference in zip(values, references, strict=True):
        value = value[reference.isfinite()]
        reference = reference[reference.isfinite()]
        if len(reference) == 0:
            continue
        error = float((value - reference).abs().max())
        allowed = max(BFLOAT16_ROUNDING, BFLOAT16_RTOL * float(reference.abs().max()))
        assert error <= allowed, f"bfloat16: an output of the model differs by {error:.3g}"


def check_float16(model: Forecaster, batch: SceneBatch) -> None:
    """Under float16 autocast with a scaled loss, loss and gradients are close to float32."""
    if not list(model.parameters()):
        return
    device = batch.truth.position.device.type
    losses = []
    gradients = []
    for enabled in (False, True):
        scale = LOSS_SCALE if enabled else 1.0
        model.zero_grad()
        try:
            with torch.autocast(device, torch.float16, enabled=enabled):
                loss = training_loss(model, batch)
            (scale * loss).backward()
        except RuntimeError as error:
            if "not implemented for 'Half'" in str(error):
                raise SkipTest(f"float16: {error}") from error
            raise
        assert loss.dtype == torch.float32, f"float16: the loss is {loss.dtype}"
        losses.append(loss.item())
        gradients.append(_gradient(model) / scale)
    expected, actual = losses
    is_close = abs(actual - expected) <= FLOAT16_RTOL * abs(expected)
    assert is_close, f"float16: loss {actual}, expected {expected}"
    similarity = torch.cosine_similarity(gradients[0], gradients[1], dim=0)
    assert similarity > 0.99, f"float16: cosine similarity {similarity:.4g} of the gradients"


def check_device(model: Forecaster, batch: SceneBatch) -> None:
    """On a simulated accelerator, forecast, loss and gradients are the same as on the CPU.

    The host does not wait for the device, unless the model declares `waits_for_device`.
    """
    remove_dropout(model)  # its random numbers depend on the device
    on_device = move(deepcopy(model))
    objective = model.choose_loss(None).build()
    moved_objective = move(deepcopy(objective))
    moved_batch = batch.to(DEVICE)
    with torch.no_grad():
        expected = model.eval()(batch.observation)
        with counted() as waits:
            actual = on_device.eval()(moved_batch.observation)
    for reference, value in zip(tensors_of(expected), tensors_of(actual), strict=True):
        torch.testing.assert_close(value.cpu(), reference, atol=1e-4, rtol=1e-4)
    _assert_no_waits(model, waits, "forward")

    loss = training_loss(model, batch, objective)
    with counted() as waits, cpu_generators():
        loss_on_device = training_loss(on_device, moved_batch, moved_objective)
        if loss.requires_grad:
            _backward_on_device(loss_on_device)
    _assert_no_waits(model, waits, "the loss or its gradient")
    torch.testing.assert_close(loss_on_device.cpu(), loss, atol=1e-6, rtol=1e-5)
    if loss.requires_grad:
        model.zero_grad()
        loss.backward()
        gradient = _gradient(model)
        atol = 1e-4 * float(gradient.abs().max())
        torch.testing.assert_close(_gradient(on_device).cpu(), gradient, atol=atol, rtol=1e-4)


def _trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters that are not frozen."""
    return [item for item in module.named_parameters() if item[1].requires_grad]


def _gradient(model: nn.Module) -> Tensor:
    """All gradients of the parameters as one vector."""
    gradients = [parameter.grad for parameter in model.parameters()]
    return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])


def _backward_on_device(loss: Tensor) -> None:
    """The gradients (SkipTest: PyTorch knows no device that was registered too late)."""
    try:
        loss.backward()
    except RuntimeError as error:
        if "device_ready_queues_" not in str(error):
            raise
        reason = "a gradient was computed before the import of trajformer.testing"
        raise SkipTest(f"simulated accelerator: {reason}") from error


def _without_latents(output: Any) -> Any:
    """A forecast without its latents, whose logarithms magnify rounding errors."""
    if isinstance(output, Forecast):
        return replace(output, latent=None, prior=None)
    return output


def _assert_no_waits(model: Forecaster, waits: dict[str, int], part: str) -> None:
    """Check the waits of the host."""
    hint = "see trajformer/testing/accelerator.py and Forecaster.waits_for_device"
    is_allowed = model.waits_for_device or not waits
    assert is_allowed, f"{part}: the host waits for the device {dict(waits)} ({hint})"


def _assert_finite(model: Forecaster, batch: SceneBatch, case: str) -> None:
    """Forecasts in evaluation and training, the default loss and its gradients are finite."""
    with torch.no_grad():
        forecasts = [model.train(mode)(batch.observation) for mode in (False, True)]
    for forecast in forecasts:
        num_targets = batch.observation.num_targets
        steps = batch.observation.num_future
        expected = (batch.num_scenes, num_targets, forecast.num_modes, steps, 2)
        size = tuple(forecast.position.shape)
        assert size == expected, f"{case}: positions {size}, expected {expected}"
        for value in (forecast.position, forecast.logit):
            is_usable = value.dtype == torch.float32 and value.isfinite().all()
            assert is_usable, f"{case}: forecast is not finite float32"
    loss = training_loss(model, batch)
    assert loss.isfinite(), f"{case}: loss {loss.item()}"
    model.zero_grad()
    if loss.requires_grad:
        loss.backward()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        is_finite = gradient is None or gradient.isfinite().all()
        assert is_finite, f"{case}: the gradient of {name} is not finite"
