"""Inputs that are no files: pipes, devices, folders, sockets and loops of links.

No command waits for them.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path

from support.uses import Case

from trajformer.heads.translation.data import read_lines

SCORE = "evaluate --model constant_velocity --store"
PREPARE = "preprocess argoverse2 raw s --split val --workers 1"
RAW_FILE = "raw/val/raw-val-0/scenario_raw-val-0.parquet"
NO_FILE = "neither a file nor a folder"
SKIPPED = (
    r"(?s)val: 2 scenes.*1 skipped.*skipped val/raw-val-0/.*parquet: not a readable parquet file: "
)


def pipe_at(path: str) -> Callable[[], object]:
    """A pipe that no process writes to, in place of a file."""

    def make() -> None:
        Path(path).unlink(missing_ok=True)
        os.mkfifo(path)

    return make


def link_at(path: str, target: str) -> Callable[[], object]:
    """A link in place of a file."""

    def make() -> None:
        Path(path).unlink(missing_ok=True)
        Path(path).symlink_to(target)

    return make


def folder() -> None:
    os.mkdir("x")


def bound_socket() -> None:
    socket.socket(socket.AF_UNIX).bind("x")


KINDS: dict[str, Callable[[], object]] = {
    "a pipe": pipe_at("x"),
    "a folder": folder,
    "endless zeros": link_at("x", "/dev/zero"),
    "a socket": bound_socket,
    "a loop of links": link_at("x", "x"),
}
ENDLESS = ("a pipe", "endless zeros")  # a program that reads one of these never ends
COMMANDS: dict[str, tuple[str | Callable[[], object], str]] = {  # command, line
    "a checkpoint": (
        "evaluate --store store --checkpoint x",
        "x: not a file|x: no such checkpoint",
    ),
    "a recipe": ("train --config x --out r", "x: no such file and no recipe of this name"),
    "forecasts": ("plot store --forecasts x --out p", "x: a folder, pipe or device"),
    "a list of labels": (
        "weights convert timm_vit run/best.ckpt c.ckpt --labels x",
        f"x: labels .*: {NO_FILE}",
    ),
    "a text": (lambda: read_lines(Path("x")), "x: cannot be read: "),
    "a store": (f"{SCORE} x", "x: no such store"),
}


def is_tested(role: str, kind: str) -> bool:
    """All kinds in three roles, except a folder as a store; the endless kinds in all roles."""
    if role == "a store" and kind == "a folder":
        return False
    return kind in ENDLESS or role in ("a checkpoint", "a text", "a store")


def skipped(kind: str, prepare: Callable[[], object], reason: str) -> Case:
    """A raw file that is skipped."""
    return Case(f"{kind} as a raw file", PREPARE, SKIPPED + reason, prepare, status=0)


CASES = []
for role, (run, line) in COMMANDS.items():
    for kind, prepare in KINDS.items():
        if is_tested(role, kind):
            CASES.append(Case(f"{kind} as {role}", run, line, prepare))
CASES += [
    skipped("a pipe", pipe_at(RAW_FILE), NO_FILE),
    skipped("zeros", link_at(RAW_FILE, "/dev/zero"), NO_FILE),
    skipped("a loop", link_at(RAW_FILE, Path(RAW_FILE).name), "Too many levels"),
    Case("an empty folder as a store", f"{SCORE} x", "x: no split 'val'", folder),
    Case(
        "a pipe as a manifest",
        "store info store",
        f"no readable manifest .{NO_FILE}",
        pipe_at("store/manifest.json"),
    ),
    Case("a pipe as a shard", f"{SCORE} store", "no split 'val'", pipe_at("store/val/00000.arrow")),
]
