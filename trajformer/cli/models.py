"""`trajformer recipes`, `pretrained`, `train`, `average`, `evaluate`, `predict`, `plot` and `weights`.

To add a layout of published weights, write a function `(StateDictReader, Options) -> Converted` and list it in `layouts`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

from trajformer.cli import protocols
from trajformer.cli.files import bars, check_outputs, refuse_inputs
from trajformer.cli.parsing import Parser, add_accelerator, add_overwrite, new_parser
from trajformer.errors import CheckpointError, ConfigError, TrajformerError
from trajformer.recipes.names import (
    PRETRAINED,
    checkpoint_file,
    pretrained_card,
    pretrained_names,
    recipe_file,
    recipe_header,
    recipe_names,
)
from trajformer.scenes.files import read_file, write_atomically
from trajformer.scenes.manifest import MANIFEST
from trajformer.scenes.scene import METRES
from trajformer.scenes.spec import DataSpec, check_scenes, same_split, warn

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor

    from trajformer.core.weights import Converted, Options, StateDictReader
    from trajformer.models.forecaster import Predictor
    from trajformer.scenes.store import SceneStore

UNTRAINED = (
    "constant_velocity",
    "constant_velocity_sampled",
)  # repeated from recipes.checkpoint, which imports torch
MAX_LABELS = 10_000_000  # bytes
DEFAULT_COUNT = 8  # pictures
SPLIT = "val"  # that is scored by default
STANDING_M, NEAR_M = 0.5, 0.5
BRIEF_S = 1.0  # a motion of half a metre needs time
RELATED = 0.3  # resemblance of the weights of runs with a common start
OWN = "trajformer"  # the layout of this project's checkpoints


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
        print(
            f"{name}\n  data      {header['Data']}\n  size      {header['Parameters']} parameters"
        )
        print(f"  expected  {header['Expected']}\n  time      {header['Time']}")


def pretrained_parser() -> Parser:
    """No arguments."""
    return new_parser(
        "List the weights that are part of trajformer: data set, licence note, figures and the command that made them. "
        "pretrained:NAME is accepted wherever a checkpoint is."
    )


def run_pretrained(args: Namespace) -> None:
    """`trajformer pretrained`."""
    described: dict[str, str] = {}
    for name in pretrained_names():
        size = checkpoint_file(f"{PRETRAINED}{name}").stat().st_size / 1e6
        card = "".join(f"\n  {field:<9} {text}" for field, text in pretrained_card(name).items())
        described[card] = described.get(card, "") + f"\n{PRETRAINED}{name} ({size:.1f} MB)"
    print("\n".join(names.removeprefix("\n") + card for card, names in described.items()))


def read_words(words: Sequence[str]) -> tuple[list[str], str]:
    """Resolve the recipes of a command line of `trajformer train`.

    Returns the words with the names of recipes after `--config` replaced by their files, or by the text of their present form if
    they are of version 0.1. These words are the first, so that all other options override the recipes. Without a recipe,
    `--resume` uses that of the run. Also returns the task of `--task`, else of the first recipe that names one, else an empty
    string. Raises TrajformerError: a value of `--config` is neither a file nor the name of a recipe, or not usable as YAML; or
    epochs are given, but the recipe has a length in minutes; or there is no run to resume and no recipe.
    """
    from trajformer.recipes.choices import upgrade_recipe
    from trajformer.recipes.yaml_text import read_yaml

    if "--resume" in words and not any(word.split("=")[0] == "--config" for word in words):
        out = _last(words, "--out")
        used = Path(out or "", "config.yaml")  # the recipe of the run
        words = [*(["--config", str(used)] if used.is_file() else []), *words]
        if (
            out
            and not used.is_file()
            and not any(word.startswith(("--model", "--task")) for word in words)
        ):
            raise TrajformerError(
                f"{out}: no run to resume there; correct --out, or start a run with --config"
            )
    start = ("--config=", "--task=")
    words = [
        part
        for word in words
        for part in (word.split("=", 1) if word.startswith(start) else [word])
    ]
    resolved, tasks, minutes = (
        list(words),
        [value for option, value in pairwise(words) if option == "--task"],
        None,
    )
    for index, (option, value) in enumerate(pairwise(words), 1):
        if option != "--config":
            continue
        file = recipe_file(value)
        resolved[index] = str(file)
        recipe = read_yaml(file)
        if isinstance(recipe, dict):
            minutes = (
                trainer.get("minutes", minutes)
                if isinstance(trainer := recipe.get("trainer"), dict)
                else minutes
            )
            tasks += [str(recipe["task"])] if "task" in recipe else []
            if (
                recipe.get("task", "forecasting") == "forecasting"
                and (upgraded := upgrade_recipe(recipe)) != recipe
            ):
                resolved[index] = yaml.safe_dump(upgraded)
    minutes = _last(words, "--trainer.minutes") or minutes
    if _last(words, "--trainer.epochs") and minutes not in (None, "null"):
        raise TrajformerError(
            f"--trainer.epochs: the length is trainer.minutes {minutes}; add --trainer.minutes null for epochs"
        )
    first = [index for index, (option, _) in enumerate(pairwise(words)) if option == "--config"]
    first += [index + 1 for index in first]
    order = sorted(range(len(words)), key=lambda index: index not in first)  # stable
    return [resolved[index] for index in order], tasks[0] if tasks else ""


def _last(words: Sequence[str], option: str) -> str | None:
    """The last value of an option on a command line."""
    parts = [
        part
        for word in words
        for part in (word.split("=", 1) if word.startswith(f"{option}=") else [word])
    ]
    values = [value for name, value in pairwise(parts) if name == option]
    return values[-1] if values else None


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
    parser.add_argument(
        "--task",
        choices=tuple(TASKS),
        default=recipe.task,
        help="task (default: the task of the recipe)",
    )
    parser.add_argument(
        "--config",
        action="config",
        help="name (`trajformer recipes`) or YAML file; options override it",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--resume", action="store_true", help="resume from OUT/last.ckpt")
    parser.add_class_arguments(schema(recipe))
    return parser


def run_train(args: Namespace) -> None:
    """`trajformer train`; only the first of several processes prints."""
    from lightning.pytorch.utilities.rank_zero import rank_zero_only

    from trajformer.cli.tasks import TASKS
    from trajformer.recipes.plain import from_plain
    from trajformer.training.run import CONFIG, train

    task, plain = TASKS[args.task], args.as_dict()
    recipe = from_plain(task.recipe, {item.name: plain[item.name] for item in fields(task.recipe)})
    stores = [
        (f"data.{part}", Path(store))
        for part in ("train", "val")
        if (store := getattr(recipe.data, part, ""))
    ]
    refuse_inputs(args.out, stores)
    for store in {store for _, store in stores} if args.task == "forecasting" else ():
        _warn_if_interrupted(store)
    if not args.resume:
        refuse_inputs(
            args.out / CONFIG, [("config", Path(str(path))) for path in args.config or []]
        )
    rank_zero_only(print)(train(recipe, task, args.out, resume=args.resume))


def _add_model_options(parser: Parser) -> None:
    names = "constant velocity, or 20 directions around it drawn for each agent"
    parser.add_argument("--model", choices=UNTRAINED, help=f"a model without training: {names}")
    parser.add_argument("--split", default=SPLIT, help="split of the store")
    parser.add_argument("--batch-size", type=PositiveInt, default=32, help="scenes per batch")
    agents = ("scored", "focal", "all")
    parser.add_argument(
        "--agents",
        choices=agents,
        default="scored",
        help="all: every agent seen in the last observed step",
    )
    parser.add_argument(
        "--joint",
        action="store_true",
        help="joint futures of the whole scene, for models with worlds",
    )
    add_accelerator(parser)
    add_overwrite(parser)


def _warn_if_interrupted(store: Path) -> None:
    """Warn if the preparation of a store did not end: scenes may be missing."""
    if any(store.glob("*/*.arrow")) and not (store / MANIFEST).exists():
        warn(
            f"{store}: has no {MANIFEST}: its preparation did not end, so scenes may be missing; run `trajformer preprocess`"
        )


def _load(args: Namespace, checkpoint: Path | None) -> tuple[SceneStore, Predictor, str]:
    """The scenes of a command line, its model, and the name of the model."""
    from trajformer.recipes.checkpoint import load_predictor, pick_device
    from trajformer.scenes.store import SceneStore

    source = checkpoint or args.model
    if source is None or (checkpoint and args.model):
        raise TrajformerError("give either --checkpoint CKPT or --model constant_velocity")
    predictor = load_predictor(source, pick_device(args.accelerator), args.agents, args.joint)
    _warn_if_interrupted(args.store)
    return SceneStore(args.store, args.split), predictor, str(source)


def evaluate_parser() -> Parser:
    """(--checkpoint CKPT | --model NAME) --store STORE, or --protocol NAME --data RAW [--checkpoint PATH ...]."""
    parser = new_parser(
        "Score a model: minADE, minFDE, MR and brier-minFDE of the best of 1, 6 and (if the model has 20 modes) 20 modes, "
        "means over agents. Lengths are in the unit of the store, MR is the share of agents with a minFDE above 2. Then, for the "
        "most probable mode and for the recording: 99th percentiles of acceleration (length/s2) and yaw rate (rad/s), and the "
        "share of ends more than 3 m from every lane. --protocol NAME --data RAW scores models by the rules of a published "
        "benchmark and prints them next to the published ones: eth_ucy (with rows for constant velocity and its sampled "
        "variant), interaction (joint figures of the validation cases), nuscenes (prediction), sdd (Stanford Drone)."
    )
    several = "best.ckpt or last.ckpt of a run, or pretrained:NAME; for a protocol, folders with eth.ckpt or eth/best.ckpt and so on"
    parser.add_argument("--checkpoint", type=Path, nargs="+", action="extend", help=several)
    parser.add_argument("--store", type=Path, help="folder made by `trajformer preprocess`")
    _add_model_options(parser)
    parser.add_argument(
        "--protocol",
        choices=protocols.PROTOCOLS,
        help="score with the rules of a published benchmark",
    )
    parser.add_argument(
        "--data", type=Path, help="for a protocol: folder of the recordings as published"
    )
    export = (
        "for eth_ucy: also write all samples as text files to this folder; for interaction: also write the files of the "
        "challenge to this folder; for nuscenes: also write this challenge file (JSON)"
    )
    parser.add_argument("--export", type=Path, help=export)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--csv", type=Path, help="also write a table with one row per agent (not for a protocol)"
    )
    return parser


def run_evaluate(args: Namespace) -> None:
    """`trajformer evaluate`: print the figures of a model, or the table of a protocol."""
    with_protocol = ("store", "model", "csv") if args.protocol == "eth_ucy" else ("store", "csv")
    for name in with_protocol if args.protocol else ("data", "export"):
        if args[name] is not None:
            raise TrajformerError(
                f"--{name} is {'not ' if args.protocol else 'only '}allowed with --protocol"
            )
    checkpoints = args.checkpoint or []
    joint = args.joint and args.protocol != "interaction"
    for name, used in (
        ("agents", args.agents != "scored"),
        ("split", args.split != SPLIT),
        ("joint", joint),
    ):
        if args.protocol and used:
            raise TrajformerError(f"--{name} is not allowed with --protocol {args.protocol}")
    if args.protocol:
        if args.data is None:
            raise TrajformerError(
                f"--protocol {args.protocol}: give the folder of the recordings with --data"
            )
        protocols.evaluate(args.data, checkpoints, args)
        return
    if args.store is None:
        raise TrajformerError("give a store with --store, or a --protocol")
    if len(checkpoints) > 1:
        raise TrajformerError("several checkpoints are only allowed with --protocol")
    from trajformer.evaluation.evaluate import evaluate

    check_outputs(args, json="json", csv="csv")
    scenes, predictor, source = _load(args, checkpoints[0] if checkpoints else None)
    evaluation = evaluate(predictor, scenes, batch_size=args.batch_size, progress=bars())
    try:
        if args.json is not None:
            write_atomically(args.json, json.dumps(evaluation.metrics, indent=1) + "\n")
        if args.csv is not None:
            write_atomically(args.csv, evaluation.per_agent.round(6).to_csv(index=False))
    finally:  # a full disk does not lose the figures, and a reader of this output that ends early (head) does not lose the files
        if scenes.unit != METRES:
            print(f"lengths in {scenes.unit}")
        print_table(
            {source + " (on its training split)" * evaluation.on_training_split: evaluation.metrics}
        )
        if args.agents != "scored" and scenes.unit == METRES:  # the groups have limits in metres
            print_groups(evaluation.per_agent)


def print_table(rows: dict[str, dict[str, float]]) -> None:
    """Print one line per model: best of 1 and 6; further tables for 20 modes, worlds and other figures."""
    import pandas as pd

    table = pd.DataFrame.from_dict(rows, orient="index").rename(columns={"num_agents": "agents"})
    names = [str(name) for name in table if name != "agents" and not str(name).startswith("num_")]
    worlds = [name for name in names if name.startswith(("avg", "actor"))]
    of_20 = [name for name in names if name.endswith("20")]
    others = [name for name in names if not name[-1].isdigit() and name != "minFDE"]
    first = [name for name in names if name[-1].isdigit() and name not in worlds + of_20]
    for block in filter(None, (first, of_20, worlds, others)):
        print(table[["agents", *block]].to_string(float_format="{:.3f}".format))


def print_groups(per_agent: pd.DataFrame) -> None:
    """Print errors by type and motion, and by manoeuvre.

    "standing" agents move less than `STANDING_M` in their history and in their future. Nobody can tell whether an agent stands
    that was first seen less than `BRIEF_S` ago: it is "brief". "near" is minFDE1 up to `NEAR_M`.
    """
    motion = (
        per_agent[["history_m", "future_m"]]
        .max(axis=1)
        .lt(STANDING_M)
        .map({True: "standing", False: "moving"})
    )
    motion = motion.where(per_agent.history_s > BRIEF_S - 1e-3, "brief")
    named = per_agent.assign(motion=motion, agents=1, near=per_agent.minFDE1 <= NEAR_M)
    rules = {
        "agents": "sum",
        "minADE6": "mean",
        "minFDE6": "mean",
        "MR6": "mean",
        "minFDE1": "mean",
        "near": "mean",
    }
    for groups in (["type", "motion"], ["manoeuvre"]):
        print(named.groupby(groups).agg(rules).round(3).to_string())


def predict_parser() -> Parser:
    """--checkpoint CKPT --store STORE --out FORECASTS.parquet."""
    parser = new_parser(
        "Forecast a split and write a parquet file with the columns of the Argoverse 2 challenge: one row per mode, metres, "
        "frame of the city."
    )
    parser.add_argument(
        "--checkpoint", type=Path, help="best.ckpt or last.ckpt of a run, or pretrained:NAME"
    )
    parser.add_argument(
        "--store", type=Path, required=True, help="folder made by `trajformer preprocess`"
    )
    _add_model_options(parser)
    parser.add_argument("--out", type=Path, required=True, help="parquet file")
    return parser


def run_predict(args: Namespace) -> None:
    """`trajformer predict`: write the modes of all targets."""
    from trajformer.evaluation.evaluate import track_forecasts
    from trajformer.evaluation.forecast_file import write_forecasts

    check_outputs(args, out="parquet")
    scenes, predictor, _ = _load(args, args.checkpoint)
    forecasts = track_forecasts(predictor, scenes, batch_size=args.batch_size, progress=bars())
    count = write_forecasts(
        args.out, forecasts, DataSpec.of(scenes[0]) if len(scenes) else DataSpec()
    )
    if not count:
        raise TrajformerError(
            f"{args.store}: split '{args.split}' has no agent to forecast ({args.agents})"
        )
    print(f"{args.out}: forecasts of {count} agents in {len(scenes)} scenes")


def plot_parser() -> Parser:
    """STORE [--forecasts FORECASTS.parquet] --out DIR."""
    parser = new_parser(
        f"Draw scenes: map, observed tracks, recorded futures and predicted modes. By default {DEFAULT_COUNT} random scenes."
    )
    parser.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    parser.add_argument(
        "--split", help="default: the split of the given scenes or of the forecasts, else val"
    )
    parser.add_argument("--forecasts", type=Path, help="file of `trajformer predict`")
    parser.add_argument(
        "--density",
        action="store_true",
        help="draw the density of predicted positions instead of the modes",
    )
    parser.add_argument("--scene", nargs="+", default=[], help="ids of scenes")
    parser.add_argument(
        "--worst", type=PositiveInt, help="number of scenes with the largest minFDE"
    )
    parser.add_argument("--random", type=PositiveInt, help="number of random scenes")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="seed of the random scenes")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for the PNG files, or one file .png with all scenes",
    )
    add_overwrite(parser)
    return parser


def run_plot(args: Namespace) -> None:
    """`trajformer plot`: draw scenes, with forecasts if a file is given, and print the paths of the pictures."""
    from trajformer.evaluation.forecast_file import read_forecasts, read_spec
    from trajformer.plotting.scene import choose_scenes, save_scene_plots
    from trajformer.scenes.store import SceneStore

    if args.forecasts is None and (args.worst is not None or args.density):
        raise TrajformerError(f"--{'density' if args.density else 'worst'} needs --forecasts")
    check_outputs(args, out="png" if args.out.suffix == ".png" else "folder")
    modes = read_forecasts(args.forecasts) if args.forecasts is not None else {}
    expected = (
        DataSpec()
        if args.forecasts is None
        else replace(read_spec(args.forecasts), num_history=None)
    )  # ends are equal
    scenes = SceneStore(
        args.store, args.split or split_of(args.store, args.scene or list(modes), expected.split)
    )
    if len(scenes):
        check_scenes(
            found := DataSpec.of(scenes[0]),
            expected,
            args.store,
            "the scenes of the forecasts have",
        )
        same = expected.split is None or same_split(expected.split, found.split or "")
        if not same and scenes.indices(modes):  # ids recur between splits
            reason = f"forecasts of split '{expected.split}', but the scenes of {args.store} are of split '{found.split}'"
            raise TrajformerError(
                f"{args.forecasts}: {reason}; give --split or forecast these scenes"
            )
    if modes and not args.scene and not scenes.indices(modes):
        raise TrajformerError(
            f"{args.forecasts}: no forecast of a scene in split '{scenes.split}' of {args.store}; leave out --split"
        )
    random = args.random if args.scene or args.worst is not None else args.random or DEFAULT_COUNT
    chosen = choose_scenes(
        scenes, modes, scene_ids=args.scene, worst=args.worst, random=random, seed=args.seed
    )
    if not chosen:
        raise TrajformerError(
            f"{args.store}: split '{scenes.split}' has no scene to draw (--worst needs recorded futures)"
        )
    for path in save_scene_plots(
        scenes, chosen, modes, args.out, progress=bars(), density=args.density
    ):
        print(path)


def split_of(store: Path, scene_ids: list[str], preferred: str | None = None) -> str:
    """The split with most of the scenes, of several the preferred one (ids recur between splits), else val.

    Without scenes, val or the only split.
    """
    from trajformer.scenes.store import SceneStore, store_splits

    splits = store_splits(store)
    counts = (
        {split: len(SceneStore(store, split).indices(scene_ids)) for split in splits}
        if scene_ids
        else {}
    )
    if any(counts.values()):
        return max(splits, key=lambda split: (counts[split], split == (preferred or "val")))
    if scene_ids and splits:
        raise TrajformerError(
            f"{store}: no scene {scene_ids[0]} in any split ({', '.join(splits)})"
        )
    return splits[0] if len(splits) == 1 else "val"


def layouts() -> dict[str, tuple[str, Callable[[StateDictReader, Options], Converted]]]:
    """Published formats by name: their source with assumptions that the shapes do not show, and a function that reads them.

    The function returns a recipe or a model config, and a state dict. Models are imported here: other commands start faster.
    """
    from trajformer.heads.weights import (
        attention_is_all_you_need,
        facebook_detr,
        facebook_detr_dc5,
        hf_detr,
        hf_vit,
        timm_vit,
    )
    from trajformer.models.agentformer.weights import (
        agentformer,
        agentformer_eth,
        agentformer_zara1,
    )

    return {
        "attention_is_all_you_need": (
            "Transformer of attention-is-all-you-need-pytorch (8 heads)",
            attention_is_all_you_need,
        ),
        "timm_vit": ("VisionTransformer of timm (64 channels per head)", timm_vit),
        "hf_vit": ("ViTForImageClassification of Hugging Face (64 channels per head)", hf_vit),
        "facebook_detr": ("DETR of its authors, with ResNet-50 or -101 (8 heads)", facebook_detr),
        "facebook_detr_dc5": ("the same with a dilated last stage", facebook_detr_dc5),
        "hf_detr": ("DetrForObjectDetection of Hugging Face (8 heads)", hf_detr),
        "agentformer": (
            "AgentFormer of its authors, first stage: hotel, univ, zara2 (8 heads)",
            agentformer,
        ),
        "agentformer_eth": ("the same for eth, in units of 2 m", agentformer_eth),
        "agentformer_zara1": (
            "the same for zara1, with positions relative to the last ones",
            agentformer_zara1,
        ),
    }


def weights_parser() -> Parser:
    """convert LAYOUT FILE OUT."""
    parser = new_parser(
        "Convert published weights, or a checkpoint of a run, into a checkpoint without the state of a run. Every tensor of "
        "FILE must be used and every parameter of the model must be given; otherwise nothing is written."
    )
    parser.add_argument("action", choices=("convert",), help="the action")
    summaries = {OWN: "a checkpoint of a run"} | {
        name: summary for name, (summary, _) in layouts().items()
    }
    parser.add_argument(
        "layout",
        choices=tuple(summaries),
        help="; ".join(f"{n}: {text}" for n, text in summaries.items()),
    )
    parser.add_argument(
        "file", type=Path, help=".safetensors, or .pt, .pth, .bin with plain tensors"
    )
    parser.add_argument(
        "out", type=Path, help="the checkpoint to write, as safetensors if it ends in .safetensors"
    )
    parser.add_argument(
        "--heads",
        type=PositiveInt,
        help="number of attention heads (default: as listed for the layout)",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        help="text file with one class name per line, in the order of the outputs",
    )
    add_overwrite(parser)
    return parser


def run_weights(args: Namespace) -> None:
    """`trajformer weights`: write the checkpoint and print its contents."""

    from trajformer.core.weights import Options
    from trajformer.recipes.checkpoint import write_checkpoint

    check_outputs(args, out="safetensors" if args.out.suffix == ".safetensors" else "ckpt")
    if args.layout == OWN and (args.heads is not None or args.labels is not None):
        raise TrajformerError(
            f"--heads and --labels are not allowed for {OWN}: the checkpoint has both"
        )
    labels = _read_labels(args.labels) if args.labels is not None else ()
    recipe, weights, trained_on = convert(args.layout, args.file, Options(args.heads, labels))
    write_checkpoint(args.out, recipe, weights, trained_on)
    numbers = sum(tensor.numel() for tensor in weights.values())
    print(f"{args.out}: a model for {recipe.task}, {len(weights)} tensors with {numbers:,} numbers")


def convert(layout: str, path: Path, options: Options) -> tuple[Any, dict[str, Tensor], DataSpec]:
    """Recipe, state dict and training scenes of a file of a layout (CheckpointError: unreadable, or of another layout)."""

    from trajformer.core.weights import read_state_dict
    from trajformer.models.agentformer.model import AgentFormerConfig
    from trajformer.recipes.recipe import TrainConfig

    if layout == OWN:
        from trajformer.cli.tasks import TASKS
        from trajformer.models.forecaster import Predictor
        from trajformer.recipes.checkpoint import load_checkpoint, recipe_name

        task = recipe_name(path)
        if task not in TASKS:
            raise CheckpointError(f"{path}: is for the unknown task '{task}'")
        model, recipe = load_checkpoint(path, TASKS[task].recipe)
        if isinstance(recipe, TrainConfig):  # paths of one machine have no meaning on another
            recipe = replace(
                recipe, data=replace(recipe.data, train="", val=""), first_stage="", init=""
            )
        return recipe, model.state_dict(), Predictor(model).trained_on
    source = read_state_dict(path)
    try:
        recipe, weights = layouts()[layout][1](source, options)
    except ConfigError as error:
        raise CheckpointError(f"{path}: sizes do not fit together: {error}") from error
    source.check_all_used()
    if isinstance(recipe, AgentFormerConfig):
        recipe = TrainConfig(recipe)
    return recipe, weights, DataSpec()


def average_parser() -> Parser:
    """CHECKPOINT CHECKPOINT ... --out OUT."""
    parser = new_parser(
        "Write a checkpoint whose weights are the mean of the weights of several checkpoints (model soup, Wortsman et al. 2022). "
        "It costs no time in inference. The runs must have a common start, such as the same --init: means of unrelated runs are "
        "useless."
    )
    parser.add_argument(
        "checkpoints",
        type=Path,
        nargs="+",
        help="two or more checkpoints of the same model",
        metavar="CHECKPOINT",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="the checkpoint to write, as safetensors with that suffix",
    )
    add_overwrite(parser)
    return parser


def run_average(args: Namespace) -> None:
    """`trajformer average`."""

    from trajformer.core.weights import Options
    from trajformer.recipes.checkpoint import (
        average_weights,
        list_changes,
        resemblance,
        write_checkpoint,
    )
    from trajformer.recipes.plain import to_plain

    check_outputs(args, out="safetensors" if args.out.suffix == ".safetensors" else "ckpt")
    if len(args.checkpoints) < 2:
        raise TrajformerError(f"{args.checkpoints[0]}: expected at least two checkpoints")
    parts = [convert(OWN, path, Options(None, ())) for path in args.checkpoints]
    recipe, last, trained_on = parts[-1]
    for path, (other, weights, scenes) in zip(args.checkpoints, parts, strict=True):
        if changes := list_changes(to_plain(other)["model"], to_plain(recipe)["model"], "model"):
            raise CheckpointError(f"{path}: has {'; '.join(changes)} like {args.checkpoints[-1]}")
        if getattr(other, "labels", ()) != getattr(recipe, "labels", ()):
            raise CheckpointError(f"{path}: has other labels than {args.checkpoints[-1]}")
        if {n: w.shape for n, w in weights.items()} != {n: w.shape for n, w in last.items()}:
            raise CheckpointError(f"{path}: has other weights than {args.checkpoints[-1]}")
        check_scenes(
            scenes, trained_on, path, f"the training scenes of {args.checkpoints[-1]} have"
        )
        if resemblance(weights, last) < RELATED:
            warn(
                f"{path}: has no common start with {args.checkpoints[-1]}; the mean of unrelated runs is useless; see --init"
            )
    write_checkpoint(
        args.out, recipe, average_weights([weights for _, weights, _ in parts]), trained_on
    )
    print(f"{args.out}: the mean of {len(parts)} checkpoints, a model for {recipe.task}")


def _read_labels(path: Path) -> tuple[str, ...]:
    try:
        names = tuple(
            line.strip() for line in read_file(path, MAX_LABELS).decode("utf-8").splitlines()
        )
    except (OSError, UnicodeDecodeError) as error:
        raise TrajformerError(
            f"{path}: labels cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    if "" in names or len(set(names)) < len(names):
        raise TrajformerError(
            f"{path}: an empty line or a repeated name; expected one class per line"
        )
    return names
