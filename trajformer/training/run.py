"""`trajformer train`: a recipe and two stores in, a folder with checkpoints, logs and the resolved recipe out."""

import csv
import io
import logging
import sys
import time
import warnings
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    LearningRateMonitor,
    ModelCheckpoint,
    TQDMProgressBar,
)
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from trajformer.errors import Terminated, TrajformerError
from trajformer.recipes.checkpoint import check_resume
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import Recipe
from trajformer.scenes.files import lock_folder, write_atomically
from trajformer.training.base import Task, TaskData, TaskModule
from trajformer.training.memory import keep_freed_memory
from trajformer.training.resume import CheckpointFiles, KeepProgress

BEST, LAST, CONFIG = "best.ckpt", "last.ckpt", "config.yaml"
LINE_S = 60.0


class Bar(TQDMProgressBar):
    """Lightning's progress bars without the version of the logger."""

    def on_train_start(self, trainer: L.Trainer, *rest: Any) -> None:
        """Set the length of the bar, which Lightning does not do when a run resumes within an epoch."""
        super().on_train_start(trainer, *rest)
        self.on_train_epoch_start(trainer)

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        """The metrics next to the bar."""
        return {
            name: value
            for name, value in super().get_metrics(trainer, pl_module).items()
            if name != "v_num"
        }


class Lines(L.Callback):
    """One line for each validation, and one each minute between, for output that is not a terminal."""

    def __init__(self, shown: tuple[str, ...]) -> None:
        self.start_time = self.last_time = time.monotonic()
        self.start_share, self.shown = 0.0, shown

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Remember where a resumed run starts."""
        share = pl_module.share
        self.start_share = (
            trainer.current_epoch / pl_module.config.trainer.epochs if share is None else share
        )
        self.start_time = self.last_time = time.monotonic()

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Print a line if the last one is a minute old."""
        if time.monotonic() - self.last_time >= LINE_S:
            self._write(
                trainer, pl_module, ("loss",), (batch_idx + 1) / trainer.num_training_batches
            )

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Print a line with the main metrics."""
        self._write(trainer, pl_module, ("loss", *self.shown), 1.0)

    def _write(
        self, trainer: L.Trainer, pl_module: Any, names: tuple[str, ...], part: float
    ) -> None:
        """Epoch, of which a `part` is done, or processor minutes, elapsed and remaining time, and metrics."""
        values, epoch = trainer.callback_metrics, trainer.current_epoch + 1
        limits, share = pl_module.config.trainer, pl_module.share
        if share is None:
            position, share = f"epoch {epoch}/{limits.epochs}", (epoch - 1 + part) / limits.epochs
        else:
            position = f"epoch {epoch}, {share * (limits.minutes or 0):.1f}/{limits.minutes:g} processor minutes"
        metrics = "  ".join(f"{name} {float(values[name]):.3f}" for name in names if name in values)
        self.last_time = time.monotonic()
        seconds = self.last_time - self.start_time
        remaining = seconds / max(share - self.start_share, 1e-9) * (1 - share)
        sys.stderr.write(f"{position}  {seconds:.0f} s, {remaining:.0f} s left  {metrics}\n")


def _quiet() -> None:
    """Silence hints of Lightning that do not concern a user of this program."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.distributed"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*Checkpoint directory.*exists.*",
        ".*LeafSpec.*",
        ".*Experiment logs directory.*",
        ".*sync_dist=True.*",  # torchmetrics does that
        ".*overridden `transfer_batch_to_device`.*",
        ".*number of training batches.*smaller than the logging interval.*",
        ".*in eval mode at the start of training.*",  # the first stage of a second stage stays in eval mode
        ".*your dataloader is not resumable.*",  # `TaskData` resumes at Lightning's counters
    ):
        warnings.filterwarnings("ignore", message)


def train(
    config: Recipe, task: Task, out: Path | str, *, resume: bool = False, progress: bool = True
) -> Path:
    """Train a recipe of a task and return the path of the best checkpoint.

    The folder `out` receives `best.ckpt` (the best validation), `last.ckpt`, `config.yaml`, `csv/metrics.csv` and TensorBoard
    logs. With `resume`, the run continues from `out/last.ckpt`, or starts if the file is missing. `progress` shows progress bars,
    or lines if standard error is not a terminal.

    Raises:
        TrajformerError: the recipe, the stores or the folder cannot be used, `out` holds another run and `resume`
            is off, or another process writes to `out`.
        KeyboardInterrupt: Ctrl-C, or SIGTERM (`Terminated`); `last.ckpt` contains all completed steps.
    """
    config.check()
    if config.trainer.accelerator == "gpu" and not torch.cuda.is_available():
        raise TrajformerError("trainer.accelerator: gpu, but there is no CUDA device here")
    out, first_process = Path(out), getattr(rank_zero_only, "rank", 0) == 0
    last = _last_checkpoint(out, resume)
    data = task.data(config)
    _quiet()
    keep_freed_memory()
    if config.trainer.threads:
        torch.set_num_threads(config.trainer.threads)
    torch.set_float32_matmul_precision("high")
    L.seed_everything(config.seed, workers=True, verbose=False)
    try:
        module = task.module(config)
    except ValueError as error:
        raise TrajformerError(f"model: {error}") from error
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise TrajformerError(
            "model: has no parameters to train; score it with `trajformer evaluate --model`"
        )
    module.attach(data)
    if last is None:  # otherwise the checkpoint has the results
        module.prepare(data)
    # A module may complete the recipe.
    done = check_resume(last, module.config, data.spec, data.train.name) if last else 0
    with ExitStack() as stack:
        try:
            if first_process:
                stack.enter_context(lock_folder(out))
                last = _last_checkpoint(
                    out, resume
                )  # another run may have finished in the meantime
                plain = {"task": config.task} | to_plain(module.config)
                write_atomically(out / CONFIG, yaml.safe_dump(plain, sort_keys=False))
            trainer = build_trainer(module, task, out, progress, done)
        except OSError as error:
            raise TrajformerError(f"{out}: cannot be written: {error.strerror or error}") from error
        if resume and last is None and first_process:
            sys.stderr.write(f"{out}: has no {LAST} to resume from; a new run starts\n")
        fit(trainer, module, data, last)
        if first_process and not (out / BEST).exists():
            raise TrajformerError(
                f"{out / BEST}: missing, and no epoch is left to replace it; raise trainer.epochs, or use {LAST}"
            )
    return out / BEST


def _last_checkpoint(out: Path, resume: bool) -> Path | None:
    """The checkpoint to resume from, if there is one (TrajformerError: the folder has results that would be lost)."""
    last = out / LAST
    if last.exists() and not resume:
        raise TrajformerError(
            f"{out}: already contains a run; continue it with --resume or give another --out"
        )
    if (out / BEST).exists() and not last.exists():
        raise TrajformerError(
            f"{out}: has a {BEST} but no {LAST} to continue from; move it, or give another --out"
        )
    return last if last.exists() else None


def build_trainer(
    module: TaskModule, task: Task, out: Path, progress: bool, done: int = 0
) -> L.Trainer:
    """Lightning's trainer for a recipe; the logs in `out` keep the first `done` steps, the steps of the checkpoint.

    Raises TrajformerError: the accelerator or the number of devices is not available.
    """
    config = module.config.trainer
    keep = KeepProgress(out / LAST, config.checkpoint_minutes)
    best = ModelCheckpoint(
        out, filename="best", monitor=task.monitor, mode=task.mode, enable_version_counter=False
    )
    # A separate callback: `save_last` would write the last checkpoint only together with the best one.
    last = ModelCheckpoint(
        out, filename="last", save_on_train_epoch_end=True, enable_version_counter=False
    )
    callbacks: list[L.Callback] = [keep, best, last, LearningRateMonitor("step")]
    if module.config.optim.average:
        callbacks.append(EMAWeightAveraging(decay=module.config.optim.average))
    if config.early_stopping:
        callbacks.append(
            EarlyStopping(task.monitor, patience=config.early_stopping, mode=task.mode)
        )
    if progress:
        callbacks.append(Bar(refresh_rate=5) if sys.stderr.isatty() else Lines(task.shown))
    options: dict[str, Any] = {"accelerator": config.accelerator, "devices": config.devices}
    if config.devices > 1 and getattr(module.model, "find_unused_parameters", False):
        options["strategy"] = "ddp_find_unused_parameters_true"
    try:
        return L.Trainer(
            default_root_dir=out,
            max_epochs=config.epochs if config.minutes is None else -1,
            precision=config.precision,
            gradient_clip_val=module.config.optim.clip or None,
            check_val_every_n_epoch=config.validate_every,
            log_every_n_steps=config.log_every,
            num_sanity_val_steps=0,
            callbacks=callbacks,
            logger=make_loggers(out, done),
            plugins=[CheckpointFiles()],
            use_distributed_sampler=False,
            enable_progress_bar=progress and sys.stderr.isatty(),
            enable_model_summary=False,
            **options,
        )
    except (MisconfigurationException, RuntimeError) as error:
        raise TrajformerError(f"trainer: {options}: {error}") from error


def fit(trainer: L.Trainer, module: TaskModule, data: TaskData, start: Path | None) -> None:
    """Run the trainer.

    Raises TrajformerError: there are fewer scenes than processes, or the checkpoint has more epochs than the recipe.
    KeyboardInterrupt: Ctrl-C, or SIGTERM (`Terminated`); the checkpoint for resuming is written.
    """
    data.trainer = trainer
    data.count_steps()  # raises errors before other processes start
    try:
        trainer.fit(module, datamodule=data, ckpt_path=start, weights_only=True)
    except MisconfigurationException as error:
        raise TrajformerError(f"{start or 'trainer'}: {error}") from error
    except SystemExit:  # Lightning's answer to Ctrl-C
        if not trainer.interrupted:
            raise
    if trainer.interrupted:
        if not trainer.is_global_zero:
            raise SystemExit(0)  # only the first process reports
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        keepers = [callback for callback in callbacks if isinstance(callback, KeepProgress)]
        stopped = any(keeper.terminated for keeper in keepers)
        raise (Terminated if stopped else KeyboardInterrupt)("continue with --resume")


def make_loggers(out: Path, step: int) -> list[Logger]:
    """Loggers to `out/csv` and, if TensorBoard is installed, `out/tensorboard`.

    They keep the first `step` steps and drop later ones, so that a resumed run continues them without gaps or repetitions.
    """
    if find_spec("tensorboard") is None:
        return [_csv_logger(out, step)]
    return [
        TensorBoardLogger(out, name="", version="tensorboard", purge_step=step),
        _csv_logger(out, step),
    ]


def _csv_logger(out: Path, step: int) -> CSVLogger:
    """A logger that continues the existing file, which Lightning would delete."""
    path = out / "csv" / "metrics.csv"
    names, rows = _read(path, step)
    logger = CSVLogger(out, name="", version="csv")
    writer = logger.experiment
    if rows and getattr(rank_zero_only, "rank", 0) == 0:
        text = io.StringIO()
        table = csv.DictWriter(
            text, names, lineterminator="\r\n"
        )  # the line ends that Lightning writes
        table.writeheader()
        table.writerows(rows)
        write_atomically(path, text.getvalue())
        writer.metrics_keys = names
    return logger


def _read(path: Path, step: int) -> tuple[list[str], list[dict[str, str]]]:
    """The columns, and the complete rows of the steps before `step`."""
    if not path.is_file():
        return [], []
    with path.open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        rows = [row for row in table if None not in row and None not in row.values()]
        return list(table.fieldnames or []), [row for row in rows if int(row["step"]) < step]
