"""Restarts of the optimiser, and the mean of the weights of the last parts of a training.

The mean of weights that were trained from a common start is often more accurate than each of them
(model soups, Wortsman et al. 2022), and costs no time in inference.
"""

from typing import Any

import lightning as L
import torch
from torch import Tensor


class Restarts(L.Callback):
    """Carries out the schedule of `OptimConfig.restarts` at the end of each part of a training."""

    def __init__(self, average: int) -> None:
        self.average = average  # number of last restarts whose final weights are averaged
        self.snapshots: list[dict[str, Tensor]] = []

    def state_dict(self) -> dict[str, Any]:
        """The weights so far, which a resumed run needs."""
        return {"snapshots": self.snapshots}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the weights of the checkpoint."""
        self.snapshots = state_dict["snapshots"]

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """At the end of a part, keep its weights and begin the next part, or take the mean."""
        length = pl_module.length
        part = length.finished_part(trainer.global_step)
        if part is None:
            return

        # Part 0 is the first part, so restart number r is part r.
        if part > length.restarts - self.average and part > 0:
            weights = pl_module.model.state_dict()
            self.snapshots.append({name: tensor.cpu().clone() for name, tensor in weights.items()})

        is_last = part == length.restarts
        if not is_last:
            # Optimisers create their state in the first step. The schedule has moved on already.
            for optimizer in trainer.optimizers:
                optimizer.state.clear()
        elif self.snapshots:
            pl_module.model.load_state_dict(mean_weights(self.snapshots))
            self.snapshots = []


def mean_weights(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of state dicts with equal names and shapes; integers are those of the last one."""
    mean = {}
    for name, last in states[-1].items():
        if last.is_floating_point():
            values = torch.stack([state[name].double() for state in states])
            mean[name] = values.mean(0).to(last.dtype)
        else:
            mean[name] = last
    return mean
