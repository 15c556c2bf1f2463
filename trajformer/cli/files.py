"""The rule for output files of commands, progress bars, and lines about skipped inputs."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajformer.errors import TrajformerError, one_line
from trajformer.scenes.files import require_file_or_folder, write_atomically
from trajformer.scenes.notices import on_terminal

if TYPE_CHECKING:
    from trajformer.scenes.store import SceneStore

bars = on_terminal  # progress bars are shown on a terminal, not in a log file
# Inputs that may be folders of runs, which also receive the metrics of the run.
RUN_FOLDERS = ("checkpoint", "out")
# Regular expressions that find the outputs of this program by their first and last bytes. The last
# part of a name is the suffix of the files.
KINDS = {
    "parquet": rb"PAR1.*\ntrajformer.{1,3}\{",  # the properties of the scenes, near the end
    "png": rb"\x89PNG.*tEXtSoftware\0trajformer",
    "html": rb'<!DOCTYPE html>.*<meta name="generator" content="trajformer">',
    "report.html": rb'<!DOCTYPE html>.*<meta name="generator" content="trajformer report">',
    "svg": rb"<\?xml.*<dc:title>trajformer</dc:title>",
    "mcap": rb"\x89MCAP0.*trajformer",
    "gif": rb"GIF8.*trajformer",
    "mp4": rb".{4}ftyp.*trajformer",  # near the end
    "webm": rb"\x1aE\xdf\xa3.*trajformer",
    "pdf": rb"%PDF.*/Creator \(trajformer\)",  # near the end
    "onnx": rb"\x08.*trajformer.{1,8}\{",  # metadata, near the end
    "pt2": rb"PK\x03\x04.*extra/trajformer",  # near the end
    "npz": rb"PK\x03\x04.{26}scene_id\.npy",
    "ckpt": rb"PK\x03\x04.{26}archive/data\.pkl.{,99}trajformer",  # in a run, "epoch" comes first
    "safetensors": rb'.{8}\{"__metadata__":\{"trajformer"',
    "json": rb'\s*\{.*"(num_agents|\w*[AF]DE\w*)"',  # metrics
    "scene.json": rb'\s*\{\s*"scene_id"',
    "challenge.json": rb'\s*\[\{"instance"',
    "measurements.json": rb'\s*\{\s*"commit"',
    "csv": rb"scenario_id,track_id,type,minADE",  # metrics of agents
    "md": rb"# Scores of forecasts\n",  # tables of metrics
    "txt": rb"\Z",  # a translation is like any other text, so it never replaces one
}
AT_THE_END = ("parquet", "pdf", "mp4", "webm", "onnx", "pt2")
HEAD_BYTES = 2048
TAIL_BYTES = 8192
SUFFIXES = {f".{kind.rpartition('.')[2]}" for kind in (*KINDS, "jpg", "jpeg", "pdf", "svg")}


def skipped_lines(skipped: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Input and reason in one line, which may contain text of a file.

    Inputs with the same cause share a line: reasons that differ in the input's name and in numbers
    only, such as those of the scenes of a broken map, or of the windows of a table in degrees.
    """
    inputs: dict[str, list[tuple[str, str]]] = {}
    for name, reason in skipped:
        file_name, _, part = name.partition("#")
        cause = reason.replace(file_name, "")
        if part:
            cause = cause.replace(part, "")
        cause = re.sub(r"[-+]?\d[\d.,e+-]*", "0", cause)
        inputs.setdefault(cause, []).append((name, reason))
    for entries in inputs.values():
        name, reason = entries[0]
        others = ""
        if len(entries) > 1:
            others = f" and {len(entries) - 1:,} more"
        yield one_line(f"{name}{others}: {reason}")


def skipped_note(scenes: SceneStore) -> str:
    """A line about the inputs that the preparation skipped; empty if there are none."""
    count = scenes.num_skipped
    if not count:
        return ""
    inputs = "1 input" if count == 1 else f"{count:,} inputs"
    hint = f"`trajformer store info {scenes.root}` lists the reasons"
    return f"{scenes.split}: {len(scenes)} scenes, {inputs} skipped by preprocess; {hint}"


def dropped_lines(dropped: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each cause of dropped details, from the entries of a manifest."""
    for entry in dropped:
        details = "1 detail" if entry["count"] == 1 else f"{entry['count']:,} details"
        others = ""
        if entry["files"] > 1:
            others = f" and {entry['files'] - 1:,} more"
        yield f"{details} of {entry['file']}{others}: {entry['cause']}"


def keep_arguments(folder: Path, args: argparse.Namespace, *names: str) -> None:
    """Write these arguments to arguments.json in a folder.

    Raises TrajformerError: the content of the folder was made with other arguments.
    """
    path = folder / "arguments.json"
    values = {name: getattr(args, name) for name in names}
    text = json.dumps(values) + "\n"
    if path.is_file():
        previous = path.read_text()
        if previous != text:
            reason = f"this folder was made with {previous.strip()}; give another one"
            raise TrajformerError(f"{path}: {reason}")
    write_atomically(path, text)


def check_outputs(args: argparse.Namespace, **kinds: str) -> None:
    """Check the outputs of a command before its work (TrajformerError: one cannot be written).

    All commands have this rule: An existing file is replaced only with --overwrite, and only if
    this program wrote it for the same purpose. An output is never an input of the command, and
    never in a store or another folder that the command reads. A folder receives files only if it is
    empty, or with --overwrite. A new name does not end in the suffix of another kind. Links are
    followed. Pipes, devices and sockets are refused.

    `kinds` has a key of `KINDS` or "folder" for each option with an output; all other paths in
    `args` are inputs.
    """
    values = vars(args)
    outputs = {name: values[name] for name in kinds if values[name] is not None}
    inputs: list[tuple[str, Path]] = []
    for name, value in values.items():
        if name not in kinds:
            paths = value if isinstance(value, list) else [value]
            inputs += [(name, path) for path in paths if isinstance(path, Path)]
    for name, path in outputs.items():
        try:
            _check_output(path, kinds[name], inputs, args.overwrite)
        except OSError as error:
            reason = error.strerror or error
            raise TrajformerError(f"{path}: cannot be written: {reason}") from error
    targets = {os.path.realpath(path) for path in outputs.values()}
    if len(targets) < len(outputs):
        options = " and ".join(f"--{name}" for name in outputs)
        raise TrajformerError(f"{options}: give different files")


def _check_output(path: Path, kind: str, inputs: list[tuple[str, Path]], overwrite: bool) -> None:
    require_file_or_folder(path)
    refuse_inputs(path, inputs)
    target = Path(os.path.realpath(path))
    existing = target  # or its nearest parent that exists
    while not existing.exists():
        existing = existing.parent
    if existing != target:
        _check_new_output(path, kind, existing)
    elif kind == "folder":
        _check_existing_folder(path, target, overwrite)
    else:
        _check_existing_file(path, kind, overwrite)
    if not os.access(existing, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _check_new_output(path: Path, kind: str, parent: Path) -> None:
    """Check the name of a new output, and that its nearest existing `parent` is a folder."""
    suffix = kind.rpartition(".")[2]
    if path.suffix.lower() in SUFFIXES - {f".{suffix}"}:
        output = kind if kind == "folder" else f"{suffix} file"
        raise TrajformerError(
            f"{path}: the output is a {output}; give a name without {path.suffix}"
        )
    if not parent.is_dir():
        raise TrajformerError(f"{path}: cannot be written: {parent} is not a folder")


def _check_existing_folder(path: Path, target: Path, overwrite: bool) -> None:
    if not target.is_dir():
        raise TrajformerError(f"{path}: cannot be written: {target} is not a folder")
    if any(target.iterdir()) and not overwrite:
        remedy = "give another folder, or --overwrite to replace files of the same names"
        raise TrajformerError(f"{path}: has files; {remedy}")


def _check_existing_file(path: Path, kind: str, overwrite: bool) -> None:
    if path.is_dir():
        raise TrajformerError(f"{path}: cannot be written: is a folder")
    if not overwrite:
        raise TrajformerError(f"{path}: exists; give another name, or --overwrite to replace it")
    with path.open("rb") as file:
        content = file.read(HEAD_BYTES)
        file.seek(max(path.stat().st_size - TAIL_BYTES, 0))
        if kind in AT_THE_END:
            content += file.read()
    if content and not re.match(KINDS[kind], content, re.DOTALL):
        suffix = kind.rpartition(".")[2]
        reason = f"is not a {suffix} file that this command wrote, so it is not replaced"
        raise TrajformerError(f"{path}: exists and {reason}; give another name or remove it")


def refuse_inputs(path: Path, inputs: list[tuple[str, Path]]) -> None:
    """Raise a TrajformerError if an output is one of the inputs, or in a folder that is read.

    `inputs` are pairs of option and path.
    """
    target = Path(os.path.realpath(path))  # `resolve` raises a RuntimeError for a loop of links
    for name, other in inputs:
        source = Path(os.path.realpath(other))
        is_read = name not in RUN_FOLDERS and other.is_dir()
        if target == source or (is_read and source in target.parents):
            reason = f"{other} is an input of this command ({name})"
            raise TrajformerError(f"{path}: cannot be written: {reason}")
