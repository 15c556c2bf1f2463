"""`trajformer recipes`, `train`, `evaluate` and `predict`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt

from trajformer.cli.files import bars, make_room
from trajformer.cli.parsing import Accelerator, Parser, add_accelerator, new_parser
from trajformer.errors import TrajformerError
from trajformer.recipes.names import recipe_file, recipe_header, recipe_names
from trajformer.scenes.files import write_atomically

R = TypeVar("R")
UNTRAINED = ("constant_velocity", "constant_velocity_sampled")  # repeated from recipes.checkpoint, which imports torch


def recipes_parser() -> Parser:
    """[NAME ...]."""
    parser = new_parser(
        "List the recipes: data set, number of parameters, expected result and training time. A name is a value for the "
        "option --config of `trajformer train`. With NAMES, print these recipes."
    )
    parser.add_argument("names", nargs="*", help="print the YAML text of these recipes")
    return parser


def run_recipes(args: Namespace) -> None:
    """`trajformer recipes`."""
    for name in args.names:
        print(recipe_file(name).read_text(encoding="utf-8"), end="")
    for name in recipe_names() if not args.names else []:
        header = recipe_header(recipe_file(name))
        print(f"{name}\n  data      {header.data}\n  size      {header.parameters} parameters")
        print(f"  expected  {header.expected}\n  time      {header.time}")


def with_recipe_files(words: Sequence[str]) -> list[str]:
    """The words of a command line with the names of recipes after `--config` replaced by their files.

    Raises:
        TrajformerError: a value is neither a file nor the name of a recipe.
    """
    split = [part for word in words for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    return [str(recipe_file(word)) if before == "--config" else word for before, word in pairwise(["", *split])]


def task_in(words: Sequence[str]) -> str:
    """The task of a command line: of its `--task`, else of its recipe; empty if neither names one."""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    task = ""
    for option, value in pairwise(words):
        if option == "--task":
            return value
        if option == "--config" and not task:
            try:
                recipe = yaml.safe_load(Path(value).read_text(encoding="utf-8"))
            except (OSError, ValueError, yaml.YAMLError):
                continue  # the parser will report the error
            task = str(recipe.get("task", "")) if isinstance(recipe, dict) else ""
    return task


def train_parser(task: str = "") -> Parser:
    """--config RECIPE --out RUN and all fields of the recipe of a task."""
    from trajformer.cli.tasks import TASKS
    from trajformer.recipes.plain import schema
    from trajformer.recipes.recipe import TrainConfig

    recipe = TASKS[task].recipe if task in TASKS else TrainConfig
    parser = new_parser(
        "Train a recipe. All fields of the recipe are options, too: --data.train STORE --optim.learning_rate 5e-4. "
        "--model.mmtransformer.help lists the fields of a model, --task TASK --help the fields of another task. "
        "OUT receives best.ckpt, last.ckpt, config.yaml, csv/metrics.csv and, if TensorBoard is installed, tensorboard/."
    )
    parser.add_argument("--task", choices=tuple(TASKS), default=recipe.task, help="task (default: the task of the recipe)")
    parser.add_argument("--config", action="config", help="name (`trajformer recipes`) or YAML file; later options override it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--resume", action="store_true", help="resume from OUT/last.ckpt")
    parser.add_class_arguments(schema(recipe))
    return parser


def run_train(args: Namespace) -> None:
    """`trajformer train`; only the first of several processes prints."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    from trajformer.cli.tasks import TASKS
    from trajformer.training.run import train

    task = TASKS[args.task]
    best = train(recipe_from(args, task.recipe), task, args.out, resume=args.resume)
    rank_zero_only(print)(best)


def recipe_from(args: Namespace, kind: type[R]) -> R:
    """The recipe of a command line.

    Raises:
        TrajformerError: a field has a value outside its range, or several models or losses are given.
    """
    from trajformer.recipes.plain import from_plain

    plain = args.as_dict()
    recipe: R = from_plain(kind, {item.name: plain[item.name] for item in fields(kind)})  # type: ignore[arg-type]
    return recipe


def _add_model_options(parser: Parser) -> None:
    names = "constant velocity, or 20 directions around it drawn for each agent"
    parser.add_argument("--model", choices=UNTRAINED, help=f"a model without training: {names}")
    parser.add_argument("--split", default="val", help="split of the store")
    parser.add_argument("--batch-size", type=PositiveInt, default=32, help="scenes per batch")
    add_accelerator(parser)


def _source(checkpoint: Path | None, model: str | None) -> Path | str:
    source = checkpoint or model
    if source is None or (checkpoint and model):
        raise TrajformerError("give either --checkpoint CKPT or --model constant_velocity")
    return source


def evaluate_parser() -> Parser:
    """(--checkpoint CKPT | --model NAME) --store STORE, or --protocol eth_ucy --data RAW [--checkpoint PATH ...]."""
    parser = new_parser(
        "Score a model: minADE, minFDE, MR and brier-minFDE of the best of 1, 6 and (if the model has 20 modes) 20 modes, "
        "means over agents. --protocol eth_ucy --data RAW prints the published table of ETH/UCY with rows for constant "
        "velocity, its sampled variant and the given models."
    )
    several = "best.ckpt or last.ckpt of a run; for a protocol, folders with eth.ckpt or eth/best.ckpt and so on"
    parser.add_argument("--checkpoint", type=Path, nargs="+", action="extend", help=several)
    parser.add_argument("--store", type=Path, help="folder made by `trajformer preprocess`")
    _add_model_options(parser)
    parser.add_argument("--protocol", choices=("eth_ucy",), help="score with the rules of a published benchmark")
    parser.add_argument("--data", type=Path, help="for a protocol: folder of the recordings as published")
    parser.add_argument("--export", type=Path, help="for a protocol: also write all samples as text files to this folder")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--csv", type=Path, help="also write a table with one row per agent (not for a protocol)")
    return parser


def run_evaluate(args: Namespace) -> None:
    """`trajformer evaluate`."""
    checkpoints = args.checkpoint or []
    options = {"json_file": args.json, "accelerator": args.accelerator, "batch_size": args.batch_size}
    for name in ("store", "model", "csv") if args.protocol else ("data", "export"):
        if args[name] is not None:
            raise TrajformerError(f"--{name} is {'not ' if args.protocol else 'only '}allowed with --protocol")
    if args.protocol:
        from trajformer.cli import protocols

        if args.data is None:
            raise TrajformerError("--protocol eth_ucy: give the folder of the recordings with --data")
        protocols.evaluate(args.data, checkpoints, export=args.export, **options)
        return
    if args.store is None:
        raise TrajformerError("give a store with --store, or a --protocol")
    if len(checkpoints) > 1:
        raise TrajformerError("several checkpoints are only allowed with --protocol")
    source = _source(checkpoints[0] if checkpoints else None, args.model)
    evaluate(source, args.store, args.split, csv_file=args.csv, **options)


def evaluate(
    source: Path | str,
    store: Path,
    split: str,
    *,
    json_file: Path | None = None,
    csv_file: Path | None = None,
    accelerator: Accelerator = "auto",
    batch_size: int = 32,
) -> dict[str, float]:
    """Score a checkpoint or a model without training (see `load_predictor`) on a split, and print the figures."""
    from trajformer.evaluation.evaluate import evaluate as score
    from trajformer.recipes.checkpoint import load_predictor, pick_device
    from trajformer.scenes.store import SceneStore

    scenes = SceneStore(store, split)
    predictor = load_predictor(source, pick_device(accelerator))
    make_room(json_file, csv_file)
    evaluation = score(predictor, scenes, batch_size=batch_size, progress=bars())
    print_table({str(source): evaluation.figures})
    if json_file is not None:
        write_atomically(json_file, json.dumps(evaluation.figures, indent=1) + "\n")
    if csv_file is not None:
        write_atomically(csv_file, evaluation.per_agent.round(6).to_csv(index=False))
    return evaluation.figures


def print_table(rows: dict[str, dict[str, float]]) -> None:
    """Print one line per model and block of metrics; metres and shares."""
    width = max(map(len, rows))
    for names in _blocks(next(iter(rows.values()))):
        print(" " * width + "  agents " + " ".join(f"{name:>14}" for name in names))
        for label, row in rows.items():
            print(f"{label:<{width}}  {row['num_agents']:6d} " + " ".join(f"{row[name]:14.3f}" for name in names))


def _blocks(row: dict[str, float]) -> list[list[str]]:
    """Names of metrics: of the best of 1 and 6, of 20 if the model has 20 modes, of worlds if it is joint."""
    names = [name for name in row if name[-1].isdigit()]
    worlds = [name for name in names if name.startswith(("avg", "actor"))]
    of_20 = [name for name in names if name.endswith("20")]
    blocks = [[name for name in names if name not in worlds + of_20], of_20, worlds]
    return [block for block in blocks if block]


def predict_parser() -> Parser:
    """--checkpoint CKPT --store STORE --out FORECASTS.parquet."""
    parser = new_parser(
        "Forecast a split and write a parquet file with the columns of the Argoverse 2 challenge: one row per mode, metres, "
        "frame of the city."
    )
    parser.add_argument("--checkpoint", type=Path, help="best.ckpt or last.ckpt of a run")
    parser.add_argument("--store", type=Path, required=True, help="folder made by `trajformer preprocess`")
    _add_model_options(parser)
    parser.add_argument("--out", type=Path, required=True, help="parquet file")
    agents = ("scored", "focal", "all")
    parser.add_argument("--agents", choices=agents, default="scored", help="all: every agent seen at the last observed step")
    return parser


def run_predict(args: Namespace) -> None:
    """`trajformer predict`."""
    options: dict[str, Any] = {"accelerator": args.accelerator, "batch_size": args.batch_size}
    predict(_source(args.checkpoint, args.model), args.store, args.split, args.out, targets=args.agents, **options)


def predict(
    source: Path | str,
    store: Path,
    split: str,
    out: Path,
    *,
    targets: Literal["scored", "focal", "all"] = "scored",
    accelerator: Accelerator = "auto",
    batch_size: int = 32,
) -> None:
    """Write the modes of all targets to a parquet file with the columns of the Argoverse 2 challenge."""
    from trajformer.evaluation.evaluate import track_forecasts
    from trajformer.evaluation.forecast_file import write_forecasts
    from trajformer.recipes.checkpoint import load_predictor, pick_device
    from trajformer.scenes.store import SceneStore

    scenes = SceneStore(store, split)
    predictor = load_predictor(source, pick_device(accelerator), targets)
    make_room(out)
    count = write_forecasts(out, track_forecasts(predictor, scenes, batch_size=batch_size, progress=bars()))
    if not count:
        raise TrajformerError(f"{store}: split '{split}' has no agent to forecast ({targets})")
    print(f"{out}: forecasts of {count} agents in {len(scenes)} scenes")
