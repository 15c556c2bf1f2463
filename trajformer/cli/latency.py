"""`trajformer latency`: times of a forecaster in several runtimes."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from trajformer.cli.forecasters import CHECKPOINT_HELP, check_threads
from trajformer.cli.parsing import Number, Parser, PositiveInt, new_parser

Agents = Number("1 to 2048", int, 1, 2048)
Lanes = Number("1 to 20000", int, 1, 20_000)
Calls = Number("1 to 100000", int, 1, 100_000)
RUNTIMES = ("eager", "compiled", "pt2", "onnx")  # repeated from deploy.latency


def parser() -> Parser:
    """CKPT_OR_FILE [--agents 64 256] [--lanes 500 2000] [--threads 1]."""
    made = new_parser(
        "Time forecasts of all agents of artificial scenes in several runtimes, which take turns, "
        "and print a Markdown table: median / 99th percentile in milliseconds."
    )
    made.add_argument("checkpoint", type=Path, help=CHECKPOINT_HELP)
    made.add_argument(
        "--agents", type=Agents, nargs="+", default=[64, 256], help="numbers of agents"
    )
    made.add_argument(
        "--lanes", type=Lanes, nargs="+", default=[500, 2000], help="numbers of lanes"
    )
    made.add_argument("--threads", type=PositiveInt, default=1, help="CPU threads")
    made.add_argument("--calls", type=Calls, default=100, help="timed forecasts of a runtime")
    made.add_argument(
        "--runtimes",
        choices=RUNTIMES,
        nargs="+",
        default=["eager", "pt2", "onnx"],
        help="runtimes of a checkpoint; compiled takes minutes to start",
    )
    return made


def run(args: Namespace) -> None:
    """Print the table."""
    import torch

    from trajformer.deploy.exported_model import is_exported
    from trajformer.deploy.latency import measure, runtimes_of, table
    from trajformer.recipes.checkpoint import load_checkpoint

    check_threads(args.threads)
    torch.set_num_threads(args.threads)
    model: Any = None
    if not is_exported(args.checkpoint):
        model, _ = load_checkpoint(args.checkpoint)
    runtimes = runtimes_of(args.checkpoint, model, args.runtimes)
    print(table(measure(runtimes, args.agents, args.lanes, args.calls)))
