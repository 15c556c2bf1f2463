"""What a model costs (`compare_models.py`): latency of a forecast and memory of a forecast and of a training step.

    python tools/compare_cost.py forward|step --store STORE --split SPLIT [--repeats N] < RECIPE.json

A process for each figure of memory, on one thread, with untrained weights. `forward` makes forecasts of recorded scenes: the
latency is the median over calls with different scenes, batched beforehand. `step` makes training steps of 32 scenes: the
loss of the recipe, backward, clipping and the optimiser. Peaks are those of the whole process; `base_mb` is what it held before.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from bench_model import median_ms
from peak_memory import peak_mb

from trajformer.data.augment import augment
from trajformer.data.batch import SceneBatch, collate
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.recipes.objective import Objective
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import TrainConfig
from trajformer.scenes.store import SceneStore
from trajformer.training.memory import keep_freed_memory
from trajformer.training.optim import build_optimizer, parameter_groups

BATCH, MOST_BATCHES = 32, 4
CPU = torch.device("cpu")


def batches(store: Path, split: str, config: BatchConfig, size: int, most: int) -> list[SceneBatch]:
    """Up to so many whole batches, spread evenly over a split; scenes recur where it is small."""
    scenes = SceneStore(store, split)
    count = min(max(len(scenes) // size, 1), most)
    starts = [number * len(scenes) // count for number in range(count)]
    return [collate([scenes[(start + i) % len(scenes)] for i in range(size)], config) for start in starts]


def forward(recipe: TrainConfig, store: Path, split: str, repeats: int) -> dict[str, float]:
    """Latency at batch 1 and 32, memory at 32, parameters."""
    config = replace(recipe.data.batch, targets="scored")
    many, ones = batches(store, split, config, BATCH, MOST_BATCHES), batches(store, split, config, 1, repeats + 2)
    model, device = recipe.build_model().eval(), CPU

    def call(source: list[SceneBatch]) -> Any:
        turn = itertools.cycle(source)
        return torch.inference_mode()(lambda: model(next(turn)))

    base = peak_mb(device)
    row = {"base_mb": base, f"latency_{BATCH}_ms": median_ms(call(many), max(repeats // 3, 1), device)}
    row["forward_mb"] = peak_mb(device)
    row["latency_1_ms"] = median_ms(call(ones), repeats, device)
    return row | {"parameters": sum(parameter.numel() for parameter in model.parameters())}


def step(recipe: TrainConfig, store: Path, split: str, repeats: int) -> dict[str, float]:
    """Memory and time of a training step at batch 32; nothing for a model that does not learn."""
    keep_freed_memory()  # as `trajformer train` does
    model, generator = recipe.build_model().train(), torch.Generator().manual_seed(0)
    if not any(True for _ in model.parameters()):
        return {}
    objective = Objective(recipe.objective())
    turn = itertools.cycle(batches(store, split, recipe.data.train_batch, BATCH, MOST_BATCHES))
    learned = [*model.parameters(), *objective.parameters()]
    groups = [*parameter_groups(model, recipe.optim.weight_decay), {"params": list(objective.parameters())}]
    optimizer, _ = build_optimizer([group for group in groups if group["params"]], recipe.optim, 1000)

    def learn() -> None:
        optimizer.zero_grad()
        objective(model, augment(next(turn), recipe.augment, generator))["loss"].backward()
        if recipe.optim.clip:
            nn.utils.clip_grad_norm_(learned, recipe.optim.clip)
        optimizer.step()

    base, time_ms = peak_mb(CPU), median_ms(learn, max(repeats // 3, 1), CPU)
    return {"step_base_mb": base, f"step_{BATCH}_ms": time_ms, "step_mb": peak_mb(CPU)}


def measure(recipe: TrainConfig, store: Path, repeats: int) -> dict[str, float]:
    """Both, each in a process of its own; the forecasts are of the recipe's val split, the steps of its train split.

    Raises:
        TrajformerError: one of them fails; the last line of what it said.
    """
    row: dict[str, float] = {}
    for part, split in (("forward", recipe.data.val_split), ("step", recipe.data.train_split)):
        command = [sys.executable, __file__, part, "--store", str(store), "--split", split, "--repeats", str(repeats)]
        done = subprocess.run(command, input=json.dumps(to_plain(recipe)), capture_output=True, text=True)
        if done.returncode:
            raise TrajformerError(f"{part}: {(done.stderr.strip() or f'exit {done.returncode}').splitlines()[-1]}")
        row |= json.loads(done.stdout.splitlines()[-1])
    return row


def main() -> None:
    """Measure one part and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("forward", "step"))
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--split", required=True)
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    recipe = from_plain(TrainConfig, json.load(sys.stdin))
    part = {"forward": forward, "step": step}[args.part]
    print(json.dumps(part(recipe, args.store, args.split, args.repeats)))


if __name__ == "__main__":
    main()
