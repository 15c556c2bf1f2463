"""The overview, the help texts, and the lists of recipes and weights."""

import re
from argparse import SUPPRESS
from pathlib import Path

import pytest
from support.cli import run
from support.processes import environment, run_python

from trajformer.cli.commands import COMMANDS, load_command
from trajformer.models.forecaster import Forecaster
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.names import (
    checkpoint_file,
    pretrained_card,
    pretrained_names,
    pretrained_scenes,
    recipe_file,
    recipe_header,
    recipe_names,
)


def commands() -> list[list[str]]:
    """All commands, and the commands that have variants with each of them."""
    words = [[name] for name in COMMANDS]
    for name in COMMANDS:
        variants = getattr(load_command(name), "VARIANTS", ())
        words += [[name, variant] for variant in variants]
    return words


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_help_explains_every_option(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words, "--help") == 0
    text = capsys.readouterr().out
    assert "<class '" not in text
    command, *variant = words
    parser = load_command(command).parser(*variant)
    for action in parser._actions:
        names = action.option_strings or action.choices or [action.dest]
        assert action.help == SUPPRESS or any(name in text for name in names), action
        assert action.help or command == "train", action  # fields of a recipe may have none


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert run("--version") == 0
    assert run() == 2
    assert run("fly") == 2
    text = capsys.readouterr()
    for name in COMMANDS:
        assert f"\n  {name} " in text.out
    assert text.err.startswith("trajformer: no command 'fly'")


CLI = "from trajformer import cli; cli.main"
IMPORTS = [  # lists of statements and of packages that must still be absent after them, by process
    [
        ("import trajformer", "numpy torch"),
        (f"{CLI}(['--help'])", "jsonargparse numpy torch"),
        # workers of a preparation
        ("import data_prep.readers.names, data_prep.engine.tasks", "torch pandas scipy"),
        (f"{CLI}(['recipes'])", "torch"),
    ],
    [
        (
            "import trajformer.data.loading",
            "lightning torchmetrics matplotlib jsonargparse data_prep pandas scipy",
        ),
        (
            "import trajformer.recipes.checkpoint, trajformer.evaluation.evaluate",
            "lightning jsonargparse torchmetrics scipy",
        ),
    ],
]


@pytest.mark.parametrize("steps", IMPORTS)
def test_heavy_packages_are_imported_only_where_they_are_needed(
    steps: list[tuple[str, str]],
) -> None:
    lines = ["import sys"]
    for code, absent in steps:
        lines.append(code)
        lines.append(f"assert not set(sys.modules) & set({absent!r}.split())")
    done = run_python("-c", "\n".join(lines))
    assert done.returncode == 0, done.stderr


PARSERS = """
import sys
from trajformer.cli.commands import COMMANDS, load_command
for name in {*COMMANDS} - {"train"}:
    module = load_command(name)
    for variant in ("", *getattr(module, "VARIANTS", ())):
        module.parser(*filter(None, [variant]))
    assert not set(sys.modules) & {"jsonargparse", "lightning"}, name
"""


def test_only_train_imports_the_parser_of_recipes_and_lightning_for_its_options() -> None:
    done = run_python("-c", PARSERS)
    assert done.returncode == 0, done.stderr


def test_recipes_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recipes") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == recipe_names()
    name = recipe_names()[0]
    assert run("recipes", name) == 0
    assert capsys.readouterr().out == recipe_file(name).read_text()


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_headers_are_complete(name: str) -> None:
    assert all(recipe_header(recipe_file(name)).values())


def test_optional_words_are_not_called_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recipes", "--help") == 0
    assert "(required" not in capsys.readouterr().out


def test_included_weights_state_their_clock_and_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pretrained") == 0
    listed = capsys.readouterr().out
    argoverse1 = "20 steps observed (2 s), 30 steps predicted (3 s), 0.1 s a step, positions in m"
    assert f"{argoverse1}, with map" in listed
    drone = "8 steps observed (3.2 s), 12 steps predicted (4.8 s), 0.4 s a step, positions in px"
    assert f"{drone}, without map" in listed


def test_included_weights_are_listed_and_loaded_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pretrained") == 0
    listed = capsys.readouterr().out
    for name in pretrained_names():
        assert f"pretrained:{name} (" in listed
        assert checkpoint_file(f"pretrained:{name}").stat().st_size < 3e6
        card = set(pretrained_card(name))
        assert card - {"length"} == {"data", "licence", "figures", "command"}
        model, recipe = load_checkpoint(f"pretrained:{name}")
        assert isinstance(model, Forecaster)
        assert pretrained_scenes(name) == model.trained_on
        assert not model.training
        assert not Path(recipe.data.train).is_absolute()
        assert getattr(recipe.model, "num_future", 12) in (12, 30, 60)


INTERRUPTED_IMPORT = """
import sys

class Finder:
    def find_spec(self, name, *rest):
        if name == "NAME":
            raise KeyboardInterrupt

from trajformer import cli
sys.meta_path.insert(0, Finder())
sys.exit(cli.main(["recipes"]))
"""


@pytest.mark.parametrize("name", ["trajformer.errors", "trajformer.cli.recipes"])
def test_ctrl_c_during_an_import_is_one_line(name: str) -> None:
    done = run_python("-c", INTERRUPTED_IMPORT.replace("NAME", name))
    assert done.returncode == 130
    assert re.fullmatch("trajformer.*: interrupted; run the same command again\n", done.stderr)


def test_matplotlib_reads_no_settings_of_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_bytes(b"\xff\xfe")
    program = "from trajformer.cli import status; status.exit_status('x', run)"
    program = f"run = lambda: __import__('matplotlib'); {program}"
    done = run_python("-c", program, cwd=tmp_path, env=environment(MPLBACKEND="nonsense"))
    assert (done.returncode, done.stderr) == (0, "")
