"""`trajformer demo`: from simulated raw data to pictures of forecasts, in about two minutes on two CPU cores."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from trajformer.cli import data, models
from trajformer.cli.parsing import Parser, new_parser
from trajformer.cli.pictures import plot
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically

if TYPE_CHECKING:
    from trajformer.recipes.recipe import TrainConfig

VAL = "val"


def demo_parser() -> Parser:
    """[--out DIR]."""
    parser = new_parser("Simulate scenes, prepare a store, train a small model, evaluate, predict and plot, in a few minutes.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for all files")
    parser.add_argument("--scenes", type=PositiveInt, default=360, help="number of simulated scenes")
    parser.add_argument("--epochs", type=PositiveInt, default=36, help="passes over the training scenes")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="seed of the simulation and of the training")
    return parser


def demo_recipe(store: Path, epochs: int, seed: int) -> TrainConfig:
    """A small mmTransformer for 50 observed and 60 future steps."""
    from trajformer.core.blocks import BlockConfig
    from trajformer.data.sample import BatchConfig
    from trajformer.models.mmtransformer.model import MMTransformerConfig
    from trajformer.recipes.recipe import DataConfig, OptimConfig, TrainConfig, TrainerConfig

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


def _check_arguments(out: Path, arguments: dict[str, int]) -> None:
    """Write the arguments of the demo to a file, or compare them with the file: a folder holds one demo.

    Raises:
        TrajformerError: the folder holds a demo with other arguments.
    """
    path, text = out / "arguments.json", json.dumps(arguments) + "\n"
    if path.is_file() and path.read_text() != text:
        raise TrajformerError(f"{path}: the demo in this folder has {path.read_text().strip()}; give another --out")
    write_atomically(path, text)


def run_demo(args: Namespace) -> None:
    """`trajformer demo`: a second run reuses finished steps and resumes the interrupted one.

    Raises:
        TrajformerError: a step failed.
    """
    from data_prep.readers.argoverse2.reader import Argoverse2
    from trajformer.training.forecasting import TASK
    from trajformer.training.run import train

    start_time, out = time.monotonic(), args.out
    raw, store, run, forecasts = out / "raw", out / "store", out / "run", out / "forecasts.parquet"
    steps = iter(range(1, 6))

    def headline(text: str) -> None:
        print(f"\n== {next(steps)} of 5, {time.monotonic() - start_time:.0f} s: {text}", flush=True)

    _check_arguments(out, {"scenes": args.scenes, "epochs": args.epochs, "seed": args.seed})
    headline(f"simulate {args.scenes} traffic scenes in the raw layout of Argoverse 2: {raw}")
    data.synthesize(raw, args.scenes, args.seed, workers=2)
    headline(f"prepare a store: {store}")
    data.preprocess(Argoverse2(), raw, store, workers=2)
    headline(f"train an mmTransformer, most of the time: {run}")
    checkpoint = train(demo_recipe(store, args.epochs, args.seed), TASK, run, resume=True)
    headline("score held-out scenes, constant velocity first")
    rows = {
        "constant velocity": models.evaluate("constant_velocity", store, VAL),
        "mmTransformer": models.evaluate(checkpoint, store, VAL),
    }
    headline("predict and plot")
    models.predict(checkpoint, store, VAL, forecasts)
    pictures = plot(store, VAL, forecasts, out / "pictures", scene=[], worst=2, random=4, seed=args.seed)
    print(f"\n== finished in {time.monotonic() - start_time:.0f} s; held-out scenes, metres")
    models.print_table(rows)
    print(f"checkpoint  {checkpoint}\nforecasts   {forecasts}")
    print("\n".join(f"picture     {picture}" for picture in pictures))
