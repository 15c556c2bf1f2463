"""Options and checks that commands with a forecaster share."""

import os
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from trajformer.cli.parsing import BatchSize, Parser, PositiveInt, add_accelerator, add_overwrite
from trajformer.cli.proposals import proposal
from trajformer.cli.splits import SPLIT_HELP, default_split
from trajformer.errors import TrajformerError
from trajformer.scenes.manifest import MANIFEST
from trajformer.scenes.spec import warn

if TYPE_CHECKING:
    from trajformer.models.forecaster import Predictor
    from trajformer.scenes.store import SceneStore

# repeated from recipes.checkpoint, which imports torch
AGENT_CHOICES = ("scored", "focal", "moving", "all")  # repeated from evaluation.scoring
UNTRAINED = ("constant_velocity", "constant_velocity_sampled")
CHECKPOINT_HELP = "best.ckpt or last.ckpt of a run, pretrained:NAME, or an exported file"
MODEL_HELP = (
    "a model without training: constant velocity, or 20 directions around it drawn for each agent"
)


def add_forecaster(parser: Parser) -> None:
    """Add the options of a command that forecasts the scenes of a store with one model."""
    # without a model, `load_forecaster` proposes included weights that fit the store
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--checkpoint", type=Path, help=CHECKPOINT_HELP)
    model.add_argument("--model", choices=UNTRAINED, help=MODEL_HELP)
    _add_scenes(parser, ("scored", "focal", "all"))


def add_forecasters(parser: Parser) -> None:
    """Add the options of a command that forecasts the scenes of a store with several models."""
    model = parser.add_mutually_exclusive_group()
    model.add_argument(
        "--checkpoint", type=Path, nargs="+", help=f"{CHECKPOINT_HELP}; several are compared"
    )
    model.add_argument("--model", choices=UNTRAINED, help=MODEL_HELP)
    _add_scenes(parser, AGENT_CHOICES)


def _add_scenes(parser: Parser, agents: tuple[str, ...]) -> None:
    parser.add_argument(
        "--store", type=Path, required=True, help="folder made by `trajformer preprocess`"
    )
    parser.add_argument("--split", help=SPLIT_HELP)
    add_batch_size(parser)
    choice = "those that the data set scores, its focal agent"
    if "moving" in agents:
        choice += ", all that end 5 m or more from their present position"
    parser.add_argument(
        "--agents",
        choices=agents,
        default="scored",
        help=f"agents to forecast: {choice}, or every agent seen in the last observed second",
    )
    parser.add_argument(
        "--joint",
        action="store_true",
        help="forecast joint futures of the whole scene (models with worlds)",
    )
    add_threads(parser)
    add_accelerator(parser)
    add_overwrite(parser)


def add_threads(parser: Parser) -> None:
    """Add the option --threads."""
    parser.add_argument(
        "--threads",
        type=PositiveInt,
        help="CPU threads of torch (default: 1 if --batch-size is 1, because single scenes are too "
        "small for more, otherwise all cores)",
    )


def set_threads(args: Namespace) -> None:
    """Set the number of threads of this process, by the options --threads and --batch-size.

    A forecast of a single scene consists of small operations: with one thread it is 2.5 to 5 times
    as fast as with two on a machine with other work (`tools/bench_forecast.py --table threads`).
    Raises TrajformerError: there are fewer cores than threads.
    """
    import torch

    if args.threads is not None:
        check_threads(args.threads)
        torch.set_num_threads(args.threads)
    elif args.batch_size == 1:
        torch.set_num_threads(1)


def check_threads(threads: int) -> None:
    """Raise TrajformerError if there are fewer cores than threads."""
    cores = os.cpu_count() or 1
    if threads > cores:
        raise TrajformerError(f"--threads {threads}: expected at most {cores}, one per core")


def add_batch_size(parser: Parser) -> None:
    """Add the option --batch-size."""
    parser.add_argument("--batch-size", type=BatchSize, default=32, help="scenes per batch")


def sources(args: Namespace) -> list[Path | str | None]:
    """The checkpoints or the model of the options; None without any."""
    if isinstance(args.checkpoint, list):
        return [*args.checkpoint]
    return [args.checkpoint or args.model]


def load_forecaster(
    args: Namespace, source: Path | str | None, command: str
) -> tuple["SceneStore", "Predictor"]:
    """The scenes and a model of `sources`, by the options of `add_forecaster`.

    Raises TrajformerError: a file cannot be used, or no model is given. The error then proposes
    included weights and the `command`, such as "evaluate", that uses them.
    """
    from trajformer.deploy.exported_model import exported_predictor, is_exported
    from trajformer.evaluation.scoring import targets_of
    from trajformer.recipes.checkpoint import load_predictor, pick_device
    from trajformer.scenes.store import SceneStore

    args.split = args.split or default_split(args.store)  # also for the processes of `--workers`
    if source is None:
        scenes = SceneStore(args.store, args.split)
        raise TrajformerError(f"give --checkpoint or --model; {proposal(scenes, command)}")
    set_threads(args)
    device = pick_device(args.accelerator)
    targets = targets_of(args.agents)
    if is_exported(source):
        predictor = exported_predictor(Path(str(source)), device, targets, args.joint)
    else:
        predictor = load_predictor(source, device, targets, args.joint)
    warn_if_interrupted(args.store)
    return SceneStore(args.store, args.split), predictor


def warn_if_interrupted(store: Path) -> None:
    """Warn if the preparation of a store did not end: scenes may be missing."""
    if any(store.glob("*/*.arrow")) and not (store / MANIFEST).exists():
        reason = f"has no {MANIFEST}: its preparation did not end, so scenes may be missing"
        warn(f"{store}: {reason}; run `trajformer preprocess`")
