"""The structure of the code: allowed imports, sizes, documentation, and rules that hold for all modules.

The table of allowed imports is in docs/architecture.md, and only there.
"""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from draw_architecture import ROOT, ImportGraph, imported_modules, source_files

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 600, 80, 8
MAX_NAMES, MAX_NODES, MAX_LEVELS, MAX_EDGES = 14, 17, 11, 90
COMMON = {"trajformer.errors", "trajformer.config"}  # every package may import them
PRINTING = ("trajformer.cli", "tools")  # modules that may print
FORBIDDEN_LIBRARIES = {  # package: libraries that it must not import, anywhere
    "trajformer": {"torch_geometric"},
    "trajformer.scenes": {"torch", "lightning", "pandas"},
    "trajformer.core": {"lightning", "jsonargparse"},
    "trajformer.data": {"lightning", "jsonargparse"},
    "trajformer.losses": {"lightning", "jsonargparse"},
    "trajformer.models": {"lightning", "jsonargparse"},
    "trajformer.recipes": {"lightning", "jsonargparse"},
}
LAZY_LIBRARIES = {
    ("trajformer.scenes", "pandas"),
    ("trajformer", "torch_geometric"),
}  # allowed inside functions
Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def sources() -> dict[str, Path]:
    return source_files()


@functools.cache
def library() -> dict[str, Path]:
    """Modules of the two installed packages, without tools."""
    return {module: path for module, path in sources().items() if not module.startswith("tools")}


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(sources()[module].read_text(encoding="utf-8"))


@functools.cache
def graph() -> ImportGraph:
    return ImportGraph.read()


@functools.cache
def allowed_imports() -> dict[str, set[str]]:
    """The table of docs/architecture.md: packages that each package may import."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index("| package | may import |") :].split("\n\n")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]
    ]
    names = [row[0].strip("`") for row in rows]

    def full(name: str) -> str:
        return name if name in ("data_prep", "tools") else f"trajformer.{name}"

    allowed = {}
    for name, row in zip(names, rows, strict=True):
        words = re.sub(r"\([^)]*\)", "", row[1])
        imported = (
            names
            if words.startswith("everything")
            else [word for word in re.split(r"[ ,]+", words) if word in names]
        )
        allowed[full(name)] = {full(other) for other in imported} | COMMON
    return allowed | {"trajformer.errors": set(), "trajformer.config": {"trajformer.errors"}}


def functions(module: str) -> Iterator[tuple[str, Function, bool]]:
    """(qualified name, definition, whether it is a method) of all functions, including nested ones."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function, bool]]:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, Function | ast.ClassDef):
                name = f"{prefix}.{child.name}"
                if isinstance(child, Function):
                    yield name, child, isinstance(node, ast.ClassDef)
            yield from visit(child, name)

    yield from visit(tree(module), module)


def calls(module: str) -> Iterator[tuple[str, ast.Call]]:
    """(dotted name of the called function, call)."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def names_used(module: str) -> Iterator[tuple[str, int]]:
    """Every name, attribute and imported name, with its line."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.name, node.lineno) for alias in node.names)


def test_packages_import_only_what_the_table_allows() -> None:
    """Imports inside functions and under TYPE_CHECKING count."""
    allowed = allowed_imports()
    forbidden = {
        pair: where for pair, where in graph().edges.items() if pair[1] not in allowed[pair[0]]
    }
    assert forbidden == {}


def test_the_import_graph_is_small_and_has_no_cycle() -> None:
    assert len(graph().packages) <= MAX_NODES
    assert max(graph().levels().values()) + 1 <= MAX_LEVELS  # an error if there is a cycle
    assert len(graph().edges) <= MAX_EDGES


def test_modules_of_a_package_do_not_import_each_other_in_a_circle() -> None:
    known, done = set(library()), set()
    imports = {module: imported_modules(tree(module), known) - {module} for module in known}

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(imports[module]):
                visit(other, (*path, module))
            done.add(module)

    for module in sorted(known):
        visit(module, ())


@pytest.mark.parametrize(
    ("part", "may_import"),
    [
        ("data_prep.readers", {"data_prep.reader", "trajformer"}),
        ("data_prep.engine", {"data_prep.reader", "trajformer"}),
        ("data_prep.synthetic", COMMON),
    ],
)
def test_parts_of_data_prep_are_separate(part: str, may_import: set[str]) -> None:
    for module in library():
        if module.startswith(part):
            others = {
                m for m in imported_modules(tree(module), set(library())) if not m.startswith(part)
            }
            strangers = {m for m in others if not {m, m.split(".")[0]} & may_import}
            assert strangers == set(), f"{module} imports {strangers}"


def test_lower_packages_do_not_import_heavy_libraries() -> None:
    found = []
    for module in library():
        for package, banned in FORBIDDEN_LIBRARIES.items():
            if module == package or module.startswith(f"{package}."):
                lazy = {name for name in banned if (package, name) in LAZY_LIBRARIES}
                top_level = {
                    alias.name.split(".")[0]
                    for node in tree(module).body
                    for alias in getattr(node, "names", [])
                }
                top_level |= {
                    str(node.module).split(".")[0]
                    for node in tree(module).body
                    if isinstance(node, ast.ImportFrom)
                }
                found += [
                    f"{module}: {name}"
                    for name in sorted((_libraries(module) & (banned - lazy)) | (top_level & lazy))
                ]
    assert found == []


def _libraries(module: str) -> set[str]:
    nodes = list(ast.walk(tree(module)))
    names = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[0] for name in names}


def test_imports_are_absolute_no_except_is_bare_and_only_commands_print() -> None:
    nodes = [(m, node) for m in sources() for node in ast.walk(tree(m))]
    assert [
        f"{m}:{node.lineno}" for m, node in nodes if isinstance(node, ast.ImportFrom) and node.level
    ] == []
    assert [
        f"{m}:{node.lineno}"
        for m, node in nodes
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ] == []
    silent = [m for m in library() if not m.startswith(PRINTING)]
    assert [
        f"{m}:{call.lineno}" for m in silent for name, call in calls(m) if name == "print"
    ] == []


def test_files_and_functions_are_short_and_names_are_few() -> None:
    lengths = {
        module: len(path.read_text(encoding="utf-8").splitlines())
        for module, path in sources().items()
    }
    assert {module: n for module, n in lengths.items() if n > MAX_FILE_LINES} == {}
    long, wide = {}, {}
    for module in sources():
        for name, node, is_method in functions(module):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                long[name] = length
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            is_static = any(
                ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list
            )
            if len(parameters) - (is_method and not is_static) > MAX_PARAMETERS:
                wide[name] = len(parameters)
    assert (long, wide) == ({}, {})
    entries = [
        path.name
        for path in (ROOT / "trajformer").iterdir()
        if not path.name.startswith(("_", ".", "py.typed"))
    ]
    assert len(entries) <= MAX_NAMES, sorted(entries)
    subjects = {part for module in sources() for part in module.split(".")}
    assert not subjects & {"util", "utils", "misc", "helper", "helpers", "common"}


def undocumented(node: ast.Module | ast.ClassDef, name: str) -> Iterator[str]:
    """Public modules, classes, functions and methods without a docstring."""
    if not ast.get_docstring(node):
        yield name
    for child in node.body:
        if isinstance(child, Function | ast.ClassDef) and not child.name.startswith("_"):
            if isinstance(child, ast.ClassDef):
                yield from undocumented(child, f"{name}.{child.name}")
            elif not ast.get_docstring(child):
                yield f"{name}.{child.name}"


def test_everything_public_is_documented() -> None:
    assert [name for module in library() for name in undocumented(tree(module), module)] == []


def test_attention_is_computed_in_one_module() -> None:
    """The fused kernel and PyTorch's transformers are used nowhere else; softmax nowhere else in core or models.

    Elsewhere, a softmax turns logits of modes or classes into probabilities.
    """
    kernels = {
        "scaled_dot_product_attention",
        "flex_attention",
        "MultiheadAttention",
        "multi_head_attention_forward",
    }
    softmax = {
        "softmax",
        "Softmax",
        "log_softmax",
        "LogSoftmax",
        "Softmax2d",
        "softmin",
        "Softmin",
        "gumbel_softmax",
    }
    ours = {"Transformer", "TransformerConfig"}  # of heads/translation
    scores = {  # probabilities of modes
        "trajformer.models.modes",
        "trajformer.models.se2former.single_forecast",
        "trajformer.models.se2former.worlds",
    }
    found = []
    for module in library().keys() - {"trajformer.core.attention"} - scores:
        banned = (
            kernels | softmax
            if module.startswith(("trajformer.core", "trajformer.models"))
            else kernels
        )
        used = [
            (name, line)
            for name, line in names_used(module)
            if name not in ours and "Loss" not in name
        ]
        if module.endswith(".loss"):  # probabilities of modes
            banned = kernels
        found += [
            f"{module}:{line}: {name}"
            for name, line in used
            if name in banned or name.startswith("Transformer")
        ]
    assert found == []
    assert {"scaled_dot_product_attention", "softmax"} <= {
        name for name, _ in names_used("trajformer.core.attention")
    }


def test_models_are_not_tested_by_type_outside_their_folder() -> None:
    """No `isinstance` on a model class, except within `trajformer.models`."""
    classes = {
        n.name
        for m in library()
        if m.startswith("trajformer.models")
        for n in tree(m).body
        if _is_forecaster(n)
    }
    assert "MMTransformer" in classes
    found = []
    for module in library():
        if not module.startswith("trajformer.models"):
            tests = [
                call for name, call in calls(module) if name == "isinstance" and len(call.args) == 2
            ]
            found += [
                f"{module}:{c.lineno}"
                for c in tests
                if any(name in ast.unparse(c.args[1]).split(" ") for name in classes)
            ]
    assert found == []


def _is_forecaster(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and any(
        ast.unparse(base) == "Forecaster" for base in node.bases
    )


def test_checkpoints_are_loaded_as_plain_weights() -> None:
    loads = [(m, call) for m in sources() for name, call in calls(m) if name == "torch.load"]
    assert loads
    assert [
        f"{m}:{c.lineno}"
        for m, c in loads
        if "weights_only=True" not in map(ast.unparse, c.keywords)
    ] == []


def test_test_files_do_not_import_each_other() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    pattern = re.compile(r"^\s*(from|import) (tests\.)?(\w+\.)*test_\w+", re.M)
    assert [
        str(path.relative_to(ROOT))
        for path in files
        if pattern.search(path.read_text(encoding="utf-8"))
    ] == []


def test_make_quick_names_existing_tests_of_every_package() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    paths = re.search(r"^QUICK := (.*)$", text, re.M)[1].split()  # type: ignore[index]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    folders = {path.name for path in (ROOT / "tests").iterdir() if any(path.glob("test_*.py"))} - {
        "tools",
        "testing",
    }
    assert folders <= {Path(path).parts[1] for path in paths}
