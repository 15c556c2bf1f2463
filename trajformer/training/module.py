"""The Lightning module: it wires batch, model, loss, metrics and optimiser together and does no maths itself."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from trajformer.augment import augment
from trajformer.batch import SceneBatch
from trajformer.forecast import Forecast
from trajformer.losses.set_loss import set_loss
from trajformer.metrics.accumulate import DisplacementMetrics
from trajformer.models import build_model
from trajformer.training.checkpoint import CONFIG_KEY, describe
from trajformer.training.config import TrainConfig
from trajformer.training.data import SceneData
from trajformer.training.optim import build_optimizer


class ForecastingModule(L.LightningModule):
    """Trains `build_model(config.model)` with the set loss; validates with the displacement metrics."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.config = config
        self.model = build_model(config.model)
        if config.trainer.compile:
            self.model.compile()
        self.metrics = DisplacementMetrics()

    def forward(self, batch: SceneBatch) -> Forecast:
        """The model's forecast."""
        return self.model(batch)

    def transfer_batch_to_device(self, batch: SceneBatch, device: torch.device, dataloader_idx: int) -> SceneBatch:
        """Batches move as a whole."""
        return batch.to(device, non_blocking=True)

    def on_train_start(self) -> None:
        """A run that goes on amid an epoch is told of its end only."""
        self.on_train_epoch_start()

    def on_train_epoch_start(self) -> None:
        """The last epoch is always validated."""
        if self.current_epoch + 1 == self.trainer.max_epochs:
            self.trainer.check_val_every_n_epoch = 1

    def training_step(self, batch: SceneBatch, batch_idx: int) -> Tensor:
        """Loss of one augmented batch; all chance in it depends on seed, step and process only, so it resumes exactly."""
        seed = (self.config.seed * 1_000_003 + self.global_step) * 4096 + self.global_rank
        batch = augment(batch, self.config.augment, torch.Generator().manual_seed(seed))
        torch.manual_seed(seed)  # of dropout
        terms = set_loss(self(batch), batch.target, batch.target_valid, self.config.loss)
        self.log_dict({f"train/{name}": value for name, value in terms.items()}, batch_size=batch.num_scenes)
        self.log("loss", terms["loss"].detach(), prog_bar=True, logger=False, batch_size=batch.num_scenes)
        return terms["loss"]

    def validation_step(self, batch: SceneBatch, batch_idx: int) -> None:
        """Accumulate the metrics of one batch."""
        self.metrics.update(self(batch), batch.target, batch.target_valid)

    def on_validation_epoch_end(self) -> None:
        """Log the means over all processes, and begin anew."""
        values = self.metrics.compute()
        self.metrics.reset()
        for name in ("minADE_6", "minFDE_6", "MR_6", "minFDE_1"):
            self.log(f"val/{name}", values[name], prog_bar=name.startswith("minFDE"))

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with a schedule that is stepped after every batch."""
        # Lightning's own estimate would make the loader before it knows where a resumed run goes on.
        data: SceneData = self.trainer.datamodule  # type: ignore[attr-defined]
        steps = data.count_steps() * self.config.trainer.epochs
        fused = self.config.trainer.precision == "32-true"
        optimizer, schedule = build_optimizer(self.model, self.config.optim, steps, fused=fused)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the resolved recipe in the file, as plain values."""
        checkpoint[CONFIG_KEY] = describe(self.config)
