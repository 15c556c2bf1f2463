"""Logs of a run: a CSV file and, if TensorBoard is installed, its events.

A resumed run continues them without gaps or repetitions.
"""

from __future__ import annotations

import csv
import io
from importlib.util import find_spec
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from trajformer.scenes.files import write_atomically


def make_loggers(out: Path, step: int) -> list[Logger]:
    """Loggers to `out/csv` and `out/tensorboard` that keep the first `step` steps and drop later ones."""
    if find_spec("tensorboard") is None:
        return [_csv_logger(out, step)]
    return [TensorBoardLogger(out, name="", version="tensorboard", purge_step=step), _csv_logger(out, step)]


def _csv_logger(out: Path, step: int) -> CSVLogger:
    """A logger that continues the existing file, which Lightning would delete."""
    path = out / "csv" / "metrics.csv"
    names, rows = _read(path, step)
    logger = CSVLogger(out, name="", version="csv")
    writer = logger.experiment
    if rows and getattr(rank_zero_only, "rank", 0) == 0:
        text = io.StringIO()
        table = csv.DictWriter(text, names, lineterminator="\r\n")  # the line ends that Lightning writes
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
