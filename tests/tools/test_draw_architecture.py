"""The import analysis of the architecture drawing, on a small source tree."""

from graphlib import CycleError
from pathlib import Path

import pytest
from draw_architecture import PAGE, ImportGraph, diagram, report

FILES = {
    "trajformer/__init__.py": "from trajformer.cli import main",
    "trajformer/errors.py": "import numpy",
    "trajformer/core/blocks.py": "from trajformer import errors",
    "trajformer/scenes/scene.py": "import trajformer.errors as e\nfrom trajformer.scenes import store",
    "trajformer/scenes/store.py": "",
    "trajformer/models/tokens.py": "from trajformer.core.blocks import Block\nfrom trajformer.errors import E",
    "trajformer/cli/main.py": "def run():\n    from trajformer.models import tokens\n    import data_prep.reader",
    "data_prep/reader.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from trajformer.scenes.scene import Scene",
}


def graph_of(root: Path, **changes: str) -> ImportGraph:
    for name, text in (FILES | changes).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return ImportGraph.read(root)


def test_all_imports_between_packages_count_but_not_those_of_the_root_module(
    tmp_path: Path,
) -> None:
    graph = graph_of(tmp_path)
    assert {package: sorted(graph.imports(package)) for package in graph.packages} == {
        "trajformer.errors": [],
        "trajformer.core": ["trajformer.errors"],
        "trajformer.scenes": ["trajformer.errors"],
        "trajformer.models": ["trajformer.core", "trajformer.errors"],
        "data_prep": ["trajformer.scenes"],
        "trajformer.cli": ["data_prep", "trajformer.models"],
    }
    assert [graph.levels()[package] for package in graph.packages] == [
        0,
        1,
        1,
        2,
        2,
        3,
    ] and not graph.upward()
    assert ("trajformer.models", "trajformer.errors") not in graph.reduced() and len(
        graph.reduced()
    ) == 6
    lines = diagram(graph).splitlines()
    assert (
        '    data_prep["data_prep<br/>raw data sets to scenes"]' in lines
        and "    data_prep --> trajformer_scenes" in lines
    )
    assert sum("-->" in line for line in lines) == 6 and len(lines) == 1 + len(graph.packages) + 6


def test_cycles_and_upward_imports_are_reported(tmp_path: Path) -> None:
    graph = graph_of(
        tmp_path, **{"trajformer/errors.py": "def f():\n    from trajformer.scenes.store import S"}
    )
    with pytest.raises(CycleError, match=r"trajformer\.(errors|scenes)"):
        report(graph)
    (tmp_path / "trajformer/scenes/scene.py").write_text("")
    assert "upward import: trajformer.errors imports trajformer.scenes.store" in report(
        ImportGraph.read(tmp_path)
    )


def test_the_diagram_in_the_documentation_is_current() -> None:
    drawn = f"```mermaid\n{diagram(ImportGraph.read())}```"
    assert drawn in PAGE.read_text(encoding="utf-8"), "run python tools/draw_architecture.py"
