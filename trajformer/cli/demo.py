"""`trajformer demo`: from simulated raw data to pictures of forecasts, in about two minutes on two CPU cores."""

import json
import time
from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from trajformer.cli import run_command
from trajformer.cli.files import keep_arguments
from trajformer.cli.models import print_table
from trajformer.cli.parsing import Parser, new_parser
from trajformer.scenes.files import lock_folder


def demo_parser() -> Parser:
    """[--out DIR]."""
    parser = new_parser(
        "Simulate scenes, prepare a store, train SE2Former from included weights, evaluate, predict and plot."
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for all files")
    parser.add_argument(
        "--scenes", type=PositiveInt, default=360, help="number of simulated scenes"
    )
    parser.add_argument(
        "--epochs", type=PositiveInt, default=12, help="passes over the training scenes"
    )
    parser.add_argument(
        "--seed", type=NonNegativeInt, default=0, help="seed of the simulation and of the training"
    )
    return parser


def run_demo(args: Namespace) -> None:
    """`trajformer demo`: a sequence of commands. A second run with these arguments reuses and resumes its steps."""
    with lock_folder(args.out):
        _run(args)


def _run(args: Namespace) -> None:
    start_time, out = time.monotonic(), args.out
    raw, store, run, forecasts = out / "raw", out / "store", out / "run", out / "forecasts.parquet"
    checkpoint = run / "last.ckpt"  # the best one would be chosen by the scenes that are scored

    def step(headline: str, command: str, *words: object) -> None:
        if headline:
            print(f"\n== {headline.format(f'{time.monotonic() - start_time:.0f} s')}", flush=True)
        run_command(command, [str(word) for word in words])

    keep_arguments(out, args, "scenes", "epochs", "seed")
    headline = f"1 of 5, {{}}: simulate {args.scenes} traffic scenes in the raw layout of Argoverse 2: {raw}"
    step(headline, "synthesize", raw, "--scenes", args.scenes, "--seed", args.seed)
    step(f"2 of 5, {{}}: prepare a store: {store}", "preprocess", "argoverse2", raw, store)
    stores = ("--data.train", store, "--data.val", store)
    length = ("--trainer.epochs", args.epochs, "--seed", args.seed)
    resume = ["--resume"] if checkpoint.exists() else []
    headline = f"3 of 5, {{}}: train SE2Former further on them: {run}"
    step(headline, "train", "--config", "demo", "--out", run, *resume, *stores, *length)
    rows: dict[str, dict[str, float]] = {}
    for name, source in {
        "constant velocity": ("--model", "constant_velocity"),
        "SE2Former": ("--checkpoint", checkpoint),
    }.items():
        file = out / f"{name.replace(' ', '_')}.json"
        headline = "4 of 5, {}: score held-out scenes, constant velocity first" if not rows else ""
        step(headline, "evaluate", *source, "--store", store, "--json", file, "--overwrite")
        rows[name] = json.loads(file.read_text())
    step(
        "5 of 5, {}: predict and plot",
        "predict",
        "--checkpoint",
        checkpoint,
        "--store",
        store,
        "--out",
        forecasts,
        "--overwrite",
    )
    choice = ("--worst", 2, "--random", 4, "--seed", args.seed)
    step(
        "",
        "plot",
        store,
        "--forecasts",
        forecasts,
        "--out",
        out / "pictures",
        "--overwrite",
        *choice,
    )
    print(f"\n== finished in {time.monotonic() - start_time:.0f} s; held-out scenes, metres")
    print_table(rows)
    print(f"checkpoint  {checkpoint}\nforecasts   {forecasts}\npictures    {out / 'pictures'}")
