"""Stop and resume within an epoch: `last.ckpt` is written every few minutes and before a requested stop."""

import io
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

from trajformer.scenes.files import atomically

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOP, _EPOCHS, _BATCHES = "fit_loop", "epoch_progress", "epoch_loop.batch_progress"


class CheckpointFiles(TorchCheckpointIO):
    """Writes checkpoints atomically: after a kill, the previous checkpoint is intact."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Replace the file at `path` by this checkpoint."""
        path, buffer = Path(path), io.BytesIO()
        for left in path.parent.glob(
            f".{path.name}.*.tmp"
        ):  # repeated kills must not fill the disk
            left.unlink()
        torch.save(checkpoint, buffer)  # a file would hide the reason of an error
        with atomically(path) as temporary:
            temporary.write_bytes(buffer.getbuffer())


class KeepProgress(L.Callback):
    """Saves a checkpoint within an epoch, between two steps, after `minutes` (not if 0), and on Ctrl-C and SIGTERM."""

    def __init__(self, path: Path, minutes: float) -> None:
        self.path, self.seconds = path, minutes * 60
        self.saved, self.prints = time.monotonic(), True
        self.stopping = self.saving = self.terminated = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Replace Lightning's signal handlers, which send messages between processes at unsafe moments.

        Lightning restores the previous handlers when training ends.
        """
        self.saved, self.prints = time.monotonic(), trainer.is_global_zero
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.stopping and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.stopping and self.prints:
            os.write(
                2, b"stopping after this step; Ctrl-C again stops at once\n"
            )  # print() is not safe in a signal handler
        self.stopping, self.terminated = True, self.terminated or number == signal.SIGTERM

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Save when the time is due, and stop on request; the state at the start of an epoch is saved already."""
        due = (
            bool(self.seconds)
            and trainer.is_global_zero
            and time.monotonic() - self.saved >= self.seconds
        )
        if not _any_process(trainer, due or self.stopping):
            return
        if batch_idx:
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
        self.saved = time.monotonic()
        if self.saving:
            batches = checkpoint["loops"][_LOOP][_BATCHES]
            for counts in (batches["total"], batches["current"]):
                counts["ready"] = counts["completed"]

    def on_load_checkpoint(
        self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Restart the epoch if the order of scenes has changed; move the schedule if the steps per epoch have changed.

        The best score is kept if the run was moved, and forgotten if its checkpoint is missing.
        """
        for state in checkpoint["callbacks"].values():
            if "best_k_models" in state:
                _move_best(state, str(trainer.checkpoint_callbacks[0].dirpath))  # type: ignore[attr-defined]
        data: L.LightningDataModule = trainer.datamodule  # type: ignore[attr-defined]
        before, now, loop = (
            checkpoint.get(type(data).__qualname__, {}),
            data.state_dict(),
            checkpoint["loops"][_LOOP],
        )
        changed = sorted(name for name in now if name in before and before[name] != now[name])
        epochs, batches = loop[_EPOCHS], loop[_BATCHES]
        done = epochs["current"]["processed"]
        if changed and epochs["current"]["started"] > done:
            reason = ", ".join(f"{name} {before[name]} -> {now[name]}" for name in changed)
            if trainer.is_global_zero:
                sys.stderr.write(
                    f"epoch {done + 1} restarts because its order has changed: {reason}\n"
                )
            for counts in (epochs["total"], epochs["current"]):
                counts.update(dict.fromkeys(counts, done))
            batches["current"].update(dict.fromkeys(batches["current"], 0))
        if "steps" in changed:
            for schedule in checkpoint["lr_schedulers"]:
                schedule["last_epoch"] = done * now["steps"]


def _move_best(state: dict[str, Any], folder: str) -> None:
    """Change the state of a `ModelCheckpoint` to the present folder of the run; otherwise Lightning forgets the best score."""
    best = {
        str(Path(folder, Path(path).name)): score for path, score in state["best_k_models"].items()
    }
    best = {path: score for path, score in best.items() if Path(path).is_file()}
    path = next(iter(best), "")
    state |= {
        "dirpath": folder,
        "best_k_models": best,
        "best_model_path": path,
        "kth_best_model_path": path,
        "last_model_path": "",
    }
    state["best_model_score"] = best.get(path)


def _any_process(trainer: L.Trainer, flag: bool) -> bool:
    """Whether the flag is set in any process."""
    return (
        flag
        if trainer.world_size == 1
        else trainer.strategy.reduce_boolean_decision(flag, all=False)
    )
