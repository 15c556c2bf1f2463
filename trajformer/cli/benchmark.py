"""`trajformer benchmark`: score models by the rules of a published benchmark."""

import json
from argparse import Namespace
from pathlib import Path

from trajformer.cli.files import check_outputs
from trajformer.cli.forecasters import CHECKPOINT_HELP, MODEL_HELP, UNTRAINED, add_batch_size
from trajformer.cli.parsing import (
    Parser,
    add_accelerator,
    add_overwrite,
    add_variant,
    new_overview,
    new_parser,
)
from trajformer.errors import TrajformerError
from trajformer.scenes.files import write_atomically

VARIANTS = {
    "eth_ucy": "ETH/UCY, five leave-one-out sets: best of 20 modes",
    "interaction": "INTERACTION, validation cases: joint errors of all cars",
    "nuscenes": "nuScenes prediction, official val split: best of 5 and 10 modes",
    "sdd": "Stanford Drone, test tracks in pixels: best of 20 modes",
    "waymo": "Waymo Open Motion, tracks to predict: six modes at 3, 5 and 8 s",
}
BASELINES = {
    "eth_ucy": "Constant velocity and its sampled variant are always scored.",
    "interaction": "Without a model, constant velocity is scored.",
    "nuscenes": "Constant velocity is also scored, unless --model names another model.",
    "sdd": "Constant velocity is also scored, unless --model names another model.",
    "waymo": "Without a model or --forecasts, constant velocity is scored.",
}
EXPORTS = {  # kind of --export and its help
    "eth_ucy": ("folder", "also write all samples as text files to this folder"),
    "interaction": ("folder", "also write the files of the challenge to this folder"),
    "nuscenes": ("challenge.json", "also write this challenge file, for at most one checkpoint"),
    "waymo": ("submission.bin", "also write this submission, for at most one checkpoint"),
}


def parser(name: str = "") -> Parser:
    """NAME --data RAW [--checkpoint CKPT ... | --model NAME], and the options of the benchmark."""
    if not name:
        return new_overview(
            "Score models by the rules of a published benchmark, and print them next to its "
            "published results. `trajformer benchmark NAME --help` lists the options.",
            "name",
            VARIANTS,
        )
    made = new_parser(
        f"{VARIANTS[name]}. {BASELINES[name]} Models are printed next to published results."
    )
    add_variant(made, "name", name)
    made.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder of the recordings as published"
        + (", or a store with sizes of agents" if name == "waymo" else ""),
    )
    if name == "eth_ucy":
        made.add_argument(
            "--checkpoint",
            type=Path,
            nargs="+",
            action="extend",
            help="folders with eth.ckpt or eth/best.ckpt and so on, or such files "
            "(default: the included weights)",
        )
    else:
        model = made.add_mutually_exclusive_group()
        model.add_argument(
            "--checkpoint", type=Path, nargs="+", action="extend", help=CHECKPOINT_HELP
        )
        model.add_argument("--model", choices=UNTRAINED, help=MODEL_HELP)
        if name == "waymo":
            model.add_argument(
                "--forecasts", type=Path, help="score this file of `trajformer predict` instead"
            )
    if name == "waymo":
        made.add_argument("--split", default="validation", help="default: validation")
    if name == "nuscenes":
        made.add_argument(
            "--driven-paths",
            type=bool,
            default=True,
            metavar="{true,false}",
            help="add lanes, as `trajformer preprocess` does; false for weights that were trained "
            "without lanes (default: true)",
        )
    if name in ("interaction", "waymo"):
        made.add_argument(
            "--joint", action="store_true", help="forecast joint futures (models with worlds)"
        )
    made.add_argument("--json", type=Path, help="also write the metrics to this file")
    if name in EXPORTS:
        _, text = EXPORTS[name]
        made.add_argument("--export", type=Path, help=text)
    add_batch_size(made)
    add_accelerator(made)
    add_overwrite(made)
    return made


def run(args: Namespace) -> None:
    """Print the table of a benchmark with the metrics of models."""
    from trajformer.cli import protocols
    from trajformer.recipes.checkpoint import pick_device

    outputs = {"json": "json"}
    if args.name in EXPORTS:
        kind, _ = EXPORTS[args.name]
        outputs["export"] = kind
    check_outputs(args, **outputs)
    if not args.data.is_dir():
        raise TrajformerError(f"{args.data}: no such folder")
    score = {
        "eth_ucy": protocols.score_eth_ucy,
        "interaction": protocols.score_interaction,
        "nuscenes": protocols.score_nuscenes,
        "sdd": protocols.score_sdd,
        "waymo": protocols.score_waymo,
    }[args.name]
    table, metrics = score(args, pick_device(args.accelerator))
    print(table)
    if args.json is not None:
        write_atomically(args.json, json.dumps(metrics, indent=1) + "\n")
