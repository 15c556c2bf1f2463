"""Inputs that are no files: pipes, devices, folders, sockets and loops of links. No command waits for them."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

from support.uses import Case

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
COMMANDS = {
    "a checkpoint": ("evaluate --store store --checkpoint x", "x: not a file|x: no such checkpoint"),
    "a recipe": ("train --config x --out r", "x: no such file and no recipe of this name"),
    "forecasts": ("plot store --forecasts x --out p", "x: no such file"),
    "a list of labels": ("weights convert timm_vit run/best.ckpt c.ckpt --labels x", "x: labels cannot be read"),
    "a text": (lambda: read_lines(Path("x")), "x: cannot be read: "),
    "a store": (f"{SCORE} x", "x: no such store|x: no split 'val'"),
}
SKIPPED = r"(?s)val: 2 scenes.*1 skipped.*skipped val/raw-val-0/.*parquet: "

CASES = [
    Case(f"{kind} as {what}", run, line, prepare)
    for what, (run, line) in COMMANDS.items()
    for kind, prepare in KINDS.items()
    if kind in ("a pipe", "endless zeros") or what in ("a checkpoint", "a text", "a store")
]
CASES += [
    Case(f"{kind} as a raw file", "preprocess argoverse2 raw s --split val --workers 1", SKIPPED, prepare, status=0)
    for kind, prepare in (("a pipe", pipe_at(READ)), ("zeros", link_at(READ, "/dev/zero")), ("a loop", link_at(READ, "loop")))
]
CASES += [
    Case("a pipe as a manifest", "store info store", "no readable manifest", pipe_at("store/manifest.json")),
    Case("a pipe as a shard", f"{SCORE} store", "no split 'val'", pipe_at("store/val/00000.arrow")),
]
