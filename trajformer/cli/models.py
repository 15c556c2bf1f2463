"""Options of the commands that train, use and look at models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import yaml
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from trajformer.cli.parsing import Parser, new_parser
from trajformer.errors import TrajformerError

R = TypeVar("R")
ACCELERATORS = ("auto", "cpu", "gpu")
UNTRAINED = (
    "constant_velocity",
    "constant_velocity_sampled",
)


def task_in(words: Sequence[str]) -> str:
    """The task that a command line, or else a recipe on it, names; forecasting where none does."""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    found = ""
    for option, value in pairwise(words):
        if option == "--task":
            return value
        if option == "--config" and not found:
            try:
                recipe = yaml.safe_load(Path(value).read_text(encoding="utf-8"))
            except (OSError, ValueError, yaml.YAMLError):
                continue  # the parser will say what is wrong with it
            found = str(recipe.get("task", "")) if isinstance(recipe, dict) else ""
    return found


def train_parser(task: str = "") -> Parser:
    """--config CONFIG --out RUN and every field of the recipe of a task."""
    from trajformer.cli.tasks import TASKS
    from trajformer.recipes.plain import schema
    from trajformer.recipes.recipe import TrainConfig

    recipe = TASKS[task].recipe if task in TASKS else TrainConfig
    parser = new_parser(
        "Train a recipe of configs/. Every field can be set here, too: --data.train STORE --optim.learning_rate 5e-4; "
        "--model.mmtransformer.help lists the fields of a model; --task TASK --help those of another task's recipe. "
        "OUT gets best.ckpt, last.ckpt, config.yaml, tensorboard/ and csv/metrics.csv."
    )
    parser.add_argument("--task", choices=tuple(TASKS), default=recipe.task, help="what is learned; a recipe says so itself")
    parser.add_argument("--config", action="config", help="YAML recipe; later options override it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--resume", action="store_true", help="go on from OUT/last.ckpt")
    parser.add_class_arguments(schema(recipe))
    return parser


def _add_source(parser: Parser) -> None:
    names = "constant velocity, or 20 directions around it drawn for each agent"
    parser.add_argument("--model", choices=UNTRAINED, help=f"a model that needs no training: {names}")
    parser.add_argument("--split", default="val", help="which of the store's splits")
    parser.add_argument("--batch-size", type=PositiveInt, default=32, help="scenes at a time")
    parser.add_argument("--accelerator", choices=ACCELERATORS, default="auto", help="auto = a GPU where there is one")


def evaluate_parser() -> Parser:
    """(--checkpoint CKPT | --model NAME) --store STORE, or --protocol eth_ucy --data RAW [--checkpoint PATH ...]."""
    parser = new_parser(
        "Score a model: minADE, minFDE, MR and brier-minFDE of the best of 1, 6 and (if it has as many) 20 modes, mean over "
        "agents. --protocol eth_ucy --data RAW prints the published table of the ETH/UCY recordings with constant velocity, "
        "its sampled variant and the given models in it."
    )
    several = "best.ckpt or last.ckpt of a run; for a protocol any number of folders with eth.ckpt or eth/best.ckpt and so on"
    parser.add_argument("--checkpoint", type=Path, nargs="+", action="extend", help=several)
    parser.add_argument("--store", type=Path, help="folder made by `trajformer preprocess`")
    _add_source(parser)
    parser.add_argument("--protocol", choices=("eth_ucy",), help="score by all rules of a published benchmark")
    parser.add_argument("--data", type=Path, help="for a protocol: folder of the recordings as published")
    parser.add_argument("--export", type=Path, help="for a protocol: also write all samples as text files below this folder")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--csv", type=Path, help="also write a row an agent here (not for a protocol)")
    return parser


def predict_parser() -> Parser:
    """--checkpoint CKPT --store STORE --out FORECASTS.parquet."""
    parser = new_parser("Forecast a split and write the Argoverse 2 challenge columns, one row a mode, city frame, metres.")
    parser.add_argument("--checkpoint", type=Path, help="best.ckpt or last.ckpt of a run")
    parser.add_argument("--store", type=Path, required=True, help="folder made by `trajformer preprocess`")
    _add_source(parser)
    parser.add_argument("--out", type=Path, required=True, help="parquet file")
    agents = ("scored", "focal", "all")
    parser.add_argument("--agents", choices=agents, default="scored", help="all = everyone seen at the last observed step")
    return parser


def plot_parser() -> Parser:
    """STORE [--forecasts FORECASTS.parquet] --out DIR."""
    parser = new_parser("Draw scenes: map, histories, what happened, and the predicted modes. 8 random scenes by default.")
    parser.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    parser.add_argument("--split", help="default: the split that has the named scenes or the forecast ones, else val")
    parser.add_argument("--forecasts", type=Path, help="file of `trajformer predict`")
    parser.add_argument("--density", action="store_true", help="draw where people are expected to be instead of each mode")
    parser.add_argument("--scene", nargs="+", default=[], help="scenes with these ids")
    parser.add_argument("--worst", type=PositiveInt, help="so many scenes with the largest minFDE")
    parser.add_argument("--random", type=PositiveInt, help="so many scenes at random")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the random choice")
    parser.add_argument("--out", type=Path, required=True, help="folder for the PNG files")
    return parser


def demo_parser() -> Parser:
    """[--out DIR]."""
    parser = new_parser("The whole line on simulated scenes in a few minutes: prepare, train, evaluate, predict, plot.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for everything it makes")
    parser.add_argument("--scenes", type=PositiveInt, default=360, help="how many to simulate")
    parser.add_argument("--epochs", type=PositiveInt, default=36, help="passes over the training scenes")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the simulation and of the training")
    return parser


def _source(checkpoint: Path | None, model: str | None) -> Path | str:
    source = checkpoint or model
    if source is None or (checkpoint and model):
        raise TrajformerError("give either --checkpoint CKPT or --model constant_velocity")
    return source


def run_train(args: Namespace) -> None:
    """`trajformer train`; of several processes the first one speaks."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    from trajformer.cli.tasks import TASKS
    from trajformer.training.run import train

    task = TASKS[args.task]
    best = train(recipe_from(args, task.recipe), task, args.out, resume=args.resume)
    rank_zero_only(print)(best)


def recipe_from(args: Namespace, kind: type[R]) -> R:
    """The recipe that `train_parser` has read.

    Raises:
        TrajformerError: a field has a value outside its range, or several models or losses are given.
    """
    from trajformer.recipes.plain import from_plain

    plain = args.as_dict()
    recipe: R = from_plain(kind, {item.name: plain[item.name] for item in fields(kind)})  # type: ignore[arg-type]
    return recipe


def run_evaluate(args: Namespace) -> None:
    """`trajformer evaluate`."""
    checkpoints = args.checkpoint or []
    options = {"json_file": args.json, "accelerator": args.accelerator, "batch_size": args.batch_size}
    for name in ("store", "model", "csv") if args.protocol else ("data", "export"):
        if args[name] is not None:
            raise TrajformerError(f"--{name} is {'not ' if args.protocol else ''}for an evaluation by --protocol")
    if args.protocol:
        from trajformer.cli import protocols as eth_ucy

        if args.data is None:
            raise TrajformerError("--protocol eth_ucy: give the folder of the recordings with --data")
        eth_ucy.evaluate(args.data, checkpoints, export=args.export, **options)
        return
    from trajformer.cli import run_models as models

    if args.store is None:
        raise TrajformerError("give a store with --store, or a --protocol")
    if len(checkpoints) > 1:
        raise TrajformerError("several checkpoints are for an evaluation by --protocol")
    source = _source(checkpoints[0] if checkpoints else None, args.model)
    models.evaluate(source, args.store, args.split, csv_file=args.csv, **options)


def run_predict(args: Namespace) -> None:
    """`trajformer predict`."""
    from trajformer.cli import run_models as models

    options = {"accelerator": args.accelerator, "batch_size": args.batch_size}
    source = _source(args.checkpoint, args.model)
    models.predict(source, args.store, args.split, args.out, targets=args.agents, **options)


def run_plot(args: Namespace) -> None:
    """`trajformer plot`."""
    from trajformer.cli import pictures

    choice: pictures.Choice = {"scene": args.scene, "worst": args.worst, "random": args.random, "seed": args.seed}
    pictures.plot(args.store, args.split, args.forecasts, args.out, density=args.density, **choice)


def run_demo(args: Namespace) -> None:
    """`trajformer demo`."""
    from trajformer.cli.demo import demo

    demo(args.out, scenes=args.scenes, epochs=args.epochs, seed=args.seed)
