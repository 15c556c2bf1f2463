"""Check the imports between the packages and draw them: docs/images/architecture.svg.

    python tools/draw_architecture.py [--check] [--out docs/images/architecture.svg]

All imports count, also imports inside functions and under TYPE_CHECKING. Left out are the root module `trajformer`
(version and lazy public names) and imports within a package. The level of a package is the length of its longest chain of
imports. The drawing shows the transitive reduction: an arrow is left out if a longer chain of arrows connects the same
packages. `--check` prints the figures without drawing. The exit status is 1 if there is a cycle or an upward import.
"""

from __future__ import annotations

import argparse
import ast
import html
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROLES = {  # a package may import only from packages above it in this list
    "trajformer.errors": "errors with one-line messages",
    "trajformer.core": "attention, blocks, caches: tokens only",
    "trajformer.scenes": "scene, shards, store: no torch",
    "trajformer.data": "samples, batches, the forecast",
    "trajformer.losses": "losses of several models",
    "trajformer.models": "forecasting systems",
    "trajformer.recipes": "content of a run and a checkpoint",
    "trajformer.evaluation": "metrics, protocols, forecast files",
    "trajformer.plotting": "pictures of scenes and attention",
    "trajformer.training": "training runs (Lightning)",
    "trajformer.deploy": "online forecasts, export",
    "trajformer.heads": "reference tasks: text, images",
    "trajformer.testing": "contract tests for third parties",
    "data_prep": "raw data sets to scenes",
    "trajformer.cli": "commands",
    "tools": "benchmarks, comparisons, drawings",
}

# Analysis ------------------------------------------------------------------------------------------------------------


def source_files(root: Path = ROOT, folders: tuple[str, ...] = ("trajformer", "data_prep", "tools")) -> dict[str, Path]:
    """Python files by the dotted name of their module."""
    files = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


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
    """Packages and the modules of one package that import another package.

    Attributes:
        edges: importing modules and imported modules by (importer, imported) package.
    """

    packages: list[str]
    edges: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path = ROOT) -> ImportGraph:
        """The graph of a source tree."""
        files = source_files(root)
        graph = cls([name for name in ROLES if name in {package_of(module) for module in files}])
        for module, path in files.items():
            for imported in sorted(imported_modules(ast.parse(path.read_text(encoding="utf-8")), set(files))):
                pair = package_of(module), package_of(imported)
                if "trajformer" not in pair and pair[0] != pair[1]:
                    graph.edges.setdefault(pair, []).append((module, imported))
        return graph

    def imports(self, package: str) -> list[str]:
        """Packages that a package imports."""
        return [imported for importer, imported in self.edges if importer == package]

    def reachable(self, package: str) -> set[str]:
        """Packages that a package imports, directly or through others."""
        reached: set[str] = set()
        stack = self.imports(package)
        while stack:
            name = stack.pop()
            if name not in reached:
                reached.add(name)
                stack += self.imports(name)
        return reached

    def cycles(self) -> list[list[str]]:
        """Groups of packages that import each other."""
        groups = {tuple(other for other in self.packages if self._connected(name, other)) for name in self.packages}
        return [list(group) for group in sorted(groups) if group]

    def _connected(self, a: str, b: str) -> bool:
        return a in self.reachable(b) and b in self.reachable(a)

    def levels(self) -> dict[str, int]:
        """Level of each package: 0 without imports, otherwise one above the highest import; cycles are ignored."""
        levels: dict[str, int] = {}

        def level(name: str) -> int:
            if name not in levels:
                below = [other for other in self.imports(name) if not self._connected(name, other)]
                levels[name] = 1 + max(map(level, below), default=-1)
            return levels[name]

        return {name: level(name) for name in self.packages}

    def upward(self) -> list[tuple[str, str]]:
        """Imports of modules from a package below the importer in ROLES."""
        order = list(ROLES)
        return [pair for edge, pairs in self.edges.items() if order.index(edge[0]) < order.index(edge[1]) for pair in pairs]

    def reduced(self) -> list[tuple[str, str]]:
        """Edges of the transitive reduction, sorted."""
        return [(a, b) for a, b in sorted(self.edges) if not any(b in self.reachable(c) for c in self.imports(a) if c != b)]


def report(graph: ImportGraph) -> str:
    """Figures of the graph as text."""
    levels, upward = graph.levels(), graph.upward()
    lines = [f"{len(graph.packages)} packages on {max(levels.values()) + 1} levels, {len(graph.edges)} edges"]
    for level in sorted(set(levels.values())):
        for name in (name for name in graph.packages if levels[name] == level):
            lines.append(f"{level}  {name}: {', '.join(graph.imports(name)) or '-'}")
    lines += [f"cycle: {' <-> '.join(group)}" for group in graph.cycles()] or ["no cycle"]
    lines += [f"upward import: {module} imports {imported}" for module, imported in upward] or ["no upward import"]
    return "\n".join(lines)


# Drawing -------------------------------------------------------------------------------------------------------------

BOX, ROW, GAP, CHANNEL = (236, 46), 92, 22, 16  # pixels: size of a box, distance of rows, between boxes, of an edge in a row
Point = tuple[float, float]


def chains(graph: ImportGraph) -> list[list[str]]:
    """Reduced edges, each as names from top to bottom: package, one placeholder per level between, package."""
    levels = graph.levels()
    between = {(a, b): [f"{a}>{b}@{n}" for n in range(levels[a] - 1, levels[b], -1)] for a, b in graph.reduced()}
    return [[a, *names, b] for (a, b), names in between.items()]


def arrange(graph: ImportGraph) -> dict[str, Point]:
    """Centers of boxes and placeholders; rows are sorted by the mean position of their neighbors."""
    levels, paths = graph.levels(), chains(graph)
    rows: list[list[str]] = [[] for _ in range(max(levels.values()) + 1)]
    for name, level in levels.items():
        rows[level].append(name)
    for path in paths:
        for name in path[1:-1]:
            rows[int(name.split("@")[1])].append(name)
    links: dict[str, list[str]] = {name: [] for row in rows for name in row}
    for path in paths:
        for upper, lower in pairwise(path):
            links[upper].append(lower)
            links[lower].append(upper)
    x: dict[str, float] = {}
    for _ in range(24):
        for row in rows:
            placed = {name: [x[other] for other in links[name] if other in x] for name in row}
            row.sort(key=lambda name: sum(placed[name]) / len(placed[name]) if placed[name] else 0.0)
            widths = [_width(name) for name in row]
            left = -(sum(widths) + GAP * (len(row) - 1)) / 2
            for name, width in zip(row, widths, strict=True):
                x[name] = left + width / 2
                left += width + GAP
    left = min(x[name] - _width(name) / 2 for name in x) - GAP
    return {name: (x[name] - left, (len(rows) - 1 - level) * ROW + 40.0) for level, row in enumerate(rows) for name in row}


def _width(name: str) -> int:
    return CHANNEL if "@" in name else BOX[0]


def svg(graph: ImportGraph) -> str:
    """The drawing: an arrow leads from a package to a package that it imports."""
    position = arrange(graph)
    width = max(x + _width(name) / 2 for name, (x, _) in position.items()) + GAP
    height = max(y for _, y in position.values()) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">',
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,1 L8,4 L0,7 Z" fill="#555555"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#FFFFFF"/>',
    ]
    for path in chains(graph):
        points = " ".join(f"{x:.0f},{y:.0f}" for x, y in corners([position[name] for name in path]))
        parts.append(f'<polyline points="{points}" fill="none" stroke="#555555" marker-end="url(#head)"/>')
    for name in graph.packages:
        x, y = position[name]
        left, top = x - BOX[0] / 2, y - BOX[1] / 2
        parts.append(
            f'<rect x="{left:.0f}" y="{top:.0f}" width="{BOX[0]}" height="{BOX[1]}" rx="4" fill="#E8F1FA" stroke="#10486E"/>'
        )
        for text, dy, look in ((name, -4, 'font-size="14" font-weight="bold"'), (ROLES[name], 14, 'font-size="11.5"')):
            parts.append(f'<text x="{x:.0f}" y="{y + dy:.0f}" text-anchor="middle" {look}>{html.escape(text)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def corners(centers: list[Point]) -> Iterator[Point]:
    """Corners of an arrow: vertical next to boxes, slanted between rows."""
    for number, (x, y) in enumerate(centers):
        if number:
            yield x, y - BOX[1] / 2
        if number < len(centers) - 1:
            yield x, y + BOX[1] / 2


def main() -> int:
    """Print the figures and write the drawing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="print the figures only")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "architecture.svg")
    args = parser.parse_args()
    graph = ImportGraph.read()
    print(report(graph))
    if not args.check:
        args.out.write_text(svg(graph), encoding="utf-8")
        print(args.out)
    return 1 if graph.cycles() or graph.upward() else 0


if __name__ == "__main__":
    sys.exit(main())
