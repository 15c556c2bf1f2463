"""Train models in processes that share each step: `python two_processes.py WORLD RANK FOLDER STEPS NAME ...`.

The same processes train all models, because starting a process takes longer than the training. Dropout and augmentation are off,
and noise depends on the sample only, so that all random numbers are independent of the division of a step. FOLDER receives the
losses and the weights by model in `WORLD.pt`.
"""

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from support.models import shallow
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from trajformer.data.batch import SceneBatch, collate
from trajformer.recipes.recipe import OptimConfig
from trajformer.testing.models import example_scenes
from trajformer.training.optim import build_optimizer, parameter_groups

SCENES = example_scenes((4, 3, 5, 6, 3))
STEPS = ([0, 1, 2], [3, 4], [1, 4, 3], [2, 0])  # scenes of each step: an odd number is divided unevenly


class Objective(nn.Module):
    """The loss of a batch."""

    def __init__(self, model: Any, loss: nn.Module) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: SceneBatch) -> Tensor:
        """A scalar."""
        loss: Tensor = self.loss(self.model, batch)["loss"]
        return loss


def noise(*shape: int, device: Any = None) -> Tensor:
    """Numbers [B, K, A, Z] that depend on k only."""
    return torch.linspace(-1, 1, shape[1])[:, None, None].expand(shape)


def train(name: str, steps: int, rank: int, world: int) -> tuple[list[float], dict[str, Tensor]]:
    """The losses of the steps, means over processes, and the final weights."""
    model = shallow(name)
    objective: nn.Module = Objective(model, model.losses[-1]().build()).train()
    optimizer, _ = build_optimizer(parameter_groups(objective, OptimConfig()), OptimConfig(), lambda step: (step, steps))
    for group in optimizer.param_groups:  # AdamW gives a step of full size to gradients that are zero except for rounding
        group["eps"] = 1e-3
    run = DistributedDataParallel(objective, find_unused_parameters=model.partial) if world > 1 else objective
    losses = []
    for step in range(steps):
        scenes = STEPS[step % len(STEPS)]
        with patch("torch.randn", noise):
            loss = run(collate([SCENES[index] for index in scenes[rank::world]]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach() / world
        if world > 1:
            distributed.all_reduce(mean)
        losses.append(float(mean))
    return losses, model.state_dict()


def main() -> None:
    """Train the models of the command line."""
    world, rank, folder, steps = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    if world > 1:
        distributed.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world)
    results = {name: train(name, steps, rank, world) for name in sys.argv[5:]}
    if rank == 0:
        torch.save(results, folder / f"{world}.pt")


if __name__ == "__main__":
    main()
