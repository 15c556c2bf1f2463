"""docs/adding.md, executed: its files become an installed package, and its commands run with it."""

import json
import os
import re
from pathlib import Path

import pytest
from support.processes import ROOT, environment, run_python

BLOCK = re.compile(r"^```(\w+) (?:file=(\S+)|(run))\n(.*?)^```$", re.M | re.S)
ENTRY = re.compile(r'^\[project\.entry-points\."([\w.]+)"\]\n((?:\w+ = "[\w.:]+"\n)+)', re.M)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files in an empty folder, with the metadata of an installed package."""
    folder = tmp_path_factory.mktemp("adding")
    entries = ""
    for _, name, _, text in BLOCK.findall((ROOT / "docs" / "adding.md").read_text(encoding="utf-8")):
        if name == "entry_points":
            for group, lines in ENTRY.findall(text):
                entries += f"[{group}]\n" + lines.replace('"', "")
        elif name:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    (folder / "my_forecasting" / "__init__.py").touch()
    metadata = folder / "my_forecasting-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my_forecasting\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entries)
    return folder


def run(folder: Path, *words: str) -> str:
    """Run a Python command in the folder; fails with its error output."""
    done = run_python(*words, cwd=folder, env=environment(PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)])), timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def outputs(folder: Path) -> dict[str, str]:
    """Output of every command of the page, in order."""
    outputs = {}
    for _, _, runs, text in BLOCK.findall((ROOT / "docs" / "adding.md").read_text(encoding="utf-8")):
        for line in text.splitlines() if runs else ():
            program, *words = line.split()
            start = ["-m", "trajformer.cli"] if program == "trajformer" else []
            outputs[line] = run(folder, *start, *words)
    return outputs


def test_a_model_and_a_metric_from_another_package_are_trained_and_evaluated(folder: Path, outputs: dict[str, str]) -> None:
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["num_agents"] > 0 and 0 < scores["minFDE6"] < 100
    assert scores["travel1"] > 0
    logged = (folder / "run" / "csv" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"val/minFDE6", "val/travel1"} <= set(logged)


def test_the_same_in_plain_python(folder: Path, outputs: dict[str, str]) -> None:
    assert "minFDE6" in run(folder, "plain.py")


def test_a_model_with_a_loss_of_its_own_is_trained(folder: Path, outputs: dict[str, str]) -> None:
    code = """
from my_forecasting.best_mode import BestModeConfig
from my_forecasting.loss import BestModeLossConfig
from trajformer.recipes.plain import from_plain, to_plain
from trajformer.recipes.recipe import DataConfig, TrainConfig, TrainerConfig
from trajformer.training.forecasting import TASK
from trajformer.training.run import train
from trajformer.recipes.choices import MODELS
MODELS["best_mode"] = BestModeConfig
plain = {"model": {"best_mode": {"num_future": 60}}, "loss": {"best_mode": {}}}
assert from_plain(TrainConfig, plain).loss == BestModeLossConfig()
data = DataConfig(train="store", val="store", batch_size=8)
train(TrainConfig(BestModeConfig(60), data, trainer=TrainerConfig(epochs=1, log_every=1)), TASK, "run_loss", progress=False)
"""
    run(folder, "-c", code)
    assert "train/classification" in (folder / "run_loss" / "csv" / "metrics.csv").read_text()


def test_a_reader_from_another_package_prepares_a_store(outputs: dict[str, str]) -> None:
    [table] = [text for line, text in outputs.items() if "constant_velocity" in line]
    assert "minFDE1" in table


@pytest.mark.parametrize("name", ["test_my_model.py", "test_my_reader.py"])
def test_the_contract_tests_of_the_page_pass(folder: Path, outputs: dict[str, str], name: str) -> None:
    run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", name)
