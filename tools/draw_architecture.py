"""Check the imports between the packages and draw them as a Mermaid diagram in docs/architecture.md.

    python tools/draw_architecture.py [--check]

All imports count, also imports inside functions and under TYPE_CHECKING. Left out are the root module `trajformer`
(version and lazy public names) and imports within a package. The level of a package is the length of its longest chain of
imports. The drawing shows the transitive reduction: an arrow is left out if a longer chain of arrows connects the same
packages. `--check` prints the figures without drawing. A cycle is an error; the exit status is 1 if there is an upward import.
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
    files = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files
    }


def imported_modules(tree: ast.AST, known: set[str]) -> set[str]:
    """Modules among `known` that a syntax tree imports anywhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= inner & known or {str(node.module)}
    return names & known


def package_of(module: str) -> str:
    """The package that contains a module; a new package needs a line in ROLES."""
    parts = module.split(".")
    name = ".".join(parts[: 2 if parts[0] == "trajformer" else 1])
    if name not in ROLES and name != "trajformer":
        raise SystemExit(f"{module}: no package {name} in ROLES of {Path(__file__).name}")
    return name


@dataclass
class ImportGraph:
    """Packages in the order of ROLES, and the modules of one package that import another package."""

    packages: list[str]
    edges: dict[tuple[str, str], list[tuple[str, str]]] = field(
        default_factory=dict
    )  # (importer, imported) by packages

    @classmethod
    def read(cls, root: Path = ROOT) -> ImportGraph:
        """The graph of a source tree."""
        files = source_files(root)
        graph = cls([name for name in ROLES if name in {package_of(module) for module in files}])
        for module, path in files.items():
            for imported in sorted(
                imported_modules(ast.parse(path.read_text(encoding="utf-8")), set(files))
            ):
                pair = package_of(module), package_of(imported)
                if "trajformer" not in pair and pair[0] != pair[1]:
                    graph.edges.setdefault(pair, []).append((module, imported))
        return graph

    def imports(self, package: str) -> list[str]:
        """Packages that a package imports."""
        return [imported for importer, imported in self.edges if importer == package]

    def reachable(self, package: str) -> set[str]:
        """Packages that a package imports, directly or through others, in a graph without cycles."""
        return {
            name
            for imported in self.imports(package)
            for name in (imported, *self.reachable(imported))
        }

    def levels(self) -> dict[str, int]:
        """Level of each package: 0 without imports, otherwise one above the highest import; a cycle is a CycleError."""
        levels: dict[str, int] = {}
        for name in TopologicalSorter(
            {name: self.imports(name) for name in self.packages}
        ).static_order():
            levels[name] = 1 + max(
                (levels[imported] for imported in self.imports(name)), default=-1
            )
        return levels

    def upward(self) -> list[tuple[str, str]]:
        """Imports of modules from a package below the importer in ROLES."""
        order = list(ROLES)
        return [
            pair
            for edge, pairs in self.edges.items()
            if order.index(edge[0]) < order.index(edge[1])
            for pair in pairs
        ]

    def reduced(self) -> list[tuple[str, str]]:
        """Edges of the transitive reduction, sorted."""
        return [
            (a, b)
            for a, b in sorted(self.edges)
            if not any(b in self.reachable(c) for c in self.imports(a))
        ]


def report(graph: ImportGraph) -> str:
    """Figures of the graph as text."""
    levels, upward = graph.levels(), graph.upward()
    lines = [
        f"{len(graph.packages)} packages on {max(levels.values()) + 1} levels, {len(graph.edges)} edges"
    ]
    for name in sorted(graph.packages, key=levels.__getitem__):
        lines.append(f"{levels[name]}  {name}: {', '.join(graph.imports(name)) or '-'}")
    lines += [
        "no cycle",
        *(f"upward import: {module} imports {imported}" for module, imported in upward),
    ]
    return "\n".join(lines if upward else [*lines, "no upward import"])


def diagram(graph: ImportGraph) -> str:
    """The transitive reduction as a Mermaid flowchart: an arrow leads from a package to a package that it imports."""
    boxes = [
        f'    {name.replace(".", "_")}["{name}<br/>{ROLES[name]}"]'
        for name in reversed(graph.packages)
    ]
    arrows = [f"    {a.replace('.', '_')} --> {b.replace('.', '_')}" for a, b in graph.reduced()]
    return "\n".join(["flowchart TD", *boxes, *arrows]) + "\n"


def main() -> int:
    """Print the figures and update the diagram."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="print the figures only")
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
