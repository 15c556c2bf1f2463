"""The import analysis of the architecture drawing, on a small source tree."""

from graphlib import CycleError
from pathlib import Path

import pytest
from draw_architecture import PAGE, ImportGraph, diagram, report

FILES = {
    "trajformer/__init__.py": "from trajformer.cli import main",
    "trajformer/errors.py": "import numpy",
    "trajformer/core/blocks.py": "from trajformer import errors",
    "trajformer/scenes/scene.py": """
import trajformer.errors as e
from trajformer.scenes import store
""",
    "trajformer/scenes/store.py": "",
    "trajformer/models/tokens.py": """
from trajformer.core.blocks import Block
from trajformer.errors import E
""",
    "trajformer/cli/main.py": """
def run():
    from trajformer.models import tokens
    import data_prep.reader
""",
    "data_prep/reader.py": """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from trajformer.scenes.scene import Scene
""",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of the source tree."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_all_imports_between_packages_count_but_not_those_of_the_root_module(root: Path) -> None:
    graph = ImportGraph.read(root)
    imports = {package: sorted(graph.imports(package)) for package in graph.packages}
    assert imports == {
        "trajformer.errors": [],
        "trajformer.core": ["trajformer.errors"],
        "trajformer.scenes": ["trajformer.errors"],
        "trajformer.models": ["trajformer.core", "trajformer.errors"],
        "data_prep": ["trajformer.scenes"],
        "trajformer.cli": ["data_prep", "trajformer.models"],
    }
    assert graph.levels() == {
        "trajformer.errors": 0,
        "trajformer.core": 1,
        "trajformer.scenes": 1,
        "trajformer.models": 2,
        "data_prep": 2,
        "trajformer.cli": 3,
    }
    assert not graph.upward()


def test_arrows_that_follow_from_others_are_not_drawn(root: Path) -> None:
    graph = ImportGraph.read(root)
    edges = graph.reduced()
    assert len(edges) == 6
    assert ("trajformer.models", "trajformer.errors") not in edges
    lines = diagram(graph).splitlines()
    assert '    data_prep["data_prep<br/>raw data sets to scenes"]' in lines
    assert "    data_prep --> trajformer_scenes" in lines
    assert sum("-->" in line for line in lines) == 6
    assert len(lines) == 1 + len(graph.packages) + 6


def test_a_cycle_is_an_error(root: Path) -> None:
    late_import = "def f():\n    from trajformer.scenes.store import S"
    (root / "trajformer/errors.py").write_text(late_import)
    with pytest.raises(CycleError, match=r"trajformer\.(errors|scenes)"):
        report(ImportGraph.read(root))


def test_upward_imports_are_reported(root: Path) -> None:
    (root / "trajformer/errors.py").write_text("from trajformer.scenes.store import S")
    (root / "trajformer/scenes/scene.py").write_text("")
    upward = "upward import: trajformer.errors imports trajformer.scenes.store"
    assert upward in report(ImportGraph.read(root))


def test_the_diagram_in_the_documentation_is_current() -> None:
    drawn = f"```mermaid\n{diagram(ImportGraph.read())}```"
    assert drawn in PAGE.read_text(encoding="utf-8"), "run python tools/draw_architecture.py"
