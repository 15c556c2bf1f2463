"""`trajformer demo`: from simulated raw data to pictures and a page, in a few minutes."""

import json
import time
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

from trajformer.cli.commands import run_command
from trajformer.cli.files import keep_arguments
from trajformer.cli.parsing import NonNegativeInt, Parser, PositiveInt, new_parser
from trajformer.cli.results import print_table
from trajformer.errors import TrajformerWarning
from trajformer.scenes.files import lock_folder


def parser() -> Parser:
    """[--out DIR]."""
    made = new_parser(
        "Simulate scenes, prepare a store, train SE2Former from included weights, evaluate, "
        "predict, plot and write a page that plays in a browser."
    )
    made.add_argument("--out", type=Path, default=Path("demo"), help="folder for all files")
    made.add_argument("--scenes", type=PositiveInt, default=360, help="number of simulated scenes")
    made.add_argument(
        "--epochs", type=PositiveInt, default=12, help="passes over the training scenes"
    )
    made.add_argument(
        "--seed", type=NonNegativeInt, default=0, help="seed of the simulation and of the training"
    )
    return made


def run(args: Namespace) -> None:
    """Run a sequence of commands. A second run with the same arguments resumes it."""
    with lock_folder(args.out):
        keep_arguments(args.out, args, "scenes", "epochs", "seed")
        _Demo(args).run()


class _Demo:
    """The files of a demonstration, and its steps."""

    def __init__(self, args: Namespace) -> None:
        self.args = args
        self.start_time = time.monotonic()
        self.raw: Path = args.out / "raw"
        self.store: Path = args.out / "store"
        # The best checkpoint would be chosen by the scenes that are scored.
        self.checkpoint: Path = args.out / "run" / "last.ckpt"
        self.forecasts: Path = args.out / "forecasts.parquet"
        self.pictures: Path = args.out / "pictures"
        self.page: Path = args.out / "view.html"

    def run(self) -> None:
        """Run all steps and print the result."""
        scenes = self.args.scenes
        self.announce(
            1, f"simulate {scenes} traffic scenes in the layout of Argoverse 2: {self.raw}"
        )
        command("synthesize", self.raw, "--scenes", scenes, "--seed", self.args.seed)
        self.announce(2, f"prepare a store: {self.store}")
        command("preprocess", "argoverse2", self.raw, self.store)
        self.announce(3, f"train SE2Former further on them: {self.checkpoint.parent}")
        self.train()
        self.announce(4, "score held-out scenes, constant velocity first")
        rows = {
            "constant velocity": self.evaluate("constant_velocity", "--model", "constant_velocity"),
            "SE2Former": self.evaluate("SE2Former", "--checkpoint", self.checkpoint),
        }
        self.announce(5, "predict, plot, and write a page that plays in a browser")
        self.predict_and_plot()
        print(f"\n== finished in {self.seconds()} s; held-out scenes, metres")
        print_table(rows)
        print(f"checkpoint  {self.checkpoint}")
        print(f"forecasts   {self.forecasts}")
        print(f"pictures    {self.pictures}")
        print(f"page        {self.page}: open it in a browser, press Space to play")

    def train(self) -> None:
        """Train on the simulated scenes; an interrupted training resumes."""
        words: list[object] = ["--config", "demo", "--out", self.checkpoint.parent]
        words += ["--data.train", self.store, "--data.val", self.store]
        words += ["--trainer.epochs", self.args.epochs, "--seed", self.args.seed]
        if self.checkpoint.exists():
            words.append("--resume")
        command("train", *words)

    def evaluate(self, name: str, *model: object) -> dict[str, float]:
        """The metrics of a model."""
        file = self.args.out / f"{name}.json"
        command("evaluate", *model, "--store", self.store, "--json", file, "--overwrite")
        content: dict[str, Any] = json.loads(file.read_text())
        # without the tables and the protocol
        return {name: value for name, value in content.items() if isinstance(value, int | float)}

    def predict_and_plot(self) -> None:
        """Forecast the held-out scenes, and draw the worst and some random ones."""
        model = ("--checkpoint", self.checkpoint, "--store", self.store)
        with warnings.catch_warnings():
            # the file is for pictures of the agents, not for a submission
            warnings.filterwarnings("ignore", ".*av2 would.*", TrajformerWarning)
            command("predict", *model, "--out", self.forecasts, "--overwrite")
        choice = ("--worst", 2, "--random", 4, "--seed", self.args.seed)
        output = ("--out", self.pictures, "--overwrite")
        command("plot", self.store, "--forecasts", self.forecasts, *choice, *output)
        output = ("--out", self.page, "--overwrite")
        command("view", self.store, "--forecasts", self.forecasts, *output)

    def announce(self, number: int, text: str) -> None:
        """Print the headline of a step."""
        print(f"\n== {number} of 5, {self.seconds()} s: {text}", flush=True)

    def seconds(self) -> str:
        """Seconds since the start, rounded."""
        return f"{time.monotonic() - self.start_time:.0f}"


def command(name: str, *words: object) -> None:
    """Run a command of this package."""
    run_command(name, [str(word) for word in words])
