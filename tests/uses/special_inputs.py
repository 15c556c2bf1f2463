"""Inputs that are no files: pipes, devices, folders, sockets and loops of links. No command waits for them."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

from support.uses import Case, Guard

from trajformer.heads.translation import read_lines

SCORE = "evaluate --model constant_velocity --store"
READ = "raw/val/raw-val-0/scenario_raw-val-0.parquet"


def pipe_at(path: str) -> Callable[[], object]:
    """A pipe that no process writes to, in place of a file."""
    return lambda: (Path(path).unlink(missing_ok=True), os.mkfifo(path))


def link_at(path: str, target: str) -> Callable[[], object]:
    """A link in place of a file."""
    return lambda: (Path(path).unlink(missing_ok=True), Path(path).symlink_to(target))


KINDS: dict[str, Callable[[], object]] = {
    "a pipe": pipe_at("x"),
    "a folder": lambda: os.mkdir("x"),
    "endless zeros": link_at("x", "/dev/zero"),
    "a socket": lambda: socket.socket(socket.AF_UNIX).bind("x"),
    "a loop of links": link_at("x", "x"),
}
REGULAR = Guard("trajformer/scenes/files.py", "if not stat.S_ISREG(state.st_mode):")
SHARD = Guard("trajformer/scenes/manifest.py", " and entry.is_file()]", "]")
STORE = Guard("trajformer/scenes/store.py", "if not self.root.is_dir():")
CHECKPOINT = Guard("trajformer/recipes/checkpoint.py", "if not file.is_file():")
RECIPE = Guard("trajformer/recipes/names.py", "if Path(name).is_file():", "if Path(name).exists():")
FORECASTS = Guard("trajformer/evaluation/forecast_file.py", "if not path.is_file():")
TEXT = Guard("trajformer/heads/translation.py", "if path.exists() and not path.is_file():")
FAILS = Guard(
    "trajformer/heads/translation.py",
    "except OSError as error:",
    "except ZeroDivisionError as error:",
)
PARQUET = Guard(
    "data_prep/readers/columns.py",
    'OSError, UnicodeDecodeError) as error:\n        raise SceneError(f"{path}: not a readable',
    'UnicodeDecodeError) as error:\n        raise SceneError(f"{path}: not a readable',
)
FOLDER = ("a store", "a folder")  # may be a store
PREPARE = "preprocess argoverse2 raw s --split val --workers 1"
NO_FILE = "neither a file nor a folder"
COMMANDS = {
    "a checkpoint": (
        "evaluate --store store --checkpoint x",
        "x: not a file|x: no such checkpoint",
        CHECKPOINT,
    ),
    "a recipe": ("train --config x --out r", "x: no such file and no recipe of this name", RECIPE),
    "forecasts": ("plot store --forecasts x --out p", "x: no such file", FORECASTS),
    "a list of labels": (
        "weights convert timm_vit run/best.ckpt c.ckpt --labels x",
        f"x: labels .*: {NO_FILE}",
        REGULAR,
    ),
    "a text": (lambda: read_lines(Path("x")), "x: cannot be read: ", (TEXT, FAILS)),
    "a store": (f"{SCORE} x", "x: no such store", STORE),
}
SKIPPED = (
    r"(?s)val: 2 scenes.*1 skipped.*skipped val/raw-val-0/.*parquet: not a readable parquet file: "
)

CASES = [
    Case(f"{kind} as {what}", run, line, prepare, guard)
    for what, (run, line, guard) in COMMANDS.items()
    for kind, prepare in KINDS.items()
    if kind in ("a pipe", "endless zeros")
    or (what in ("a checkpoint", "a text", "a store") and (what, kind) != FOLDER)
]
CASES += [
    Case(f"{kind} as a raw file", PREPARE, SKIPPED + reason, prepare, guard, status=0)
    for kind, prepare, reason, guard in (
        ("a pipe", pipe_at(READ), NO_FILE, REGULAR),
        ("zeros", link_at(READ, "/dev/zero"), NO_FILE, REGULAR),
        ("a loop", link_at(READ, Path(READ).name), "Too many levels", PARQUET),
    )
]
CASES += [
    Case(
        "an empty folder as a store",
        f"{SCORE} x",
        "x: no split 'val'",
        KINDS["a folder"],
        Guard(STORE.file, "if not counts:"),
    ),
    Case(
        "a pipe as a manifest",
        "store info store",
        f"no readable manifest .{NO_FILE}",
        pipe_at("store/manifest.json"),
        REGULAR,
    ),
    Case(
        "a pipe as a shard",
        f"{SCORE} store",
        "no split 'val'",
        pipe_at("store/val/00000.arrow"),
        SHARD,
    ),
]
