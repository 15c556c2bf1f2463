"""Checks of .pt2 files, so that PyTorch runs no code from them.

PyTorch's reader trusts its files: it unpickles objects, loads compiled libraries, evaluates
expressions, and calls any function of torch that a graph names. Here a file is taken apart first.
Its tensors are kept if they are plain numbers, and its graph if it consists of the operators below
on named values. PyTorch then reads a new archive of these parts only.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable
from typing import Any

import torch

from trajformer.deploy.metadata import METADATA_KEY

# Operators of ATen that graphs of this package consist of: arithmetic on tensors. Others read
# files or give access to memory.
_ATEN_NAMES = """
    __and__ __or__ _assert_tensor_metadata abs add add_ addcmul alias all amax amin any arange
    argmax argmin argsort atan2 baddbmm batch_norm bitwise_and bitwise_not bitwise_or bmm cat
    chunk clamp clamp_max clamp_min clone concatenate contiguous conv1d copy_ cos cummax cumsum
    detach detach_ div div_ dropout einsum elu embedding eq erf exp expand expand_as expm1 eye
    fill_ flatten flip floor floor_divide full full_like gather ge gelu group_norm gru gt hstack
    index index_add index_select isfinite isinf isnan isneginf isposinf layer_norm le leaky_relu
    lift_fresh_copy linalg_vector_norm linear linspace log log1p log_softmax logical_and
    logical_not logical_or logsumexp lstm lt masked_fill masked_fill_ matmul max maximum mean
    min minimum movedim mul mul_ narrow ne neg new_full new_ones new_zeros norm one_hot ones
    ones_like pad permute pow reciprocal relu relu_ remainder repeat repeat_interleave reshape
    roll round rsqrt rsub scaled_dot_product_attention scatter scatter_add select sigmoid sign silu
    sin slice softmax softplus sort split split_with_sizes sqrt square squeeze stack std sub
    sub_ sum sym_size tanh to topk transpose tril triu unbind unflatten unsqueeze var view where
    zero_ zeros zeros_like
"""
_ATEN = frozenset(_ATEN_NAMES.split())
_HIGHER_ORDER = (
    "torch.ops.higher_order.wrap_with_autocast",
    "torch.ops.higher_order.wrap_with_set_grad_enabled",
)
_NUMBERS = "add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem"
_ON_NUMBERS = re.compile(rf"_operator\.({_NUMBERS})|torch\.sym_(max|min|not|float|int|sum)")
# Expressions of sizes: symbols, their squares, and these words.
_SYMBOL = re.compile(r"Symbol\('[a-z]{1,4}\d{1,6}'(?:, (?:positive|integer|nonnegative)=True)*\)")
_POWER = re.compile(r"Pow\(x, Integer\(\d\)\)")
_WORD_NAMES = """
    Integer Add Mul Max Min FloorDiv Mod PythonMod And Or Not True False Eq Ne Equality Unequality
    LessThan StrictLessThan GreaterThan StrictGreaterThan x ( ) , -
"""
_WORDS = frozenset(_WORD_NAMES.split())
_NAME = re.compile(r"[\w.+-]{0,300}")  # of a value, an attribute, a version
_TEXT = re.compile(r"[\w.,> -]{0,100}")  # an argument of an operator, such as bij,bjk->bik
_TREE_TYPES = (None, "builtins.tuple", "builtins.list", "builtins.dict")

_MODEL = "models/model.json"
_TENSORS = re.compile(r"data/(weights/weight|constants/tensor)_\d+")
_TABLES = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_MARKS = ("archive_format", "archive_version", "byteorder", ".data/version")
_DROPPED = ("data/sample_inputs/model.pt", ".data/serialization_id")  # the first is a pickle


def checked_archive(content: bytes) -> tuple[bytes, str]:
    """A new archive with the parts of a .pt2 file that need no trust, and our metadata in it.

    Raises ValueError, or an error of `zipfile`: damaged, or with a part that may run code.
    """
    entries = _entries(content)
    metadata = entries.pop(f"extra/{METADATA_KEY}", b"").decode()
    kept = {"data/sample_inputs/model.pt": b""}
    for name, data in entries.items():
        if name in _DROPPED:
            continue
        if name == _MODEL:
            data = json.dumps(_checked_graph(json.loads(data))).encode()
        elif name in _TABLES:
            data = json.dumps(_checked_table(json.loads(data))).encode()
        elif name in _MARKS:
            _match(_NAME, data.decode().strip(), name)
        elif not _TENSORS.fullmatch(name):
            raise ValueError(f"an unexpected part, which may run code: {name}")
        kept[name] = data
    for name in (_MODEL, *_TABLES):
        if name not in kept:
            raise ValueError(f"the part {name} is missing")
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, data in kept.items():
            archive.writestr(f"archive/{name}", data)
    return written.getvalue(), metadata


def _entries(content: bytes) -> dict[str, bytes]:
    """The entries of an archive, by name in its folder; checksums are compared."""
    entries = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        infos = archive.infolist()
        # Neither compressed nor overlapping: the content is never larger than the file.
        if sum(info.file_size for info in infos) > len(content):
            raise ValueError("compressed, which files of `trajformer export` are not")
        for info in infos:
            root, _, name = info.filename.partition("/")
            if root != "archive" or name in entries:
                raise ValueError(f"an unexpected part: {info.filename}")
            entries[name] = archive.read(info)
    return entries


def _checked_table(document: Any) -> Any:
    """The table of tensors, without pickled ones."""
    for name, entry in document["config"].items():
        if entry["use_pickle"] is not False:
            raise ValueError(f"a pickled object, which may run code: {name}")
    return _walk(document, _check_text)


def _checked_graph(document: Any) -> Any:
    """The document of a graph, without guards, which are code, and without notes about its source.

    Guards compare the sizes of inputs, which come from one batch here.
    """
    document["guards_code"] = []
    return _walk(document, _check_text)


def _walk(value: Any, check: Callable[[str, str], None], key: str = "") -> Any:
    """A copy without the field "metadata"; `check` receives each text and the name of its field."""
    if isinstance(value, dict):
        copy = {}
        for name, part in value.items():
            check("", name)
            copy[name] = {} if name == "metadata" else _walk(part, check, name)
        return copy
    if isinstance(value, list):
        return [_walk(part, check, key) for part in value]
    if isinstance(value, str):
        check(key, value)
    return value


def _check_text(key: str, text: str) -> None:
    """Raise ValueError if a text may be more than a name, by the field that it is in."""
    if key in ("target", "as_operator"):
        _check_operator(text)
    elif key == "expr_str":
        _check_expression(text)
    elif key in ("in_spec", "out_spec"):
        _check_tree(json.loads(text)[1])
    elif key == "as_string":
        _match(_TEXT, text, "an argument")
    else:
        _match(_NAME, text, "a name")


def _check_operator(text: str) -> None:
    if _ON_NUMBERS.fullmatch(text) or text in _HIGHER_ORDER:
        return
    name, _, overload = text.removeprefix("torch.ops.aten.").partition(".")
    if name not in _ATEN:
        overload = ""
    # Other attributes of an operator are functions of Python.
    if not overload or overload not in getattr(torch.ops.aten, name).overloads():
        raise ValueError(f"an operator that graphs of this package do not have: {text[:100]}")


def _check_expression(text: str) -> None:
    plain = _POWER.sub("x", _SYMBOL.sub("x", text)).replace(" ", "")
    for token in re.findall(r"\w+|\W", plain):
        is_number = token.isdecimal() and len(token) < 19
        if not is_number and token not in _WORDS:
            raise ValueError(f"a size that may be code: {text[:100]!r}")


def _check_tree(tree: Any) -> None:
    """Arguments and results of a graph: tuples, lists and dicts. Other types import modules."""
    if tree["type"] not in _TREE_TYPES:
        raise ValueError(f"arguments of the type {tree['type']}")
    for part in tree["children_spec"]:
        _check_tree(part)


def _match(pattern: re.Pattern[str], text: str, noun: str) -> None:
    if not pattern.fullmatch(text):
        raise ValueError(f"{noun} that may be code: {text[:100]!r}")
