"""The documentation site: pages, links and navigation, without mkdocs."""

import re
from pathlib import Path, PurePosixPath

import pytest
import yaml
from docs_site.pages import ROOT, Staging, site_path

from trajformer.cli.commands import COMMANDS

NAVIGATION = ROOT / "tools" / "docs_site" / "nav.yml"
MADE = {"commands.md", "gallery.md", "live.md"}  # by tools/build_docs.py
NOT_LISTED = {"index.md", "SECURITY.md"}


@pytest.fixture(scope="module")
def staging(tmp_path_factory: pytest.TempPathFactory) -> Staging:
    made = Staging(tmp_path_factory.mktemp("site"))
    made.add_documents()
    made.add_gallery()
    made.add_commands()
    return made


def test_links_of_the_site_resolve(staging: Staging) -> None:
    links = 0
    for page in staging.folder.rglob("*.md"):
        if "source" in page.relative_to(staging.folder).parts or page.name == "commands.md":
            continue
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path = link.partition("#")[0]
            if not path or ":" in path:
                continue
            links += 1
            target = (page.parent / path).resolve()
            # The notebook becomes a page when it is executed.
            target = target.with_suffix(".ipynb") if target.stem == "tutorial" else target
            assert target.exists(), f"{page.name}: {link}"
    assert links > 200


def test_links_in_blocks_of_code_stay(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    text = "[a](README.md)\n```md\n[b](README.md)\n```\n[c](setup.py#L1) [d](https://x.org/y)\n"
    changed = staging._with_site_links(text, ROOT / "README.md")
    assert changed == (
        "[a](index.md)\n```md\n[b](README.md)\n```\n[c](source/setup.py.md#L1) [d](https://x.org/y)\n"
    )
    assert staging.shown == {ROOT / "setup.py"}


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("README.md", "index.md"),
        ("docs/data.md", "data.md"),
        ("docs/results/README.md", "results/index.md"),
        ("docs/images/view.png", "images/view.png"),
        ("docs/tutorial.ipynb", "tutorial.md"),
        ("trajformer/errors.py", "source/trajformer/errors.py.md"),
    ],
)
def test_site_path(path: str, page: str) -> None:
    assert site_path(ROOT / path) == PurePosixPath(page)


def test_every_page_is_in_the_navigation(staging: Staging) -> None:
    listed = set(re.findall(r"[\w-]+\.md", NAVIGATION.read_text(encoding="utf-8")))
    pages = {path.name for path in staging.folder.glob("*.md")}
    assert yaml.safe_load(NAVIGATION.read_text(encoding="utf-8"))
    assert (pages | MADE | {"tutorial.md"}) - listed <= NOT_LISTED
    assert listed - pages - MADE == {"tutorial.md"}


def test_the_gallery_has_every_picture(staging: Staging) -> None:
    gallery = (staging.folder / "gallery.md").read_text(encoding="utf-8")
    for picture in (ROOT / "docs" / "images").iterdir():
        assert f"images/{picture.name}" in gallery


def test_the_help_of_every_command_is_a_section(staging: Staging) -> None:
    text = (staging.folder / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(COMMANDS)
    assert "usage: trajformer evaluate" in text
    assert "usage: trajformer store merge" in text


def test_the_reference_lists_modules_with_docstrings(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    entries = {name: pages for entry in staging.add_reference() for name, pages in entry.items()}
    assert list(entries) == ["trajformer", "data_prep"]
    page = tmp_path / "reference" / "trajformer" / "core" / "attention.md"
    assert page.read_text(encoding="utf-8") == (
        "# trajformer.core.attention\n\n::: trajformer.core.attention\n"
    )
    assert not (tmp_path / "reference" / "trajformer" / "cli").exists()
