"""Progress of a training on standard error: bars on a terminal, lines elsewhere."""

import time
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from trajformer.scenes.notices import write_line

LINE_S = 60.0  # between lines
FIRST_LINE_S = 5.0  # until the first line, with the first estimate of the remaining time


class Clock:
    """Elapsed and remaining time since the start of this process, from the completed fraction."""

    def __init__(self, fraction: float = 0.0) -> None:
        self.start_time = time.monotonic()
        self.start_fraction = fraction  # that a resumed run has completed before

    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start_time

    def remaining_s(self, fraction: float) -> float:
        """Estimated seconds until the end, when this fraction of the training is completed."""
        completed_here = max(fraction - self.start_fraction, 1e-9)
        return self.elapsed_s() / completed_here * (1 - fraction)


def duration_text(seconds: float) -> str:
    """A time in the largest units that matter: `45 s`, `12 min` or `3 h 5 min`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def completed_fraction(trainer: L.Trainer, module: Any, epoch_fraction: float = 0.0) -> float:
    """The completed fraction of a training; `epoch_fraction` is that of the present epoch."""
    num_epochs = module.config.trainer.num_epochs
    if num_epochs is None:
        return min(trainer.global_step / module.length.total, 1.0)
    return float((trainer.current_epoch + epoch_fraction) / num_epochs)


def position_text(trainer: L.Trainer, module: Any) -> str:
    """The present position: `epoch 3/12`, or `step 1,200/7,000` for a length in steps."""
    num_epochs = module.config.trainer.num_epochs
    if num_epochs is not None:
        return f"epoch {trainer.current_epoch + 1}/{num_epochs}"
    length = module.length
    text = f"step {trainer.global_step:,}/{length.total:,}"
    part, _, _ = length.position(trainer.global_step - 1)
    if part > 0:
        text += f" (restart {part}/{length.restarts})"
    return text


class Bar(TQDMProgressBar):
    """Lightning's progress bars without the version of the logger.

    The remaining time of the whole training is next to the bar and, with a length in steps, which
    epochs do not show, the step.
    """

    clock = Clock()
    epoch_fraction = 0.0

    def on_train_start(self, trainer: L.Trainer, *rest: Any) -> None:
        """Set the length of the bar, which Lightning omits when a run resumes within an epoch."""
        super().on_train_start(trainer, *rest)
        self.on_train_epoch_start(trainer)
        self.clock = Clock(completed_fraction(trainer, trainer.lightning_module))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update the completed fraction of the epoch before the bar shows it."""
        self.epoch_fraction = (batch_idx + 1) / trainer.num_training_batches
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def get_metrics(self, trainer: L.Trainer, pl_module: Any) -> dict[str, Any]:
        """The values next to the bar."""
        values = super().get_metrics(trainer, pl_module)
        values.pop("v_num", None)
        fraction = completed_fraction(trainer, pl_module, self.epoch_fraction)
        shown = {}
        if pl_module.config.trainer.num_epochs is None:
            shown["position"] = position_text(trainer, pl_module)
        shown["left"] = duration_text(self.clock.remaining_s(fraction))
        return {**shown, **values}


class Lines(L.Callback):
    """A line after a few seconds, one for each validation, and one each minute between them."""

    def __init__(self, shown: tuple[str, ...]) -> None:
        self.shown = shown  # metrics of a validation
        self.clock = Clock()
        self.next_time = time.monotonic()

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Start the clock where a resumed run starts."""
        self.clock = Clock(completed_fraction(trainer, pl_module))
        self.next_time = time.monotonic() + min(FIRST_LINE_S, LINE_S)

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Print a line if it is time for one."""
        if time.monotonic() >= self.next_time:
            epoch_fraction = (batch_idx + 1) / trainer.num_training_batches
            self._write(trainer, pl_module, ("loss",), epoch_fraction)

    @rank_zero_only
    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Print a line with the main metrics."""
        self._write(trainer, pl_module, ("loss", *self.shown), epoch_fraction=1.0)

    def _write(
        self, trainer: L.Trainer, module: Any, names: tuple[str, ...], epoch_fraction: float
    ) -> None:
        """Position, elapsed and remaining time, and metrics."""
        self.next_time = time.monotonic() + LINE_S
        remaining_s = self.clock.remaining_s(completed_fraction(trainer, module, epoch_fraction))
        elapsed = duration_text(self.clock.elapsed_s())
        times = f"{elapsed}, {duration_text(remaining_s)} left"
        values = trainer.callback_metrics
        metrics = [f"{name} {float(values[name]):.3f}" for name in names if name in values]
        line = "  ".join([position_text(trainer, module), times, *metrics])
        write_line(line)
