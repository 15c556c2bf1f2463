"""`STORE/<split>/source.json`: the source of a split, and whether its preparation is finished.

It protects a split: a run with another raw folder, other options or fewer inputs does not replace
its scenes.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, TypeAlias

from data_prep.engine.tasks import ShardTask
from trajformer.errors import TrajformerError
from trajformer.scenes.files import read_file, write_atomically

RECORD = "source.json"  # in the folder of a split
MAX_RECORD = 1_000_000  # bytes
Record: TypeAlias = dict[str, Any]


def source_record(tasks: list[ShardTask]) -> Record:
    """Data set, raw folder, options of the reader, number and digest of the inputs of a split."""
    reader = tasks[0].reader
    raw = os.fsencode(tasks[0].raw).decode(errors="backslashreplace")
    # Files without a role are no inputs: they may be removed.
    items = [item for task in tasks for item in task.inputs if not item.problem]
    names = [item.name(tasks[0].raw) for item in items]
    text = "\n".join(names)
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    return {
        "source": reader.name,
        "raw": raw,
        "options": repr(reader),
        "inputs": len(names),
        "sha256": digest,
    }


def write_record(folder: Path, record: Record, finished: bool) -> None:
    """Write the record of a split; a run of another split looks whether this one is finished."""
    content = json.dumps(record | {"finished": finished}, indent=1)
    write_atomically(folder / RECORD, content + "\n")


def read_record(folder: Path) -> Record | None:
    """The record of a split; None if it is missing or damaged."""
    try:
        record = json.loads(read_file(folder / RECORD, MAX_RECORD))
        has_fields = {"source", "raw", "options", "sha256"} <= record.keys()
        valid = has_fields and record["inputs"] >= 0
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return None
    return record if valid else None


def check_source(tasks: list[ShardTask], record: Record) -> None:
    """Refuse to replace scenes of a split from a different source.

    The raw folder may have been moved, and inputs may be added. Raises TrajformerError.
    """
    folder = tasks[0].path.parent
    if not any(folder.glob("*.arrow")):
        return
    before = read_record(folder)
    if before is None:
        if all(task.is_finished() for task in tasks if task.path.exists()):
            return
        before = record | {"source": "an unknown data set in", "raw": "an unknown folder"}

    same_folder = _has_same(before, record, "source", "raw")
    same_inputs = _has_same(before, record, "source", "options", "sha256")
    if same_inputs and (same_folder or not any(task.is_foreign() for task in tasks)):
        return
    same_options = _has_same(before, record, "options")
    if same_folder and same_options and before["inputs"] <= record["inputs"]:
        return

    if same_folder:
        old_source = f"{before['inputs']} inputs with {before['options']}"
        new_source = f"{record['inputs']} inputs with {record['options']}"
    else:
        old_source = f"{before['source']} {before['raw']}"
        new_source = f"{record['source']} {record['raw']}"
    difference = f"was prepared from {old_source}, not from {new_source}"
    hint = "prepare another store (`trajformer store merge` joins stores)"
    raise TrajformerError(f"{folder}: {difference}: {hint}, or replace the scenes with --overwrite")


def _has_same(before: Record, after: Record, *names: str) -> bool:
    return all(before[name] == after[name] for name in names)
