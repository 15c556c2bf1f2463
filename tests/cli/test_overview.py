"""The overview, the help texts and the list of recipes."""

from pathlib import Path

import pytest
from support.cli import error_line, run
from support.processes import run_python

from trajformer import cli
from trajformer.cli.models import read_words
from trajformer.recipes.checkpoint import load_checkpoint
from trajformer.recipes.names import (
    checkpoint_file,
    pretrained_card,
    pretrained_names,
    recipe_file,
    recipe_header,
    recipe_names,
)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_explains_every_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    text = capsys.readouterr().out
    for action in cli.load_command(command)[0]()._actions:
        assert any(
            name in text for name in action.option_strings or action.choices or [action.dest]
        ), action
        assert action.help or command == "train", action
    assert "<class" not in text


def test_the_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert (run("--help"), run("--version"), run(), run("fly")) == (0, 0, 2, 2)
    text = capsys.readouterr()
    assert all(f"\n  {name} " in text.out for name in cli.COMMANDS)
    assert text.err.startswith("trajformer: no command 'fly'")


CLI = "from trajformer import cli; cli.main"
IMPORTS = [  # each list is one process: statements, and packages that must still be absent afterwards
    [
        ("import trajformer", "numpy torch"),
        (f"{CLI}(['--help'])", "jsonargparse numpy torch"),
        (
            "import data_prep.readers.names, data_prep.engine.tasks",
            "torch pandas scipy",
        ),  # workers of a preparation
        (f"{CLI}(['recipes'])", "torch"),
    ],
    [
        (
            "import trajformer.data.loading",
            "lightning torchmetrics matplotlib jsonargparse data_prep pandas scipy",
        ),
        (
            "import trajformer.recipes.checkpoint, trajformer.evaluation.evaluate",
            "lightning jsonargparse torchmetrics",
        ),
    ],
]


@pytest.mark.parametrize("steps", IMPORTS)
def test_heavy_packages_are_imported_only_where_they_are_needed(
    steps: list[tuple[str, str]],
) -> None:
    lines = [
        f"{code}\nassert not set(sys.modules) & set({absent!r}.split())" for code, absent in steps
    ]
    done = run_python("-c", "\n".join(["import sys", *lines]))
    assert done.returncode == 0, done.stderr


def test_recipes_are_listed_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recipes") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == recipe_names()
    assert run("recipes", "agentformer/eth") == 0
    assert capsys.readouterr().out == recipe_file("agentformer/eth").read_text()


@pytest.mark.parametrize("name", recipe_names())
def test_recipe_headers_are_complete(name: str) -> None:
    assert all(recipe_header(recipe_file(name)).values())


def test_optional_words_are_not_called_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("recipes", "--help") == 0
    assert "(required" not in capsys.readouterr().out


def test_config_takes_a_name_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(recipe_file("mmtransformer_argoverse1"))
    for words in (["--config", "mmtransformer_argoverse1"], [f"--config={file}"]):
        assert read_words(words) == (["--config", file], "")
    assert read_words(["--seed", "1", *words, "--resume"])[0] == [
        "--config",
        file,
        "--seed",
        "1",
        "--resume",
    ]
    (tmp_path / "config.yaml").write_text("task: detection\n")
    resume = ["--resume", "--out", str(tmp_path)]
    assert read_words(resume) == (["--config", str(tmp_path / "config.yaml"), *resume], "detection")
    timed = ["train", "--config", "se2former_argoverse1", "--trainer.epochs", "3", "--out", "r"]
    assert "the length is trainer.minutes 25; add --trainer.minutes null" in error_line(
        capsys, *timed
    )
    assert "trainer.minutes 2;" in error_line(capsys, *timed, "--trainer.minutes=2")
    assert read_words([*timed[1:], "--trainer.minutes", "null"])
    assert (
        read_words(["--config", "heads/vit_digits"])[1]
        == read_words(["--task=classification"])[1]
        == "classification"
    )
    assert "moon: no such file and no recipe of this name" in error_line(
        capsys, "train", "--config", "moon", "--out", "r"
    )


def test_included_weights_are_listed_and_loaded_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pretrained") == 0
    listed = capsys.readouterr().out
    for name in pretrained_names():
        assert (
            f"pretrained:{name} (" in listed
            and checkpoint_file(f"pretrained:{name}").stat().st_size < 3e6
        )
        assert set(pretrained_card(name)) == {"data", "licence", "figures", "command"}
        model, recipe = load_checkpoint(f"pretrained:{name}")
        assert not model.training and not Path(recipe.data.train).is_absolute()
        assert getattr(recipe.model, "num_future", 12) in (12, 30, 60)
