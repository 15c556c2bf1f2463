"""Parts that an interrupted command has made: the same command continues with the others.

The parts of an output `F` are files in the folder `.F.parts` next to it, which is removed at the
end. The file `inputs.json` of the folder says of which inputs they are.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import trajformer
from trajformer.cli.parts import Job, run_parts
from trajformer.errors import TrajformerError
from trajformer.evaluation.parts import Part
from trajformer.scenes.files import atomically, write_atomically
from trajformer.scenes.manifest import shard_sizes

INPUTS = "inputs.json"


class PartResult(Protocol):
    """The result of a part that a file can hold: a `TallyContents` or `ScoredPart`."""

    def record(self) -> dict[str, Any]:
        """Dictionaries, lists, tensors, numbers and text."""

    @classmethod
    def of(cls, record: dict[str, Any]) -> Self:
        """The inverse of `record`."""


Result = TypeVar("Result", bound=PartResult)


def parts_folder(out: Path) -> Path:
    """The folder with the parts of an output."""
    return out.with_name(f".{out.name}.parts")


def remove_parts(out: Path | None) -> None:
    """Remove the parts of an output that is written."""
    if out is not None:
        shutil.rmtree(parts_folder(out), ignore_errors=True)


def part_path(folder: Path, part: Part, suffix: str) -> Path:
    """The file of a part."""
    return folder / f"{part.start:09d}.{suffix}"


def open_folder(folder: Path, args: Namespace, source: Path | str, **options: object) -> None:
    """Make the folder of the parts of a model or a file of forecasts, `source`.

    `options` are further inputs. Raises TrajformerError: the folder has parts of other inputs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inputs: dict[str, object] = {"version": trajformer.__version__, "source": str(source)}
    if isinstance(source, Path) and source.is_file():
        with source.open("rb") as file:
            inputs["source"] = hashlib.file_digest(file, "sha256").hexdigest()
    shards = json.dumps(shard_sizes(args.store / args.split), sort_keys=True)
    inputs["shards"] = hashlib.sha256(shards.encode()).hexdigest()
    for name in ("split", "agents", "joint", "threads", "accelerator"):
        inputs[name] = getattr(args, name)
    inputs |= {name: str(value) for name, value in options.items()}

    text = json.dumps(inputs, sort_keys=True) + "\n"
    path = folder / INPUTS
    if path.is_file() and path.read_text(encoding="utf-8") != text:
        reason = "has parts of an interrupted run with another model, store or option"
        raise TrajformerError(f"{folder}: {reason}; remove this folder, or repeat that command")
    write_atomically(path, text)


def open_json_folder(
    args: Namespace, number: int, source: Path | str, **options: object
) -> Path | None:
    """The folder of the parts of model or file `number` of --json, as `open_folder`.

    None without --json: nothing is kept then.
    """
    if args.json is None:
        return None
    folder = parts_folder(args.json.absolute()) / str(number)
    open_folder(folder, args, source, **options)
    return folder


def run_kept_parts(
    args: Namespace,
    source: Path | str | None,
    jobs: Mapping[Part, Job],
    folder: Path | None,
    kind: type[Result],
) -> Iterator[tuple[Part, Result]]:
    """Yield parts with their results, as `run_parts`; without a folder nothing is kept.

    Args:
        args: options of the command.
        source: a model, or None.
        jobs: of all parts; their results are of `kind`.
        folder: of `open_folder`; parts that it has are not made again.
        kind: the class of the results.

    Raises TrajformerError: a file of the folder cannot be read, or as `run_parts`.
    """
    import torch

    missing = dict(jobs)
    done = 0
    for part in jobs:
        path = None if folder is None else part_path(folder, part, "pt")
        if path is not None and path.is_file():
            yield part, _read(path, kind)
            done += part.stop - part.start
            del missing[part]
    for part, result in run_parts(args, source, missing, done):
        if folder is not None:
            with atomically(part_path(folder, part, "pt")) as temporary:
                torch.save(result.record(), temporary)
        yield part, result


def _read(path: Path, kind: type[Result]) -> Result:
    import torch

    try:
        return kind.of(torch.load(path, weights_only=True))
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, KeyError, TypeError) as error:
        raise TrajformerError(f"{path}: cannot be read; remove this file") from error
