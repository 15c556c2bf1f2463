"""The notebook runs from its first to its last cell."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.cli import run

from trajformer.plotting.scene import SceneFigure

NOTEBOOK = Path(__file__).parents[1] / "docs" / "tutorial.ipynb"


def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    figures = 0
    pages = 0
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        assert not cell["outputs"], "outputs are not kept in the repository"
        source = "".join(cell["source"])
        if source.startswith("!"):
            for line in source.splitlines():
                _, *words = shlex.split(line.removeprefix("!"))
                assert run(*words) == 0, line
            continue
        *statements, last = source.splitlines()
        if last.startswith("plot_scene("):
            exec("\n".join(statements), names)
            figures += isinstance(eval(last, names), SceneFigure)
        elif last == "scene":
            pages += names["scene"]._repr_html_().startswith("<iframe sandbox=")
        else:
            exec(source, names)
    assert figures == 3
    assert pages == 1
    assert (tmp_path / "f.gif").stat().st_size > 10_000
