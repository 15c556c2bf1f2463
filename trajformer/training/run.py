"""`trajformer train`: a recipe and two stores in, a folder with checkpoints, logs and the resolved recipe out."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from lightning.pytorch.callbacks import Callback, EarlyStopping, EMAWeightAveraging, LearningRateMonitor
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from trajformer.errors import TrajformerError
from trajformer.manifest import write_atomically
from trajformer.training.checkpoint import check_resume
from trajformer.training.config import TrainConfig, to_plain
from trajformer.training.data import SceneData
from trajformer.training.module import ForecastingModule

MONITOR = "val/minFDE_6"


def _callbacks(config: TrainConfig, out: Path, progress: bool) -> list[Callback]:
    best = ModelCheckpoint(
        out, filename="best", monitor=MONITOR, mode="min", save_last=True, enable_version_counter=False
    )
    callbacks: list[Callback] = [best, LearningRateMonitor("step")]
    if config.optim.average:
        callbacks.append(EMAWeightAveraging(decay=config.optim.average))
    if config.trainer.early_stopping:
        callbacks.append(EarlyStopping(MONITOR, patience=config.trainer.early_stopping, mode="min"))
    return [*callbacks, TQDMProgressBar(refresh_rate=5)] if progress else callbacks


def _quiet() -> None:
    """Silence Lightning's advice that does not concern a user of this program."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
    for message in (".*does not have many workers.*", ".*Checkpoint directory.*exists.*", ".*LeafSpec.*"):
        warnings.filterwarnings("ignore", message)
    warnings.filterwarnings("ignore", ".*number of training batches.*smaller than the logging interval.*")


def train(config: TrainConfig, out: Path, *, resume: bool = False, progress: bool = True) -> Path:
    """Train a recipe.

    Args:
        config: the recipe.
        out: gets `best.ckpt` (smallest val minFDE_6), `last.ckpt`, `config.yaml`, `metrics.csv` and TensorBoard logs.
        resume: go on from `out/last.ckpt` (from the start where there is none yet).
        progress: show progress bars.

    Returns:
        The path of the best checkpoint.

    Raises:
        TrajformerError: the stores or the folder cannot be used, or `out` holds another run and `resume` is off.
    """
    last = out / "last.ckpt"
    if last.exists() and not resume:
        raise TrajformerError(f"{out}: holds a run already; pass --resume to go on with it, or another --out")
    data, resolved = SceneData(config.data), yaml.safe_dump(to_plain(config), sort_keys=False)
    start = check_resume(last, config) if resume and last.exists() else None
    try:
        write_atomically(out / "config.yaml", resolved)
    except OSError as error:
        raise TrajformerError(f"{out}: cannot be written: {error.strerror or error}") from error
    _quiet()
    if config.trainer.threads:
        torch.set_num_threads(config.trainer.threads)
    torch.set_float32_matmul_precision("high")
    L.seed_everything(config.seed, workers=True, verbose=False)
    trainer = L.Trainer(
        default_root_dir=out,
        max_epochs=config.trainer.epochs,
        accelerator=config.trainer.accelerator,
        devices=config.trainer.devices,
        precision=config.trainer.precision,
        gradient_clip_val=config.optim.clip or None,
        check_val_every_n_epoch=config.trainer.validate_every,
        log_every_n_steps=config.trainer.log_every,
        num_sanity_val_steps=0,
        callbacks=_callbacks(config, out, progress),
        logger=[TensorBoardLogger(out, name="", version="tensorboard"), CSVLogger(out, name="", version="csv")],
        enable_progress_bar=progress,
        enable_model_summary=False,
    )
    fit(trainer, ForecastingModule(config), data, start)
    return out / "best.ckpt"


def fit(trainer: L.Trainer, module: ForecastingModule, data: SceneData, start: Path | None) -> None:
    """Run the trainer; a Ctrl-C leaves the last checkpoint behind and is an error, not a success."""
    options: dict[str, Any] = {"ckpt_path": start, "weights_only": True}
    trainer.fit(module, datamodule=data, **options)
    if trainer.interrupted:
        raise TrajformerError("training was interrupted; go on with --resume")
