"""Stopping and going on amid an epoch: `last.ckpt` is written every few minutes and when a run is asked to stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Callback

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOP, _EPOCHS, _BATCHES = "fit_loop", "epoch_progress", "epoch_loop.batch_progress"


class CheckpointFiles(TorchCheckpointIO):
    """Writes checkpoints under a temporary name in their own folder and renames them: a kill leaves the one before."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Replace the file at `path` by this checkpoint."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")  # one name, so that kills do not fill the disk
        try:
            torch.save(checkpoint, temporary)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


class KeepProgress(Callback):
    """Saves a run amid an epoch, between two steps, when all that belongs to the one before is done and logged.

    Args:
        path: the checkpoint.
        minutes: between checkpoints; 0 for none but when Ctrl-C or SIGTERM asks to stop.
    """

    def __init__(self, path: Path, minutes: float) -> None:
        self.path, self.seconds = path, minutes * 60
        self.saved, self.speaks = time.monotonic(), True
        self.stopping = self.saving = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Replace Lightning's handlers: its answer to SIGTERM sends messages between processes at any moment.

        Lightning puts back those of before training when it ends.
        """
        self.saved, self.speaks = time.monotonic(), trainer.is_global_zero
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.stopping and self.speaks:
            os.write(2, b"stopping after this step; Ctrl-C again stops at once\n")  # safe in a handler, print is not
        self.stopping = True

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        """Save if it is time, and stop if asked to; at the start of an epoch everything is saved already."""
        due = bool(self.seconds) and trainer.is_global_zero and time.monotonic() - self.saved >= self.seconds
        if not _any(trainer, due or self.stopping):
            return
        if batch_idx:
            self.saving = True
            trainer.save_checkpoint(self.path, weights_only=False)
            self.saving = False
        if _any(trainer, self.stopping):
            raise KeyboardInterrupt

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """The step that is about to begin is not one of the checkpoint's."""
        self.saved = time.monotonic()
        if self.saving:
            batches = checkpoint["loops"][_LOOP][_BATCHES]
            for counts in (batches["total"], batches["current"]):
                counts["ready"] = counts["completed"]

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Where the order of scenes has changed, begin the epoch anew; where the steps of an epoch have, move the schedule."""
        data: L.LightningDataModule = trainer.datamodule  # type: ignore[attr-defined]
        before, now, loop = checkpoint.get(type(data).__qualname__, {}), data.state_dict(), checkpoint["loops"][_LOOP]
        changed = sorted(name for name in now if name in before and before[name] != now[name])
        epochs, batches = loop[_EPOCHS], loop[_BATCHES]
        done = epochs["current"]["processed"]
        if changed and epochs["current"]["started"] > done:
            why = ", ".join(f"{name} {before[name]} -> {now[name]}" for name in changed)
            if trainer.is_global_zero:
                sys.stderr.write(f"epoch {done + 1} begins anew, its order has changed: {why}\n")
            for counts in (epochs["total"], epochs["current"]):
                counts.update(dict.fromkeys(counts, done))
            batches["current"].update(dict.fromkeys(batches["current"], 0))
        if "steps" in changed:
            for schedule in checkpoint["lr_schedulers"]:
                schedule["last_epoch"] = done * now["steps"]


def _any(trainer: L.Trainer, asked: bool) -> bool:
    """Whether any process says so."""
    return asked if trainer.world_size == 1 else trainer.strategy.reduce_boolean_decision(asked, all=False)
