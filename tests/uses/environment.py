"""A hostile environment: closed streams, encodings, names and text that disturb a terminal."""

import gzip
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from support.uses import Case

from trajformer.heads.translation.data import read_lines
from trajformer.scenes.manifest import manifest_text
from trajformer.scenes.shard import Shard, pack, write_shard

SCORE = "evaluate --model constant_velocity --store"
RED = "\x1b[31m\x1b]0;title\x07\u202e"  # color, title of the window, reversed text
ESCAPED = r"\\x1b\[31m\\x1b\]0;title\\x07\\u202e"
RAW_NAME = "caf\udce9"  # a name that is not UTF-8
SHARD = Path("store/val/00000.arrow")


def close_streams() -> None:
    """Standard input and error are closed, as by `2>&-`."""
    for number in (0, 2):
        os.close(number)
    sys.stdin = sys.stderr = None  # type: ignore[assignment]


def ascii_output() -> None:
    os.rename("store", "stadt-köln")
    sys.stdout.reconfigure(encoding="ascii", errors="strict")  # type: ignore[attr-defined]


def change_version() -> None:
    content = torch.load("run/last.ckpt", weights_only=True)
    content["trajformer"].update(schema=9, version=RED + "x" * 160_000)
    torch.save(content, "run/last.ckpt")


def change_software() -> None:
    shard = Shard(SHARD)
    scenes = [pack(shard.scene(index)) for index in range(len(shard))]
    SHARD.unlink()
    Path("store/manifest.json").unlink()
    write_shard(SHARD, scenes, replace(shard.info, software=RED + "x" * 160_000))


def change_manifest(change: Any) -> Any:
    """Change the entry of the split val, with the right checksum."""

    def prepare() -> None:
        path = Path("store/manifest.json")
        manifest = json.loads(path.read_text())
        del manifest["checksum"]
        change(manifest["splits"])
        path.write_text(manifest_text(manifest))

    return prepare


def leave_the_store(splits: Any) -> None:
    splits["val"]["shards"][0]["name"] = "../../raw/secret.arrow"


def leave_the_store_by_a_split(splits: Any) -> None:
    splits[".."] = splits.pop("val")


def damaged_gzip() -> None:
    content = gzip.compress(bytes(range(65, 91)) * 100)
    Path("text.gz").write_bytes(content[:20] + b"\xff" * 8 + content[28:])


def cut_gzip() -> None:
    Path("text.gz").write_bytes(gzip.compress(b"words " * 1000)[:-12])


CASES = [
    Case("closed streams", f"{SCORE} store", "minADE", close_streams, status=0),
    Case("an output in ASCII", "store info stadt-köln", r"stadt-k\\xf6ln", ascii_output, status=0,
         changes=("store", "store/*", "store/*/*")),
    Case("control codes in a checkpoint", "evaluate --checkpoint run/last.ckpt --store store",
         f"{ESCAPED}x{{1,250}} \\.\\.\\. x+", change_version,
         changes=("run/last.ckpt",)),
    Case("control codes in a shard", "store info store", f"version {ESCAPED}x{{10,99}} ",
         change_software, status=0),
    Case("an output that is not UTF-8", (*f"{'predict' + SCORE[8:]} store --out".split(), RAW_NAME),
         "forecasts of", status=0),
    Case("a store that is not UTF-8", (*SCORE.split(), RAW_NAME), "minADE",
         lambda: shutil.copytree("store", RAW_NAME), status=0),
    Case("a run that is not UTF-8", ("train", "--config", "recipe.yaml", "--out", RAW_NAME),
         r"^trajformer train: caf.udce9: its name is not UTF-8, .*give another --out"),
    Case("a manifest that names a file elsewhere", "store verify store",
         "secret.arrow: not the name of a file", change_manifest(leave_the_store)),
    Case("a manifest that names a folder elsewhere", "store verify store",
         r"\.\.: not the name of a file", change_manifest(leave_the_store_by_a_split)),
    Case("a damaged gzip file", lambda: read_lines(Path("text.gz")), "text.gz: cannot be read",
         damaged_gzip),
    Case("a cut gzip file", lambda: read_lines(Path("text.gz")), "text.gz: ", cut_gzip),
]  # fmt: skip
