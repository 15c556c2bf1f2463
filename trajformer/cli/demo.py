"""`trajformer demo`: the whole straight line on simulated scenes, in a few minutes on two CPU cores."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from trajformer.cli import run_data as data
from trajformer.cli import run_models as models
from trajformer.cli.pictures import plot
from trajformer.core.blocks import BlockConfig
from trajformer.data.sample import BatchConfig
from trajformer.errors import TrajformerError
from trajformer.models.mmtransformer.model import MMTransformerConfig
from trajformer.recipes.recipe import DataConfig, OptimConfig, TrainConfig, TrainerConfig
from trajformer.scenes.files import write_atomically

VAL = "val"


def demo_recipe(store: Path, epochs: int, seed: int) -> TrainConfig:
    """A small mmTransformer for 50 observed and 60 future steps, sized to learn in three minutes."""
    block = BlockConfig(width=64, heads=4, feedforward=128, dropout=0.0)
    model = MMTransformerConfig(
        num_future=60, steps_per_token=7, block=block, max_polylines=40, max_neighbors=8, social_layers=(1, 2)
    )
    batch = BatchConfig(max_agents=24, polyline_points=6, map_radius_m=65.0, agent_radius_m=56.0)
    return TrainConfig(
        model=model,
        data=DataConfig(train=str(store), val=str(store), val_split=VAL, batch_size=16, cache=True, batch=batch),
        optim=OptimConfig(learning_rate=5e-4),
        trainer=TrainerConfig(epochs=epochs, validate_every=4, log_every=5),
        seed=seed,
    )


def _remember(out: Path, arguments: dict[str, int]) -> None:
    """Write down what the demo was asked for: half of it with other arguments would be no demo.

    Raises:
        TrajformerError: the folder holds a demo with other arguments.
    """
    path, text = out / "arguments.json", json.dumps(arguments) + "\n"
    if path.is_file() and path.read_text() != text:
        raise TrajformerError(f"{path}: this demo was begun with {path.read_text().strip()}; give another --out")
    write_atomically(path, text)


def _headline(text: str) -> None:
    print(f"\n== {text}", flush=True)


def demo(out: Path, *, scenes: int, epochs: int, seed: int) -> None:
    """Simulate, prepare, train, evaluate, predict and plot under `out`; a second call goes on where the first stopped.

    Raises:
        TrajformerError: a step failed; what it left behind is used by the next call.
    """
    from data_prep.readers.argoverse2.reader import Argoverse2
    from trajformer.training.forecasting import TASK
    from trajformer.training.run import train

    began = time.monotonic()
    raw, store, run = out / "raw", out / "store", out / "run"
    _remember(out, {"scenes": scenes, "epochs": epochs, "seed": seed})
    _headline(f"simulating {scenes} traffic scenes in the Argoverse 2 raw layout: {raw}")
    data.synthesize(raw, scenes, seed, workers=2)
    _headline(f"preparing them: {store}")
    data.preprocess(Argoverse2(), raw, store, workers=2)
    _headline(f"training an mmTransformer: {run}")
    checkpoint = train(demo_recipe(store, epochs, seed), TASK, run, resume=True)
    _headline("scoring held-out scenes, constant velocity first")
    options: dict[str, Any] = {"json_file": None, "csv_file": None, "accelerator": "auto", "batch_size": 32}
    floor = models.evaluate(None, store, VAL, **options)
    learned = models.evaluate(checkpoint, store, VAL, **options)
    _headline("predicting and drawing")
    forecasts = out / "forecasts.parquet"
    choice: dict[str, Any] = {"targets": "scored", "accelerator": "auto", "batch_size": 32}
    models.predict(checkpoint, store, VAL, forecasts, **choice)
    pictures = plot(store, VAL, forecasts, out / "pictures", scene=[], worst=2, random=4, seed=seed)
    _headline(f"done in {time.monotonic() - began:.0f} s; held-out scenes, metres")
    models.print_table([("constant velocity", floor), ("mmTransformer", learned)])
    print(f"checkpoint  {checkpoint}\nforecasts   {forecasts}")
    print("\n".join(f"picture     {picture}" for picture in pictures))
