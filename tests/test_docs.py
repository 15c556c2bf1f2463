"""Documentation: relative links resolve, anchors exist, and functions named next to a file are defined in it."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_relative_links_resolve(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        path, _, anchor = "".join(link).partition("#")
        if path.startswith(("http:", "https:")):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} does not exist"
        assert not anchor or anchor in anchors(target), f"{path} has no heading #{anchor}"


def test_the_path_of_a_scene_names_existing_functions() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"\[`([\w.]+)`\]\(\.\./([\w/]+\.py)\)", text)
    assert len(named) >= 15
    for name, path in named:
        nodes: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        for part in name.split("."):
            matching = [n for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef) and n.name == part]
            assert matching, f"{path} has no {name}"
            nodes = matching[0].body
