"""Stop and resume within an epoch.

`last.ckpt` is written every few minutes and before a requested stop.
"""

import io
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from trajformer.errors import TERMINATION_SIGNALS
from trajformer.recipes.resume import damaged_state, first_difference
from trajformer.scenes.files import atomically
from trajformer.scenes.notices import write_line

_SIGNALS = (signal.SIGINT, *TERMINATION_SIGNALS)
_STANDARD_ERROR = 2
_STOPPING = b"stopping after this step; Ctrl-C again stops at once\n"

# Names in the state of Lightning's loops.
_LOOP = "fit_loop"
_EPOCHS = "epoch_progress"
_BATCHES = "epoch_loop.batch_progress"


class CheckpointFiles(TorchCheckpointIO):
    """Writes checkpoints atomically: after a kill, the previous checkpoint is intact."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Replace the file at `path` by this checkpoint."""
        path = Path(path)
        # Repeated kills must not fill the disk with temporary files.
        for unfinished in path.parent.glob(f".{path.name}.*.tmp"):
            unfinished.unlink()
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)  # a file would hide the reason of an error
        with atomically(path) as temporary:
            temporary.write_bytes(buffer.getbuffer())


class KeepProgress(L.Callback):
    """Saves a checkpoint between two steps within an epoch.

    It does so after `minutes` (not if 0), and on Ctrl-C, SIGTERM and SIGHUP, which end the
    training.
    """

    def __init__(self, path: Path, minutes: float) -> None:
        self.path = path
        self.interval_s = minutes * 60
        self.saved_time = time.monotonic()
        self.reports_signals = True
        self.saving = False  # a checkpoint within an epoch is being written
        self.stopping = False  # a signal was received
        self.terminated = False  # it was one of TERMINATION_SIGNALS
        self.started = False  # the state of a checkpoint has been restored

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Replace Lightning's signal handlers, which communicate at unsafe moments.

        Lightning restores the previous handlers when training ends.
        """
        self.started = True
        self.saved_time = time.monotonic()
        self.reports_signals = trainer.is_global_zero
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores SIGHUP
                    signal.signal(number, self._request_stop)

    def _request_stop(self, number: int, frame: FrameType | None) -> None:
        if self.stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.stopping and self.reports_signals:
            with suppress(OSError):  # the terminal may have been closed
                os.write(_STANDARD_ERROR, _STOPPING)  # print() is not safe here
        self.stopping = True
        if number in TERMINATION_SIGNALS:
            self.terminated = True

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Save when the time is due, and stop on request."""
        due = False
        if self.interval_s and trainer.is_global_zero:
            due = time.monotonic() - self.saved_time >= self.interval_s
        if not _any_process(trainer, due or self.stopping):
            return
        if batch_idx:  # the state at the start of an epoch is saved already
            self.saving = True
            trainer.save_checkpoint(self.path, weights_only=False)
            self.saving = False
        if _any_process(trainer, self.stopping):
            raise KeyboardInterrupt

    def on_validation_batch_start(self, trainer: L.Trainer, *rest: Any) -> None:
        """Stop on request; the steps since the last checkpoint are repeated."""
        if _any_process(trainer, self.stopping):
            raise KeyboardInterrupt

    def on_save_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Do not count the step that is about to start as part of the checkpoint."""
        self.saved_time = time.monotonic()
        if self.saving:
            batches = checkpoint["loops"][_LOOP][_BATCHES]
            for counts in (batches["total"], batches["current"]):
                counts["ready"] = counts["completed"]

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Adapt a checkpoint to a moved folder and to changed data.

        The best score is kept if the run was moved, and forgotten if its checkpoint is missing.
        Raises CheckpointError: the state is not that of this run.
        """
        self._check_state(trainer, pl_module, checkpoint)
        best: Any = trainer.checkpoint_callbacks[0]
        for state in checkpoint["callbacks"].values():
            if "best_k_models" in state:
                _move_best(state, str(best.dirpath))

        data: L.LightningDataModule = trainer.datamodule  # type: ignore[attr-defined]
        before = checkpoint.get(type(data).__qualname__, {})
        now = data.state_dict()
        changes = []
        for name in sorted(now):
            if name in before and before[name] != now[name]:
                changes.append(f"{name} {before[name]} -> {now[name]}")
        if changes:
            self._restart_epoch(trainer, checkpoint, ", ".join(changes))

        # The schedule counts steps. A length in epochs has moved with the steps of an epoch.
        in_epochs = pl_module.config.trainer.steps is None  # type: ignore[union-attr]
        if in_epochs and before.get("steps", now["steps"]) != now["steps"]:
            completed_epochs = checkpoint["loops"][_LOOP][_EPOCHS]["current"]["processed"]
            for schedule in checkpoint["lr_schedulers"]:
                schedule["last_epoch"] = completed_epochs * now["steps"]

    def _check_state(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Compare the state with that of a new run, which has the same keys, types and shapes.

        PyTorch would accept other shapes, and crash in the first step.
        """
        new: Any = pl_module.configure_optimizers()
        optimizer = new["optimizer"]
        state = optimizer.state_dict()
        for group in optimizer.param_groups:
            step = 0 if "muon" in group else torch.zeros(())
            for parameter in group["params"]:
                value = parameter.detach()
                entry = {"exp_avg": value, "exp_avg_sq": value, "step": step}
                if group.get("muon"):
                    entry = {"momentum_buffer": value}
                state["state"][len(state["state"])] = entry
        best: Any = trainer.checkpoint_callbacks[0]
        expected = {
            "loops": {_LOOP: trainer.fit_loop.state_dict()},
            "lr_schedulers": [new["lr_scheduler"]["scheduler"].state_dict()],
            "callbacks": {best.state_key: best.state_dict()},
            "optimizer_states": [state],
        }
        difference = first_difference(expected, checkpoint)
        restarts = pl_module.config.optim.restarts  # type: ignore[union-attr]
        # A restart forgets the state of the optimiser.
        if not difference and not restarts and not checkpoint["optimizer_states"][0]["state"]:
            difference = "state.optimizer_states.0.state"
        if difference:
            raise damaged_state(self.path, difference)

    def _restart_epoch(self, trainer: L.Trainer, checkpoint: dict[str, Any], reason: str) -> None:
        """Begin the epoch of a checkpoint again, because the order of its scenes has changed."""
        loop = checkpoint["loops"][_LOOP]
        epochs = loop[_EPOCHS]
        completed = epochs["current"]["processed"]
        if epochs["current"]["started"] <= completed:
            return  # the checkpoint is at the end of an epoch
        if trainer.is_global_zero:
            write_line(f"epoch {completed + 1} restarts because its order has changed: {reason}")
        for counts in (epochs["total"], epochs["current"]):
            counts.update(dict.fromkeys(counts, completed))
        batches = loop[_BATCHES]["current"]
        batches.update(dict.fromkeys(batches, 0))


def _move_best(state: dict[str, Any], folder: str) -> None:
    """Change the state of a `ModelCheckpoint` to the present folder of the run.

    Otherwise Lightning forgets the best score.
    """
    best = {}
    for path, score in state["best_k_models"].items():
        moved = Path(folder, Path(path).name)
        if moved.is_file():
            best[str(moved)] = score
    best_path = next(iter(best), "")
    state["dirpath"] = folder
    state["best_k_models"] = best
    state["best_model_path"] = best_path
    state["kth_best_model_path"] = best_path
    state["last_model_path"] = ""
    state["best_model_score"] = best.get(best_path)


def _any_process(trainer: L.Trainer, flag: bool) -> bool:
    """Whether the flag is set in any process."""
    if trainer.world_size == 1:
        return flag
    return trainer.strategy.reduce_boolean_decision(flag, all=False)
