"""The command line: `trajformer COMMAND --help` tells what each command wants.

A user's mistake ends in one line on standard error and exit code 1 (2 for a malformed command line).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jsonargparse import Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt

import trajformer
from trajformer.errors import TrajformerError
from trajformer.parsing import Formatter, Parser

ACCELERATORS = ("auto", "cpu", "gpu")
WORKERS = 2


def _parser(text: str) -> Parser:
    return Parser(description=text, formatter_class=Formatter)


def synthesize_parser() -> Parser:
    """OUT --scenes N --seed S."""
    parser = _parser("Simulate traffic and write it in the official Argoverse 2 raw layout, split in train, val, test.")
    parser.add_argument("out", type=Path, help="folder that gets train/, val/ and test/")
    parser.add_argument("--scenes", type=PositiveInt, default=200, help="how many, over all splits")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="the same seed gives the same bytes")
    parser.add_argument("--workers", type=PositiveInt, default=WORKERS, help="processes")
    return parser


def preprocess_parser() -> Parser:
    """SOURCE RAW STORE."""
    parser = _parser(
        "Prepare a raw data set: one compact store, resumable (run the same command again), the same bytes whatever "
        "the number of workers. Scenes that cannot be used are skipped, counted and listed with their reason."
    )
    parser.add_argument("source", choices=("argoverse2", "argoverse1"), help="layout of RAW")
    parser.add_argument("raw", type=Path, help="folder with train/, val/ ... as published")
    parser.add_argument("store", type=Path, help="folder of the store, made or extended")
    parser.add_argument("--split", nargs="+", default=[], help="only these splits (default: all found)")
    parser.add_argument("--workers", type=PositiveInt, default=WORKERS, help="processes")
    parser.add_argument("--limit", type=PositiveInt, help="only the first so many scenes of each split")
    parser.add_argument("--shard-size", type=PositiveInt, default=500, help="scenes a file")
    parser.add_argument("--strict", action="store_true", help="stop at the first scene that cannot be used")
    return parser


def store_parser() -> Parser:
    """info|verify STORE."""
    parser = _parser("Look at a store: what it holds (info), or whether every byte and scene is sound (verify).")
    parser.add_argument("action", choices=("info", "verify"), help="counts and sizes, or a full check")
    parser.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    return parser


def train_parser() -> Parser:
    """--config CONFIG --out RUN and every field of the recipe."""
    from trajformer.training.config import TrainConfig

    parser = _parser(
        "Train a recipe of configs/. Every field can be set here, too: --data.train STORE --optim.learning_rate 5e-4; "
        "--model.mmtransformer.help lists the fields of a model. "
        "OUT gets best.ckpt, last.ckpt, config.yaml, tensorboard/ and csv/metrics.csv."
    )
    parser.add_argument("--config", action="config", help="YAML recipe; later options override it")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--resume", action="store_true", help="go on from OUT/last.ckpt")
    parser.add_class_arguments(TrainConfig)
    return parser


def _add_model(parser: Parser) -> None:
    parser.add_argument("--checkpoint", type=Path, help="best.ckpt or last.ckpt of a run")
    parser.add_argument("--model", choices=("constant_velocity",), help="a model that needs no training")
    parser.add_argument("--store", type=Path, required=True, help="folder made by `trajformer preprocess`")
    parser.add_argument("--split", default="val", help="which of the store's splits")
    parser.add_argument("--batch-size", type=PositiveInt, default=32, help="scenes at a time")
    parser.add_argument("--accelerator", choices=ACCELERATORS, default="auto", help="auto = a GPU where there is one")


def evaluate_parser() -> Parser:
    """(--checkpoint CKPT | --model constant_velocity) --store STORE."""
    parser = _parser("Score a model: minADE, minFDE, MR and brier-minFDE of the best of 1 and 6 modes, mean over agents.")
    _add_model(parser)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--csv", type=Path, help="also write a row an agent here")
    return parser


def predict_parser() -> Parser:
    """--checkpoint CKPT --store STORE --out FORECASTS.parquet."""
    parser = _parser("Forecast a split and write the Argoverse 2 challenge columns, one row a mode, city frame, metres.")
    _add_model(parser)
    parser.add_argument("--out", type=Path, required=True, help="parquet file")
    agents = ("scored", "focal", "all")
    parser.add_argument("--agents", choices=agents, default="scored", help="all = everyone seen at the last observed step")
    return parser


def plot_parser() -> Parser:
    """STORE [--forecasts FORECASTS.parquet] --out DIR."""
    parser = _parser("Draw scenes: map, histories, what happened, and the predicted modes. 8 random scenes by default.")
    parser.add_argument("store", type=Path, help="folder made by `trajformer preprocess`")
    parser.add_argument("--split", help="default: the split that has the named scenes or the forecast ones, else val")
    parser.add_argument("--forecasts", type=Path, help="file of `trajformer predict`")
    parser.add_argument("--scene", nargs="+", default=[], help="scenes with these ids")
    parser.add_argument("--worst", type=PositiveInt, help="so many scenes with the largest minFDE")
    parser.add_argument("--random", type=PositiveInt, help="so many scenes at random")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the random choice")
    parser.add_argument("--out", type=Path, required=True, help="folder for the PNG files")
    return parser


def demo_parser() -> Parser:
    """[--out DIR]."""
    parser = _parser("The whole line on simulated scenes in a few minutes: prepare, train, evaluate, predict, plot.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for everything it makes")
    parser.add_argument("--scenes", type=PositiveInt, default=360, help="how many to simulate")
    parser.add_argument("--epochs", type=PositiveInt, default=36, help="passes over the training scenes")
    parser.add_argument("--seed", type=NonNegativeInt, default=0, help="of the simulation and of the training")
    return parser


def _checkpoint(args: Namespace) -> Path | None:
    if (args.checkpoint is None) == (args.model is None):
        raise TrajformerError("give either --checkpoint CKPT or --model constant_velocity")
    return args.checkpoint


def _run_preprocess(args: Namespace) -> None:
    from trajformer import commands

    options = {"splits": tuple(args.split), "workers": args.workers, "limit": args.limit}
    options |= {"shard_size": args.shard_size, "strict": args.strict}
    commands.preprocess(args.source, args.raw, args.store, **options)


def _run_store(args: Namespace) -> None:
    from trajformer import commands

    {"info": commands.store_info, "verify": commands.store_verify}[args.action](args.store)


def _run_synthesize(args: Namespace) -> None:
    from trajformer import commands

    commands.synthesize(args.out, args.scenes, args.seed, args.workers)


def _run_train(args: Namespace) -> None:
    from trajformer.training.config import TrainConfig
    from trajformer.training.run import train

    recipe = train_parser().instantiate(args)
    best = train(TrainConfig(**{name: recipe[name] for name in TrainConfig.__dataclass_fields__}), args.out, resume=args.resume)
    print(best)


def _run_evaluate(args: Namespace) -> None:
    from trajformer import commands

    options = {"accelerator": args.accelerator, "batch_size": args.batch_size}
    commands.evaluate(_checkpoint(args), args.store, args.split, json_file=args.json, csv_file=args.csv, **options)


def _run_predict(args: Namespace) -> None:
    from trajformer import commands

    options = {"accelerator": args.accelerator, "batch_size": args.batch_size}
    commands.predict(_checkpoint(args), args.store, args.split, args.out, targets=args.agents, **options)


def _run_plot(args: Namespace) -> None:
    from trajformer import commands

    choice = {"scene": args.scene, "worst": args.worst, "random": args.random, "seed": args.seed}
    commands.plot(args.store, args.split, args.forecasts, args.out, **choice)


def _run_demo(args: Namespace) -> None:
    from trajformer.demo import demo

    demo(args.out, scenes=args.scenes, epochs=args.epochs, seed=args.seed)


COMMANDS: dict[str, tuple[Callable[[], Parser], Callable[[Namespace], None]]] = {
    "synthesize": (synthesize_parser, _run_synthesize),
    "preprocess": (preprocess_parser, _run_preprocess),
    "store": (store_parser, _run_store),
    "train": (train_parser, _run_train),
    "evaluate": (evaluate_parser, _run_evaluate),
    "predict": (predict_parser, _run_predict),
    "plot": (plot_parser, _run_plot),
    "demo": (demo_parser, _run_demo),
}


def _overview() -> str:
    lines = ["usage: trajformer COMMAND ...", "", "Multi-agent trajectory prediction on one shared attention core.", ""]
    for name, (parser, _) in COMMANDS.items():
        lines.append(f"  {name:<12}{(parser().description or '').split('. ')[0].rstrip('.')}")
    return "\n".join([*lines, "", "`trajformer COMMAND --help` tells more."])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(trajformer.__version__)
        return 0
    if words[0] not in COMMANDS:
        print(f"trajformer: no command '{words[0]}' (commands: {', '.join(COMMANDS)})", file=sys.stderr)
        return 2
    build, run = COMMANDS[words[0]]
    parser = build()
    parser.prog = f"trajformer {words[0]}"
    try:
        run(parser.parse_words(words[1:]))
    except TrajformerError as error:
        print(f"trajformer {words[0]}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except OSError as error:  # no space, no permission: the message names the file
        print(f"trajformer {words[0]}: {error.filename or 'file system'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print(f"trajformer {words[0]}: interrupted{stop}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
