"""The plan of the house, checked on the syntax tree: imports flow one way, parts stay small, attention is written once."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("trajformer", "data_prep")
# A module may import from its own layer and from those below it; the longest prefix of its name decides.
LAYERS = {
    "trajformer": 0,  # the version alone
    "trajformer.errors": 0,
    "trajformer.cli.parsing": 0,
    "trajformer.scenes.geometry": 0,
    "trajformer.heads.detr.boxes": 0,
    "trajformer.scenes.scene": 0,
    "trajformer.scenes.files": 0,
    "trajformer.scenes.columns": 0,
    "trajformer.scenes.shard": 1,
    "trajformer.scenes.store": 1,
    "trajformer.heads.images": 1,
    "trajformer.scenes.polylines": 1,
    "trajformer.scenes.manifest": 1,
    "trajformer.scenes.merge": 1,
    "trajformer.scenes.export": 1,
    "trajformer.heads.translation.text": 1,
    "trajformer.data.sample": 2,
    "trajformer.data.batch": 2,
    "trajformer.data.order": 2,
    "trajformer.detection_data": 3,
    "trajformer.data.loading": 3,
    "trajformer.data.forecast": 3,
    "trajformer.models.wayformer.aggregation": 3,
    "trajformer.data.augment": 3,
    "trajformer.core": 4,
    "trajformer.models": 5,
    "trajformer.heads": 5,
    "trajformer.losses": 6,
    "trajformer.metrics": 6,
    "trajformer.training": 7,
    "trajformer.evaluation.evaluate": 7,
    "trajformer.evaluation.forecast_file": 7,
    "trajformer.protocols": 8,
    "trajformer.plotting": 8,
    "trajformer.weights": 8,
    "trajformer.commands": 9,
    "trajformer.cli.demo": 9,
    "trajformer.cli": 10,
}
DATA_PREP_MAY_IMPORT = {f"trajformer.{name}" for name in ("errors", "geometry", "scene", "shard", "manifest")}
OWN_TRANSFORMERS = {"Transformer", "TransformerConfig"}  # of heads/translation.py; PyTorch's are forbidden
SPEAKING = ("trajformer.commands", "trajformer.cli", "trajformer.cli.demo")  # these may print
LONG_FILES: dict[str, str] = {}  # module: why it may have 251 to 400 lines
LONG_FUNCTIONS: dict[str, str] = {}  # module.function: why it may have 51 to 80 lines
Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def sources() -> dict[str, Path]:
    """Files by the dotted name of their module."""
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in files]
    return dict(zip(names, files, strict=True))


@functools.cache
def tree(module: str) -> ast.Module:
    return ast.parse(sources()[module].read_text(encoding="utf-8"))


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def walk_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: everything but the bodies of functions and blocks for type checkers."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function | ast.Lambda) and not _is_type_checking(child):
            yield child
            yield from walk_at_import(child)


def imports(module: str, at_import: bool = False) -> set[str]:
    """Our own modules that a module imports, anywhere or only when it is itself imported."""
    found = set()
    for node in walk_at_import(tree(module)) if at_import else ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in sources() else str(node.module))
    return {name for name in found if name.split(".")[0] in PACKAGES}


def layer(module: str) -> int:
    """The layer of a module; a new room needs a number in LAYERS."""
    parts = module.split(".")
    prefixes = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    known = next((prefix for prefix in prefixes if prefix in LAYERS), None)
    assert known and (known != "trajformer" or module == "trajformer"), f"{module} has no layer: add its room to LAYERS"
    return LAYERS[known]


def functions(module: str) -> Iterator[tuple[str, Function, bool]]:
    """(qualified name, definition, whether it is a method) of all functions, nested ones too."""

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function, bool]]:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, Function | ast.ClassDef):
                inner = f"{prefix}.{child.name}"
                if isinstance(child, Function):
                    yield inner, child, isinstance(node, ast.ClassDef)
            yield from visit(child, inner)

    yield from visit(tree(module), module)


def calls(module: str) -> Iterator[tuple[str, ast.Call]]:
    """(dotted text of what is called, call)."""
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


def test_the_packages_are_found() -> None:
    assert {"trajformer", "trajformer.core.attention", "data_prep", "data_prep.engine.prepare"} <= sources().keys()
    assert "trajformer.cli.run_data" in imports("trajformer.cli.data") - imports("trajformer.cli.data", at_import=True)


def test_imports_flow_downward() -> None:
    pairs = [
        (m, other) for m in sources() if m.startswith("trajformer") for other in imports(m) if other.startswith("trajformer")
    ]
    assert [f"{m} imports {other}" for m, other in pairs if layer(other) > layer(m)] == []


def test_core_knows_nothing_of_traffic() -> None:
    for module in sources():
        if module.startswith("trajformer.core"):
            strangers = {m for m in imports(module) if not m.startswith(("trajformer.core", "trajformer.errors"))}
            assert strangers == set(), f"{module} imports {strangers}"


def test_data_prep_stands_apart() -> None:
    for module in sources():
        if module.startswith("data_prep"):
            strangers = {m for m in imports(module) if m.startswith("trajformer")} - DATA_PREP_MAY_IMPORT
            assert strangers == set(), f"{module} imports {strangers}"
        else:
            readers = {m for m in imports(module) if m.startswith("data_prep")}
            assert not readers or module.startswith(SPEAKING), f"{module} imports {readers}"
            at_import = {m for m in imports(module, at_import=True) if m.startswith("data_prep")}
            assert not at_import, f"{module} must import data_prep inside functions"


def test_no_import_cycle() -> None:
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in sorted(imports(module, at_import=True) & sources().keys()):
                visit(other, (*path, module))
            done.add(module)

    for module in sources():
        visit(module, ())
    assert done == set(sources())


def test_files_are_short() -> None:
    lengths = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in sources().items()}
    assert {m: n for m, n in lengths.items() if n > 400} == {}
    assert {m: n for m, n in lengths.items() if n > 250 and m not in LONG_FILES} == {}
    assert [m for m in LONG_FILES if lengths.get(m, 0) <= 250] == [], "no longer needed in LONG_FILES"


def test_functions_are_short() -> None:
    lengths = {name: (node.end_lineno or 0) - node.lineno + 1 for module in sources() for name, node, _ in functions(module)}
    assert {name: n for name, n in lengths.items() if n > 80} == {}
    assert {name: n for name, n in lengths.items() if n > 50 and name not in LONG_FUNCTIONS} == {}
    assert [name for name in LONG_FUNCTIONS if lengths.get(name, 0) <= 50] == [], "no longer needed in LONG_FUNCTIONS"


def test_functions_take_few_parameters() -> None:
    wide = {}
    for module in sources():
        for name, node, is_method in functions(module):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            static = any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
            if len(arguments) - (is_method and not static) > 8:
                wide[name] = [argument.arg for argument in arguments]
    assert wide == {}


def undocumented(node: ast.Module | ast.ClassDef, name: str) -> Iterator[str]:
    """Public modules, classes, functions and methods without a docstring, the inside of functions left out."""
    if not ast.get_docstring(node):
        yield name
    for child in node.body:
        if isinstance(child, Function | ast.ClassDef) and not child.name.startswith("_"):
            if isinstance(child, ast.ClassDef):
                yield from undocumented(child, f"{name}.{child.name}")
            elif not ast.get_docstring(child):
                yield f"{name}.{child.name}"


def test_everything_public_is_documented() -> None:
    assert [name for module in sources() for name in undocumented(tree(module), module)] == []


def test_attention_is_written_once() -> None:
    """The fused kernel and PyTorch's own transformers occur nowhere else in the house; softmax nowhere else in core or models.

    Outside those two, a softmax makes probabilities of modes or classes (forecast, losses), which is no attention.
    """
    kernels = {"scaled_dot_product_attention", "flex_attention", "MultiheadAttention", "multi_head_attention_forward"}
    softmax = {"softmax", "Softmax", "log_softmax", "LogSoftmax", "Softmax2d", "softmin", "Softmin", "gumbel_softmax"}
    found = []
    for module in sources().keys() - {"trajformer.core.attention"}:
        banned = kernels | softmax if module.startswith(("trajformer.core", "trajformer.models")) else kernels
        used = [(name, line) for name, line in names_used(module) if name not in OWN_TRANSFORMERS]
        found += [f"{module}:{line}: {name}" for name, line in used if name in banned or name.startswith("Transformer")]
    found += [module for module, path in sources().items() if "nn.Transformer" in path.read_text(encoding="utf-8")]
    assert found == []
    assert {"scaled_dot_product_attention", "softmax"} <= {name for name, _ in names_used("trajformer.core.attention")}


@pytest.mark.parametrize("word", ["util", "utils", "misc", "helper", "helpers", "common", "tools"])
def test_no_room_without_a_purpose(word: str) -> None:
    assert [module for module in sources() if word in module.split(".")] == []


def test_no_bare_except() -> None:
    handlers = [(m, node) for m in sources() for node in ast.walk(tree(m)) if isinstance(node, ast.ExceptHandler)]
    assert [f"{m}:{node.lineno}" for m, node in handlers if node.type is None] == []


def test_library_rooms_do_not_print() -> None:
    found = [f"{m}:{call.lineno}" for m in sources() if not m.startswith(SPEAKING) for name, call in calls(m) if name == "print"]
    assert found == []


def test_checkpoints_are_loaded_as_plain_weights() -> None:
    loads = [(m, call) for m in sources() for name, call in calls(m) if name == "torch.load"]
    assert [f"{m}:{c.lineno}" for m, c in loads if "weights_only=True" not in map(ast.unparse, c.keywords)] == []
    assert loads, "nothing loads a checkpoint any more: is the rule still needed?"
