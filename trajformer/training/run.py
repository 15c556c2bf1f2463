"""`trajformer train`: a recipe and two stores in; checkpoints, logs and the resolved recipe out."""

import csv
import io
import logging
import os
import warnings
from contextlib import AbstractContextManager, ExitStack, nullcontext
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
)
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from trajformer.errors import UNREADABLE, Terminated, TrajformerError, escape, one_line
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import Recipe
from trajformer.recipes.resume import check_resume, damaged_state
from trajformer.scenes.files import lock_folder, reading, write_atomically
from trajformer.scenes.notices import notice, on_terminal, write_line
from trajformer.training.base import Task, TaskData, TaskModule
from trajformer.training.memory import keep_freed_memory
from trajformer.training.progress import Bar, Lines
from trajformer.training.restarts import Restarts
from trajformer.training.resume import CheckpointFiles, KeepProgress

BEST, LAST, CONFIG = "best.ckpt", "last.ckpt", "config.yaml"
RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK")
WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "JSM_NAMESPACE_SIZE")  # numbers of processes
_CHATTY_LOGGERS = (
    "lightning.pytorch.utilities.rank_zero",
    "lightning.fabric.utilities.distributed",
)
_HARMLESS_WARNINGS = (
    ".*does not have many workers.*",
    ".*Checkpoint directory.*exists.*",
    ".*LeafSpec.*",
    ".*Experiment logs directory.*",
    ".*sync_dist=True.*",  # torchmetrics does that
    ".*overridden `transfer_batch_to_device`.*",
    ".*number of training batches.*smaller than the logging interval.*",
    ".*in eval mode at the start of training.*",  # the first stage stays in eval mode
    ".*your dataloader is not resumable.*",  # `TaskData` resumes at Lightning's counters
)


def train(
    config: Recipe, task: Task, out: Path | str, *, resume: bool = False, progress: bool = True
) -> Path:
    """Train a recipe of a task and return the path of the best checkpoint.

    The folder `out` receives `best.ckpt` (the best validation), `last.ckpt`, `config.yaml`,
    `csv/metrics.csv` and TensorBoard logs. With `resume`, the run continues from `out/last.ckpt`,
    or starts if the file is missing. `progress` shows progress bars, or lines if standard error is
    not a terminal.

    Raises:
        TrajformerError: the recipe, the stores or the folder cannot be used, `out` holds another
            run and `resume` is off, or another process writes to `out`.
        KeyboardInterrupt: Ctrl-C, or SIGTERM (`Terminated`); `last.ckpt` contains all completed
            steps.
    """
    if config.trainer.accelerator == "gpu" and not torch.cuda.is_available():
        raise TrajformerError("trainer.accelerator: gpu, but there is no CUDA device here")
    nodes = num_nodes(config.trainer.devices)
    out = Path(out)
    _require_utf8(out)
    first_process = getattr(rank_zero_only, "rank", 0) == 0
    last = _last_checkpoint(out, resume)
    _quiet()
    keep_freed_memory()
    if config.trainer.threads:
        torch.set_num_threads(min(config.trainer.threads, os.cpu_count() or 1))
    torch.set_float32_matmul_precision("high")

    # The model, which checks the recipe, and the data. A module may complete the recipe.
    with _notice(progress, "building the model and reading the data"):
        module = _build_module(config, task)
        data = task.data(config)
        module.attach(data)
    completed_steps = 0
    if last is None:
        with _notice(progress, "preparing the model with the training data"):
            module.prepare(data)
    else:  # the checkpoint has the results of `prepare`
        completed_steps = check_resume(
            last, module.config, module.model, data.spec, data.train.name
        )

    with ExitStack() as stack:
        try:
            if first_process:
                stack.enter_context(lock_folder(out))
                _keep_foreign_file(out / CONFIG)
                last = _last_checkpoint(out, resume)  # another run may have finished meanwhile
                plain = {"task": config.task} | to_plain(module.config)
                write_atomically(out / CONFIG, yaml.safe_dump(plain, sort_keys=False))
            trainer = build_trainer(module, task, out, progress, completed_steps, nodes)
        except OSError as error:
            raise TrajformerError(f"{out}: cannot be written: {error.strerror or error}") from error
        if resume and last is None and first_process:
            write_line(f"{out}: has no {LAST} to resume from; a new run starts")
        data.trainer = trainer  # its number of processes divides the steps
        if first_process and progress:
            write_line(start_line(module, data, completed_steps))
        fit(trainer, module, data, last)
        if first_process and not (out / BEST).exists():
            reason = "missing, and no epoch is left to replace it"
            advice = f"raise trainer.epochs or trainer.steps, or use {LAST}"
            raise TrajformerError(f"{out / BEST}: {reason}; {advice}")
    return out / BEST


def _require_utf8(out: Path) -> None:
    try:
        str(out).encode()
    except UnicodeEncodeError as error:
        problem = "its name is not UTF-8, which TensorBoard needs; give another --out"
        raise TrajformerError(f"{escape(str(out))}: {problem}") from error


def num_nodes(devices: int) -> int:
    """The number of machines of a training, each with `devices` processes, by its launcher.

    `torchrun` and Slurm describe it in the environment. Raises TrajformerError: the environment has
    the number of a process, but not of a launcher that started as many processes. Lightning would
    leave out the files that only the first process writes, or wait for others.
    """
    numbers = {name: os.environ[name] for name in RANKS if name in os.environ}
    processes = max(int(os.environ.get(name, 1)) for name in WORLDS)
    nodes = processes // devices
    if numbers and processes > 1 and processes == nodes * devices and _spans(nodes):
        return nodes
    for name, number in numbers.items():
        if number != "0" or devices > 1:
            problem = f"{name}={number} in the environment, but no launcher of {devices} processes"
            raise TrajformerError(f"trainer.devices: {problem}; unset {name}")
    return 1


def _spans(nodes: int) -> bool:
    """Whether the launcher has started processes on this number of machines."""
    if "LOCAL_WORLD_SIZE" in os.environ:  # torchrun: processes of this machine
        return int(os.environ["WORLD_SIZE"]) == nodes * int(os.environ["LOCAL_WORLD_SIZE"])
    return int(os.environ.get("SLURM_NNODES", 1)) == nodes


def _notice(progress: bool, step: str) -> AbstractContextManager[None]:
    """A line of the first process if a step before the training takes seconds."""
    if not progress or getattr(rank_zero_only, "rank", 0) != 0:
        return nullcontext()
    return notice(f"train: {step} ...")


def start_line(module: TaskModule, data: TaskData, completed_steps: int = 0) -> str:
    """The model, the data and the length of a training in one line."""
    parameters = sum(parameter.numel() for parameter in module.model.parameters())
    model = f"{type(module.model).__name__} ({parameters / 1e6:.2f} M parameters)"
    items = data.summary()
    config = module.config
    length = f"{config.num_steps:,} steps" if config.num_steps else ""
    if config.trainer.num_epochs is not None:
        steps = data.count_steps()
        length = f"{config.trainer.num_epochs} epochs of {steps:,} steps"
    if completed_steps:
        length += f", {completed_steps:,} steps are completed"
    return f"train: {model}; {items}; {length}; the remaining time follows in seconds"


def _quiet() -> None:
    """Silence hints of Lightning that do not concern a user of this program."""
    for name in _CHATTY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in _HARMLESS_WARNINGS:
        warnings.filterwarnings("ignore", message)


def _build_module(config: Recipe, task: Task) -> TaskModule:
    """The module with random weights of the recipe's seed (TrajformerError: no usable model)."""
    L.seed_everything(config.seed, workers=True, verbose=False)
    try:
        module = task.module(config)
    except ValueError as error:
        raise TrajformerError(f"model: {error}") from error
    if not any(parameter.requires_grad for parameter in module.parameters()):
        advice = "score it with `trajformer evaluate --model`"
        raise TrajformerError(f"model: has no parameters to train; {advice}")
    return module


def _last_checkpoint(out: Path, resume: bool) -> Path | None:
    """The checkpoint to resume from, if there is one.

    Raises TrajformerError: the folder has results that would be lost.
    """
    last = out / LAST
    if not last.exists():
        if (out / BEST).exists():
            problem = f"has a {BEST} but no {LAST} to continue from"
            raise TrajformerError(f"{out}: {problem}; move it, or give another --out")
        return None
    if not resume:
        advice = "continue it with --resume or give another --out"
        raise TrajformerError(f"{out}: already contains a run; {advice}")
    return last


def _keep_foreign_file(path: Path) -> None:
    """Raise TrajformerError if the recipe of the run would replace a file of the user."""
    if path.is_file() and not path.read_bytes().startswith(b"task: "):
        raise TrajformerError(f"{path}: exists and is not of a run; give another --out")


def build_trainer(
    module: TaskModule,
    task: Task,
    out: Path,
    progress: bool,
    completed_steps: int = 0,
    nodes: int = 1,
) -> L.Trainer:
    """Lightning's trainer for a recipe, on a number of machines `nodes`.

    The logs in `out` keep the first `completed_steps` steps, the number in the checkpoint.
    Raises TrajformerError: the accelerator or the number of devices is not available.
    """
    config = module.config.trainer
    options: dict[str, Any] = {"accelerator": config.accelerator, "devices": config.devices}
    options["num_nodes"] = nodes
    if config.devices * nodes > 1 and getattr(module.model, "find_unused_parameters", False):
        options["strategy"] = "ddp_find_unused_parameters_true"
    # A training with a length in steps is stopped by its module, also within an epoch.
    max_epochs = config.num_epochs or -1
    try:
        return L.Trainer(
            default_root_dir=out,
            max_epochs=max_epochs,
            precision=config.precision,
            gradient_clip_val=module.config.optim.clip or None,
            check_val_every_n_epoch=config.validate_every,
            log_every_n_steps=config.log_every,
            num_sanity_val_steps=0,
            callbacks=_callbacks(module, task, out, progress),
            logger=make_loggers(out, completed_steps),
            plugins=[CheckpointFiles()],
            use_distributed_sampler=False,
            enable_progress_bar=progress and on_terminal(),
            enable_model_summary=False,
            **options,
        )
    except (MisconfigurationException, RuntimeError) as error:
        raise TrajformerError(f"trainer: {options}: {error}") from error


def _callbacks(module: TaskModule, task: Task, out: Path, progress: bool) -> list[L.Callback]:
    """Checkpoints, logs of rates, averages of weights, early stopping and progress."""
    config, optim = module.config.trainer, module.config.optim
    best = ModelCheckpoint(
        out, filename="best", monitor=task.monitor, mode=task.mode, enable_version_counter=False
    )
    # A separate callback: `save_last` would write the last checkpoint only with the best one.
    last = ModelCheckpoint(
        out, filename="last", save_on_train_epoch_end=True, enable_version_counter=False
    )
    keep = KeepProgress(out / LAST, config.checkpoint_minutes)
    callbacks: list[L.Callback] = [keep, best, last, LearningRateMonitor("step")]
    if optim.restarts:
        callbacks.append(Restarts(optim.average_restarts))
    if optim.average:
        callbacks.append(EMAWeightAveraging(decay=optim.average))
    if config.early_stopping:
        patience = config.early_stopping
        callbacks.append(EarlyStopping(task.monitor, patience=patience, mode=task.mode))
    if progress and on_terminal():
        callbacks.append(Bar(refresh_rate=5))
    elif progress:
        callbacks.append(Lines(task.shown))
    return callbacks


def fit(trainer: L.Trainer, module: TaskModule, data: TaskData, start: Path | None) -> None:
    """Run the trainer, from the checkpoint `start` if it is given.

    Raises:
        TrajformerError: there are fewer scenes than processes, or the checkpoint has more epochs
            than the recipe.
        KeyboardInterrupt: Ctrl-C, or SIGTERM (`Terminated`); the checkpoint for resuming is
            written.
    """
    data.trainer = trainer
    data.count_steps()  # raises errors before other processes start
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    keepers = [callback for callback in callbacks if isinstance(callback, KeepProgress)]
    try:
        trainer.fit(module, datamodule=data, ckpt_path=start, weights_only=True)
    except MisconfigurationException as error:
        raise TrajformerError(f"{start or 'trainer'}: {error}") from error
    except UNREADABLE as error:
        if start is None or any(keeper.started for keeper in keepers):
            raise
        # before the first step, after `check_resume`: a part that only Lightning reads
        raise damaged_state(start, one_line(error)) from error
    except SystemExit:  # Lightning's answer to Ctrl-C
        if not trainer.interrupted:
            raise
    if not trainer.interrupted:
        return
    if not trainer.is_global_zero:
        raise SystemExit(0)  # only the first process reports
    if any(keeper.terminated for keeper in keepers):
        raise Terminated("continue with --resume")
    raise KeyboardInterrupt("continue with --resume")


def make_loggers(out: Path, step: int) -> list[Logger]:
    """Loggers to `out/csv` and, if TensorBoard is installed, `out/tensorboard`.

    They keep the first `step` steps and drop later ones, so that a resumed run continues them
    without gaps or repetitions.
    """
    loggers: list[Logger] = []
    if find_spec("tensorboard") is not None:
        loggers.append(TensorBoardLogger(out, name="", version="tensorboard", purge_step=step))
    loggers.append(_csv_logger(out, step))
    return loggers


def _csv_logger(out: Path, step: int) -> CSVLogger:
    """A logger that continues the existing file, which Lightning would delete."""
    path = out / "csv" / "metrics.csv"
    names, rows = _read(path, step)
    logger = CSVLogger(out, name="", version="csv")
    writer = logger.experiment
    if rows and getattr(rank_zero_only, "rank", 0) == 0:
        text = io.StringIO()
        table = csv.DictWriter(text, names, lineterminator="\r\n")  # as Lightning writes
        table.writeheader()
        table.writerows(rows)
        write_atomically(path, text.getvalue())
        writer.metrics_keys = names
    return logger


def _read(path: Path, step: int) -> tuple[list[str], list[dict[str, str]]]:
    """The columns, and the complete rows of the steps before `step`."""
    if not path.is_file():
        return [], []
    content = "a table of metrics (move it away to resume without its rows)"
    with reading(path, content), path.open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        names = list(table.fieldnames or [])
        if names and "step" not in names:
            raise ValueError("no column 'step'")
        # A line that a kill cut off has missing values, or a value without a column.
        complete = [row for row in table if None not in row and None not in row.values()]
        return names, [row for row in complete if int(row["step"]) < step]
