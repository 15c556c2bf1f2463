"""Cost of a model: latency and memory of a forecast, time and memory of a training step.

Each part runs in a separate process on one thread, with random weights. `forward` forecasts recorded scenes; the latency is the
median over calls with different batches. `step` makes training steps of 32 scenes: loss, backward, clipping and optimizer. Peak
memory is the peak of the whole process; `base_mb` is the memory before the first call.
"""

from __future__ import annotations

import itertools
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from measure import median_ms, origin, peak_mb, training_step

from trajformer.data.augment import augment
from trajformer.data.loading import SceneDataset
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.recipes.plain import to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.files import write_atomically
from trajformer.scenes.store import SceneStore
from trajformer.training.memory import keep_freed_memory

BATCH, MAX_BATCHES = 32, 4


def cycle_batches(
    scenes: SceneStore, config: BatchConfig, size: int, max_count: int
) -> itertools.cycle[Any]:
    """Batches in an endless cycle, distributed over a split; scenes repeat in a small split."""
    count, data = min(max(len(scenes) // size, 1), max_count), SceneDataset(scenes, config)
    starts = [number * len(scenes) // count for number in range(count)]
    return itertools.cycle(
        [data[[(start + i) % len(scenes) for i in range(size)]] for start in starts]
    )


def _start() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def forward(recipe: TrainConfig, store: str, repeats: int) -> dict[str, float]:
    """Latency at batch 1 and 32, memory at 32, number of parameters."""
    _start()
    scenes, config = (
        SceneStore(store, recipe.data.val_split),
        replace(recipe.data.batch, targets="scored"),
    )
    many, single = (
        cycle_batches(scenes, config, BATCH, MAX_BATCHES),
        cycle_batches(scenes, config, 1, repeats + 2),
    )
    model = recipe.build_model().eval()
    with torch.inference_mode():
        row = {"base_mb": peak_mb()}
        row[f"latency_{BATCH}_ms"] = median_ms(
            lambda: model(next(many).observation), max(repeats // 3, 1)
        )
        row |= {
            "forward_mb": peak_mb(),
            "latency_1_ms": median_ms(lambda: model(next(single).observation), repeats),
        }
    return row | {"parameters": sum(parameter.numel() for parameter in model.parameters())}


def step(recipe: TrainConfig, store: str, repeats: int) -> dict[str, float]:
    """Memory and time of a training step at batch 32; empty for a model without parameters."""
    _start()
    keep_freed_memory()  # as `trajformer train`
    model, generator = recipe.build_model().train(), torch.Generator().manual_seed(0)
    if not any(True for _ in model.parameters()):
        return {}
    loss = recipe.loss_config(model).build()
    source = cycle_batches(
        SceneStore(store, recipe.data.train_split), recipe.data.train_batch, BATCH, MAX_BATCHES
    )
    train_step = training_step(
        lambda: loss(model, augment(next(source), recipe.augment, generator))["loss"],
        model,
        loss,
        recipe.optim,
    )
    row = {
        "step_base_mb": peak_mb(),
        f"step_{BATCH}_ms": median_ms(train_step, max(repeats // 3, 1)),
    }
    return row | {"step_mb": peak_mb()}


def cost(recipe: TrainConfig, folder: Path, store: Path, repeats: int) -> dict[str, Any]:
    """Both parts: forecasts of the recipe's validation split, steps of its training split.

    The result is stored in cost.json with commit and command, and reused for the same model, loss, batches and optimiser.
    """
    plain, file = to_plain(recipe), folder / "cost.json"
    relevant = {name: plain[name] for name in ("model", "loss", "optim")} | {
        "batch": to_plain(recipe.data.train_batch)
    }
    record = json.loads(file.read_text()) if file.exists() else {}
    if record.get("recipe") != relevant:
        record = {"recipe": relevant, **origin(), "load_before": os.getloadavg()[0]}
        for part in (forward, step):
            try:
                with ProcessPoolExecutor(
                    1, get_context("spawn")
                ) as pool:  # the peak memory of a process is its own
                    record |= pool.submit(part, recipe, str(store), repeats).result()
            except Exception as error:  # the costs of other rows are still measured
                raise TrajformerError(
                    f"{part.__name__}: {type(error).__name__}: {error}"
                ) from error
        write_atomically(file, json.dumps(record, indent=1) + "\n")
    return {name: value for name, value in record.items() if name != "recipe"}
