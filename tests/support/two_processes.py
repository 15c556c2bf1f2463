"""Trainings in two processes that share each step.

The processes are forked from a server that has imported the package, because starting a process
takes longer than such a training. `record` is also for the program of `trajformer train`.
"""

import json
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from support.models import shallow
from support.uses import start_server
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from trajformer.data.batch import SceneBatch, collate
from trajformer.recipes.recipe import OptimConfig, TrainConfig
from trajformer.testing.outputs import remove_dropout
from trajformer.testing.scenes import example_scenes
from trajformer.training import run
from trajformer.training.forecasting import TASK, ForecastingModule
from trajformer.training.optim import Length, build_optimizer, parameter_groups

SCENES = example_scenes((4, 3, 5, 6, 3))
# scenes of each step: an odd number is divided unevenly
STEPS = ([0, 1, 2], [3, 4], [1, 4, 3], [2, 0])


def run_both(function: Callable[..., None], *arguments: Any) -> None:
    """Call `function(*arguments)` in two processes that can form a process group."""
    start_server()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("forkserver")
    running = []
    for rank in range(2):
        process = context.Process(target=_member, args=(rank, port, function, arguments))
        process.start()
        running.append(process)
    for process in running:
        process.join(150)
    assert [process.exitcode for process in running] == [0, 0]


def _member(
    rank: int, port: int, function: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    rank_zero_only.rank = rank  # Lightning read the environment when it was imported
    function(*arguments)


def train_recipe(config: TrainConfig, out: Path, notes: Path | None = None) -> None:
    """A process of a run that starts or resumes."""
    if notes:
        record(notes)
    run.train(config, TASK, out, resume=True, progress=False)


def record(notes: Path, stop: str = "") -> None:
    """Write the scenes of each step and the first gradients to files.

    The gradients are those after the reduction over processes.
    The second process sends itself SIGTERM in the step "epoch index" of `stop`.
    """
    step = ForecastingModule.training_step

    def recording(self: Any, batch: Any, index: int) -> Tensor:
        row = [self.current_epoch, index, self.global_rank, batch.observation.scene_id]
        with notes.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self.global_rank and stop == f"{self.current_epoch} {index}":
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, batch, index)

    def keep(self: Any, optimizer: torch.optim.Optimizer) -> None:
        if self.global_rank == self.global_step == 0:
            gradients = {name: value.grad for name, value in self.named_parameters()}
            torch.save(gradients, f"{notes}.grad")

    ForecastingModule.training_step = recording  # type: ignore[method-assign]
    ForecastingModule.on_before_optimizer_step = keep  # type: ignore[method-assign]


class Objective(nn.Module):
    """The loss of a batch."""

    def __init__(self, model: Any, loss: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: SceneBatch) -> Tensor:
        loss: Tensor = self.loss(self.model, batch)["loss"]
        return loss


def noise(*shape: int, device: Any = None) -> Tensor:
    """Numbers [B, K, ...] that depend on k only, and not on the division of a step."""
    modes = torch.linspace(-1, 1, shape[1], device=device)
    return modes.view(-1, *[1] * (len(shape) - 2)).expand(shape)


def train_model(
    name: str, loss_config: type[Any], steps: int, rank: int = 0, world: int = 1
) -> tuple[list[float], dict[str, Tensor]]:
    """Train without dropout and augmentation.

    Returns the losses of the steps, means over processes, and the final weights.
    """
    model = shallow(name)
    remove_dropout(model)
    if loss_config is model.losses[0]:
        loss = model.choose_loss(None).build()
    else:
        loss = loss_config().build()
    objective: nn.Module = Objective(model, loss).train()
    config = OptimConfig()
    optimizer, _ = build_optimizer(parameter_groups(objective, config), config, Length(steps))
    # AdamW gives a step of full size to gradients that are zero except for rounding
    for group in optimizer.param_groups:
        group["eps"] = 1e-3
    parallel = objective
    if world > 1:
        unused = model.find_unused_parameters
        parallel = DistributedDataParallel(objective, find_unused_parameters=unused)
    losses = []
    for step in range(steps):
        scenes = STEPS[step % len(STEPS)]
        batch = collate([SCENES[index] for index in scenes[rank::world]])
        with patch("torch.randn", noise):
            value = parallel(batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = value.detach() / world
        if world > 1:
            distributed.all_reduce(mean)
        losses.append(float(mean))
    return losses, model.state_dict()


def train_models(cases: list[tuple[str, type[Any]]], steps: int, results: Path) -> None:
    """A process of the training of models and losses; the first one writes the results."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    trained = [train_model(name, loss, steps, rank, 2) for name, loss in cases]
    if rank == 0:
        torch.save(trained, results)
