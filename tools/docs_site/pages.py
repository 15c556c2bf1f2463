"""Pages of the documentation site, made from the files of the repository.

The pages in `docs/` are written for a reader of the repository, with links to source files and to
`README.md`. A site has its own folder of pages, so they are copied there, and links are changed:
a link to a source file leads to a page that shows this file.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from trajformer.cli.commands import COMMANDS, load_command

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
PACKAGES = ("trajformer", "data_prep")
# Commands have a page, made from their help texts.
NO_REFERENCE = (ROOT / "trajformer" / "cli",)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".js": "js", ".sh": "sh"}

_FENCE = re.compile(r"^(```|~~~).*?^\1[ ]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_IMAGE = re.compile(r"!\[([^\]]+)\]\(([^)\s]+)\)")


@dataclass
class Staging:
    """A folder of pages for mkdocs.

    Attributes:
        folder: where the pages are written.
        shown: files and folders of the repository that have a page under `source/`, because a
            page links to them.
    """

    folder: Path
    shown: set[Path] = field(default_factory=set)

    def add_documents(self) -> None:
        """Copy `docs/`, the pages of the root, and the files that they link to."""
        shutil.copytree(ROOT / "docs", self.folder, dirs_exist_ok=True)
        pages = [ROOT / name for name in ROOT_PAGES]
        pages += sorted((ROOT / "docs").rglob("*.md"))
        for page in pages:
            text = self._with_site_links(page.read_text(encoding="utf-8"), page)
            target = self.folder / site_path(page)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        # `results/README.md` became `results/index.md`.
        for readme in self.folder.rglob("README.md"):
            readme.unlink()
        for path in sorted(self.shown):
            self._show_source(path)

    def add_gallery(self) -> None:
        """A page with every picture of the documentation, linked to the page that explains it."""
        lines = ["# Gallery", "", "Every picture links to the page with its data and commands.", ""]
        seen: set[Path] = set()
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
            for text, link in _IMAGE.findall(page.read_text(encoding="utf-8")):
                picture = (page.parent / link).resolve()
                if picture in seen:
                    continue
                seen.add(picture)
                source = site_path(picture)
                lines += [f"[![{text}]({source})]({site_path(page)})", "", f"*{text}*", ""]
        (self.folder / "gallery.md").write_text("\n".join(lines), encoding="utf-8")

    def add_commands(self) -> None:
        """A page with the help text of each command."""
        lines = ["# Commands", ""]
        for name, command in COMMANDS.items():
            module = load_command(name)
            lines += [f"## {name}", "", f"{command.summary.capitalize()}.", ""]
            for variant in getattr(module, "VARIANTS", None) or [""]:
                parser = module.parser(*filter(None, [variant]))
                parser.prog = f"trajformer {name} {variant}".rstrip()
                lines += ["```text", parser.format_help().rstrip(), "```", ""]
        (self.folder / "commands.md").write_text("\n".join(lines), encoding="utf-8")

    def add_reference(self) -> list[dict[str, object]]:
        """A page for each public module with docstrings; returns the entries of the navigation."""
        entries: list[dict[str, object]] = []
        for package in PACKAGES:
            entries.append({package: self._reference_of(ROOT / package)})
        return entries

    def _reference_of(self, folder: Path) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = []
        for path in sorted(folder.iterdir()):
            if path in NO_REFERENCE:
                continue
            if path.is_dir() and (path / "__init__.py").exists():
                inner = self._reference_of(path)
                if inner:
                    entries.append({path.name: inner})
            elif path.suffix == ".py" and _has_public_names(path):
                entries.append(self._reference_page(path))
        return entries

    def _reference_page(self, path: Path) -> dict[str, object]:
        module = path.relative_to(ROOT).with_suffix("")
        parts = list(module.parts)
        if parts[-1] == "__init__":
            parts.pop()
        name = ".".join(parts)
        page = PurePosixPath("reference", *module.parts[:-1], f"{module.name.strip('_')}.md")
        target = self.folder / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"# {name}\n\n::: {name}\n", encoding="utf-8")
        return {parts[-1]: str(page)}

    def _with_site_links(self, text: str, page: Path) -> str:
        """Links of a page, outside of blocks of code, as the site needs them."""
        pieces = []
        end = 0
        for fence in _FENCE.finditer(text):
            pieces.append(self._replace_links(text[end : fence.start()], page))
            pieces.append(fence[0])
            end = fence.end()
        pieces.append(self._replace_links(text[end:], page))
        return "".join(pieces)

    def _replace_links(self, text: str, page: Path) -> str:
        return _LINK.sub(lambda match: match[1] + self._site_link(match[2], page) + match[3], text)

    def _site_link(self, link: str, page: Path) -> str:
        path, hash_, anchor = link.partition("#")
        if not path or ":" in path:
            return link
        target = (page.parent / path).resolve()
        is_document = target.is_relative_to(ROOT / "docs") and target.is_file()
        if not is_document and target.relative_to(ROOT).as_posix() not in ROOT_PAGES:
            self.shown.add(target)
        here = site_path(page).parent
        return os.path.relpath(site_path(target), here) + hash_ + anchor

    def _show_source(self, path: Path) -> None:
        """A page with the text of a file, or the list of a folder."""
        name = path.relative_to(ROOT).as_posix()
        target = self.folder / site_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            files = sorted(entry.name for entry in path.iterdir() if entry.name[0] not in "._")
            body = "\n".join(f"- `{file}`" for file in files)
        else:
            content = path.read_text(encoding="utf-8").rstrip()
            body = f"````{LANGUAGES.get(path.suffix, 'text')}\n{content}\n````"
        target.write_text(f"# `{name}`\n\n{body}\n", encoding="utf-8")


def site_path(path: Path) -> PurePosixPath:
    """The place of a file or folder of the repository within the site."""
    relative = PurePosixPath(path.relative_to(ROOT).as_posix())
    if relative.name == "README.md":
        relative = relative.with_name("index.md")
    if relative.parts[0] == "docs":
        page = PurePosixPath(*relative.parts[1:])
        return page.with_suffix(".md") if page.suffix == ".ipynb" else page
    if str(relative) in ("index.md", *ROOT_PAGES):
        return relative
    return PurePosixPath("source", f"{relative}.md")


def _has_public_names(path: Path) -> bool:
    """Whether a module defines public functions or classes with a docstring."""
    if path.name == "__main__.py":
        return False
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        if not statement.name.startswith("_") and ast.get_docstring(statement):
            return True
    return False
