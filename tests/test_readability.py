"""Density of the code: how much happens in a statement, and how often in compressed forms.

Libraries that are easy to read (detr, av2, torchtitan) have 1 to 2 large statements among 100, and
4 to 14 conditional expressions in 1,000 lines. The limits leave room; the text itself decides.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from draw_architecture import ROOT

LARGE_NODES = 20  # expression nodes (names, calls, operators, constants) of a statement
MAX_LARGE = {"trajformer": 0.04, "data_prep": 0.04, "tools": 0.04, "tests": 0.05}
MAX_PER_1000_LINES = {  # not for tests, which are full of tables
    "conditional expressions": 14,
    "assignments of several targets": 22,
    "comprehensions": 32,
}
SIMPLE = (
    ast.Assign,
    ast.AnnAssign,
    ast.AugAssign,
    ast.Return,
    ast.Expr,
    ast.Raise,
    ast.Assert,
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def nodes(folder: str) -> Iterator[ast.AST]:
    for path in files(folder):
        yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def form(node: ast.AST) -> str | None:
    """The compressed form that a node is, one of `MAX_PER_1000_LINES`."""
    if isinstance(node, ast.IfExp):
        return "conditional expressions"
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
        return "assignments of several targets"
    if isinstance(node, COMPREHENSIONS):
        return "comprehensions"
    return None


@pytest.mark.parametrize("folder", MAX_LARGE)
def test_few_statements_are_large(folder: str) -> None:
    sizes = []
    for node in nodes(folder):
        if isinstance(node, SIMPLE) and not is_docstring(node):
            sizes.append(sum(isinstance(part, ast.expr) for part in ast.walk(node)))
    large = sum(size > LARGE_NODES for size in sizes)
    assert large / len(sizes) <= MAX_LARGE[folder]


@pytest.mark.parametrize("folder", ["trajformer", "data_prep", "tools"])
def test_compressed_forms_are_rare(folder: str) -> None:
    counts = dict.fromkeys(MAX_PER_1000_LINES, 0)
    for node in nodes(folder):
        name = form(node)
        if name is not None:
            counts[name] += 1
    num_lines = 0
    for path in files(folder):
        num_lines += sum(bool(line.strip()) for line in path.read_text("utf-8").splitlines())
    rates = {name: 1000 * count / num_lines for name, count in counts.items()}
    assert {name: r for name, r in rates.items() if r > MAX_PER_1000_LINES[name]} == {}
