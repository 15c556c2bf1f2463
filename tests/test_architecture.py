"""The structure of the code: allowed imports, sizes, documentation, and rules for all modules.

The table of allowed imports is in docs/architecture.md, and only there.
"""

import ast
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from draw_architecture import ROOT, ImportGraph, imported_modules, source_files

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80
MAX_PARAMETERS = 8
MAX_NAMES = 15  # files and folders of the package
MAX_PACKAGES = 17
MAX_LEVELS = 11
MAX_EDGES = 90
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
    "trajformer.deploy": {"lightning", "jsonargparse", "matplotlib", "torchmetrics"},
}
LAZY_LIBRARIES = {  # allowed inside functions
    ("trajformer.scenes", "pandas"),
    ("trajformer", "torch_geometric"),
}
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
    cells = {}  # second column by package
    for line in table.splitlines()[2:]:
        name, imports, *_ = line.strip("|").split("|")
        cells[name.strip().strip("`")] = imports

    allowed = {"trajformer.errors": set(), "trajformer.config": {"trajformer.errors"}}
    for name, cell in cells.items():
        words = re.sub(r"\([^)]*\)", "", cell).replace(",", " ").split()
        imported = set(cells) & set(words)
        if words[0] == "everything":
            imported = set(cells)
        allowed[full_name(name)] = {full_name(other) for other in imported} | COMMON
    return allowed


def full_name(package: str) -> str:
    return package if package in ("data_prep", "tools") else f"trajformer.{package}"


def functions(module: str) -> Iterator[tuple[str, Function, bool]]:
    """(qualified name, definition, whether it is a method) of all functions.

    Nested functions are included.
    """

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
            for alias in node.names:
                yield alias.name, node.lineno


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def test_packages_import_only_what_the_table_allows() -> None:
    """Imports inside functions and under TYPE_CHECKING count."""
    allowed = allowed_imports()
    forbidden = {}
    for (importer, imported), modules in graph().edges.items():
        if imported not in allowed[importer]:
            forbidden[importer, imported] = modules
    assert forbidden == {}


def test_the_import_graph_is_small_and_has_no_cycle() -> None:
    assert len(graph().packages) <= MAX_PACKAGES
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


SHARED = {"data_prep.reader", "trajformer.scenes.dropped", "trajformer"}


@pytest.mark.parametrize(
    ("part", "may_import"),
    [
        ("data_prep.readers", SHARED),
        ("data_prep.engine", SHARED),
        ("data_prep.synthetic", COMMON),
    ],
)
def test_parts_of_data_prep_are_separate(part: str, may_import: set[str]) -> None:
    modules = [module for module in library() if module.startswith(part)]
    for module in modules:
        forbidden = set()
        for imported in imported_modules(tree(module), set(library())):
            is_allowed = imported in may_import or imported.split(".")[0] in may_import
            if not imported.startswith(part) and not is_allowed:
                forbidden.add(imported)
        assert forbidden == set(), f"{module} imports {forbidden}"


def test_lower_packages_do_not_import_heavy_libraries() -> None:
    forbidden = []
    for package, libraries in FORBIDDEN_LIBRARIES.items():
        for module in library():
            if is_in(module, package):
                for name in sorted(libraries & imported_libraries(module, package)):
                    forbidden.append(f"{module}: {name}")
    assert forbidden == []


def imported_libraries(module: str, package: str) -> set[str]:
    """Libraries that a module imports, also lazily except those that its package may so import."""
    lazy = {library for owner, library in LAZY_LIBRARIES if owner == package}
    everywhere = libraries_of(ast.walk(tree(module)))
    return (everywhere - lazy) | libraries_of(tree(module).body)


def libraries_of(nodes: Iterable[ast.AST]) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[0] for name in names}


def lines_of(module: str, is_wrong: Callable[[ast.AST], bool]) -> list[str]:
    return [f"{module}:{node.lineno}" for node in ast.walk(tree(module)) if is_wrong(node)]


def is_relative_import(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.level > 0


def is_bare_except(node: ast.AST) -> bool:
    return isinstance(node, ast.ExceptHandler) and node.type is None


def is_print(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "print"


def test_imports_are_absolute_and_no_except_is_bare() -> None:
    for module in sources():
        assert lines_of(module, is_relative_import) == []
        assert lines_of(module, is_bare_except) == []


def test_only_commands_print() -> None:
    for module in library():
        if not module.startswith(PRINTING):
            assert lines_of(module, is_print) == []


def test_files_are_short() -> None:
    for module, path in sources().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        assert len(lines) <= MAX_FILE_LINES, module


def test_functions_are_short_and_have_few_parameters() -> None:
    for module in sources():
        for name, node, is_method in functions(module):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, name
            assert num_parameters(node, is_method) <= MAX_PARAMETERS, name


def num_parameters(node: Function, is_method: bool) -> int:
    """Parameters of a function; `self` and `cls` of a method do not count."""
    arguments = node.args
    count = len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs)
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    if is_method and "staticmethod" not in decorators:
        count -= 1
    return count


def test_names_are_few() -> None:
    names = [path.name for path in (ROOT / "trajformer").iterdir()]
    entries = [name for name in names if not name.startswith(("_", ".", "py.typed"))]
    assert len(entries) <= MAX_NAMES, sorted(entries)
    vague = {"util", "utils", "misc", "helper", "helpers", "common"}
    for module in sources():
        assert not vague & set(module.split(".")), module


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
    names = [name for module in library() for name in undocumented(tree(module), module)]
    assert not names, f"without a docstring: {names}"


FUSED_KERNELS = {
    "scaled_dot_product_attention",
    "flex_attention",
    "MultiheadAttention",
    "multi_head_attention_forward",
}
SOFTMAX = {
    "softmax",
    "Softmax",
    "log_softmax",
    "LogSoftmax",
    "Softmax2d",
    "softmin",
    "Softmin",
    "gumbel_softmax",
}
OWN_TRANSFORMERS = {"Transformer", "TransformerConfig"}  # of heads/translation
PROBABILITIES_OF_MODES = {
    "trajformer.models.modes",
    "trajformer.models.se2former.single_forecast",
    "trajformer.models.se2former.worlds",
}


def may_use_softmax(module: str) -> bool:
    """Whether a softmax may turn logits of modes or classes into probabilities here."""
    if module in PROBABILITIES_OF_MODES or module.endswith(".loss"):
        return True
    return not module.startswith(("trajformer.core", "trajformer.models"))


def is_attention(name: str) -> bool:
    """Whether a name is a fused kernel or a part of PyTorch's transformers."""
    if name in OWN_TRANSFORMERS or "Loss" in name:
        return False
    return name in FUSED_KERNELS or name.startswith("Transformer")


def test_attention_is_computed_in_one_module() -> None:
    """The fused kernel and PyTorch's transformers, and in core and models the softmax."""
    wrong = []
    for module in library().keys() - {"trajformer.core.attention"}:
        for name, line in names_used(module):
            is_softmax = name in SOFTMAX and not may_use_softmax(module)
            if is_attention(name) or is_softmax:
                wrong.append(f"{module}:{line}: {name}")
    assert wrong == []
    used = {name for name, _ in names_used("trajformer.core.attention")}
    assert {"scaled_dot_product_attention", "softmax"} <= used


def test_models_are_not_tested_by_type_outside_their_folder() -> None:
    """No `isinstance` on a model class, except within `trajformer.models`."""
    classes = set()
    outside = []
    for module in library():
        if module.startswith("trajformer.models"):
            classes |= {node.name for node in tree(module).body if is_forecaster(node)}
        else:
            outside.append(module)
    assert "MMTransformer" in classes
    for module in outside:
        for name, call in calls(module):
            if name == "isinstance" and len(call.args) == 2:
                tested = set(ast.unparse(call.args[1]).split(" "))
                assert not tested & classes, f"{module}:{call.lineno}"


def is_forecaster(node: ast.stmt) -> bool:
    if not isinstance(node, ast.ClassDef):
        return False
    return "Forecaster" in [ast.unparse(base) for base in node.bases]


def test_checkpoints_are_loaded_as_plain_weights() -> None:
    num_loads = 0
    for module in sources():
        for name, call in calls(module):
            if name == "torch.load":
                num_loads += 1
                options = map(ast.unparse, call.keywords)
                assert "weights_only=True" in options, f"{module}:{call.lineno}"
    assert num_loads


def test_test_files_do_not_import_each_other() -> None:
    pattern = re.compile(r"^\s*(from|import) (tests\.)?(\w+\.)*test_\w+", re.M)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        assert not pattern.search(path.read_text(encoding="utf-8")), path


def test_make_quick_names_existing_tests_of_every_package() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    quick = re.search(r"^QUICK := (.*)$", text, re.M)
    assert quick is not None
    paths = [Path(word) for word in quick[1].split()]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - {"tools", "testing"} <= {path.parts[1] for path in paths}
