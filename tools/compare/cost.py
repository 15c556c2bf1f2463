"""Cost of a model: latency and memory of a forecast, time and memory of a training step.

Each part runs in a separate process on one thread, with random weights. `forward` forecasts
recorded scenes; the latency is the median over calls with different batches. `step` makes training
steps of 32 scenes: loss, backward, clipping and optimizer. Peak memory is the peak of the whole
process; `base_mb` is the memory before the first call.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
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

BATCH = 32
MAX_BATCHES = 4  # different ones


def cycle_batches(
    scenes: SceneStore, config: BatchConfig, size: int, max_count: int
) -> itertools.cycle[Any]:
    """Batches in an endless cycle, distributed over a split; scenes repeat in a small split."""
    data = SceneDataset(scenes, config)
    count = min(max(len(scenes) // size, 1), max_count)
    batches = []
    for number in range(count):
        start = number * len(scenes) // count
        indices = [(start + offset) % len(scenes) for offset in range(size)]
        batches.append(data[indices])
    return itertools.cycle(batches)


def _start() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def forward(recipe: TrainConfig, store: str, repeats: int) -> dict[str, float]:
    """Latency at batch 1 and 32, memory at 32, number of parameters."""
    _start()
    scenes = SceneStore(store, recipe.data.val_split)
    config = replace(recipe.data.batch, targets="scored")
    many = cycle_batches(scenes, config, BATCH, MAX_BATCHES)
    single = cycle_batches(scenes, config, 1, repeats + 2)
    model = recipe.build_model().eval()
    row: dict[str, float] = {}
    with torch.inference_mode():
        row["base_mb"] = peak_mb()
        many_repeats = max(repeats // 3, 1)
        row[f"latency_{BATCH}_ms"] = median_ms(lambda: model(next(many).observation), many_repeats)
        row["forward_mb"] = peak_mb()
        row["latency_1_ms"] = median_ms(lambda: model(next(single).observation), repeats)
    row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    return row


def step(recipe: TrainConfig, store: str, repeats: int) -> dict[str, float]:
    """Memory and time of a training step at batch 32; empty for a model without parameters."""
    _start()
    keep_freed_memory()  # as `trajformer train`
    model = recipe.build_model().train()
    if not list(model.parameters()):
        return {}
    generator = torch.Generator().manual_seed(0)
    loss = recipe.loss_config(model).build()
    scenes = SceneStore(store, recipe.data.train_split)
    batches = cycle_batches(scenes, recipe.data.train_batch, BATCH, MAX_BATCHES)

    def loss_of_next_batch() -> torch.Tensor:
        batch = augment(next(batches), recipe.augment, generator)
        value: torch.Tensor = loss(model, batch)["loss"]
        return value

    train_step = training_step(loss_of_next_batch, model, loss, recipe.optim)
    row = {"step_base_mb": peak_mb()}
    row[f"step_{BATCH}_ms"] = median_ms(train_step, max(repeats // 3, 1))
    row["step_mb"] = peak_mb()
    return row


def cost(recipe: TrainConfig, folder: Path, store: Path, repeats: int) -> dict[str, Any]:
    """Both parts: forecasts of the recipe's validation split, steps of its training split.

    The result is stored in cost.json with commit and command, and reused for the same model, loss,
    batches and optimiser.
    """
    file = folder / "cost.json"
    plain = to_plain(recipe)
    relevant = {name: plain[name] for name in ("model", "loss", "optim")}
    relevant["batch"] = to_plain(recipe.data.train_batch)
    record = json.loads(file.read_text()) if file.exists() else {}
    if record.get("recipe") != relevant:
        record = {"recipe": relevant, **origin(), "load_before": os.getloadavg()[0]}
        for part in (forward, step):
            record |= _in_own_process(part, recipe, str(store), repeats)
        write_atomically(file, json.dumps(record, indent=1) + "\n")
    record.pop("recipe")
    return dict(record)


def _in_own_process(
    part: Callable[..., dict[str, float]], recipe: TrainConfig, store: str, repeats: int
) -> dict[str, float]:
    """The result of a part in a new process, which has its own peak memory.

    Every error is a TrajformerError, so that the costs of other rows are still measured.
    """
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(part, recipe, store, repeats).result()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise TrajformerError(f"{part.__name__}: {reason}") from error
