"""Training a translator, and the command that uses it."""

import io
import json
import shutil
from pathlib import Path

import pytest
from support.cli import error_line, run
from support.heads import corpus

from trajformer.heads.translation.data import read_lines
from trajformer.heads.translation.task import TranslationRecipe
from trajformer.recipes.checkpoint import load_checkpoint

RECIPE = """
task: translation
model:
  block: {width: 32, heads: 2, feedforward: 64, dropout: 0.1, norm_first: true}
  layers: [1, 1]
data: {source: de, target: en, vocabulary: 80, batch_size: 32, bucket: 4}
optim: {learning_rate: 1.0e-2, schedule: inverse_sqrt, warmup: 0.1, average: 0.5}
trainer: {epochs: 8, threads: 1, accelerator: cpu, validate_every: 4, log_every: 5}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a toy language pair in text/, a recipe, and a run."""
    folder = tmp_path_factory.mktemp("translation")
    text = folder / "text"
    text.mkdir()
    for split, count in (("train", 400), ("val", 12)):
        target = corpus(count)
        source = [sentence[:-1].upper() + "!" for sentence in target]
        (text / f"{split}.en").write_text("\n".join(target) + "\n")
        (text / f"{split}.de").write_text("\n".join(source) + "\n")
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    assert run("train", "--config", recipe, "--data.root", text, "--out", folder / "run") == 0
    return folder


def test_a_translation_is_written_scored_and_drawn(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = trained / "run" / "best.ckpt"
    text = trained / "text"
    out = tmp_path / "out.txt"
    output = ("--out", out, "--pictures", 2, "--attention", tmp_path / "maps")
    score = ("--reference", text / "val.en")
    assert run("translate", text / "val.de", "--checkpoint", checkpoint, *score, *output) == 0
    metrics, *pictures = capsys.readouterr().out.splitlines()
    assert json.loads(metrics)["BLEU"] > 60
    assert "tok:13a" in json.loads(metrics)["signature"]
    assert len(pictures) == 2
    for picture in pictures:
        assert Path(picture).stat().st_size > 5000

    model, recipe = load_checkpoint(checkpoint, TranslationRecipe)
    assert recipe.optim.schedule == "inverse_sqrt"
    translated = dict(model.translate(read_lines(text / "val.de")))
    assert translated == dict(enumerate(read_lines(out)))


def test_a_greedy_translation_is_printed(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = ("--checkpoint", trained / "run" / "best.ckpt")
    capsys.readouterr()
    assert run("translate", trained / "text" / "val.de", *known, "--beam", 1) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12


def test_standard_input_has_the_lines_of_a_file(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["ONE\u2028TWO!", "THREE\x0cFOUR!", "", "FIVE!"]
    file = tmp_path / "in"
    file.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(file.read_text()))
    known = ("--checkpoint", trained / "run" / "last.ckpt", "--beam", 1)
    assert run("translate", file, *known, "--out", tmp_path / "from_file") == 0
    assert run("translate", "-", *known, "--out", tmp_path / "from_input") == 0
    written = (tmp_path / "from_file").read_text()
    assert (tmp_path / "from_input").read_text() == written
    assert written.count("\n") == 4


def test_mistakes_of_the_user_are_one_line_errors(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = trained / "text"
    short = tmp_path / "short"
    short.write_text("one\n")
    known = ("--checkpoint", trained / "run" / "best.ckpt")
    recipe = ("--config", trained / "recipe.yaml")
    cases: list[tuple[tuple[object, ...], str]] = [
        (("translate", tmp_path / "none", *known), "none: cannot be read"),
        (("translate", text / "val.de", *known, "--reference", short), "has 1 lines"),
        (("evaluate", *known, "--store", tmp_path), "expected one for forecasting"),
        (("train", *recipe, "--out", tmp_path / "x"), "data.root"),
        (("train", *recipe, "--out", trained / "run", "--data.root", text), "--resume"),
    ]
    for words, message in cases:
        assert message in error_line(capsys, *words)


def test_a_run_on_other_text_is_not_resumed(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained / "run", tmp_path / "run")
    shutil.copytree(trained / "text", tmp_path / "text")
    with (tmp_path / "text" / "train.en").open("a") as file:
        file.write("quite another sentence.\n" * 40)
    with (tmp_path / "text" / "train.de").open("a") as file:
        file.write("QUITE ANOTHER SENTENCE!\n" * 40)
    folders = ("--data.root", tmp_path / "text", "--out", tmp_path / "run")
    longer = ("--resume", "--trainer.epochs", 10)
    assert run("train", "--config", trained / "recipe.yaml", *folders, *longer) == 1
    assert "tokenizer" in capsys.readouterr().err
