"""The import analysis of the architecture drawing, on a small source tree."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from draw_architecture import ROOT, ImportGraph, corners, report, svg

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


def test_all_imports_between_packages_count_but_not_those_of_the_root_module(tmp_path: Path) -> None:
    graph = graph_of(tmp_path)
    assert {package: sorted(graph.imports(package)) for package in graph.packages} == {
        "trajformer.errors": [],
        "trajformer.core": ["trajformer.errors"],
        "trajformer.scenes": ["trajformer.errors"],
        "trajformer.models": ["trajformer.core", "trajformer.errors"],
        "data_prep": ["trajformer.scenes"],
        "trajformer.cli": ["data_prep", "trajformer.models"],
    }
    assert list(graph.levels().values()) == [0, 1, 1, 2, 2, 3] and not graph.cycles() and not graph.upward()
    assert ("trajformer.models", "trajformer.errors") not in graph.reduced() and len(graph.reduced()) == 6


def test_cycles_and_upward_imports_are_reported(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, **{"trajformer/core/cache.py": "def f():\n    from trajformer.models.tokens import T"})
    assert graph.cycles() == [["trajformer.core", "trajformer.models"]]
    assert graph.upward() == [("trajformer.core.cache", "trajformer.models.tokens")]
    text = report(graph)
    assert "cycle: trajformer.core <-> trajformer.models" in text
    assert "upward import: trajformer.core.cache imports trajformer.models.tokens" in text


def test_a_new_package_needs_a_role(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no package trajformer\.helpers in ROLES"):
        graph_of(tmp_path, **{"trajformer/helpers/a.py": ""})


def test_the_drawing_has_a_box_per_package_and_an_arrow_per_reduced_edge(tmp_path: Path) -> None:
    graph = graph_of(tmp_path)
    drawing = ElementTree.fromstring(svg(graph))
    space = "{http://www.w3.org/2000/svg}"
    boxes = {text.text: float(text.attrib["y"]) for text in drawing.iter(f"{space}text")}
    assert set(graph.packages) <= boxes.keys() and len(drawing.findall(f"{space}polyline")) == 6
    assert all(boxes[upper] < boxes[lower] for upper, lower in graph.reduced())
    assert list(corners([(0.0, 0.0), (5.0, 100.0)])) == [(0.0, 23.0), (5.0, 77.0)]


def test_the_committed_drawing_is_current() -> None:
    committed = (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    assert committed == svg(ImportGraph.read()), "run python tools/draw_architecture.py"
