"""The command line: `trajformer COMMAND --help` tells what each command wants.

A user's mistake ends in one line on standard error and exit code 1 (2 for a malformed command line).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trajformer
from trajformer.errors import TrajformerError

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from trajformer.cli.parsing import Parser


SUMMARIES = {  # beside the table of commands: building all parsers takes seconds, which `trajformer --help` should not
    "synthesize": "simulate traffic, written in the official Argoverse 2 raw layout",
    "preprocess": "prepare a raw data set: one compact store, resumable",
    "store": "look at a store, check it, merge several, or take a scene out",
    "train": "train a recipe of configs/",
    "evaluate": "score a model on a store, or print the table of ETH/UCY",
    "predict": "forecast a split and write the columns of the Argoverse 2 challenge",
    "plot": "draw scenes: map, histories, what happened, and the predicted modes",
    "demo": "the whole line on simulated scenes in a few minutes",
    "classify": "classify images, or score a classifier",
    "detect": "detect objects in images, or score a detector",
    "translate": "translate a text file, one sentence per line",
    "weights": "convert published weights, or a checkpoint of a run",
}


def commands() -> dict[str, tuple[Callable[..., Parser], Callable[[Namespace], None]]]:
    """The options of every command and what it runs; imported here, as each process that a command starts imports this file."""
    from trajformer.cli import data, models, weights
    from trajformer.cli.heads import classify, detect, translate

    return {
        "synthesize": (data.synthesize_parser, data.run_synthesize),
        "preprocess": (data.preprocess_parser, data.run_preprocess),
        "store": (data.store_parser, data.run_store),
        "train": (models.train_parser, models.run_train),
        "evaluate": (models.evaluate_parser, models.run_evaluate),
        "predict": (models.predict_parser, models.run_predict),
        "plot": (models.plot_parser, models.run_plot),
        "demo": (models.demo_parser, models.run_demo),
        "classify": (classify.classify_parser, classify.run_classify),
        "detect": (detect.detect_parser, detect.run_detect),
        "translate": (translate.translate_parser, translate.run_translate),
        "weights": (weights.weights_parser, weights.run_weights),
    }


def _overview() -> str:
    lines = ["usage: trajformer COMMAND ...", "", "Multi-agent trajectory prediction on one shared attention core.", ""]
    lines += [f"  {name:<12}{summary}" for name, summary in SUMMARIES.items()]
    return "\n".join([*lines, "", "`trajformer COMMAND --help` tells more."])


def _kind(words: list[str]) -> str:
    """What of a command is wanted, where its options depend on that: a source, an action, a task."""
    from trajformer.cli.models import task_in

    return task_in(words) if words[0] == "train" else "".join(words[1:2])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0 if words else 2
    if words[0] == "--version":
        print(trajformer.__version__)
        return 0
    try:
        table = commands()
        if words[0] not in table:
            print(f"trajformer: no command '{words[0]}' (commands: {', '.join(table)})", file=sys.stderr)
            return 2
        build, run = table[words[0]]
        parser = build(_kind(words)) if words[0] in ("preprocess", "store", "train") else build()
        parser.prog = f"trajformer {words[0]}"
        run(parser.parse_words(words[1:]))
    except TrajformerError as error:
        print(f"trajformer {words[0]}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever reads the output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # no space, no permission: the message names the file
        print(f"trajformer {words[0]}: {error.filename or 'file system'}: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print(f"trajformer {words[0]}: interrupted{stop}", file=sys.stderr)
        return 130
    return 0
