"""Inputs that are no files: pipes, devices, folders, sockets and loops of links. No command waits for them."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

from support.uses import Case

from trajformer.heads.translation import read_lines

SCORE = "evaluate --store store --checkpoint"
READ = "raw/val/raw-val-0/scenario_raw-val-0.parquet"


def pipe_at(path: str) -> Callable[[], object]:
    """A pipe that no process writes to, in place of a file."""
    return lambda: (Path(path).unlink(missing_ok=True), os.mkfifo(path))


def socket_at(path: str) -> Callable[[], object]:
    """A socket."""
    return lambda: socket.socket(socket.AF_UNIX).bind(path)


def link_at(path: str, target: str) -> Callable[[], object]:
    """A link in place of a file."""
    return lambda: (Path(path).unlink(missing_ok=True), Path(path).symlink_to(target))


KINDS: dict[str, Callable[[], object]] = {
    "a pipe": pipe_at("x"),
    "a folder": lambda: os.mkdir("x"),
    "endless zeros": link_at("x", "/dev/zero"),
    "a socket": socket_at("x"),
    "a loop of links": link_at("x", "x"),
}
COMMANDS = {
    "a checkpoint": (f"{SCORE} x", "x: not a file|x: no such checkpoint"),
    "a recipe": ("train --config x --out r", "x: no such file and no recipe of this name"),
    "forecasts": ("plot store --forecasts x --out p", "x: no such file"),
    "a list of labels": ("weights convert timm_vit run/best.ckpt c.ckpt --labels x", "x: labels cannot be read"),
    "a text": (lambda: read_lines(Path("x")), "x: cannot be read: "),
}

CASES = (
    [
        Case(use=f"{kind} as {what}", prepare=prepare, run=run, line=line)
        for what, (run, line) in COMMANDS.items()
        for kind, prepare in KINDS.items()
    ]
    + [
        Case(
            use=f"{kind} as a store",
            prepare=prepare,
            run="evaluate --model constant_velocity --store x",
            line="x: no such store|x: no split 'val'",
        )
        for kind, prepare in KINDS.items()
    ]
    + [
        Case(
            use=f"{kind} as a raw file",
            prepare=prepare,
            run="preprocess argoverse2 raw s --split val --workers 1",
            status=0,
            line=r"(?s)val: 2 scenes.*1 skipped.*skipped val/raw-val-0/.*parquet: ",
        )
        for kind, prepare in (
            ("a pipe", pipe_at(READ)),
            ("endless zeros", link_at(READ, "/dev/zero")),
            ("a loop", link_at(READ, "a.parquet")),
        )
    ]
    + [
        Case(
            use="a pipe as a manifest",
            prepare=pipe_at("store/manifest.json"),
            run="store info store",
            line="manifest.json: no readable manifest",
        ),
        Case(
            use="a pipe as a shard",
            prepare=pipe_at("store/val/00000.arrow"),
            run="evaluate --model constant_velocity --store store",
            line="no split 'val'",
        ),
    ]
)
