"""Check the imports between the packages and draw them in docs/architecture.md (Mermaid).

    python tools/draw_architecture.py [--check]

All imports count, also imports inside functions and under TYPE_CHECKING. Left out are the root
module `trajformer` (version and lazy public names) and imports within a package. The level of a
package is the length of its longest chain of imports. The drawing shows the transitive reduction:
an arrow is left out if a longer chain of arrows connects the same packages. `--check` prints the
graph without drawing. A cycle is an error; the exit status is 1 if there is an upward import.
"""

from __future__ import annotations

import argparse
import ast
import sys
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
ROLES = {  # a package may import only from packages above it in this list
    "trajformer.errors": "errors with one-line messages",
    "trajformer.config": "configs with checked fields, plug-ins",
    "trajformer.core": "attention, blocks, caches: tokens only",
    "trajformer.scenes": "scene, shards, store: no torch",
    "trajformer.data": "samples, batches, the forecast",
    "trajformer.losses": "losses of several models",
    "trajformer.models": "forecasting systems",
    "trajformer.recipes": "content of a run and a checkpoint",
    "trajformer.evaluation": "metrics, protocols, forecast files",
    "trajformer.plotting": "pictures of scenes and attention",
    "trajformer.training": "training runs (Lightning)",
    "trajformer.deploy": "live forecasts, export, runtime",
    "trajformer.heads": "reference tasks: text, images",
    "trajformer.testing": "contract tests for third parties",
    "data_prep": "raw data sets to scenes",
    "trajformer.cli": "commands",
    "tools": "benchmarks, comparisons, drawings",
}


def source_files(
    root: Path = ROOT, folders: tuple[str, ...] = ("trajformer", "data_prep", "tools")
) -> dict[str, Path]:
    """Python files by the dotted name of their module."""
    files = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join(parts).removesuffix(".__init__")
            files[module] = path
    return files


def imported_modules(tree: ast.AST, known: set[str]) -> set[str]:
    """Modules among `known` that a syntax tree imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # `from package import module` or `from module import name`
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & known
            if submodules:
                names |= submodules
            else:
                names.add(str(node.module))
    return names & known


def package_of(module: str) -> str:
    """The package that contains a module; a new package needs a line in ROLES."""
    name, *inner = module.split(".")
    if name == "trajformer" and inner:
        name = f"trajformer.{inner[0]}"
    if name not in ROLES and name != "trajformer":
        raise SystemExit(f"{module}: no package {name} in ROLES of {Path(__file__).name}")
    return name


@dataclass
class ImportGraph:
    """Imports between packages.

    Attributes:
        packages: names in the order of ROLES.
        edges: by (importer, imported package), the modules of the importer and their imports.
    """

    packages: list[str]
    edges: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path = ROOT) -> ImportGraph:
        """The graph of a source tree."""
        files = source_files(root)
        present = {package_of(module) for module in files}
        graph = cls([name for name in ROLES if name in present])
        for module, path in files.items():
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for imported in sorted(imported_modules(tree, set(files))):
                graph.add(module, imported)
        return graph

    def add(self, module: str, imported: str) -> None:
        """Add an import of a module, unless it stays in a package or concerns the root module."""
        importer_package = package_of(module)
        imported_package = package_of(imported)
        pair = (importer_package, imported_package)
        if "trajformer" not in pair and importer_package != imported_package:
            self.edges.setdefault(pair, []).append((module, imported))

    def imports(self, package: str) -> list[str]:
        """Packages that a package imports."""
        return [imported for importer, imported in self.edges if importer == package]

    def reachable(self, package: str) -> set[str]:
        """Packages that a package imports, directly or through others (no cycle)."""
        reached = set()
        for imported in self.imports(package):
            reached |= {imported, *self.reachable(imported)}
        return reached

    def levels(self) -> dict[str, int]:
        """Level of each package: 0 without imports, otherwise one above the highest import.

        Raises CycleError: packages import each other.
        """
        predecessors = {name: self.imports(name) for name in self.packages}
        levels: dict[str, int] = {}
        for name in TopologicalSorter(predecessors).static_order():
            imported_levels = [levels[imported] for imported in predecessors[name]]
            levels[name] = 1 + max(imported_levels, default=-1)
        return levels

    def upward(self) -> list[tuple[str, str]]:
        """Imports of modules from a package below the importer in ROLES."""
        order = list(ROLES)
        upward = []
        for (importer, imported), modules in self.edges.items():
            if order.index(importer) < order.index(imported):
                upward += modules
        return upward

    def reduced(self) -> list[tuple[str, str]]:
        """Edges of the transitive reduction, sorted."""
        return [edge for edge in sorted(self.edges) if not self._has_longer_chain(*edge)]

    def _has_longer_chain(self, importer: str, imported: str) -> bool:
        return any(imported in self.reachable(between) for between in self.imports(importer))


def report(graph: ImportGraph) -> str:
    """Sizes of the graph, a line per package, and upward imports."""
    levels = graph.levels()
    num_levels = max(levels.values()) + 1
    packages = len(graph.packages)
    lines = [f"{packages} packages on {num_levels} levels, {len(graph.edges)} edges"]
    for name in sorted(graph.packages, key=levels.__getitem__):
        imports = ", ".join(graph.imports(name)) or "-"
        lines.append(f"{levels[name]}  {name}: {imports}")
    lines.append("no cycle")
    upward = graph.upward()
    for module, imported in upward:
        lines.append(f"upward import: {module} imports {imported}")
    if not upward:
        lines.append("no upward import")
    return "\n".join(lines)


def diagram(graph: ImportGraph) -> str:
    """The transitive reduction as a Mermaid flowchart.

    An arrow leads from a package to a package that it imports.
    """
    lines = ["flowchart TD"]
    for name in reversed(graph.packages):
        lines.append(f'    {_node(name)}["{name}<br/>{ROLES[name]}"]')
    for importer, imported in graph.reduced():
        lines.append(f"    {_node(importer)} --> {_node(imported)}")
    return "\n".join(lines) + "\n"


def _node(package: str) -> str:
    return package.replace(".", "_")


def main() -> int:
    """Print the graph and update the diagram."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="print the graph only")
    args = parser.parse_args()
    graph = ImportGraph.read()
    print(report(graph))
    if not args.check:
        before, start, rest = PAGE.read_text(encoding="utf-8").partition("```mermaid\n")
        _, end, after = rest.partition("```")
        PAGE.write_text(before + start + diagram(graph) + end + after, encoding="utf-8")
    return 1 if graph.upward() else 0


if __name__ == "__main__":
    sys.exit(main())
