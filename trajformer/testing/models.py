"""Contract of models: each model of `MODELS` passes these checks, and so can models elsewhere.

    from trajformer.testing.models import check_model

    def test_my_model():
        check_model(MyConfig(num_future=12))

Each check takes a model and a batch and raises an AssertionError that states the difference;
`CHECKS` lists them. A check that cannot run, for lack of an operator for example, raises
SkipTest, which pytest and unittest report as skipped. The tolerances allow for float32 rounding,
which depends on the processor and on the order of sums.
"""

from collections.abc import Callable
from typing import Any
from unittest import SkipTest
from warnings import warn

import torch
from torch import nn

from trajformer.data.batch import SceneBatch, collate
from trajformer.models.forecaster import Forecaster
from trajformer.testing import forecast_checks, training_checks
from trajformer.testing.scenes import example_scenes

Check = Callable[[Forecaster, SceneBatch], None]
FORECAST_CHECKS: tuple[Check, ...] = (
    forecast_checks.check_batching,
    forecast_checks.check_padding,
    forecast_checks.check_order,
    forecast_checks.check_unseen_steps,
    forecast_checks.check_lost_agents,
    forecast_checks.check_lost_targets,
    forecast_checks.check_question,
    forecast_checks.check_roles,
    forecast_checks.check_history,
    forecast_checks.check_pose,
    forecast_checks.check_determinism,
    forecast_checks.check_weights,
    forecast_checks.check_horizon,
    forecast_checks.check_targets,
)
LOSS_CHECKS: tuple[Check, ...] = (  # of the default loss
    training_checks.check_truth,
    training_checks.check_gradients,
    training_checks.check_small_scenes,
    training_checks.check_bfloat16,
    training_checks.check_float16,
    training_checks.check_device,
)
CHECKS = FORECAST_CHECKS + LOSS_CHECKS


def check_model(config: Any, batch: SceneBatch | None = None) -> None:
    """Run all checks, each on a new model (AssertionError: the first violation).

    `config.build()` returns a `Forecaster` that needs no further preparation. The checks of losses
    run for each of its losses. The batch has padding, unseen steps and several targets in one
    scene; by default it has `example_scenes` with the horizon `config.num_future` if there is one.
    A check that cannot run gives a warning.
    """
    if batch is None:
        num_future = getattr(config, "num_future", 12)
        batch = collate(example_scenes(num_future=num_future))
    for check in CHECKS:
        _run(check, build_random(config), batch)
    for loss in build_random(config).losses[1:]:
        for check in LOSS_CHECKS:
            _run(check, with_loss(build_random(config), loss), batch)


def with_loss(model: Forecaster, loss: type[Any]) -> Forecaster:
    """The model with another default loss, a config class of its `losses`."""
    model.losses = (loss,)
    return model


def _run(check: Check, model: Forecaster, batch: SceneBatch) -> None:
    """Run a check; a warning states why it is skipped."""
    try:
        check(model, batch)
    except SkipTest as reason:
        warn(f"{check.__name__} is skipped: {reason}", stacklevel=3)


def build_random(config: Any) -> Forecaster:
    """The model of a config with random weights.

    Matrices that are nearly zero at the start would hide errors; they get larger weights.
    """
    torch.manual_seed(0)
    model: Forecaster = config.build()
    for parameter in model.parameters():
        mean_square = parameter.detach().square().mean()
        if parameter.ndim > 1 and mean_square < 0.015**2:
            nn.init.normal_(parameter, std=0.1)
    return model
