"""The rule for output files of commands, progress bars, and lines about skipped inputs."""

import argparse
import errno
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from trajformer.errors import TrajformerError
from trajformer.scenes.files import is_special, write_atomically

RUN_FOLDERS = (
    "checkpoint",
    "out",
)  # inputs that may be folders of runs, which also receive the figures of the run
KINDS = {  # regular expressions of the first bytes
    "parquet": rb"PAR1",
    "png": rb"\x89PNG",
    "npz": rb"PK\x03\x04.{26}\w+\.npy",
    "ckpt": rb"PK\x03\x04.{26}[\w.-]+/",
    "safetensors": rb".{8}\{",
    "json": rb"\s*[\[{]",
    "csv": rb"\w+(,\w+)+\r?\n",
    "txt": rb"[^\x00]*\Z",
}
SUFFIXES = {f".{kind}" for kind in (*KINDS, "jpg", "jpeg", "pdf", "svg")}


def bars() -> bool:
    """True if progress bars are shown: on a terminal, not in a log file."""
    return sys.stderr.isatty()


def skipped_lines(skipped: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Input and reason in one line; inputs with the same reason, such as the scenes of a broken map, share a line."""
    inputs: dict[str, list[str]] = {}
    for name, reason in skipped:
        inputs.setdefault(reason, []).append(name)
    for reason, names in inputs.items():
        others = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        yield f"{names[0]}{others}: {reason}"


def keep_arguments(folder: Path, args: argparse.Namespace, *names: str) -> None:
    """Write these arguments to arguments.json in a folder (TrajformerError: its content was made with others)."""
    path, text = (
        folder / "arguments.json",
        json.dumps({name: getattr(args, name) for name in names}) + "\n",
    )
    if path.is_file() and path.read_text() != text:
        raise TrajformerError(
            f"{path}: this folder was made with {path.read_text().strip()}; give another one"
        )
    write_atomically(path, text)


def check_outputs(args: argparse.Namespace, **kinds: str) -> None:
    """Check the outputs of a command before its work (TrajformerError: one cannot be written). All commands have this rule:

    An existing file is replaced only with --overwrite, and only by a file of the same kind. An output is never an input of the
    command, and never in a store or another folder that the command reads. A folder receives files only if it is empty, or with
    --overwrite. A new name does not end in the suffix of another kind. Devices and pipes are written to, links are followed
    (`atomically`).

    `kinds` has a key of `KINDS` or "folder" for each option with an output; all other paths in `args` are inputs.
    """
    values = vars(args)
    outputs = {name: values[name] for name in kinds if values[name] is not None}
    others = {
        name: value if isinstance(value, list) else [value]
        for name, value in values.items()
        if name not in kinds
    }
    inputs = [
        (name, path) for name, paths in others.items() for path in paths if isinstance(path, Path)
    ]
    for name, path in outputs.items():
        try:
            _check_output(path, kinds[name], inputs, args.overwrite)
        except OSError as error:
            raise TrajformerError(
                f"{path}: cannot be written: {error.strerror or error}"
            ) from error
    if len({os.path.realpath(path) for path in outputs.values()}) < len(outputs):
        raise TrajformerError(
            f"{' and '.join(f'--{name}' for name in outputs)}: give different files"
        )


def _check_output(path: Path, kind: str, inputs: list[tuple[str, Path]], overwrite: bool) -> None:
    if is_special(path):
        return
    target, folder = Path(os.path.realpath(path)), kind == "folder"
    refuse_inputs(path, inputs)
    existing = next(part for part in (target, *target.parents) if part.exists())
    if existing != target and path.suffix.lower() in SUFFIXES - {f".{kind}"}:
        raise TrajformerError(
            f"{path}: the output is a {kind}{'' if folder else ' file'}; give a name without {path.suffix}"
        )
    if folder or existing != target:
        if not existing.is_dir():
            raise TrajformerError(f"{path}: cannot be written: {existing} is not a folder")
        if folder and existing == target and any(path.iterdir()) and not overwrite:
            raise TrajformerError(
                f"{path}: has files; give another folder, or --overwrite to replace files of the same names"
            )
    else:
        if target.is_dir():
            raise TrajformerError(f"{path}: cannot be written: is a folder")
        if not overwrite:
            raise TrajformerError(
                f"{path}: exists; give another name, or --overwrite to replace it"
            )
        with target.open("rb") as file:
            head = file.read(512)
        if head and not re.match(KINDS[kind], head, re.DOTALL):
            raise TrajformerError(
                f"{path}: exists and is not a {kind} file; --overwrite replaces files of the same kind only"
            )
    if not os.access(existing, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def refuse_inputs(path: Path, inputs: list[tuple[str, Path]]) -> None:
    """Raise a TrajformerError if an output is one of the inputs (option and path), or in a folder that is read."""
    target = Path(os.path.realpath(path))  # `resolve` raises a RuntimeError for a loop of links
    for name, other in inputs:
        source = Path(os.path.realpath(other))
        if target == source or (
            name not in RUN_FOLDERS and other.is_dir() and source in target.parents
        ):
            raise TrajformerError(
                f"{path}: cannot be written: {other} is an input of this command ({name})"
            )
