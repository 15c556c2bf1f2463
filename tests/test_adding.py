"""docs/adding.md, executed: its files are an installed package, and its commands run with it."""

import json
import os
import re
from pathlib import Path

import pytest
from support.processes import ROOT, environment, run_python

PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+) (?:file=(\S+)|(run))\n(.*?)^```$", PAGE, re.M | re.S)
ENTRY = re.compile(r'^\[project\.entry-points\."([\w.]+)"\]\n((?:\w+ = "[\w.:]+"\n)+)', re.M)
PROGRAM = """
import contextlib, io, runpy, sys
import pytest
from trajformer.cli import main

for line in {commands!r}:
    program, *words = line.split()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(words) == 0 if program == "trajformer" else runpy.run_path(words[0]), line
    if "constant_velocity" in line:
        assert "minFDE1" in out.getvalue()  # scores of the prepared store
with contextlib.redirect_stdout(io.StringIO()) as out:
    runpy.run_path("plain.py")
assert "best.ckpt" in out.getvalue()
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "test_my_model.py", "test_my_reader.py"]))
"""


def write_page(folder: Path) -> list[str]:
    """Write the files of the page as an installed package; return its commands."""
    entry_points = ""
    commands: list[str] = []
    for _, name, _, text in BLOCKS:
        if name == "entry_points":
            for group, lines in ENTRY.findall(text):
                entry_points += f"[{group}]\n" + lines.replace('"', "")
        elif name:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        else:
            commands += text.splitlines()
    (folder / "my_forecasting" / "__init__.py").touch()
    metadata = folder / "my_forecasting-1.0.dist-info"
    metadata.mkdir()
    head = "Metadata-Version: 2.1\nName: my_forecasting\nVersion: 1.0\n"
    (metadata / "METADATA").write_text(head)
    (metadata / "entry_points.txt").write_text(entry_points)
    return commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the package after all commands, Python files and tests of the page."""
    folder = tmp_path_factory.mktemp("adding")
    program = PROGRAM.format(commands=write_page(folder))
    path = os.pathsep.join([str(folder), str(ROOT)])
    variables = environment(PYTHONPATH=path)
    done = run_python("-c", program, cwd=folder, env=variables, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stdout.strip().splitlines()[-1].startswith("2 passed")
    return folder


def test_a_model_and_a_metric_from_another_package_are_trained_and_evaluated(folder: Path) -> None:
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["num_agents"] > 0
    assert 0 < scores["minFDE6"] < 100
    assert scores["travel1"] > 0
    header = (folder / "run" / "csv" / "metrics.csv").read_text().splitlines()[0]
    assert {"val/minFDE6", "val/travel1"} <= set(header.split(","))


def test_the_loss_of_another_package_is_used(folder: Path) -> None:
    assert "train/classification" in (folder / "run" / "csv" / "metrics.csv").read_text()


def test_the_forecasts_of_the_model_are_drawn(folder: Path) -> None:
    assert len(list((folder / "plots").glob("*.png"))) == 1
